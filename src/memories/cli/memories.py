"""Commands that write memories: create, update, edit, reinforce, delete, restore, forget."""

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memories.answers import shapes
from memories.cli.options import (
    command,
    completing,
    dry_run_option,
    in_session,
    memory_id,
    named_options,
    no_redact_option,
    option,
    share,
    show_option,
    tag_options,
    where_option,
    whole_number,
)
from memories.cli.output import changing, confirm, emit, note
from memories.cli.session import ONCE, compacts, read_argument, texts
from memories.core.ids import parse_id
from memories.errors import (
    ConfigError,
    InvalidInput,
    MemoriesError,
    NotFound,
    RequestError,
    StoreDamaged,
)
from memories.models import Draft
from memories.search.filters import SCOPES

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.models import Forgotten, Memory
    from memories.write.create import Created

NOT_STORED = 3
_POLICIES = ("stable", "contextual", "reinforceable")


@command(
    epilog='memory create "Deploys happen on Tuesdays" --project shop --type fact\n'
    "git log -1 | memory create - --tag source=git --decay contextual\n"
    "memory create --lines notes.txt --project shop\n"
    "memory create --jsonl - <facts.jsonl"
)
@click.argument("content", required=False)
@option(
    "--jsonl", metavar="FILE",
    help="Store many: a JSON object on each line, with content, tags, key, decay and so on; - is standard input.",
)  # fmt: skip
@option("--lines", metavar="FILE", help="Store many: a text on each line; - is standard input.")
@option(
    "--decay", metavar="POLICY", values=_POLICIES,
    help="How confidence ages: stable, contextual or reinforceable. [default: stable]",
)  # fmt: skip
@option(
    "--key", metavar="KEY", kind="keys",
    help="Stable key, such as user/editor. Creating with a key that exists adds a version.",
)  # fmt: skip
@option("--supersedes", metavar="ID", kind="ids", help="Memory that this one replaces.")
@option("--confidence", metavar="0..1", help="How sure you are. [default: 1]")
@option(
    "--source",
    metavar="CONVERSATION[#INDEX]",
    help="Conversation, or turn of one, that it was made from.",
)
@option("--force", is_flag=True, help="Store it without comparing it with what is there.")
@no_redact_option
@tag_options
@in_session(reads=False)
def create(
    memories: "Memories",
    content: str | None,
    jsonl: str | None,
    lines: str | None,
    tags: Mapping[str, str],
    decay: str | None,
    key: str | None,
    supersedes: str | None,
    confidence: str | None,
    source: str | None,
    force: bool,
    no_redact: bool,
) -> int:
    """Store a memory, unless it is already there.

    CONTENT is the text, or - to read it from standard input. If the same text is there, what this
    one adds is merged into that memory ("stored": false, "merged"), exit 0. Exits 3 if it was not
    stored: a duplicate. --jsonl and --lines tell what became of each line, and the other options
    hold for all of them: exits 1 if a line was refused, else 3 if one is a duplicate.
    """
    sure = share(confidence, "confidence")
    draft = Draft("", tags, decay, key, supersedes, sure, source=source)
    if jsonl is not None or lines is not None:
        from memories.cli.bulk import Plan, create_lines

        if content is not None or None not in (jsonl, lines):
            raise InvalidInput("CONTENT, --jsonl and --lines do not go together; give one of them")
        if key is not None or supersedes is not None:
            raise InvalidInput(
                "--key and --supersedes name one memory; with --jsonl each line has its own"
            )
        plan = Plan(jsonl is not None, draft, force, redact=not no_redact)
        return create_lines(memories, jsonl or lines or "", plan)
    if content is None:
        raise click.UsageError("Missing argument 'CONTENT'.")
    draft = replace(draft, content=read_argument(content, "content"), id=ONCE.get() or None)
    try:
        created = changing(
            lambda: memories.create_many([draft], force=force, redact=not no_redact)[0],
            lambda done: _stored(done, force=force),
        )
    except NotFound as exc:  # of the ids that a create is given, there is only this one
        raise NotFound(f"{exc}: --supersedes {supersedes}") from exc
    emit(
        shapes.create_result(created),
        lambda: texts().created(created),
        compact=lambda: compacts().create_result(memories, created),
    )
    return 0 if created.memory is not None else NOT_STORED


