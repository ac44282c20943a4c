"""Commands for namespaces, projects and server tokens: namespaces, move, projects, tokens."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memories.answers import shapes
from memories.answers.advice import options_for
from memories.cli.app import Group, command, option
from memories.cli.options import (
    SelectedMemories,
    as_of_option,
    dry_run_option,
    format_option,
    named_options,
    show_option,
    text,
    unasked_option,
    with_memories,
    with_settings,
)
from memories.cli.output import (
    ask_person,
    begin_change,
    emit,
    format_time,
    note,
    record_change,
    safe,
)
from memories.config import registers
from memories.core.times import parse_span, to_iso
from memories.errors import InvalidInput, NotFound
from memories.guard.validate import amount
from memories.identity import registry
from memories.identity import tokens as register

if TYPE_CHECKING:
    from memories.identity.namespaces import Contents
    from memories.identity.tokens import Token
    from memories.memories import Memories
    from memories.settings import Config
    from memories.stores import Store
    from memories.write.bulk import Affected

_NOTHING = "Nothing here."


def _parse_action(
    name: str, words: Sequence[str], actions: Mapping[str, int], optional: str = ""
) -> tuple[str, list[str]]:
    """Return a command's action and the names that it applies to.

    Args:
        name: The command.
        words: Its arguments; none means `list`.
        actions: How many names each action takes.
        optional: The action whose names may be omitted.

    Raises:
        InvalidInput: There is no such action, or the number of names is wrong.
    """
    action, *names = words or ("list",)
    if action not in actions:
        raise InvalidInput(f'{name} has no action "{safe(action)}"; use {", ".join(actions)}')
    if len(names) != actions[action] and (names or action != optional):
        count = amount(actions[action], "name", "names")
        raise InvalidInput(f"{name} {action} takes {count}, not {len(names)}")
    return action, names


# --- namespaces ---


@command(
    epilog="memory namespaces\nmemory namespaces show bob\nmemory namespaces rename bob robert\n"
    "memory namespaces merge bob robert --dry-run\nmemory namespaces delete bob --yes"
)
@click.argument("words", nargs=-1, metavar="[ACTION NAME...]")
@as_of_option
@dry_run_option
@unasked_option
@with_memories(reads_shared=True)
def namespaces(
    memories: "Memories", words: Sequence[str], as_of: str | None, dry_run: bool, yes: bool
) -> int:
    """List the namespaces and the size of each.

    The list shows the names and sizes of all namespaces in the store, including other users', but
    never their contents.

    ACTION is list, the default, or one of these: show NAME shows tags, writers, sizes and times;
    rename NAME NEW renames a namespace; merge NAME OTHER moves everything in NAME to OTHER; delete
    NAME erases every byte of the namespace, which can't be undone.
    """
    actions = {"list": 0, "show": 1, "rename": 2, "merge": 2, "delete": 1}
    action, names = _parse_action("namespaces", words, actions)
    if (dry_run or yes) and action in ("list", "show"):
        flag = "--dry-run" if dry_run else "--yes"
        raise InvalidInput(f"namespaces {action} changes nothing; omit {flag}")
    if action == "list":
        rooms = memories.namespaces(as_of=as_of)
        rows = [shapes.without_none(room._asdict()) for room in rooms]
        emit({"namespaces": rows, "count": len(rows)}, partial(_render_namespaces, rows))
        return 0
    if as_of is not None:
        raise InvalidInput("--as-of works only with namespaces list; omit --as-of")
    if action == "show":
        return _show_namespace(memories, names[0])
    if action == "delete":
        return _delete_namespace(memories, names[0], dry_run=dry_run, yes=yes)
    return _move_namespace(memories, names, merge=action == "merge", dry_run=dry_run)


def _render_namespaces(rows: Sequence[Mapping[str, Any]]) -> str:
    width = max((len(row["name"]) for row in rows), default=0)
    lines = []
    for row in rows:
        memories = amount(row["memory_count"], "memory  ", "memories")
        turns = amount(row["turn_count"], "turn", "turns")
        counts = f"{memories:>16}  {turns:>13}"
        line = f"{row['name']:<{width}}  {counts}"
        if row.get("pending_count"):
            line += f"  {row['pending_count']} waiting for review"
        if row.get("deleted_count"):
            line += f"  {row['deleted_count']} deleted"
        if row["read"]:
            line += "  (read here)"
        lines.append(line)
    return "\n".join(lines) or _NOTHING


def _show_namespace(memories: "Memories", name: str) -> int:
    from memories.identity import namespaces as rooms

    with _open_store(memories) as store:
        contents = rooms.show(store, memories.config, name)
    answer: dict[str, Any] = {
        **contents._asdict(),
        "tags": dict(contents.tags),
        "writers": dict(contents.writers),
    }
    for field in ("first_at", "last_at"):
        if answer[field] is not None:
            answer[field] = to_iso(answer[field])
    emit(answer, partial(_render_namespace, contents))
    return 0


def _render_namespace(contents: "Contents") -> str:
    memories = amount(contents.memory_count, "memory", "memories")
    versions = amount(contents.version_count, "version", "versions")
    turns = amount(contents.turn_count, "turn", "turns")
    conversations = amount(contents.conversation_count, "conversation", "conversations")
    lines = [
        f"{contents.name}: {memories}, {versions} in total",
        f"{contents.pending_count} waiting for review, {contents.deleted_count} deleted",
        f"{turns} in {conversations}, {contents.queued_count} waiting to be stored",
        f"{contents.text_bytes} bytes of text",
    ]
    if contents.first_at and contents.last_at:
        first_at, last_at = format_time(contents.first_at), format_time(contents.last_at)
        lines.append(f"written from {first_at} to {last_at}")
    lines += [f"  {safe(tag)}  {count}" for tag, count in contents.tags.items()]
    lines += [f"  by {safe(writer)}  {count}" for writer, count in contents.writers.items()]
    return "\n".join(lines)


def _move_namespace(
    memories: "Memories", names: Sequence[str], *, merge: bool, dry_run: bool
) -> int:
    from memories.identity import namespaces as rooms

    name, target = names
    with _open_store(memories) as store:
        begin_change()
        moved = rooms.move(store, memories.config, name, target, merge=merge, dry_run=dry_run)
        done = f"{moved.name} is now {moved.into}"
        record_change(done, "running the command again does the rest")
    verb = "would be" if dry_run else "is now"
    versions = amount(moved.versions, "version of a memory", "versions of memories")
    counts = f"{versions}, {amount(moved.turns, 'turn', 'turns')}"
    emit(
        {**moved._asdict(), "dry_run": dry_run},
        f"{moved.name} {verb} {moved.into}: {counts}.",
    )
    if not moved.left:
        return 0
    left = amount(moved.left, "record was", "records were")
    note(
        f"{left} written to {moved.name} in the meantime; to move the rest, run: memory "
        f"namespaces merge {moved.name} {moved.into}"
    )
    return 1


def _delete_namespace(memories: "Memories", name: str, *, dry_run: bool, yes: bool) -> int:
    from memories.cli.bulk import note_copies
    from memories.identity import namespaces as rooms

    with _open_store(memories) as store:
        memories.flush_accesses()  # pending read counts are in a file named after the namespace
        erased = rooms.delete(store, memories.config, name, dry_run=True)
        memory_count = amount(erased.memories, "memory", "memories")
        turn_count = amount(erased.turns, "turn", "turns")
        contents = f"{memory_count}, {turn_count}, {erased.queued} waiting turns, and the log"
        if not dry_run:
            if not yes and not _confirm_by_name(erased.name, contents):
                return 1
            begin_change()
            erased = rooms.delete(store, memories.config, name)
            record_change(f"{erased.name} was erased")
    verb = "Would erase" if dry_run else "Erased"
    lines = [f"{verb} {erased.name}: {contents}.", *(f"  {file}" for file in erased.files)]
    emit({**erased._asdict(), "dry_run": dry_run}, "\n".join(lines))
    note_copies(erased.also_in)
    return 0


def _confirm_by_name(name: str, contents: str) -> bool:
    """Ask a person to type the name of the namespace to erase."""
    question = f"Permanently erase the namespace {name}: {contents}? Type its name: "
    if ask_person(question) == name:
        return True
    note("Nothing was erased.")
    return False


@contextlib.contextmanager
def _open_store(memories: "Memories") -> Iterator["Store"]:
    """Open a command's store for all namespaces, with the vector space that the store uses."""
    from memories.stores import open_store
    from memories.stores.records import Collection, Filter, Space

    config = memories.config
    with contextlib.closing(open_store(config.store, None, config)) as store:
        model = store.info(Filter(Collection.MEMORY, (memories.namespace,))).model
        dimension = None if model is None else _dimension(store)
        if model is not None and dimension:
            store.use_space(Space(model, dimension, 0.0, 0.0, 1.0, 1.0, (1.0, 0.0)))
        yield store


