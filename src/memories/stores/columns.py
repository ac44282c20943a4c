"""Matches as columns: how a store puts together what `Store.matches` returns."""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from memories.core.times import to_millis
from memories.stores.records import Matches, Record
from memories.stores.words import WordHits, WordScores

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LEADING = 20  # how many of the best by words, and by vector, bring the turns beside them
# how many turns of a span that the query asks about are looked at, whatever they say
OF_A_DAY = 100

Id = TypeVar("Id")


def leading(*scores: Mapping[Id, float]) -> list[Id]:
    """Return the ids with the highest scores of each mapping: they bring the turns beside them."""
    return [
        best for found in scores for best in heapq.nlargest(_LEADING, found, key=found.__getitem__)
    ]


class Places(NamedTuple):
    """Where records are, as columns of `Matches`, and the number by which the store knows each
    row.
    """

    seqs: "NDArray[np.int64]"
    groups: Sequence[tuple[str, str]]
    group: "NDArray[np.int64]"
    position: "NDArray[np.int64]"
    session: "NDArray[np.int64]"
    created_at: "NDArray[np.int64]"
    labels: Sequence[dict[str, str]]
    label: "NDArray[np.int64]"


def places_of(
    columns: Sequence[Sequence[Any]],
    group_of: Callable[[Any, Any], tuple[str, str]],
    labels_of: Callable[[list[Any]], list[dict[str, str]]],
) -> Places:
    """Return places from the columns seq, namespace, group, position, session, time of creation and
    labels.

    Args:
        columns: As the store keeps them.
        group_of: Returns the names of a namespace and a group.
        labels_of: Returns sets of labels.
    """
    seqs, namespaces, names, positions, sessions, times, sets = columns
    groups, group = _numbered(list(zip(namespaces, names, strict=True)))
    labels, label = _numbered(sets)
    return Places(
        seqs=np.array(seqs, dtype=np.int64),
        groups=[group_of(*found) for found in groups],
        group=group,
        position=np.array(positions, dtype=np.int64),
        session=np.array(sessions, dtype=np.int64),
        created_at=np.array(times, dtype=np.int64),
        labels=labels_of(labels),
        label=label,
    )


def matches_at(
    places: Places, words: WordHits, similarity: "NDArray[np.float64]", searched: int
) -> Matches:
    """Return the records at these places as `Store.matches` does; see `matches_of`."""
    order = np.argsort(places.seqs)
    ordered = places.seqs[order]

    def rows_of(seqs: Iterable[int]) -> "tuple[NDArray[np.int64], NDArray[np.bool_]]":
        """Return the rows of these seqs, and which of the seqs have one."""
        wanted = np.fromiter(seqs, dtype=np.int64)
        at = np.searchsorted(ordered, wanted)
        known = at < len(ordered)
        known[known] = ordered[at[known]] == wanted[known]
        return order[at[known]], known

    scores = np.zeros(len(ordered))
    rows, known = rows_of(words.scores)
    scores[rows] = np.fromiter(words.scores.values(), dtype=np.float64)[known]
    holds = np.zeros((len(words.holders), len(ordered)), dtype=np.bool_)
    for number, holders in enumerate(words.holders.values()):
        holds[number, rows_of(holders)[0]] = True
    return _matches(places, WordScores(scores, list(words.holders), holds), similarity, searched)


def matches_of(
    records: Sequence[Record],
    words: WordScores,
    similarity: "NDArray[np.float64]",
    *,
    searched: int,
) -> Matches:
    """Return records as `Store.matches` does.

    Args:
        records: The records, shape (n,).
        words: How well the words of each match.
        similarity: The cosine of each one's best window, shape (n,); NaN if it has no vector.
        searched: How many records were searched.
    """
    columns = (
        range(len(records)),
        [record.ref.namespace for record in records],
        [record.ref.group for record in records],
        [record.ref.position for record in records],
        [-1 if record.session is None else record.session for record in records],
        [to_millis(record.created_at) for record in records],
        [tuple(sorted(record.labels.items())) for record in records],
    )
    places = places_of(columns, lambda *group: group, lambda sets: [dict(pairs) for pairs in sets])
    return _matches(places, words, similarity, searched)


def _matches(
    places: Places, words: WordScores, similarity: "NDArray[np.float64]", searched: int
) -> Matches:
    return Matches(
        *places[1:],
        words=words.scores,
        similarity=similarity,
        terms=words.terms,
        holds=words.holds,
        searched=searched,
    )


def _numbered(values: Sequence[Any]) -> "tuple[list[Any], NDArray[np.int64]]":
    """Return the distinct values, and for each value which of them it is."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) <= 1:
        return distinct, np.zeros(len(values), dtype=np.int64)
    numbers = dict(zip(distinct, range(len(distinct)), strict=True))
    return distinct, np.array([numbers[value] for value in values], dtype=np.int64)
