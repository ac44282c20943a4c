"""An Amplifier session with our modules: the kernel is real, the loop is minimal, and the model
follows a script.
"""

import asyncio
import sys
import types
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from amplifier_core import AmplifierSession

ROOT = Path(__file__).parents[3]
MODULES = {"tool": "tool-memories", "context": "context-memories", "hook": "hooks-memories-capture"}
PACKAGES = {name: ROOT / "packages" / f"amplifier-module-{name}" for name in MODULES.values()}


class Loop:
    """An orchestrator like Amplifier's basic one: it emits events, asks the model and runs the
    tools.
    """

    async def execute(
        self, prompt: str, context: Any, providers: Any, tools: Any, hooks: Any, **kwargs: Any
    ) -> str:
        event = await hooks.emit("prompt:submit", {"prompt": prompt})
        await kwargs["coordinator"].process_hook_result(event, "prompt:submit", "orchestrator")
        await context.add_message({"role": "user", "content": prompt})
        model = providers["scripted"]
        while True:
            answer = await model.complete(
                await context.get_messages_for_request(provider=model), tools
            )
            if "tool" not in answer:
                break
            call = {
                "id": f"call-{len(model.requests)}",
                "tool": answer["tool"],
                "arguments": answer["input"],
            }
            await context.add_message({"role": "assistant", "content": "", "tool_calls": [call]})
            result = await tools[answer["tool"]].execute(answer["input"])
            event = {"tool_name": answer["tool"], "tool_input": answer["input"], "result": result}
            await hooks.emit("tool:post", event)
            content = result.get_serialized_output()
            await context.add_message(
                {"role": "tool", "tool_call_id": call["id"], "content": content}
            )
        await context.add_message({"role": "assistant", "content": answer["text"]})
        event = {
            "orchestrator": "loop-small",
            "turn_count": len(model.requests),
            "status": "success",
        }
        await hooks.emit("orchestrator:complete", event)
        return str(answer["text"])


class Model:
    """Answers from a script and records the requests."""

    name = "scripted"

    def __init__(self, script: list[dict[str, Any]]) -> None:
        self.script, self.requests, self.tools = list(script), [], {}
        self.requests: list[list[dict[str, Any]]]

    async def complete(self, messages: list[dict[str, Any]], tools: Any) -> dict[str, Any]:
        self.requests.append(messages)
        self.tools = dict(tools or {})
        return self.script.pop(0) if self.script else {"text": "Done."}

    def sent(self, at: int = 0) -> str:
        """Return the entire text of a request."""
        return "\n".join(str(message["content"]) for message in self.requests[at])


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Make our modules importable, as the kernel does for a source in a bundle."""
    for folder in PACKAGES.values():
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("MEMORY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MEMORY_TIMEOUT_SECONDS", "300")
    monkeypatch.setenv("EMBEDDER", "fake")
    monkeypatch.chdir(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("amplifier_module_")]:
        del sys.modules[name]


Talk = Callable[..., Model]


@pytest.fixture
def talk() -> Talk:
    """Return a function that runs a session from prompts, the model's answers and a
    configuration.
    """

    def run(
        prompts: list[str],
        script: list[dict[str, Any]] = [],  # noqa: B006 - never changed
        *,
        session: dict[str, Any] | None = None,
        config: dict[str, Any] | None = None,
        hooks: list[dict[str, Any]] | None = None,
        tools: list[dict[str, Any]] | None = None,
        then: Callable[[Any], Awaitable[None]] | None = None,
        parent_id: str | None = None,
    ) -> Model:
        model = Model(script)
        config = {"delay_seconds": 60, **(config or {})}

        async def mount_loop(coordinator: Any, config: Any = None) -> None:
            await coordinator.mount("orchestrator", Loop())

        async def mount_model(coordinator: Any, config: Any = None) -> None:
            await coordinator.mount("providers", model, name=model.name)

        for name, mount, kind in (
            ("loop_small", mount_loop, "orchestrator"),
            ("provider_script", mount_model, "provider"),
        ):
            module = types.ModuleType(f"amplifier_module_{name}")
            module.mount, module.__amplifier_module_type__ = mount, kind  # type: ignore[attr-defined]
            sys.modules[module.__name__] = module
        plan = {
            "session": {
                "orchestrator": {"module": "loop-small"},
                "context": {"module": "context-memories", "config": config},
                **(session or {}),
            },
            "providers": [{"module": "provider-script"}],
            "tools": [{"module": "tool-memories", "config": config}, *(tools or [])],
            "hooks": hooks or [],
        }

        async def main() -> None:
            async with AmplifierSession(plan, parent_id=parent_id) as running:
                for prompt in prompts:
                    await running.execute(prompt)
                if then is not None:
                    await then(running.coordinator)

        asyncio.run(main())
        return model

    return run


@pytest.fixture
def bob() -> dict[str, Any]:
    """Return the configuration of a session whose agent is bob, with memory on."""
    return {"agent_identity": "bob", "capabilities": {"memory": {"enabled": True}}}
