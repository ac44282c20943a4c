"""Records as columns: what a store returns from `matches` that has read the records themselves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from memories.stores.records import Matches, Record
from memories.stores.words import Words
from memories.times import to_millis

if TYPE_CHECKING:
    from numpy.typing import NDArray


def matches_of(records: Sequence[Record], words: Words, similarity: "NDArray[np.float64]", *, searched: int) -> Matches:
    """Return records as `Store.matches` does.

    Args:
        records: The records, shape (n,).
        words: How well the words of each match.
        similarity: The cosine of each one's best window, shape (n,); NaN for what has no vector.
        searched: How many records were searched.
    """
    groups: dict[tuple[str, str], int] = {}
    labels: dict[tuple[tuple[str, str], ...], int] = {}
    group = [groups.setdefault((found.ref.namespace, found.ref.group), len(groups)) for found in records]
    label = [labels.setdefault(tuple(sorted(found.labels.items())), len(labels)) for found in records]
    return Matches(
        groups=list(groups),
        group=np.array(group, dtype=np.int64),
        position=np.array([found.ref.position for found in records], dtype=np.int64),
        session=np.array([-1 if found.session is None else found.session for found in records], dtype=np.int64),
        created_at=np.array([to_millis(found.created_at) for found in records], dtype=np.int64),
        labels=[dict(pairs) for pairs in labels],
        label=np.array(label, dtype=np.int64),
        words=words.scores,
        similarity=similarity,
        terms=words.terms,
        holds=words.holds,
        searched=searched,
    )
