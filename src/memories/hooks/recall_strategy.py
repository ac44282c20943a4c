"""Recall strategy of a hook: ask the server, else search in this process, else use the scratchpad.

A session waits for an unresponsive store only once. Before a hook asks the store, it records in the
session's file that the store is suspect from the hook's deadline on. Once the store has responded,
the hook clears that entry; a hook that is killed while waiting leaves the entry behind. While the
store is suspect, the session's hooks answer from the scratchpad, and probe the store after the host
has received their response.

Requests and contexts travel to the server and back as JSON.
"""

import json
import time

from memories.core.prompts import LONG_PASTE
from memories.hooks import session

TYPE_CHECKING = False  # importing `typing` for this takes 3 ms
if TYPE_CHECKING:
    from collections.abc import Callable

    # The arguments are the request, how long to wait for the response to begin, and how long after
    # that.
    AskServer = Callable[[bytes, float, float], bytes | None]
    AnswerHere = Callable[["RecallRequest"], "HookContext"]

NOT_ASKED = "the store did not answer an earlier hook of this session"
PROBE_PAUSE_MS = 3_000
# After this time, the store is asked again even if no probe has succeeded.
SUSPECT_FOR_MS = 600_000
_MIN_SECONDS = 0.05
_SERVER_SECONDS = 0.1, 0.7  # minimum and maximum wait for a server to begin its response
_OWN_SECONDS = 1.0  # the time that remains for this process if the server hangs
# Part of each error that reports a slow store. A server sends errors as text, so they have no type.
_TOO_SLOW = "did not answer"
# The value of `MAX_QUERY_CHARACTERS` in `memories.guard.validate`, which is slow to import.
_MAX_QUERY = 4_096


def query_of(prompt: str, typed: str = "") -> str:
    """Return a prompt as a query: no longer than allowed, without forbidden characters.

    If a long text was pasted, only the typed part counts. If that is still too long, its middle is
    left out, since a question stands before or after other text.

    Args:
        prompt: The prompt.
        typed: The part that the user typed; empty if nothing is known to be pasted.
    """
    if typed and len(prompt) - len(typed) >= LONG_PASTE:
        prompt = typed
    if len(prompt) > _MAX_QUERY:
        prompt = f"{prompt[: _MAX_QUERY // 2 - 1]}\n{prompt[-_MAX_QUERY // 2 :]}"
    return prompt.replace("\0", " ").encode("utf-8", "replace").decode()


class RecallRequest:
    """A request to recall memories for a session or a prompt, by a deadline.

    Attributes:
        home: The home folder.
        folder: The agent's working folder.
        session: The session, in the form that `files.session_name` returns.
        namespace: The namespace to use; None for the configured one.
        prompt: The user's prompt; None to get the block for the start of a session.
        store_deadline: When the store must have responded, in `time.monotonic` seconds; None to
            leave the store alone and answer from the scratchpad.
        marks_read: Whether the memories given to the model are counted as read.
        started_at: When the hook's process started, in `time.monotonic` seconds.
    """

    def __init__(
        self,
        caller: tuple[str, str, str, str | None],
        prompt: str | None,
        store_deadline: float | None,
        *,
        marks_read: bool = True,
        started_at: float | None = None,
    ) -> None:
        """Create a request; `caller` contains its home, folder, session and namespace."""
        self.home, self.folder, self.session, self.namespace = caller
        self.prompt, self.store_deadline, self.marks_read = (
            prompt,
            store_deadline,
            marks_read,
        )
        self.started_at = time.monotonic() if started_at is None else started_at

    @property
    def caller(self) -> tuple[str, str, str, str | None]:
        """The home, the folder, the session and the namespace."""
        return self.home, self.folder, self.session, self.namespace

    @property
    def asks_store(self) -> bool:
        """Whether the store may be asked."""
        return self.store_deadline is not None

    def seconds(self) -> float:
        """Return how long the store may still take; 0 if it must not be queried."""
        if self.store_deadline is None:
            return 0.0
        return max(_MIN_SECONDS, self.store_deadline - time.monotonic())

    def encode(self) -> bytes:
        """Return the request as JSON, with times relative to now."""
        age = time.monotonic() - self.started_at
        return json.dumps([self.caller, self.prompt, self.seconds(), self.marks_read, age]).encode()

    @classmethod
    def decode(cls, data: bytes) -> "RecallRequest":
        """Read the output of `encode`."""
        caller, prompt, seconds, marks_read, age = json.loads(data)
        now = time.monotonic()
        store_deadline = now + seconds if seconds else None
        return cls(
            tuple(caller),
            prompt,
            store_deadline,
            marks_read=marks_read,
            started_at=now - age,
        )


class HookContext:
    """The text that a hook gives a model, and where it comes from.

    Attributes:
        text: The text; may be empty.
        namespace: The namespace whose memories the text shows.
        shown: The ids of the memories and turns in the text.
        sentences: The hashes of the text's sentences; see `sentences.hash_sentences`.
        error: Why the store did not respond, or why the text can't be recorded as shown; else
            empty. If the store did not respond, the text is from the scratchpad or lacks turns.
        is_noted: Whether the server has already recorded the run for `memory stats`.
        wanted_store: The URL of the store to start a server for; empty if the settings ask for no
            server.
    """

    def __init__(self, text: str, namespace: str) -> None:
        """Create a context without memories."""
        self.text, self.namespace, self.error, self.wanted_store = text, namespace, "", ""
        self.shown: list[str] = []
        self.sentences: list[str] = []
        self.is_noted = False

    def encode(self) -> str:
        """Return the context as JSON."""
        return json.dumps(vars(self))

    @classmethod
    def decode(cls, data: bytes) -> "HookContext":
        """Read the output of `encode`."""
        context = cls("", "")
        vars(context).update(json.loads(data))
        return context


