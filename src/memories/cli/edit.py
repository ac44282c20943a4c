"""The command that opens a memory in an editor: edit."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memories.answers import shapes
from memories.cli.many import named
from memories.cli.options import command, in_session, named_options, no_redact_option
from memories.cli.output import changing, emit, note
from memories.cli.session import compacts, texts
from memories.errors import ConfigError, InvalidInput, MemoriesError, RequestError

if TYPE_CHECKING:
    from memories.memories import Memories

_EDITORS = ("sensible-editor", "nano", "vim", "vi")  # tried where neither VISUAL nor EDITOR is set
_FILE = "memory.txt"


@command(epilog="memory edit 01a1fdf1-92cd-72f2\nEDITOR='code --wait' memory edit --key user/editor")
@named_options
@no_redact_option
@in_session(reads=True)
def edit(memories: "Memories", ids: Sequence[str], key: str | None, project: str | None, no_redact: bool) -> None:
    """Edit a memory in your editor: what you save is its new version.

    The editor is VISUAL or EDITOR, which may have arguments. What is not changed stays as it is. If somebody else has
    changed the memory meanwhile, nothing is stored, and your text is kept in a file that is named.
    """
    chosen = named(memories, ids, key, project)
    if chosen.several:
        raise InvalidInput("one memory is edited at a time; give one ID")
    found = memories.get(chosen.ids[0])
    if found.pending:
        raise RequestError(f"Memory waits for review; edit it with: memory review edit {found.id}")
    if found.namespace != memories.namespace:
        raise RequestError(f"Memory is in namespace {found.namespace}; edit it from there: add -n {found.namespace}")

    def store(text: str) -> None:
        memory = changing(
            lambda: memories.update(found.id, text, redact=not no_redact, if_version=found.version),
            lambda done: f"{done.id} was updated, version {done.version}",
        )
        emit(
            shapes.memory(memory),
            lambda: str(texts().memory(memory)),
            compact=lambda: str(compacts().one(memories, memory)),
        )

    if not edited(found.content, store, instead=f"memory update {found.id} CONTENT"):
        note("Nothing was changed.")


def edited(content: str, store: Callable[[str], None], *, instead: str) -> bool:
    """Have a person edit a text, and store what was saved; return whether it was changed.

    It lies in a folder that nobody else can read. That is removed afterwards, unless what was saved can't be stored.

    Args:
        content: The text.
        store: Stores the new one.
        instead: What to run where there is no terminal.

    Raises:
        InvalidInput: There is no terminal, or what was saved is empty or no text.
        ConfigError: There is no editor.
        MemoriesError: It could not be stored; the message says where it is.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput(
            f"there is no terminal to edit on; give the new text: {instead}, or - to read it from a pipe"
        )
    argv = _editor()
    folder = Path(tempfile.mkdtemp(prefix="memory-"))
    file = folder / _FILE
    unsaved = False
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(f"{content}\n".encode())
        _run([*argv, str(file)])
        unsaved = file.exists() and bool(file.read_bytes().strip())
        text = _saved(file, content)
        if text is not None:
            store(text)
        unsaved = False
    except (MemoriesError, KeyboardInterrupt) as exc:
        kept = f"your text is kept in {file}"
        if unsaved and isinstance(exc, MemoriesError):
            raise type(exc)(f"{exc}; {kept}") from exc
        if unsaved:
            note(f"Y{kept[1:]}")
        raise
    finally:
        if not unsaved:
            shutil.rmtree(folder, ignore_errors=True)
    return text is not None


def _editor() -> list[str]:
    """Return the editor and its arguments.

    Raises:
        ConfigError: There is none, or the variable that names it can't be read.
    """
    import shlex

    for variable in ("VISUAL", "EDITOR"):
        if given := os.environ.get(variable, "").strip():
            try:
                return shlex.split(given)
            except ValueError as exc:
                raise ConfigError(f"{variable} can't be read ({exc}); write the quotes in pairs") from exc
    found = next(filter(None, map(shutil.which, _EDITORS)), None)
    if found is None:
        raise ConfigError("there is no editor; set VISUAL or EDITOR to one")
    return [found]


def _run(argv: Sequence[str]) -> None:
    """Run an editor without a shell, and wait for it; Ctrl-C is for the editor.

    Raises:
        ConfigError: It can't be started.
        RequestError: It failed.
    """
    import subprocess

    before = signal.signal(signal.SIGINT, lambda *_: None)  # one that is ignored would be ignored by the editor too
    try:
        code = subprocess.run(argv, check=False).returncode  # noqa: S603 - what the user's own variable names
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise ConfigError(f"cannot start the editor {argv[0]}: {reason}; set VISUAL or EDITOR to another one") from exc
    finally:
        signal.signal(signal.SIGINT, before)
    if code:
        raise RequestError(f"the editor {argv[0]} ended with exit code {code}; nothing was changed")


def _saved(file: Path, before: str) -> str | None:
    """Return what was saved, without the line end that editors put behind the last line; None if nothing was changed.

    Raises:
        InvalidInput: It is empty, or no text.
    """
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InvalidInput("the file was removed, so there is no new text; nothing was changed") from None
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"what was saved is not UTF-8 (byte {exc.start}); nothing was changed") from None
    if "\r\n" not in before:
        text = text.replace("\r\n", "\n")
    text = text.rstrip("\r\n")
    if not text.strip():
        raise InvalidInput("what was saved is empty; nothing was changed; memory delete removes a memory")
    return None if text == before.rstrip("\r\n") else text


COMMANDS = (edit,)
