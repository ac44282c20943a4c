"""The hooks' switch: whether memory is on for a folder and session, and for which identity.

A file in a repository can only switch memory off. Files that switch memory on are in the user's
home, where no repository can put them. A prompt such as "memory off" or "start as bob" switches its
own session.
"""

import os
import re

from memories.hooks import files, session

TYPE_CHECKING = False  # importing `typing` for this takes 3 ms
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

MARKER, VARIABLE, PROJECTS = ".memories-off", "MEMORY_OFF", "CAPTURE_PROJECTS"
EVERYWHERE = "*"
PROJECT = "project "  # prefix of a line that names a project, not a folder
_FALSE = ("", "0", "false", "no", "off")

_MAX_WISH = 120  # maximum length of a prompt that switches memory, in characters
_NAME = r"[`\"'“]?(?P<name>[a-z0-9][a-z0-9._-]{0,62})[`\"'”]?"
_ON = r"with (?:your |the |my )?memory(?: (?:enabled|on|turned on|switched on))?"
_OFF = (
    r"with(?: your| the| my)? memory (?:disabled|off|turned off|switched off)"
    r"|without(?: a| any| your)? memory"
)
_SWITCH = (
    r"(?:please )?(?:(?:turn |switch )?{its}memory {to}|(?:turn|switch) {to} {its}memory"
    r"|{verb} {its}memory)(?: (?:for|in) this (?:session|chat))?(?: please)?"
)
_ITS = r"(?:the |your |my )?"
_TURN_ON = _SWITCH.format(its=_ITS, to="on", verb="enable")
_TURN_OFF = _SWITCH.format(its=_ITS, to="off", verb="disable")
_START = (
    r"(?:please )?(?:(?:start|begin|continue|resume)(?: (?:a|the|this|new|my))*"
    r"(?: (?:session|chat))?)"
)
_AS = rf"(?:{_START} as|as) {_NAME}"
# Words that may follow "as" in prompts that name no identity, such as "start as usual".
_NOT_NAMES = frozenset(
    "a an the usual always before expected planned is was well soon possible needed follows "
    "above below discussed agreed described requested root admin administrator daemon service "
    "server normal default background job user guest instructed directed suggested stated "
    "said shown written such it that this you me i we they him them her us many much far long "
    "opposed promised ever if though then draft text plain markdown json yaml toml csv html "
    "pdf xml code main master intended proposed appropriate required necessary usually "
    "specified mentioned here there now one two superuser sudo anonymous process subprocess "
    "thread module script function class list table string number boolean array object "
    "recommended documented configured designed advised outlined noted listed ordered defined "
    "declared implemented illustrated detailed parquet jsonl ndjson tsv yml sql docx xlsx svg png "
    "jpg jpeg webp gif zip tar md txt latex protobuf base64 hex utf-8 ascii int integer float bool "
    "str tuple dict set enum constant variable parameter argument property method component hook "
    "plugin library package container image postgres ubuntu dev prod production staging optional "
    "private public static async readonly deprecated done fixed resolved closed".split()
)


class SwitchState:
    """Whether memory is on, and for which identity.

    Attributes:
        on: Whether anything may be stored or shown.
        capture: Whether the conversation may be captured, if the hook is called with `--capture`.
        why: Why memory is off or captures nothing, as part of a sentence; empty if it is on and
            captures.
        off_for_session: Whether memory is off only because this session switched it off, so that
            the session can switch it on again.
        namespace: The namespace that the session switched to; None if it did not switch.
    """

    def __init__(
        self,
        *,
        on: bool,
        capture: bool,
        why: str,
        off_for_session: bool = False,
        namespace: str | None = None,
    ) -> None:
        """Create a state."""
        self.on, self.capture, self.why = on, capture, why
        self.off_for_session, self.namespace = off_for_session, namespace

    @property
    def why_off(self) -> str:
        """The reason nothing is shown or stored, for use in a sentence; empty if memory is on."""
        return "" if self.on else self.why


def read_state(folder: str, session_name: str | None) -> SwitchState:
    """Return whether memory and capture are on, and if not, why.

    Args:
        folder: The agent's working folder.
        session_name: The name of the agent's session, from `files.session_name`; None if there is
            none.

    Raises:
        ValueError: The setting `home` is empty, or the user's `config.toml` can't be read.
        OSError: The list of folders where memory is off can't be read.
    """
    folders = list(_with_parents(folder))
    why = _why_off(folders)
    if why:
        return SwitchState(on=False, capture=False, why=why)
    state = session.Session()
    if session_name:
        state = session.read(files.home(), session_name)
    if state.off:
        return SwitchState(
            on=False,
            capture=False,
            why="this session switched it off",
            off_for_session=True,
            namespace=state.namespace,
        )
    projects = os.environ.get(PROJECTS)
    if projects is None:
        projects = str(files.own_settings().get("capture_projects", ""))
    why = why_not_captured(folders, projects)
    return SwitchState(on=True, capture=not why, why=why, namespace=state.namespace)


