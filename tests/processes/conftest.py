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
    subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", *CLIENTS], cwd=folder, check=True, timeout=500
    )
    return folder / "node_modules"
