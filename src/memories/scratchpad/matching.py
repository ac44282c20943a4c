"""Search by words in scratchpads: what answers at once, and what is left where the store can't be
asked. Pure.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, Self

from memories.core.times import to_millis
from memories.guard.origin import AGENT, TRUSTS, Origin, stamped
from memories.languages.text import (
    covered,
    is_number,
    is_unspaced,
    query_terms,
    telling_tokens,
    tokens,
)
from memories.read import versions
from memories.scratchpad.entries import (
    Entry,
    Rules,
    aging,
    heat,
    is_current,
    moment,
    of_unknown_age,
)
from memories.search.results import Explanation, Hit
from memories.stores.records import Collection, Record, Ref

LEAST = 1 / 3  # of the telling words of a question
ENOUGH_WORDS = 2  # so many at least, and all of them: then the scratchpad alone is an answer
LEAST_BEGINNING = 4  # letters of a word that may have another ending
_OF_WORDS, _OF_HEAT = 0.7, 0.3  # in a score


class Matches(NamedTuple):
    """What a scratchpad has for a question.

    Attributes:
        found: The hits, best first.
        best: Those of them that have every telling word of the question as it stands, and there are
            at least two.
    """

    found: Explanation
    best: tuple[Hit, ...]

    @property
    def enough(self) -> bool:
        """Whether no other search is needed."""
        return bool(self.best)


def matches(
    entries: Sequence[Entry],
    query: str,
    fits: Callable[[Record], bool],
    limit: int,
    rules: Rules,
    now: datetime,
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
    asked = _Asked.of(query, terms)
    rows: list[tuple[bool, float, float, str, Record]] = []
    for entry in entries:
        record = record_of(entry, now)
        share, is_whole = asked.found_in(_said(entry))
        if share >= LEAST and is_current(entry, rules, now) and fits(record):
            score = share * (_OF_WORDS + _OF_HEAT * min(1.0, heat(entry, now, rules.relevance)))
            rows.append((is_whole, share, score, entry.id, record))
    rows.sort(reverse=True)
    hits = tuple(_hit(record, score, rules, now) for _, _, score, _, record in rows[:limit])
    whole = sum(is_whole for is_whole, *_ in rows[:limit])
    return Matches(Explanation(hits, (), terms, of_unknown_age(entries), "hot"), hits[:whole])


class _Asked(NamedTuple):
    """What is looked for in an entry.

    Attributes:
        beginnings: Words that an entry may have with another ending.
        exact: Numbers and short words, which it must have as they stand: the beginning of one is
            another word.
        whole: All telling words, as they stand.
        is_answerable: Whether an entry with all of them is enough of an answer.
    """

    beginnings: Sequence[str]
    exact: Sequence[str]
    whole: set[str]
    is_answerable: bool

    @classmethod
    def of(cls, query: str, terms: Sequence[str]) -> Self:
        """Read a question; `terms` are its terms."""
        words = [term for term in terms if " " not in term]
        whole = telling_tokens(query)
        short = [
            word
            for word in words
            if len(word) < LEAST_BEGINNING and not (is_unspaced(word) or is_number(word))
        ]
        return cls(
            beginnings=[word for word in words if word not in short and not is_number(word)],
            exact=[*short, *filter(is_number, whole)],
            whole=whole,
            is_answerable=min(len(words), len(whole)) >= ENOUGH_WORDS,
        )

    def found_in(self, said: str) -> tuple[float, bool]:
        """Return the share of the words that a text has, 0 to 1, and whether it alone is an
        answer.
        """
        held = tokens(said)
        count = sum(word in held for word in self.exact) + covered(said, self.beginnings) * len(
            self.beginnings
        )
        is_whole = self.is_answerable and self.whole <= held
        return 1.0 if is_whole else count / max(1, len(self.exact) + len(self.beginnings)), is_whole


def record_of(entry: Entry, now: datetime) -> Record:
    """Return the record that an entry stands for, as far as it tells."""
    written = moment(entry.written, now)
    fields = {
        "first_at": to_millis(moment(entry.created, written)),
        "suspicious": entry.suspicious or None,
        **aging(entry),
    }
    by = Origin(
        entry.trust if entry.trust in TRUSTS else AGENT,
        "",
        entry.by,
        None,
        "",
        "",
        "",
        entry.namespace,
    )
    text = entry.content
    if entry.cut is not None:
        text = (
            f"{text}… ({entry.cut - len(text)} more characters; memory get {entry.id} shows them)"
        )
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
