"""Commands that only read memories: search, get, history, list, tags."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from memories.answers import shapes
from memories.cli.options import (
    as_of_option,
    command,
    completing,
    dry_run_option,
    fields_option,
    filtered_by,
    in_session,
    limit_option,
    named_options,
    option,
    show_option,
    where_option,
    whole_number,
)
from memories.cli.output import DAMAGED, SCRATCHPAD_INSTEAD, emit, note, safe
from memories.cli.session import compacts, read_argument, texts
from memories.errors import InvalidInput
from memories.guard.validate import shown
from memories.search.filters import FILTERS

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.models import Memory
    from memories.search.filters import SearchFilters

ORDERS = ("created", "updated", "reinforced", "confidence", "accesses", "version", "key")
_CHANGES = ("set", "remove", "rename", "merge")  # of tags


@command(
    epilog='memory search "when do we deploy?" --project shop --limit 3\n'
    'memory search "what did Ann say?" --in history --since 7d'
)
@click.argument("query")
@filtered_by(*FILTERS)
@option(
    "--explain",
    is_flag=True,
    section="Ranking",
    help="Show every candidate, its scores, and why it was left out.",
)
@fields_option
@in_session(reads=True)
def search(
    memories: "Memories", query: str, explain: bool, fields: str | None, filters: "SearchFilters"
) -> int:
    """Find memories or conversation turns, best match first.

    QUERY is a question or some words, or - to read it from standard input. Both meaning and words
    count. If the store can't be reached, what the scratchpad has is shown, and it exits 4.
    """
    chosen = field_names(fields)
    found = memories.explain(read_argument(query, "query"), offline=True, **filters)
    names = compacts().UnknownIds() if found.tier == "hot" else memories
    if found.error:
        note(SCRATCHPAD_INSTEAD.format(found.error))
    emit_fields(
        shapes.search_result(found, explain=explain),
        lambda: str(texts().found(found, explain=explain)),
        lambda: str(compacts().hits(names, found.hits, shapes.search_note(found))),
        chosen,
    )
    return DAMAGED if found.error else 0


@command(
    epilog="memory get 01a1fdf1-92cd-72f2\nmemory get --key user/editor\nmemory get --key port --project shop"
)
@named_options
@as_of_option
@fields_option
@in_session(reads=True)
def get(
    memories: "Memories",
    ids: Sequence[str],
    key: str | None,
    project: str | None,
    as_of: str | None,
    fields: str | None,
) -> int:
    """Show one memory, or several.

    ID is the memory's id, or its first 8 or more characters if no other id begins with them.
    Several may be given, or - to read ids from standard input. Exits 1 if one of them is not there;
    the others are shown all the same. A --key is looked up as it is now.
    """
    from memories.cli.bulk import each_of, named

    names = field_names(fields)

    def shape(found: "Memory") -> dict[str, Any]:
        made = shapes.memory(found)
        return made if names is None else dict(compacts().select_fields(made, names))

    def row(found: "Memory") -> str:
        return str(compacts().row(shape(found)))

    as_text = row if names else lambda found: str(texts().memory(found))
    as_compact = row if names else lambda found: str(compacts().memory(memories, found))
    read = partial(memories.get, as_of=as_of)
    return each_of(named(memories, ids, key, project), read, shape, as_text, compact=as_compact)


@command(
    epilog="memory history 01a1fdf1-92cd-72f2\nmemory history --key user/editor --diff --format text",
)
@named_options
@as_of_option
@option(
    "--diff", is_flag=True, section="Output", help="Show what each version changed, word by word."
)
@fields_option
@in_session(reads=True)
def history(
    memories: "Memories",
    ids: Sequence[str],
    key: str | None,
    project: str | None,
    as_of: str | None,
    diff: bool,
    fields: str | None,
) -> None:
    """Show every version of a memory, oldest first.

    Deleted memories have a history too. With --as-of it ends then. With --diff, each version has
    what it took over, removed and added.
    """
    from memories.cli.bulk import named

    if diff and fields is not None:
        raise InvalidInput("--diff and --fields do not go together; leave one of them out")
    names, chosen = field_names(fields), named(memories, ids, key, project)
    if chosen.several:
        raise InvalidInput("the history of one memory is shown at a time; give one ID")
    found = memories.history(chosen.ids[0], as_of=as_of)
    answer = shapes.history(found)
    if diff:
        from memories.answers import compare

        pieces = compare.compare_versions([version.content for version in found.versions])
        for version, parts in zip(answer["versions"], pieces, strict=True):
            version |= {"diff": [part._asdict() for part in parts]}
        changed = (
            version._replace(content=compare.mark_changes(part))
            for version, part in zip(found.versions, pieces, strict=True)
        )
        found = found._replace(versions=tuple(changed))
    emit_fields(
        answer,
        lambda: str(texts().history(found)),
        lambda: str(compacts().versions(found.versions)),
        names,
        "versions",
    )


def field_names(fields: str | None) -> list[str] | None:
    """Return the fields that are asked for; None for all."""
    return None if fields is None else list(compacts().parse_fields(fields))


def emit_fields(
    answer: dict[str, Any],
    text: Callable[[], str],
    compact: Callable[[], str] | None,
    names: Sequence[str] | None,
    results: str = "results",
) -> None:
    """Print an answer with several results, or only the fields of them that are asked for."""
    if names is None:
        emit(answer, text, compact=compact)
        return
    shapes_of = [compacts().select_fields(each, names) for each in answer[results]]

    def rows() -> str:
        if answer.get("next_cursor"):
            note(f"Next page: --cursor {answer['next_cursor']}")
        return "\n".join(map(compacts().row, shapes_of))

    emit({**answer, results: shapes_of}, rows, compact=rows)


@command(
    "list",
    epilog="memory list --since 7d --type preference\nmemory list --where 'type = fact and not by = claude-code'",
)
@filtered_by(*(name for name, row in FILTERS.items() if row.lists))
@option("--deleted", is_flag=True, section="Filters", help="List deleted memories instead.")
@option(
    "--sort", metavar="BY", values=ORDERS, section="Output",
    help="created, updated, reinforced, confidence, accesses, version or key. [default: created]",
)  # fmt: skip
@option(
    "--reverse",
    is_flag=True,
    section="Output",
    help="The other way round: oldest or smallest first.",
)
@option(
    "--cursor",
    metavar="CURSOR",
    section="Output",
    help="Continue after a page; next_cursor of that page.",
)
@fields_option
@in_session(reads=True)
def list_(
    memories: "Memories",
    deleted: bool,
    sort: str | None,
    reverse: bool,
    cursor: str | None,
    fields: str | None,
    filters: Mapping[str, Any],
) -> None:
    """List memories, newest first.

    The order is that of creation, or what --sort says; --since and --until look at the latest
    version.
    """
    names = field_names(fields)
    page = memories.list(deleted=deleted, sort=sort, reverse=reverse, cursor=cursor, **filters)
    emit_fields(
        shapes.page(page),
        lambda: str(texts().page(page)),
        lambda: str(compacts().page(memories, page.memories, page.next_cursor)),
        names,
    )


@command(
    epilog="memory tags project --trust user\nmemory tags rename proj project\n"
    "memory tags merge type=pref type=likes type=preference --dry-run\n"
    "memory tags set project=shop --where 'content ~ checkout'"
)
@click.argument("words", nargs=-1, metavar="[KEY]", shell_complete=completing("tag keys"))
@filtered_by("written_by", "trust", "as_of", "where")
@dry_run_option
@show_option
@in_session(reads=True)
def tags(
    memories: "Memories",
    words: Sequence[str],
    dry_run: bool,
    show: str | None,
    filters: dict[str, Any],
) -> int:
    """List tags and how many memories have each.

    With KEY, list the values of that tag. To change the tags of your own memories, of all or of
    those that meet --where: set KEY=VALUE, remove KEY, rename OLD NEW, merge OLD NEW, where OLD and
    NEW are keys or KEY=VALUE; all but rename take several. The answer names the command that undoes
    it.
    """
    where = filters.pop("where", None)
    if len(words) > 1:
        from memories.cli.bulk import change_tags

        if words[0] not in _CHANGES:
            raise InvalidInput(
                f'"{shown(words[0])}" is no change of tags; use {", ".join(_CHANGES)}'
            )
        if filters.keys() & {"written_by", "trust"}:
            raise InvalidInput(
                "a change of tags takes the writer in its expression: --where 'by = NAME'"
            )
        if "as_of" in filters:
            raise InvalidInput("the past can't be changed; leave out --as-of")
        return change_tags(memories, words, where, show, dry_run=dry_run)
    if where is not None or dry_run or show is not None:
        raise InvalidInput(
            "--where, --dry-run and --show go with a change, such as: memory tags rename OLD NEW"
        )
    key = words[0] if words else None
    counts = memories.tags(key, **filters)
    emit(shapes.tags(key, counts), lambda: texts().tags(key, counts))
    return 0


@command(epilog="memory duplicates\nmemory duplicates --where 'since last week' --format compact")
@where_option
@limit_option
@in_session(reads=False)
def duplicates(memories: "Memories", where: str | None, limit: str | None) -> None:
    """Find memories that say the same as older ones.

    What create would have refused, among those of your own namespace: each with the older ones that
    say the same. Every memory is compared, some hundred in a second. Nothing is changed; memory
    delete removes one.
    """
    found = list(memories.duplicates(where=where, limit=whole_number(limit)))
    results = [
        shapes.memory(each.memory) | {"duplicates": shapes.similar(each.of)} for each in found
    ]

    def lines() -> str:
        rows = []
        for each in found:
            rows.append(compacts().page(memories, [each.memory]))
            rows += [
                f" says the same as {older.id}: {safe(older.content[:200])}" for older in each.of
            ]
        return "\n".join(rows) or "No memory says the same as another one."

    emit({"results": results, "count": len(results)}, lines, compact=lines)


COMMANDS = (search, get, history, list_, tags, duplicates)
