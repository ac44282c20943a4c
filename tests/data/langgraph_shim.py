"""Replaces LangGraph's `SqliteStore` with `MemoriesStore`, for LangGraph's own tests.

`test_langgraph_own_tests` uses it as the `conftest.py` of the folder in which they run.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from memories.langgraph import MemoriesStore
from memories.stores.records import Space


class Embeddings:
    """Adapts a LangChain embedder to our protocol."""

    def __init__(self, embeddings: Any) -> None:
        self._embeddings = embeddings
        self.space = Space(
            model="langchain",
            dimension=embeddings.dims,
            noise_mean=0.0,
            noise_spread=0.0,
            weight=1.0,
            duplicate=1.0,
            calibration=(10.0, 0.5),
        )

    def embed(self, text: str) -> Any:
        return np.array([self._embeddings.embed_query(text)], dtype=np.float32)

    def familiarity(self, _text: str) -> float:
        return 1.0


class SqliteStore(MemoriesStore):
    """`MemoriesStore` with the constructor of LangGraph's store; each has its own file."""

    @classmethod
    @contextmanager
    def from_conn_string(cls, _file: str, index: Any = None) -> Iterator["SqliteStore"]:
        embedder: Any = "none" if index is None else Embeddings(index["embed"])
        fields = None if index is None else index["text_fields"]
        with (
            tempfile.TemporaryDirectory() as folder,
            cls(f"sqlite:///{folder}/m.db", embedder=embedder, fields=fields) as store,
        ):
            yield store

    def setup(self) -> None:
        """Do nothing: our stores need no set-up."""


package, base = ModuleType("langgraph.store.sqlite"), ModuleType("langgraph.store.sqlite.base")
package.SqliteStore = SqliteStore  # type: ignore[attr-defined]
for name in (
    "NS_MATCH_FUNCTION",
    "BaseSqliteStore",
    "SqliteIndexConfig",
    "_escape_glob_literal",
    "_namespace_match_pattern",
):
    setattr(base, name, None)
sys.modules |= {package.__name__: package, base.__name__: base}
