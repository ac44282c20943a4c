"""The context in which memories are written: the store, the embedder and the settings."""

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.models import Draft, Memory
from memories.read import versions
from memories.read.lookup import Lookup
from memories.stores.protocol import Store
from memories.stores.records import Record
from memories.write.anchoring import Anchoring

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.guard.redactor import Redactor
    from memories.settings import Config
    from memories.write.repetitions import Repetition


class WriteContext(NamedTuple):
    """The store, embedder, settings and options for one caller's writes.

    Attributes:
        lookup: Finds the memories that the caller may read and write.
        embedder: Computes the vectors; None to compare by words only.
        now: The time for drafts without one.
        config: The settings. A draft is compared with a memory below `min_confidence` only if the
            memory is at least as confident as the draft.
        force: Whether to store drafts without comparing them.
        redactor: Removes secrets; None to keep drafts unchanged.
        within: Tag keys that, like `project`, distinguish memories: a draft does not repeat a
            memory that has a different value for one of them.
    """

    lookup: Lookup
    embedder: "Embedder | None"
    now: datetime
    config: "Config"
    force: bool
    redactor: "Redactor | None"
    within: tuple[str, ...] = ()

    @property
    def anchoring(self) -> Anchoring:
        """Finds and checks the anchors of the caller's drafts."""
        return Anchoring(self.lookup.judge, self.redactor, self.now)

    @property
    def store(self) -> Store:
        """The store to which memories are written."""
        return self.lookup.store

    def to_memory(self, record: Record) -> Memory:
        """Return a record as a memory, with its current confidence."""
        return versions.to_memory(record, self.now, self.config.decay_half_life_hours)

    def retire(self, superseded: Record | None, successor: str, at: datetime) -> None:
        """End a superseded memory, and take it out of its chain of corrections; do nothing
        for None.
        """
        if superseded is not None:
            from memories.write.links import leave_correction_chains  # rarely needed

            leave_correction_chains(self.store, [superseded])
            patch = versions.end_version(superseded, at, "supersede", superseded_by=successor)
            self.store.patch([patch])

    def retire_for(self, superseded: Record | None, successor: Record, at: datetime) -> Record:
        """End a superseded memory; return its successor with its links, which may have
        changed.
        """
        if superseded is None:
            return successor
        self.retire(superseded, successor.ref.group, at)
        return self.lookup.own.find(successor.ref.group)

    def take_links_of(self, superseded: Record | None, memory: Memory) -> Record:
        """Link a memory to those that the superseded one corrected; return its record.

        Args:
            superseded: The superseded memory as it was before; None if there is none.
            memory: The stored memory.
        """
        from memories.write.links import take_over_links

        record = self.lookup.own.find(memory.id)
        if superseded is None or superseded.ref.group == memory.id:
            return record
        taken_over = versions.read_corrects(superseded, self.now)
        return take_over_links(self.store, record, taken_over, self.now)

    def make_repetition(
        self, record: Record, draft: Draft, vectors: Any, redacted: tuple[str, ...] = ()
    ) -> "Repetition":
        """Return a draft as a repetition of the memory with the same text."""
        from memories.write.repetitions import (
            Repetition,
        )  # imported here, since few drafts repeat a memory

        return Repetition(
            self.store, record, draft, vectors, redacted, draft.created_at or self.now
        )
