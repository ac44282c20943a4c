"""Fixtures for the tests with real agents."""

import os
import subprocess
from pathlib import Path

import pytest
from real_agents import CLIENTS


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the installed agents; MEMORY_TEST_CLIENTS can name a folder that has them."""
    if known := os.environ.get("MEMORY_TEST_CLIENTS"):
        return Path(known)
    folder = tmp_path_factory.mktemp("clients")
    # The home of the tests, where npm would keep its cache, can't be written to.
    npm = ["npm", "install", "--no-audit", "--no-fund", "--cache", str(folder / "cache")]
    subprocess.run([*npm, *CLIENTS], cwd=folder, check=True, timeout=500)
    return folder / "node_modules"
