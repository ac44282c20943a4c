"""The options that several commands share, each said once, and how a command's help is laid out."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from memories.cli.output import FORMATS, note, told, unwatch, watch
from memories.cli.session import memory, settings
from memories.core.events import noting
from memories.errors import InvalidInput
from memories.guard.validate import MAX_LIMIT, parse_tag
from memories.search.filters import FILTERS, Parameter

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.settings import Config

_NOTED = frozenset(
    "export import_ migrate reembed backup".split()
)  # which are no verbs of `Memories`
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

TIME = (
    "TIME is a date (2024-05-31), an ISO 8601 time (2024-05-31T14:00Z), how long ago (30m, 12h, 7d, 2w, 3mo), or words "
    '("yesterday", "last week"). Without a time zone it is local time.'
)


def completing(kind: str) -> Callable[..., Any]:
    """Return what completes a value to names in the store; see `complete.completion`."""

    def complete(*given: Any) -> Any:
        from memories.cli.complete import completion  # which only a shell asks for

        return completion(kind)(*given)

    return complete


class Option(click.Option):
    """An option that stands in a section of the help; one that takes a single value can be given
    only once.
    """

    def __init__(
        self,
        *arguments: Any,
        section: str = "Options",
        values: Sequence[str] = (),
        kind: str = "",
        **more: Any,
    ) -> None:
        """Define it.

        Args:
            *arguments: See `click.Option`.
            section: The heading that it stands under.
            values: What a shell completes its value to; other values are not refused here.
            kind: What it completes it to otherwise, such as `namespaces`; see `completing`.
            **more: See `click.Option`.
        """
        self.section = section
        if values:
            more["shell_complete"] = lambda _context, _option, begun: [
                word for word in values if word.startswith(begun)
            ]
        if kind:
            more["shell_complete"] = completing(kind)
        if not more.get("is_flag") and not more.get("multiple"):
            more |= {
                "multiple": True,
                "callback": _once,
            }  # click itself would take the last one without a word
        super().__init__(*arguments, **more)


def _once(context: click.Context, option: click.Parameter, given: Sequence[str]) -> str | None:
    if len(given) > 1:
        raise click.UsageError(f"{max(option.opts, key=len)} is given twice; give it once", context)
    return given[0] if given else None


class _Page:
    """How the help of a command looks: options by section, what TIME means, examples as they are
    typed.
    """

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):  # type: ignore[attr-defined]
            if isinstance(option, click.Option) and (row := option.get_help_record(ctx)):
                # Click's own --help has no section; it comes last.
                section = getattr(option, "section", "Output" if sections else "Options")
                sections.setdefault(section, []).append(row)
        for name, rows in sections.items():
            with formatter.section(name):
                formatter.write_dl(rows)
        if any(option.metavar == "TIME" for option in self.get_params(ctx)):  # type: ignore[attr-defined]
            formatter.write_paragraph()
            formatter.write_text(TIME)

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line}\n" for line in self.epilog.splitlines()))  # type: ignore[attr-defined]


class Command(_Page, click.Command):
    """A command; its epilog is its examples, one a line."""


class Group(_Page, click.Group):
    """A group of commands, listed in the order in which they were defined."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options."""
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of the commands."""
        return list(self.commands)


command = functools.partial(click.command, cls=Command)
option = functools.partial(click.option, cls=Option)

memory_id = click.argument("memory_id", metavar="ID", shell_complete=completing("ids"))
_NAMED = (
    click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=completing("ids")),
    option(
        "--key",
        metavar="KEY",
        kind="keys",
        section="Filters",
        help="The memory with this key, instead of an ID.",
    ),
    option(
        "--project",
        metavar="NAME",
        kind="project",
        section="Filters",
        help="With --key: the project that the key belongs to.",
    ),
)
format_option = option(
    "--format", "output", metavar="FORMAT", values=FORMATS, section="Output",
    help="json, text, or compact for a model. [default: text on a terminal, else json]",
)  # fmt: skip
namespace_option = option(
    "--namespace",
    "-n",
    metavar="NAME",
    kind="namespaces",
    section="Store",
    help="Namespace to use. [default: shared]",
)
no_shared_option = option(
    "--no-shared", is_flag=True, section="Store", help="Do not read the shared namespace."
)
store_option = option(
    "--store", metavar="URL", section="Store",
    help="Where memories are kept, such as sqlite:///path. [default: a file in the data folder]",
)  # fmt: skip
no_redact_option = option(
    "--no-redact",
    is_flag=True,
    help="Store secrets and what is marked <private> as they are. [default: take them out]",
)
dry_run_option = option(
    "--dry-run", is_flag=True, help="Change nothing, only show what would be done."
)
show_option = option(
    "--show",
    metavar="N",
    section="Output",
    help=f"How many of them to name, 0 to {MAX_LIMIT}. [default: 10]",
)
fields_option = option(
    "--fields", metavar="NAMES", section="Output",
    help="Only these, such as id,content; as text, a line for each. [default: all]",
)  # fmt: skip
_TYPES = ("preference", "fact", "observation", "project", "decision")


def _tag_options(section: str, *helps: str) -> tuple[Callable[[Any], Any], ...]:
    names: tuple[tuple[str, ...], ...] = (
        ("--tag", "-t"),
        ("--agent",),
        ("--personality",),
        ("--project",),
    )
    tag, *texts = (
        option(
            *name,
            metavar="KEY=VALUE" if at == 0 else "NAME",
            multiple=at == 0,
            section=section,
            help=helps[at],
            kind="tags" if at == 0 else name[0][2:],
        )
        for at, name in enumerate(names)
    )
    kind = option("--type", metavar="NAME", values=_TYPES, section=section, help=helps[4])
    return (tag, *texts, kind, option("--global", is_flag=True, section=section, help=helps[5]))


_TAGS = _tag_options(
    "Tags",
    "A tag; may be repeated.",
    "AI platform that stores it, such as claude.",
    "Role or persona of the agent.",
    "Project that it belongs to.",
    f"Kind of memory, such as {', '.join(_TYPES[:-1])} or {_TYPES[-1]}.",
    "Valid in every project.",
)
_FILTER_HELPS = (
    FILTERS["tags"].about,
    "Only from this AI platform, such as claude.",
    "Only from this role or persona.",
    "Only from this project.",
    f"Only of this kind, such as {_TYPES[0]} or {_TYPES[1]}.",
    "Only what is marked as valid in every project.",
)
_FILTERS = _tag_options("Filters", *_FILTER_HELPS)
_SCOPED = _tag_options("Filters", *_FILTER_HELPS[:3], FILTERS["project"].about, *_FILTER_HELPS[4:])
_COMPLETED = {"conversation": "conversations"}  # what a shell completes the value of a filter to


def filter_option(name: str) -> Callable[[Any], Any]:
    """Return the option of a filter, as `search.filters` describes it."""
    row = FILTERS[name]
    if row.kind == "flag":
        both = f"{row.flag}/--no-{row.flag[2:]}" if row.default == "true" else row.flag
        return option(
            both,
            name,
            is_flag=True,
            default=row.default == "true",
            section=row.section,
            help=row.about,
        )
    about = f"{row.about} [default: {row.default}]" if row.default else row.about
    return option(
        row.flag, name, metavar=row.placeholder, values=row.choices, kind=_COMPLETED.get(name, ""),
        section=row.section, help=about,
    )  # fmt: skip


def filtered_by(*names: str) -> Callable[[Decorated], Decorated]:
    """Give a command the options of these filters, and pass it `filters`, those that are given, for
    `Memories`.

    What is valid in every project belongs to each, so `project` is more than a tag; `--tag
    project=NAME` is just one.
    """
    options: list[Callable[[Any], Any]] = []
    for name in names:
        if name == "tags":
            options += _SCOPED  # with what says `project`
        elif name != "project":
            options.append(filter_option(name))

    def decorate(command: Decorated) -> Decorated:
        @functools.wraps(command)
        def wrapped(*arguments: Any, **given: Any) -> Any:
            texts = {name: given.pop(name) for name in names if name in given}
            filters = {
                name: _read(FILTERS[name], text) for name, text in texts.items() if text is not None
            }
            return command(*arguments, filters=filters, **given)

        if "tags" in names:
            return _gathering(options, wrapped, apart=("project",))  # type: ignore[return-value]
        return _with(options, wrapped)  # type: ignore[return-value]

    return decorate


def _read(row: Parameter, given: Any) -> Any:
    """Return the value of a filter as `Memories` takes it."""
    if row.kind == "whole":
        return whole_number(given)
    if row.kind == "share":
        return share(given, row.flag[2:])
    if row.name == "project":
        return _names(given) or None
    return given


where_option = filter_option("where")
since_option = filter_option("since")
until_option = filter_option("until")
as_of_option = filter_option("as_of")
limit_option = filter_option("limit")
_CHOICES = ("tags", "written_by", "trust", "since", "until", "import_id", "match")
_RULES = (
    filter_option("written_by"),
    filter_option("trust"),
    option(
        "--import",
        "import_id",
        metavar="ID",
        section="Filters",
        help="Only what this import brought.",
    ),
    option("--match", metavar="WORDS", section="Filters", help="Only what has all of these words."),
    since_option,
    until_option,
)


def with_settings(
    *options: Callable[[Any], Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command options that are settings, among others, and pass it the settings as its first
    argument.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(
            output: str | None = None,
            namespace: str | None = None,
            store: str | None = None,
            **given: Any,
        ) -> Any:
            unwatch()
            config = settings(output, namespace, store)
            if command.__name__ not in _NOTED:
                return told(command(config, **given))
            with noting(config, command.__name__.rstrip("_"), channel="cli", agent=config.identity):
                return told(command(config, **given))

        return _with(options, wrapped)

    return decorate


def in_session(*, reads: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options for output, namespace and store, and pass it the memory as its
    first argument.

    Args:
        reads: It looks memories up, so it can leave out the shared namespace.
    """

    between = [no_shared_option] if reads else []

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @with_settings(namespace_option, *between, store_option, format_option)
        @functools.wraps(command)
        def wrapped(config: "Config", no_shared: bool = False, **given: Any) -> Any:
            with opened(config, shared=not no_shared) as memories:
                return command(memories, **given)

        return wrapped

    return decorate


