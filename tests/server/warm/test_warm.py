"""The command through a server, in real processes: its answers, and its behaviour if the server
fails.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from live_command import Serve, servers
from memories import Memories, __version__
from memories import warm as client
from memories.cli import COMMANDS
from memories.server.warm import process_wide
from memories.settings import SETTINGS

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(clean_environment: Mapping[str, str], tmp_path: Path) -> dict[str, str]:
    """The environment of a server and of the commands that use it."""
    return {**clean_environment, "MEMORY_HOME": str(tmp_path / "h")}


@pytest.fixture
def memory(environment: Mapping[str, str], tmp_path: Path) -> Run:
    """Return a function that runs a command that uses the server."""

    def run(
        *arguments: str, check: bool = True, **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        given = {"env": environment, "cwd": tmp_path, **options}
        command = [sys.executable, "-m", "memories", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, **given)
        assert not check or done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture
def serving(environment: Mapping[str, str], tmp_path: Path) -> Iterator[Serve]:
    """Return a function that starts a server."""
    with servers(env=environment, cwd=tmp_path) as serve:
        yield serve


def answered(memory: Run) -> int:
    """Return the number of commands that the server has answered."""
    return int(json.loads(memory("serve", "--status").stdout)["commands"])


def socket_path(environment: Mapping[str, str]) -> str:
    """Return the path of the server's socket."""
    return client.socket_of("", dict(environment))


# --- the same answers


def test_a_server_answers_without_work_in_the_commands_process(
    memory: Run, serving: Callable[..., Any]
) -> None:
    serving()
    made = json.loads(memory("create", "Deploys happen on Tuesdays").stdout)
    assert [
        hit["id"] for hit in json.loads(memory("search", "when are deploys?").stdout)["results"]
    ] == [made["id"]]
    refused = memory("get", "nothing", check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert json.loads(refused.stderr)["error"].startswith('"nothing" is not a memory id')
    assert (
        json.loads(memory("create", "-", input="from a pipe\n").stdout)["content"] == "from a pipe"
    )
    assert answered(memory) == 4


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system doesn't list threads")
def test_searches_leave_no_thread_behind(memory: Run, serving: Callable[..., Any]) -> None:
    server = serving()
    memory("create", "Deploys happen on Tuesdays")
    counts = []
    for _ in range(2):
        for _ in range(4):
            memory("search", "when are deploys?")
        counts.append(len(list(Path(f"/proc/{server.pid}/task").iterdir())))
    assert counts[0] == counts[1]
    assert answered(memory) == 9


def test_a_command_answered_by_a_server_imports_no_heavy_modules(
    memory: Run, serving: Callable[..., Any], environment: dict[str, str], tmp_path: Path
) -> None:
    serving()
    script = """
import os, sys
from memories import __main__ as front_door
from memories import warm as client
client._HELLO_SECONDS = 60.0  # on a busy machine a server takes longer than a command waits
code = front_door.run_by_server_or_here(["list"])
sys.stdout.flush()
heavy = "json socket typing click pathlib memories.config memories.cli"
loaded = sys.modules.keys() & set(heavy.split())
sys.stderr.write(repr((code, sorted(loaded))))
sys.stderr.flush()
os._exit(0)
"""
    command = [sys.executable, "-I", "-c", script]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert json.loads(done.stdout)["count"] == 0
    assert done.stderr == "(0, [])"


def test_every_setting_is_sent_with_a_command() -> None:
    assert [
        setting.variable for setting in SETTINGS if not client.is_carried(setting.variable)
    ] == []


def test_a_client_with_another_postgresql_server_does_its_own_work() -> None:
    own = {"TZ": "Asia/Tokyo", "PGHOST": "db1", "PGPASSWORD": "s"}
    callers = {**own, "PGHOST": "db2", "HOME": "/root"}
    assert all(map(client.is_carried, own))
    for url in ("postgresql:///memories", "postgres://db/memories"):
        assert process_wide(own, url) == own
        assert process_wide(callers, url) == {**own, "PGHOST": "db2"}
    sqlite = "sqlite:///memories.db"
    assert process_wide(own, sqlite) == process_wide(callers, sqlite) == {"TZ": "Asia/Tokyo"}


def test_every_command_runs_either_always_or_never_on_a_server() -> None:
    never = {"edit", "chat", "mcp", "serve", "config", "trust", "backup", "doctor", "export",
    "import", "migrate", "review",
             "reembed", "tokens", "prompt", "scratchpad", "hook", "capture", "off", "on", "connect",
             "disconnect",
             "projects", "tidy"}  # fmt: skip
    others = set(COMMANDS) - never
    assert [name for name in others if not client.can_be_served([name])] == []
    assert [name for name in never if client.can_be_served([name])] == []


@pytest.mark.parametrize(
    "arguments",
    [["create", "--jsonl", "-"], ["create", "--lines=x"], ["turns", "add", "a", "-"], ["restore",
    "./x.db"],
     ["restore", "notes.backup"], ["review", "edit", "x"], ["review"],
     ["review", "--match", "x"], ["export"], ["--help"], []],
)  # fmt: skip
def test_commands_that_read_files_or_streams_need_their_own_process(arguments: list[str]) -> None:
    assert not client.can_be_served(arguments)


@pytest.mark.thorough
def test_the_client_sets_the_writer_and_the_place(
    memory: Run, serving: Callable[..., Any], environment: dict[str, str], tmp_path: Path
) -> None:
    """Namespace, trust, the folder's settings and formats come from the client, not the server."""
    serving()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".env").write_text("MEMORY_FORMAT=text\n")
    made = memory(
        "create",
        "in a folder",
        cwd=tmp_path / "work",
        env={**environment, "MEMORY_NAMESPACE": "bob"},
    )
    assert made.stdout.startswith("✓ stored ")
    [found] = json.loads(memory("list", env={**environment, "MEMORY_NAMESPACE": "bob"}).stdout)[
        "results"
    ]
    assert found["namespace"] == "bob"
    assert answered(memory) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("deep", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_a_server_is_found_through_a_linked_home_and_vice_versa(
    memory: Run,
    serving: Callable[..., Any],
    environment: dict[str, str],
    tmp_path: Path,
    deep: bool,
) -> None:
    home = tmp_path / "real" / ("long" * 25 if deep else "h")
    home.mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    linked = tmp_path / "link" / home.name
    environment["MEMORY_HOME"] = str(linked)
    serving()
    for place_of_it in (home, linked):
        assert memory(
            "create",
            f"kept by way of {place_of_it}",
            env={**environment, "MEMORY_HOME": str(place_of_it)},
        )
    assert (
        json.loads(
            memory("serve", "--status", env={**environment, "MEMORY_HOME": str(home)}).stdout
        )["commands"]
        == 2
    )


@pytest.mark.thorough
def test_the_commands_own_process_asks_questions_at_a_terminal(
    memory: Run, serving: Callable[..., Any], environment: dict[str, str], tmp_path: Path
) -> None:
    import pty

    serving()
    made = json.loads(memory("create", "a secret plan").stdout)["id"]
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "memories", "forget", made]
    asked = subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, env=environment, cwd=tmp_path
    )
    os.close(its)
    os.write(ours, b"y\n")
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:
        pass
    os.close(ours)
    assert asked.wait(100) == 0
    assert b"a secret plan [y/N]" in shown
    assert b"Permanently forgotten" in shown


