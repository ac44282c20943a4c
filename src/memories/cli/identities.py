"""Commands for namespaces, projects and the tokens of a server: namespaces, projects, tokens."""

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from memories.answers import shapes
from memories.cli.options import (
    Group,
    as_of_option,
    command,
    dry_run_option,
    format_option,
    in_session,
    option,
    show_option,
    with_settings,
)
from memories.cli.output import amount, changing, emit, note, safe
from memories.core.times import parse_time, to_iso
from memories.errors import InvalidInput, NotFound
from memories.identity import tokens as register

if TYPE_CHECKING:
    from memories.identity.namespaces import Contents
    from memories.memories import Memories
    from memories.settings import Config
    from memories.stores import Store

_yes_option = option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


@command(
    epilog="memory namespaces\nmemory namespaces show bob\nmemory namespaces rename bob robert\n"
    "memory namespaces merge bob robert --dry-run\nmemory namespaces delete bob --yes"
)
@click.argument("words", nargs=-1, metavar="[ACTION NAME...]")
@as_of_option
@dry_run_option
@_yes_option
@in_session(reads=True)
def namespaces(
    memories: "Memories", words: Sequence[str], as_of: str | None, dry_run: bool, yes: bool
) -> int:
    """List the namespaces and how much is in each.

    Those of the whole store, also of others: their names and numbers, never what they hold.

    ACTION may be list; show NAME, with tags, writers, sizes and times; rename NAME NEW; merge NAME
    OTHER, which moves all that is in NAME to OTHER; and delete NAME, which leaves no byte of it and
    cannot be undone.
    """
    action, names = _asked(
        "namespaces", words, {"list": 0, "show": 1, "rename": 2, "merge": 2, "delete": 1}
    )
    if (dry_run or yes) and action in ("list", "show"):
        raise InvalidInput(
            f"namespaces {action} changes nothing; leave out {'--dry-run' if dry_run else '--yes'}"
        )
    if action == "list":
        return _list(memories, as_of)
    if as_of is not None:
        raise InvalidInput(f"namespaces {action} knows no past; leave out --as-of")
    if action == "show":
        return _show(memories, names[0])
    if action == "delete":
        return _delete(memories, names[0], dry_run=dry_run, yes=yes)
    return _move(memories, names, merge=action == "merge", dry_run=dry_run)


def _asked(
    name: str, words: Sequence[str], takes: Mapping[str, int], optional: str = ""
) -> tuple[str, list[str]]:
    """Return the action and the names that a command was given.

    Args:
        name: The command.
        words: What it was given; nothing stands for `list`.
        takes: How many names each action takes.
        optional: The action that may go without its names.

    Raises:
        InvalidInput: There is no such action, or it takes more or fewer names.
    """
    action, *names = words or ("list",)
    if action not in takes:
        raise InvalidInput(f'{name} has no action "{safe(action)}"; use {", ".join(takes)}')
    if len(names) != takes[action] and (names or action != optional):
        raise InvalidInput(
            f"{name} {action} takes {amount(takes[action], 'name', 'names')}, not {len(names)}"
        )
    return action, names


def _list(memories: "Memories", as_of: str | None) -> int:
    found = memories.namespaces(as_of=as_of)
    rows = [shapes.without_none(each._asdict()) for each in found]

    def text() -> str:
        width = max((len(each.name) for each in found), default=0)
        return (
            "\n".join(
                f"{each.name:<{width}}  {each.memory_count:>7} memories  {each.turn_count:>7} turns"
                + (f"  {each.pending_count} waiting for review" if each.pending_count else "")
                + (f"  {each.deleted_count} deleted" if each.deleted_count else "")
                + ("  (read here)" if each.read else "")
                for each in found
            )
            or "Nothing here."
        )

    emit({"namespaces": rows, "count": len(rows)}, text)
    return 0


