"""Commands for agent sessions: scratchpad, prompt, hook, capture, off, on."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memories.answers import conversation_shapes
from memories.answers.advice import options_for
from memories.cli.app import Group, command, option
from memories.cli.options import (
    SelectedMemories,
    compact,
    format_option,
    named_options,
    namespace_option,
    no_shared_option,
    open_memories,
    store_option,
    whole_number_or,
    with_memories,
    with_settings,
)
from memories.cli.output import (
    DAMAGED,
    SCRATCHPAD_INSTEAD,
    begin_change,
    edit_text,
    emit,
    format_time,
    note,
    record_change,
    safe,
)
from memories.core.events import noting
from memories.errors import InvalidInput, SystemFault
from memories.guard.validate import amount
from memories.hooks import hook as hooks

if TYPE_CHECKING:
    from memories.hooks.flush import Flushed
    from memories.memories import Memories
    from memories.scratchpad.entries import Entry
    from memories.scratchpad.hot_tier import Scratchpad
    from memories.settings import Config

_BUDGET = "budget must be a whole number of tokens from 100 to 100000"


# --- scratchpad ---


@click.group(
    cls=Group,
    epilog="memory scratchpad show -n bob\nmemory scratchpad pin 01a1fdf1-92cd-72f2 -n bob",
)
def scratchpad() -> None:
    """Show and change the memories that a session starts with.

    The scratchpad contains pinned, recent and frequently used memories. Each namespace has its own,
    in a file named scratchpad.yaml, which you can also edit by hand.
    """


@scratchpad.command(epilog="memory scratchpad show -n bob --refresh")
@option("--refresh", is_flag=True, help="Update the file from the store first.")
@with_memories(reads_shared=True)
def show(memories: "Memories", refresh: bool) -> int:
    """Show the scratchpad, pinned memories first.

    If the store can't be reached, the file is shown, and the exit code is 4.
    """
    content, error = memories.ask_store(
        partial(memories.scratchpad, refresh=refresh), memories.offline
    )
    if error is None:
        _emit_scratchpad(memories, content)
        return 0
    note(SCRATCHPAD_INSTEAD.format(error))
    _emit_scratchpad(memories, content, {"degraded": True, "error": error})
    return DAMAGED


@scratchpad.command(
    epilog="memory scratchpad pin 01a1fdf1-92cd-72f2\nmemory scratchpad pin --key user/editor"
)
@named_options
@with_memories(reads_shared=True, selects=True)
def pin(memories: "Memories", selection: SelectedMemories) -> int:
    """Keep a memory in the scratchpad.

    Give one or more IDs, or - to read them from standard input. At most 50 memories can be pinned.
    """
    from memories.cli.bulk import change_each

    return change_each(memories, selection, memories.pin, "pinned")


@scratchpad.command(epilog="memory scratchpad unpin 01a1fdf1-92cd-72f2")
@named_options
@with_memories(reads_shared=True, selects=True)
def unpin(memories: "Memories", selection: SelectedMemories) -> int:
    """Stop keeping a memory in the scratchpad.

    Give one or more IDs, or - to read them from standard input.
    """
    from memories.cli.bulk import change_each

    return change_each(memories, selection, memories.unpin, "unpinned")


@scratchpad.command(epilog="memory scratchpad edit -n bob")
@with_memories(reads_shared=False)
def edit(memories: "Memories") -> int:
    """Edit the scratchpad in your editor.

    When you save, a changed entry becomes a new version, and a new line becomes a new memory. If
    you remove an entry, its memory stays in the store.
    """
    from memories.scratchpad.file import replace_by_person

    refreshed = memories.scratchpad(refresh=True)
    file = refreshed.file
    if file is None:
        raise InvalidInput(
            "the scratchpad of a store specified with --store has no file; omit --store"
        )
    contents: list[Scratchpad] = []

    def store(edited: str) -> None:
        replace_by_person(Path(file), edited)
        contents.append(memories.scratchpad())

    before = Path(file).read_text(encoding="utf-8")
    if not edit_text(before, store, instead="memory update ID CONTENT"):
        note("Nothing was changed.")
        return 0
    [content] = contents
    for sentence in content.taken:
        note(sentence)
    _emit_scratchpad(memories, content)
    return 1 if set(content.notes) - set(refreshed.notes) else 0


@scratchpad.command(epilog="memory scratchpad rebuild -n bob")
@with_memories(reads_shared=False)
def rebuild(memories: "Memories") -> None:
    """Rebuild the scratchpad from the store.

    The entries are chosen again from all memories in the namespace, so entries that you removed may
    reappear. Edits to the file are stored first; any that can't be stored are kept in a second file
    next to it.
    """
    _emit_scratchpad(memories, memories.scratchpad(rebuild=True))


def _emit_scratchpad(
    memories: "Memories", content: "Scratchpad", more: Mapping[str, Any] | None = None
) -> None:
    for sentence in content.notes:
        note(sentence)
    emit(
        conversation_shapes.scratchpad(content, memories.namespace) | dict(more or {}),
        partial(_render_scratchpad, content, memories.namespace),
        compact=partial(compact.scratchpad, content.entries, memories.namespace),
    )


def _render_scratchpad(content: "Scratchpad", namespace: str) -> str:
    rows = [_render_entry(entry, namespace) for entry in content.entries]
    if not rows:
        rows.append("The scratchpad is empty.")
    if content.waiting:
        rows.append(f"{content.waiting} waiting for review: memory review{options_for(namespace)}")
    if content.file:
        rows.append(f"file: {safe(content.file)}")
    return "\n".join(rows)


def _render_entry(entry: "Entry", namespace: str) -> str:
    details = ["pinned"] if entry.pinned else []
    if entry.verdict is not None:
        details.insert(0, safe(entry.verdict.describe()))
    details += [f"{safe(key)}={safe(value)}" for key, value in sorted(entry.tags.items())]
    if entry.by:
        details.append(f"by {safe(entry.by)}")
    details.append(safe(entry.written[:10]))
    if entry.uses:
        details.append(f"read {amount(entry.uses, 'time', 'times')}")
    if entry.suspicious:
        details.append("suspicious")
    if entry.namespace != namespace:
        details.append(f"in {entry.namespace}")
    if entry.cut is not None:
        details.append(f"truncated, {entry.cut} characters in total")
    content = "\n  ".join(map(safe, entry.content.split("\n")))
    return f"{content}\n    {' · '.join(details)} · {safe(entry.id)}"


# --- prompt ---


@command(epilog="memory prompt -n bob --project shop\nmemory prompt -n bob --for mcp --format json")
@option(
    "--project", metavar="NAME", kind="project",
    help="The session's project, if it is not the working folder's.",
)  # fmt: skip
@option(
    "--budget", metavar="N", parse=whole_number_or(_BUDGET),
    help="Maximum number of tokens. [default: 1500]",
)  # fmt: skip
@option(
    "--for", "client", metavar="CLIENT", values=("shell", "mcp"),
    help="How the agent accesses its memory: shell or mcp. [default: shell]",
)  # fmt: skip
@with_settings(namespace_option, no_shared_option, store_option, format_option)
def prompt(
    config: "Config",
    no_shared: bool,
    project: str | None,
    budget: int | None,
    client: str | None,
) -> int:
    """Print the block that starts a session's prompt.

    The block names the agent, lists its scratchpad and the notes from the project's last sessions,
    and explains how to access the memory. Memories are fenced as data. Captured or imported
    memories that have not been accepted are left out, as are texts that look like instructions to a
    model. If the store can't be reached, the scratchpad file is used, and the exit code is 4.
    """
    from memories.identity.session_block import build_session_block, shape

    if budget is not None and not 100 <= budget <= 100_000:
        raise InvalidInput(f'{_BUDGET}, not "{budget}"')
    name, is_partial = _name_project(config, project)
    budget = budget or config.prompt_tokens
    with (
        noting(config, "prompt", channel="cli", agent=config.identity, project=name) as figures,
        open_memories(config, shared=not no_shared) as memories,
    ):
        block = build_session_block(
            memories,
            project=name,
            budget=budget,
            client="shell" if client is None else client,
            is_partial=is_partial,
        )
        figures["tokens"] = block.tokens
        figures["results"] = len(block.entries) + len(block.sessions)
    for sentence in block.notes:
        note(sentence)
    if block.degraded:
        note(SCRATCHPAD_INSTEAD.format(block.degraded))
    emit(shape(block), block.text, compact=block.text)
    return DAMAGED if block.degraded else 0


def _name_project(config: "Config", name: str | None) -> tuple[str | None, bool]:
    """Return the project's name, and whether it may be only the last part of a longer name.

    If no name is given, use the working folder's project.
    """
    from memories.identity.place import here, name_project

    if name is not None:
        return name_project(name)
    place = here(config)()
    return place and place.project, False


# --- hooks ---


@command(
    epilog="memory hook session-start --host claude-code\nmemory hook stop --host codex --capture"
)
@click.argument("event", metavar="EVENT")
@option("--host", metavar="HOST", help=f"The program that runs the hook: {', '.join(hooks.HOSTS)}.")
@option("--capture", is_flag=True, help="Also capture the conversation, for review.")
@option("--namespace", "-n", metavar="NAME", help="Namespace to use. [default: shared]")
@option(
    "--seconds",
    metavar="N",
    help="Stop after at most N seconds. [default: 0.85; more on a busy machine]",
)
def hook(**_: object) -> None:  # only provides the help; `__main__` runs hooks
    """Handle an event from an agent's host.

    EVENT is session-start, user-prompt, answer, stop, pre-compact or session-end. The host passes
    the event as JSON on standard input; memory connect sets this up. If anything fails, the hook
    prints nothing and exits 0; memory doctor shows the reason.
    """


@click.group(cls=Group, epilog="memory capture flush\nmemory capture status")
def capture() -> None:
    """Store what hooks captured, or show what is queued."""


@capture.command("flush", epilog="memory capture flush")
@option("--quiet", is_flag=True, help="Print nothing and run at low priority, as hooks do.")
@with_settings(format_option)
def flush(config: "Config", quiet: bool) -> int:
    """Store the events that hooks left in the inbox.

    Hooks start this when an agent stops. Messages become turns in a conversation; possible memories
    are held for review (memory review). Exits with 1 if some events could not be stored; they stay
    in the inbox.
    """
    from memories.hooks.flush import flush as run

    if quiet and hasattr(os, "nice"):
        os.nice(10)
    begin_change()
    flushed = run(str(config.home))
    turns = amount(flushed.turns, "turn", "turns")
    proposals = amount(flushed.proposed, "memory", "memories")
    record_change(
        f"{turns} and {proposals} were stored", "running the command again stores nothing twice"
    )
    if not quiet:
        waiting: dict[str, int] = {}
        if not flushed.reasons:
            with open_memories(config, shared=True) as memories:
                for counts in memories.namespaces():
                    if counts.pending_count:
                        waiting[counts.name] = counts.pending_count
        answer = {**flushed._asdict(), "pending_count": sum(waiting.values())}
        emit(answer, partial(_render_flush, flushed, waiting))
    return 1 if flushed.reasons else 0


def _render_flush(flushed: "Flushed", waiting: Mapping[str, int]) -> str:
    turns = amount(flushed.turns, "turn", "turns")
    notes = amount(flushed.summaries, "session note", "session notes")
    sessions = amount(flushed.sessions, "session", "sessions")
    proposals = amount(flushed.proposed, "memory", "memories")
    lines = [f"Stored {turns} and {notes} of {sessions}, and proposed {proposals}."]
    for namespace, count in waiting.items():
        memories = amount(count, "memory is", "memories are")
        lines.append(f"{memories} waiting for review: memory review -n {namespace}")
    if flushed.waiting:
        lines.append(f"{amount(flushed.waiting, 'byte is', 'bytes are')} still in the inbox.")
    return "\n".join([*lines, *flushed.reasons])


@capture.command("status", epilog="memory capture status")
@with_settings(format_option)
def status(config: "Config") -> None:
    """Show what is queued, and when each hook last ran."""
    from memories.hooks import inbox, switch
    from memories.hooks.runs import describe_runs

    home = str(config.home)
    state = switch.read_state(str(Path.cwd()), None)
    answer: dict[str, Any] = {
        "on": state.on,
        "capture": state.capture,
        "why": state.why or None,
        "waiting_bytes": inbox.size(home),
        "waiting_sessions": inbox.names(home),
        "hooks": describe_runs(home),
    }
    emit(answer, partial(_render_capture, answer))


def _render_capture(answer: Mapping[str, Any]) -> str:
    if not answer["on"]:
        lines = [f"Memory is off here: {answer['why']}."]
    elif answer["capture"]:
        lines = ["Memory is on here."]
    else:
        lines = ["Memory is on here.", f"Nothing is captured here: {answer['why']}."]
    lines.append(f"{amount(answer['waiting_bytes'], 'byte is', 'bytes are')} waiting in the inbox.")
    for run in answer["hooks"]:
        count = amount(run["run_count"], "run", "runs")
        last = format_time(run["last_run_at"]) if run["last_run_at"] else "unknown"
        line = f"{run['host']} {run['event']}: last {last}, {count}"
        if run["failure_count"]:
            line += f", {run['failure_count']} failed, last: {run['reason']}"
        lines.append(line)
    return "\n".join(lines)


# --- off and on ---

_session_option = option(
    "--session", "for_session", is_flag=True,
    help="Only for the agent session that is running in this folder.",
)  # fmt: skip


@command(epilog="memory off\nmemory off --session\nmemory off --all")
@_session_option
@option("--all", "everywhere", is_flag=True, help="For every project.")
@with_settings(format_option)
def off(config: "Config", for_session: bool, everywhere: bool) -> None:
    """Switch hooks off: nothing is recalled or captured automatically.

    This applies to the working folder's project, with all its clones and working trees, or only to
    the folder if it isn't in a git repository. Commands and tools that an agent calls keep working.
    A .memories-off file in a folder, or MEMORY_OFF=1 in the environment, has the same effect.
    """
    _switch(config, for_session, everywhere, on=False)


@command(epilog="memory on\nmemory on --session")
@_session_option
@option("--all", "everywhere", is_flag=True, help="Undo memory off --all.")
@with_settings(format_option)
def on(config: "Config", for_session: bool, everywhere: bool) -> None:
    """Switch hooks back on after memory off."""
    _switch(config, for_session, everywhere, on=True)


def _switch(config: "Config", for_session: bool, everywhere: bool, *, on: bool) -> None:
    from memories.hooks import session, switch

    if for_session and everywhere:
        raise InvalidInput("--session and --all can't be combined; give one of them")
    home, folder = str(config.home), os.path.realpath(str(Path.cwd()))
    session_name = None
    if for_session:
        session_name = _current_session(home, folder)
        session.append(home, session_name, off=not on)
        place = title = f"session {session_name}"
    elif everywhere:
        place, title = switch.EVERYWHERE, "every project"
        _write_switch(config.home, place, set(), on=on)
    else:
        place, synonyms = _place_of(config.home, folder)
        title = f"the {place}" if place.startswith(switch.PROJECT) else place
        _write_switch(config.home, place, synonyms, on=on)
    switched = "on" if on else "off"
    record_change(f"hooks were switched {switched} for {title}")
    state = switch.read_state(folder, session_name)
    answer = {"switched": switched, "for": place, "on": state.on, "why": state.why or None}
    sentence = f"Hooks are {switched} for {title}"
    if not on:
        sentence += "; agents' tools keep working"
    elif not state.on:
        sentence += f"; they are still off here: {state.why}"
    emit(answer, f"{sentence}.")


def _write_switch(home: Path, entry: str, synonyms: set[str], *, on: bool) -> None:
    """Add an entry to the file that lists where hooks are off, or remove it.

    Args:
        home: The home folder.
        entry: The project or folder.
        synonyms: Equivalent entries, which are always removed.
        on: Whether to remove the entry instead of adding it.
    """
    from memories.core.disk import locked, make_folder, replacing
    from memories.hooks import files, switch

    file = home / files.OFF
    try:
        make_folder(home)
        with locked(home / f"{files.OFF}.lock"):
            entries = switch.read_off(str(home)) - {entry, *synonyms}
            if not on:
                entries.add(entry)
            lines = "".join(f"{line}\n" for line in sorted(entries))
            with replacing(file) as stream:
                stream.write(lines.encode("utf-8", "surrogateescape"))
    except OSError as exc:
        raise SystemFault(
            f"cannot write {file}: {exc.strerror or exc}; nothing was changed"
        ) from exc


def _place_of(home: Path, folder: str) -> tuple[str, set[str]]:
    """Return the line that switches hooks off for a folder's project, and equivalent lines.

    A folder without a project gets a line of its own.
    """
    from memories.config import registers
    from memories.hooks import switch
    from memories.identity.project import identify

    project = identify(Path(folder))
    if project is None:
        return folder, set()
    lines = switch.lines_of(switch.read_off(str(home)), project.name, registers())
    synonyms = {os.path.realpath(project.root), folder, *lines}
    return f"{switch.PROJECT}{project.name}", synonyms


def _current_session(home: str, folder: str) -> str:
    """Return the session that runs this command, or else the last session active in the folder."""
    from memories.hooks import files, session

    ids = session.ids_in(os.environ)
    if ids:
        return files.session_name(*next(iter(ids.items())))
    name = session.find_latest(home, folder)
    if name is None:
        raise InvalidInput(
            f"found no agent session in {folder}; run this in the folder where the agent started"
        )
    return name


COMMANDS = (scratchpad, prompt, hook, capture, off, on)