@command(
    epilog='memory update 01a1fdf1-92cd-72f2 "Deploys happen on Thursdays"\n'
    "memory update 01a1fdf1-92cd-72f2 --project shop --remove-tag draft\n"
    "memory list --fields id --format text | memory update - --project shop\n"
    "memory update 01a1fdf1-92cd-72f2 --not-corrects 01a1fdf0-11aa-7c3d"
)
@memory_id
@click.argument("content", required=False)
@tag_options
@option(
    "--remove-tag",
    metavar="KEY",
    multiple=True,
    section="Tags",
    help="A tag to remove; may be repeated.",
)
@option(
    "--decay",
    metavar="POLICY",
    values=_POLICIES,
    help="stable, contextual or reinforceable. [default: as it is]",
)
@option("--confidence", metavar="0..1", help="How sure you are now. [default: as it is]")
@option(
    "--not-corrects",
    metavar="ID",
    kind="ids",
    help="Memory that this one does not correct after all: both hold.",
)
@no_redact_option
@in_session(reads=True)
def update(
    memories: "Memories",
    memory_id: str,
    content: str | None,
    tags: Mapping[str, str],
    remove_tag: Sequence[str],
    not_corrects: str | None,
    decay: str | None,
    confidence: str | None,
    no_redact: bool,
) -> int:
    """Add a new version of a memory: new text, new tags.

    What is not given stays as it is. CONTENT is the new text, or - to read it from standard input.
    ID may be - to give all memories whose ids are on standard input the same tags.
    """
    from memories.cli.bulk import each_of, named

    if memory_id == "-" and (content is not None or not_corrects is not None):
        raise InvalidInput(
            "ids from standard input take tags only; update the content of one memory at a time"
        )
    text = None if content is None else read_argument(content, "content")
    sure = share(confidence, "confidence")

    def run(name: str) -> "Memory":
        return memories.update(
            name,
            text,
            tags=tags,
            remove_tags=remove_tag,
            redact=not no_redact,
            not_corrects=not_corrects,
            decay=decay,
            confidence=sure,
        )

    return each_of(named(memories, [memory_id]), run, shapes.memory, _as_text, "updated")


@command(epilog="memory reinforce 01a1fdf1-92cd-72f2\nmemory reinforce --key team/commits")
@named_options
@in_session(reads=True)
def reinforce(
    memories: "Memories", ids: Sequence[str], key: str | None, project: str | None
) -> int:
    """Restart the decay of a reinforceable memory.

    ID may be given several times, or as - to read ids from standard input.
    """
    from memories.cli.bulk import each_of, named

    chosen = named(memories, ids, key, project)
    return each_of(chosen, memories.reinforce, shapes.reinforce_result, _as_text, "reinforced")


@command(
    epilog="memory delete 01a1fdf1-92cd-72f2\nmemory delete --where 'by = claude-code and since 2h' --dry-run\n"
    "memory list --type draft --fields id --format text | memory delete -"
)
@named_options
@where_option
@dry_run_option
@show_option
@in_session(reads=True)
def delete(
    memories: "Memories",
    ids: Sequence[str],
    key: str | None,
    project: str | None,
    where: str | None,
    dry_run: bool,
    show: str | None,
) -> int:
    """Delete a memory; restore brings it back.

    ID may be given several times, or as - to read ids from standard input. With --where, all
    memories of your own namespace that meet the expression; the answer names the command that
    brings them back.
    """
    from memories.cli.bulk import delete_where, each_of, named, some_or_where

    some_or_where(ids, key, where, dry_run)
    if where is not None:
        return delete_where(memories, where, show, dry_run=dry_run)
    return each_of(
        named(memories, ids, key, project),
        memories.delete,
        shapes.delete_result,
        lambda found: texts().deleted(found),
        "deleted",
    )


