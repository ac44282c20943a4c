"""Every COPY and `pip` of a Dockerfile is carried out in an empty virtual environment, without
Docker.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCKERFILES = {"server": ROOT / "Dockerfile", "agent": ROOT / "agent-app" / "Dockerfile"}


def instructions(file: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each instruction of a Dockerfile with its words; comments are left out."""
    text = re.sub(r"^#.*\n", "", file.read_text(encoding="utf-8"), flags=re.M).replace("\\\n", " ")
    for line in text.splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, shlex.split(rest)


def steps(file: Path) -> Iterator[list[str]]:
    """Yield the commands of the RUN instructions."""
    for name, words in instructions(file):
        if name == "RUN":
            step: list[str] = []
            for word in [*words, "&&"]:
                if word == "&&":
                    yield step
                    step = []
                else:
                    step.append(word)


@pytest.mark.parametrize("image", DOCKERFILES)
def test_the_project_and_the_files_with_digests_are_installed_separately(
    image: str,
) -> None:
    installs = [step for step in steps(DOCKERFILES[image]) if step[:2] == ["pip", "install"]]
    assert installs
    for step in installs:  # with one digest pip requires all, and a folder has none
        locks = {each for each in step if each.endswith(".lock")}
        assert bool(locks) == ("--require-hashes" in step)
        assert not (locks and any(each.startswith(".") for each in step))


@pytest.mark.slow
@pytest.mark.parametrize("image", DOCKERFILES)
def test_the_steps_of_an_image_succeed_and_its_commands_start(image: str, tmp_path: Path) -> None:
    work, home, before = tmp_path / "work", tmp_path / "image", {**os.environ}
    work.mkdir()
    for name, words in instructions(DOCKERFILES[image]):
        if name == "COPY" and words[-1] != ".":
            source = ROOT if words[0] == "--from=memories" else DOCKERFILES[image].parent
            *files, to = [word for word in words if not word.startswith("--")]
            for file in files:
                target = work / to / (file if to == "./" else "")
                (shutil.copytree if (source / file).is_dir() else shutil.copyfile)(
                    source / file, target
                )
    subprocess.run([sys.executable, "-m", "venv", home], check=True, timeout=300)
    path = f"{home / 'bin'}:{before['PATH']}"
    for step in steps(DOCKERFILES[image]):
        words = [word.replace("/opt/", f"{tmp_path}/opt/") for word in step]
        if words[0].endswith("pip") or words[:3] == ["python", "-m", "venv"]:
            given = {
                "cwd": work,
                "env": {**before, "PATH": path},
                "capture_output": True,
                "text": True,
            }
            done = subprocess.run(words, timeout=900, **given)
            assert done.returncode == 0, (step, done.stdout, done.stderr)
    commands = {
        "server": ["memory serve"],
        "agent": ["memory mcp", f"{tmp_path}/opt/chroma-mcp/bin/chroma-mcp"],
    }
    for command in commands[image]:
        words = [*command.split(), "--help"]
        done = subprocess.run(
            words,
            env={**before, "PATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