@contextlib.contextmanager
def _opened(memories: "Memories") -> Iterator["Store"]:
    """Open the store of a command as a whole, with the space that its vectors have."""
    from memories.stores import open_store
    from memories.stores.records import Collection, Filter, Space

    config = memories.config
    with contextlib.closing(open_store(config.store, None, config)) as store:
        space = None
        if (
            model := store.info(Filter(Collection.MEMORY, (memories.namespace,))).model
        ) is not None:
            dimension = _dimension(store)
            space = Space(model, dimension, 0.0, 0.0, 1.0, 1.0, (1.0, 0.0)) if dimension else None
    with contextlib.closing(open_store(config.store, space, config)) as store:
        yield store


def _dimension(store: "Store") -> int | None:
    """Return the length of the vectors in use; None if there is none."""
    from memories.transfer.pages import pages, places

    for place in places(store):
        for page in pages(store, place):
            for rows in store.vectors([record.ref for record in page]).values():
                return int(rows.shape[1])
    return None


def _show(memories: "Memories", name: str) -> int:
    from memories.identity import namespaces as rooms

    with _opened(memories) as store:
        found = rooms.show(store, memories.config, name)
    shape: dict[str, Any] = {
        **found._asdict(),
        "tags": dict(found.tags),
        "writers": dict(found.writers),
    }
    for when in ("first_at", "last_at"):
        shape[when] = shape[when] and to_iso(shape[when])
    emit(shape, lambda: _text(found))
    return 0


def _text(found: "Contents") -> str:
    lines = [
        f"{found.name}: {amount(found.memory_count, 'memory', 'memories')}, {found.version_count} with all versions",
        f"{found.pending_count} wait for review, {found.deleted_count} are deleted",
        f"{found.turn_count} turns of {found.conversation_count} conversations, {found.queued_count} wait to be stored",
        f"{found.text_bytes} bytes of text",
    ]
    if found.first_at and found.last_at:
        lines.append(f"written {to_iso(found.first_at)} to {to_iso(found.last_at)}")
    lines += [f"  {safe(tag)}  {count}" for tag, count in found.tags.items()]
    lines += [f"  by {safe(writer)}  {count}" for writer, count in found.writers.items()]
    return "\n".join(lines)


def _move(memories: "Memories", names: Sequence[str], *, merge: bool, dry_run: bool) -> int:
    from memories.identity import namespaces as rooms

    name, into = names
    with _opened(memories) as store:
        done = changing(
            lambda: rooms.move(store, memories.config, name, into, merge=merge, dry_run=dry_run),
            lambda done: f"{done.name} is {done.into} now; running it again does what is left",
        )
    did = "would be" if dry_run else "is now"
    emit(
        {**done._asdict(), "dry_run": dry_run},
        lambda: (
            f"{done.name} {did} {done.into}: {done.versions} versions of memories, {done.turns} turns."
        ),
    )
    if done.left:
        note(
            f"{done.left} were written to {done.name} meanwhile; run: memory namespaces merge {done.name} {done.into}"
        )
    return 1 if done.left else 0


def _delete(memories: "Memories", name: str, *, dry_run: bool, yes: bool) -> int:
    from memories.cli.bulk import tell_copies
    from memories.identity import namespaces as rooms

    with _opened(memories) as store:
        memories.flush_accesses()  # which wait in a file that names the namespace
        planned = rooms.delete(store, memories.config, name, dry_run=True)
        counts = [
            amount(planned.memories, "memory", "memories"),
            amount(planned.turns, "turn", "turns"),
        ]
        what = f"{', '.join(counts)}, {planned.queued} that wait, and the log"
        if not dry_run and not yes and not _named(planned.name, what):
            return 1
        done = planned if dry_run else changing(
            lambda: rooms.delete(store, memories.config, name), lambda done: f"{done.name} was erased"
        )  # fmt: skip
    emit(
        {**done._asdict(), "dry_run": dry_run},
        lambda: (
            f"{'Would erase' if dry_run else 'Erased'} {done.name}: {what}."
            + "".join(f"\n  {file}" for file in done.files)
        ),
    )
    tell_copies(done.also_in)
    return 0


