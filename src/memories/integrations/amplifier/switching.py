"""What a user says of the memory of a session: "start as bob with memory enabled", "memory off"."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from memories.errors import InvalidInput
from memories.guard.validate import namespace
from memories.hooks import prompts
from memories.integrations.amplifier.mounted import Mounted
from memories.integrations.amplifier.settings import Settings

if TYPE_CHECKING:
    from amplifier_core import HookResult

PRIORITY = 10  # before hooks that look at who the session is


def listen(
    coordinator: Any, mounted: Mounted, settings: Settings, mount: Callable[[], Awaitable[None]]
) -> Callable[[], None]:
    """Do what the user wishes at each prompt that says so and nothing else; return what ends that.

    Args:
        coordinator: The session's coordinator.
        mounted: Its memory.
        settings: Those of the module.
        mount: Mounts the tool, if it is not there yet.
    """

    async def heard(_: str, data: dict[str, Any]) -> "HookResult":
        from amplifier_core import HookResult

        wish = prompts.wish(prompts.cleaned(str(data.get("prompt", ""))))
        if wish is None or not (wish.on or mounted.is_on(settings)):
            return HookResult(action="continue")
        try:
            name = mounted.identity if wish.namespace is None else namespace(wish.namespace)
        except InvalidInput:
            return HookResult(action="continue")  # it named nobody
        await mounted.become(name, on=wish.on)
        if wish.on:
            await mount()
        context = coordinator.get("context")
        if hasattr(context, "forget_block"):
            await context.forget_block()
        return HookResult(action="inject_context", context_injection=_told(mounted), suppress_output=True)

    unregister: Callable[[], None] = coordinator.hooks.register(
        "prompt:submit", heard, priority=PRIORITY, name="memories:switch"
    )
    return unregister


def _told(mounted: Mounted) -> str:
    if mounted.said:
        return f'Memory is on. In this session you are "{mounted.identity}".'
    return "Memory is off for this session: nothing is recalled or stored. The user can say: memory on."
