"""The three distributions, as Amplifier's own validator and loader see them."""

import asyncio
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from amplifier_core import ModuleLoader
from amplifier_core.validation import ContextValidator, HookValidator, ToolValidator

from integrations.amplifier.conftest import MODULES, PACKAGES

VALIDATORS = {"tool": ToolValidator, "context": ContextValidator, "hook": HookValidator}
CASES = [(kind, name) for kind, name in MODULES.items()]


def package(name: str) -> Path:
    """Return the folder of a module's package."""
    return PACKAGES[name] / f"amplifier_module_{name.replace('-', '_')}"


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("enabled", [True, False])
def test_amplifiers_validator_finds_no_problem(kind: str, name: str, enabled: bool) -> None:
    config = {"enabled": enabled, "agent_identity": "bob"}
    found = asyncio.run(VALIDATORS[kind]().validate(package(name), config=config))
    assert found.passed, found.errors
    if enabled:
        assert [
            check for check in found.checks if not check.passed or check.severity != "info"
        ] == []


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_the_validators_command_finds_no_problem(kind: str, name: str) -> None:
    command = [sys.executable, "-m", "amplifier_core.cli", "validate", kind, str(package(name))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_amplifier_finds_a_distribution_by_its_name_and_type(kind: str, name: str) -> None:
    project = tomllib.loads((PACKAGES[name] / "pyproject.toml").read_text())["project"]
    assert project["name"] == f"amplifier-module-{name}"
    assert project["entry-points"]["amplifier.modules"] == {name: f"{package(name).name}:mount"}
    assert project["dependencies"] == []  # the kernel is not a dependency
    loader = ModuleLoader(search_paths=[PACKAGES[name].parent])
    found = {module.id: module.type for module in asyncio.run(loader.discover())}
    assert found[name] == kind
