"""All files that are installed with the program are pinned by digest and listed, and changes are
detected.
"""

import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from memories.embedders import minilm
from memories.errors import EmbedderError

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import sbom  # noqa: E402 - a tool, not a package

LOCK = (ROOT / "requirements.lock").read_text()
CORE = (ROOT / "requirements-core.lock").read_text()
SERVER = (ROOT / "requirements-server.lock").read_text()


@pytest.mark.parametrize("lock", [LOCK, CORE, SERVER], ids=["all", "core", "server"])
def test_every_installed_file_has_a_digest_and_no_fixed_source(lock: str) -> None:
    entries = [entry for entry in re.split(r"\n(?=\S)", lock.strip()) if not entry.startswith("#")]
    assert len(entries) > 9
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+==\S+", entry, re.I), entry[:80]
        assert "--hash=sha256:" in entry
    assert not re.search(r"://|--(extra-)?index|find-links|@ ", lock)


@pytest.mark.parametrize("lock", [CORE, SERVER], ids=["core", "server"])
def test_partial_locks_agree_with_the_full_lock(lock: str) -> None:
    assert sbom.pinned(lock).items() <= sbom.pinned(LOCK).items()


def test_every_dependency_of_the_package_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [
        *project["project"]["dependencies"],
        *project["build-system"]["requires"],
        *(each for extra in extras.values() for each in extra),
    ]
    names = {
        re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", each)[0]).lower() for each in wanted
    }
    names -= {"memoriae", "memoriae-e5"}  # these are in the repository
    assert names <= sbom.pinned(LOCK).keys()


def test_every_extra_named_in_docs_and_messages_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    files = [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "packages").glob("*/README.md"),
    ]
    files += [*(ROOT / "src").rglob("*.py"), *(ROOT / "plugins").rglob("*.md")]
    named = {
        (name, extra)
        for file in files
        for name, extra in re.findall(r"""['"`](memories|memoriae|\.)\[(\w+)\]""", file.read_text())
    }
    assert {("memoriae", "chat"), ("memoriae", "multilingual")} <= named
    assert [
        (name, extra) for name, extra in named if name == "memories" or extra not in extras
    ] == []


def test_both_command_names_run_the_same_program() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts.keys() == {"memory", "memoriae"}
    assert len(set(scripts.values())) == 1


def test_the_list_of_materials_is_complete() -> None:
    found = json.loads((ROOT / "sbom.cdx.json").read_text())
    listed = {part["name"]: part for part in found["components"]}
    lock = sbom.pinned(LOCK)
    assert sbom.needed("memoriae", ("all",)).keys() - {"memoriae"} <= listed.keys()
    for name, part in listed.items():
        digests = [each["content"] for each in part["hashes"]]
        assert part["licenses"], name
        if part["type"] == "library":
            assert (part["version"], digests) == lock[name], "run: make sbom"
        else:
            assert digests == [minilm._FILES[name]]
    assert set(minilm._FILES) <= listed.keys()
    refs = {part["bom-ref"] for part in [*found["components"], found["metadata"]["component"]]}
    assert {
        ref for each in found["dependencies"] for ref in (each["ref"], *each["dependsOn"])
    } <= refs


def test_a_changed_model_is_detected_on_installation_and_by_size_on_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "weights"
    shutil.copytree(minilm._WEIGHTS, copy)
    monkeypatch.setattr(minilm, "_WEIGHTS", copy)
    model = copy / "all-MiniLM-L6-v2.int8.onnx"
    assert minilm.altered_files() == []
    data = bytearray(model.read_bytes())
    data[len(data) // 2] ^= 1
    model.write_bytes(data)
    assert minilm.altered_files() == [model]
    program = shutil.copy(minilm.__file__, tmp_path)
    with pytest.raises(SystemExit, match=r"int8\.onnx: missing or changed"):
        runpy.run_path(program, run_name="__main__")
    model.write_bytes(data[:-1])
    with pytest.raises(EmbedderError, match="has 22830416 bytes instead of 22830417"):
        minilm.MiniLM().embed("x")


def test_the_installation_verifies_the_model() -> None:
    assert "-m memories.embedders.minilm" in (ROOT / "Makefile").read_text()
    done = subprocess.run(
        [sys.executable, "-m", "memories.embedders.minilm"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