@pytest.mark.thorough
def test_a_client_with_different_store_settings_does_its_own_work(
    memory: Run, serving: Callable[..., Any], environment: dict[str, str]
) -> None:
    serving()
    memory("create", "content")
    others = [
        {"EMBEDDER": "none"},
        {"MEMORY_COMPACT": "true"},
        {"TZ": "Asia/Tokyo"},
        {"OPENAI_API_KEY": "another"},
    ]
    for changed in others:
        assert json.loads(memory("list", env={**environment, **changed}).stdout)["count"] == 1, (
            changed
        )
    assert answered(memory) == 1  # only the first command


@pytest.mark.thorough
def test_each_store_has_its_own_server(
    memory: Run, serving: Callable[..., Any], tmp_path: Path
) -> None:
    serving()
    other = f"sqlite:///{tmp_path}/other.db"
    memory("create", "in the other one", "--store", other)
    assert answered(memory) == 0
    serving("--store", other)
    assert json.loads(memory("list", f"--store={other}").stdout)["count"] == 1
    assert json.loads(memory("list", "--store", "sqlite:///other.db").stdout)["count"] == 1
    assert json.loads(memory("serve", "--status", "--store", other).stdout)["commands"] == 2


@pytest.mark.thorough
def test_concurrent_commands_keep_their_streams_separate(
    memory: Run, serving: Callable[..., Any], environment: dict[str, str]
) -> None:
    serving()
    made: dict[int, Any] = {}

    def create(number: int) -> None:
        name = {**environment, "MEMORY_NAMESPACE": f"n{number}"}
        made[number] = json.loads(memory("create", f"text of {number}", "--force", env=name).stdout)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = {number: (one["content"], one["namespace"]) for number, one in made.items()}
    assert told == {number: (f"text of {number}", f"n{number}") for number in range(4)}


# --- a server that is unwell


def test_a_command_is_answered_even_if_the_server_hangs(
    memory: Run, serving: Callable[..., Any]
) -> None:
    server = serving()
    memory("create", "content")
    server.send_signal(signal.SIGSTOP)
    try:
        assert json.loads(memory("list").stdout)["count"] == 1
    finally:
        server.send_signal(signal.SIGCONT)
    assert answered(memory) == 1


