"""What the modules of one session share: the memory of its agent, off the event loop and within a deadline."""

import asyncio
import importlib.metadata
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from memories.config import load_config
from memories.core.deadline import Deadline
from memories.integrations.amplifier.settings import Settings
from memories.memories import Memories
from memories.settings import Config

Value = TypeVar("Value")
_CAPABILITY = "memories.mounted"
_CLIENT = "amplifier"


class Mounted:
    """The memory of a session's agent, opened when it is first needed and closed by the last module that used it.

    Attributes:
        config: The settings of Memories.
        folder: Where the session works.
        identity: The namespace of the agent.
        said: Whether the user switched memory on or off in this session; None if they said nothing of it.
        given: What the session was given and capture has not written down yet: texts by their ids.
    """

    def __init__(self, config: Config, settings: Settings) -> None:
        """Prepare.

        Args:
            config: The settings of Memories.
            settings: Those of the module that asks first.
        """
        self.config, self.folder = config, Path.cwd()
        self.identity = settings.agent_identity or config.namespace
        self.said: bool | None = None
        self.given: dict[str, str] = {}
        self._deadline = Deadline(config.memory_timeout_seconds, whole=True)
        self._lock, self._users = threading.Lock(), 0
        self._memories: Memories | None = None

    @classmethod
    async def of(cls, coordinator: Any, settings: Settings) -> Self:
        """Return what the modules of a session share, made by the first that asks; each must `release` it.

        Args:
            coordinator: The session's coordinator.
            settings: Those of the module. One with an identity of its own gets a memory of its own.

        Raises:
            ConfigError: A setting of Memories is not acceptable.
        """
        name = f"{_CAPABILITY}:{settings.agent_identity}"
        found: Self | None = coordinator.get_capability(name)
        if found is None:
            found = cls(await asyncio.to_thread(load_config), settings)
            coordinator.register_capability(name, found)
        found._users += 1
        return found

    async def ask(self, work: Callable[[Memories], Value]) -> Value:
        """Return what a call returns that is given the memory.

        Args:
            work: The call; it runs in another thread.

        Raises:
            MemoryTimeout: It took longer than the setting `memory_timeout_seconds` allows.
        """
        return await asyncio.to_thread(self._deadline.run, lambda: work(self._opened()))

    def is_on(self, settings: Settings) -> bool:
        """Return whether memory is on for a module: what the user says goes before what it is configured to."""
        return bool(settings.enabled) if self.said is None else self.said

    async def become(self, identity: str, *, on: bool) -> None:
        """Go on as another agent, or with memory on or off."""
        changed, self.identity, self.said = identity != self.identity, identity, on
        if changed:
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

    def _opened(self) -> Memories:
        with self._lock:
            if self._memories is None:
                client = (_CLIENT, importlib.metadata.version("amplifier-core"))
                self._memories = Memories(config=self.config, namespace=self.identity, client=client)
            return self._memories
