"""Commands that write memories: create, update, edit, confirm, reinforce, delete, restore and
forget.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memories.answers import shapes
from memories.answers.advice import options_for
from memories.answers.fields import DRAFT
from memories.cli.app import command, completing, option
from memories.cli.options import (
    CREATE_ID,
    Decorator,
    SelectedMemories,
    anchor_option,
    anchor_options,
    compact,
    dry_run_option,
    memory_id,
    named_options,
    no_redact_option,
    note_language,
    one_named_option,
    read_argument,
    read_evidence,
    remove_tag_option,
    select,
    show_option,
    tag_options,
    text,
    together,
    unasked_option,
    valid_until_option,
    value_option,
    where_option,
    whole_number_or,
    with_memories,
)
from memories.cli.output import (
    begin_change,
    confirm,
    edit_text,
    emit,
    note,
    record_change,
    safe,
    shorten,
    with_note,
)
from memories.core.ids import parse_id
from memories.errors import InvalidInput, NotFound, RequestError, StoreDamaged
from memories.guard.validate import amount
from memories.models import CHANGEABLE, Draft
from memories.search.filters import SCOPES

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.models import Forgotten, Memory
    from memories.write.create import Created

NOT_STORED = 3  # exit code


def _field_options(group: str, names: Iterable[str], **helps: str) -> Decorator:
    """Return the options for these fields of a draft; `helps` replaces some of their help texts."""
    rows = [
        DRAFT[name]._replace(about=helps.get(name, DRAFT[name].about), section="Options")
        for name in names
    ]
    return together(*(value_option(row, group) for row in rows))


@command(
    epilog='memory create "Deploys happen on Tuesdays" --project shop --type fact\n'
    "git log -1 | memory create - --tag source=git --decay contextual\n"
    "memory create --lines notes.txt --project shop\n"
    "memory create --jsonl - <facts.jsonl"
)
@click.argument("content", required=False)
@option(
    "--jsonl", metavar="FILE",
    help=(
        "Store many memories: one JSON object per line, with content, tags, key, decay and so on; "
        "- reads standard input."
    ),
)  # fmt: skip
@option(
    "--lines", metavar="FILE",
    help="Store many memories: one text per line; - reads standard input.",
)  # fmt: skip
@_field_options(
    "fields",
    DRAFT,
    decay="How the confidence decays: stable, contextual or reinforceable. [default: stable]",
    key="A stable key, such as user/editor. A memory that already has the key gets a new version.",
    supersedes="The ID of the memory that the new one replaces.",
    confidence="How sure you are, from 0 to 1. [default: 1]",
    source="The conversation, or the turn, that the memory comes from.",
)
@anchor_options("--until")
@option("--force", is_flag=True, help="Store it without comparing it with existing memories.")
@no_redact_option
@tag_options
@with_memories(reads_shared=False)
def create(
    memories: "Memories",
    content: str | None,
    jsonl: str | None,
    lines: str | None,
    tags: Mapping[str, str],
    fields: Mapping[str, Any],
    evidence: Mapping[str, Any],
    force: bool,
    no_redact: bool,
) -> int:
    """Store a memory, unless it is already stored.

    CONTENT is the text, or - to read it from standard input. If a memory with the same text exists,
    new details such as tags are merged into it; the output has "stored": false and lists them under
    "merged", and the exit code is 0. A very similar text is a duplicate: it is not stored, and the
    exit code is 3.

    --jsonl and --lines report the result of each line; other options apply to all lines. Exits with
    1 if any line was refused, else with 3 if any is a duplicate.

    In a project, existing paths that the text mentions become anchors; see memory verify.
    """
    draft = Draft("", tags, **fields, **read_evidence(evidence))
    if jsonl is not None or lines is not None:
        from memories.cli.bulk import Plan, create_lines

        if content is not None or None not in (jsonl, lines):
            raise InvalidInput("CONTENT, --jsonl and --lines can't be combined; give one of them")
        if "key" in fields or "supersedes" in fields:
            raise InvalidInput(
                "--key and --supersedes are for one memory; in --jsonl, each line can have its own"
            )
        plan = Plan(jsonl is not None, draft, force, redact=not no_redact)
        return create_lines(memories, jsonl or lines or "", plan)
    if content is None:
        raise click.UsageError("Missing argument 'CONTENT'.")
    content = read_argument(content, "content")
    # The id prevents a duplicate if the command is retried after a server's response is lost.
    draft = replace(draft, content=content, id=CREATE_ID.get() or None)
    begin_change()
    try:
        [created] = memories.create_many([draft], force=force, redact=not no_redact)
    except NotFound as exc:  # only the id in --supersedes is looked up
        raise NotFound(f"--supersedes {fields['supersedes']}: {exc}") from exc
    record_change(*_describe(created, force=force))
    emit(
        shapes.create_result(created),
        partial(text.create_result, created),
        compact=partial(compact.create_result, memories, created),
    )
    note_language(memories, content)
    return 0 if created.memory is not None else NOT_STORED


def _describe(created: "Created", *, force: bool) -> tuple[str, str]:
    """Return what was stored and what a second run would do, as clauses for an error message."""
    memory = created.memory
    if memory is None:
        return f"nothing was stored, since {created.note or 'a very similar memory exists'}", ""
    if not created.stored:
        reason = "it was merged into" if created.merged else "the memory exists as"
        return f"nothing new was stored, since {reason} {memory.id}", ""
    again = "running the command again stores nothing twice"
    if force:
        again = "with --force, running the command again stores it twice"
    return f"stored as {memory.id}", again


@command(
    epilog='memory update 01a1fdf1-92cd-72f2 "Deploys happen on Thursdays"\n'
    "memory update 01a1fdf1-92cd-72f2 --project shop --remove-tag draft\n"
    "memory list --fields id --format text | memory update - --project shop\n"
    "memory update 01a1fdf1-92cd-72f2 --not-corrects 01a1fdf0-11aa-7c3d"
)
@memory_id
@click.argument("content", required=False)
@tag_options
@remove_tag_option
@_field_options(
    "changes",
    CHANGEABLE,
    decay="stable, contextual or reinforceable. [default: unchanged]",
    confidence="How sure you are now, from 0 to 1. [default: unchanged]",
)
@anchor_options()
@option(
    "--not-corrects", metavar="ID", kind="ids", group="changes",
    help="The ID of a memory that this one does not correct after all; both stay current.",
)  # fmt: skip
@no_redact_option
@with_memories(reads_shared=True)
def update(
    memories: "Memories",
    memory_id: str,
    content: str | None,
    tags: Mapping[str, str],
    changes: Mapping[str, Any],
    evidence: Mapping[str, Any],
    no_redact: bool,
) -> int:
    """Add a new version of a memory, with new text or tags.

    Anything you leave out stays the same. But new text removes anchors that it no longer mentions,
    and a --valid-until that has passed. --anchor replaces all anchors. CONTENT is the new text, or
    - to read it from standard input. If ID is -, the options apply to all memories whose IDs are on
    standard input.
    """
    from memories.cli.bulk import restate_each

    if memory_id == "-" and (content is not None or "not_corrects" in changes):
        raise InvalidInput(
            "ids from standard input can't be combined with CONTENT or --not-corrects; update one "
            "memory at a time"
        )
    run = partial(
        memories.update,
        content=None if content is None else read_argument(content, "content"),
        tags=tags,
        redact=not no_redact,
        **changes,
        **read_evidence(evidence),
    )
    selection = select(memories, [memory_id])
    return restate_each(memories, selection, run, "updated", changes)


@command(epilog="memory reinforce 01a1fdf1-92cd-72f2\nmemory reinforce --key team/commits")
@named_options
@with_memories(reads_shared=True, selects=True)
def reinforce(memories: "Memories", selection: SelectedMemories) -> int:
    """Restart the decay of a reinforceable memory.

    Give one or more IDs, or - to read them from standard input.
    """
    from memories.cli.bulk import change_each

    return change_each(
        memories, selection, memories.reinforce, "reinforced", shapes.reinforce_result
    )


@command(
    epilog="memory delete 01a1fdf1-92cd-72f2\n"
    "memory delete --where 'by = claude-code and since 2h' --dry-run\n"
    "memory list --type draft --fields id --format text | memory delete -"
)
@named_options
@where_option
@dry_run_option
@show_option
@with_memories(reads_shared=True)
def delete(
    memories: "Memories",
    ids: Sequence[str],
    key: str | None,
    project: str | None,
    where: str | None,
    dry_run: bool,
    show: str | None,
) -> int:
    """Delete a memory; restore undoes this.

    Give one or more IDs, or - to read them from standard input. --where deletes all memories in
    your own namespace that match the expression; the output contains the command that restores
    them.
    """
    from memories.cli.bulk import change_many, check_selection, for_each

    check_selection(ids, key, where, dry_run)
    if where is not None:
        return change_many(partial(memories.delete_where, where, dry_run=dry_run), show)
    selection = select(memories, ids, key, project)
    shape = partial(shapes.delete_result, memories)
    return for_each(selection, memories.delete, shape, partial(_deletion, memories), "deleted")


def _deletion(memories: "Memories", memory: "Memory") -> str:
    undo = f"memory restore {safe(memory.id)}{options_for(memory.namespace)}"
    head = f"Deleted: {shorten(memory.content, 9)}"
    head = with_note(head, shapes.deletion_note(memories, memory))
    return f"{head}\nTo bring it back: {undo}"


@command(
    epilog="memory restore 01a1fdf1-92cd-72f2\n"
    "memory restore backups/memories-20260102T100000Z.db --replace\n"
    "memory restore 01a1fdf1-92cd-72f2 --version 1"
)
@click.argument(
    "names", nargs=-1, required=True, metavar="ID|FILE", shell_complete=completing("deleted ids")
)
@option(
    "--version", metavar="N", parse=whole_number_or("version must be a whole number, 1 or more"),
    help="For a current memory: the earlier version to restore.",
)  # fmt: skip
@option(
    "--replace", is_flag=True,
    help="With FILE: move the existing store aside; the output contains its new path.",
)  # fmt: skip
@with_memories(reads_shared=True)
def restore(memories: "Memories", names: Sequence[str], version: int | None, replace: bool) -> int:
    """Restore a deleted memory, or an entire store from a backup.

    ID is a deleted or superseded memory; give one or more, or - to read them from standard input.
    FILE is a backup, an export or an upgrade's snapshot; write ./FILE if its name looks like an ID.
    The entire file is checked before the store is changed.
    """
    if replace or any(name != "-" and _is_file(name) for name in names):
        from memories.cli.backup import restore_store

        if len(names) > 1 or version is not None:
            raise InvalidInput("a store is restored from one FILE; omit all other arguments")
        restore_store(memories.config, names[0], replace=replace)
        return 0
    from memories.cli.bulk import restate_each

    run = partial(memories.restore, version=version)
    return restate_each(memories, select(memories, names), run, "restored")


def _is_file(name: str) -> bool:
    """Return whether an argument names a file; an argument that parses as an id does not."""
    try:
        parse_id(name)
    except InvalidInput:
        # A slash alone doesn't make it a file name, since other programs' ids may contain slashes.
        if name.startswith((".", "/", "~")) or name.endswith((".db", ".jsonl", ".backup")):
            return True
        try:
            return Path(name).exists()
        except (OSError, ValueError):  # the name is too long for a path, or contains a NUL
            return False
    return False


@command(
    epilog="memory forget 01a1fdf1-92cd-72f2 --yes\n"
    "memory forget --where 'conversation = standup' --in all --dry-run"
)
@named_options
@where_option
@option(
    "--in", "scope", metavar="WHAT", values=SCOPES, section="Filters",
    help="With --where: memories, history (turns) or all. [default: memories]",
)  # fmt: skip
@dry_run_option
@unasked_option
@show_option
@with_memories(reads_shared=True)
def forget(
    memories: "Memories",
    ids: Sequence[str],
    key: str | None,
    project: str | None,
    where: str | None,
    scope: str | None,
    dry_run: bool,
    yes: bool,
    show: str | None,
) -> int:
    """Permanently erase a memory with all its versions.

    No byte of the memory stays in the store, and this can't be undone. Give one or more IDs, or -
    to read them from standard input. --where erases all memories or turns in your own namespace
    that match the expression. Deleted memories are included. Only the latest version of each memory
    is matched.
    """
    from memories.cli.bulk import check_selection, for_each, forget_where, note_copies

    check_selection(ids, key, where, dry_run)
    if where is not None:
        return forget_where(memories, where, scope or "memories", show, dry_run=dry_run, yes=yes)
    if scope is not None:
        raise InvalidInput(
            "--in requires --where; to erase a conversation: memory turns forget CONVERSATION"
        )
    selection = select(memories, ids, key, project)
    if not yes and not confirm(_question(memories, selection.ids)):
        return 1
    copies: dict[str, None] = {}

    def run(name: str) -> "Forgotten":
        forgotten = memories.forget(name)
        copies.update(dict.fromkeys(forgotten.also_in))
        return forgotten

    def show_text(forgotten: "Forgotten") -> str:
        head = f"Permanently forgotten: {forgotten.id}"
        return with_note(head, shapes.forgotten_note(memories, forgotten))

    shape = partial(shapes.forget_result, memories)
    code = for_each(selection, run, shape, show_text, "permanently forgotten")
    note_copies(list(copies))
    return code


def _question(memories: "Memories", ids: Sequence[str]) -> str:
    if len(ids) > 1:
        return f"Permanently forget {len(ids)} memories, the first of which is {ids[0]}?"
    try:
        history = memories.history(ids[0])
    except StoreDamaged:
        return f"Permanently forget {ids[0]}? It is damaged and can't be shown."
    versions = amount(len(history.versions), "version", "versions")
    return f"Permanently forget ({versions}): {shorten(history.versions[-1].content, 40)}"


@command(
    epilog="memory edit 01a1fdf1-92cd-72f2\nEDITOR='code --wait' memory edit --key user/editor"
)
@one_named_option
@no_redact_option
@with_memories(reads_shared=True, selects=True)
def edit(memories: "Memories", selection: SelectedMemories, no_redact: bool) -> None:
    """Edit a memory in your editor; saving adds a version.

    VISUAL or EDITOR names the editor, optionally with arguments. If the memory was changed while
    you edited it, nothing is stored, and the error names the file that contains your text.
    """
    if selection.is_list:
        raise InvalidInput("edit takes one memory at a time; give one ID")
    record = memories.get(selection.ids[0])
    if record.pending:
        raise RequestError(
            f"Memory is waiting for review; edit it with: memory review edit {record.id}"
        )
    if record.namespace != memories.namespace:
        raise RequestError(
            f"Memory is in namespace {record.namespace}; to edit it, add -n {record.namespace}"
        )

    def store(content: str) -> None:
        begin_change()
        memory = memories.update(
            record.id, content, redact=not no_redact, if_version=record.version
        )
        record_change(f"{memory.id} was updated, version {memory.version}")
        emit_memory(memories, memory)
        if hint := shapes.change_hint(record, memory):
            note(hint)

    if not edit_text(record.content, store, instead=f"memory update {record.id} CONTENT"):
        note("Nothing was changed.")


def emit_memory(memories: "Memories", memory: "Memory") -> None:
    """Print one memory."""
    emit(
        shapes.memory(memory),
        partial(text.memory, memory),
        compact=partial(compact.memory, memories, memory),
    )


@command(
    "confirm",
    epilog="memory confirm 01a1fdf1-92cd-72f2\n"
    "memory confirm 01a1fdf1-92cd-72f2 --anchor compose.yml::5433",
)
@named_options
@anchor_option
@valid_until_option()
@with_memories(reads_shared=True, selects=True)
def confirm_(memories: "Memories", selection: SelectedMemories, evidence: Mapping[str, Any]) -> int:
    """Confirm that a memory is still true; adds a version.

    The text stays the same. Anchors that still hold are kept, and anchors that the text mentions
    are added; --anchor replaces all of them. A --valid-until date that has passed is removed,
    unless you give a new one. If another memory corrects this one, the correction is reversed. Give
    one or more IDs, or - to read them from standard input.
    """
    from memories.cli.bulk import restate_each

    run = partial(memories.truth.confirm, **read_evidence(evidence))
    return restate_each(memories, selection, run, "confirmed")


COMMANDS = (create, update, reinforce, delete, restore, forget, edit, confirm_)
