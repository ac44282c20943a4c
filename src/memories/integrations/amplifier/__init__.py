"""Modules for Microsoft Amplifier. The packages in `packages/` have entry points that call these
functions.

`await mount(coordinator, config)` mounts a module and returns a function that unmounts it.
`amplifier_core` is installed wherever modules are mounted; no other part of Memories imports it.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memories.errors import ConfigError
from memories.integrations.amplifier.session import EXPLICIT, ModuleSettings, Mounted, read_settings

if TYPE_CHECKING:
    from memories.memories import Memories

_log = logging.getLogger(__name__)

Cleanup = Callable[[], Awaitable[None]]


async def mount_tool(coordinator: Any, config: Mapping[str, Any] | None = None) -> Cleanup:
    """Mount the tool `memory`, if memory is on.

    Args:
        coordinator: The session's coordinator.
        config: See `session.ModuleSettings`.

    Raises:
        ConfigError: A setting is invalid.
    """
    settings = read_settings(coordinator.config, config)
    if _is_refused(settings):
        return _nothing
    from memories.integrations.amplifier.tool import MemoryTool, listen

    mounted = await Mounted.of(coordinator, settings)
    tool = MemoryTool(mounted, settings)

    async def mount() -> None:
        await coordinator.mount("tools", tool, name=tool.name)

    if mounted.is_on(settings):
        await mount()
    stop_listening = None
    if coordinator.parent_id is None:
        stop_listening = listen(coordinator, mounted, settings, mount)

    async def unmount() -> None:
        if stop_listening is not None:
            stop_listening()
        if tool.name in (coordinator.get("tools") or {}):
            await coordinator.unmount("tools", name=tool.name)

    return _releasing(mounted, unmount)


async def mount_context(coordinator: Any, config: Mapping[str, Any] | None = None) -> Cleanup:
    """Mount the context manager. If memory is off or in explicit mode, the context manager has no
    memory.

    Args:
        coordinator: The session's coordinator.
        config: See `session.ModuleSettings`.

    Raises:
        ConfigError: A setting is invalid.
    """
    from memories.integrations.amplifier.context import MemoriesContext

    settings = read_settings(coordinator.config, config)
    mounted = None
    if settings.mode != EXPLICIT:
        mounted = await _mount_for_context(coordinator, settings)
    if mounted is None:
        context = MemoriesContext(None, settings.max_tokens, hooks=coordinator.hooks)
        await coordinator.mount("context", context)
        return _nothing

    def build(memories: "Memories") -> tuple[str, dict[str, str]]:
        return _prompt_block(memories, mounted.folder, settings.block_tokens)

    async def read() -> str:
        if not mounted.is_on(settings):
            return ""
        block, texts = await mounted.ask(build)
        mounted.shown_texts |= texts
        return block

    context = MemoriesContext(read, settings.max_tokens, settings.delay_seconds, coordinator.hooks)
    await coordinator.mount("context", context)
    return _releasing(mounted, context.forget_block)


async def mount_capture(coordinator: Any, config: Mapping[str, Any] | None = None) -> Cleanup:
    """Mount the hooks that capture conversations, if memory and capture are on.

    Args:
        coordinator: The session's coordinator.
        config: See `session.ModuleSettings`.

    Raises:
        ConfigError: A setting is invalid.
    """
    settings = read_settings(coordinator.config, config)
    # In a child session an agent talks to another agent: no person wrote the messages.
    if _is_refused(settings) or not settings.capture or coordinator.parent_id is not None:
        return _nothing
    from memories.integrations.amplifier.capture import Capture

    mounted = await Mounted.of(coordinator, settings)
    registered = Capture(coordinator, mounted, settings).register()

    async def unmount() -> None:
        for unregister in registered:
            unregister()

    return _releasing(mounted, unmount)


def _releasing(mounted: "Mounted", undo: Cleanup) -> Cleanup:
    """Return a function that unmounts a module and then releases the memory."""

    async def unmount() -> None:
        await undo()
        await mounted.release()

    return unmount


def _prompt_block(memories: "Memories", folder: Path, budget: int) -> tuple[str, dict[str, str]]:
    """Return the block for the session's project, and the texts of its memories, keyed by id."""
    from memories.identity import project as projects
    from memories.identity.session_block import build_session_block

    project = projects.identify(folder)
    block = build_session_block(
        memories, project=project and project.name, budget=budget, client="tool"
    )
    return block.text, {entry.id: entry.content for entry in (*block.entries, *block.sessions)}


async def _mount_for_context(coordinator: Any, settings: ModuleSettings) -> "Mounted | None":
    """Return a session's memory. Return None if memory is off or unusable, instead of failing,
    since every session needs a context.
    """

    try:
        return None if _is_refused(settings) else await Mounted.of(coordinator, settings)
    except (ConfigError, OSError, ValueError) as exc:
        _log.warning("the session continues without its memory: %s", exc)
        return None


def _is_refused(settings: ModuleSettings) -> bool:
    """Return whether memory was switched off outside the session; the session can't switch it on
    again.
    """
    from memories.hooks import switch

    return settings.enabled is False or not switch.read_state(str(Path.cwd()), None).on


async def _nothing() -> None:
    """Do nothing."""