@command(
    epilog="memory restore 01a1fdf1-92cd-72f2\nmemory restore backups/memories-20260102T100000Z.db --replace\n"
    "memory restore 01a1fdf1-92cd-72f2 --version 1"
)
@click.argument(
    "wanted", nargs=-1, required=True, metavar="ID|FILE", shell_complete=completing("deleted ids")
)
@option(
    "--version", metavar="N", help="Of a current memory: the version that it is to be like again."
)
@option(
    "--replace",
    is_flag=True,
    help="FILE: put the store that is there aside, under a name that is told.",
)
@in_session(reads=True)
def restore(memories: "Memories", wanted: Sequence[str], version: str | None, replace: bool) -> int:
    """Bring back a deleted memory, or a whole store from a backup.

    ID is a deleted or superseded memory; several may be given, or - to read ids from standard
    input. FILE is what memory backup or memory export wrote, or the snapshot of an upgrade; write
    ./FILE where it looks like an ID. It is checked as a whole before the store is touched.
    """
    if replace or any(each != "-" and _is_file(each) for each in wanted):
        from memories.cli.backup import restore_store

        if len(wanted) > 1 or version is not None:
            raise InvalidInput("a store is restored from one FILE; give it alone")
        restore_store(memories.config, wanted[0], replace=replace)
        return 0
    from memories.cli.bulk import each_of, named

    number = whole_number(version, "version must be a whole number from 1")

    def run(name: str) -> "Memory":
        return memories.restore(name, version=number)

    return each_of(named(memories, wanted), run, shapes.memory, _as_text, "restored")


def _is_file(wanted: str) -> bool:
    """Return whether a file is meant; what can be the id of a memory is one."""
    try:
        parse_id(wanted)
    except InvalidInput:
        # Other programs give ids with a slash in them, so a path has to be there, or to look like
        # nothing else.
        return (
            wanted.startswith((".", "/", "~"))
            or wanted.endswith((".db", ".jsonl", ".backup"))
            or _exists(wanted)
        )
    return False


def _exists(wanted: str) -> bool:
    try:
        return Path(wanted).exists()
    except (OSError, ValueError):  # too long for a path, or with a NUL
        return False


@command(
    epilog="memory forget 01a1fdf1-92cd-72f2 --yes\nmemory forget --where 'conversation = standup' --in all --dry-run"
)
@named_options
@where_option
@option(
    "--in", "scope", metavar="WHAT", values=SCOPES, section="Filters",
    help="With --where: memories, history (turns) or all. [default: memories]",
)  # fmt: skip
@dry_run_option
@option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@show_option
@in_session(reads=True)
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
    """Erase a memory for good, every version of it.

    No byte of it stays in the store, and nothing brings it back. ID may be given several times, or
    as - to read ids from standard input. With --where, all memories or turns of your own namespace
    that meet the expression; memories are judged by their latest version, deleted ones too.
    """
    from memories.cli.bulk import each_of, forget_where, named, some_or_where, tell_copies

    some_or_where(ids, key, where, dry_run)
    if where is not None:
        return forget_where(memories, where, scope or "memories", show, dry_run=dry_run, yes=yes)
    if scope is not None:
        raise InvalidInput(
            "--in goes with --where; turns of a conversation: memory turns forget CONVERSATION"
        )
    chosen = named(memories, ids, key, project)
    if not yes and not confirm(_question(memories, chosen.ids)):
        return 1
    copies: list[str] = []

    def run(name: str) -> "Forgotten":
        done = memories.forget(name)
        copies.extend(done.also_in)
        return done

    code = each_of(
        chosen,
        run,
        shapes.forget_result,
        lambda done: f"Forgotten for good: {done.id}",
        "forgotten for good",
    )
    tell_copies(list(dict.fromkeys(copies)))
    return code


def _question(memories: "Memories", ids: Sequence[str]) -> str:
    if len(ids) > 1:
        return f"Forget {len(ids)} memories for good, beginning with {ids[0]}?"
    try:
        return str(texts().forget_question(memories.history(ids[0])))
    except StoreDamaged:
        return f"Forget {ids[0]} for good? It is damaged and can't be shown."


