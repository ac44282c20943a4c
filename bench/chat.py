"""`python -m bench.chat`: the cost of a long session, and the benefit of search over the last three
facts, with a model's stand-in.

The figures don't include a model's time, since the stand-in answers immediately.
"""

import argparse
import importlib
import sys
import tempfile
import time
from pathlib import Path

sys.modules["sqlite3"] = importlib.import_module("pysqlite3")  # as in the command

from bench.report import environment, note, p50_p95, table  # noqa: E402
from memories.integrations.chat.agent import Agent  # noqa: E402
from memories.integrations.chat.demo import FakeKimi  # noqa: E402
from memories.integrations.chat.memory import (  # noqa: E402
    FILE,
    LongTerm,
    ShortTerm,
    recall_of,
)
from memories.integrations.chat.settings import Settings  # noqa: E402
from memories.settings import Secret  # noqa: E402

FACTS = (
    "dog:Rex", "sister:Mara", "favourite colour:teal", "home town:Ulm", "employer:Halden", "car:Saab", "doctor:Weiss",
    "boat:Perle", "garden:wild", "bicycle:red", "editor:Helix", "shell:fish", "time zone:Europe/Oslo", "diet:vegan",
    "birthday:May 4", "street:Elm Row", "team:platform", "laptop:Framework", "language:Norwegian", "plan:the small one",
)  # fmt: skip
WINDOW = 50  # number of turns per reported time


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1_000)
    given = parser.parse_args()
    _growth(given.turns)
    _recall()
    note(environment())


def _growth(turns: int) -> None:
    rows = []
    with FakeKimi() as kimi, tempfile.TemporaryDirectory() as folder:
        settings = _settings(kimi, Path(folder), "one")
        agent, session = _agent(settings)
        times: list[float] = []
        for number in range(1, turns + 1):
            began = time.perf_counter()
            agent.answer(
                f"Message {number} is as long as many are: two sentences. This is the other one.",
                _ignore,
            )
            times.append(1000 * (time.perf_counter() - began))
            if number in (10, 100, turns):
                size = sum(file.stat().st_size for file in settings.data.glob(f"{FILE}*"))
                rows.append((number, *p50_p95(times[-WINDOW:]), f"{size / 1e3:.0f}"))
        session.close()
    table(("turns of a session", "turn p50, ms", "p95", "session file and log, KB"), rows)


def _recall() -> None:
    rows = []
    for recall in ("recency", "search"):
        with FakeKimi() as kimi, tempfile.TemporaryDirectory() as folder:
            for fact in FACTS:
                name, _, value = fact.partition(":")
                agent, session = _agent(_settings(kimi, Path(folder), f"told-{FACTS.index(fact)}"))
                agent.answer(f"My {name} is {value}", _ignore)
                session.close()
            known = 0
            for number, fact in enumerate(FACTS):
                name, _, value = fact.partition(":")
                agent, session = _agent(_settings(kimi, Path(folder), f"asked-{number}", recall))
                said: list[str] = []
                agent.answer(f"What is my {name}?", said.append)
                known += value in "".join(said)
                session.close()
        rows.append((recall, f"{known} of {len(FACTS)}"))
    table(("facts before the model", "known in a new session after 20"), rows)


def _settings(kimi: FakeKimi, root: Path, thread: str, recall: str = "recency") -> Settings:
    return Settings(root, "ann", thread, Secret(kimi.key), kimi.url, "kimi-k3", 60.0, recall, {})


def _agent(settings: Settings) -> tuple[Agent, ShortTerm]:
    session = ShortTerm(settings.data / FILE, f"{settings.user_id}:{settings.thread_id}")
    memory = LongTerm(settings.data / "memory", settings.user_id)
    return Agent(settings, session, memory, recall_of(settings, memory)), session


def _ignore(_piece: str) -> None:
    """Show nothing."""


if __name__ == "__main__":
    main()