def _dimension(store: "Store") -> int | None:
    """Return the length of the vectors in use; None if there are none."""
    from memories.transfer.pages import pages, parts_of

    for part in parts_of(store):
        for page in pages(store, part):
            for rows in store.vectors([record.ref for record in page]).values():
                return int(rows.shape[1])
    return None


@command(
    epilog="memory move 01a1fdf1-92cd-72f2 --to bob\n"
    "memory list --type team --fields id --format text | memory move - --to us"
)
@named_options
@option("--to", metavar="NAMESPACE", required=True, help="The namespace to move the memories to.")
@with_memories(reads_shared=True, selects=True)
def move(memories: "Memories", selection: SelectedMemories, to: str) -> None:
    """Move memories to another namespace.

    The memories keep their ids, versions, keys, tags and times. Give one or more IDs, or - to read
    them from standard input. Either all memories are moved or none, and the output contains the
    command that undoes the move. If a move is interrupted, run the same command again to finish it.
    """
    begin_change()
    moved = memories.move(selection.ids, to)
    record_change(f"{len(moved.ids)} were moved to {moved.into}")
    where = options_for(moved.into)
    undo = f"memory move {' '.join(moved.ids)}{where} --to {moved.namespace}"
    count = amount(len(moved.ids), "memory is", "memories are")
    lines = [f"{count} now in {moved.into}.", *text.list_current_again(moved.current_again)]
    lines.append(f"To undo it: {undo}")
    emit({**shapes.move_result(moved), "undo": undo}, "\n".join(lines))


