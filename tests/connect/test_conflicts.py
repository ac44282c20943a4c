"""Programs and installations that may be started instead of this one are reported."""

from importlib import metadata
from pathlib import Path

import pytest

from memories.connect.program import find_conflicts, is_ours


def write_program(folder: Path, name: str, text: str) -> Path:
    """Write an executable shell script with this name; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


@pytest.fixture(autouse=True)
def no_old_distribution(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the distributions and tools that are installed on this machine."""
    monkeypatch.setenv("HOME", str(tmp_path))

    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)


def test_another_program_with_our_name_is_reported_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_program(
        tmp_path / "bin", "memory", "from mcp_memory_service.cli.main import main"
    )
    [conflict] = find_conflicts({"PATH": str(tmp_path / "bin")})
    assert conflict.problem == f"{other}, the first memory on PATH, is another program"
    assert "or type memoriae instead of memory" in conflict.remedy
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/nowhere")
    write_program(tmp_path / "later", "memory", "from memories.__main__ import main")
    [conflict] = find_conflicts({"PATH": f"{tmp_path / 'bin'}:{tmp_path / 'later'}"})
    later, first = tmp_path / "later", tmp_path / "bin"
    assert conflict.remedy.startswith(f"put {later} before {first} in PATH")


def test_another_installation_of_this_program_is_not_a_conflict(tmp_path: Path) -> None:
    write_program(tmp_path / "bin", "memory", "from memories.__main__ import main")
    write_program(tmp_path / "bin", "memoriae", "exec /somewhere/python -m memories")
    assert find_conflicts({"PATH": str(tmp_path / "bin")}) == []
    assert not is_ours(str(tmp_path / "missing"))


def test_the_remedy_for_the_old_distribution_uninstalls_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: {"memories": "1.0.1"}[name])
    [conflict] = find_conflicts({"PATH": "/nowhere"})
    assert "memories 1.0.1 is installed next to memoriae" in conflict.problem
    assert "-m pip uninstall memories && " in conflict.remedy


@pytest.mark.parametrize(
    ("folder", "variables", "command"),
    [
        (".local/share/uv/tools", {}, "uv tool uninstall memories"),
        (".local/share/pipx/venvs", {}, "pipx uninstall memories"),
        (".local/pipx/venvs", {}, "pipx uninstall memories"),
        ("tools", {"UV_TOOL_DIR": "tools"}, "uv tool uninstall memories"),
        ("px/venvs", {"PIPX_HOME": "px"}, "pipx uninstall memories"),
    ],
)
def test_an_installation_under_the_old_name_is_found_in_every_tools_folder(
    folder: str, variables: dict[str, str], command: str, tmp_path: Path
) -> None:
    write_program(
        tmp_path / folder / "memories" / "bin", "memory", "from memories.__main__ import main"
    )
    places = {name: str(tmp_path / value) for name, value in variables.items()}
    [conflict] = find_conflicts({"PATH": "/nowhere", **places})
    assert conflict.problem.endswith("memories is an older installation of this program")
    assert conflict.remedy.startswith(f"run: {command} && ")


def test_an_unrelated_package_with_the_old_name_is_not_a_conflict(tmp_path: Path) -> None:
    (tmp_path / ".local/share/uv/tools/memories/bin").mkdir(parents=True)
    assert find_conflicts({"PATH": "/nowhere"}) == []
