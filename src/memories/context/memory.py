"""`AgentMemory`: the flows of the conversation specification: start, append, remember, build a
context.
"""

import logging
import time
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from memories.config import load_config
from memories.context.backend import MCPError, UnsupportedEndpoint
from memories.context.context import ContextBuilder
from memories.context.gateway import MemoryGateway, new_message_id
from memories.context.policy import MEMORY_TYPES, MemoryPolicy, window_key
from memories.core import logs
from memories.core.times import to_iso
from memories.settings import Config

ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.5
COLLECTIONS = ["history", "memory"]
_PROBE = "health"  # the conversation and the window that a health check looks at
_log = logging.getLogger(__name__)


class Offered(NamedTuple):
    """What became of a memory that was offered: its id, or why it is not stored."""

    id: str | None
    reason: str = ""


class AgentMemory:
    """What an agent needs around each message. A failing memory is logged and never stops the
    agent.

    memory = AgentMemory.start()
    prompt = memory.prompt("standup", message)
    memory.append("standup", "user", message)
    memory.append("standup", "assistant", answer)
    memory.remember("Ann prefers Fridays", "preference", 0.9, conversation_id="standup")
    """

    def __init__(
        self,
        gateway: MemoryGateway,
        builder: ContextBuilder,
        policy: MemoryPolicy,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Put the parts together; `start` makes them from the settings.

        Args:
            gateway: Stores and finds.
            builder: Builds contexts.
            policy: Decides what is stored. It should count with the gateway's `count_window`.
            clock: Returns the current time, aware.
        """
        self.gateway, self.builder, self.policy = gateway, builder, policy
        self._clock = clock

    @classmethod
    def start(
        cls, config: Config | None = None, *, pause: Callable[[float], None] = time.sleep
    ) -> Self:
        """Open the memory that the settings name, and make sure that it answers.

        If nobody answers it tries again, five times in all, with pauses that double. If `LOG_LEVEL`
        is set, it logs to standard error.

        Args:
            config: The settings. [default: the environment and the files]
            pause: Waits for that many seconds.

        Raises:
            ConnectionError: Nobody answered.
            MCPError: The collections can't be made.
            ConfigError: A setting is not acceptable.
        """
        config = config or load_config()
        if config.sources["log_level"] != "default":
            logs.enable(config.log_level)
        gateway = MemoryGateway(config.mcp_endpoint)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                gateway.ensure_collections(COLLECTIONS)
                break
            except (ConnectionError, MCPError) as exc:
                if (
                    attempt == ATTEMPTS
                    or not isinstance(exc, ConnectionError)
                    or isinstance(exc, UnsupportedEndpoint)
                ):
                    gateway.close()
                    raise
                gateway.settle()  # while a late attempt still runs, the next one would fail at once
                pause(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
        logs.event(
            _log, logging.INFO, "ready", endpoint=config.mcp_endpoint, collections=COLLECTIONS
        )
        policy = MemoryPolicy(
            config.memory_confidence_min, config.memory_max_per_window, gateway.count_window
        )
        return cls(gateway, ContextBuilder.from_config(gateway, config), policy)

    def append(
        self,
        conversation_id: str,
        role: str,
        text: str,
        *,
        ts: str | None = None,
        message_id: str | None = None,
        channel: str | None = None,
    ) -> str | None:
        """Append a message to its conversation; what can't be stored now waits in the gateway's
        queue.

        Args:
            conversation_id: The conversation.
            role: `user`, `assistant` or `system`.
            text: What was said. Only the first 1,000,000 characters are kept, of a Chroma server
                100,000, and what is not text (a NUL, half a character) becomes U+FFFD; both are
                logged.
            ts: When it was said. [default: now]
            message_id: Its id in the conversation: a second turn with the same one is not stored
                again.
            channel: Where it came from.

        Returns:
            The turn's id; None if it was queued or is not acceptable, and the log says which.
        """
        try:
            at, named = ts or to_iso(self._clock()), message_id or new_message_id()
            said = _storable(text, self.gateway.most_characters)
            return self.gateway.append_history(
                conversation_id, role, said, 0, at, named, channel, long=True
            )
        except Exception as exc:  # noqa: BLE001 - whatever it is, the agent goes on
            queued = getattr(exc, "queued", False)
            _failed("turn not stored", exc, conversation_id=conversation_id, queued=queued)
            return None

    def remember(  # noqa: PLR0913 - the fields of a memory
        self,
        text: str,
        memory_type: str,
        confidence: float,
        *,
        conversation_id: str | None = None,
        entities: str | None = None,
        source: str | None = None,
        tags: str | None = None,
        window: str | None = None,
    ) -> str | None:
        """Store a memory, if the policy allows it; `offer` also tells why one is not stored.

        Args:
            text: What to remember.
            memory_type: `preference`, `fact`, `project` or `decision`.
            confidence: How sure the agent is, 0 to 1.
            conversation_id: The conversation that it comes from.
            entities: People and things it is about, separated by commas.
            source: `chat`, `tool` or `import`.
            tags: Words, separated by commas.
            window: The window that it counts in. [default: the conversation and the hour]

        Returns:
            The memory's id; None if it is not stored, and the log says why.
        """
        given = {"entities": entities, "source": source, "tags": tags, "window": window}
        return self.offer(
            text, memory_type, confidence, conversation_id=conversation_id, **given
        ).id

    def offer(  # noqa: PLR0913 - the fields of a memory
        self,
        text: str,
        memory_type: str,
        confidence: float,
        *,
        conversation_id: str | None = None,
        entities: str | None = None,
        source: str | None = None,
        tags: str | None = None,
        window: str | None = None,
    ) -> Offered:
        """Do what `remember` does, and return why a memory is not stored: a text of more than 2,000
        characters, say.

        It raises nothing either.
        """
        if not self.policy.should_store(memory_type, confidence):
            logs.event(
                _log, logging.INFO, "memory rejected", type=memory_type, confidence=confidence
            )
            known = ", ".join(MEMORY_TYPES)
            return Offered(
                None,
                f"the policy stores {known} with a confidence of {self.policy.min_confidence:g} or more",
            )
        now = self._clock()
        try:
            window = window or window_key(conversation_id, now)
            with self.gateway.hold_windows():
                if not self.policy.enforce_rate_limit(window):
                    logs.event(
                        _log, logging.INFO, "memory rejected: the window is full", window=window
                    )
                    return Offered(
                        None,
                        f"the policy stores {self.policy.max_per_window} memories in a window at most",
                    )
                stored = self.gateway.write_memory(
                    text, memory_type, confidence, to_iso(now),
                    conversation_id, entities, source, tags, window=window,
                )  # fmt: skip
                return Offered(stored)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the agent goes on
            _failed("memory not stored", exc, type=memory_type)
            return Offered(None, _reason(exc))

    def context(self, conversation_id: str, latest_user_text: str) -> dict[str, Any]:
        """Return the context for a message; see `ContextBuilder.build_context`."""
        return self.builder.build_context(conversation_id, latest_user_text)

    def prompt(self, conversation_id: str, latest_user_text: str) -> str:
        """Return the context for a message as text for a prompt."""
        return self.builder.format_for_prompt(self.context(conversation_id, latest_user_text))

    def close(self) -> None:
        """Release what the gateway holds."""
        self.gateway.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def health(self) -> dict[str, Any]:
        """Return the state of the memory, for a health check. It reads a little, stores nothing and
        never raises.

        Returns:
            `status`, `healthy` or `degraded`; `history` and `memory`, `ok` or what is wrong with
            that collection; `queued_turns`, how many turns wait to be stored, and `refused_turns`,
            how many were put aside for good (if there are any, the memory is degraded), or None if
            that can't be read; `query_latency_ms`.
        """
        began = time.perf_counter()
        history = _trouble(lambda: self.gateway.tail_history(_PROBE, 1))
        memory = _trouble(lambda: self.gateway.count_window(_PROBE))
        latency = round((time.perf_counter() - began) * 1000, 2)
        turns: list[int] = []
        queue = self.gateway.queue
        unread = _trouble(lambda: turns.extend((len(queue.entries()), queue.refused_count())))
        well = not (history or memory or unread or any(turns))
        if not well:
            logs.event(
                _log, logging.WARNING, "degraded", history=history, memory=memory, queue=unread
            )
        return {
            "status": "healthy" if well else "degraded",
            "history": history or "ok",
            "memory": memory or "ok",
            "queued_turns": None if unread else turns[0],
            "refused_turns": None if unread else turns[1],
            "query_latency_ms": latency,
        }


def _trouble(look: Callable[[], object]) -> str | None:
    """Return why a look at the memory fails, in one line; None if it works."""
    try:
        look()
    except Exception as exc:  # noqa: BLE001 - a health check tells what it is, and never fails
        return _reason(exc)
    return None


def _failed(name: str, exc: Exception, **fields: object) -> None:
    logs.event(_log, logging.ERROR, name, error=_reason(exc), kind=type(exc).__name__, **fields)


def _reason(exc: Exception) -> str:
    return " ".join(str(exc).split()) or type(exc).__name__


def _storable(text: str, most: int) -> str:
    """Return what can be stored of a message; what is not a string is left for the gateway to
    refuse.
    """
    if not isinstance(text, str):
        return text
    whole = text.replace("\0", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    kept = unicodedata.normalize("NFC", whole)[:most] if len(whole) > most // 4 else whole
    if whole != text or len(kept) == most:
        logs.event(_log, logging.WARNING, "message changed to be stored", characters=len(text))
    return kept
