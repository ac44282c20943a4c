"""Every way to use a store, and helpers for the tests of its files."""

import stat
from collections.abc import Callable
from pathlib import Path

from contract import (
    HISTORY,
    MEMORY,
    OTHER,
    embed_other,
    matching,
    pool,
    record,
    search,
)

from memories.stores.records import (
    Patch,
    Ref,
)
from memories.stores.sqlite.store import SQLiteStore


def mode(file: Path) -> int:
    """Return the permissions of a file."""
    return stat.S_IMODE(file.stat().st_mode)


def all_uses(store: SQLiteStore) -> list[Callable[[], object]]:
    """Return every way to use a store, each as a call."""
    ref = Ref(MEMORY, "ann", "m", 1)
    return [
        lambda: store.scan(pool(), limit=1),
        lambda: store.groups(pool(), limit=1),
        lambda: store.count(pool()),
        lambda: store.labels(pool(), None),
        lambda: search(store, "note"),
        lambda: store.info(pool()),
        lambda: matching(store, "note"),
        lambda: store.read([ref]),
        lambda: store.values(HISTORY, ["ann"], "who"),
        lambda: store.namespaces(MEMORY),
        lambda: store.vectors([ref]),
        lambda: store.unstaged(OTHER, MEMORY, limit=1),
        lambda: store.stage(OTHER, {ref: embed_other("note")}),
        lambda: store.switch(OTHER),
        lambda: store.append([record("n")]),
        lambda: store.patch([Patch(ref, None, None, {})]),
        lambda: store.remove([ref]),
        lambda: store.transaction().__enter__(),
    ]
