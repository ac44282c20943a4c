"""Handles one event: checks the switch, appends to the inbox, recalls, and starts the flusher."""

import binascii
import json
import os
import sys
import time

from memories.core.prompts import remove_frames
from memories.hooks import files, host_events, inbox, runs, session, switch
from memories.hooks.host_events import CHECK, HostEvent, render_response, working_folder
from memories.hooks.recall_strategy import (
    HookContext,
    RecallRequest,
    answer_by_server_or_here,
    probe,
    query_of,
    recall_in_time,
)

TYPE_CHECKING = False  # importing `typing` for this takes 3 ms
if TYPE_CHECKING:
    from collections.abc import Callable

    from memories.hooks.recall_strategy import AskServer

MAX_EVENT_BYTES = 8 * 1_048_576
MISSED = (
    "The memory was too slow for an earlier message, so nothing was recalled for that message. "
    "Search the memory if you need more context."
)
NOT_RECORDED = (
    "The memory can't record what this session is given ({reason}), so it may repeat memories, and "
    "nothing is captured. Tell the user."
)
NOT_SWITCHED = "Memory was not switched on or off, because that can't be recorded: {reason}."
# The inbox event recorded when a session switches memory on again. `session.RESUMED` is unrelated.
SWITCHED_ON = "resumed"
# -P keeps Python from importing a folder `memories` in the agent's working folder.
FLUSH = ("-P", "-m", "memories", "capture", "flush", "--quiet")
_RECALL_EVENTS = ("session-start", "user-prompt")
_COMPACTS_EACH_TURN = ("gemini",)  # hosts that send pre-compact on every turn
# Hosts that send the model a resumed session's earlier contexts again.
_RESEND_CONTEXTS = ("claude-code", "codex", "gemini")
# Hosts that get the session block with the first prompt. Gemini CLI would prepend the output of a
# session-start hook to the first prompt. As a result, it would read files that a memory mentions as
# @PATH, not recognize a command, and drop the prompt from a resumed session.
_BEGINS_WITH_PROMPT = ("gemini",)
# An identical event without a turn id is a repetition if it comes within this time.
_SAME_EVENT_SECONDS = 10.0
_PLUGIN_HAS_TOOLS = "MEMORY_PLUGIN_TOOLS"  # set by a plugin's hooks; see `Session.has_tools`
_RESERVED_SECONDS = 0.2  # time reserved for the scratchpad, in case the store does not respond


class HookCall:
    """One run of `memory hook`.

    Attributes:
        event: The event.
        host: The host.
        seconds: The time limit as written in the arguments; empty if there is none.
        namespace: The namespace, if one was named.
        capture: Whether the conversation may be captured.
        started_at: When the process started, in `time.monotonic` seconds.
        deadline: When the hook must have answered, in `time.monotonic` seconds.
        ask_server: Sends a recall request to a running server; None if there can't be one.
        start_server: Starts a server for a store; None if there can't be one.
        send_interim: Sends an interim response, which the host gets if the hook is late.
    """

    def __init__(self) -> None:
        """Create a run of `memory hook` without arguments."""
        self.event = self.host = self.seconds = ""
        self.namespace: str | None = None
        self.capture = False
        self.started_at = time.monotonic()
        self.deadline = self.started_at + 1
        self.ask_server: AskServer | None = None
        self.start_server: Callable[[str], None] | None = None
        self.send_interim: Callable[[bytes], None] | None = None


class Reply:
    """The reply to an event.

    Attributes:
        text: The text for the model; may be empty.
        context: The recalled context that is part of the text; None if nothing was recalled.
        error: Why the recall or the capture failed; empty if neither failed.
        probe: The request to probe the store with; None if no probe is needed.
        probe_seconds: How long the probe may take.
    """

    def __init__(self, text: str = "") -> None:
        """Create an empty reply."""
        self.text, self.error = text, ""
        self.context: HookContext | None = None
        self.probe: RecallRequest | None = None
        self.probe_seconds = 0.0