@pytest.mark.thorough
def test_leftovers_of_a_killed_server_do_not_stop_commands(
    memory: Run, serving: Callable[..., Any], environment: dict[str, str]
) -> None:
    server = serving()
    server.kill()
    server.wait(60)
    assert Path(socket_path(environment)).is_socket()
    memory("create", "content")
    serving()
    assert json.loads(memory("list").stdout)["count"] == 1
    assert answered(memory) == 1


class Impostor:
    """Greets like a server and reads the request, then answers as configured."""

    def __init__(self, path: str, greeting: str, answer: bytes | None) -> None:
        Path(path).parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(path)
        self._socket.listen(8)
        self._greeting, self._answer = greeting, answer
        self.asked: list[bytes] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection:
            connection.sendall(f"{self._greeting}\n".encode())
            self.asked.append(connection.recv(1 << 16))
            if self._answer and self.asked[-1]:
                connection.sendall(self._answer)

    def close(self) -> None:
        self._thread.join()
        self._socket.close()


def test_a_create_without_an_answer_is_stored_once(
    memory: Run, environment: dict[str, str]
) -> None:
    """Its id is chosen before the request, so a second run doesn't store it again."""
    impostor = Impostor(socket_path(environment), f"{client.GREETING} {__version__}", b"..")
    made = json.loads(memory("create", "it got lost", "--force").stdout)
    impostor.close()
    asked = json.loads(impostor.asked[0])
    assert made["id"] == asked["once"]
    assert json.loads(memory("list").stdout)["count"] == 1


@pytest.mark.parametrize("part", [b"", b"0 done 1:100\nonly a part"])
def test_a_change_without_an_answer_is_reported_as_in_doubt(
    part: bytes, memory: Run, environment: dict[str, str]
) -> None:
    impostor = Impostor(socket_path(environment), f"{client.GREETING} {__version__}", part)
    done = memory("delete", "0" * 32, check=False)
    impostor.close()
    assert (done.returncode, done.stdout) == (1, "")
    assert json.loads(done.stderr) == {"error": client.LOST}


def test_reading_commands_run_locally_if_the_server_dies(
    memory: Run, environment: dict[str, str]
) -> None:
    impostor = Impostor(socket_path(environment), f"{client.GREETING} {__version__}", None)
    assert json.loads(memory("list").stdout)["count"] == 0
    impostor.close()


def test_a_server_of_another_version_is_asked_to_exit(
    memory: Run, environment: dict[str, str]
) -> None:
    impostor = Impostor(socket_path(environment), f"{client.GREETING} 0.0.1", None)
    assert json.loads(memory("list").stdout)["count"] == 0
    impostor.close()
    assert impostor.asked == [f"newer {__version__}\n".encode()]


def test_a_server_with_an_earlier_protocol_is_not_used(
    memory: Run, environment: dict[str, str]
) -> None:
    impostor = Impostor(socket_path(environment), f"memories 1 {__version__}", None)
    assert json.loads(memory("list").stdout)["count"] == 0
    impostor.close()
    assert impostor.asked == [f"newer {__version__}\n".encode()]


