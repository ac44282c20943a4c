"""Options shared by commands; functions that load settings, open the memory and read input."""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Self

import click

from memories.cli.app import TagOption, completing, option, parse_project
from memories.cli.output import FORMATS, configure, note, report_damage, set_format, unwatch, watch
from memories.core.events import noting
from memories.core.urls import local_path
from memories.errors import InvalidInput
from memories.guard.validate import MAX_CONTENT_BYTES, MAX_LIMIT, unit
from memories.search.filters import FILTERS, Parameter

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.settings import Config

Decorator = Callable[[Any], Any]
_NOTED = (
    "export",
    "import_",
    "migrate",
    "reembed",
    "backup",
)  # other commands call methods that record their own events
_TYPES = ("preference", "fact", "observation", "project", "decision")
_MAX_ID_BYTES = 4_194_304
# the kind of names that a shell completes for each of these parameters
_COMPLETED = {
    "conversation": "conversations", "key": "keys", "project": "project", "supersedes": "ids",
}  # fmt: skip

# The function that opens a run's `Memories`, and the id for the memory that `create` stores.
# `__main__` sets both if it runs a command for a client, and only the id if a server's response was
# lost and the command is run again here. Because of this id, a command that runs twice stores
# only one memory.
OPEN_MEMORIES: "ContextVar[Callable[[Config, bool], Memories] | None]" = ContextVar(
    "open_memories", default=None
)
CREATE_ID: ContextVar[str] = ContextVar("create_id", default="")
STORES_TO_SERVE: list[str] = []  # stores of runs whose settings ask for a server


class _LazyModule:
    """A module that is imported when one of its functions is first called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> "Callable[..., Any]":
        def call(*arguments: Any, **options: Any) -> Any:
            return getattr(import_module(self._name), attribute)(*arguments, **options)

        return call


if TYPE_CHECKING:  # JSON output needs neither module
    # Imported under their own names, so that mypy lets commands import them from here.
    from memories.answers import compact as compact  # noqa: PLC0414
    from memories.cli import text as text  # noqa: PLC0414
else:
    compact = _LazyModule("memories.answers.compact")
    text = _LazyModule("memories.cli.text")


def together(*decorators: Decorator) -> Decorator:
    """Return a decorator that adds several options, in order."""

    def decorate(command: Any) -> Any:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


# --- settings and memory


def with_settings(*options: Decorator) -> Decorator:
    """Return a decorator that adds options, and passes a `Config` as the first argument.

    The options for output format, namespace and store override settings.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run_with_settings(
            output: str | None = None,
            namespace: str | None = None,
            store: str | None = None,
            **arguments: Any,
        ) -> Any:
            unwatch()
            config = load_settings(output, namespace, store)
            name = command.__name__
            if name not in _NOTED:
                return report_damage(command(config, **arguments))
            with noting(config, name.rstrip("_"), channel="cli", agent=config.identity):
                return report_damage(command(config, **arguments))

        return together(*options)(run_with_settings)  # type: ignore[no-any-return]

    return decorate


def with_memories(*, reads_shared: bool, selects: bool = False) -> Decorator:
    """Return a decorator that adds the options for output, namespace and store, and passes a
    `Memories` as the first argument.

    Args:
        reads_shared: Whether the command also reads the memories in `shared`. If so, the option
            `--no-shared` is added, and a note is printed if the store is missing.
        selects: Whether to pass the memories of `named_options` as `selection`.
    """
    options = [namespace_option, store_option, format_option]
    if reads_shared:
        options.insert(1, no_shared_option)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @with_settings(*options)
        @functools.wraps(command)
        def run_with_memories(config: "Config", no_shared: bool = False, **arguments: Any) -> Any:
            is_named = reads_shared and config.sources["store"] != "default"
            path = local_path(config.store) if is_named else None
            was_missing = path is not None and not os.path.lexists(path)
            with open_memories(config, shared=not no_shared) as memories:
                if selects:
                    named = [arguments.pop(name) for name in ("ids", "key", "project")]
                    arguments["selection"] = select(memories, *named)
                code = command(memories, **arguments)
            # `restore` may have created the store.
            if path is not None and was_missing and not os.path.lexists(path):
                note(f"Note: there is no store at {path} yet; the first memory creates it.")
            return code

        return run_with_memories  # type: ignore[no-any-return]

    return decorate


def load_settings(output: str | None, namespace: str | None, store: str | None) -> "Config":
    """Load this run's settings, and switch to its output format."""
    from memories.config import load_config  # takes 4 ms, so not for `--help`

    config = load_config({"format": output, "namespace": namespace, "store": store}, tell=note)
    configure(config)
    # In a server, a command must not change the log level of other commands.
    if config.log_level == "DEBUG" and OPEN_MEMORIES.get() is None:
        from memories.core import logs

        logs.enable(config.log_level)
    if config.serve == "auto":
        STORES_TO_SERVE.append(config.store)
    return config


