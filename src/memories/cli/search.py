"""Commands that find memories (search, get, history, list, duplicates, verify), and tags."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click

from memories.answers import shapes
from memories.answers.advice import complete_commands
from memories.cli.app import add_given_tags, command, completing, option
from memories.cli.options import (
    SelectedMemories,
    as_of_option,
    compact,
    cursor_option,
    dry_run_option,
    fields_option,
    filter_option,
    filtered_by,
    limit_option,
    named_options,
    note_language,
    one_named_option,
    read_argument,
    show_option,
    text,
    where_option,
    with_memories,
)
from memories.cli.output import DAMAGED, SCRATCHPAD_INSTEAD, emit, note, safe
from memories.errors import InvalidInput
from memories.guard.validate import MAX_QUERY_CHARACTERS, shown
from memories.identity.place import with_whole_name
from memories.models import LIST_ORDERS, Page
from memories.read.lookup import complete_project
from memories.search.filters import FILTERS

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.models import Memory
    from memories.search.filters import SearchFilters
    from memories.write.similar import RepeatedMemory
    from memories.write.truth import Verification

_TAG_CHANGES = ("set", "remove", "rename", "merge")
_OUTDATED = 1  # exit code
_MAX_EXCERPT = 200  # maximum number of characters in the excerpt of a duplicate


@command(
    epilog='memory search "when do we deploy?" --project shop --limit 3\n'
    'memory search "what did Ann say?" --in history --since 7d'
)
@click.argument("query")
@filtered_by(*FILTERS)
@option(
    "--explain", is_flag=True, section="Ranking",
    help="Show every candidate, its scores, and why it was left out.",
)  # fmt: skip
@fields_option
@with_memories(reads_shared=True)
def search(
    memories: "Memories", query: str, explain: bool, fields: str | None, filters: "SearchFilters"
) -> int:
    """Find memories or conversation turns, best match first.

    QUERY is a question or keywords, or - to read it from standard input. Results match by meaning
    or by word. If the store can't be reached, the scratchpad is searched, and the exit code is 4.
    """
    names = field_names(fields)
    query = read_argument(query, "query", 4 * MAX_QUERY_CHARACTERS)
    filters["tags"] = with_whole_name(memories, filters.get("tags") or {})
    result = memories.explain(query, offline=True, **filters)
    # Ids in the scratchpad are shortened without the store, which may not answer.
    shortener = compact.UnknownIds() if result.tier == "hot" else memories
    if result.tier == "deep" and not result.error:
        note_language(memories, query)
        _note_project(memories, map(attrgetter("memory"), result.hits), filters)
    if result.error:
        note(SCRATCHPAD_INSTEAD.format(result.error))
    emit_fields(
        shapes.search_result(result, explain=explain),
        partial(text.search_result, result, explain=explain),
        partial(compact.hits, shortener, result.hits, shapes.search_note(result)),
        names,
    )
    return DAMAGED if result.error else 0


@command(
    epilog="memory get 01a1fdf1-92cd-72f2\nmemory get --key user/editor\n"
    "memory get --key port --project shop"
)
@named_options
@as_of_option
@fields_option
@with_memories(reads_shared=True, selects=True)
def get(
    memories: "Memories", selection: SelectedMemories, as_of: str | None, fields: str | None
) -> int:
    """Show one memory, or several.

    ID is the memory's id, or an unambiguous prefix of at least 8 characters. Give one or more, or -
    to read them from standard input. Exits with 1 if a memory does not exist; the others are still
    shown. A --key is looked up among current memories.
    """
    from memories.cli.bulk import for_each

    read = partial(memories.get, as_of=as_of)
    names = field_names(fields)
    if names is None:
        return for_each(
            selection, read, shapes.memory, text.memory, compact=partial(compact.memory, memories)
        )

    def shape(memory: "Memory") -> dict[str, Any]:
        return compact.select_fields(shapes.memory(memory), names)

    def row(memory: "Memory") -> str:
        return compact.row(shape(memory))

    return for_each(selection, read, shape, row, compact=row)


@command(
    epilog="memory history 01a1fdf1-92cd-72f2\n"
    "memory history --key user/editor --diff --format text",
)
@one_named_option
@as_of_option
@option(
    "--diff", is_flag=True, section="Output", help="Show the changes in each version, word by word."
)
@fields_option
@with_memories(reads_shared=True, selects=True)
def history(
    memories: "Memories",
    selection: SelectedMemories,
    as_of: str | None,
    diff: bool,
    fields: str | None,
) -> None:
    """Show every version of a memory, oldest first.

    Deleted memories have a history too. --as-of ends the history at the given time. --diff shows
    the words that each version kept, removed and added.
    """
    if diff and fields is not None:
        raise InvalidInput("--diff and --fields can't be combined; omit one of them")
    names = field_names(fields)
    if selection.is_list:
        raise InvalidInput("history shows one memory at a time; give one ID")
    record = memories.history(selection.ids[0], as_of=as_of)
    answer = shapes.history(record)
    if diff:
        from memories.answers.compare import compare_versions, mark_changes

        changes = compare_versions([version.content for version in record.versions])
        versions = []
        for version, shape, parts in zip(record.versions, answer["versions"], changes, strict=True):
            shape["diff"] = [part._asdict() for part in parts]
            versions.append(version._replace(content=mark_changes(parts)))
        record = record._replace(versions=tuple(versions))
    emit_fields(
        answer,
        partial(text.history, record),
        partial(compact.versions, record.versions),
        names,
        "versions",
    )


def _note_project(
    memories: "Memories", found: "Iterable[Memory]", filters: Mapping[str, Any]
) -> None:
    """Print a note if no current memory has the given project, which may be misspelled."""
    project = filters.get("project")
    is_other = filters.get("scope", "memories") != "memories" or any(
        map(filters.get, ("as_of", "deleted", "pending"))
    )
    if project is None or is_other:
        return
    for memory in found:
        if "project" in memory.tags:
            return
    known = memories.tags("project")
    names = complete_project(project, known.keys()) or ()
    if known.keys().isdisjoint(names):
        note(
            f'Note: no current memory has the project "{safe(names[0])}"; '
            "memory projects lists projects"
        )


def field_names(fields: str | None) -> list[str] | None:
    """Return the names that `--fields` lists; None means all fields."""
    return None if fields is None else compact.parse_fields(fields)


def emit_fields(
    answer: dict[str, Any],
    render_text: Callable[[], str],
    render_compact: Callable[[], str],
    names: Sequence[str] | None,
    results: str = "results",
) -> None:
    """Print an answer with several results, in full or with only the named fields of each."""
    if names is None:
        emit(answer, render_text, compact=render_compact)
        return
    selected = [compact.select_fields(result, names) for result in answer[results]]

    def rows() -> str:
        if answer.get("next_cursor"):
            note(f"Next page: --cursor {answer['next_cursor']}")
        return "\n".join(map(compact.row, selected))

    emit({**answer, results: selected}, rows, compact=rows)


@command(
    "list",
    epilog="memory list --since 7d --type preference\n"
    "memory list --where 'type = fact and not by = claude-code'",
)
@filtered_by(*(name for name, row in FILTERS.items() if row.in_lists))
@option(
    "--deleted", is_flag=True, section="Filters", group="filters",
    help="List deleted memories instead.",
)  # fmt: skip
@option(
    "--sort", metavar="BY", values=LIST_ORDERS, section="Output", group="filters",
    help="created, updated, reinforced, confidence, accesses, version or key. [default: created]",
)  # fmt: skip
@option(
    "--reverse", is_flag=True, section="Output", group="filters",
    help="Reverse the order: oldest or smallest first.",
)  # fmt: skip
@cursor_option
@fields_option
@with_memories(reads_shared=True)
def list_(
    memories: "Memories", cursor: str | None, fields: str | None, filters: dict[str, Any]
) -> None:
    """List memories, newest first.

    Sorted by creation time unless --sort says otherwise. --since and --until apply to the latest
    version.
    """
    names = field_names(fields)
    filters["tags"] = with_whole_name(memories, filters.get("tags") or {})
    page = memories.list(cursor=cursor, **filters)
    _note_project(memories, page.memories, filters)
    emit_fields(
        shapes.page(page),
        partial(text.page, page),
        partial(compact.page, memories, page.memories, page.next_cursor),
        names,
    )


@command(
    epilog="memory tags project --trust user\nmemory tags rename env environment\n"
    "memory tags merge type=pref type=likes type=preference --dry-run\n"
    "memory tags set project=shop --where 'content ~ checkout'"
)
@click.argument("words", nargs=-1, metavar="[KEY]", shell_complete=completing("tag keys"))
@filtered_by("written_by", "trust", "as_of", "where")
@dry_run_option
@show_option
@with_memories(reads_shared=True)
def tags(
    memories: "Memories",
    words: Sequence[str],
    dry_run: bool,
    show: str | None,
    filters: dict[str, Any],
) -> int:
    """List tags and the number of memories with each.

    With KEY, list the values of that tag. To change the tags of your own memories, or only of those
    that --where matches, write set KEY=VALUE, remove KEY, rename OLD NEW or merge OLD NEW. OLD and
    NEW are keys or KEY=VALUE. set and remove accept several tags, and merge accepts several OLD
    tags. The output contains the command that undoes the change.
    """
    where = filters.pop("where", None)
    if len(words) > 1:
        return _change_tags(memories, words, where, show, filters, dry_run=dry_run)
    if where is not None or dry_run or show is not None:
        raise InvalidInput(
            "--where, --dry-run and --show require a change, such as: memory tags rename OLD NEW"
        )
    key = words[0] if words else None
    counts = memories.tags(key, **filters)
    emit(shapes.tags(key, counts), partial(text.tags, key, counts))
    return 0


def _change_tags(
    memories: "Memories",
    words: Sequence[str],
    where: str | None,
    show: str | None,
    filters: Mapping[str, Any],
    *,
    dry_run: bool,
) -> int:
    """Set, remove, rename or merge tags, depending on the first word; return the exit code."""
    from memories.cli.bulk import change_many

    verb, *names = words
    if verb not in _TAG_CHANGES:
        changes = ", ".join(_TAG_CHANGES)
        raise InvalidInput(f'"{shown(verb)}" does not change tags; use {changes}')
    if "written_by" in filters or "trust" in filters:
        raise InvalidInput(
            "to change tags only in one writer's memories, use an expression: --where 'by = NAME'"
        )
    if "as_of" in filters:
        raise InvalidInput("the past can't be changed; omit --as-of")
    change: dict[str, Any]
    if verb == "set":
        change = {"tags": add_given_tags({}, names)}
    elif verb == "remove":
        change = {"remove_tags": names}
    else:
        change = {"rename_tags": _parse_renames(memories, verb, names)}
    run = partial(memories.tag_where, where, **change, dry_run=dry_run)
    return change_many(run, show)


def _parse_renames(memories: "Memories", verb: str, names: Sequence[str]) -> dict[str, str]:
    """Return the new name of each tag.

    Raises:
        InvalidInput: The number of names is wrong, or `rename` would irreversibly merge the tag
            with one that memories already have.
    """
    from shlex import quote

    if len(names) < 2 or (verb == "rename" and len(names) > 2):
        usage = "OLD… NEW" if verb == "merge" else "OLD NEW"
        raise InvalidInput(f"{verb} takes {usage}: keys, or tags such as type=fact")
    *old, new = names
    key, equals, value = new.partition("=")
    values = memories.tags(key)
    is_used = value in values if equals else bool(values)
    if verb == "rename" and new in old:
        raise InvalidInput(f'"{new}" is both the old and the new name; give a different one')
    if verb == "rename" and is_used:
        merge = f"memory tags merge {quote(old[0])} {quote(new)}"
        raise InvalidInput(f'"{new}" is in use; to merge them: {merge}')
    return dict.fromkeys(old, new)


@command(epilog="memory duplicates\nmemory duplicates --where 'since last week' --format compact")
@where_option
@limit_option
@with_memories(reads_shared=False)
def duplicates(memories: "Memories", where: str | None, limit: int | None) -> None:
    """Find memories that repeat older ones.

    Lists the memories in your own namespace that memory create would now refuse, each with the
    older memories that say the same thing. All memories are compared, at a rate of a few hundred
    per second. Nothing is changed; to remove a duplicate, run memory delete.
    """
    groups = list(memories.duplicates(where=where, limit=limit))
    results = [
        shapes.memory(group.memory) | {"duplicates": shapes.similar(group.of)} for group in groups
    ]
    render = partial(_render_duplicates, memories, groups)
    emit({"results": results, "count": len(results)}, render, compact=render)


def _render_duplicates(memories: "Memories", groups: "Sequence[RepeatedMemory]") -> str:
    rows = []
    for group in groups:
        rows.append(compact.page(memories, [group.memory]))
        rows += [f" repeats {older.id}: {safe(older.content[:_MAX_EXCERPT])}" for older in group.of]
    return "\n".join(rows) or "No memory repeats another one."


@command(epilog="memory verify --project .\nmemory verify || echo 'memories are out of date'")
@filter_option("project")
@with_memories(reads_shared=True)
def verify(memories: "Memories", project: Sequence[str] | None) -> int:
    """Check memories against the files and code that they cite.

    Paths, symbols and literals are looked up in the working folder's project. Nothing is run, and
    no file outside the project is read. Prints the memories that no longer hold, and those that
    could not be checked. Exits with 1 if the evidence for a memory has changed, or if a memory has
    expired; update, delete or confirm such a memory.
    """
    result = memories.truth.verify(project=project)
    emit(
        shapes.verification(result),
        partial(_render_verification, result),
        compact=partial(compact.page, memories, (*result.doubtful, *result.unverified)),
    )
    return _OUTDATED if result.doubtful else 0


def _render_verification(result: "Verification") -> str:
    """Render the memories that no longer hold or could not be checked, and the remedies."""
    memories = (*result.doubtful, *result.unverified)
    parts = [text.page(Page(memories, None))] if memories else []
    counted = [f"{count} {word}" for word, count in result.counts.items() if count]
    nothing = "No memory here has expired or has an anchor that can be checked."
    parts.append(f"{', '.join(counted)}." if counted else nothing)
    if result.doubtful:
        remedies = "What to do: memory update ID TEXT, memory delete ID, or memory confirm ID"
        parts.append(complete_commands(remedies))
    return "\n\n".join(parts)


COMMANDS = (search, get, history, list_, tags, duplicates, verify)
