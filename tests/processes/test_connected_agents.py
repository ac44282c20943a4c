"""Real agents, connected by `memory connect`: they receive contexts, store turns, and see no errors
of a store.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_model import FakeModel, serving
from real_agents import AGENTS, command_of, run, texts

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")]

MEMORY = str(Path(sys.executable).with_name("memory"))
FACT = "the release train leaves on Tuesdays at 09:30"
STATEMENT = f"We decided that {FACT}."
QUESTION = "When does the release train leave?"
CHAT = "The tram was late, and it rained."
HOLD = """
import apsw, sys
db = apsw.Connection(sys.argv[1])
db.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
input()
"""
PROMPT_BLOCK = "persistent memory across sessions"


class Place:
    """A home with one connected agent, a folder to work in, and a model that records its
    requests.
    """

    def __init__(self, host: str, clients: Path, folder: Path, model: FakeModel, url: str) -> None:
        self.host, self.clients, self.model, self.url = host, clients, model, url
        self.agent = AGENTS[host]
        self.home, self.work = folder / "agent-home", folder / "agent-work"
        for name in ("objects", "refs"):
            (self.work / ".git" / name).mkdir(parents=True)
        (self.work / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
        # These tests need no model to find memories, and on a busy machine loading one may take
        # longer than a hook has.
        self.settings.parent.mkdir(parents=True)
        self.settings.write_text('embedder = "none"\n')
        self.agent.configure(self.home, self.work, url)

    @property
    def own(self) -> Path:
        """The folder of Memories' settings."""
        return self.home / ".config" / "memories"

    @property
    def settings(self) -> Path:
        """The user's settings of Memories."""
        return self.own / "config.toml"

    @property
    def data(self) -> Path:
        """The folder of the store."""
        return self.home / ".local" / "share" / "memories"

    def memory(self, *arguments: str) -> Any:
        """Run the `memory` command; return its answer."""
        return json.loads(run([MEMORY, *arguments], self.home, self.work))

    def connect(self, *options: str) -> None:
        """Connect the agent, and give its hooks the time that a busy machine needs.

        Other tests cover hooks that run out of time.
        """
        self.memory("connect", self.host, *options)
        for path, data in self.files().items():
            text = data.decode().replace(f"--host {self.host}", f"--host {self.host} --seconds 25")
            text = text.replace("const OPTIONS = [", 'const OPTIONS = ["--seconds", "25", ')
            text = re.sub(
                r'("timeout": |"(?:session-start|user-prompt)": )(?:5|10)(_?000)?\b',
                r"\g<1>60\2",
                text,
            )
            path.write_text(text)

    def session(self, message: str) -> str:
        """Make the agent answer a message in a new session; return all texts that its model
        received.
        """
        self.model.requests.clear()
        variables = {
            name: value.format(url=self.url) for name, value in self.agent.variables.items()
        }
        run(command_of(self.agent, self.clients, message), self.home, self.work, **variables)
        assert self.model.requests, "the model received no request"
        return "\n".join(text for request in self.model.requests for text in texts(request))

    def wait_until_stored(self) -> None:
        """Wait until the captured turns are stored."""
        self.memory("capture", "flush")
        until = time.monotonic() + 60
        while self.memory("capture", "status")["waiting_bytes"] and time.monotonic() < until:
            time.sleep(0.2)
            self.memory("capture", "flush")

    def turns(self) -> list[str]:
        """Return the stored turns of all sessions."""
        names = [
            each["conversation_id"]
            for each in self.memory("turns", "list", "--limit", "100")["results"]
        ]
        every = [self.memory("turns", "show", name, "--limit", "100")["results"] for name in names]
        return [turn["content"] for turns in every for turn in turns]

    def files(self) -> dict[Path, bytes]:
        """Return the files of the agent's configuration, without its state."""
        written = json.loads((self.own / "connected.json").read_text())["connected"]
        return {
            Path(file["path"]): Path(file["path"]).read_bytes()
            for each in written
            for file in each["files"]
        }


@pytest.fixture(params=AGENTS)
def place(request: pytest.FixtureRequest, clients: Path, tmp_path: Path) -> Iterator[Place]:
    """Each agent in a new home, with its model."""
    model = FakeModel("/no tool/", {})
    with serving(model) as url:
        yield Place(request.param, clients, tmp_path, model, url)


def test_a_memory_from_one_session_is_recalled_in_the_next(place: Place) -> None:
    place.connect("--capture")
    place.session(STATEMENT)
    place.wait_until_stored()
    assert FACT in place.session(QUESTION)


