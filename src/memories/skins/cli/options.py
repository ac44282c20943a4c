"""The options that several commands share, each said once, and what they are turned into."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from memories.errors import InvalidInput
from memories.models import KNOWN_TAGS
from memories.skins.cli.session import session
from memories.validate import MAX_LIMIT, parse_tag

Command = TypeVar("Command", bound=Callable[..., Any])

memory_id = click.argument("memory_id", metavar="ID")
format_option = click.option(
    "--format", "output", metavar="json|text", help="How to print; JSON to a pipe, text to a terminal."
)
namespace_option = click.option("--namespace", "-n", metavar="NAME", help="The pool; shared if nothing is said.")
store_option = click.option("--store", metavar="URL", help="Where memories are kept, such as sqlite:///path.")
limit_option = click.option("--limit", metavar="N", help=f"How many at most, 1 to {MAX_LIMIT}.")

_TAGS = (
    click.option("--tag", "-t", "tag", metavar="KEY=VALUE", multiple=True, help="A tag; may be repeated."),
    click.option("--agent", metavar="NAME", help="Tag: AI platform, such as claude."),
    click.option("--personality", metavar="NAME", help="Tag: role or persona."),
    click.option("--project", metavar="NAME", help="Tag: project."),
    click.option("--type", metavar="NAME", help="Tag: preference, fact, observation, project, decision, …"),
    click.option("--global", is_flag=True, help="Tag: it holds in all contexts."),
)
_TIMES = (
    click.option("--since", metavar="TIME", help="Written since then: 2024-05-31, ISO 8601, or 7d for a week ago."),
    click.option("--until", metavar="TIME", help="Written until then; a day counts to its end."),
    click.option("--as-of", metavar="TIME", help="What was current at that time."),
)


def in_session(*, reads: bool) -> Callable[[Command], Command]:
    """Give a command the options for output, namespace and store, and pass it a session as its first argument.

    Args:
        reads: It looks memories up, so it can leave out the shared pool.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(
            output: str | None, namespace: str | None, store: str | None, no_shared: bool = False, **given: Any
        ) -> Any:
            with session(output, namespace, store, shared=not no_shared) as run:
                return command(run, **given)

        options = [namespace_option, store_option, format_option]
        if reads:
            options.insert(1, click.option("--no-shared", is_flag=True, help="Leave out the shared pool."))
        return _with(options, wrapped)  # type: ignore[return-value]

    return decorate


def tag_options(command: Command) -> Command:
    """Give a command the options for tags, and pass it `tags`, a dict of them all."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, tag: Sequence[str], **given: Any) -> Any:
        known = {key: given.pop(key) for key in KNOWN_TAGS}
        return command(*arguments, tags=_gather(tag, known), **given)

    return _with(_TAGS, wrapped)  # type: ignore[return-value]


def time_options(command: Command) -> Command:
    """Give a command the options for times, and pass it `times`, a dict of them."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, since: str | None, until: str | None, as_of: str | None, **given: Any) -> Any:
        return command(*arguments, times={"since": since, "until": until, "as_of": as_of}, **given)

    return _with(_TIMES, wrapped)  # type: ignore[return-value]


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


def _gather(written: Sequence[str], known: Mapping[str, str | bool | None]) -> dict[str, str]:
    """Return the tags of `--tag` and those that have options of their own; each key may have one value only."""
    pairs = [parse_tag(text) for text in written]
    # An empty one counts as not given, so that a script may pass a variable that is not set.
    pairs += [parse_tag(f"{key}={value}") for key, value in known.items() if isinstance(value, str) and value.strip()]
    if known["global"]:
        pairs.append(("global", "true"))
    tags: dict[str, str] = {}
    for key, value in pairs:
        if tags.setdefault(key, value) != value:
            raise InvalidInput(f'tag "{key}" is given twice, as "{tags[key]}" and "{value}"; give it once')
    return tags


def _with(options: Sequence[Callable[[Any], Any]], command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command
