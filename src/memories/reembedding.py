"""Reembed: every record gets vectors of another embedder, while searches go by the old ones; then the store switches.

It can be stopped at any moment and run again: what was embedded is not embedded again.
"""

from typing import NamedTuple

from memories.embedders.base import Embedder, embed_many
from memories.errors import Conflict, StoreError
from memories.models import Collection, Ref
from memories.stores.base import Store
from memories.transfer import PAGE, Progress, places, total

FEW = 100  # so few records may be embedded while other writers wait
MAX_PASSES = 20


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
    """
    space = embedder.space
    among = places(store)
    if not among:
        return Reembedded(0, None, space.model)
    before = store.info(among[0].everything()).model
    whole, done = total(store, among), 0
    seen: set[Ref] = set()

    def embed_some(collection: Collection, limit: int) -> int:
        nonlocal done, seen
        records = store.unstaged(space, collection, limit=limit)
        refs = {record.ref for record in records}
        if refs and refs == seen:
            raise StoreError(
                "the store does not keep the vectors that are staged; if another reembed is running, wait for it, and "
                "run this again; searches go by the old ones"
            )
        seen = refs
        if records:
            vectors = embed_many(embedder, [record.text for record in records])
            store.stage(space, {record.ref: rows for record, rows in zip(records, vectors, strict=True)})
        done += len(records)
        progress("embedding", min(done, whole), whole)
        return len(records)

    for _ in range(MAX_PASSES):
        for collection in Collection:
            while embed_some(collection, PAGE) == PAGE:
                pass
        try:
            with store.transaction():
                if max([embed_some(collection, FEW) for collection in Collection]) < FEW:
                    store.switch(space)
                    return Reembedded(done, before, space.model)
        except Conflict:
            continue  # a store without transactions, and somebody has written meanwhile
    raise StoreError("others write faster than the embedder embeds; run it again when there is less to do")