def _named(name: str, what: str) -> bool:
    """Ask a person to type the name of what is going to be erased."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidInput("this can't be undone and there is nobody to ask; add --yes to confirm")
    sys.stderr.write(f"Erase the namespace {name} for good: {what}? Type its name: ")
    sys.stderr.flush()
    agreed = sys.stdin.readline().strip() == name
    if not agreed:
        note("Nothing was erased.")
    return agreed


class _Project(NamedTuple):
    name: str
    memories: int
    aliases: tuple[str, ...]
    folders: tuple[str, ...]


@command(
    epilog="memory projects\nmemory projects show\nmemory projects alias github.com/acme/shop shop\n"
    "memory projects unalias github.com/acme/shop\nmemory projects merge old-shop shop --dry-run"
)
@click.argument("words", nargs=-1, metavar="[ACTION NAME...]")
@dry_run_option
@show_option
@in_session(reads=True)
def projects(memories: "Memories", words: Sequence[str], dry_run: bool, show: str | None) -> int:
    """List the projects, their other names and their folders.

    ACTION may be list; show [FOLDER], the project of a folder; alias NAME PROJECT, so that what was
    named NAME belongs to PROJECT from now on; unalias NAME; and merge NAME PROJECT, which does that
    and tags your own memories anew; the answer names the command that undoes this.
    """
    takes = {"list": 0, "show": 1, "alias": 2, "unalias": 1, "merge": 2}
    action, names = _asked("projects", words, takes, optional="show")
    if action != "merge" and (dry_run or show is not None):
        raise InvalidInput(f"projects {action} has neither --dry-run nor --show; leave them out")
    if action == "list":
        return _list_projects(memories)
    if action == "show":
        return _show_project(names[0] if names else ".")
    return _change_names(memories, action, names, show, dry_run=dry_run)


def _list_projects(memories: "Memories") -> int:
    from memories.config import registers
    from memories.identity import registry

    home = registers()
    aliases, counts = registry.aliases(home), memories.tags("project")
    folders: dict[str, list[str]] = {}
    for each in registry.repositories(home):
        folders.setdefault(registry.resolve(each.name, aliases), []).append(
            each.folder.removesuffix("/.git")
        )
    names = sorted(
        {*counts, *folders, *(registry.resolve(name, aliases) for name in aliases)} - {*aliases}
        | {*counts}
    )
    rows = [
        _Project(
            name,
            counts.get(name, 0),
            tuple(registry.names_of(name, aliases)[1:] if name not in aliases else ()),
            tuple(folders.get(name, ())),
        )
        for name in names
    ]
    emit(
        {"projects": [each._asdict() for each in rows], "aliases": aliases, "count": len(rows)},
        lambda: (
            "\n".join(
                f"{safe(each.name)}  {amount(each.memories, 'memory', 'memories')}"
                + (f"  also {safe(', '.join(each.aliases))}" if each.aliases else "")
                + (
                    f"  (means {safe(registry.resolve(each.name, aliases))})"
                    if each.name in aliases
                    else ""
                )
                + "".join(f"\n  {safe(folder)}" for folder in each.folders)
                for each in rows
            )
            or "Nothing here."
        ),
    )
    return 0


def _show_project(folder: str) -> int:
    from memories.identity.project import identify

    found = identify(Path(folder).expanduser(), record=False)
    if found is None:
        raise NotFound(f"{safe(folder)} is in no git repository of yours, so it is of no project")
    shape = {**found._asdict(), "root": str(found.root)}
    emit(
        shape,
        lambda: f"{safe(found.name)}  {safe(str(found.root))}  {safe(found.branch or 'no branch')}",
    )
    return 0


def _change_names(
    memories: "Memories", action: str, names: Sequence[str], show: str | None, *, dry_run: bool
) -> int:
    from memories.cli.bulk import told
    from memories.config import registers
    from memories.guard.validate import tags
    from memories.identity import registry

    home = registers()
    alias, *into = (tags({"project": name})["project"] for name in names)
    if action == "unalias":
        if registry.set_alias(home, alias, None) is None:
            raise NotFound(f'"{safe(alias)}" is no alias; memory projects lists them')
        emit(
            {"alias": alias, "project": alias},
            lambda: f"{safe(alias)} is a project of its own again.",
        )
        return 0
    project = registry.resolve(into[0], registry.aliases(home))
    if project == alias:
        raise InvalidInput(
            f'"{safe(into[0])}" is a name of "{safe(alias)}" already; give two projects'
        )
    if not dry_run:
        registry.set_alias(home, alias, project)
    if action == "merge":
        renamed = {f"project={alias}": f"project={project}"}
        return told(
            memories, lambda: memories.tag_where(None, rename_tags=renamed, dry_run=dry_run), show
        )
    emit(
        {"alias": alias, "project": project},
        lambda: f"{safe(alias)} belongs to {safe(project)} from now on.",
    )
    return 0


_SPAN = re.compile(
    r"\d{1,6}\s*(h|d|w|mo|y)"
)  # as `parse_time` reads it, which takes it for one that is over
_settings = with_settings(format_option)


@click.group(
    cls=Group,
    invoke_without_command=True,
    epilog="memory tokens create laptop --allow bob:rw --allow shared:r\nmemory tokens revoke laptop",
)
@click.pass_context
def tokens(context: click.Context) -> None:
    """Make, list and revoke the tokens of a server.

    Who asks a server over the network shows a token. It says which namespaces may be read, written
    or managed.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@tokens.command(
    epilog="memory tokens create ci --allow shop:rw --expires 90d\nmemory tokens create admin --allow '*:admin'"
)
@click.argument("name")
@option(
    "--allow", metavar="NAMESPACE[:LEVEL]", multiple=True,
    help="Namespace and r, rw (if left out) or admin; * is every other one. May be repeated.",
)  # fmt: skip
@option(
    "--expires",
    metavar="TIME",
    help="When it ends: a time, or a span such as 90d from now. [default: never]",
)
@_settings
def create(config: "Config", name: str, allow: Sequence[str], expires: str | None) -> None:
    """Make a token and print it, this once.

    Only its hash is kept. What is written with it tells its NAME. r may read, rw also write, admin
    also erase for good, decide about reviews, and write records from another store.
    """
    grants = register.parse_grants(allow)
    until = None if expires is None else _to_come(expires)
    secret, made = changing(
        lambda: register.create(config.home, name, grants, until),
        lambda done: (
            f'the token "{done[1].name}" was made; memory tokens revoke {done[1].id} removes it'
        ),
    )
    emit({"token": secret, **register.shape(made)}, lambda: secret)
    note("Keep it now: only its hash is stored, and it is not shown again.")


