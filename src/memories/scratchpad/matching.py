"""Pure functions that search a scratchpad by words, for quick answers or when the store is down."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, Self

from memories.core.times import to_millis
from memories.guard.origin import AGENT, TRUSTS, Origin, stamp_labels
from memories.languages.text import (
    coverage,
    is_number,
    is_unspaced,
    query_terms,
    significant_tokens,
    tokens,
)
from memories.models import SHARED
from memories.read import versions
from memories.scratchpad.entries import (
    Entry,
    EntryRules,
    heat,
    is_confident,
    parse_time,
    record_fields,
)
from memories.search.results import Explanation, Hit
from memories.stores.records import Collection, Record, Ref

MIN_SHARE = 1 / 3  # a hit contains at least this fraction of a question's words
# If a question has at least this many significant words, an entry that contains them all answers
# it, and the store is not searched.
ENOUGH_WORDS = 2
MIN_STEM = 4  # minimum length of a word that also matches with a different ending
_WORD_WEIGHT, _HEAT_WEIGHT = 0.7, 0.3  # weights of the words and of the heat in a score


class ScratchpadMatches(NamedTuple):
    """The result of a search in scratchpads.

    Attributes:
        explanation: The hits, best first, as an explanation without the candidates that were
            dropped.
        best: The hits that contain every significant word of the question unchanged. Empty if the
            question has fewer than `ENOUGH_WORDS` such words.
    """

    explanation: Explanation
    best: tuple[Hit, ...]

    @property
    def is_enough(self) -> bool:
        """Whether no other search is needed."""
        return bool(self.best)


class _Match(NamedTuple):
    """An entry that contains words from a question. A better match compares as greater."""

    is_whole: bool
    share: float
    score: float
    memory_id: str
    record: Record


def find_matches(
    entries: Sequence[Entry],
    query: str,
    is_wanted: Callable[[Record], bool],
    limit: int,
    rules: EntryRules,
    now: datetime,
) -> ScratchpadMatches:
    """Return the entries that contain words from a question, best first.

    Args:
        entries: The entries of scratchpads.
        query: The question.
        is_wanted: Returns whether a memory meets the filters of the search.
        limit: Maximum number of hits.
        rules: The settings of the scratchpad.
        now: The current time.
    """
    terms = tuple(dict.fromkeys(term.strip() for term in query_terms(query)))
    words = _Words.of(query, terms)
    matches: list[_Match] = []
    for entry in entries:
        record = record_of(entry, now)
        text = " ".join([entry.content, *entry.tags.values(), entry.key or "", entry.by])
        share, is_whole = words.share_in(text)
        if share < MIN_SHARE or not is_confident(entry, rules, now) or not is_wanted(record):
            continue
        warmth = min(1.0, heat(entry, now, rules.relevance))
        score = share * (_WORD_WEIGHT + _HEAT_WEIGHT * warmth)
        matches.append(_Match(is_whole, share, score, entry.id, record))
    matches.sort(reverse=True)
    matches = matches[:limit]
    hits: list[Hit] = []
    for match in matches:
        record = match.record._replace(accesses=0)  # the file's counts of reads are out of date
        memory = versions.to_memory(record, now, rules.half_life_hours)
        hits.append(Hit(memory, round(match.score, 4), None, None))
    whole = sum(match.is_whole for match in matches)
    explanation = Explanation(tuple(hits), (), terms, tier="hot")
    return ScratchpadMatches(explanation, tuple(hits[:whole]))


class _Words(NamedTuple):
    """A question's words, for matching them with entries.

    Attributes:
        stems: Words that also match with a different ending.
        exact: Numbers and short words, which must match in full: with a different ending they would
            be different words.
        significant: All significant words, unchanged.
        is_answerable: Whether an entry that contains all significant words is a sufficient answer.
    """

    stems: Sequence[str]
    exact: Sequence[str]
    significant: set[str]
    is_answerable: bool

    @classmethod
    def of(cls, query: str, terms: Sequence[str]) -> Self:
        """Return a question's words, given its search terms."""
        significant = significant_tokens(query)
        words = [term for term in terms if " " not in term]
        stems: list[str] = []
        short: list[str] = []
        for word in words:
            if is_number(word):
                continue
            is_short = len(word) < MIN_STEM and not is_unspaced(word)
            (short if is_short else stems).append(word)
        return cls(
            stems=stems,
            exact=[*short, *filter(is_number, significant)],
            significant=significant,
            is_answerable=min(len(words), len(significant)) >= ENOUGH_WORDS,
        )

    def share_in(self, text: str) -> tuple[float, bool]:
        """Return the share of the words that a text contains, and whether the text answers the
        question by itself.
        """
        text_tokens = tokens(text)
        if self.is_answerable and self.significant <= text_tokens:
            return 1.0, True
        exact = sum(word in text_tokens for word in self.exact)
        stems = coverage(text, self.stems) * len(self.stems)
        return (exact + stems) / max(1, len(self.exact) + len(self.stems)), False


def record_of(entry: Entry, now: datetime) -> Record:
    """Return an entry as a record. It has only the fields that the scratchpad stores."""
    written = parse_time(entry.written, now)
    first_at = to_millis(parse_time(entry.created, written))
    labels = entry.tags
    if entry.by:
        trust = entry.trust if entry.trust in TRUSTS else AGENT
        origin = Origin(
            trust,
            channel="",
            by=entry.by,
            client=None,
            user="",
            host="",
            program="",
            namespace=entry.namespace,
        )
        labels = stamp_labels(entry.tags, origin)
    text = entry.content
    if entry.cut is not None:
        more = entry.cut - len(text)
        option = "" if entry.namespace in ("", SHARED) else f" -n {entry.namespace}"
        text = f"{text}… ({more} more characters; memory get {entry.id}{option} shows them)"
    return Record(
        Ref(Collection.MEMORY, entry.namespace, entry.id, max(1, entry.version)),
        text,
        written,
        key=None if entry.key is None else versions.scoped_key(entry.key, entry.tags),
        labels=labels,
        fields={"first_at": first_at, **record_fields(entry)},
        accesses=entry.uses,
    )
