"""Search by words in scratchpads: what answers at once, and what is left where the store can't be asked. Pure."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from memories import versions
from memories.hot.entries import Entry, Rules, aging, heat, is_current, moment, of_unknown_age
from memories.origin import AGENT, TRUSTS, Origin, stamped
from memories.search.results import Explanation, Hit
from memories.stores.records import Collection, Record, Ref
from memories.text import covered, query_terms
from memories.times import to_millis

LEAST = 1 / 3  # of the telling words of a question
ENOUGH_WORDS = 2  # so many at least, and all of them: then the scratchpad alone is an answer
_OF_WORDS, _OF_HEAT = 0.7, 0.3  # in a score


class Matches(NamedTuple):
    """What a scratchpad has for a question.

    Attributes:
        found: The hits, best first.
        best: Those of them that have every telling word of the question, of which there are at least two.
    """

    found: Explanation
    best: tuple[Hit, ...]

    @property
    def enough(self) -> bool:
        """Whether no other search is needed."""
        return bool(self.best)


def matches(
    entries: Sequence[Entry], query: str, fits: Callable[[Record], bool], limit: int, rules: Rules, now: datetime
) -> Matches:
    """Return the entries that have words of a question, best first.

    Args:
        entries: What scratchpads hold.
        query: The question.
        fits: Returns whether a memory meets the filters of the search.
        limit: How many at most.
        rules: What the settings say.
        now: The time to judge at.
    """
    terms = tuple(dict.fromkeys(term.strip() for term in query_terms(query)))
    words = [term for term in terms if " " not in term]
    rows: list[tuple[float, float, str, Record]] = []
    for entry in entries:
        record = record_of(entry, now)
        share = covered(_said(entry), words) if words else 0.0
        if share >= LEAST and is_current(entry, rules, now) and fits(record):
            score = share * (_OF_WORDS + _OF_HEAT * min(1.0, heat(entry, now, rules.relevance)))
            rows.append((share, score, entry.id, record))
    rows.sort(reverse=True)
    hits = tuple(_hit(record, score, rules, now) for _, score, _, record in rows[:limit])
    whole = sum(share == 1.0 for share, _, _, _ in rows[:limit]) if len(words) >= ENOUGH_WORDS else 0
    return Matches(Explanation(hits, (), terms, of_unknown_age(entries)), hits[:whole])


def merged(deep: Explanation, hot: Sequence[Hit], limit: int) -> Explanation:
    """Return the hits of the store, and behind them those of the scratchpad that it did not find; each memory once."""
    known = {each.id for each in deep.hits}
    return deep._replace(hits=(*deep.hits, *(each for each in hot if each.id not in known))[:limit])


def record_of(entry: Entry, now: datetime) -> Record:
    """Return the record that an entry stands for, as far as it tells."""
    written = moment(entry.written, now)
    fields = {
        "first_at": to_millis(moment(entry.created, written)),
        "suspicious": entry.suspicious or None,
        **aging(entry),
    }
    by = Origin(entry.trust if entry.trust in TRUSTS else AGENT, "", entry.by, None, "", "", "", entry.namespace)
    text = entry.content
    if entry.cut is not None:
        text = f"{text}… ({entry.cut - len(text)} more characters; memory get {entry.id} shows them)"
    return Record(
        Ref(Collection.MEMORY, entry.namespace, entry.id, max(1, entry.version)),
        text,
        written,
        key=None if entry.key is None else versions.scoped_key(entry.key, entry.tags),
        labels=stamped(entry.tags, by) if entry.by else entry.tags,
        fields={name: value for name, value in fields.items() if value is not None},
        accesses=entry.uses,
    )


def _said(entry: Entry) -> str:
    return " ".join([entry.content, *entry.tags.values(), entry.key or "", entry.by])


def _hit(record: Record, score: float, rules: Rules, now: datetime) -> Hit:
    record = record._replace(accesses=0)  # a file counts reads too late to report them
    return Hit(versions.to_memory(record, now, rules.half_life_hours), round(score, 4), None, None)