@contextlib.contextmanager
def opened(config: "Config", *, shared: bool) -> "Iterator[Memories]":
    """Open the memory of this run, and tell a person of what is damaged in it and of edits that
    were not taken over.
    """
    with memory(config, shared=shared) as memories:
        watch(memories.damaged)
        for sentence in memories.edits():
            note(sentence)
        yield memories


def rule_options(command: Decorated) -> Decorated:
    """Give a command the options that choose among what waits for review, and pass it `which`, a
    dict of them.
    """

    @functools.wraps(command)
    def wrapped(*arguments: Any, **given: Any) -> Any:
        which = {name: given.pop(name) for name in _CHOICES}
        return command(
            *arguments, which={name: value for name, value in which.items() if value}, **given
        )

    return _gathering((*_FILTERS, *_RULES), wrapped)  # type: ignore[return-value]


def tag_options(command: Decorated) -> Decorated:
    """Give a command the options that set tags, and pass it `tags`, a dict of them all."""
    return _gathering(_TAGS, command)


def named_options(command: Decorated) -> Decorated:
    """Give a command what names memories, and pass it `ids`, `key` and `project`; see
    `many.named`.
    """
    return _with(_NAMED, command)  # type: ignore[return-value]


def whole_number(
    text: str | None, complaint: str = f"limit must be a whole number from 1 to {MAX_LIMIT}"
) -> int | None:
    """Return a whole number as it was written.

    Args:
        text: What was written; by default a number of results.
        complaint: What to say of anything else.

    Raises:
        InvalidInput: It is not a whole number; its range is checked by the service.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidInput(complaint)
    return int(text)


def share(text: str | None, name: str) -> float | None:
    """Return a number from 0 to 1 as it was written.

    Raises:
        InvalidInput: It is not a number; its range is checked by the service.
    """
    try:
        return None if text is None else float(text)
    except ValueError:
        raise InvalidInput(f"{name} must be a number from 0 to 1") from None


def _gathering(
    options: Sequence[Callable[[Any], Any]], command: Decorated, apart: Sequence[str] = ()
) -> Decorated:
    """Give a command options for tags, and pass it `tags`, a dict of them all but for those that
    are to stay apart.
    """
    from memories.models import KNOWN_TAGS

    @functools.wraps(command)
    def wrapped(*arguments: Any, tag: Sequence[str], **given: Any) -> Any:
        known = {key: given.pop(key) for key in KNOWN_TAGS if key not in apart}
        if known.get("project"):
            known["project"] = next(iter(_names(known["project"])), None)
        known["global"] = "true" if known["global"] else None
        # An empty one counts as not given, so that a script may pass a variable that is not set.
        texts = [f"{key}={value}" for key, value in known.items() if value and value.strip()]
        tags: dict[str, str] = {}
        for key, value in map(parse_tag, [*tag, *texts]):
            if tags.setdefault(key, value) != value:
                raise InvalidInput(
                    f'tag "{key}" is given twice, as "{tags[key]}" and "{value}"; give it once'
                )
        return command(*arguments, tags=tags, **given)

    return _with(options, wrapped)  # type: ignore[return-value]


def _names(project: str | None) -> tuple[str, ...]:
    if project is None:
        return ()
    from memories.identity.place import names_of  # most commands name none

    return names_of(project)


def _with(
    options: Sequence[Callable[[Any], Any]], command: Callable[..., Any]
) -> Callable[..., Any]:
    for each in reversed(options):
        command = each(command)
    return command
