"""Remedies name a command that works for the installation that shows them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memories.core import installation
from memories.core.installation import Installation, find_installation, install_arguments

WHEEL = "file:///wheels/memoriae-0.1.0-py3-none-any.whl"


def environment(folder: Path, marker: str, text: str = "") -> Path:
    """Make a folder that looks like an installation of one kind."""
    folder.mkdir(parents=True)
    (folder / marker).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("folder", "marker", "installer"),
    [
        ("uv/tools/memoriae", "uv-receipt.toml", "uv tool"),
        ("pipx/venvs/memoriae", "pipx_metadata.json", "pipx"),
        (".cache/uv/archive-v0/x", "pyvenv.cfg", "temporary"),
        (".local/share/pipx/.cache/x", "pipx_metadata.json", "temporary"),
        ("venv", "pyvenv.cfg", "pip"),
    ],
)
def test_an_installer_is_recognized_by_its_traces_in_the_environment(
    folder: str, marker: str, installer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(environment(tmp_path / folder, marker)))
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/nowhere")
    monkeypatch.setattr(installation, "_read_origin", lambda: {"url": WHEEL})
    assert find_installation() == Installation(installer, tmp_path / folder, WHEEL)


def test_an_editable_installation_is_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    origin = {"url": "file:///src/memories", "dir_info": {"editable": True}}
    monkeypatch.setattr(installation, "_read_origin", lambda: origin)
    assert find_installation().installer == "checkout"


@pytest.mark.parametrize(
    ("installer", "source", "extra", "expected"),
    [
        ("pipx", "", "chat", "pipx inject memoriae memoriae[chat]"),
        ("pipx", WHEEL, "chat", f"pipx inject memoriae memoriae[chat] @ {WHEEL}"),
        ("pipx", "", "", "pipx install --force memoriae"),
        ("temporary", "", "chat", "uv tool install memoriae[chat]"),
        ("temporary", "", "", "uv tool install memoriae"),
        ("pip", "", "chat", "PYTHON -m pip install memoriae[chat]"),
        ("pip", "", "", "PYTHON -m pip install --force-reinstall memoriae"),
        ("pip", WHEEL, "chat", f"PYTHON -m pip install memoriae[chat] @ {WHEEL}"),
    ],
)
def test_an_extra_is_added_with_the_tool_that_installed_the_program(
    installer: str, source: str, extra: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    words = install_arguments(extra, Installation(installer, Path("/nowhere"), source))
    assert " ".join(words).replace(sys.executable, "PYTHON") == expected


def test_an_environment_without_pip_uses_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    words = install_arguments("chat", Installation("pip", Path("/nowhere"), ""))
    assert words == ["uv", "pip", "install", "--python", sys.executable, "memoriae[chat]"]


def test_a_uv_tool_keeps_its_extras_and_added_packages(tmp_path: Path) -> None:
    receipt = (
        '[tool]\nrequirements = [{ name = "memoriae", extras = ["postgres"] }, '
        '{ name = "rich", specifier = ">=13" }, { name = "mine", directory = "/src/mine" }]\n'
    )
    prefix = environment(tmp_path / "memoriae", "uv-receipt.toml", receipt)
    assert install_arguments("chat", Installation("uv tool", prefix, "")) == [
        *("uv", "tool", "install", "--force", "memoriae[chat,postgres]"),
        *("--with", "rich>=13", "--with", "/src/mine"),
    ]


def test_the_multilingual_model_comes_from_the_checkout_if_there_is_one(tmp_path: Path) -> None:
    model = tmp_path / "packages" / "memoriae-e5"
    model.mkdir(parents=True)
    source = tmp_path.as_uri()
    prefix = environment(tmp_path / "tool", "uv-receipt.toml")

    def command(installer: str) -> list[str]:
        return install_arguments("multilingual", Installation(installer, prefix, source))

    assert command("pipx") == ["pipx", "inject", "memoriae", str(model)]
    assert command("checkout")[-2:] == ["install", str(model)]
    own = f"memoriae @ {source}"
    assert command("uv tool") == [*("uv", "tool", "install", "--force", own, "--with", str(model))]
    elsewhere = Installation("pipx", prefix, "")
    assert install_arguments("multilingual", elsewhere)[-1] == "memoriae[multilingual]"


def test_a_checkout_is_installed_from_its_folder(tmp_path: Path) -> None:
    here = Installation("checkout", tmp_path, tmp_path.as_uri())
    assert install_arguments("chat", here)[-2:] == ["-e", f"{tmp_path}[chat]"]


def test_the_origin_of_this_installation_can_be_read() -> None:
    script = (
        "import json; from memories.core.installation import find_installation, install_arguments;"
        "print(json.dumps([find_installation().installer, install_arguments('chat')]))"
    )
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=300
    )
    installer, words = json.loads(done.stdout)
    assert installer in ("checkout", "pip", "pipx", "uv tool")
    assert any("[chat]" in word for word in words)
