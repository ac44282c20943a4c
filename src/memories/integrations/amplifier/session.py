"""The state that a session's modules share: their settings, and the agent's memory."""

import asyncio
import importlib.metadata
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from memories.errors import ConfigError
from memories.guard import validate
from memories.settings import Config

_log = logging.getLogger(__name__)
AUTONOMOUS, EXPLICIT = MODES = ("autonomous", "explicit")


class ModuleSettings(NamedTuple):
    """A module's settings in one session.

    Attributes:
        enabled: Whether memory is on. If None, memory is off until the user switches it on.
        capture: Whether conversations are captured; off by default, and if memory is off.
        agent_identity: The agent's namespace; None for the namespace in the settings of Memories.
        mode: `autonomous`: the agent decides when to use its memory, and its prompt includes the
            session block. `explicit`: the agent uses its memory only when the user asks, and its
            prompt doesn't include the block.
        delay_seconds: The maximum time that a session waits for the session block, or for an event
            to be written.
        block_tokens: The maximum number of tokens in the session block.
        max_tokens: The maximum number of tokens in a request; None for the provider's limit.
    """

    enabled: bool | None = None
    capture: bool = False
    agent_identity: str | None = None
    mode: str = AUTONOMOUS
    delay_seconds: float = 1.0
    block_tokens: int = 1_000
    max_tokens: int | None = None


def read_settings(
    plan: Mapping[str, Any] | None, config: Mapping[str, Any] | None
) -> ModuleSettings:
    """Return a module's settings.

    The session's settings come first, then the module's configuration, then the defaults.

    Args:
        plan: The complete mount plan, which may contain `session.agent_identity` and
            `session.capabilities.memory`.
        config: The module's configuration.

    Raises:
        ConfigError: A value is invalid.
    """
    session = _mapping((plan or {}).get("session"), "session")
    memory = _mapping(
        _mapping(session.get("capabilities"), "session.capabilities").get("memory"), _MEMORY
    )
    identity = {}
    if session.get("agent_identity") is not None:
        identity["agent_identity"] = session["agent_identity"]
    checked: dict[str, Any] = {}
    for where, values in (("config", config or {}), (_MEMORY, memory), ("session", identity)):
        for name, value in values.items():
            if name in _CHECKS:
                checked[name] = _CHECKS[name](value, f"{where}.{name}")
            else:  # bundles are merged, so other modules' settings may be here too
                names = ", ".join(_CHECKS)
                _log.warning("%s.%s is not a setting of memory; use %s", where, name, names)
    settings = ModuleSettings(**checked)
    return settings._replace(capture=settings.capture and settings.enabled is not False)


_MEMORY = "session.capabilities.memory"


def _mapping(value: object, name: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a mapping, not {value!r}")
    return value


def _switch(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, not {value!r}")
    return value


def _identity(value: object, name: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a name such as bob, not {value!r}")
    try:
        return validate.namespace(value)
    except ValueError as exc:
        raise ConfigError(f"{name}: {exc}") from exc


def _mode(value: object, name: str) -> str:
    if value not in MODES:
        raise ConfigError(f"{name} must be {' or '.join(MODES)}, not {value!r}")
    return str(value)


def _seconds(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 60:
        raise ConfigError(f"{name} must be a number of seconds above 0, up to 60, not {value!r}")
    return float(value)


def _tokens(value: object, name: str) -> int | None:
    if value is None and name.endswith("max_tokens"):
        return None
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name} must be a whole number of tokens, 1 or more, not {value!r}")
    return value


_CHECKS: dict[str, Callable[[object, str], Any]] = {
    "enabled": _switch,
    "capture": _switch,
    "agent_identity": _identity,
    "mode": _mode,
    "delay_seconds": _seconds,
    "block_tokens": _tokens,
    "max_tokens": _tokens,
}


if TYPE_CHECKING:
    from memories.memories import Memories

Value = TypeVar("Value")
_CAPABILITY = "memories.mounted"
_CLIENT = "amplifier"


class Mounted:
    """The memory of a session's agent, opened on first use and closed by the last module that used
    it.

    Attributes:
        config: The settings of Memories.
        folder: The session's working folder.
        identity: The agent's namespace.
        switched_on: Whether the user switched memory on (true) or off (false) in this session; None
            if neither.
        shown_texts: The texts that the session was shown and that capture has not recorded yet,
            keyed by id.
    """

    def __init__(self, config: Config, settings: ModuleSettings) -> None:
        """Initialize without opening the memory.

        Args:
            config: The settings of Memories.
            settings: The settings of the first module.
        """
        self.config, self.folder = config, Path.cwd()
        self.identity = settings.agent_identity or config.namespace
        self.switched_on: bool | None = None
        self.shown_texts: dict[str, str] = {}
        from memories.core.deadline import Deadline

        self._deadline = Deadline(config.memory_timeout_seconds, whole=True)
        self._lock, self._users = threading.Lock(), 0
        self._memories: Memories | None = None

    @classmethod
    async def of(cls, coordinator: Any, settings: ModuleSettings) -> Self:
        """Return the memory that a session's modules share. The first module creates it; each must
        `release` it.

        Args:
            coordinator: The session's coordinator.
            settings: The module's settings. A module with its own identity gets its own memory.

        Raises:
            ConfigError: A setting of Memories is invalid.
        """
        name = f"{_CAPABILITY}:{settings.agent_identity}"
        mounted: Self | None = coordinator.get_capability(name)
        if mounted is None:
            from memories.config import load_config

            mounted = cls(await asyncio.to_thread(load_config), settings)
            coordinator.register_capability(name, mounted)
        mounted._users += 1
        return mounted

    async def ask(self, work: "Callable[[Memories], Value]") -> Value:
        """Run a function in another thread; return its result.

        Args:
            work: The function, which takes the open memory.

        Raises:
            MemoryTimeout: The call took longer than the setting `memory_timeout_seconds` allows.
        """

        def run() -> Value:
            return work(self._open())

        return await asyncio.to_thread(self._deadline.run, run)

    def is_on(self, settings: ModuleSettings) -> bool:
        """Return whether memory is on for a module; the user's choice overrides the
        configuration.
        """
        return bool(settings.enabled) if self.switched_on is None else self.switched_on

    async def become(self, identity: str, *, on: bool) -> None:
        """Switch to another agent's namespace, or switch memory on or off."""
        is_other = identity != self.identity
        self.identity, self.switched_on = identity, on
        if is_other:
            await self._close()

    async def release(self) -> None:
        """Close the memory if no other module uses it."""
        self._users -= 1
        if self._users == 0:
            self._deadline.close()
            await self._close()

    async def _close(self) -> None:
        with self._lock:
            memories, self._memories = self._memories, None
        if memories is not None:
            await asyncio.to_thread(memories.close)

    def _open(self) -> "Memories":
        with self._lock:
            if self._memories is None:
                from memories.memories import Memories

                client = (_CLIENT, importlib.metadata.version("amplifier-core"))
                self._memories = Memories(
                    config=self.config, namespace=self.identity, client=client
                )
            return self._memories