def make_memories(config: "Config", *, shared: bool) -> "Memories":
    """Return this run's `Memories`; in a server, it uses the store that the server has opened."""
    opener = OPEN_MEMORIES.get()
    if opener is not None:
        return opener(config, shared)
    from memories.identity.place import here
    from memories.memories import Memories  # imported late, since settings errors don't need it

    return Memories(shared=shared, config=config, channel="cli", place=here(config))


@contextlib.contextmanager
def open_memories(config: "Config", *, shared: bool) -> "Iterator[Memories]":
    """Open this run's `Memories`, and store the edits made in its scratchpad file.

    Damaged records and the stored edits are reported.
    """
    with make_memories(config, shared=shared) as memories:
        watch(memories.damaged)
        for sentence in memories.apply_edits():
            note(sentence)
        yield memories


def note_language(memories: "Memories", text: str) -> None:
    """Print how to get the multilingual model, the first time that it would help."""
    from memories.embedders import give_hint

    if hint := give_hint(text, memories.embedder, memories.config.home):
        note(f"Note: {hint}")


# --- selected memories ---


class SelectedMemories(NamedTuple):
    """The memories selected on a command line.

    Attributes:
        ids: Their ids as given, without repetitions.
        is_list: Whether the output is a list: several ids were given, or ids on standard input.
    """

    ids: Sequence[str]
    is_list: bool


def select(
    memories: "Memories",
    arguments: Sequence[str],
    key: str | None = None,
    project: str | None = None,
) -> SelectedMemories:
    """Return the memories selected by ids, by `-` for ids on standard input, or by a key.

    Raises:
        InvalidInput: No memory is selected, or both ids and a key are given.
        NotFound: No memory has the key.
    """
    from memories.identity.place import names_of  # most commands name no project

    projects = names_of(project)
    if key is not None:
        if arguments:
            raise InvalidInput("ID and --key can't be combined; give one of them")
        names = projects if len(projects) > 1 else next(iter(projects), None)
        return SelectedMemories([memories.id_of_key(key, project=names)], is_list=False)
    if projects:
        raise InvalidInput("--project requires --key here, since each project has its own keys")
    if not arguments:
        raise click.UsageError("Missing argument 'ID' or option '--key'.")
    ids: list[str] = []
    for argument in arguments:
        ids += read_ids() if argument == "-" else [argument]
    if not ids:
        raise InvalidInput("standard input contains no ids; write one per line")
    is_list = len(arguments) > 1 or "-" in arguments
    return SelectedMemories(list(dict.fromkeys(ids)), is_list)


def read_ids() -> list[str]:
    """Return the ids on standard input, separated by spaces or line ends."""
    return read_argument("-", "the list of ids", _MAX_ID_BYTES).split()


# --- input and progress ---


def read_argument(argument: str, name: str, max_bytes: int = MAX_CONTENT_BYTES) -> str:
    """Return a text argument; `-` reads it from standard input.

    Args:
        argument: The argument.
        name: Its name, for messages.
        max_bytes: The maximum size of standard input in bytes.

    Raises:
        InvalidInput: Standard input is too large, or not UTF-8.
    """
    if argument != "-":
        return argument
    framing = len("\ufeff\r\n".encode())  # room for a byte order mark and a line end
    data = sys.stdin.buffer.read(max_bytes + framing + 1)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InvalidInput(f"{name} looks like UTF-16; save it as UTF-8")
    if len(data) > max_bytes + framing:
        raise InvalidInput(
            f"{name} is larger than the limit of {max_bytes} bytes; shorten or split it"
        )
    try:
        return data.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as exc:
        line = data[: exc.start].count(b"\n") + 1
        byte = f"byte 0x{data[exc.start]:02x} at {exc.start}"
        raise InvalidInput(
            f"line {line} of {name} is not UTF-8 ({byte}); save it as UTF-8"
        ) from None


class ProgressBar:
    """Context manager that shows the progress of a long task, but only on a terminal."""

    def __init__(self) -> None:
        """Initialize; nothing is shown yet."""
        self._is_shown = sys.stderr.isatty()
        self._label = ""
        self._bar: Any = None

    def __call__(self, label: str, done: int, total: int) -> None:
        """Show the progress of the step with this label."""
        if not self._is_shown:
            return
        if self._bar is None or label != self._label or done < self._bar.pos:
            self.close()
            self._label = label
            import click

            self._bar = click.progressbar(length=total, label=label, file=sys.stderr).__enter__()
        self._bar.length = total
        self._bar.update(done - self._bar.pos)

    def close(self) -> None:
        """Finish the line."""
        if self._bar is not None:
            self._bar.render_finish()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def size_of(stream: BinaryIO) -> int:
    """Return the size of a file in bytes; 0 for a pipe or a terminal."""
    import os
    import stat

    with contextlib.suppress(OSError, ValueError):
        status = os.fstat(stream.fileno())
        return status.st_size if stat.S_ISREG(status.st_mode) else 0
    return 0