def _to_come(text: str) -> datetime:
    """Return a time to come; a span counts from now on."""
    now = datetime.now(UTC)
    time = parse_time(text, now)
    return now + (now - time) if _SPAN.fullmatch(text.strip()) else time


@tokens.command("list", epilog="memory tokens list --format text")
@_settings
def list_(config: "Config") -> None:
    """List the tokens, without what they are."""
    found = register.read(config.home)

    def text() -> str:
        rows = []
        for each in found:
            grants = " ".join(f"{name}:{level}" for name, level in each.namespaces.items())
            until = f"  until {to_iso(each.expires_at)}" if each.expires_at else ""
            used = (
                f"  last used {to_iso(each.last_used_at)}" if each.last_used_at else "  never used"
            )
            rows.append(f"{each.id}  {safe(each.name)}  {grants}{until}{used}")
        return "\n".join(rows) or "There are no tokens."

    emit({"tokens": [register.shape(each) for each in found], "count": len(found)}, text)


@tokens.command(epilog="memory tokens revoke laptop")
@click.argument("which", metavar="NAME|ID")
@_settings
def revoke(config: "Config", which: str) -> None:
    """Revoke a token: a running server refuses it from now on."""
    if not which.strip():
        raise InvalidInput("name the token; memory tokens list shows them")
    gone = changing(
        lambda: register.revoke(config.home, which), lambda done: f"the token {done.id} was revoked"
    )
    emit(register.shape(gone) | {"revoked": True}, lambda: f"Revoked: {safe(gone.name)}")


COMMANDS = (namespaces, projects, tokens)
