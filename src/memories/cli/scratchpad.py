"""Commands of the hot tier: scratchpad show, pin, unpin, edit, rebuild; and prompt."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memories.answers import shapes
from memories.cli.options import (
    Group,
    command,
    format_option,
    in_session,
    named_options,
    namespace_option,
    no_shared_option,
    opened,
    option,
    store_option,
    whole_number,
    with_settings,
)
from memories.cli.output import DAMAGED, SCRATCHPAD_INSTEAD, emit, note, safe
from memories.cli.session import compacts, texts
from memories.core.events import noting
from memories.errors import InvalidInput
from memories.models import SHARED

if TYPE_CHECKING:
    from memories.identity.prompt import Prompt
    from memories.memories import Memories
    from memories.models import Memory
    from memories.scratchpad.entries import Entry
    from memories.scratchpad.hot_tier import Scratchpad
    from memories.settings import Config


@click.group(
    cls=Group,
    epilog="memory scratchpad show -n bob\nmemory scratchpad pin 01a1fdf1-92cd-72f2 -n bob",
)
def scratchpad() -> None:
    """Show and change what a session begins with.

    That are pinned, recent and often used memories. Each namespace has a file, scratchpad.yaml,
    that you may also edit yourself.
    """


@scratchpad.command(epilog="memory scratchpad show -n bob --refresh")
@option("--refresh", is_flag=True, help="Bring the file up to date with the store first.")
@in_session(reads=True)
def show(memories: "Memories", refresh: bool) -> int:
    """Show the scratchpad, pinned memories first.

    If the store can't be reached, it shows what the file says, and exits 4.
    """
    found, error = memories.ask_store(
        lambda: memories.scratchpad(refresh=refresh), memories.offline
    )
    if error is not None:
        note(SCRATCHPAD_INSTEAD.format(error))
    _print(memories, found, {} if error is None else {"degraded": True, "error": error})
    return 0 if error is None else DAMAGED


@scratchpad.command(
    epilog="memory scratchpad pin 01a1fdf1-92cd-72f2\nmemory scratchpad pin --key user/editor"
)
@named_options
@in_session(reads=True)
def pin(memories: "Memories", ids: Sequence[str], key: str | None, project: str | None) -> int:
    """Keep a memory in the scratchpad.

    ID may be given several times, or as - to read ids from standard input. At most 50 are pinned.
    """
    return _each(memories, (ids, key, project), memories.pin, "pinned")


@scratchpad.command(epilog="memory scratchpad unpin 01a1fdf1-92cd-72f2")
@named_options
@in_session(reads=True)
def unpin(memories: "Memories", ids: Sequence[str], key: str | None, project: str | None) -> int:
    """Take back that a memory is kept there.

    ID may be given several times, or as - to read ids from standard input.
    """
    return _each(memories, (ids, key, project), memories.unpin, "unpinned")


@scratchpad.command(epilog="memory scratchpad edit -n bob")
@in_session(reads=False)
def edit(memories: "Memories") -> int:
    """Edit the scratchpad in your editor.

    What you save is taken over into the memories: a changed content is a new version, a new line a
    new memory. An entry that you take out is left out of the scratchpad, and its memory stays.
    """
    from memories.cli.memories import edited
    from memories.scratchpad.file import replace_by_person

    file = memories.scratchpad(refresh=True).file
    if file is None:
        raise InvalidInput(
            "the scratchpad of a store that --store names has no file; leave --store out"
        )
    found: list[Scratchpad] = []

    def store(text: str) -> None:
        replace_by_person(Path(file), text)
        found.append(memories.scratchpad())

    if not edited(
        Path(file).read_text(encoding="utf-8"), store, instead="memory update ID CONTENT"
    ):
        note("Nothing was changed.")
    for each in found:
        for sentence in each.taken:
            note(sentence)
        _print(memories, each)
        return 1 if each.notes else 0
    return 0


@scratchpad.command(epilog="memory scratchpad rebuild -n bob")
@in_session(reads=False)
def rebuild(memories: "Memories") -> None:
    """Write the scratchpad again from the store.

    It is chosen from all memories of the namespace, and what was taken out of it may come back.
    What a person changed in it is taken over first; the rest is kept beside it.
    """
    _print(memories, memories.scratchpad(rebuild=True))


@command(epilog="memory prompt -n bob --project shop\nmemory prompt -n bob --for mcp --format json")
@option(
    "--project",
    metavar="NAME",
    kind="project",
    help="Project that the session works in, if not that of the working folder.",
)
@option("--budget", metavar="N", help="Maximum number of tokens. [default: 1500]")
@option(
    "--for", "client", metavar="CLIENT", values=("shell", "mcp"),
    help="How the agent reaches its memory: shell or mcp. [default: shell]",
)  # fmt: skip
@with_settings(namespace_option, no_shared_option, store_option, format_option)
def prompt(
    config: "Config",
    no_shared: bool,
    project: str | None,
    budget: str | None,
    client: str | None,
) -> int:
    """Print the block that a session's prompt begins with.

    It says who the agent is, what its scratchpad holds, what the last sessions of the project left,
    and how to reach the memory. Memories are fenced as data; what was captured or imported and not
    accepted, and what seems to give orders to a model, is left out. If the store can't be reached,
    the scratchpad's file is used, and it exits 4.
    """
    from memories.identity.prompt import shape

    most = whole_number(budget, "budget must be a whole number of tokens from 100 to 100000")
    if most is not None and not 100 <= most <= 100_000:
        raise InvalidInput("budget must be a whole number of tokens from 100 to 100000")
    named = _project(config, project)
    with noting(config, "prompt", channel="cli", agent=config.identity, project=named) as known:
        found = _prompt(
            config, (named, most or config.prompt_tokens, client or "shell"), shared=not no_shared
        )
        known["tokens"], known["results"] = found.tokens, len(found.entries) + len(found.sessions)
    for sentence in found.notes:
        note(sentence)
    if found.degraded:
        note(f"the store can't be asked, this is from the scratchpad: {found.degraded}")
    answer = shape(found)
    emit(answer, lambda: found.text, compact=lambda: found.text)
    return DAMAGED if found.degraded else 0


def _prompt(config: "Config", asked: tuple[str | None, int, str], *, shared: bool) -> "Prompt":
    """Return the block; where the scratchpad is up to date no memory is opened."""
    from datetime import UTC, datetime

    from memories.identity.prompt import BlockRequest, build, render
    from memories.scratchpad.hot_tier import read_up_to_date

    project, budget, client = asked
    wanted = BlockRequest.of(config, project, budget, client)
    names = dict.fromkeys((config.namespace, SHARED) if shared else (config.namespace,))
    found = read_up_to_date(config, tuple(names), datetime.now(UTC))
    if found is not None:
        return render(wanted, found)
    with opened(config, shared=shared) as memories:
        return build(memories, project=project, budget=budget, client=client)


def _project(config: "Config", given: str | None) -> str | None:
    """Return the project that was named, or that of the working folder; a name of blanks stands for
    none.
    """
    from memories.identity.place import here, names_of

    if given is None:
        place = here(config)()
        return None if place is None else place.project
    return next(iter(names_of(given)), None)


def _each(
    memories: "Memories", named_by: tuple[Any, ...], run: "Callable[[str], Memory]", done: str
) -> int:
    from memories.cli.bulk import each_of, named

    as_text = lambda found: str(texts().memory(found))  # noqa: E731 - as the other commands pass it
    return each_of(named(memories, *named_by), run, shapes.memory, as_text, done)


def _print(memories: "Memories", found: "Scratchpad", more: dict[str, Any] | None = None) -> None:
    for sentence in found.notes:
        note(sentence)
    answer = shapes.scratchpad(found, memories.namespace)

    def text() -> str:
        rows = [_row(each, memories.namespace) for each in found.entries] or [
            "The scratchpad is empty."
        ]
        rows += [f"{found.waiting} wait for review: memory review"] if found.waiting else []
        rows += [f"file: {safe(found.file)}"] if found.file else []
        return "\n".join(rows)

    def compact() -> str:
        return (
            "\n".join(
                str(compacts().scratchpad_entry(each, memories.namespace)) for each in found.entries
            )
            or "nothing found"
        )

    emit({**answer, **(more or {})}, text, compact=compact)


def _row(entry: "Entry", namespace: str) -> str:
    said = "\n  ".join(map(safe, entry.content.split("\n")))
    marks = ["pinned"] if entry.pinned else []
    marks += [f"{safe(key)}={safe(value)}" for key, value in sorted(entry.tags.items())]
    marks += [f"by {safe(entry.by)}"] if entry.by else []
    marks += [f"{safe(entry.written[:10])}", *([f"read {entry.uses} times"] if entry.uses else [])]
    marks += ["suspicious"] if entry.suspicious else []
    marks += [f"in {entry.namespace}"] if entry.namespace != namespace else []
    marks += [f"beginning of {entry.cut} characters"] if entry.cut is not None else []
    return f"{said}\n    {' · '.join(marks)} · {safe(entry.id)}"


COMMANDS = (scratchpad, prompt)
