"""Search results as columns: how a store builds the `Matches` that `Store.matches` returns."""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from memories.core.times import to_millis
from memories.stores.records import Matches, Record
from memories.stores.words import WordHits, WordScores

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LEADING = 20  # number of best records, by words and by vector, whose neighbours are also returned
MAX_OF_A_DAY = 100  # maximum number of turns returned for a time span in the query

Id = TypeVar("Id")


def leading(*scores: Mapping[Id, float]) -> list[Id]:
    """Return the ids of the best turns by each of these scores.

    A search also returns the neighbours of the best turns.
    """
    ids: list[Id] = []
    for mapping in scores:
        ids += heapq.nlargest(_LEADING, mapping, key=mapping.__getitem__)
    return ids


class Addresses(NamedTuple):
    """The columns of `Matches` that identify records, and each record's `seq` in its table."""

    seqs: "NDArray[np.int64]"
    groups: Sequence[tuple[str, str]]
    group: "NDArray[np.int64]"
    position: "NDArray[np.int64]"
    session: "NDArray[np.int64]"
    created_at: "NDArray[np.int64]"
    labels: Sequence[dict[str, str]]
    label: "NDArray[np.int64]"


def addresses_of(
    columns: Sequence[Sequence[Any]],
    group_of: Callable[[Any, Any], tuple[str, str]],
    labels_of: Callable[[list[Any]], list[dict[str, str]]],
) -> Addresses:
    """Build `Addresses` from the columns of a SQL result.

    Args:
        columns: `seq`, namespace, group, position, session, creation time and labels, as the
            store encodes them.
        group_of: Decodes a namespace and a group.
        labels_of: Decodes sets of labels.
    """
    seqs, namespaces, names, positions, sessions, times, label_sets = columns
    distinct_groups, group = _number(list(zip(namespaces, names, strict=True)))
    distinct_labels, label = _number(label_sets)
    return Addresses(
        seqs=np.array(seqs, dtype=np.int64),
        groups=[group_of(*pair) for pair in distinct_groups],
        group=group,
        position=np.array(positions, dtype=np.int64),
        session=np.array(sessions, dtype=np.int64),
        created_at=np.array(times, dtype=np.int64),
        labels=labels_of(distinct_labels),
        label=label,
    )


def matches_at(
    addresses: Addresses, words: WordHits, similarity: "NDArray[np.float64]", searched: int
) -> Matches:
    """Convert hits by words and vectors to the result of `Store.matches`; see `matches_of`."""
    order = np.argsort(addresses.seqs)
    ordered = addresses.seqs[order]

    def rows_of(seqs: Iterable[int]) -> "tuple[NDArray[np.int64], NDArray[np.bool_]]":
        """Return the rows with these `seq` values, and a mask of the values that were found."""
        wanted = np.fromiter(seqs, dtype=np.int64)
        index = np.searchsorted(ordered, wanted)
        has_row = index < len(ordered)
        has_row[has_row] = ordered[index[has_row]] == wanted[has_row]
        return order[index[has_row]], has_row

    scores = np.zeros(len(ordered))
    rows, has_row = rows_of(words.scores)
    scores[rows] = np.fromiter(words.scores.values(), dtype=np.float64)[has_row]
    holds = np.zeros((len(words.holders), len(ordered)), dtype=np.bool_)
    for number, holders in enumerate(words.holders.values()):
        holds[number, rows_of(holders)[0]] = True
    word_scores = WordScores(scores, list(words.holders), holds)
    return _make_matches(addresses, word_scores, similarity, searched)


def matches_of(
    records: Sequence[Record],
    words: WordScores,
    similarity: "NDArray[np.float64]",
    *,
    searched: int,
) -> Matches:
    """Convert records to the form that `Store.matches` returns.

    Args:
        records: The records, shape (n,).
        words: The records' word scores.
        similarity: The cosine of each record's best window, shape (n,); NaN without a vector.
        searched: The number of records searched.
    """
    rows: list[tuple[Any, ...]] = []
    for number, record in enumerate(records):
        session = -1 if record.session is None else record.session
        created_at, labels = to_millis(record.created_at), tuple(sorted(record.labels.items()))
        ref = record.ref
        rows.append((number, ref.namespace, ref.group, ref.position, session, created_at, labels))
    columns = list(zip(*rows, strict=True)) if rows else [()] * 7
    addresses = addresses_of(
        columns, lambda *group: group, lambda sets: [dict(pairs) for pairs in sets]
    )
    return _make_matches(addresses, words, similarity, searched)


def _make_matches(
    addresses: Addresses, words: WordScores, similarity: "NDArray[np.float64]", searched: int
) -> Matches:
    return Matches(
        *addresses[1:],
        word_score=words.scores,
        similarity=similarity,
        terms=words.terms,
        holds=words.holds,
        searched=searched,
    )


def _number(values: Sequence[Any]) -> "tuple[list[Any], NDArray[np.int64]]":
    """Return the distinct values, and the index of each given value among them."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) <= 1:
        return distinct, np.zeros(len(values), dtype=np.int64)
    numbers = dict(zip(distinct, range(len(distinct)), strict=True))
    return distinct, np.array([numbers[value] for value in values], dtype=np.int64)
