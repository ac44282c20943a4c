"""The clients beneath the stores, used directly: the cost of a search and an insert without
Memories.
"""

import http.client
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from memories import Store
from memories.stores import chroma as driver
from memories.stores.records import Filter

K = 10
DIMENSION = 384
Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Row:
    """A memory in the form that a plain client stores."""

    number: int
    namespace: str
    project: str
    text: str
    vector: Vector


class Scope(Enum):
    """The scope of a client's search.

    The data have only these two namespaces. A client may search everything without a filter, which
    can be faster; a store always names the namespaces.
    """

    ALL = "no filter"
    NAMESPACES = "both namespaces"
    FEW = "one namespace and one tag"


class Asked(NamedTuple):
    """The two filters of the benchmark, in the form that a store accepts."""

    everything: Filter
    few: Filter


class Client(Protocol):
    """A client beneath a store.

    Attributes:
        name: Its name in the table.
        does: How it is used, for a sentence under the table.
        texts: The text of each key that `nearest` returns.
    """

    name: str
    does: str
    texts: dict[int, str]

    def insert(self, rows: Sequence[Row]) -> None:
        """Store rows durably."""
        ...

    def attach(self, store: Store, asked: Asked) -> None:
        """Take the necessary values from the store, which has been filled."""
        ...

    def nearest(self, vector: Vector, scope: Scope) -> list[int]:
        """Return the keys of the `K` nearest rows of a scope."""
        ...

    def close(self) -> None:
        """Release what is held."""
        ...


class SQLite:
    """Inserts by apsw alone; searches with the store's vector index, since SQLite has none: ids
    without records.
    """

    name = "apsw"
    does = (
        "each insert is a row with a float32 vector. The search uses only the store's vector index, and returns ids "
        "without records"
    )

    def __init__(self, folder: Path) -> None:
        """Make a file."""
        import apsw

        self.texts: dict[int, str] = {}
        self._db = apsw.Connection(str(folder / "plain.db"))
        self._db.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
        self._db.execute(
            "CREATE TABLE plain (id INTEGER PRIMARY KEY, namespace TEXT, project TEXT, text TEXT, vector BLOB)"
        )

    def insert(self, rows: Sequence[Row]) -> None:
        """See `Client.insert`."""
        with self._db:
            self._db.executemany(
                "INSERT INTO plain VALUES (?, ?, ?, ?, ?)",
                [
                    (row.number, row.namespace, row.project, row.text, row.vector.tobytes())
                    for row in rows
                ],
            )

    def attach(self, store: Any, asked: Asked) -> None:
        """See `Client.attach`."""
        self._store, self._asked = store, asked
        with store._file.read() as db:
            self.texts = dict(db.execute("SELECT seq, text FROM record"))

    def nearest(self, vector: Vector, scope: Scope) -> list[int]:
        """See `Client.nearest`."""
        from memories.stores.sqlite.query import selection

        where = self._asked.few if scope is Scope.FEW else self._asked.everything
        with self._store._file.read() as db:
            index = self._store._vectors.index(db, where.collection)
            return list(
                index.find_best(db, selection(db, where), index.quantizer.rotate_query(vector), K)
            )

    def checkpoint(self) -> None:
        """Move the content of the log into the file."""
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """See `Client.close`."""
        self._db.close()


