"""The bundle: what a session gets if it includes one of the behaviors."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from integrations.amplifier.conftest import MODULES, ROOT

BUNDLE = ROOT / "packages" / "amplifier-bundle-memories"
BEHAVIORS = sorted(file.stem for file in (BUNDLE / "behaviors").glob("*.yaml"))


def merge(base: Any, over: Any) -> Any:
    """Merge two values as bundles do: mappings by key and modules by name; later values win."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return {
            **base,
            **{
                key: merge(base[key], value) if key in base else value
                for key, value in over.items()
            },
        }
    if isinstance(base, list) and isinstance(over, list):
        modules = {each["module"]: each for each in base}
        for each in over:
            modules[each["module"]] = merge(modules.get(each["module"], {}), each)
        return list(modules.values())
    return over


def plan_of(*names: str) -> dict[str, Any]:
    """Return the plan of a session that includes some behaviors."""
    plan: dict[str, Any] = {}
    for name in names:
        read = yaml.safe_load((BUNDLE / "behaviors" / f"{name}.yaml").read_text())
        included = [each["bundle"].rpartition("/")[2] for each in read.get("includes", ())]
        for part in (
            plan_of(*included),
            {key: read[key] for key in ("session", "tools", "hooks") if key in read},
        ):
            plan = merge(plan, part)
    return plan


def config_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool's configuration in a plan."""
    tools: list[Mapping[str, Any]] = plan.get("tools", [{}])
    return dict(tools[0].get("config", {}))


def test_every_module_in_a_behavior_is_ours() -> None:
    assert BEHAVIORS == ["memory-autonomous", "memory-capture", "memory-core", "memory-explicit"]
    for name in BEHAVIORS:
        plan = plan_of(name)
        modules = [each["module"] for key in ("tools", "hooks") for each in plan.get(key, ())]
        modules += [each["module"] for each in plan.get("session", {}).values()]
        assert modules
        assert set(modules) <= set(MODULES.values())
    head = yaml.safe_load((BUNDLE / "bundle.md").read_text().split("---")[1])
    assert head["includes"] == [{"bundle": f"{head['bundle']['name']}:behaviors/memory-core"}]


def test_memory_core_is_off_until_the_session_enables_it(talk: Any, bob: dict[str, Any]) -> None:
    plan = plan_of("memory-core")
    assert talk(["Hello"], config=config_of(plan)).tools == {}
    assert [*talk(["Hello"], config=config_of(plan), session=bob).tools] == ["memory"]


def test_the_other_behaviors_switch_memory_on(talk: Any) -> None:
    for name, blocks in (("memory-autonomous", 1), ("memory-explicit", 0)):
        model = talk(["Hello"], config=config_of(plan_of(name)))
        assert [*model.tools] == ["memory"]
        assert [message["role"] for message in model.requests[0]] == ["system"] * blocks + ["user"]


def test_explicit_mode_and_capture_leave_the_bundles_context_manager_alone() -> None:
    assert "session" not in plan_of("memory-explicit", "memory-capture")
    assert "hooks" not in plan_of("memory-autonomous")


def test_settings_of_another_context_manager_are_ignored_with_a_warning(
    talk: Any, bob: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        model = talk(["Hello"], session=bob, config={"compact_threshold": 0.92})
    assert "bob" in model.sent()
    assert "compact_threshold is not a setting of memory" in caplog.text
