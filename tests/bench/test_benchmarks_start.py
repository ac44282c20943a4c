"""The benchmarks start: all their imports exist."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]  # the benchmarks are not installed


@pytest.mark.thorough
def test_the_benchmarks_start() -> None:
    for module in ("bench", "bench.operations", "bench.retrieval"):
        command = [sys.executable, "-m", module, "--help"]
        run = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )
        assert run.returncode == 0, run.stderr
        assert "usage:" in run.stdout
