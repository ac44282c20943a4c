"""Checks the anchors of all memories of a project: `Memories.verify`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from memories.errors import InvalidInput
from memories.models import VERDICTS, Memory, is_doubtful
from memories.read import versions
from memories.read.lookup import Lookup, with_global

if TYPE_CHECKING:
    from memories.stores.records import Record

_PAGE = 500


class Verification(NamedTuple):
    """Result of checking the anchors of memories.

    Attributes:
        counts: How many memories have each verdict.
        doubtful: The memories that are no longer true, those that changed first.
        unverified: The memories that could not be checked, or that are to be confirmed.
    """

    counts: Mapping[str, int]
    doubtful: tuple[Memory, ...]
    unverified: tuple[Memory, ...]


def verify(
    lookup: Lookup, project: str | Sequence[str] | None, now: datetime, half_life_hours: float
) -> Verification:
    """Check the anchors of memories.

    Args:
        lookup: The store, the namespaces to read, and the judge.
        project: Only memories of this project, and global ones; None for all.
        now: The present.
        half_life_hours: See `read.versions.compute_confidence`.

    Raises:
        InvalidInput: The caller gets no verdicts.
    """
    if lookup.judge is None:
        raise InvalidInput(
            "anchors are checked only by you, on the machine with the working tree; "
            "run memory verify there"
        )
    records: dict[str, Record] = {}
    for where in with_global(lookup.where(), project):
        after = None
        while page := lookup.store.scan(where, limit=_PAGE, after=after):
            after = (page[-1].ref.group, page[-1].ref.position)
            records |= {
                record.ref.group: record
                for record in page
                if any(name in record.fields for name in versions.ANCHORS)
            }
    memories = [versions.to_memory(record, now, half_life_hours) for record in records.values()]
    judged = lookup.judge.judge(memories, now)
    with_verdict = [(memory.verdict.word, memory) for memory in judged if memory.verdict]
    counts = Counter(word for word, _ in with_verdict)
    ordered = sorted(with_verdict, key=lambda pair: VERDICTS.index(pair[0]))
    return Verification(
        counts={word: counts[word] for word in VERDICTS},
        doubtful=tuple(memory for _, memory in ordered if is_doubtful(memory)),
        unverified=tuple(memory for word, memory in ordered if word == VERDICTS[2]),
    )