# --- values ---


def parse_whole_number(
    text: str, complaint: str = f"limit must be a whole number from 1 to {MAX_LIMIT}"
) -> int:
    """Parse a whole number; the caller checks its range.

    Args:
        text: The text.
        complaint: The error message if the text is not a whole number.

    Raises:
        InvalidInput: The text is not a whole number.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidInput(f'{complaint}, not "{text[:40]}"')
    return int(text)


def whole_number_or(complaint: str) -> Callable[[str], int]:
    """Return a function that parses whole numbers, with `complaint` as its error message."""
    return functools.partial(parse_whole_number, complaint=complaint)


def parse_share(text: str, name: str) -> float:
    """Parse a number from 0 to 1.

    Raises:
        InvalidInput: The text is not such a number.
    """
    with contextlib.suppress(ValueError):
        return unit(float(text), name)
    raise InvalidInput(f'{name} must be a number from 0 to 1, not "{text[:40]}"')


# --- tags ---


def _tag_options(section: str, group: str = "", **helps: str) -> dict[str, Decorator]:
    def tag_option(*names: str, **settings: Any) -> Decorator:
        name = names[0].removeprefix("--")
        return click.option(
            *names, cls=TagOption, section=section, group=group, help=helps[name], **settings
        )

    return {
        "tag": tag_option("--tag", "-t", metavar="KEY=VALUE", kind="tags", multiple=True),
        "agent": tag_option("--agent", metavar="NAME", kind="agent"),
        "personality": tag_option("--personality", metavar="NAME", kind="personality"),
        "project": tag_option("--project", metavar="NAME", kind="project"),
        "type": tag_option("--type", metavar="NAME", values=_TYPES),
        "global": tag_option("--global", is_flag=True),
    }


_FILTER_HELPS = {
    "tag": FILTERS["tags"].about,
    "agent": "Only memories from this AI platform, such as claude.",
    "personality": "Only memories from this role or persona.",
    "project": "Only memories from this project.",
    "type": f"Only memories of this kind, such as {_TYPES[0]} or {_TYPES[1]}.",
    "global": "Only memories marked as valid in every project.",
}
tag_options = together(
    *_tag_options(
        "Tags",
        tag="A tag; may be repeated.",
        agent="The AI platform that stores the memory, such as claude.",
        personality="The agent's role or persona.",
        project="The project that the memory belongs to.",
        type=f"The kind of memory, such as {', '.join(_TYPES[:-1])} or {_TYPES[-1]}.",
        **{"global": "Mark the memory as valid in every project."},
    ).values()
)


# --- filters ---


def filter_option(name: str, group: str = "") -> Decorator:
    """Return the option for a filter, as described in `search.filters`."""
    row = FILTERS[name]
    if row.kind == "flag":
        is_on = row.default == "true"
        flag = f"{row.flag}/--no-{row.flag[2:]}" if is_on else row.flag
        return option(
            flag,
            name,
            is_flag=True,
            default=is_on,
            group=group,
            section=row.section,
            help=row.about,
        )
    return value_option(row, group)


def value_option(row: Parameter, group: str) -> Decorator:
    """Return the option for a parameter that takes a value."""
    parse: Callable[[str], Any] | None = None
    if row.kind == "whole":
        parse = parse_whole_number
    elif row.kind == "share":
        parse = functools.partial(parse_share, name=row.flag[2:])
    elif row.name == "project":
        parse = parse_project
    return option(
        row.flag, row.name, metavar=row.placeholder, values=row.choices, parse=parse,
        kind=_COMPLETED.get(row.name, ""), group=group, section=row.section,
        help=f"{row.about} [default: {row.default}]" if row.default else row.about,
    )  # fmt: skip


def filtered_by(*names: str) -> Decorator:
    """Return a decorator that adds the options for these filters, and passes the given filters as
    the dict `filters`.

    `--project` is a separate filter, since it also finds memories that are valid in every project;
    `--tag project=NAME` is a plain tag.
    """
    options: list[Decorator] = []
    for name in names:
        if name == "tags":
            tags = _tag_options("Filters", "filters", **_FILTER_HELPS)
            tags["project"] = filter_option("project", "filters")
            options += tags.values()
        elif name != "project":
            options.append(filter_option(name, "filters"))
    return together(*options)


where_option = filter_option("where")
since_option = filter_option("since")
as_of_option = filter_option("as_of")
limit_option = filter_option("limit")
review_filters = together(
    *_tag_options("Filters", "filters", **_FILTER_HELPS).values(),
    filter_option("written_by", "filters"),
    filter_option("trust", "filters"),
    option(
        "--import", "import_id", metavar="ID", group="filters", section="Filters",
        help="Only memories from this import.",
    ),
    option(
        "--match", metavar="WORDS", group="filters", section="Filters",
        help="Only memories that contain all of these words.",
    ),
    filter_option("since", "filters"),
    filter_option("until", "filters"),
)  # fmt: skip


# --- anchors ---

_ANCHORS, _EVIDENCE = "Anchors", "evidence"  # a section of the help, and a group of options

anchor_option = option(
    "--anchor", "anchors", metavar="ANCHOR", multiple=True, section=_ANCHORS, group=_EVIDENCE,
    help="Evidence for the memory: a path, FILE::SYMBOL, FILE::LITERAL, commit:ID or a URL; may be "
    "repeated.",
)  # fmt: skip


def valid_until_option(*aliases: str) -> Decorator:
    """Return the option for the time at which a memory stops being true."""
    return option(
        "--valid-until", *aliases, "valid_until", metavar="TIME", section=_ANCHORS, group=_EVIDENCE,
        help="When the memory stops being true. A date means the end of that day; 90d means 90 "
        "days from now; friday means the next Friday.",
    )  # fmt: skip


def anchor_options(*aliases: str) -> Decorator:
    """Return the options for a memory's anchors and dates; see `read_evidence`.

    Args:
        *aliases: Other names for `--valid-until`.
    """
    return together(
        anchor_option,
        option(
            "--no-anchors", is_flag=True, section=_ANCHORS, group=_EVIDENCE,
            help="Store no anchors, not even those found in the text.",
        ),
        valid_until_option(*aliases),
        option(
            "--recheck", metavar="SPAN", section=_ANCHORS, group=_EVIDENCE,
            help="How long until the memory should be confirmed again, such as 90d.",
        ),
    )  # fmt: skip


def read_evidence(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return the anchors and dates from options as arguments for `Memories.create`, `update`
    and `Truth.confirm`.

    Raises:
        InvalidInput: Both --anchor and --no-anchors are given.
    """
    values = dict(evidence)
    anchors = values.pop("anchors") or None
    if values.pop("no_anchors", False):
        if anchors:
            raise InvalidInput("--anchor and --no-anchors can't be combined; omit one of them")
        anchors = ()
    return {**values, "anchors": anchors}


