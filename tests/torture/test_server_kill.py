"""A server is killed while many commands write through it; every acknowledged write is stored
once.
"""

import itertools
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from memories import Memories

COMMAND = [sys.executable, "-m", "memories"]
WRITES = (
    3,
    0,
    8,
    1,
    20,
)  # acknowledged writes before each server's kill, repeated


def stored(folder: Path) -> list[tuple[str, str]]:
    """Return the ids and contents of all memories; check that their log is sound."""
    with Memories(f"sqlite:///{folder}/h/memories.db", embedder="fake") as memories:
        assert {check.problem for check in memories.verify_log()} == {None}
        page = memories.list(limit=1000)
        found = [*page.memories]
        while page.next_cursor is not None:
            page = memories.list(limit=1000, cursor=page.next_cursor)
            found += page.memories
    return [(memory.id, memory.content) for memory in found]


@pytest.mark.thorough
@pytest.mark.torture
def test_a_killed_server_loses_no_acknowledged_write_and_repeats_none(
    tmp_path: Path,
    clean_environment: Mapping[str, str],
    size: Callable[[int, int], int],
    figures: dict[str, Any],
) -> None:
    environment = {
        **clean_environment,
        "MEMORY_HOME": str(tmp_path / "h"),
        "XDG_RUNTIME_DIR": str(tmp_path),
    }
    clients, wanted = size(2, 32), size(2, 60)
    acknowledged: list[tuple[str, str]] = []
    refused: list[str] = []
    done, lock, told = threading.Event(), threading.Lock(), threading.Semaphore(0)

    def write(number: int) -> None:
        for turn in itertools.takewhile(
            lambda turn: not turn or not done.is_set(), itertools.count()
        ):
            text = f"client {number} says {turn}"
            command = [*COMMAND, "create", text, "--force"]
            made = subprocess.run(
                command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
            )
            with lock:
                if made.returncode == 0:
                    acknowledged.append((json.loads(made.stdout)["id"], text))
                else:
                    refused.append(made.stderr)
            told.release()

    def serve() -> "subprocess.Popen[str]":
        command = [*COMMAND, "serve", "--no-http"]
        server = subprocess.Popen(
            command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        assert server.stderr is not None
        assert server.stderr.readline()
        return server

    writers = [threading.Thread(target=write, args=(number,)) for number in range(clients)]
    for writer in writers:
        writer.start()
    try:
        for writes in itertools.islice(itertools.cycle(WRITES), wanted):
            server = serve()
            while told.acquire(blocking=False):
                pass  # written before this server started
            for _ in range(writes):
                told.acquire(timeout=60)
            server.kill()  # during other writes
            server.communicate(timeout=60)
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert refused == []
    found = stored(tmp_path)
    assert sorted(found) == sorted(acknowledged)
    assert set(Counter(text for _, text in found).values()) == {1}
    figures |= {"acknowledged": len(acknowledged), "kills": wanted, "clients": clients}