class PostgreSQL:
    """Inserts with psycopg into a plain table with an HNSW index; searches with the store's own
    statements.
    """

    name = "psycopg"
    does = (
        "rows are copied into a plain table with an HNSW index; MB is the size of both. The search sends the store's "
        "own vector statement to the store's tables, and returns ids without records"
    )

    def __init__(self, url: str) -> None:
        """Make the table."""
        import psycopg

        self.texts: dict[int, str] = {}
        self._sent: dict[bool, list[tuple[str, tuple[Any, ...]]]] = {}
        self._db = psycopg.connect(url, autocommit=True)
        self._db.execute("CREATE EXTENSION IF NOT EXISTS vector")
        self._db.execute(
            "CREATE TABLE plain (id bigint PRIMARY KEY, namespace text, project text, text text, "
            f"embedding halfvec({DIMENSION}))"
        )
        self._db.execute("ALTER TABLE plain ALTER COLUMN embedding SET STORAGE PLAIN")
        self._db.execute(
            "CREATE INDEX ON plain USING hnsw (embedding halfvec_cosine_ops) WITH (m = 16, ef_construction = 128)"
        )

    def insert(self, rows: Sequence[Row]) -> None:
        """See `Client.insert`."""
        with (
            self._db.transaction(),
            self._db.cursor() as cursor,
            cursor.copy("COPY plain FROM STDIN") as copy,
        ):
            for row in rows:
                copy.write_row(
                    (row.number, row.namespace, row.project, row.text, _written(row.vector))
                )

    def attach(self, store: Any, asked: Asked) -> None:
        """See `Client.attach`; the statements are those that the store sends for a first vector."""
        from memories.stores.postgres import connection

        schema = store._server.url.schema
        self._db.execute(f"SET search_path = {schema}, public; {connection._SETTINGS}")
        self.texts = dict(self._db.execute("SELECT seq, text FROM record").fetchall())
        for few, where in ((False, asked.everything), (True, asked.few)):
            self._sent[few] = _statements(store, where)

    def nearest(self, vector: Vector, scope: Scope) -> list[int]:
        """See `Client.nearest`."""
        text = _written(vector)
        found: list[tuple[int, float]] = []
        for sql, values in self._sent[scope is Scope.FEW]:
            given = [text if value is None else value for value in values]
            found += self._db.execute(sql, given).fetchall()
        best = sorted(dict(found).items(), key=lambda hit: -hit[1])
        return [seq for seq, _ in best[:K]]

    def close(self) -> None:
        """See `Client.close`."""
        self._db.close()


def _statements(store: Any, where: Filter) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the statements with which the store finds the nearest rows for a filter, with None in
    place of the vector.
    """
    from memories.stores.postgres import vectors as postgres_vectors
    from memories.stores.postgres.query import read_extent, selection

    sent: list[tuple[str, tuple[Any, ...]]] = []
    vector = np.full(DIMENSION, DIMENSION**-0.5, dtype=np.float32)
    with store._server.read(where.namespaces) as db:
        ask, selected = db.rows, selection(where)
        there = read_extent(db, selected)

        def noted(sql: str, values: Sequence[Any] = (), **named: Any) -> Any:
            sent.append((sql, tuple(values)))
            return ask(sql, values, **named)

        db.rows = noted
        postgres_vectors.find_best(db, db.meta.used, selected, there, vector, K)
    written = _written(vector)
    return [
        (sql, tuple(None if value == written else value for value in values))
        for sql, values in sent
        if "<=>" in sql
    ]


class Chroma:
    """Chroma's REST API over one connection: one collection of all memories, with default answers."""

    name = "http.client"
    does = "one collection over REST, with the store's index settings; `n_results=10`, and the filter as `where`"

    def __init__(self, host: str, port: int) -> None:
        """Make a collection with the same index settings as the store's."""
        self.texts: dict[int, str] = {}
        self._connection = http.client.HTTPConnection(host, port, timeout=120)
        self._path = "/api/v2/tenants/default_tenant/databases/default_database/collections"
        made = self._ask("", {"name": "plain", "configuration": driver._VECTORS})
        self._path += f"/{made['id']}"

    def insert(self, rows: Sequence[Row]) -> None:
        """See `Client.insert`."""
        self._ask(
            "/add",
            {
                "ids": [str(row.number) for row in rows],
                "embeddings": [row.vector.tolist() for row in rows],
                "documents": [row.text for row in rows],
                "metadatas": [{"namespace": row.namespace, "project": row.project} for row in rows],
            },
        )
        self.texts |= {row.number: row.text for row in rows}

    def attach(self, store: Store, asked: Asked) -> None:  # noqa: ARG002
        """See `Client.attach`."""
        pairs = [
            {"namespace": asked.few.namespaces[0]},
            *({name: each} for name, each in asked.few.labels.items()),
        ]
        self._filters: dict[Scope, Any] = {
            Scope.ALL: {},
            Scope.NAMESPACES: {"where": {"namespace": {"$in": list(asked.everything.namespaces)}}},
            Scope.FEW: {"where": {"$and": pairs}},
        }

    def nearest(self, vector: Vector, scope: Scope) -> list[int]:
        """See `Client.nearest`."""
        asked = {"query_embeddings": [vector.tolist()], "n_results": K, **self._filters[scope]}
        return [int(name) for name in self._ask("/query", asked)["ids"][0]]

    def _ask(self, path: str, body: Any) -> Any:
        self._connection.request(
            "POST", self._path + path, json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = self._connection.getresponse()
        said = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"Chroma refused {path or 'a collection'}: {said[:300]!r}")
        return json.loads(said)

    def close(self) -> None:
        """See `Client.close`."""
        self._connection.close()