def _why_off(folders: "Sequence[str]") -> str:
    """Return the reason memory is off for every session in a folder; empty if it is on.

    Args:
        folders: The folder, then its parents.
    """
    if os.environ.get(VARIABLE, "").strip().lower() not in _FALSE:
        return f"{VARIABLE} is set"
    for folder in folders:
        if os.path.lexists(os.path.join(folder, MARKER)):
            return f"{os.path.join(folder, MARKER)} exists"
    off = read_off(files.home())
    if EVERYWHERE in off:
        return "memory off --all was run"
    for folder in folders:
        if folder in off:
            return f"memory off was run in {folder}"
    if any(line.startswith(PROJECT) for line in off):
        return _why_project_off(off, folders[0])
    return ""  # no project is off, so don't look up this folder's project, which would be slow


def _why_project_off(off: set[str], folder: str) -> str:
    """Return the reason a folder's project is off; empty if it is on.

    A project that can't be identified is treated as off, since the user may have switched it off.
    """
    from pathlib import Path

    from memories.errors import ConfigError
    from memories.identity.project import identify

    settings = Path(files.settings_folder())
    try:
        project = identify(Path(folder), settings, record=False)
        if project is not None and lines_of(off, project.name, settings):
            return f"memory off was run in the project {project.name}"
    except ConfigError as exc:
        return f"memory is off in some projects, and this project can't be identified: {exc}"
    return ""


def read_off(home: str) -> set[str]:
    """Return where `memory off` applies: folders, `project NAME`, or `*` for everywhere."""
    path = os.path.join(home, files.OFF)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            return set(stream.read(1_048_576).split("\n")) - {""}
    except FileNotFoundError:
        return set()


def lines_of(off: "Iterable[str]", name: str, home: "Path") -> set[str]:
    """Return the lines that switch off a project under any name that it has ever had.

    Args:
        off: See `read_off`.
        name: The project.
        home: The folder that contains the user's aliases.

    Raises:
        ConfigError: The aliases can't be read.
    """
    from memories.identity import registry

    aliases = registry.aliases(home)
    lines = (line for line in off if line.startswith(PROJECT))
    return {line for line in lines if registry.resolve(line.removeprefix(PROJECT), aliases) == name}


def why_not_captured(folders: "Sequence[str]", patterns: str) -> str:
    """Return the reason nothing is captured in a folder; empty if the setting allows capturing.

    Args:
        folders: The folder, then its parents; a pattern may match any of them.
        patterns: The setting `capture_projects`: patterns of folders, separated by commas. Folders
            that match a `!` pattern are never captured. If there are other patterns, only folders
            that match one of them are captured.
    """
    rules = [rule.strip() for rule in patterns.split(",") if rule.strip()]
    if not rules:
        return ""
    from fnmatch import fnmatchcase

    for rule in rules:
        if rule.startswith("!"):
            pattern = os.path.expanduser(rule[1:].strip()).rstrip(os.sep)
            # A pattern without a slash is compared with folder names. Such a pattern can only
            # exclude folders, since a repository's author can choose its folder's name.
            for folder in folders:
                text = folder if os.sep in pattern else os.path.basename(folder)
                if fnmatchcase(text, pattern):
                    return f"{PROJECTS} has !{rule[1:].strip()}"
    allowed = [os.path.expanduser(rule) for rule in rules if not rule.startswith("!")]
    if not allowed:
        return ""
    for pattern in [rule.rstrip(os.sep) or os.sep for rule in allowed]:
        if os.sep in pattern and any(fnmatchcase(folder, pattern) for folder in folders):
            return ""
    return f"{PROJECTS} allows only other folders"


def _with_parents(folder: str) -> "Iterator[str]":
    """Yield a folder and its parents, first as the path is written, then with links resolved."""
    seen = set()
    for start in (os.path.abspath(folder), os.path.realpath(folder)):
        path = start
        while path not in seen:
            seen.add(path)
            yield path
            path = os.path.dirname(path)


class Wish:
    """The switch that a prompt asks for: memory on or off for its session, or another namespace."""

    def __init__(self, on: bool, namespace: str | None) -> None:
        """Initialize; `namespace` is None if the prompt names none."""
        self.on, self.namespace = on, namespace


def parse_wish(text: str) -> Wish | None:
    """Return the switch that a prompt asks for; None if the prompt is about anything else.

    Only a prompt that contains nothing else counts: "start as bob with memory enabled", "as alice",
    "memory off".
    """
    if not text or len(text) > _MAX_WISH or "\n" in text:
        return None
    prompt = " ".join(text.lower().rstrip(".! ").replace(",", " ").split())
    if re.fullmatch(rf"(?:{_TURN_OFF}|{_START} (?:{_OFF}))", prompt):
        return Wish(False, None)
    if re.fullmatch(rf"(?:{_TURN_ON}|{_START} {_ON})", prompt):
        return Wish(True, None)
    for pattern, on in ((rf"{_AS} (?:{_OFF})", False), (rf"{_AS} {_ON}", True), (_AS, True)):
        match = re.fullmatch(pattern, prompt)
        if match is None or (pattern is _AS and match["name"] in _NOT_NAMES):
            continue
        from memories.guard.validate import is_own_name  # not needed by other prompts

        return None if is_own_name(match["name"]) else Wish(on, match["name"])
    return None
