"""Memories that say the same as others, found among what is stored already; nothing is changed."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from memories.guard.origin import tags_of
from memories.models import Draft, Memory
from memories.read import versions
from memories.read.selector import Selector
from memories.stores.records import Collection, Filter, Record
from memories.write.create import Similar, Writer

_PAGE = 250


class Repetition(NamedTuple):
    """A memory that says what older ones say.

    Attributes:
        memory: The newer one.
        of: The older ones, most similar first.
    """

    memory: Memory
    of: tuple[Similar, ...]


def find(writer: Writer, selector: Selector, limit: int) -> Iterator[Repetition]:
    """Yield memories of the writer's namespace that are selected and repeat older ones, newest first."""
    return islice(_found(writer, selector), limit)


def _found(writer: Writer, selector: Selector) -> Iterator[Repetition]:
    where = Filter(Collection.MEMORY, (writer.lookup.namespace,))
    narrowed, after = selector.narrowed(where), None
    while page := writer.store.scan(narrowed, limit=_PAGE, after=after, newest_first=True):
        after = (page[-1].ref.group, page[-1].ref.position)
        vectors = writer.store.vectors([record.ref for record in page]) if writer.embedder else {}
        for record in filter(selector.selects, page):
            if older := _older(writer, record, vectors.get(record.ref)):
                yield Repetition(versions.to_memory(record, writer.now, writer.half_life_hours), older)


def _older(writer: Writer, record: Record, vectors: object) -> tuple[Similar, ...]:
    """Return what a new memory of this text would be a duplicate of, but for what is newer."""
    itself = Draft(record.text, tags_of(record.labels), supersedes=record.ref.group)  # which is left out
    compared = writer.compare(itself, vectors)
    same = () if compared.same is None else (_exact(compared.same),)
    return tuple(each for each in (*same, *compared.duplicates) if each.id < record.ref.group)


def _exact(record: Record) -> Similar:
    return Similar(record.ref.group, record.text, 1.0, record.created_at, record.labels.get("agent"))
