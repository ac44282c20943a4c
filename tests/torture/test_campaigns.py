"""Campaigns against one SQLite store: many writers, kills, power cuts, failing system calls."""

import gzip
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FIXTURES = sorted(
    (HERE.parent / "data").glob("schema*.db.gz")
)  # the first is the oldest, to which every migration applies

Size = Callable[[int, int], int]
Campaign = Callable[..., dict[str, Any]]


@pytest.fixture
def campaign(
    tmp_path: Path, clean_environment: dict[str, str], figures: dict[str, Any]
) -> Campaign:
    """Return a function that runs a script of this folder in a separate process and collects the
    figures that it prints.
    """

    def run(script: str, *arguments: object) -> dict[str, Any]:
        folder = tmp_path / "campaign"
        folder.mkdir(mode=0o700)
        errors = tmp_path / "errors"
        command = [sys.executable, str(HERE / script), str(folder), *map(str, arguments)]
        with errors.open("w") as stream:
            running = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                cwd=tmp_path,
                env=clean_environment,
            )
        assert running.stdout is not None
        try:
            for line in running.stdout:
                figures.update(json.loads(line))
            ended = running.wait(300)
        finally:
            running.kill()
            running.wait(300)
            running.stdout.close()
        assert (ended, errors.read_text()) == (0, "")
        return figures

    return run


@pytest.fixture
def seed(figures: dict[str, Any]) -> str:
    """The seed of the campaign's random choices, which is constant in the default suite."""
    figures["seed"] = os.urandom(4).hex() if "TORTURE" in os.environ else "1"
    return str(figures["seed"])


@pytest.mark.torture
@pytest.mark.thorough
def test_many_writers_lose_nothing_and_no_writer_gives_up(campaign: Campaign, size: Size) -> None:
    writes = size(10, 1000)
    told = campaign("writers.py", 32, writes)
    assert (told["lost"], told["doubled"], told["unknown"], told["busy"]) == (0, 0, 0, 0)
    assert told["acknowledged"] == 32 * writes


@pytest.mark.torture
@pytest.mark.thorough
def test_processes_that_create_the_store_at_the_same_moment_all_succeed(
    campaign: Campaign, size: Size
) -> None:
    rounds = size(2, 50)
    assert campaign("start_race.py", 24, rounds)["rounds"] == rounds


@pytest.mark.torture
def test_kills_during_all_kinds_of_work_lose_nothing(
    campaign: Campaign, size: Size, seed: str
) -> None:
    rounds = size(2, 800)
    told = campaign("kills.py", "all", rounds, seed)
    assert told["rounds"] == rounds
    assert told["acknowledged"] > rounds


@pytest.mark.torture
@pytest.mark.thorough
def test_kills_during_the_creation_of_a_store_leave_none_or_a_complete_one(
    campaign: Campaign, size: Size, seed: str
) -> None:
    rounds = size(10, 200)
    assert campaign("kills.py", "first", rounds, seed)["rounds"] == rounds


@pytest.mark.torture
@pytest.mark.thorough
@pytest.mark.skipif(
    platform.system() != "Linux" or os.geteuid() != 0 or shutil.which("mkfs.ext4") is None,
    reason="needs Linux, root, a loop device and mkfs.ext4",
)
def test_power_cuts_lose_nothing(campaign: Campaign, size: Size, seed: str, tmp_path: Path) -> None:
    if not _can_mount(tmp_path):
        pytest.skip("a loop device can't be mounted here")
    cuts = size(6, 200)
    told = campaign("power_cuts.py", cuts, seed)
    assert told["cuts"] == cuts
    assert told["acknowledged"] > cuts


@pytest.mark.torture
@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_failing_system_calls_lose_nothing(campaign: Campaign, size: Size) -> None:
    cases = size(25, 2000)
    told = campaign("system_calls.py", cases)
    assert (told["cases"], told["failed"]) == (cases, 0)
    assert told["refused"] > 0


@pytest.mark.torture
@pytest.mark.parametrize(
    "fixture",
    [
        pytest.param(file, marks=pytest.mark.thorough if number else ())
        for number, file in enumerate(FIXTURES)
    ],
    ids=lambda fixture: fixture.name[:7],
)
def test_an_upgrade_killed_at_any_statement_changes_no_row(
    campaign: Campaign, tmp_path: Path, fixture: Path
) -> None:
    file = tmp_path / "fixture.db"
    file.write_bytes(gzip.decompress(fixture.read_bytes()))
    told = campaign("upgrades.py", file, 1 if "TORTURE" in os.environ else 29)
    assert told["kills"] > 0


@pytest.mark.soak
@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc")
def test_mixed_work_for_an_hour_loses_and_leaks_nothing(campaign: Campaign) -> None:
    told = campaign("soak.py", os.environ.get("SOAK_MINUTES", "60"))
    assert told["kills"] > 0
    assert abs(told["files_growth"]) <= 5
    assert abs(told["threads_growth"]) <= 2
    assert told["largest_log_kb"] <= 64 << 10


def _can_mount(folder: Path) -> bool:
    """Return whether this user can mount a filesystem."""
    image, mount = folder / "image", folder / "mount"
    image.touch()
    os.truncate(image, 8 << 20)
    mount.mkdir()
    script = 'mkfs.ext4 -qF "$1" && mount -o loop "$1" "$2" && umount "$2"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", image, mount]
    return subprocess.run(command, capture_output=True, timeout=300).returncode == 0
