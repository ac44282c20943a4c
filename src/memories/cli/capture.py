"""Commands about what hooks do: hook, capture, off, on."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memories.cli.options import Group, command, format_option, option, with_settings
from memories.cli.output import changing, emit
from memories.core.disk import locked, make_folder, replacing
from memories.errors import InvalidInput, SystemFault
from memories.hooks import files, inbox, session, switch
from memories.hooks import hook as hooks

if TYPE_CHECKING:
    from memories.hooks.flush import Flushed
    from memories.settings import Config


@command(
    epilog="memory hook session-start --host claude-code\nmemory hook stop --host codex --capture"
)
@click.argument("event", metavar="EVENT", type=click.Choice(hooks.EVENTS))
@option("--host", metavar="HOST", help=f"Program that runs the hook: {', '.join(hooks.HOSTS)}.")
@option("--capture", is_flag=True, help="Also capture what is said; memories wait for review.")
@option("--namespace", "-n", metavar="NAME", help="Namespace to use. [default: shared]")
@option("--seconds", metavar="N", help="End after N seconds, whatever happens. [default: 0.85]")
def hook(
    event: str, host: str | None, capture: bool, namespace: str | None, seconds: str | None
) -> None:
    """Serve an event of an agent's host.

    EVENT is session-start, user-prompt, answer, stop, pre-compact or session-end. The host starts
    this with the event as JSON on standard input; memory connect configures it. Whatever fails, it
    prints nothing and exits 0; memory doctor tells why.
    """
    given = [event, *(["--host", host] if host else []), *(["--capture"] if capture else [])]
    given += ["--namespace", namespace] if namespace else []
    hooks.main(given + (["--seconds", seconds] if seconds else []))


@click.group(cls=Group, epilog="memory capture flush\nmemory capture status")
def capture() -> None:
    """Store what hooks captured, or show what waits."""


@capture.command("flush", epilog="memory capture flush")
@option(
    "--quiet",
    is_flag=True,
    help="Print nothing, and give way to other programs, as hooks start it.",
)
@with_settings(format_option)
def flush(config: "Config", quiet: bool) -> int:
    """Store what hooks left in the inbox.

    Hooks start this by themselves when an agent stops. What was said becomes turns of a
    conversation; what may be worth remembering waits: memory review. Exits 1 if something could not
    be stored, which then stays in the inbox.
    """
    from memories.hooks.flush import flush as run

    if quiet and hasattr(os, "nice"):
        os.nice(10)
    done = changing(lambda: run(str(config.home)), _stored)
    if not quiet:
        emit(done._asdict(), lambda: _told(done))
    return 1 if done.reasons else 0


@capture.command("status", epilog="memory capture status")
@with_settings(format_option)
def status(config: "Config") -> None:
    """Show what waits, and when each hook last ran."""
    from memories.hooks.runs import describe_runs

    home = str(config.home)
    state = switch.read_state(str(Path.cwd()), None, os.environ)
    answer: dict[str, object] = {
        "on": state.on,
        "capture": state.capture,
        "why": state.why or None,
        "waiting_bytes": inbox.size(home),
        "waiting_sessions": inbox.names(home),
        "hooks": describe_runs(home),
    }
    emit(answer, lambda: _status(answer))


@command(epilog="memory off\nmemory off --session\nmemory off --all")
@option(
    "--session",
    "this_session",
    is_flag=True,
    help="Only for the agent's session that runs in this folder.",
)
@option("--all", "everywhere", is_flag=True, help="For every project.")
@with_settings(format_option)
def off(config: "Config", this_session: bool, everywhere: bool) -> None:
    """Switch hooks off: nothing is recalled or captured by itself.

    For this project with all its clones and working trees, or for this folder if it is in no git
    repository, unless an option says otherwise. Commands and tools that an agent calls go on
    working. A file .memories-off in a folder, or MEMORY_OFF=1 in the environment, does the same.
    """
    _switch(config, this_session, everywhere, on=False)


@command(epilog="memory on\nmemory on --session")
@option(
    "--session",
    "this_session",
    is_flag=True,
    help="Only for the agent's session that runs in this folder.",
)
@option("--all", "everywhere", is_flag=True, help="Take memory off --all back.")
@with_settings(format_option)
def on(config: "Config", this_session: bool, everywhere: bool) -> None:
    """Switch hooks on again, where memory off switched them off."""
    _switch(config, this_session, everywhere, on=True)


def _switch(config: "Config", this_session: bool, everywhere: bool, *, on: bool) -> None:
    if this_session and everywhere:
        raise InvalidInput("--session and --all do not go together; name one of them")
    home, folder = str(config.home), os.path.realpath(str(Path.cwd()))
    if this_session:
        name = _session(home, folder)
        session.note(home, name, off=not on)
        what = f"session {name}"
    else:
        what, others = (switch.EVERYWHERE, set()) if everywhere else _place_of(config.home, folder)
        _change(config.home, what, others, on=on)
    state = switch.read_state(folder, name if this_session else None, os.environ)
    answer = {
        "switched": "on" if on else "off",
        "for": what,
        "on": state.on,
        "why": state.why or None,
    }
    here = "on here" if state.on else f"off here: {state.why}"
    named = (
        "every project"
        if what == switch.EVERYWHERE
        else (f"the {what}" if what.startswith(switch.PROJECT) else what)
    )
    emit(answer, lambda: f"Hooks are {answer['switched']} for {named}; they are {here}.")


def _change(home: Path, what: str, others: set[str], *, on: bool) -> None:
    """Add what is switched off, or take it and all other lines that mean the same away."""
    try:
        make_folder(home)
        with locked(home / f"{files.OFF}.lock"):
            known = switch.read_off(str(home)) - {what, *others} | (set() if on else {what})
            with replacing(home / files.OFF) as stream:
                stream.write(
                    "".join(f"{each}\n" for each in sorted(known)).encode(
                        "utf-8", "surrogateescape"
                    )
                )
    except OSError as exc:
        raise SystemFault(
            f"cannot write {home / files.OFF}: {exc.strerror or exc}; nothing was switched"
        ) from exc


def _place_of(home: Path, folder: str) -> tuple[str, set[str]]:
    """Return what is switched, as a line: the project, else the folder; and other lines that mean
    the same.
    """
    from memories.config import registers
    from memories.identity.project import identify

    found = identify(Path(folder))
    if found is None:
        return folder, set()
    lines = switch.lines_of(switch.read_off(str(home)), found.name, registers())
    return f"{switch.PROJECT}{found.name}", {os.path.realpath(found.root), folder, *lines}


def _session(home: str, folder: str) -> str:
    """Return the name of the session that runs this command, or was last heard of in its folder."""
    if known := os.environ.get("CLAUDE_CODE_SESSION_ID"):
        return files.session_name("claude-code", known)
    found = session.find_latest(home, folder)
    if found is None:
        raise InvalidInput(
            f"no session of an agent is known in {folder}; run this in the folder that it was started in"
        )
    return found


def _stored(done: "Flushed") -> str:
    return f"{done.turns} turns and {done.proposed} memories were stored; running it again stores nothing twice"


def _told(done: "Flushed") -> str:
    said = f"Stored {done.turns} turns and {done.summaries} summaries of {done.sessions} sessions; "
    said += f"{done.proposed} memories wait for review"
    return "\n".join(
        [f"{said}; {done.waiting} bytes still wait." if done.waiting else f"{said}.", *done.reasons]
    )


def _status(answer: dict[str, object]) -> str:
    lines = ["Memory is on here." if answer["on"] else f"Memory is off here: {answer['why']}."]
    if answer["on"] and not answer["capture"]:
        lines.append(f"Nothing is captured here: {answer['why']}.")
    lines.append(f"{answer['waiting_bytes']} bytes wait in the inbox.")
    for each in answer["hooks"] if isinstance(answer["hooks"], list) else ():
        failed = (
            f", {each['failure_count']} failed, last: {each['reason']}"
            if each["failure_count"]
            else ""
        )
        lines.append(
            f"{each['host']} {each['event']}: last {each['last_run_at']}, {each['run_count']} runs{failed}"
        )
    return "\n".join(lines)


COMMANDS = (hook, capture, off, on)