class Outcome:
    """The outcome of an event.

    Attributes:
        response: The response for the host, as bytes for standard output.
        failed: Whether handling the event failed; the failure is already recorded.
        follow_up: Does the remaining work, once the host has its response.
    """

    def __init__(
        self,
        response: bytes = b"",
        *,
        failed: bool = False,
        follow_up: "Callable[[], None]" = lambda: None,
    ) -> None:
        """Create an outcome."""
        self.response, self.failed, self.follow_up = response, failed, follow_up


def _follow_up(
    call: HookCall, folder: str | None, reply: Reply, result: str
) -> "Callable[[], None]":
    """Return a function that does the work after the response.

    The function records the run, starts a server if the settings ask for one, and probes the store.

    Args:
        call: The run of the hook.
        folder: The agent's working folder; None if it is unknown.
        reply: The reply.
        result: The outcome that `memory stats` counts.
    """
    ms = round((time.monotonic() - call.started_at) * 1000, 2)

    def follow_up() -> None:
        context = reply.context
        if context is None or not context.is_noted:
            agent_folder = working_folder() if folder is None else folder
            namespace, text = call.namespace, ""
            if context is not None:
                namespace, text = context.namespace, context.text
            runs.record_for_stats(
                call.event, agent_folder, namespace, text, agent=call.host, outcome=result, ms=ms
            )
        if context and context.wanted_store and call.start_server:
            call.start_server(context.wanted_store)
        if reply.probe:
            probe(reply.probe, call.ask_server, _answer_here, reply.probe_seconds)

    return follow_up


def handle(call: HookCall) -> Outcome:
    """Handle the event on standard input; errors are recorded and never reach the agent."""
    home = ""
    event = None
    try:
        event = HostEvent(call.host, _read_event())
        if CHECK in event.fields:
            return Outcome(_answer_check(call, event))
        call.host = event.host
        home = files.home()
        state = switch.read_state(event.folder, event.session_name)
        handler = EventHandler(call, event, home, state)
        reply = handler.reply()
        if reply is None:
            return Outcome(render_response(event, call.event, ""))
        runs.record_run(home, call.host, call.event, reply.error)
        response = render_response(event, call.event, reply.text)
    except BaseException as exc:  # noqa: BLE001 - doctor reports any error; the agent must not see it
        if not home:
            return record_failure(call, _describe(exc))
        runs.record_run(home, call.host, call.event, _describe(exc))
        folder = event.folder if event else None
        return Outcome(failed=True, follow_up=_follow_up(call, folder, Reply(), type(exc).__name__))
    if call.event not in _RECALL_EVENTS:
        return Outcome(response)  # there is no recall to record; the flusher records captures
    is_degraded = reply.context is not None and reply.context.error
    result = "degraded" if is_degraded else "ok"
    return Outcome(response, follow_up=_follow_up(call, event.folder, reply, result))


def _answer_check(call: HookCall, event: HostEvent) -> bytes:
    """Answer a test event that `memory connect` sent: recall, and report the result.

    Nothing is captured or recorded, and no memory is counted as read. If the settings ask for a
    server, this starts one, so that it is running when the agent's first session begins.
    """
    from memories.errors import MemoriesError

    report: dict[str, object] = {"is_on": True, "text": "", "problem": ""}
    try:
        home = files.home()
        state = switch.read_state(event.folder, event.session_name)
        report["is_on"] = state.on
        if state.on and call.event in _RECALL_EVENTS:
            caller = (home, event.folder, event.session_name, state.namespace or call.namespace)
            is_prompt = call.event == "user-prompt"
            prompt = query_of(event.prompt, event.typed_text) if is_prompt else None
            request = RecallRequest(caller, prompt, call.deadline, marks_read=False)
            context = answer_by_server_or_here(request, call.ask_server, _answer_here)
            report |= {"text": context.text, "problem": context.error}
            if context.wanted_store and call.start_server:
                call.start_server(context.wanted_store)
    except (MemoriesError, OSError, ValueError) as exc:
        report["problem"] = str(exc)
    return json.dumps({CHECK: report}).encode()


