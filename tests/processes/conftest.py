"""What the tests with real agents share."""

import os
import subprocess
from pathlib import Path

import pytest
from real_agents import CLIENTS


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the installed agents; MEMORY_TEST_CLIENTS names one that has them already."""
    if known := os.environ.get("MEMORY_TEST_CLIENTS"):
        return Path(known)
    folder = tmp_path_factory.mktemp("clients")
    # Tests have a home that can't be written to, where npm would keep its cache.
    npm = ["npm", "install", "--no-audit", "--no-fund", "--cache", str(folder / "cache")]
    subprocess.run([*npm, *CLIENTS], cwd=folder, check=True, timeout=500)
    return folder / "node_modules"