def test_without_capture_no_turn_is_stored(place: Place) -> None:
    place.memory("create", f"Ann said that {FACT}", "--force")
    place.connect()
    assert FACT in place.session(QUESTION)
    place.session("Remember that the tram is late.")
    place.memory("capture", "flush")
    assert place.turns() == []
    assert place.memory("status")["memory_count"] == 1


@pytest.mark.parametrize("switch", ["file", "command"])
def test_with_memory_off_no_file_changes_and_the_model_gets_no_memory(
    place: Place, switch: str
) -> None:
    place.memory("create", f"Ann said that {FACT}", "--force")
    place.memory("connect", place.host, "--capture")
    if switch == "file":
        (place.work / ".memories-off").touch()
    else:
        place.memory("off", "--all")
    before = contents(place)
    heard = place.session(f"{QUESTION} {STATEMENT}")
    assert PROMPT_BLOCK not in heard
    assert "Ann said" not in heard
    assert contents(place) == before
    assert place.turns() == []


def contents(place: Place) -> dict[str, bytes]:
    """Return the files of Memories, except those that a reader of SQLite leaves next to a store."""
    kept = [
        file for folder in (place.data, place.own) for file in folder.rglob("*") if file.is_file()
    ]
    return {
        str(file): file.read_bytes()
        for file in kept
        if not file.name.endswith(("-wal", "-shm", ".lock"))
    }


def test_a_broken_store_stops_no_agent_and_loses_nothing(place: Place) -> None:
    place.memory("create", FACT)
    place.connect("--capture")
    store = place.data / "memories.db"
    whole = store.read_bytes()
    store.write_bytes(broken := b"this is no store" * 4096)
    assert FACT in place.session(f"{QUESTION} {CHAT}")  # the fact comes from the scratchpad
    assert store.read_bytes() == broken
    store.write_bytes(whole)
    place.wait_until_stored()
    assert any(CHAT in turn for turn in place.turns())


def test_a_locked_store_stops_no_agent_and_loses_nothing(place: Place) -> None:
    place.memory("create", FACT)
    place.memory("connect", place.host, "--capture")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(place.data / "memories.db")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        place.session(CHAT)
        holder.communicate("\n", timeout=300)
    place.wait_until_stored()
    assert any(CHAT in turn for turn in place.turns())


def test_a_store_that_never_answers_stops_no_agent_and_loses_nothing(place: Place) -> None:
    place.memory("create", FACT)
    place.memory("connect", place.host, "--capture")
    known = place.settings.read_text()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never answers
        place.settings.write_text(f'{known}store = "http://127.0.0.1:{silent.getsockname()[1]}"\n')
        assert FACT not in place.session(f"{QUESTION} {CHAT}")
    place.settings.write_text(known)
    place.wait_until_stored()
    assert any(CHAT in turn for turn in place.turns())


def test_recalled_memories_are_not_captured_again(place: Place) -> None:
    place.connect("--capture")
    place.session(STATEMENT)
    place.wait_until_stored()
    # The block has the notes of only the last sessions, so recall needs a memory.
    place.memory("create", f"Ann said that {FACT}", "--force")
    first = place.memory("review")["count"]
    for number in range(9):
        assert FACT in place.session(f"{QUESTION} I ask for the {number + 2}th time.")
        place.wait_until_stored()
    said = place.turns()
    assert sum(FACT in turn for turn in said) == 1
    assert not any(PROMPT_BLOCK in turn for turn in said)
    assert place.memory("review")["count"] == first
    left = place.memory("list", "--type", "session", "--limit", "50")["results"]
    assert sum(FACT in each["content"] for each in left) == 1


def test_a_prompt_starts_a_session_as_an_identity(place: Place) -> None:
    place.memory("create", "Bob keeps his notes in Esperanto", "-n", "bob")
    place.connect("--capture")
    assert "Esperanto" not in place.session("Where are the notes?")
    assert "Esperanto" in place.session("Start as bob with memory enabled.")


def test_disconnecting_restores_an_agents_files(place: Place) -> None:
    place.memory("connect", place.host, "--capture", "--dry-run")
    before = {file: file.read_bytes() for file in place.home.rglob("*") if file.is_file()}
    answer = place.memory("connect", place.host, "--capture")
    connected = place.files()
    place.session(STATEMENT)
    after_session = {path: path.read_bytes() for path in connected}
    place.memory("disconnect", place.host)
    for file in answer["connected"][0]["files"]:
        path = Path(file["path"])
        if (
            after_session[path] == connected[path]
        ):  # some agents write their own state into the file
            assert (path.read_bytes() if path.exists() else None) == before.get(path)
        else:
            assert b'"memories"' not in path.read_bytes()
    assert PROMPT_BLOCK not in place.session(QUESTION)
