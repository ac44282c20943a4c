"""What a hook does at one event: look at the switch, append to the inbox, recall, and start what
stores the rest.
"""

import binascii
import json
import os
import sys
import time

from memories.hooks import inbox, place, prompts, session, stamps, switch
from memories.hooks.host_events import CURSOR, Told, rendered, working_folder
from memories.hooks.recall_request import HookContext, RecallRequest, query_of

TYPE_CHECKING = False  # as in `typing`, whose import costs 3 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_EVENT_BYTES = 8 * 1_048_576
_TWICE_SECONDS = 10.0  # within which the same event of no known turn is one event
_COMPACTS_ALWAYS = ("gemini",)  # tells of it at every turn
_RUNS_OTHERS = (CURSOR,)
_RECALLING = ("session-start", "user-prompt")
# -P: a folder `memories` where an agent works is no module of ours.
FLUSH = ("-P", "-m", "memories", "capture", "flush", "--quiet")
_RESERVED_SECONDS = 0.2  # for the scratchpad, should the store not answer
RESUMED = "resumed"  # written when a session takes its "memory off" back


class Asked:
    """What a hook is asked to do.

    Attributes:
        event: The event.
        host: The host.
        seconds: How long it may take, as it was written.
        namespace: A namespace, if one was named.
        capture: Whether what is said may be captured.
        began: When it was started.
        ends: When it has to be done.
        ask: Has the server of the store recall something; None if that has to be done here.
        start: Starts a server of a store.
    """

    __slots__ = (
        "ask",
        "began",
        "capture",
        "ends",
        "event",
        "host",
        "namespace",
        "seconds",
        "start",
    )

    def __init__(self) -> None:
        """Ask for nothing yet."""
        self.event = self.host = self.seconds = ""
        self.namespace: str | None = None
        self.capture = False
        self.began = time.monotonic()
        self.ends = self.began + 1
        self.ask: Callable[[bytes], bytes | None] = lambda _: None
        self.start: Callable[[str], None] = lambda _: None


def _nothing() -> None:
    """Do nothing."""


class Done:
    """What became of an event.

    Attributes:
        answer: What the host reads.
        failed: It failed, and that was written down.
        after: Does what is left to do, when the host has its answer.
    """

    __slots__ = ("after", "answer", "failed")

    def __init__(
        self, answer: bytes = b"", *, failed: bool = False, after: "Callable[[], None]" = _nothing
    ) -> None:
        """Set what is known."""
        self.answer, self.failed, self.after = answer, failed, after


def handle(given: Asked) -> Done:
    """Do what is to be done at an event; return what the host reads."""
    home = ""
    told = None
    try:
        told = Told(given.host, _parsed(_read(0)))
        given.host = told.host
        nothing = Done(rendered(told, given.event, ""))
        home = place.home(os.environ)
        state = switch.state(told.folder, told.name, os.environ)
        if not state.on and not (state.session and given.event == "user-prompt"):
            return nothing
        request, said = _do(given, told, home, state)
        if not state.on and not said:
            return nothing
        context, after, why = None, _nothing, ""
        if request is not None:
            context, after, why = _recall(given, request, has_answer=bool(said))
            if said:
                said = _switched(said, request, context)
            recalled = "" if context is None else context.text
            said = "\n".join(filter(None, (said, recalled)))
        is_captured = given.capture and state.capture and given.event not in _RECALLING
        stamps.ran(home, given.host, given.event, why)
        answer = rendered(told, given.event, said)
    except BaseException as exc:  # noqa: BLE001 - whatever it was, it is told to doctor, and not to the agent
        if not home:
            return failed(given, _reason(exc))
        stamps.ran(home, given.host, given.event, _reason(exc))
        return Done(failed=True, after=_noting(given, told, outcome=type(exc).__name__))
    return Done(answer, after=_nothing if is_captured else _noting(given, told, context, after))


def failed(given: Asked | None, why: str) -> Done:
    """Write down that an event failed; where memory is off, nothing is written."""
    try:
        home = place.home(os.environ)
        if not switch.state(working_folder(), None, os.environ).on:
            return Done(failed=True)
    except ValueError:
        return Done(failed=True)
    if given is None:
        stamps.log(home, why)
        return Done(failed=True)
    stamps.ran(home, given.host, given.event, why)
    return Done(failed=True, after=_noting(given, None, outcome="failed"))