def record_failure(call: HookCall | None, reason: str) -> Outcome:
    """Record that handling an event failed, unless memory is off in the working folder."""
    try:
        home = files.home()
        if not switch.read_state(working_folder(), None).on:
            return Outcome(failed=True)
    except ValueError:
        return Outcome(failed=True)
    if call is None:
        runs.log(home, reason)
        return Outcome(failed=True)
    runs.record_run(home, call.host, call.event, reason)

    def follow_up() -> None:
        if call.event in _RECALL_EVENTS and call.start_server:
            _start_wanted_server(call.start_server)  # with a server, the next hooks are faster
        _follow_up(call, None, Reply(), "failed")()

    return Outcome(failed=True, follow_up=follow_up)


def _start_wanted_server(start_server: "Callable[[str], None]") -> None:
    """Start a server for the store, unless the setting `serve` is off."""
    from pathlib import Path

    from memories.config import load_config

    config = load_config(folder=Path(working_folder()), tell=lambda _: None)
    if config.serve != "off":
        start_server(config.store)


class EventHandler:
    """Handles one event, given the state of the session's switch."""

    def __init__(
        self, call: HookCall, event: HostEvent, home: str, state: switch.SwitchState
    ) -> None:
        """Create a handler."""
        self.call, self.event, self.home, self.state = call, event, home, state

    def reply(self) -> Reply | None:
        """Return the reply to the event; None if memory is off, or if the event is a subagent's."""
        if self.event.is_of_subagent:
            return None
        is_prompt = self.call.event == "user-prompt"
        has_identity = self.state.off_for_session and self.state.namespace is not None
        if self.call.event == "session-end" and (self.state.on or has_identity):
            # otherwise the MCP server would keep using the session's identity
            self._update_session({session.ENDED: True})
        if not self.state.on and not (self.state.off_for_session and is_prompt):
            return None
        if is_prompt:
            return self._reply_to_prompt()
        if self.call.event == "session-start":
            if self.event.host in _BEGINS_WITH_PROMPT:
                return Reply()
            is_resumed = self.event.text("source") == "resume"
            return self._reply_to_start(self._send_interim, is_resumed=is_resumed)
        if self.call.event == "pre-compact" and self.call.host not in _COMPACTS_EACH_TURN:
            self._update_session({session.RESET: True})
        if self.may_capture() and self.capture() and self.call.event != "answer":
            start_flusher(self.home)
        return Reply()

    def may_capture(self) -> bool:
        """Return whether both the hook's arguments and the switch allow capturing."""
        return self.call.capture and self.state.capture

    def _reply_to_start(self, announce: "Callable[[], None]", *, is_resumed: bool) -> Reply:
        source = self.event.text("source")
        if not self._claim_first("reply", source):
            # the session may have ended and resumed at the same moment
            self._update_session({session.ENDED: False})
            return Reply()
        fields = {
            **self._start_fields(),
            session.RESUMED: is_resumed and self.event.host in _RESEND_CONTEXTS,
            session.RESET: source in ("clear", "compact"),
        }
        if source == "fork":
            fields[session.FORKED_AT] = time.time_ns() // 1_000_000
        reason = self._update_session(fields)
        if self.may_capture() and inbox.size(self.home):
            start_flusher(self.home)  # events that an earlier session could not store
        reply = self._recall(self._request(self.state.namespace), announce=announce)
        if reason:
            reply.text = "\n".join(filter(None, (NOT_RECORDED.format(reason=reason), reply.text)))
        return reply

    def _start_fields(self) -> "dict[str, object]":
        return {
            session.FOLDER: self.event.folder,
            session.NAMED: self.call.namespace or "",
            session.ENDED: False,
            session.HAS_TOOLS: _PLUGIN_HAS_TOOLS in os.environ,
        }

    def _reply_to_prompt(self) -> Reply | None:
        prompt = self.event.prompt
        wish = switch.parse_wish(prompt)
        if wish is not None and (self.state.on or wish.on):
            return self._reply_to_wish(wish, prompt)
        if not self.state.on:
            return None
        if not prompt or host_events.is_command(prompt):
            return Reply()
        problem = files.try_write(self.capture) if self.may_capture() else ""
        if not self._claim_first("reply", prompt):
            return Reply()
        # If the store did not respond to an earlier hook of this session in time, report that once.
        record = session.read(self.home, self.event.session_name)
        is_past = 0 < record.suspect_from <= time.time_ns() // 1_000_000
        has_missed = is_past and record.suspect_from != record.miss_reported
        notice = MISSED if has_missed else ""

        def announce() -> None:
            """Send the session block and the notice about a missed recall, if there are any.

            `notice` includes the block once that has been built (below). This must run before
            anything slow, because the hook may be killed while it waits.
            """
            if has_missed:
                self._update_session({session.MISS_REPORTED: record.suspect_from})
            self._send_interim(render_response(self.event, self.call.event, notice))

        needs_block = record.ended or not record.has_context
        if needs_block and self.event.host in _BEGINS_WITH_PROMPT:
            start = self._reply_to_start(announce, is_resumed=record.ended)
            notice = "\n".join(filter(None, (notice, start.text)))
        request = self._request(self.state.namespace, query_of(prompt, self.event.typed_text))
        reply = self._recall(request, announce=announce)
        reply.text = "\n".join(filter(None, (notice, reply.text)))
        reply.error = reply.error or problem
        return reply

    def _reply_to_wish(self, wish: switch.Wish, prompt: str) -> Reply | None:
        if not self._claim_first("reply", prompt):
            return Reply() if self.state.on else None
        reason = ""
        if self.call.capture and self.state.off_for_session:
            # The flusher must skip the transcript up to here.
            reason = files.try_write(lambda: self.capture(SWITCHED_ON))
        if not wish.on:
            reason = reason or self._update_session({session.OFF: True})
            if reason:
                return Reply(NOT_SWITCHED.format(reason=reason))
            return Reply(
                "Memory is off for this session: nothing is recalled or captured. "
                "The user can say: memory on."
            )
        fields = {**self._start_fields(), session.OFF: False, session.RESET: True}
        if wish.namespace is not None:
            fields[session.NAMESPACE] = wish.namespace
        reason = reason or self._update_session(fields)
        if reason:
            return Reply(NOT_SWITCHED.format(reason=reason))
        request = self._request(wish.namespace or self.state.namespace)
        request.marks_read = False  # a server would count it as the start of a session
        return self._recall(request, "Memory is on.")

    def _send_interim(self, answer: bytes = b"") -> None:
        """Send the response that the host gets if this hook fails later; see `hooks.hook`."""
        if self.call.send_interim:
            self.call.send_interim(answer)

    def _update_session(self, fields: "dict[str, object]") -> str:
        """Append fields to the session's file; return why they can't be written, else ""."""
        return session.try_append(self.home, self.event.session_name, **fields)

    def _request(self, namespace: str | None, prompt: str | None = None) -> RecallRequest:
        caller = (
            self.home,
            self.event.folder,
            self.event.session_name,
            namespace or self.call.namespace,
        )
        store_deadline = self.call.deadline - _RESERVED_SECONDS
        return RecallRequest(caller, prompt, store_deadline, started_at=self.call.started_at)

    def _recall(
        self,
        request: RecallRequest,
        message: str = "",
        announce: "Callable[[], None] | None" = None,
    ) -> Reply:
        """Return a reply with our message, if any, followed by the recalled context.

        If there is a message, the event succeeds even if the recall fails.
        """
        reply = Reply()
        namespace = request.namespace
        seconds = request.seconds()
        try:
            recall = recall_in_time(request, self.call.ask_server, _answer_here, announce)
        except Exception as exc:
            if not message:
                raise
            reply.error = _describe(exc)
        else:
            reply.context = recall.context
            reply.error = recall.context.error
            reply.text = recall.context.text
            namespace = recall.context.namespace
            if recall.probe_store:
                reply.probe, reply.probe_seconds = request, seconds
        if message and namespace:
            message = f'{message} In this session you are "{namespace}".'
        reply.text = "\n".join(filter(None, (message, reply.text)))
        return reply

    def capture(self, name: str = "") -> bool:
        """Append the useful part of the event, without private text, to the inbox.

        Args:
            name: The name of the inbox event; by default, the name of this event.

        Returns:
            Whether this hook appended the event; False if another hook has captured it.
        """
        name = name or self.call.event
        texts: dict[str, object] = {}
        if name == "user-prompt":
            prompt = host_events.remove_private(self.event.prompt)
            texts["prompt"] = prompt[: inbox.MAX_TEXT]
            if typed := host_events.remove_private(self.event.typed_text):
                texts["typed"] = typed[: inbox.MAX_TEXT]
        elif name in ("answer", "stop"):
            answer = remove_frames(self.event.answer)
            texts["answer"] = host_events.remove_private(answer)[: inbox.MAX_TEXT]
        if not self._claim_first("capture", "".join(map(str, texts.values())), name):
            return False
        event = self.event
        transcript = event.text("transcript_path")
        try:
            size = os.stat(transcript).st_size
        except (OSError, ValueError):
            size = 0
        named = self.state.namespace or self.call.namespace
        fields: dict[str, object] = {
            "id": os.urandom(8).hex(),
            "at": int(time.time() * 1000),
            "host": event.host,
            "event": name,
            "session": event.session_id,
            "folder": event.folder,
            "namespace": named or os.environ.get("MEMORY_NAMESPACE"),
            "transcript": transcript,
            "turn": event.turn_id,
            "source": event.source,
            "size": size,
            "store": store_mark(),
        }
        if self.call.event != "user-prompt":  # a prompt's duration is recorded with its recall
            fields["ms"] = round((time.monotonic() - self.call.started_at) * 1000, 2)
        inbox.add(self.home, event.session_name, fields | texts)
        return True

    def _claim_first(self, action: str, text: str = "", name: str = "") -> bool:
        """Claim an action for the event; return False if another hook has already performed it.

        A host runs the hooks of the user and of the project at the same time. Cursor also runs the
        hooks of other hosts. Without a turn id, only the start and the end of a session are
        recognized, since the user may type the same prompt again.
        """
        if not self.event.turn_id and self.call.event not in ("session-start", "session-end"):
            return True
        checksum = binascii.crc32(text.encode("utf-8", "replace"))
        key = f"{action} {name or self.call.event} {self.event.turn_id} {checksum:08x}"
        within = None if self.event.turn_id else _SAME_EVENT_SECONDS
        try:
            is_end = self.call.event == "session-end"
            return session.claim(
                self.home, self.event.session_name, key, within=within, is_end=is_end
            )
        except files.UnsafeFolder:
            raise
        except OSError:
            return True  # performing an action twice is better than not at all


