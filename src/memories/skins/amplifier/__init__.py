"""Microsoft Amplifier: what its modules mount. The distributions in packages/ are entry points to these functions.

A module is mounted by `await mount(coordinator, config)`, which returns what undoes it. `amplifier_core` is there
whenever that happens, and is imported nowhere else.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from memories.skins.amplifier import settings as settings_of

Cleanup = Callable[[], Awaitable[None]]


async def mount_tool(coordinator: Any, config: Mapping[str, Any] | None = None) -> Cleanup:
    """Mount the tool `memory`, if memory is on.

    Args:
        coordinator: The session's coordinator.
        config: See `settings.Settings`.

    Raises:
        ConfigError: A setting is not acceptable.
    """
    settings = settings_of.read(coordinator.config, config)
    if not settings.enabled:
        return _nothing
    from memories.skins.amplifier.mounted import Mounted
    from memories.skins.amplifier.tool import MemoryTool

    mounted = await Mounted.of(coordinator, settings.agent_identity)
    tool = MemoryTool(mounted, settings.mode)
    await coordinator.mount("tools", tool, name=tool.name)

    async def unmount() -> None:
        await coordinator.unmount("tools", name=tool.name)
        await mounted.release()

    return unmount


async def mount_context(coordinator: Any, config: Mapping[str, Any] | None = None) -> Cleanup:
    """Mount the context manager. With memory off, or in explicit mode, it is one without memory.

    Args:
        coordinator: The session's coordinator.
        config: See `settings.Settings`.

    Raises:
        ConfigError: A setting is not acceptable.
    """
    from memories.skins.amplifier.context import MemoriesContext

    settings = settings_of.read(coordinator.config, config)
    if not settings.enabled or settings.mode == settings_of.EXPLICIT:
        await coordinator.mount("context", MemoriesContext(None, settings.max_tokens, hooks=coordinator.hooks))
        return _nothing
    from memories.skins.amplifier.block import block
    from memories.skins.amplifier.mounted import Mounted

    mounted = await Mounted.of(coordinator, settings.agent_identity)

    async def read() -> str:
        return await mounted.ask(lambda memories: block(memories, settings.block_tokens))

    context = MemoriesContext(read, settings.max_tokens, settings.delay_seconds, coordinator.hooks)
    await coordinator.mount("context", context)

    async def unmount() -> None:
        await context.close()
        await mounted.release()

    return unmount


async def mount_capture(coordinator: Any, config: Mapping[str, Any] | None = None) -> Cleanup:
    """Mount the hooks that capture what is said, if memory is on and capture is.

    Args:
        coordinator: The session's coordinator.
        config: See `settings.Settings`.

    Raises:
        ConfigError: A setting is not acceptable.
    """
    settings_of.read(coordinator.config, config)
    return _nothing


async def _nothing() -> None:
    """Undo nothing."""
