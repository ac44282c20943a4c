"""The answers of several stores as the answer of one. Pure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memories.stores.records import Candidate, Matches, Record
from memories.stores.sqlite.schema import encode_group

if TYPE_CHECKING:
    from numpy.typing import NDArray


def scanned(parts: Sequence[list[Record]], limit: int, *, newest_first: bool) -> list[Record]:
    """Return the first records of several scans, in the order of a SQLite store: names before ids."""
    found = [record for part in parts for record in part]
    found.sort(key=lambda one: (*_order(one.ref.group), one.ref.position, one.ref.namespace), reverse=newest_first)
    return found[:limit]


def grouped(parts: Sequence[list[tuple[str, str]]], limit: int) -> list[tuple[str, str]]:
    """Return the first groups of several stores."""
    return sorted((place for part in parts for place in part), key=lambda place: (*_order(place[1]), place[0]))[:limit]


def best(parts: Sequence[list[Candidate]], k: int) -> list[Candidate]:
    """Return the best candidates of several searches, `k` by words and `k` by vector."""
    found = [candidate for part in parts for candidate in part]
    by_words = sorted((one for one in found if one.words > 0), key=lambda one: -one.words)[:k]
    similar = [(one.similarity, one) for one in found if one.similarity is not None]
    similar.sort(key=lambda pair: -pair[0])
    return list({one.record.ref: one for one in [*by_words, *(one for _, one in similar[:k])]}.values())


def matched(parts: Sequence[Matches]) -> Matches:
    """Return the rows of several matches as one."""
    import numpy as np

    if len(parts) == 1:
        return parts[0]
    terms = list(dict.fromkeys(term for part in parts for term in part.terms))
    holds = np.zeros((len(terms), sum(len(part.group) for part in parts)), dtype=np.bool_)
    group: list[NDArray[np.int64]] = []
    label: list[NDArray[np.int64]] = []
    groups, labels, at = 0, 0, 0
    for part in parts:
        group.append(part.group + groups)
        label.append(part.label + labels)
        for row, term in enumerate(part.terms):
            holds[terms.index(term), at : at + len(part.group)] = part.holds[row]
        groups, labels, at = groups + len(part.groups), labels + len(part.labels), at + len(part.group)
    return Matches(
        groups=[place for part in parts for place in part.groups],
        group=np.concatenate(group),
        position=np.concatenate([part.position for part in parts]),
        session=np.concatenate([part.session for part in parts]),
        created_at=np.concatenate([part.created_at for part in parts]),
        labels=[each for part in parts for each in part.labels],
        label=np.concatenate(label),
        words=np.concatenate([part.words for part in parts]),
        similarity=np.concatenate([part.similarity for part in parts]),
        terms=terms,
        holds=holds,
        searched=sum(part.searched for part in parts),
    )


def _order(group: str) -> tuple[bool, str | bytes]:
    encoded = encode_group(group)
    return isinstance(encoded, bytes), encoded
