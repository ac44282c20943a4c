"""Search results: the hits with their reasons in plain words, and the facets."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.answers import shapes
from memories.core.times import to_iso
from memories.languages.text import normal_form
from memories.server.pages.request import PageRequest, View, excerpt

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.search.filters import Scope
    from memories.search.results import Considered, Hit

FACETS = ("type", "project", "agent", "kind", "trust")
PAGE = 30
_SCOPES: Mapping[str, "Scope"] = {"memory": "memories", "turn": "history"}
_WORD = re.compile(r"\w+")
_MIN_STEM = 4  # a search word of at least this length also marks words that start with it
_MEANINGS = ((0.9, "very strong"), (0.75, "strong"), (0.5, "fair"), (0.0, "weak"))
_NUMBERS = {  # labels of the parts of a score that a reader may want to know exactly
    "words": "weight of the shared words",
    "date": "nearness to the date in the question",
    "freshness": "factor for its age",
    "boost": "factor for its use",
    "confidence": "confidence",
}
_NEUTRAL = {"freshness": 1.0, "boost": 1.0, "confidence": 1.0}


class Facet(NamedTuple):
    """One value that a search can be narrowed to."""

    value: str
    number: int
    link: str
    chosen: bool


class Why(NamedTuple):
    """Why a search found a hit: sentences, and the exact numbers with their names."""

    sentences: list[str]
    numbers: list[tuple[str, float | int]]


def show_results(memories: "Memories", request: PageRequest) -> View:
    """Show search results."""
    scope: Scope = _SCOPES.get(request.text("kind"), "all")
    limit = request.limit(PAGE)
    explanation = memories.explain(request.text("q"), scope=scope, limit=limit, **request.filters())
    data = shapes.search_result(explanation, explain=bool(request.text("explain")))
    terms = explanation.terms
    kept = [candidate for candidate in explanation.considered if not candidate.dropped]
    candidates = {candidate.id: candidate for candidate in kept}
    hits = []
    for shape, hit in zip(data["results"], explanation.hits, strict=True):
        lower = shape["content"].lower()
        starts = [start for start in map(lower.find, _words(terms)) if start >= 0]
        text = mark(excerpt(shape["content"], min(starts, default=0)), terms)
        why = _explain(hit, candidates.get(hit.id), terms)
        hits.append({"shape": shape, "text": text, "why": why})
    more = {
        "hits": hits,
        "facets": _facets(data["results"], request),
        "written": [to_iso(hit.date) for hit in explanation.hits],
        "more_link": request.link(limit=str(limit * 2)) if data["count"] == limit else None,
    }
    return View("home.html", data, more)


def _explain(hit: "Hit", candidate: "Considered | None", terms: Sequence[str]) -> Why:
    sentences = []
    numbers: list[tuple[str, float | int]] = []
    if hit.calibrated is not None:
        sentences.append(describe_meaning(hit.calibrated))
        numbers.append(("match in meaning, 0 to 1", hit.calibrated))
    sentences.append(describe_words(hit.content, terms))
    if candidate is not None:
        features = candidate.features
        if features.get("date"):
            sentences.append("Its time fits the date in your question.")
        if features.get("named"):
            sentences.append("Your question names the speaker.")
        if (features.get("freshness") or 1.0) < 1.0:
            sentences.append("It ranks a little lower because it is old.")
        for name, label in _NUMBERS.items():
            value = features.get(name)
            if value and value != _NEUTRAL.get(name):
                numbers.append((label, value))
    return Why(sentences, numbers)


def describe_meaning(similarity: float) -> str:
    """Return a sentence that describes a calibrated similarity."""
    strength = next(name for least, name in _MEANINGS if similarity >= least)
    return f"A {strength} match in meaning."


def describe_words(text: str, terms: Sequence[str]) -> str:
    """Return a sentence that says which search words a text contains."""
    wanted = [term.strip(" *") for term in terms]
    marked = {normal_form(piece) for piece, is_marked in mark(text, terms) if is_marked}
    present = [
        term
        for term in wanted
        if any(form.startswith(normal_form(term)) or form == normal_form(term) for form in marked)
    ]
    if not present:
        return "It shares no words with your question."
    quoted = ", ".join(f"“{term}”" for term in present[:6])
    if len(wanted) == 1:
        return f"It contains the word {quoted}."
    return f"It contains {len(present)} of {len(wanted)} words: {quoted}."


def _words(terms: Sequence[str]) -> set[str]:
    return {word for term in terms for word in _WORD.findall(normal_form(term.strip(" *")))}


def mark(text: str, terms: Sequence[str]) -> list[tuple[str, bool]]:
    """Split a text into pieces; return each piece, and whether it is a search word."""
    words = _words(terms)
    stems = tuple(word for word in words if len(word) >= _MIN_STEM)
    pieces: list[tuple[str, bool]] = []
    end = 0
    for word in _WORD.finditer(text):
        form = normal_form(word[0])
        if form in words or form.startswith(stems):
            pieces += [(text[end : word.start()], False), (word[0], True)]
            end = word.end()
    return [piece for piece in [*pieces, (text[end:], False)] if piece[0]]


def _facets(results: Sequence[Mapping[str, Any]], request: PageRequest) -> dict[str, list[Facet]]:
    """Return the filters by which the results can be narrowed, with the number of results for each
    value.
    """
    chosen = request.tags()
    for name in ("kind", "trust"):
        if request.text(name):
            chosen[name] = request.text(name)
    facets: dict[str, list[Facet]] = {}
    for name in FACETS:
        counts = Counter(_facet_value(result, name) for result in results)
        counts.pop("", None)
        shown_counts = dict(counts.most_common(8))
        if name in chosen:
            shown_counts[chosen[name]] = counts[chosen[name]]
        rows = []
        for value, count in shown_counts.items():
            is_chosen = chosen.get(name) == value
            if name in ("kind", "trust"):
                changes = {name: None if is_chosen else value}
                link = request.link(**changes)
            else:
                link = request.link_tag(name, value, is_added=not is_chosen)
            rows.append(Facet(value, count, link, is_chosen))
        if len(rows) > 1 or name in chosen:
            facets[name] = rows
    return facets


def _facet_value(result: Mapping[str, Any], name: str) -> str:
    if name == "trust":
        return str((result.get("origin") or {}).get("trust", ""))
    return str(result.get(name) or result.get("tags", {}).get(name) or "")
