"""What stands around a turn: a turn is understood with the turns beside it and with its whole session. Pure.

The answer to "what did Ann buy?" may be the turn "a red bicycle!": the words of the question stand in the turns before
it. So words and similarity are looked at on three scales: the turn itself, a window of the turns beside it,
and its session, a run of turns without a long pause. Nothing crosses the border of a session.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memories.stores.records import BESIDE, ROLE, Matches

if TYPE_CHECKING:
    from numpy.typing import NDArray

BEFORE, AFTER = 2, 1  # turns whose words count as a turn's own: an answer follows the words of its question
ASIDE = frozenset({"assistant", "system", "tool"})
ASIDE_WORDS = 0.3  # what an assistant says at length holds every word; what a person says tells more


class Surroundings(NamedTuple):
    """Evidence for each match, shape (n,), on three scales.

    Attributes:
        words: BM25 of the turn.
        session_best: BM25 of the best turn of its session.
        window_words: The share of the question's words, weighted by rarity, that its window has, 0 to 1.
        session_words: The same for its session.
        similarity: The cosine of the turn, at least 0.
        window_similarity: The best cosine among the turns beside it, at least 0.
        session_similarity: The best cosine of its session.
        aside: 1.0 for the words of an assistant, a system or a tool, else 0.0.
    """

    words: "NDArray[np.float64]"
    session_best: "NDArray[np.float64]"
    window_words: "NDArray[np.float64]"
    session_words: "NDArray[np.float64]"
    similarity: "NDArray[np.float64]"
    window_similarity: "NDArray[np.float64]"
    session_similarity: "NDArray[np.float64]"
    aside: "NDArray[np.float64]"


def measure(matches: Matches) -> Surroundings:
    """Return the evidence for each match on the three scales."""
    aside_labels = np.array([labels.get(ROLE) in ASIDE for labels in matches.labels], dtype=np.float64)
    aside = aside_labels[matches.label]
    weight = np.where(aside > 0, ASIDE_WORDS, 1.0)
    words = matches.words * weight
    similarity = np.maximum(np.nan_to_num(matches.similarity, nan=0.0), 0.0)
    session = _sessions(matches)
    rarity = _rarity(matches)
    held = matches.holds * weight
    in_window = held.copy()
    near = np.zeros_like(similarity)
    for distance, here, there in _beside(session, matches.position):
        near[here] = np.maximum(near[here], similarity[there])
        if -BEFORE <= distance <= AFTER:
            in_window[:, here] = np.maximum(in_window[:, here], held[:, there])
    total = max(float(rarity.sum()), 1e-9)
    in_session = np.stack([_best_of(session, row) for row in held]) if len(held) else held
    return Surroundings(
        words=words,
        session_best=_best_of(session, words),
        window_words=rarity @ in_window / total,
        session_words=rarity @ in_session / total,
        similarity=similarity,
        window_similarity=near,
        session_similarity=_best_of(session, similarity),
        aside=aside,
    )


def _sessions(matches: Matches) -> "NDArray[np.int64]":
    """Return a number for the session of each match; what stands alone is a session of its own."""
    rows = len(matches.session)
    starts = np.where(matches.session < 0, -1 - np.arange(rows), matches.session) + rows  # none is negative
    _, numbers = np.unique(matches.group * (int(starts.max(initial=0)) + 1) + starts, return_inverse=True)
    return np.asarray(numbers, dtype=np.int64)


def _beside(
    session: "NDArray[np.int64]", position: "NDArray[np.int64]"
) -> "list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]":
    """Return a distance, up to `BESIDE` either way, rows, and for each the row so far after it in its session."""
    if not len(session):
        return []
    keys = session * (int(position.max()) + BESIDE + 1) + position  # so far apart, no window reaches another session
    order = np.argsort(keys)
    ordered = keys[order]
    pairs = []
    for distance in range(1, BESIDE + 1):
        at = np.searchsorted(ordered, ordered + distance)
        known = at < len(ordered)
        known[known] = ordered[at[known]] == ordered[known] + distance
        earlier, later = order[known], order[at[known]]
        pairs += [(distance, earlier, later), (-distance, later, earlier)]
    return pairs


def _rarity(matches: Matches) -> "NDArray[np.float64]":
    """Return the weight of each term, BM25's inverse document frequency; 0 for phrases, whose words count already."""
    having = matches.holds.sum(axis=1)
    count = max(matches.searched, matches.holds.shape[1])
    rarity = np.log1p((count - having + 0.5) / (having + 0.5))
    return np.asarray(rarity * np.array([" " not in term for term in matches.terms], dtype=np.float64))


def _best_of(session: "NDArray[np.int64]", values: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return for each row the largest value in its session."""
    best = np.zeros(int(session.max(initial=-1)) + 1)
    np.maximum.at(best, session, values)
    return np.asarray(best[session])