def _recall(
    given: Asked, request: RecallRequest, *, has_answer: bool
) -> "tuple[HookContext | None, Callable[[], None], str]":
    """Return the context for the model, what is left to do when the host has it, and why the store
    did not answer.

    An event that the agent gets an answer to anyway does not fail when nothing can be recalled.
    """
    from memories.hooks.recall_strategy import probe, recall

    seconds = request.seconds()
    try:
        recalled = recall(request, given.ask)
    except Exception as exc:
        if not has_answer:
            raise
        return None, _nothing, _reason(exc)
    after = (lambda: probe(request, given.ask, seconds)) if recalled.probe_store else _nothing
    return recalled.context, after, recalled.context.error


def _switched(said: str, request: RecallRequest, context: HookContext | None) -> str:
    namespace = request.namespace if context is None else context.namespace
    return f'{said} In this session you are "{namespace}".' if namespace else said


def _noting(
    given: Asked,
    told: Told | None,
    context: HookContext | None = None,
    after: "Callable[[], None]" = _nothing,
    *,
    outcome: str = "ok",
) -> "Callable[[], None]":
    """Return what notes an event among the operations, and then does the rest; no agent waits for
    either.
    """
    known: dict[str, Any] = {"agent": given.host, "channel": "hook"}
    known |= {"outcome": "degraded" if context and context.error else outcome}
    known |= {"ms": round((time.monotonic() - given.began) * 1000, 2)}

    def note() -> None:
        from pathlib import Path

        from memories.core import events

        figures = dict(context.figures) if context else {}
        if not figures:  # this loads the settings
            from memories.hooks.figures import figures_of_silence

            figures = figures_of_silence(
                working_folder() if told is None else told.folder, given.namespace
            )
        events.note(Path(figures.pop("home")), f"hook.{given.event}", **figures, **known)
        if context and context.wanted_store:
            given.start(context.wanted_store)
        after()

    return note


def _do(
    given: Asked, told: Told, home: str, state: switch.State
) -> "tuple[RecallRequest | None, str]":
    """Do it; return what is to be recalled, and what the agent is told before that."""
    if given.event == "session-start":
        return _begin(given, told, home, state) if _is_first(
            told, home, "given", given.event
        ) else None, ""
    if given.event == "user-prompt":
        return _prompt(given, told, home, state)
    if given.event == "pre-compact" and given.host not in _COMPACTS_ALWAYS:
        session.note(home, told.name, **{session.RESET: True})
    if (
        given.capture
        and state.capture
        and _capture(given, told, home, state)
        and given.event != "answer"
    ):
        start_flusher(home)
    return None, ""


def _is_first(told: Told, home: str, what: str, event: str, text: str = "") -> bool:
    """Return whether no other hook did this of an event; a host that runs those of others runs all
    at once.
    """
    if told.host not in _RUNS_OTHERS:
        return True
    done = f"{what} {event} {told.turn} {binascii.crc32(text.encode('utf-8', 'replace')):08x}"
    return session.first(home, told.name, done, within=None if told.turn else _TWICE_SECONDS)


def _begin(given: Asked, told: Told, home: str, state: switch.State) -> RecallRequest:
    again = told.text("source") in ("clear", "compact")
    session.note(home, told.name, **{session.FOLDER: told.folder, session.RESET: again})
    if given.capture and state.capture and inbox.size(home):
        start_flusher(home)  # what an earlier session could not store
    return _request(given, told, home, state.namespace)


def _prompt(
    given: Asked, told: Told, home: str, state: switch.State
) -> "tuple[RecallRequest | None, str]":
    said = prompts.cleaned(told.text("prompt"), told.text("source"))
    wish = prompts.wish(said)
    if wish is not None and (state.on or wish.on):
        if not _is_first(told, home, "given", given.event, said):
            return None, ""
        if (
            given.capture and state.session
        ):  # what was said until now is none of the flusher's business
            _capture(given, told, home, state, event=RESUMED)
        if not wish.on:
            session.note(home, told.name, off=True)
            return (
                None,
                "Memory is off for this session: nothing is recalled or captured. The user can say: memory on.",
            )
        known: dict[str, object] = {session.OFF: False, session.RESET: True}
        known |= {} if wish.namespace is None else {session.NAMESPACE: wish.namespace}
        session.note(home, told.name, **known)
        request = _request(given, told, home, wish.namespace or state.namespace)
        return request, "Memory is on."
    if not state.on or not said or prompts.is_command(said):
        return None, ""
    if given.capture and state.capture:
        _capture(given, told, home, state)
    if not _is_first(told, home, "given", given.event, said):
        return None, ""
    return _request(given, told, home, state.namespace, query_of(said)), ""


