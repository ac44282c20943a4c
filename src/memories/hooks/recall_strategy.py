"""Recall strategy of a hook: ask the server, else search in this process, else use the scratchpad.

A session waits for an unresponsive store only once. Before a hook asks the store, it marks the
store in the session's file as suspect from its own deadline on, and it clears the mark after the
answer. So a hook that was killed leaves the mark behind. While the mark stands, the hooks of the
session answer from the scratchpad, and probe the store after the host has their answer.
"""

import time

from memories.hooks import session
from memories.hooks.recall_request import HookContext, RecallRequest

TYPE_CHECKING = False  # as in `typing`, whose import costs 3 ms
if TYPE_CHECKING:
    from collections.abc import Callable

    AskServer = Callable[[bytes], bytes | None]

PROBE_PAUSE_MS = 3_000
SUSPECT_FOR_MS = 600_000  # after this long the store is asked again even if no probe has succeeded


class Recall:
    """The context for the model, and whether the store should be probed once the host has it."""

    __slots__ = ("context", "probe_store")

    def __init__(self, context: HookContext, *, probe_store: bool = False) -> None:
        """Hold both."""
        self.context, self.probe_store = context, probe_store


def recall(request: RecallRequest, ask_server: "AskServer") -> Recall:
    """Return the context for one event of a host.

    Args:
        request: The session, the prompt if there is one, and the deadline.
        ask_server: Sends the request to a running server; returns None if there is none or it does
            not answer.

    Raises:
        MemoriesError: A setting is wrong, or a new session has neither a reachable store nor a
            scratchpad.
    """
    state = session.read(request.home, request.session)
    now = _now_ms()
    if is_suspect(state, now):
        context = _recall_here(RecallRequest(request.place, request.prompt, None))
        _record_shown(request, context, suspect_since=state.suspect_since)
        return Recall(context, probe_store=is_probe_due(request, state, now))

    deadline = now + int(request.seconds() * 1000)
    session.note(request.home, request.session, **{session.SUSPECT_SINCE: deadline})
    context = _recall_from_store(request, ask_server)
    _record_shown(request, context, suspect_since=now if context.error else 0)
    return Recall(context)


def probe(request: RecallRequest, ask_server: "AskServer", seconds: float) -> None:
    """Ask the store once more, now that nobody waits; if it answers, the next hook of the session
    asks it too.
    """
    session.note(request.home, request.session, **{session.PROBED_AT: _now_ms()})
    trial = RecallRequest(request.place, request.prompt, time.monotonic() + seconds, counts=False)
    if not _recall_from_store(trial, ask_server).error:
        session.note(request.home, request.session, **{session.SUSPECT_SINCE: 0})


def is_suspect(state: session.Session, now_ms: int) -> bool:
    """Return whether a hook of this session was killed while it waited for the store, or got no
    answer.
    """
    return state.suspect_since <= now_ms < state.suspect_since + SUSPECT_FOR_MS


def is_probe_due(request: RecallRequest, state: session.Session, now_ms: int) -> bool:
    """Return whether the last probe is long enough ago; the start of a session never probes."""
    if request.prompt is None:
        return False
    return (
        not 0 <= now_ms - state.probed_at < PROBE_PAUSE_MS
    )  # a clock that was set back must not stop the probes


def _recall_from_store(request: RecallRequest, ask_server: "AskServer") -> HookContext:
    answer = ask_server(request.encode())
    return _recall_here(request) if answer is None else HookContext.decode(answer)


def _recall_here(request: RecallRequest) -> HookContext:
    from memories.hooks.recall import answer

    return answer(request)


def _record_shown(request: RecallRequest, context: HookContext, *, suspect_since: int) -> None:
    """Remember what the session has seen, and as whom, so that it is neither shown again nor
    captured.
    """
    facts: dict[str, object] = {session.SUSPECT_SINCE: suspect_since}
    if context.shown or context.marks:
        facts |= {
            session.SHOWN: context.shown,
            session.SAID: context.marks,
            session.GIVEN_TO: context.namespace,
        }
    session.note(request.home, request.session, **facts)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
