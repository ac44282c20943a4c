"""Hooks that capture a conversation. Like the command's hooks, they append to the inbox and change
nothing else.

The event `prompt:submit` contains the user's text, and `tool:post` contains a tool's result. No
event contains the agent's complete answer (`prompt:complete` contains 200 characters), so `Capture`
reads it from the context manager at `orchestrator:complete`.
"""

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from memories.core.prompts import clean_prompt
from memories.hooks import files, handler, host_events, inbox, sentences, session, switch
from memories.integrations.amplifier.session import ModuleSettings, Mounted
from memories.integrations.amplifier.tool import NAME

if TYPE_CHECKING:
    from amplifier_core import HookResult

_log = logging.getLogger(__name__)
HOST = "amplifier"
PRIORITY = 900  # lower numbers run first, so hooks that deny or redact texts run before ours
_MIN_OUTPUT = 40  # minimum length of a tool result that is captured, in characters


class Capture:
    """Appends the texts of one session to the inbox. An error is only logged, so the session
    continues.
    """

    def __init__(self, coordinator: Any, mounted: Mounted, settings: ModuleSettings) -> None:
        """Initialize without registering any hooks.

        Args:
            coordinator: The session's coordinator.
            mounted: The session's memory.
            settings: The module's settings; a session waits up to `delay_seconds` for an event to
                be written.
        """
        self._coordinator, self._mounted, self._settings = coordinator, mounted, settings
        self._name = files.session_name(HOST, coordinator.session_id)
        self._seen = 0  # number of context messages already read

    def register(self) -> list[Callable[[], None]]:
        """Register the hooks; return the functions that unregister them."""
        handlers = {
            "prompt:submit": self._prompt,
            "tool:post": self._tool,
            "orchestrator:complete": self._answer,
            "session:end": self._end,
        }
        unregister = []
        for event, handle in handlers.items():
            name = f"memories:{event}"
            hooks = self._coordinator.hooks
            unregister.append(hooks.register(event, handle, priority=PRIORITY, name=name))
        return unregister

    async def _prompt(self, _: str, data: dict[str, Any]) -> "HookResult":
        self._seen = len(await self._messages())  # a resumed session contains old messages
        prompt = data.get("prompt")
        text = clean_prompt(prompt if isinstance(prompt, str) else "")
        if not text:
            return _continue()
        return await self._append("user-prompt", prompt=text)

    async def _tool(self, _: str, data: dict[str, Any]) -> "HookResult":
        output = _output(data.get("result") or data.get("tool_response"))
        is_ours = data.get("tool_name") == NAME  # captured already
        if is_ours or len(output) < _MIN_OUTPUT:
            return _continue()
        return await self._append("tool", output=output)

    async def _answer(self, _: str, __: dict[str, Any]) -> "HookResult":
        messages = await self._messages()
        new, self._seen = messages[self._seen :], len(messages)
        answers = [message for message in new if message.get("role") == "assistant"]
        texts = [_output(message.get("content")) for message in answers]
        answer = "\n\n".join(filter(None, texts))
        if not answer:
            return _continue()
        return await self._append("stop", answer=answer)

    async def _end(self, _: str, __: dict[str, Any]) -> "HookResult":
        result = await self._append("session-end")
        await self._run(_start_flusher)
        return result

    async def _messages(self) -> list[dict[str, Any]]:
        context = self._coordinator.get("context")
        messages: list[dict[str, Any]] = [] if context is None else await context.get_messages()
        return messages

    async def _append(self, event: str, **texts: str) -> "HookResult":
        """Append an event to the inbox, unless memory is off in this session."""

        def append(home: str) -> None:
            state = switch.read_state(str(self._mounted.folder), self._name)
            if not (self._mounted.is_on(self._settings) and state.on and state.capture):
                return
            _record_shown(home, self._name, self._mounted)
            row = self._event(event)
            for name, text in texts.items():
                row[name] = host_events.remove_private(text)[: inbox.MAX_TEXT]
            inbox.add(home, self._name, row)

        return await self._run(append)

    def _event(self, event: str) -> dict[str, object]:
        return {
            "id": os.urandom(8).hex(),
            "at": time.time_ns() // 1_000_000,
            "host": HOST,
            "event": event,
            "session": self._coordinator.session_id,
            "folder": str(self._mounted.folder),
            "namespace": self._mounted.identity,
            "transcript": "",
            "turn": "",
            "source": "",
            "store": handler.store_mark(),
        }

    async def _run(self, work: Callable[[str], None]) -> "HookResult":
        """Call a function with the home folder, in a thread. The session waits briefly, then
        continues even if the function is still running.
        """
        running = asyncio.ensure_future(asyncio.to_thread(work, str(self._mounted.config.home)))
        running.add_done_callback(_log_failure)
        await asyncio.wait([running], timeout=self._settings.delay_seconds)
        return _continue()


def _log_failure(future: "asyncio.Future[None]") -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.warning("an event was not captured: %s: %s", type(error).__name__, error)


def _continue() -> "HookResult":
    from amplifier_core import HookResult

    return HookResult(action="continue")


def _record_shown(home: str, name: str, mounted: Mounted) -> None:
    """Record the memories that the session was shown, so that they are not captured again."""
    texts, mounted.shown_texts = mounted.shown_texts, {}
    if texts:
        marks: set[str] = set()
        for text in texts.values():
            marks |= set(sentences.hash_sentences(text))
        session.append(
            home, name, **{session.SHOWN: sorted(texts), session.SENTENCES: sorted(marks)}
        )


def _start_flusher(home: str) -> None:
    """Start the process that stores the inbox; it outlives this process."""
    command, null = [sys.executable, *handler.FLUSH], subprocess.DEVNULL
    subprocess.Popen(  # noqa: S603
        command, stdin=null, stdout=null, stderr=null, cwd=home, start_new_session=True
    )


def _output(content: object) -> str:
    """Return the text in a tool's result, or in content that is a string or a list of blocks."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, map(_output, content)))
    if isinstance(content, Mapping):
        if content.get("type", "text") != "text":
            return ""
        for name in ("text", "output", "stdout"):
            if isinstance(content.get(name), str):
                return str(content[name])
        return ""
    return _output(getattr(content, "output", None) or getattr(content, "text", None) or "")
