"""Programs that may be started instead of this one are reported."""

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
    assert list(find_conflicts({"PATH": str(tmp_path / "bin")})) == []
    assert not is_ours(str(tmp_path / "missing"))
