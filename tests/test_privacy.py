"""Nothing leaves the machine, and nothing is written outside the store."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "from memories import Memories; m = Memories(); m.create('a secret'); m.search('secret'); m.close()"


def run_in(home: Path, *wrapper: str) -> None:
    """Run the program with a separate home."""
    kept = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "MEMORY_HOME": str(home / "store"),
        "EMBEDDER": "minilm",
    }
    subprocess.run(
        [*wrapper, sys.executable, "-c", PROGRAM], check=True, env=kept, cwd=home, timeout=300
    )


def test_only_the_store_is_written(tmp_path: Path) -> None:
    """onnxruntime writes a telemetry database into the home folder, unless that is disabled before
    the import.
    """
    run_in(tmp_path)
    files = {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert {"store/memories.db", "store/memories.db.lock"} <= files
    # Statistics, the queue of reads and the scratchpad belong to the memory; all are in its one
    # folder.
    own = re.compile(
        r"store/(memories\.db(\.lock)?|events\.jsonl|accesses[-.]\S+|shared/(\.?scratchpad\S*|metadata\.json))"
    )
    assert [file for file in files if not own.fullmatch(file)] == []


@pytest.mark.thorough  # `test_no_command_opens_a_network_connection` watches Python
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_no_network_is_used(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    run_in(tmp_path, "strace", "-f", "-e", "trace=connect,sendto,sendmsg", "-o", str(trace))
    assert "AF_INET" not in trace.read_text()
