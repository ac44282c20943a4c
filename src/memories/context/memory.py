"""`AgentMemory` implements the flows of the conversation specification: start, append, remember,
and build a context.
"""

import functools
import logging
import time
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from memories.config import load_config
from memories.context.context import ContextBuilder
from memories.context.gateway import MemoryGateway, new_message_id
from memories.context.policy import MEMORY_TYPES, MemoryPolicy, window_key
from memories.context.protocol import MCPError, UnsupportedEndpoint, describe_error
from memories.core import logs
from memories.core.times import to_iso
from memories.settings import Config

ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.5
COLLECTIONS = ["history", "memory"]
_PROBE = "health"  # the name of the conversation and of the time window that a health check reads
_log = logging.getLogger(__name__)
_utc_now = functools.partial(datetime.now, UTC)


class Offered(NamedTuple):
    """The result of offering a memory: its id, or the reason why it was not stored."""

    id: str | None
    reason: str = ""


class AgentMemory:
    """A memory for an agent that answers messages. Failures are logged and never stop the agent.

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
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        """Combine the parts; `start` creates them from the settings.

        Args:
            gateway: Stores and finds turns and memories.
            builder: Builds contexts.
            policy: Decides which memories are stored. It should use the gateway's `count_window` to
                count them.
            clock: Returns the current time, with a time zone.
        """
        self.gateway, self.builder, self.policy = gateway, builder, policy
        self._clock = clock

    @classmethod
    def start(
        cls, config: Config | None = None, *, pause: Callable[[float], None] = time.sleep
    ) -> Self:
        """Open the memory that the settings name, and make sure that it responds.

        If it doesn't, try again, up to five times in total, doubling the pause each time. If
        `LOG_LEVEL` is set, log messages go to standard error.

        Args:
            config: The settings. [default: those in the environment and the files]
            pause: Waits for the given number of seconds.

        Raises:
            ConnectionError: The store did not respond.
            MCPError: The collections can't be created.
            ConfigError: A setting is invalid.
        """
        config = config or load_config()
        if config.sources["log_level"] != "default":
            logs.enable(config.log_level)
        gateway = MemoryGateway(config.mcp_endpoint)
        try:
            _connect(gateway, pause)
        except (ConnectionError, MCPError):
            gateway.close()
            raise
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
        """Append a message to its conversation; the gateway queues it if it can't be stored now.

        Args:
            conversation_id: The conversation.
            role: `user`, `assistant` or `system`.
            text: The text. Only its first 1,000,000 characters are kept (100,000 on a Chroma
                server). NUL and lone surrogates are replaced with U+FFFD. Both changes are logged.
            ts: When it was said. [default: now]
            message_id: An id that is unique in the conversation: a second turn with the same id is
                not stored.
            channel: Where it came from.

        Returns:
            The turn's id; None if the turn was queued or is invalid. The log says which.
        """
        try:
            said_at = ts or to_iso(self._clock())
            message_id = message_id or new_message_id()
            text = _storable(text, self.gateway.most_characters)
            return self.gateway.append_history(
                conversation_id, role, text, 0, said_at, message_id, channel, long=True
            )
        except Exception as exc:  # noqa: BLE001 - whatever fails, the agent continues
            queued = getattr(exc, "queued", False)
            _log_failure("turn not stored", exc, conversation_id=conversation_id, queued=queued)
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
        """Store a memory if the policy allows it. Use `offer` to learn why a memory was not stored.

        Args:
            text: The text.
            memory_type: `preference`, `fact`, `project` or `decision`.
            confidence: The agent's confidence, 0 to 1.
            conversation_id: The conversation that it comes from.
            entities: The people and things that it is about, separated by commas.
            source: `chat`, `tool` or `import`.
            tags: Words, separated by commas.
            window: The time window in which it is counted. [default: the conversation and the hour]

        Returns:
            The memory's id; None if the memory was not stored. The log says why.
        """
        return self.offer(
            text,
            memory_type,
            confidence,
            conversation_id=conversation_id,
            entities=entities,
            source=source,
            tags=tags,
            window=window,
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
        """Store a memory as `remember` does. If it can't be stored, for example because the text is
        longer than 2,000 characters, return the reason.

        This method never raises an exception.
        """
        if not self.policy.should_store(memory_type, confidence):
            logs.event(
                _log, logging.INFO, "memory rejected", type=memory_type, confidence=confidence
            )
            return Offered(
                None,
                f"the policy stores {', '.join(MEMORY_TYPES)} with a confidence of "
                f"{self.policy.min_confidence:g} or more",
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
                        f"the policy stores at most {self.policy.max_per_window} memories in a "
                        "window",
                    )
                memory_id = self.gateway.write_memory(
                    text, memory_type, confidence, to_iso(now),
                    conversation_id, entities, source, tags, window=window,
                )  # fmt: skip
                return Offered(memory_id)
        except Exception as exc:  # noqa: BLE001 - whatever fails, the agent continues
            _log_failure("memory not stored", exc, type=memory_type)
            return Offered(None, describe_error(exc))

    def context(self, conversation_id: str, latest_user_text: str) -> dict[str, Any]:
        """Return the context for a message; see `ContextBuilder.build_context`."""
        return self.builder.build_context(conversation_id, latest_user_text)

    def prompt(self, conversation_id: str, latest_user_text: str) -> str:
        """Return the context for a message as text for a prompt."""
        return self.builder.format_for_prompt(self.context(conversation_id, latest_user_text))

    def close(self) -> None:
        """Close the gateway."""
        self.gateway.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def health(self) -> dict[str, Any]:
        """Return the state of the memory, for a health check.

        This reads a few records, stores nothing and never raises an exception.

        Returns:
            - `status`: `healthy` or `degraded`.
            - `history` and `memory`: `ok`, or the problem with that collection.
            - `queued_turns`: the number of turns waiting to be stored.
            - `refused_turns`: the number of turns that can never be stored. Queued or refused turns
              make the memory `degraded`. Both numbers are None if the queue can't be read.
            - `query_latency_ms`: how long the check took.
        """
        start = time.perf_counter()
        history = _find_problem(self.gateway.tail_history, _PROBE, 1)
        memory = _find_problem(self.gateway.count_window, _PROBE)
        latency = round((time.perf_counter() - start) * 1000, 2)
        queued = refused = queue = None
        try:
            queued = len(self.gateway.queue.entries())
            refused = self.gateway.queue.refused_count()
        except Exception as exc:  # noqa: BLE001 - a health check reports failures
            queued, queue = None, describe_error(exc)
        is_healthy = not (history or memory or queue or queued or refused)
        if not is_healthy:
            logs.event(
                _log, logging.WARNING, "degraded", history=history, memory=memory, queue=queue
            )
        return {
            "status": "healthy" if is_healthy else "degraded",
            "history": history or "ok",
            "memory": memory or "ok",
            "queued_turns": queued,
            "refused_turns": refused,
            "query_latency_ms": latency,
        }


def _connect(gateway: MemoryGateway, pause: Callable[[float], None]) -> None:
    """Make sure that the store responds. Try again a few times if it doesn't."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            gateway.ensure_collections(COLLECTIONS)
        except UnsupportedEndpoint:
            raise
        except ConnectionError:
            if attempt == ATTEMPTS:
                raise
            gateway.settle()  # while this attempt is still running, the next would fail immediately
            pause(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
        else:
            return


def _find_problem(check: Callable[..., object], *arguments: object) -> str | None:
    """Run a check. Return the reason why it failed, on one line, or None if it succeeded."""
    try:
        check(*arguments)
    except Exception as exc:  # noqa: BLE001 - a health check reports failures
        return describe_error(exc)
    return None


def _log_failure(name: str, exc: Exception, **fields: object) -> None:
    kind = type(exc).__name__
    logs.event(_log, logging.ERROR, name, error=describe_error(exc), kind=kind, **fields)


def _storable(text: str, max_characters: int) -> str:
    """Return a message in a form that can be stored. A value that isn't a string is returned
    unchanged; the gateway refuses it.
    """
    if not isinstance(text, str):
        return text
    whole = text.replace("\0", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    kept = whole
    if len(whole) > max_characters // 4:  # normalizing never makes a text four times as long
        kept = unicodedata.normalize("NFC", whole)[:max_characters]
    if whole != text or len(kept) == max_characters:
        logs.event(_log, logging.WARNING, "message changed before storing", characters=len(text))
    return kept