class QdrantFolder:
    """The local mode of Qdrant's client in a separate folder."""

    name = "qdrant_client"
    does = "one collection in local mode; `query_points` with `limit=10` and the filter"

    def __init__(self, folder: Path) -> None:
        """Make a collection."""
        from qdrant_client import QdrantClient, models

        self.texts: dict[int, str] = {}
        self._client = QdrantClient(path=str(folder / "plain"))
        self._client.create_collection(
            "plain",
            vectors_config=models.VectorParams(size=DIMENSION, distance=models.Distance.COSINE),
        )

    def insert(self, rows: Sequence[Row]) -> None:
        """See `Client.insert`."""
        from qdrant_client import models

        points = [
            models.PointStruct(
                id=row.number,
                vector=row.vector.tolist(),
                payload={"namespace": row.namespace, "project": row.project, "text": row.text},
            )
            for row in rows
        ]
        self._client.upsert("plain", points)
        self.texts |= {row.number: row.text for row in rows}

    def attach(self, store: Store, asked: Asked) -> None:  # noqa: ARG002
        """See `Client.attach`."""
        from qdrant_client import models

        def having(name: str, *values: str) -> models.FieldCondition:
            return models.FieldCondition(key=name, match=models.MatchAny(any=list(values)))

        self._filters = {
            Scope.ALL: None,
            Scope.NAMESPACES: models.Filter(
                must=[having("namespace", *asked.everything.namespaces)]
            ),
            Scope.FEW: models.Filter(
                must=[
                    having("namespace", *asked.few.namespaces),
                    *(having(name, value) for name, value in asked.few.labels.items()),
                ]
            ),
        }

    def nearest(self, vector: Vector, scope: Scope) -> list[int]:
        """See `Client.nearest`."""
        found = self._client.query_points(
            "plain", vector, query_filter=self._filters[scope], limit=K
        )
        return [hit.id for hit in found.points]

    def close(self) -> None:
        """See `Client.close`."""
        self._client.close()


class Files:
    """Lines of JSON and 16-bit vectors, flushed to disk; a search compares all vectors with numpy."""

    name = "numpy"
    does = (
        "each insert writes and flushes a line of JSON and a 16-bit vector. The search compares all vectors, and "
        "returns ids without records"
    )

    def __init__(self, folder: Path) -> None:
        """Make two files."""
        self.texts: dict[int, str] = {}
        plain = folder / "plain"
        plain.mkdir()
        self._lines, self._vectors = (
            (plain / "plain.jsonl").open("ab"),
            (plain / "plain.vectors").open("ab"),
        )
        self._kept: list[Row] = []

    def insert(self, rows: Sequence[Row]) -> None:
        """See `Client.insert`."""
        said = [
            {"id": row.number, "namespace": row.namespace, "project": row.project, "text": row.text}
            for row in rows
        ]
        self._lines.write(
            "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in said).encode()
        )
        self._vectors.write(np.stack([row.vector for row in rows]).astype("<f2").tobytes())
        for file in (self._lines, self._vectors):
            file.flush()
            os.fsync(file.fileno())
        self._kept += rows
        self.texts |= {row.number: row.text for row in rows}

    def attach(self, store: Store, asked: Asked) -> None:  # noqa: ARG002
        """See `Client.attach`."""
        [namespace], project = asked.few.namespaces, asked.few.labels["project"]
        meant = [(row.namespace, row.project) == (namespace, project) for row in self._kept]
        codes = np.stack([row.vector for row in self._kept]).astype("<f2")
        numbers = np.array([row.number for row in self._kept])
        self._tables = {False: (codes, numbers), True: (codes[meant], numbers[meant])}

    def nearest(self, vector: Vector, scope: Scope) -> list[int]:
        """See `Client.nearest`."""
        codes, numbers = self._tables[scope is Scope.FEW]
        scores = codes.astype(np.float32) @ vector
        best = np.argpartition(-scores, min(K, len(scores) - 1))[:K]
        return [int(number) for number in numbers[best]]

    def close(self) -> None:
        """See `Client.close`."""
        self._lines.close()
        self._vectors.close()


def _written(vector: Vector) -> str:
    """Return a vector in the format of pgvector."""
    return f"[{','.join(map(str, vector.tolist()))}]"