def _stored(created: "Created", *, force: bool) -> str:
    """Return what a create did, as a part of a sentence."""
    if created.memory is None:
        return f"nothing was stored, {created.note or 'a very similar memory exists'}"
    if not created.stored:
        done = (
            f"merged into {created.memory.id}"
            if created.merged
            else f"it is there as {created.memory.id}"
        )
        return f"nothing new was stored, {done}"
    again = (
        "; with --force, running it again stores it twice"
        if force
        else "; running it again stores nothing twice"
    )
    return f"stored as {created.memory.id}{again}"


def _as_text(found: "Memory") -> str:
    return str(texts().memory(found))


_EDITORS = ("sensible-editor", "nano", "vim", "vi")  # tried where neither VISUAL nor EDITOR is set
_FILE = "memory.txt"


@command(
    epilog="memory edit 01a1fdf1-92cd-72f2\nEDITOR='code --wait' memory edit --key user/editor"
)
@named_options
@no_redact_option
@in_session(reads=True)
def edit(
    memories: "Memories", ids: Sequence[str], key: str | None, project: str | None, no_redact: bool
) -> None:
    """Edit a memory in your editor: what you save is its new version.

    The editor is VISUAL or EDITOR, which may have arguments. What is not changed stays as it is. If
    somebody else has changed the memory meanwhile, nothing is stored, and your text is kept in a
    file that is named.
    """
    from memories.cli.bulk import named

    chosen = named(memories, ids, key, project)
    if chosen.several:
        raise InvalidInput("one memory is edited at a time; give one ID")
    found = memories.get(chosen.ids[0])
    if found.pending:
        raise RequestError(f"Memory waits for review; edit it with: memory review edit {found.id}")
    if found.namespace != memories.namespace:
        raise RequestError(
            f"Memory is in namespace {found.namespace}; edit it from there: add -n {found.namespace}"
        )

    def store(text: str) -> None:
        memory = changing(
            lambda: memories.update(found.id, text, redact=not no_redact, if_version=found.version),
            lambda done: f"{done.id} was updated, version {done.version}",
        )
        emit(
            shapes.memory(memory),
            lambda: str(texts().memory(memory)),
            compact=lambda: str(compacts().memory(memories, memory)),
        )

    if not edited(found.content, store, instead=f"memory update {found.id} CONTENT"):
        note("Nothing was changed.")


def edited(content: str, store: Callable[[str], None], *, instead: str) -> bool:
    """Have a person edit a text, and store what was saved; return whether it was changed.

    It lies in a folder that nobody else can read. That is removed afterwards, unless what was saved
    can't be stored.

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
    import shutil
    import tempfile

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
    import shutil

    for variable in ("VISUAL", "EDITOR"):
        if given := os.environ.get(variable, "").strip():
            try:
                return shlex.split(given)
            except ValueError as exc:
                raise ConfigError(
                    f"{variable} can't be read ({exc}); write the quotes in pairs"
                ) from exc
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

    before = signal.signal(
        signal.SIGINT, lambda *_: None
    )  # one that is ignored would be ignored by the editor too
    try:
        code = subprocess.run(argv, check=False).returncode  # noqa: S603 - what the user's own variable names
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise ConfigError(
            f"cannot start the editor {argv[0]}: {reason}; set VISUAL or EDITOR to another one"
        ) from exc
    finally:
        signal.signal(signal.SIGINT, before)
    if code:
        raise RequestError(f"the editor {argv[0]} ended with exit code {code}; nothing was changed")


def _saved(file: Path, before: str) -> str | None:
    """Return what was saved, without the line end that editors put behind the last line; None if
    nothing was changed.

    Raises:
        InvalidInput: It is empty, or no text.
    """
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InvalidInput(
            "the file was removed, so there is no new text; nothing was changed"
        ) from None
    except UnicodeDecodeError as exc:
        raise InvalidInput(
            f"what was saved is not UTF-8 (byte {exc.start}); nothing was changed"
        ) from None
    if "\r\n" not in before:
        text = text.replace("\r\n", "\n")
    text = text.rstrip("\r\n")
    if not text.strip():
        raise InvalidInput(
            "what was saved is empty; nothing was changed; memory delete removes a memory"
        )
    return None if text == before.rstrip("\r\n") else text


COMMANDS = (create, update, reinforce, delete, restore, forget, edit)
