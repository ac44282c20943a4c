"""Reembed: every record gets vectors of another embedder, while searches go by the old ones; then the store switches.

It can be stopped at any moment and run again: what was embedded is not embedded again.
"""

from typing import NamedTuple

from memories.embedders.protocol import Embedder, embed_many
from memories.errors import Conflict, StoreError
from memories.stores.protocol import Store
from memories.stores.records import SEARCHED, Collection, Ref
from memories.transfer.pages import PAGE, Progress, places, refuse_damaged, total

MAX_PASSES = 20
PATIENCE = 10  # passes; if each left something new, the next ones embed the rest while other writers wait
FEW = 10  # records at most that they wait for: the embedder may be slow


class Reembedded(NamedTuple):
    """What a change of the embedder did: how many records were embedded, and which model the store had and has."""

    embedded: int
    before: str | None
    model: str


def reembed(store: Store, embedder: Embedder, *, progress: Progress) -> Reembedded:
    """Give every record vectors of this embedder, then search by them; before that, searches go by the old ones.

    It goes on where it was stopped. With the embedder in use it completes what has no vectors yet.

    Raises:
        StoreError: Others write faster than it embeds, or the store does not keep what is staged.
        StoreDamaged: Some records can't be read.
    """
    space = embedder.space
    among = places(store)
    if not among:
        embedder.embed(space.model)  # a model that can't be had is told now, not by the next write
        return Reembedded(0, None, space.model)
    refuse_damaged(store, among)
    before = store.info(among[0].everything()).model
    run = _Run(store, embedder, progress, total(store, among))
    for number in range(MAX_PASSES):
        run.embed_most()
        try:
            if run.switch(0 if number < PATIENCE else FEW):
                return Reembedded(run.done, before, space.model)
        except Conflict:
            continue  # a store without transactions, and somebody has written meanwhile
    raise StoreError("others write faster than the embedder embeds; run it again when there is less to do")


class _Run:
    """Embeds the records that have no vectors yet.

    Attributes:
        done: How many records were embedded.
    """

    def __init__(self, store: Store, embedder: Embedder, progress: Progress, whole: int) -> None:
        self.done = 0
        self._store, self._embedder, self._progress, self._whole = store, embedder, progress, whole
        self._seen: set[Ref] = set()

    def embed_most(self) -> None:
        """Embed page after page, but not for ever: what is written meanwhile waits for the next pass."""
        for collection in SEARCHED:
            for _ in range(self._whole // PAGE + 1):
                if self._embed(collection, PAGE) < PAGE:
                    break

    def switch(self, few: int) -> bool:
        """Search by the new vectors if at most `few` records are left to embed; return whether that was done."""
        space = self._embedder.space
        with self._store.transaction():
            left = [len(self._store.unstaged(space, collection, limit=few + 1)) for collection in SEARCHED]
            if max(left) > few:
                return False
            for collection in SEARCHED if any(left) else ():
                self._embed(collection, few)
            self._store.switch(space)
            return True

    def _embed(self, collection: Collection, limit: int) -> int:
        records = self._store.unstaged(self._embedder.space, collection, limit=limit)
        refs = {record.ref for record in records}
        if refs and refs == self._seen:
            raise StoreError(
                "the store does not keep the vectors that are staged; if another reembed is running, wait for it, and "
                "run this again; searches go by the old ones"
            )
        self._seen = refs
        if records:
            vectors = embed_many(
                self._embedder, [record.text for record in records], [record.role for record in records]
            )
            rows = {record.ref: rows for record, rows in zip(records, vectors, strict=True)}
            self._store.stage(self._embedder.space, rows)
        self.done += len(records)
        self._progress("embedding", min(self.done, self._whole), self._whole)
        return len(records)
