"""Agents: how much longer a real session takes with our hooks, with a healthy, a locked, a broken
and a silent store.
"""

import importlib
import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench import corpus as corpora
from bench import report
from memories import Draft, Memories, load_config
from memories.core.disk import try_lock

_TESTS = (
    Path(__file__).parents[1] / "tests" / "processes"
)  # which run the same agents, with the same model
_MEMORY = Path(sys.executable).with_name("memory")
_FACT = "The release train leaves on Tuesdays at 09:30"
_QUESTION = "When does the release train leave?"
_STATES = ("not connected", "without hooks", "healthy", "locked", "broken", "silent")
_LATEST_MS = 1_000  # maximum delay of an agent by one hook
_NOTHING = "#!/bin/sh\ncat > /dev/null\n"
# The two calls of `date` take some milliseconds, which count as ours.
_TIMED = """#!/bin/sh
began=$(date +%s%N)
"{memory}" "$@"
echo "$2 $began $(date +%s%N)" >> "{log}"
"""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the benchmark: the folder where npm installed the agents, the agents, and the
    number of sessions of each kind.
    """

    clients: Path
    agent: str
    rounds: int


class Taken(NamedTuple):
    """One session: the seconds until its model was called, and in total, and whether the
    model received the fact.
    """

    asked: float
    whole: float
    heard: bool


class _Noted(list[Any]):
    """Requests, with the time at which the question first came."""

    at: float | None = None

    def append(self, request: Any) -> None:
        super().append(request)
        if self.at is None and _QUESTION in json.dumps(request):
            self.at = time.perf_counter()


@dataclass(slots=True)
class _Place:
    """A home with one agent."""

    state: str
    home: Path
    url: str
    taken: list[Taken] = field(default_factory=list)

    @property
    def data(self) -> Path:
        return self.home / ".local" / "share" / "memories"

    @property
    def log(self) -> Path:
        return self.home / "hooks.txt"


def run(options: Options) -> None:
    """Run sessions of each kind in turn, and print their times."""
    if not options.clients.is_dir():
        report.note(
            f"Left out: agents, because there is no {options.clients} (bench/README.md says how to install them)."
        )
        return
    sys.path.insert(0, str(_TESTS))
    agents, fake_model = importlib.import_module("agents"), importlib.import_module("fake_model")
    corpora.CACHE.mkdir(exist_ok=True)
    model = fake_model.FakeModel("/no tool/", {})
    with tempfile.TemporaryDirectory(dir=corpora.CACHE) as folder, fake_model.serving(model) as url:
        places = [
            _Place(state, Path(folder, str(at)).absolute(), url) for at, state in enumerate(_STATES)
        ]
        for place in places:
            _prepare(place, agents, options)
        for number in range(
            options.rounds + 1
        ):  # the first round warms the disk cache, so it isn't counted
            for place in places:
                taken = _session(place, agents, options, model)
                if number:
                    place.taken.append(taken)
                else:
                    place.log.unlink(missing_ok=True)
        _print(options, places)


def _prepare(place: _Place, agents: Any, options: Options) -> None:
    """Make a home with an agent, some memories, and hooks that record their durations."""
    work = place.home / "work"
    work.mkdir(parents=True)
    agents.AGENTS[options.agent].configure(place.home, work, place.url)
    with Memories(config=load_config({"home": str(place.data)}, environment={})) as memories:
        drafts = [
            Draft(_FACT),
            *(Draft(f"Room {at} is cleaned at {at % 24}:00") for at in range(100)),
        ]
        memories.create_many(drafts, force=True)
    if place.state == "not connected":
        return
    agents.run([str(_MEMORY), "scratchpad", "show"], place.home, work)
    timed = place.home / "timed.sh"
    # The MCP server, which the agent starts too, is not measured: it also runs with empty hooks.
    timed.write_text(
        _NOTHING if place.state == "without hooks" else _TIMED.format(memory=_MEMORY, log=place.log)
    )
    timed.chmod(0o700)
    said = json.loads(
        agents.run([str(_MEMORY), "connect", options.agent, "--capture"], place.home, work)
    )
    for file in (Path(each["path"]) for each in said["connected"][0]["files"]):
        if file.is_file():  # the MCP server stays unchanged
            text = file.read_text().replace(f"{_MEMORY} hook ", f"{timed} hook ")
            file.write_text(text.replace(_plugin(_MEMORY), _plugin(timed)))
    if place.state == "broken":
        (place.data / "memories.db").write_bytes(b"this is no store" * 4096)


def _plugin(program: Path) -> str:
    return f"const COMMAND = [{json.dumps(str(program))}"


def _session(place: _Place, agents: Any, options: Options, model: Any) -> Taken:
    """Have the agent answer a question; wait until all processes that it started have ended."""
    agent, work = agents.AGENTS[options.agent], place.home / "work"
    variables = {name: value.format(url=place.url) for name, value in agent.variables.items()}
    with _troubled(place):
        model.requests = noted = _Noted()
        began = time.perf_counter()
        agents.run(
            agents.command_of(agent, options.clients, _QUESTION), place.home, work, **variables
        )
        ended = time.perf_counter()
    inbox = place.data / "inbox"
    if inbox.is_dir():
        with try_lock(inbox / ".flush.lock", 60):
            pass
    if noted.at is None:
        raise SystemExit(f"{options.agent} never called its model")
    heard = any(_FACT in text for request in noted for text in agents.texts(request))
    return Taken(noted.at - began, ended - began, heard)


@contextmanager
def _troubled(place: _Place) -> Iterator[None]:
    """Lock a store, or replace it with one that accepts calls and never answers, while a session
    runs.
    """
    if place.state == "locked":
        config = load_config({"home": str(place.data)}, environment={})
        with Memories(config=config, embedder="none") as memories, memories.transaction():
            yield
    elif place.state == "silent":
        settings = place.home / ".config" / "memories" / "config.toml"
        settings.parent.mkdir(parents=True, exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            settings.write_text(f'store = "http://127.0.0.1:{silent.getsockname()[1]}"\n')
            yield
    else:
        yield


def _print(options: Options, places: list[_Place]) -> None:
    report.heading(
        f"{options.agent}, {options.rounds} sessions of each kind in turns, median seconds"
    )
    plain, rows = places[1].taken, []
    for place in places:
        asked, whole = (
            statistics.median(getattr(each, name) for each in place.taken)
            for name in ("asked", "whole")
        )
        rows.append(
            (
                place.state,
                f"{asked:.2f}",
                f"{asked - statistics.median(each.asked for each in plain):+.2f}",
                f"{whole:.2f}",
                f"{whole - statistics.median(each.whole for each in plain):+.2f}",
                f"{sum(each.heard for each in place.taken)} of {options.rounds}",
                *_slowest(place),
            )
        )
    columns = [
        "store",
        "until the model is asked",
        "more",
        "the session",
        "more",
        "heard",
        "slowest hook ms",
        "target",
    ]
    report.table(columns, rows)
    report.note(_hooks(places[2:]))


def _slowest(place: _Place) -> tuple[str, str]:
    taken = [took for times in _times(place).values() for took in times]
    if not taken:
        return "", ""
    return (
        f"{max(taken):.0f}",
        f"≤ {_LATEST_MS} ms: {'met' if max(taken) <= _LATEST_MS else 'missed'}",
    )


def _times(place: _Place) -> dict[str, list[float]]:
    """Return how many milliseconds the hooks took, by event."""
    found: dict[str, list[float]] = {}
    for line in place.log.read_text().splitlines() if place.log.is_file() else ():
        event, began, ended = line.split()
        found.setdefault(event, []).append((int(ended) - int(began)) / 1e6)
    return found


def _hooks(places: list[_Place]) -> str:
    told = []
    for place in places:
        times = ", ".join(
            f"{event} {statistics.median(taken):.0f}" for event, taken in _times(place).items()
        )
        told.append(f"{place.state}: {times}")
    return f"Median milliseconds of each hook. {'; '.join(told)}."