# --- other options ---

memory_id = click.argument("memory_id", metavar="ID", shell_complete=completing("ids"))
_key_options = together(
    option(
        "--key", metavar="KEY", kind="keys", section="Filters",
        help="The memory with this key, instead of an ID.",
    ),
    option(
        "--project", metavar="NAME", kind="project", section="Filters",
        help="With --key: the project that the key belongs to.",
    ),
)  # fmt: skip


def _named(metavar: str) -> Decorator:
    ids = click.argument("ids", nargs=-1, metavar=metavar, shell_complete=completing("ids"))
    return together(ids, _key_options)


named_options = _named("[ID]...")
one_named_option = _named("[ID]")


format_option = option(
    "--format", "output", metavar="FORMAT", values=FORMATS, section="Output",
    # Parsed first, so that errors in other options are printed in this format.
    is_eager=True, parse=set_format,
    help="json, text, or compact for a model. [default: text on a terminal, else json]",
)  # fmt: skip
namespace_option = option(
    "--namespace", "-n", metavar="NAME", kind="namespaces", section="Store",
    help="The namespace to use. [default: shared]",
)  # fmt: skip
no_shared_option = option(
    "--no-shared", is_flag=True, section="Store", help="Do not read the shared namespace."
)
store_option = option(
    "--store", metavar="URL", section="Store",
    help="The store's URL, such as sqlite:///path. [default: a file in the data folder]",
)  # fmt: skip
no_redact_option = option(
    "--no-redact", is_flag=True,
    help="Store secrets and <private> passages unchanged. [default: remove them]",
)  # fmt: skip
dry_run_option = option(
    "--dry-run", is_flag=True, help="Change nothing; only show what would change."
)
unasked_option = option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
remove_tag_option = option(
    "--remove-tag", "remove_tags", metavar="KEY", multiple=True, section="Tags", group="changes",
    help="A tag to remove; may be repeated.",
)  # fmt: skip
show_option = option(
    "--show", metavar="N", section="Output",
    help=f"How many changes to list, 0 to {MAX_LIMIT}. [default: 10]",
)  # fmt: skip
cursor_option = option(
    "--cursor", metavar="CURSOR", section="Output",
    help="Continue after a page; give that page's next_cursor.",
)  # fmt: skip
fields_option = option(
    "--fields", metavar="NAMES", section="Output",
    help="Only these fields, such as id,content; in text, one line for each result. [default: all]",
)  # fmt: skip
