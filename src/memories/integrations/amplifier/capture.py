"""The hooks that capture what is said: they append to the inbox, as the command's hooks do, and change nothing.

What the user said comes with `prompt:submit`; what a tool returned with `tool:post`. No event has the agent's answer
(`prompt:complete` has 200 characters of it), so that is taken from the context manager at `orchestrator:complete`.
"""

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from memories.hooks import echo, events, inbox, place, prompts, session, switch
from memories.integrations.amplifier.session import Mounted, Settings
from memories.integrations.amplifier.tool import NAME

if TYPE_CHECKING:
    from amplifier_core import HookResult

_log = logging.getLogger(__name__)
HOST = "amplifier"
PRIORITY = 900  # after hooks that deny or redact what is said; lower ones run first
_LEAST = 40  # characters of a tool's result that may tell something


class Capture:
    """What one session says, appended to the inbox. It fails no session: what went wrong is one line in the log."""

    def __init__(self, coordinator: Any, mounted: Mounted, settings: Settings) -> None:
        """Prepare.

        Args:
            coordinator: The session's coordinator.
            mounted: Whose memory it is.
            settings: Those of its module; a session waits `delay_seconds` for an event to be written.
        """
        self._coordinator, self._mounted, self._settings = coordinator, mounted, settings
        self._name = place.name_of(HOST, coordinator.session_id)
        self._heard = 0  # messages of the context that were looked at

    def register(self) -> list[Callable[[], None]]:
        """Register the hooks; return what unregisters each."""
        handlers = {
            "prompt:submit": self._prompt,
            "tool:post": self._tool,
            "orchestrator:complete": self._answer,
            "session:end": self._end,
        }
        return [
            self._coordinator.hooks.register(event, handler, priority=PRIORITY, name=f"memories:{event}")
            for event, handler in handlers.items()
        ]

    async def _prompt(self, _: str, data: dict[str, Any]) -> "HookResult":
        self._heard = len(await self._messages())  # what a session that goes on has from before is no news
        said = prompts.cleaned(_text(data.get("prompt")))
        return await self._append("user-prompt", prompt=said) if said else _continue()

    async def _tool(self, _: str, data: dict[str, Any]) -> "HookResult":
        output = _output(data.get("result") or data.get("tool_response"))
        if data.get("tool_name") == NAME:
            return _continue()  # it is remembered already
        return await self._append("tool", output=output) if len(output) >= _LEAST else _continue()

    async def _answer(self, _: str, __: dict[str, Any]) -> "HookResult":
        answer = await self._said()
        return await self._append("stop", answer=answer) if answer else _continue()

    async def _end(self, _: str, __: dict[str, Any]) -> "HookResult":
        result = await self._append("session-end")
        await self._done(_start_flusher)
        return result

    async def _said(self) -> str:
        """Return what the agent said since it was last looked at."""
        messages = await self._messages()
        new, self._heard = messages[min(self._heard, len(messages)) :], len(messages)
        said = (_output(message.get("content")) for message in new if message.get("role") == "assistant")
        return "\n\n".join(filter(None, said))

    async def _messages(self) -> list[dict[str, Any]]:
        context = self._coordinator.get("context")
        found: list[dict[str, Any]] = [] if context is None else await context.get_messages()
        return found

    async def _append(self, event: str, **texts: str) -> "HookResult":
        """Append an event to the inbox, unless memory is switched off here."""

        def append(home: str) -> None:
            state = switch.state(str(self._mounted.folder), self._name, os.environ)
            if not (self._mounted.is_on(self._settings) and state.on and state.capture):
                return
            _note(home, self._name, self._mounted)
            told = {name: prompts.public(text)[: inbox.MAX_TEXT] for name, text in texts.items()}
            inbox.add(home, self._name, self._event(event) | told)

        return await self._done(append)

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
            "store": events.store_mark(os.environ),
        }

    async def _done(self, work: Callable[[str], None]) -> "HookResult":
        """Do something with the home off the event loop; the session waits for it a while, and goes on in any case."""
        running = asyncio.ensure_future(asyncio.to_thread(lambda: work(str(self._mounted.config.home))))
        running.add_done_callback(_tell)
        await asyncio.wait([running], timeout=self._settings.delay_seconds)
        return _continue()


def _tell(done: "asyncio.Future[None]") -> None:
    if not done.cancelled() and (failed := done.exception()) is not None:
        _log.warning("an event was not captured: %s: %s", type(failed).__name__, failed)


def _continue() -> "HookResult":
    from amplifier_core import HookResult

    return HookResult(action="continue")


def _note(home: str, name: str, mounted: Mounted) -> None:
    """Write down what the session was given, so that it is not captured again."""
    given, mounted.given = mounted.given, {}
    if given:
        said = sorted({mark for text in given.values() for mark in echo.marks(text)})
        session.note(home, name, **{session.SHOWN: sorted(given), session.SAID: said})


def _start_flusher(home: str) -> None:
    """Start what stores the inbox, as a process that outlives this one."""
    command, null = [sys.executable, *events.FLUSH], subprocess.DEVNULL
    subprocess.Popen(command, stdin=null, stdout=null, stderr=null, cwd=home, start_new_session=True)  # noqa: S603 - our own


def _text(found: object) -> str:
    return found if isinstance(found, str) else ""


def _output(found: object) -> str:
    """Return the text of a result, or of a content that is a text or a list of blocks."""
    if isinstance(found, str):
        return found
    if isinstance(found, list):
        return "\n".join(filter(None, map(_output, found)))
    if isinstance(found, Mapping):
        kind = found.get("type", "text")
        named = [found[name] for name in ("text", "output", "stdout") if isinstance(found.get(name), str)]
        return named[0] if named and kind == "text" else ""
    return _output(getattr(found, "output", None) or getattr(found, "text", None) or "")
