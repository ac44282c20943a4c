"""Facts that the prompt hook gives an agent, from stores with the facts of six people and their
eighteen projects.

Each folder of `bench/eighteen_projects` is the content of one store, in the form that
`agents_memory` describes: 150 facts and 120 prompts, of which 29 need no facts. The folders were
written independently of each other. Nothing was fitted to the half `test`, but its first four
stores decided between settings that were about equally good on `dev`. Tune only on `dev`.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import agents_memory, report
from bench.agents_memory import CHARACTERS, COLUMNS, Answer, History

DATA = Path(__file__).with_name("eighteen_projects")


def load() -> dict[str, list[History]]:
    """Return the histories of each store, by the store's name."""
    return {folder.name: agents_memory.load(folder) for folder in sorted(DATA.iterdir())}


def load_all() -> list[History]:
    """Return the histories of all stores."""
    return [history for histories in load().values() for history in histories]


def run() -> None:
    """Run the hook for each prompt, and print a row for each store and for each half."""
    rows: list[tuple[str, ...]] = []
    all_stores = load()
    for half in agents_memory.HALVES:
        stores = {name: store for name, store in all_stores.items() if store[0].half == half}
        answers = {name: _answer(store) for name, store in stores.items()}
        corrected = agents_memory.last_corrections(
            [fact for store in stores.values() for history in store for fact in history.facts]
        )
        of_half = [answer for of_store in answers.values() for answer in of_store]
        for name, of_store in [*answers.items(), (f"all of {half}", of_half)]:
            rows.append((name, *agents_memory.score(of_store, corrected)))
    report.heading("What agents are given, in stores with eighteen projects")
    report.table(["store", *COLUMNS, *CHARACTERS], rows)


def _answer(histories: Sequence[History]) -> list[Answer]:
    """Return the facts that the hook gives for each prompt about a store."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = Path(folder).resolve() / "home"
        return agents_memory.answer_with_hook(histories, home)


if __name__ == "__main__":
    run()