def _request(
    given: Asked, told: Told, home: str, namespace: str | None, prompt: str | None = None
) -> RecallRequest:
    place_of_session = home, told.folder, told.name, namespace or given.namespace
    return RecallRequest(place_of_session, prompt, given.ends - _RESERVED_SECONDS)


def _capture(given: Asked, told: Told, home: str, state: switch.State, *, event: str = "") -> bool:
    """Append an event to the inbox, as much of it as is of use, without what is marked as private.

    Return whether it was appended; it is not if another hook did so.
    """
    event = event or given.event
    said: dict[str, object] = {}
    if event == "user-prompt":
        said["prompt"] = prompts.public(prompts.cleaned(told.text("prompt"), told.text("source")))[
            : inbox.MAX_TEXT
        ]
    elif event in ("answer", "stop"):
        said["answer"] = prompts.public(prompts.unframed(told.answer))[: inbox.MAX_TEXT]
    if not _is_first(told, home, "kept", event, "".join(map(str, said.values()))):
        return False
    kept: dict[str, object] = {
        "id": os.urandom(8).hex(),
        "at": int(time.time() * 1000),
        "host": told.host,
        "event": event,
        "session": told.session,
        "folder": told.folder,
        "namespace": state.namespace or given.namespace or os.environ.get("MEMORY_NAMESPACE"),
        "transcript": told.text("transcript_path"),
        "turn": told.turn,
        "source": told.source,
        "size": _size(told.text("transcript_path")),
        "store": store_mark(os.environ),
    }
    if given.event != "user-prompt":  # the flusher notes it, which has the settings
        kept["ms"] = round((time.monotonic() - given.began) * 1000, 2)
    inbox.add(home, told.name, kept | said)
    return True


def _size(path: str) -> int:
    """Return how long a transcript is now; 0 if there is none."""
    try:
        return os.stat(path).st_size if path else 0
    except (OSError, ValueError):
        return 0


def store_mark(environment: "os._Environ[str] | dict[str, str]") -> str:
    """Return a mark of the store that the environment names, which tells nothing of it; empty for
    the usual one.
    """
    named = environment.get("MEMORY_STORE")
    if not named:
        return ""
    import hashlib

    return hashlib.blake2b(named.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def start_flusher(home: str) -> None:
    """Start what stores the inbox, as a process that outlives the host; if one is at work already,
    it sees to it.
    """
    command = [sys.executable, *FLUSH]
    if not hasattr(os, "fork"):
        import subprocess

        flags = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0) | getattr(
            subprocess, "DETACHED_PROCESS", 0
        )
        null = subprocess.DEVNULL
        subprocess.Popen(  # noqa: S603
            command, cwd=home, stdin=null, stdout=null, stderr=null, creationflags=flags
        )
        return
    if os.fork():
        return
    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.closerange(3, 1024)
        os.chdir(home)
        os.execv(command[0], command)  # noqa: S606 - this interpreter
    finally:
        os._exit(code)


def _read(fd: int) -> bytes:
    """Return what the host tells; the rest of what is too long is read too, so that its pipe does
    not break.

    Raises:
        ValueError: It is too long.
    """
    parts, size = [], 0
    while part := os.read(fd, 1_048_576):
        size += len(part)
        if size <= MAX_EVENT_BYTES:
            parts.append(part)
    if size > MAX_EVENT_BYTES:
        raise ValueError(f"the event has {size} bytes; at most {MAX_EVENT_BYTES} are read")
    return b"".join(parts)


def _parsed(raw: bytes) -> "dict[str, object]":
    found = json.loads(raw)
    if not isinstance(found, dict):
        raise ValueError("the event is not a JSON object")  # noqa: TRY004 - of what was told, not of a call
    return found


def _reason(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}"
