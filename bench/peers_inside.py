"""Runs in the other engines' virtual environment, started by `bench/peers.py`; prints one line of
JSON for each engine.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

_BATCH = 2_000
Ask = Callable[[Any, bool], list[int]]


class Task:
    """What every engine is given: texts and vectors with a namespace and a project, and queries."""

    def __init__(self, folder: Path, timed: int) -> None:
        """Read what `bench/peers.py` wrote into a folder."""
        with np.load(folder / "vectors.npz") as tables:
            self.stored, self.queries, self.best = (
                tables[name] for name in ("stored", "queries", "best")
            )
        self.texts = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
        self.text_bytes = sum(len(text.encode()) for text in self.texts)
        self.folder = folder
        self.timed = timed

    def batches(self) -> Iterator[range]:
        """Yield the numbers of the texts, in batches that every engine accepts."""
        for at in range(0, len(self.texts), _BATCH):
            yield range(at, min(at + _BATCH, len(self.texts)))

    def measure(self, engine: str, seconds: float, ask: Ask, size: Callable[[], int]) -> None:
        """Run all queries and print the results."""
        for query in self.queries[:10]:
            ask(query, False)
        times = [_milliseconds(ask, query, False) for query in self.queries[: self.timed]]
        filtered = [_milliseconds(ask, query, True) for query in self.queries[: self.timed]]
        found = sum(
            len(set(ask(query, False)) & set(best.tolist()))
            for query, best in zip(self.queries, self.best, strict=True)
        )
        print(
            json.dumps(
                {
                    "engine": engine,
                    "inserts_per_second": len(self.texts) / seconds,
                    "times": times,
                    "filtered_times": filtered,
                    "recall": found / self.best.size,
                    "bytes_beside_text": size() - self.text_bytes,
                }
            ),
            flush=True,
        )


def _milliseconds(ask: Ask, query: Any, filtered: bool) -> float:
    start = time.perf_counter()
    ask(query, filtered)
    return (time.perf_counter() - start) * 1000


def namespace(at: int) -> str:
    """Return the namespace of the text with this number, as in `bench/search.py`."""
    return "bob" if at % 20 == 7 else "shared"


def project(at: int) -> int:
    """Return the project of the text with this number, as in `bench/search.py`."""
    return at // 20 % 10


def chroma(task: Task) -> None:
    """Measure Chroma's embedded client: cosine space, its own defaults otherwise."""
    import chromadb
    from chromadb.config import Settings

    path = task.folder / "chroma"
    client = chromadb.PersistentClient(str(path), settings=Settings(anonymized_telemetry=False))
    collection = client.create_collection(
        "memories", embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
    )
    start = time.perf_counter()
    for rows in task.batches():
        collection.add(
            ids=[str(at) for at in rows],
            embeddings=task.stored[rows.start : rows.stop],
            documents=[task.texts[at] for at in rows],
            metadatas=[{"namespace": namespace(at), "project": project(at)} for at in rows],
        )
    seconds = time.perf_counter() - start

    def ask(query: Any, filtered: bool) -> list[int]:
        where = {"$and": [{"namespace": "bob"}, {"project": 3}]} if filtered else None
        found = collection.query(
            query_embeddings=[query], n_results=10, where=where, include=["documents", "distances"]
        )
        return [int(name) for name in found["ids"][0]]

    engine = f"Chroma {chromadb.__version__}, embedded, with documents"
    task.measure(
        engine,
        seconds,
        ask,
        lambda: sum(part.stat().st_size for part in path.rglob("*") if part.is_file()),
    )


def sqlite_vec(task: Task, kind: str) -> None:
    """Measure sqlite-vec, float32 or int8, with the texts in a separate table."""
    import apsw
    import sqlite_vec as extension

    largest = float(np.abs(task.stored).max())
    column, given, encoded = {
        "float32": ("float[384] distance_metric=cosine", "?", lambda vector: vector.tobytes()),
        # One scale for all numbers: vec_quantize_int8 of sqlite-vec expects numbers up to 1 and
        # loses 5 points of recall.
        "int8": (
            "int8[384] distance_metric=cosine",
            "vec_int8(?)",
            lambda vector: (
                np.clip(np.rint(vector * (127 / largest)), -127, 127).astype(np.int8).tobytes()
            ),
        ),
    }[kind]
    path = task.folder / f"{kind}.db"
    db = apsw.Connection(str(path))
    db.enable_load_extension(True)
    db.load_extension(extension.loadable_path())
    db.execute("PRAGMA journal_mode=WAL").fetchall()
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE memory (id INTEGER PRIMARY KEY, text TEXT)")
    db.execute(f"CREATE VIRTUAL TABLE vec USING vec0 (v {column}, namespace TEXT, project INTEGER)")
    start = time.perf_counter()
    for rows in task.batches():
        with db:
            db.executemany(
                "INSERT INTO memory VALUES (?, ?)", ((at, task.texts[at]) for at in rows)
            )
            db.executemany(
                f"INSERT INTO vec (rowid, v, namespace, project) VALUES (?, {given}, ?, ?)",
                ((at, encoded(task.stored[at]), namespace(at), project(at)) for at in rows),
            )
    seconds = time.perf_counter() - start

    def ask(query: Any, filtered: bool) -> list[int]:
        also = "AND namespace = 'bob' AND project = 3" if filtered else ""
        sql = f"""
            SELECT m.id, m.text, v.distance
            FROM (SELECT rowid, distance FROM vec WHERE v MATCH {given} AND k = 10 {also}) v
            JOIN memory m ON m.id = v.rowid
        """
        return [row[0] for row in db.execute(sql, (encoded(query),)).fetchall()]

    version = db.execute("SELECT vec_version()").fetchall()[0][0].removeprefix("v")

    def size() -> int:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return path.stat().st_size

    task.measure(f"sqlite-vec {version}, {kind}", seconds, ask, size)


def main() -> None:
    """Measure every engine with the data in the given folder."""
    task = Task(Path(sys.argv[1]), int(sys.argv[2]))
    chroma(task)
    sqlite_vec(task, "float32")
    sqlite_vec(task, "int8")


if __name__ == "__main__":
    main()