def test_a_server_with_an_earlier_protocol_can_be_stopped(
    memory: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    """A server's socket is named after its store; the default store's socket also has a link."""
    path = client.socket_of(f"sqlite:///{tmp_path}/h/memories.db", dict(environment))
    status = {"running": True, "version": "0.0.1"}
    impostor = Impostor(path, "memories 1 0.0.1", f"{json.dumps(status)}\n".encode())
    answer = json.loads(memory("serve", "--stop").stdout)
    impostor.close()
    assert impostor.asked == [b"stop\n"]
    assert (answer["stopped"], answer["running"], answer["version"]) == (True, False, "0.0.1")


def test_a_socket_in_a_folder_that_others_can_enter_is_not_trusted(
    memory: Run, environment: dict[str, str]
) -> None:
    path = socket_path(environment)
    impostor = Impostor(path, f"{client.GREETING} {__version__}", b"0 done 1:4\nevil")
    Path(path).parent.chmod(0o755)
    assert json.loads(memory("list").stdout)["count"] == 0
    with socket.socket(socket.AF_UNIX) as ours:  # lets the impostor end
        ours.connect(path)
        ours.recv(100)
    impostor.close()
    assert impostor.asked == [b""]


@pytest.mark.thorough
def test_a_server_whose_store_was_replaced_exits(
    memory: Run, serving: Callable[..., Any], tmp_path: Path
) -> None:
    server = serving()
    memory("create", "in the first file")
    file = tmp_path / "h" / "memories.db"
    for suffix in ("", "-wal", "-shm", ".lock"):
        Path(f"{file}{suffix}").rename(tmp_path / f"old.db{suffix}")
    assert "memories.db is missing" in memory("list", check=False).stderr
    (file.parent / "shared" / "scratchpad.yaml").unlink()
    assert json.loads(memory("list").stdout)["count"] == 0
    assert server.wait(60) == 75


def test_a_newer_command_stops_an_older_server(
    memory: Run, serving: Callable[..., Any], environment: dict[str, str]
) -> None:
    server = serving()
    with socket.socket(socket.AF_UNIX) as newer:
        newer.connect(socket_path(environment))
        newer.recv(100)
        newer.sendall(b"newer 99.0.0\n")
    assert server.wait(60) == 75
    assert not Path(socket_path(environment)).exists()


# --- begin and end


@pytest.mark.thorough
def test_only_one_server_runs_for_a_store(memory: Run, serving: Callable[..., Any]) -> None:
    serving()
    second = memory("serve", "--no-http")
    assert "already running" in second.stderr
    assert answered(memory) == 0


def test_sockets_are_private_to_the_owner_and_removed_at_exit(
    serving: Callable[..., Any], environment: dict[str, str]
) -> None:
    server = serving()
    folder = Path(socket_path(environment)).parent
    modes = {
        each.suffix: each.lstat().st_mode & 0o777
        for each in folder.iterdir()
        if not each.is_symlink()
    }
    assert folder.stat().st_mode & 0o777 == 0o700
    assert modes == {".sock": 0o600, ".http": 0o600, ".lock": 0o600}
    server.terminate()
    assert server.wait(60) == 0
    assert [each.suffix for each in folder.iterdir()] == [".lock"]


@pytest.mark.thorough
def test_a_home_with_a_long_path_has_its_sockets_elsewhere(
    memory: Run, environment: dict[str, str], tmp_path: Path, serving: Callable[..., Any]
) -> None:
    environment["MEMORY_HOME"] = str(tmp_path / ("deep" * 20) / ("deeper" * 10))
    serving()
    memory("create", "content")
    assert answered(memory) == 1


@pytest.mark.thorough
def test_a_setting_lets_a_command_start_a_server(memory: Run, environment: dict[str, str]) -> None:
    environment["MEMORY_SERVE"] = "auto"
    memory("create", "content")
    path = Path(socket_path(environment))
    until = time.monotonic() + 100
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    while answered(memory) == 0 and time.monotonic() < until:  # a busy server greets too late
        assert json.loads(memory("list").stdout)["count"] == 1
    status = json.loads(memory("serve", "--status").stdout)
    assert (status["commands"], status["url"]) == (1, None)
    memory("serve", "--stop")


def test_the_server_of_the_hooks_exits_when_the_last_agent_is_disconnected(
    memory: Run, environment: dict[str, str], tmp_path: Path, serving: Serve
) -> None:
    environment["HOME"] = str(tmp_path / "user")
    server = serving()
    memory("disconnect", "codex", "--dry-run")
    assert server.poll() is None
    memory("disconnect", "codex")
    server.wait(60)


@pytest.mark.thorough
def test_no_server_runs_without_a_setting(memory: Run, environment: dict[str, str]) -> None:
    memory("create", "content")
    done = memory("serve", "--status", check=False)
    assert (done.returncode, json.loads(done.stdout)) == (1, {"running": False})
    assert not Path(socket_path(environment)).parent.exists()


@pytest.mark.thorough
def test_running_commands_finish_before_the_server_exits(
    memory: Run, serving: Callable[..., Any], environment: dict[str, str], tmp_path: Path
) -> None:
    server = serving()
    command = [sys.executable, "-m", "memories", "create", "--force"]
    writing = [
        subprocess.Popen(
            [*command, f"text {number}"], env=environment, cwd=tmp_path, stdout=subprocess.PIPE
        )
        for number in range(3)
    ]
    server.terminate()
    told = [json.loads(each.communicate(timeout=300)[0])["id"] for each in writing]
    assert server.wait(60) == 0
    with Memories(f"sqlite:///{tmp_path}/h/memories.db", embedder="fake") as found:
        assert sorted(each.id for each in found.list(limit=20).memories) == sorted(told)


def test_a_server_is_not_started_from_a_folder_named_memories(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "memories").mkdir()
    (tmp_path / "memories" / "__main__.py").write_text("open('ran', 'w').close()")
    monkeypatch.chdir(tmp_path)
    started: list[list[str]] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "posix_spawn", lambda _program, command, *_, **__: started.append(command)
        )
        client.start(f"sqlite:///{tmp_path}/m.db")
    [command] = started
    done = subprocess.run(
        [*command[: command.index("serve")], "--help"], capture_output=True, timeout=300
    )
    assert (done.returncode, b"Usage: memory" in done.stdout) == (0, True)
    assert not (tmp_path / "ran").exists()
