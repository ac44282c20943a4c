"""Others beside us: the same vectors and queries in Chroma's embedded client and in sqlite-vec, in
a separate virtual environment.
"""

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import corpus as corpora
from bench import report
from bench.corpus import Corpus

PACKAGES = ("chromadb", "sqlite-vec", "apsw", "numpy")
_VENV = corpora.CACHE / "peers"
_SCRIPT = Path(__file__).with_name("peers_inside.py")


@dataclass(frozen=True, slots=True)
class Measured:
    """What an engine reached. Times are milliseconds for ten hits; `filtered_times` are for a
    filter that matches one memory of 200.
    """

    engine: str
    inserts_per_second: float
    times: list[float]
    filtered_times: list[float]
    recall: float
    bytes_beside_text: int


def run(corpus: Corpus, best: NDArray[np.int64], timed: int) -> list[Measured]:
    """Measure the others.

    Args:
        corpus: The texts to store and the queries.
        best: The exact ten best for each held-out text, shape (n, 10).
        timed: The number of queries that are timed; recall is measured with all.
    """
    python = environment()
    if python is None:
        return []
    with tempfile.TemporaryDirectory(dir=corpora.CACHE) as name:
        folder = Path(name).absolute()
        np.savez(
            folder / "vectors.npz",
            stored=corpus.vectors,
            queries=corpus.statement_vectors,
            best=best,
        )
        (folder / "texts.json").write_text(json.dumps(corpus.texts), encoding="utf-8")
        done = subprocess.run(
            [python, _SCRIPT, folder, str(timed)], stdout=subprocess.PIPE, text=True
        )
    if done.returncode:
        report.note("The others could not be measured; their error is on standard error.")
    return [
        Measured(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")
    ]


def environment() -> Path | None:
    """Return the Python of the other engines' virtual environment, which the first call creates;
    None if that is not possible.
    """
    python = _VENV.absolute() / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    complete = _VENV / ".complete"
    if not complete.is_file():
        print(f"installing {', '.join(PACKAGES)} into {_VENV}", file=sys.stderr)
        venv.create(_VENV, with_pip=True, clear=True)
        if subprocess.run(
            [python, "-m", "pip", "install", "-q", *PACKAGES], stdout=sys.stderr
        ).returncode:
            report.note(f"The others are left out: {', '.join(PACKAGES)} could not be installed.")
            return None
        complete.touch()
    return python


def print_table(rows: Iterable[Measured], size: int, queries: int) -> None:
    """Print the engines side by side."""
    report.heading(
        f"Beside others, {size:,} memories, the same vectors, 10 hits; recall with {queries:,} queries"
    )
    report.table(
        [
            "engine",
            "inserts/s",
            "p50 ms",
            "p95 ms",
            "filtered p50 ms",
            "recall@10",
            "MB per 10,000 without the text",
        ],
        [
            (
                row.engine,
                f"{row.inserts_per_second:,.0f}",
                *report.p50_p95(row.times),
                report.p50_p95(row.filtered_times)[0],
                f"{row.recall:.4f}",
                f"{row.bytes_beside_text / size / 100:.2f}",
            )
            for row in rows
        ],
    )
