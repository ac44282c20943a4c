"""What the modules of one session share: the memory of its agent, off the event loop and within a deadline."""

import asyncio
import importlib.metadata
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from memories.agent.deadline import Deadline
from memories.config import load_config
from memories.service import Memories
from memories.settings import Config

Value = TypeVar("Value")
_CAPABILITY = "memories.mounted"
_CLIENT = "amplifier"


class Mounted:
    """The memory of a session's agent, opened when it is first needed and closed by the last module that used it.

    Attributes:
        config: The settings of Memories.
        folder: Where the session works.
    """

    def __init__(self, config: Config, identity: str | None, delay_seconds: float) -> None:
        """Prepare.

        Args:
            config: The settings of Memories.
            identity: The namespace of the agent; None for that of the settings.
            delay_seconds: How long a session waits for what it did not ask for.
        """
        self.config, self.folder = config, Path.cwd()
        self.identity = identity or config.namespace
        self._asked, self._unasked = Deadline(config.memory_timeout_seconds), Deadline(delay_seconds)
        self._lock, self._users = threading.Lock(), 0
        self._memories: Memories | None = None

    @classmethod
    async def of(cls, coordinator: Any, identity: str | None, delay_seconds: float) -> Self:
        """Return what the modules of a session share, made by the first that asks; each must `release` it.

        Args:
            coordinator: The session's coordinator.
            identity: See `Mounted`. A module with an identity of its own gets a memory of its own.
            delay_seconds: The same.

        Raises:
            ConfigError: A setting of Memories is not acceptable.
        """
        name = f"{_CAPABILITY}:{identity}:{delay_seconds:g}"
        found: Self | None = coordinator.get_capability(name)
        if found is None:
            found = cls(await asyncio.to_thread(load_config), identity, delay_seconds)
            coordinator.register_capability(name, found)
        found._users += 1
        return found

    async def ask(self, work: Callable[[Memories], Value], *, asked: bool = True) -> Value:
        """Return what a call returns that is given the memory.

        Args:
            work: The call; it runs in another thread.
            asked: Wait as long as the setting `memory_timeout_seconds` allows; else as long as a session may be
                delayed by what it did not ask for.

        Raises:
            MemoryTimeout: It took too long.
        """
        deadline = self._asked if asked else self._unasked
        return await asyncio.to_thread(deadline.run, lambda: work(self._opened()))

    async def release(self) -> None:
        """Close the memory if no other module uses it."""
        self._users -= 1
        if self._users == 0:
            self._asked.close()
            self._unasked.close()
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