# --- projects ---


@command(
    epilog="memory projects\nmemory projects show\n"
    "memory projects alias github.com/acme/shop shop\n"
    "memory projects unalias github.com/acme/shop\n"
    "memory projects merge old-shop shop --dry-run"
)
@click.argument("words", nargs=-1, metavar="[ACTION NAME...]")
@dry_run_option
@show_option
@with_memories(reads_shared=True)
def projects(memories: "Memories", words: Sequence[str], dry_run: bool, show: str | None) -> int:
    """List the projects, their other names and their folders.

    ACTION is list, the default, or one of these: show [FOLDER] shows the project of a folder; alias
    NAME PROJECT makes NAME another name for PROJECT; unalias NAME undoes this; merge NAME PROJECT
    also changes the tags of your own memories, and shows the command that changes them back.
    """
    actions = {"list": 0, "show": 1, "alias": 2, "unalias": 1, "merge": 2}
    action, names = _parse_action("projects", words, actions, optional="show")
    if action != "merge" and (dry_run or show is not None):
        raise InvalidInput(f"projects {action} takes neither --dry-run nor --show; omit them")
    if action == "list":
        return _list_projects(memories)
    if action == "show":
        return _show_project(names[0] if names else ".")
    if action == "unalias":
        return _unalias(names[0])
    return _alias(memories, names, show, merge=action == "merge", dry_run=dry_run)


def _list_projects(memories: "Memories") -> int:
    home = registers()
    aliases, counts = registry.aliases(home), memories.tags("project")
    folders: dict[str, list[str]] = {}
    for repository in registry.repositories(home):
        name = registry.resolve(repository.name, aliases)
        folders.setdefault(name, []).append(repository.folder.removesuffix("/.git"))
    current = {registry.resolve(name, aliases) for name in aliases}
    names = (({*folders} | current) - {*aliases}) | {*counts}
    rows = []
    for name in sorted(names):
        others = [] if name in aliases else registry.names_of(name, aliases)[1:]
        row = {"name": name, "memories": counts.get(name, 0), "aliases": others}
        rows.append(row | {"folders": folders.get(name, [])})
    answer = {"projects": rows, "aliases": aliases, "count": len(rows)}
    emit(answer, partial(_render_projects, rows, aliases))
    return 0


def _render_projects(rows: Sequence[Mapping[str, Any]], aliases: Mapping[str, str]) -> str:
    lines = []
    for row in rows:
        name = row["name"]
        line = f"{safe(name)}  {amount(row['memories'], 'memory', 'memories')}"
        if row["aliases"]:
            line += f"  also {safe(', '.join(row['aliases']))}"
        if name in aliases:
            line += f"  (means {safe(registry.resolve(name, dict(aliases)))})"
        lines.append(line)
        lines += [f"  {safe(folder)}" for folder in row["folders"]]
    return "\n".join(lines) or _NOTHING


def _show_project(folder: str) -> int:
    from memories.identity.project import identify

    project = identify(Path(folder).expanduser(), record=False)
    if project is None:
        raise NotFound(
            f"{safe(folder)} is not in one of your git repositories, so it has no project"
        )
    line = f"{safe(project.name)}  {safe(str(project.root))}  {safe(project.branch or 'no branch')}"
    emit({**project._asdict(), "root": str(project.root)}, line)
    return 0


def _unalias(name: str) -> int:
    alias = _parse_project(name)
    if registry.set_alias(registers(), alias, None) is None:
        raise NotFound(f'"{safe(alias)}" is not an alias; memory projects lists the aliases')
    record_change(f"{alias} is a separate project again")
    emit(
        {"alias": alias, "project": alias},
        f"{safe(alias)} is a separate project again.",
    )
    return 0


