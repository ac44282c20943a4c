"""The benchmark of stores: it measures the installed stores, names the skipped ones, and removes
its files.
"""

import re
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benchmarks are not installed

from bench.corpus import Corpus
from bench.stores_raw import Scope

from bench import corpus as corpora
from bench import stores, stores_servers

COUNT = 400


@pytest.fixture(autouse=True)
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """Texts with random vectors, in an empty working folder with a `.bench/`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".bench").mkdir()
    chance = np.random.default_rng(5).normal(size=(COUNT + 20, 384)).astype(np.float32)
    vectors = chance / np.linalg.norm(chance, axis=1, keepdims=True)
    texts = [
        f"tool{number}: a library to parse command line options" for number in range(COUNT + 20)
    ]
    asked = texts[COUNT:]
    made = Corpus(texts[:COUNT], asked, asked, vectors[:COUNT], vectors[COUNT:], vectors[COUNT:])
    monkeypatch.setattr(corpora, "load", lambda *_: made)
    return made


def run(**options: object) -> None:
    """Run the benchmark of stores at a small size."""
    stores.run(stores.Options(Path("unused"), sizes=(COUNT,), timed=3, **options))  # type: ignore[arg-type]


def rows(printed: str) -> dict[str, list[list[str]]]:
    """Return the rows of the tables by their first cell."""
    found: dict[str, list[list[str]]] = {}
    for line in printed.splitlines():
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        found.setdefault(name, []).append(cells)
    return found


@pytest.mark.thorough
def test_a_store_and_its_plain_engine_are_measured_and_leave_no_files(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_COLD_ROUNDS", 1)
    run(stores=("sqlite", "files"))
    found = rows(capsys.readouterr().out)
    for ours, plain in (("**sqlite**", "… beneath it: apsw"), ("**files**", "… beneath it: numpy")):
        for name in (ours, plain):
            [(memories, inserts, p50, few, recall, size, *_)] = found[name]
            assert (memories, float(recall) > 0.95) == (str(COUNT), True)
            assert all(float(cell.replace(",", "")) > 0 for cell in (inserts, p50, few, size))
    assert [len(found[kind]) for kind in ("sqlite", "files")] == [
        2,
        2,
    ]  # a row for the added cost, and one for cold processes
    assert list(Path(".bench").iterdir()) == []


def test_the_selective_filter_selects_one_of_200_in_a_store_and_its_plain_engine(
    tmp_path: Path, corpus: Corpus
) -> None:
    task = stores.Task(corpus, stores._records(corpus), np.zeros((20, 10), dtype=np.int64), 1)
    meant = {
        r.text for r in task.records if (r.ref.namespace, r.labels["project"]) == ("bob", "p3")
    }
    assert len(meant) == COUNT // 200
    for kind in ("sqlite", "files"):
        folder = tmp_path / kind
        folder.mkdir()
        with stores_servers.KINDS[kind](folder) as place:
            store = stores._open(place)
            stores._fill(store.append, task.records)
            stores._fill(place.client.insert, stores._plain_rows(task))
            place.client.attach(store, stores._ASKED)
            vector = corpus.statement_vectors[0]
            ours = store.candidates(stores._ASKED.few, vector=vector, terms=(), k=10)
            plain = place.client.nearest(vector, Scope.FEW)
            assert {candidate.record.text for candidate in ours} == meant
            assert {place.client.texts[key] for key in plain} == meant
            store.close()


def test_a_store_whose_program_is_missing_is_left_out_with_a_note(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: Path) -> AbstractContextManager[stores_servers.Place]:
        raise stores_servers.ProgramMissing("no program is there")

    monkeypatch.setattr(stores, "KINDS", {"chroma": missing})
    run()
    assert "`chroma` is left out: no program is there." in capsys.readouterr().out


def test_stores_for_few_memories_are_skipped_at_larger_sizes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_SMALL_SIZE", COUNT - 1)
    monkeypatch.setattr(stores, "KINDS", {"files": None})
    run()
    printed = capsys.readouterr().out
    assert re.search(
        r"files:///folder` is designed for fewer than 400 memories; `--stores files` measures it\.",
        printed,
    )