def _answer_here(request: RecallRequest) -> HookContext:
    from memories.hooks.model_context import build_hook_context

    return build_hook_context(request)


def store_mark() -> str:
    """Return a hash of the store URL in `MEMORY_STORE`; empty if the variable is not set."""
    url = os.environ.get("MEMORY_STORE")
    if not url:
        return ""
    import hashlib

    return hashlib.blake2b(url.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def start_flusher(home: str) -> None:
    """Start a process that stores the inbox and outlives the host.

    If another flusher is already running, it stores the new events too, and the new process exits.
    """
    command = [sys.executable, *FLUSH]
    if not hasattr(os, "fork"):
        _start_detached(command, home)
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


def _start_detached(command: list[str], folder: str) -> None:
    """Start a process that outlives this one, on systems without `fork`."""
    import subprocess

    flags = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    flags |= getattr(subprocess, "DETACHED_PROCESS", 0)
    null = subprocess.DEVNULL
    subprocess.Popen(  # noqa: S603
        command, cwd=folder, stdin=null, stdout=null, stderr=null, creationflags=flags
    )


def _read_event() -> "dict[str, object]":
    """Read an event from standard input.

    Even an oversized event is read to its end, so that the host's pipe does not break.

    Raises:
        ValueError: The event is too long, or is not a JSON object.
    """
    parts, size = [], 0
    while part := os.read(0, 1_048_576):
        size += len(part)
        if size <= MAX_EVENT_BYTES:
            parts.append(part)
    if size > MAX_EVENT_BYTES:
        raise ValueError(f"the event has {size} bytes; the limit is {MAX_EVENT_BYTES}")
    fields = json.loads(b"".join(parts))
    if not isinstance(fields, dict):
        raise ValueError("the event is not a JSON object")  # noqa: TRY004 - not a caller's mistake
    return fields


def _describe(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}"