class Recall:
    """The context for the model, and whether to probe the store after the host has received it."""

    def __init__(self, context: HookContext, *, probe_store: bool = False) -> None:
        """Store the context, and whether to probe."""
        self.context, self.probe_store = context, probe_store


def recall_in_time(
    request: RecallRequest,
    ask_server: "AskServer | None",
    answer_here: "AnswerHere",
    announce: "Callable[[], None] | None" = None,
) -> Recall:
    """Return the context for one event from a host.

    Args:
        request: The session, the prompt if there is one, and the deadline.
        ask_server: Sends the request to a running server; returns None if there is none or it does
            not respond.
        answer_here: Answers the request in this process.
        announce: Sends an interim response. It is called before anything slow, but after the store
            has been recorded as suspect.

    Raises:
        MemoriesError: A setting is wrong, or a session starts without a reachable store and without
            a scratchpad.
    """
    state = session.read(request.home, request.session)
    now = _now_ms()
    was_suspect = is_suspect(state, now)
    if not was_suspect:
        # Takes effect at the deadline, unless this hook clears the entry before that.
        suspect_from = now + int(request.seconds() * 1000)
        session.try_append(request.home, request.session, **{session.SUSPECT_FROM: suspect_from})
    if announce:
        announce()
    if was_suspect:
        scratchpad_request = RecallRequest(request.caller, request.prompt, None)
        context = answer_by_server_or_here(
            scratchpad_request, ask_server, answer_here, _wait_for_server(request.seconds())
        )
        _record_shown(request, context, suspect_from=None)  # a probe may have just cleared it
        return Recall(context, probe_store=is_probe_due(request, state, now))

    context = answer_by_server_or_here(request, ask_server, answer_here)
    _record_shown(request, context, suspect_from=now if context.error else 0)
    return Recall(context)


def probe(
    request: RecallRequest,
    ask_server: "AskServer | None",
    answer_here: "AnswerHere",
    seconds: float,
) -> None:
    """Ask the store again, after the host has received its response.

    If the store responds to the probe, the session's next hook uses the store again.
    """
    session.append(request.home, request.session, **{session.PROBED_AT: _now_ms()})
    trial = RecallRequest(
        request.caller, request.prompt, time.monotonic() + seconds, marks_read=False
    )
    if not answer_by_server_or_here(trial, ask_server, answer_here).error:
        session.append(request.home, request.session, **{session.SUSPECT_FROM: 0})


def is_suspect(state: session.Session, now_ms: int) -> bool:
    """Return whether the store recently failed to respond to a hook of this session.

    That hook got no response in time, or was killed while waiting.
    """
    return state.suspect_from <= now_ms < state.suspect_from + SUSPECT_FOR_MS


def is_probe_due(request: RecallRequest, state: session.Session, now_ms: int) -> bool:
    """Return whether it is time for a probe; a hook at the start of a session never probes."""
    if request.prompt is None:
        return False
    elapsed_ms = now_ms - state.probed_at
    return elapsed_ms < 0 or elapsed_ms >= PROBE_PAUSE_MS  # negative if the clock was set back


def answer_by_server_or_here(
    request: RecallRequest,
    ask_server: "AskServer | None",
    answer_here: "AnswerHere",
    server_seconds: float | None = None,
) -> HookContext:
    """Return the context from a running server if there is one, else from this process.

    Args:
        request: The request.
        ask_server: Sends the request to a running server.
        answer_here: Answers the request in this process.
        server_seconds: How long the server may take to begin its response, and then to finish it.
            By default, this depends on how long the store may take.
    """
    answer = None
    if ask_server is not None:
        begin = _wait_for_server(request.seconds()) if server_seconds is None else server_seconds
        answer = ask_server(request.encode(), begin, server_seconds or request.seconds())
    return answer_here(request) if answer is None else HookContext.decode(answer)


def _wait_for_server(seconds: float) -> float:
    """Return how long a hook with this much time left may wait for a server to begin its response.

    On a busy machine, a server takes longer to begin, but is still much faster than the hook.
    """
    return min(max(seconds - _OWN_SECONDS, _SERVER_SECONDS[0]), _SERVER_SECONDS[1])


def _record_shown(
    request: RecallRequest, context: HookContext, *, suspect_from: int | None
) -> None:
    """Record which texts were shown, and their namespace.

    Also record when the store becomes suspect, unless `suspect_from` is None. Recorded texts are
    neither shown nor captured again. If they can't be recorded, the context is given anyway, with
    the reason in its `error`.
    """
    fields: dict[str, object] = {}
    if suspect_from is not None:
        fields[session.SUSPECT_FROM] = suspect_from
        if context.error and _TOO_SLOW not in context.error:
            # The next prompt should report a failure only if the store was too slow.
            fields[session.MISS_REPORTED] = suspect_from
    if context.shown or context.sentences:
        fields[session.SHOWN] = context.shown
        fields[session.SENTENCES] = context.sentences
        fields[session.GIVEN_TO] = context.namespace
    problem = session.try_append(request.home, request.session, **fields)
    if problem:
        context.error = context.error or f"what was shown can't be recorded: {problem}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