def _alias(
    memories: "Memories", names: Sequence[str], show: str | None, *, merge: bool, dry_run: bool
) -> int:
    from shlex import quote

    from memories.cli.bulk import change_many

    home = registers()
    alias, target = map(_parse_project, names)
    project = registry.resolve(target, registry.aliases(home))
    if project == alias:
        raise InvalidInput(
            f'"{safe(target)}" is already a name of "{safe(alias)}"; give two different projects'
        )

    def register(again: str = "") -> None:
        if not dry_run:
            registry.set_alias(home, alias, project)
            record_change(f"{alias} is now another name for {project}", again)

    def rename() -> "Affected":
        register("running the command again does the rest")
        renamed = {f"project={alias}": f"project={project}"}
        return memories.tag_where(None, rename_tags=renamed, dry_run=dry_run)

    if merge:
        code = change_many(rename, show)
        if not dry_run:
            remedy = f"to remove that name, run: memory projects unalias {quote(alias)}"
            note(f"{alias} is now another name for {project}; {remedy}")
        return code
    register()
    emit(
        {"alias": alias, "project": project},
        f"{safe(alias)} is now another name for {safe(project)}.",
    )
    return 0


def _parse_project(name: str) -> str:
    from memories.guard.validate import tags

    return tags({"project": name})["project"]


# --- tokens ---

_format_settings = with_settings(format_option)


@click.group(
    cls=Group,
    epilog="memory tokens create laptop --allow bob:rw --allow shared:r\n"
    "memory tokens revoke laptop",
)
def tokens() -> None:
    """Create, list and revoke server tokens.

    Clients on the network send a token to the server. The token determines which namespaces the
    client may read, write or manage.
    """


@tokens.command(
    epilog="memory tokens create ci --allow shop:rw --expires 90d\n"
    "memory tokens create admin --allow '*:admin'"
)
@click.argument("name")
@option(
    "--allow", metavar="NAMESPACE[:LEVEL]", multiple=True,
    help=(
        "A namespace and a level: r, rw (the default) or admin; * means every other namespace. May "
        "be repeated."
    ),
)  # fmt: skip
@option(
    "--expires", metavar="TIME",
    help="When the token expires: a time, or a span from now such as 90d. [default: never]",
)  # fmt: skip
@_format_settings
def create(config: "Config", name: str, allow: Sequence[str], expires: str | None) -> None:
    """Create a token and print it once.

    Only the token's hash is stored. Records written with the token show its NAME. r allows reading;
    rw also allows writing; admin also allows erasing permanently, accepting and rejecting memories,
    and writing records from another store.
    """
    grants = register.parse_grants(allow)
    expires_at = None
    if expires is not None:
        now = datetime.now(UTC)
        expires_at, _ = parse_span(expires, now, is_ahead=True)
    begin_change()
    secret, token = register.create(config.home, name, grants, expires_at)
    record_change(
        f'the token "{token.name}" was created', f"memory tokens revoke {token.id} removes it"
    )
    emit({"token": secret, **register.shape(token)}, secret)
    note("Save the token now: only its hash is stored, so it can't be shown again.")


@tokens.command("list", epilog="memory tokens list --format text")
@_format_settings
def list_(config: "Config") -> None:
    """List the tokens, without their secrets."""
    listed = register.read(config.home)
    rows = [register.shape(token) for token in listed]
    emit({"tokens": rows, "count": len(rows)}, partial(_render_tokens, listed))


def _render_tokens(listed: "Sequence[Token]") -> str:
    lines = []
    for token in listed:
        grants = " ".join(f"{name}:{level}" for name, level in token.namespaces.items())
        line = f"{token.id}  {safe(token.name)}  {grants}"
        if token.expires_at:
            line += f"  until {format_time(token.expires_at)}"
        if token.last_used_at:
            line += f"  last used {format_time(token.last_used_at)}"
        else:
            line += "  no recorded use"
        lines.append(line)
    return "\n".join(lines) or "There are no tokens."


@tokens.command(epilog="memory tokens revoke laptop")
@click.argument("name", metavar="NAME|ID")
@_format_settings
def revoke(config: "Config", name: str) -> None:
    """Revoke a token, so that a running server refuses it from now on."""
    if not name.strip():
        raise InvalidInput("name a token; memory tokens list shows all tokens")
    begin_change()
    token = register.revoke(config.home, name)
    record_change(f'the token "{token.name}" was revoked')
    emit(register.shape(token) | {"revoked": True}, f"Revoked: {safe(token.name)}")


COMMANDS = (namespaces, move, projects, tokens)
