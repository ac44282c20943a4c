"""Selectors: evaluate a `--where` expression on records, and extract the part that a store can
apply. The grammar is in `expressions`.
"""

import functools
import math
import operator
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from memories.anchors.judge import Judge
from memories.core.ids import ID_LENGTH, parse_id
from memories.core.times import parse_span
from memories.errors import InvalidInput
from memories.guard import validate
from memories.guard.origin import BY, IMPORT, TRUST, is_reserved
from memories.languages.text import words_in
from memories.read import versions
from memories.read.expressions import Condition, Every, Names, Node, Not, conditions, error_at
from memories.read.expressions import parse as parse_tree
from memories.read.names import CHOICES, NAMES, Name, Reader, is_from, label_reader
from memories.read.turns import group_parts, join_parts
from memories.stores.records import SPEAKER, Collection, Filter, Record

Test = Callable[[Record], bool]

DELETED, PENDING, SUPERSEDED = "deleted", "pending", "superseded"
LATEST = ("delete", "supersede", "pending")  # `ended_by` of a version without a successor
_ENDED_BY = {DELETED: "delete", PENDING: "pending", SUPERSEDED: "supersede"}
_MARKS = ("suspicious", "redacted")  # fields that are true if present
_BOUNDS = {"since": ">=", "until": "<="}
_USE_QUOTES = "if a tag has that name, put it in quotes"
# Fields with different names in responses and in expressions. The name used in responses is refused
# in an expression, since it would be taken for a tag and select nothing.
_FIELDS = {
    "created_at": "created",
    "updated_at": "updated",
    "decay_policy": "decay",
    "version_count": "version",
    "last_reinforced_at": "reinforced",
}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}


class Instant(NamedTuple):
    """The time for which records are evaluated.

    Attributes:
        now: The time from which "7d" counts back, and for which confidence is computed.
        half_life_hours: Hours until confidence reaches 0; see `read.versions.compute_decay`.
        judge: Computes verdicts; None if expressions can't use verdicts.
    """

    now: datetime
    half_life_hours: float
    judge: Judge | None = None


class Selector(NamedTuple):
    """A compiled expression.

    Attributes:
        text: The expression.
        node: The parsed tree of the expression.
        states: The states that the expression names. Records that are not live are selected only if
            the expression names their state.
        collection: The collection from which it selects: memories or turns.
        instant: The time for which records are evaluated.
        fits: Returns whether a record, or a memory's latest version, matches the expression.
    """

    text: str
    node: Node
    states: frozenset[str]
    collection: Collection
    instant: Instant
    fits: Test

    @property
    def required_conditions(self) -> list[Condition]:
        """The conditions that every selected record meets."""
        terms = self.node.terms if isinstance(self.node, Every) else (self.node,)
        return [term for term in terms if isinstance(term, Condition)]

    def narrow(self, where: Filter) -> Filter:
        """Return a filter with the required conditions that a store can apply."""
        for condition in self.required_conditions:
            where = _narrow(where, condition, self)
        return where

    def include_states(self, where: Filter) -> Filter:
        """Return a filter that also matches records in the states that the expression names."""
        if not self.states:
            return where
        for condition in self.required_conditions:
            if condition.operator == "is" and condition.name in _ENDED_BY:
                return where._replace(state="ended", ended_by=_ENDED_BY[condition.name])
        return where._replace(state="any", ended_by=None)

    def whole_conversation(self) -> str | None:
        """Return the name if the expression is just "conversation = NAME", else None."""
        node = self.node
        if not isinstance(node, Condition) or self.collection is not Collection.HISTORY:
            return None
        if node.operator != "=" or node.quoted or node.name.lower() != "conversation":
            return None
        is_exact = node.literal or not node.value.endswith("*")
        return node.value if is_exact else None

    def selects(self, record: Record) -> bool:
        """Return whether the expression selects a record: a turn, or the latest version of a
        memory.
        """
        if record.ended_at is not None:
            if record.ended_by not in LATEST:
                return False
            if not any(_ENDED_BY[state] == record.ended_by for state in self.states):
                return False
        return self.fits(record)


def parse(
    text: str, collection: Collection, instant: Instant, *, any_state: bool = False
) -> Selector:
    """Return the selector for an expression.

    Args:
        text: The expression.
        collection: Memories or turns.
        instant: The time for which records are evaluated.
        any_state: Also select deleted, pending and superseded memories if the expression doesn't
            name any of these states.

    Raises:
        InvalidInput: The expression is malformed, or a value is invalid.
    """
    node = parse_node(text, collection)
    if any_state:
        states = frozenset(_ENDED_BY)
    else:
        states = frozenset(
            condition.name
            for condition in conditions(node)
            if condition.operator == "is" and condition.name in _ENDED_BY
        )
    test = _compile(node, collection, instant)
    return Selector(text, node, states, collection, instant, test)


def parse_node(text: str, collection: Collection) -> Node:
    """Return the tree of an expression about a collection.

    Raises:
        InvalidInput: The expression is malformed. Values are not checked.
    """
    names = NAMES[collection]
    times = [name for name, definition in names.items() if definition.kind == "time"]
    return parse_tree(text, Names((*_ENDED_BY, *_MARKS), times, tuple(_BOUNDS)))


def parse_live(text: str, collection: Collection, instant: Instant) -> Selector:
    """Return the selector for a search expression, which finds only live records.

    Raises:
        InvalidInput: The expression names a state, is malformed, or has an invalid value.
    """
    selector = parse(text, collection, instant)
    if selector.states:
        names = " and ".join(sorted(selector.states))
        raise InvalidInput(
            f"a search finds only current memories; remove {names} from the expression, or use "
            "memory list"
        )
    return selector


def select_all(collection: Collection, instant: Instant) -> Selector:
    """Return the selector for all live records."""

    def test(_record: Record) -> bool:
        return True

    return Selector("", Every(()), frozenset(), collection, instant, test)


def plan_listing(selector: Selector, where: Filter) -> tuple[Filter, Test]:
    """Return a filter for the records to list, and a further test for each record.

    Raises:
        InvalidInput: The expression names a state, and the filter asks for another one.
    """
    if not selector.states:
        # The filter may request a state itself, such as the state at a past time.
        return selector.narrow(where), selector.fits
    if where.as_of is not None or where.state != "live":
        raise InvalidInput(
            "deleted or as_of can't be combined with a state in where; leave one of them out"
        )
    return selector.narrow(selector.include_states(where)), selector.selects


def with_versions(selector: Selector, records: Iterable[Record]) -> Iterator[Record]:
    """Yield the selected turns, or the selected memories with all of their versions.

    Args:
        selector: The selector.
        records: Records of the selector's collection. A memory's versions are consecutive, with the
            latest one last.
    """
    if selector.collection is Collection.HISTORY:
        for parts in group_parts(records):
            if selector.selects(join_parts(parts)):
                yield from parts
        return
    for _, group in groupby(records, attrgetter("ref.group")):
        memory = list(group)
        if selector.selects(memory[-1]):
            yield from memory


# --- tests ---


def _compile(node: Node, collection: Collection, instant: Instant) -> Test:
    """Compile a tree of conditions into a function that tests a record."""
    if isinstance(node, Condition):
        return _compile_condition(node, collection, instant)
    if isinstance(node, Not):
        return _negate(_compile(node.term, collection, instant))
    tests = [_compile(term, collection, instant) for term in node.terms]
    combine = all if isinstance(node, Every) else any

    def test(record: Record) -> bool:
        return combine(meets(record) for meets in tests)

    return test


def _negate(meets: Test) -> Test:
    def test(record: Record) -> bool:
        return not meets(record)

    return test


def _compile_condition(condition: Condition, collection: Collection, instant: Instant) -> Test:
    if condition.operator == "is":
        return _compile_state(condition, collection)
    name = _find_name(condition, collection)
    if name is None:
        kind, read = "text", _tag_reader(condition)
    elif condition.name.lower() == "verdict":
        kind, read = name.kind, _verdict_reader(condition, instant)
    else:
        kind = name.kind
        read = name.read or functools.partial(
            versions.confidence, now=instant.now, half_life_hours=instant.half_life_hours
        )
        # The values of built-in names are in Unicode normal form; the values of tags are stored
        # exactly as they were given.
        condition = condition._replace(value=unicodedata.normalize("NFC", condition.value))
    if condition.operator == "exists":

        def is_present(record: Record) -> bool:
            return read(record) is not None

        return is_present
    if condition.operator in ("~", "!~") and kind in ("time", "number"):
        raise error_at(
            condition.column,
            f"{condition.name} is a {kind}; compare it with =, !=, <, <=, > or >=",
        )
    if condition.operator in ("!=", "!~"):
        positive = condition._replace(operator=condition.operator[1])
        return _negate(_compile_condition(positive, collection, instant))
    if condition.operator == "~":
        return _contains_words(condition, read)
    return _compare(condition, kind, read, instant)


def _compare(condition: Condition, kind: str, read: Reader, instant: Instant) -> Test:
    if kind == "time":
        return _compare_time(condition, read, instant)
    if kind == "number":
        return _compare_number(condition, read)
    return _compare_text(condition, kind, read)


def _find_name(condition: Condition, collection: Collection) -> Name | None:
    """Return the definition of a name; None for a tag.

    Raises:
        InvalidInput: The name belongs to the other collection, or doesn't take an operator.
    """
    if condition.quoted:
        return None
    name = condition.name.lower()
    if name in _ENDED_BY or name in _MARKS:
        raise error_at(
            condition.column,
            f"{name} takes no operator or value: write {name} or not {name}; {_USE_QUOTES}",
        )
    if name in _FIELDS:
        raise error_at(
            condition.column, f"{name} is called {_FIELDS[name]} in an expression; {_USE_QUOTES}"
        )
    if name not in NAMES[collection] and name in NAMES[Collection.MEMORY]:
        raise error_at(
            condition.column,
            f"turns have no {name}; leave turns out, or put the name in quotes if it is a tag",
        )
    return NAMES[collection].get(name)


def _verdict_reader(condition: Condition, instant: Instant) -> Reader:
    """Return a function that reads the current verdict.

    Raises:
        InvalidInput: Verdicts can't be used here.
    """
    judge = instant.judge
    if judge is None:
        raise error_at(
            condition.column,
            "verdict works only in search and list, without as_of, on your own machine; it never "
            "decides what is changed, deleted or forgotten",
        )

    def read(record: Record) -> str | None:
        memory = versions.to_memory(record, instant.now, instant.half_life_hours)
        [judged] = judge.judge([memory], instant.now)
        return None if judged.verdict is None else judged.verdict.word

    return read


def _tag_reader(condition: Condition) -> Reader:
    try:
        key = validate.tag_key(condition.name)
    except InvalidInput as exc:
        raise error_at(condition.column, str(exc)) from exc
    assert not is_reserved(key)
    return label_reader(key)


def _compile_state(condition: Condition, collection: Collection) -> Test:
    name = condition.name
    if name in _MARKS:

        def has_mark(record: Record) -> bool:
            return bool(record.fields.get(name))

        return has_mark
    if collection is Collection.HISTORY:
        raise error_at(
            condition.column,
            f'turns are never {name}; for a tag with that name, write: "{name}" exists',
        )
    ended_by = _ENDED_BY[name]

    def has_ended(record: Record) -> bool:
        return record.ended_at is not None and record.ended_by == ended_by

    return has_ended


def _contains_words(condition: Condition, read: Reader) -> Test:
    prefixes: set[str] = set()
    words: set[str] = set()
    for part in condition.value.split():
        (prefixes if part.endswith("*") else words).update(words_in(part))
    if not prefixes and not words:
        raise error_at(condition.column, f'"{validate.shown(condition.value)}" contains no words')

    # Splitting a text into words is slow, and most texts contain none of the words, so look for
    # ASCII words as substrings first. Words with symbols, such as C++, are spelled differently in
    # an index.
    substrings = [word for word in (*words, *prefixes) if word.isascii()]
    if "+" in condition.value or "#" in condition.value:
        substrings = []

    def test(record: Record) -> bool:
        value = read(record)
        if value is None:
            return False
        if value.isascii() and not all(word in value.lower() for word in substrings):
            return False
        value_words = words_in(str(value))
        if not words <= value_words:
            return False
        return all(any(word.startswith(prefix) for word in value_words) for prefix in prefixes)

    return test


def _compare_time(condition: Condition, read: Reader, instant: Instant) -> Test:
    """Return a test that compares a time with a span, such as a day: `<` means before the span
    begins, and `>` means after it ends.
    """
    sign = _BOUNDS.get(condition.name, condition.operator)
    first, last = _parse_span(condition, instant)
    bound = first if sign in ("<", ">=") else last
    compare = _COMPARISONS[sign]

    def test(record: Record) -> bool:
        at = read(record)
        if at is None:
            return False
        if sign == "=":
            return bool(first <= at <= last)
        return compare(at, bound)

    return test


def _compare_number(condition: Condition, read: Reader) -> Test:
    number, compare = _parse_number(condition), _COMPARISONS[condition.operator]

    def test(record: Record) -> bool:
        value = read(record)
        return value is not None and compare(value, number)

    return test


def _compare_text(condition: Condition, kind: str, read: Reader) -> Test:
    if condition.operator != "=":
        raise error_at(
            condition.column,
            f"{validate.shown(condition.name)} is text; compare it with =, !=, ~ or !~",
        )
    expected = condition.value
    if kind == "source":
        return functools.partial(is_from, wanted=expected)
    if kind == "choice" and expected not in CHOICES[condition.name.lower()]:
        allowed = ", ".join(CHOICES[condition.name.lower()])
        raise error_at(
            condition.column,
            f'{condition.name} is one of {allowed}, not "{validate.shown(expected)}"',
        )
    if kind == "id":
        return _starts_with(read, _parse_id(condition))
    if expected.endswith("*") and not condition.literal:
        return _starts_with(read, expected[:-1])

    def test(record: Record) -> bool:
        return bool(read(record) == expected)

    return test


def _starts_with(read: Reader, prefix: str) -> Test:
    def test(record: Record) -> bool:
        value = read(record)
        return value is not None and value.startswith(prefix)

    return test


# --- values ---


def _parse_span(condition: Condition, instant: Instant) -> tuple[datetime, datetime]:
    if condition.name in _BOUNDS and condition.operator != "=":
        raise error_at(condition.column, f"{condition.name} takes a time: {condition.name} 7d")
    try:
        return parse_span(condition.value, instant.now)
    except InvalidInput as exc:
        raise error_at(condition.column, str(exc)) from exc


def _parse_number(condition: Condition) -> float:
    try:
        number = float(condition.value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise error_at(
            condition.column,
            f'"{validate.shown(condition.value)}" is not a number; {condition.name} takes a number',
        )
    if not condition.name.endswith("confidence"):
        return number
    try:
        return validate.unit(number, condition.name)
    except InvalidInput as exc:
        raise error_at(condition.column, str(exc)) from exc


def _parse_id(condition: Condition) -> str:
    try:
        return parse_id(condition.value.rstrip("*"))
    except InvalidInput:  # files may contain ids that another program assigned
        return condition.value


# --- the part that a store can apply ---


def _narrow(where: Filter, condition: Condition, selector: Selector) -> Filter:
    """Add a required condition to a filter, if stores support the condition.

    `fits` checks every condition again, so a condition that stores don't support may be left out.
    """
    name, label = condition.name.lower(), condition.name
    definition = None
    if not condition.quoted:
        definition = NAMES[selector.collection].get(name)
    if definition is not None:
        if definition.kind == "time":
            return _narrow_time(where, condition, selector)
        label = _LABELS.get(name, "")
    if condition.operator != "=" or (condition.value.endswith("*") and not condition.literal):
        return where
    if label and label not in where.labels:  # a contradiction, which `fits` detects
        where = where._replace(labels={**where.labels, label: condition.value})
    if where.group is None:
        return _narrow_group(where, condition, selector)
    return where


_LABELS = {"by": BY, "trust": TRUST, "import": IMPORT, "speaker": SPEAKER}


def _narrow_group(where: Filter, condition: Condition, selector: Selector) -> Filter:
    if condition.quoted:
        return where
    name = condition.name.lower()
    if selector.collection is Collection.HISTORY:
        if name == "conversation":
            return where._replace(group=condition.value)
        return where
    if name == "id" and len(condition.value) == ID_LENGTH:
        return where._replace(group=_parse_id(condition))
    return where


def _narrow_time(where: Filter, condition: Condition, selector: Selector) -> Filter:
    name = condition.name.lower()
    if name not in ("updated", *_BOUNDS):
        return where
    if name == "updated" and condition.operator == "exists":
        return where  # every record has an update time
    sign = _BOUNDS.get(name, condition.operator)
    first, last = _parse_span(condition, selector.instant)
    if sign in (">", ">=", "="):
        since = last if sign == ">" else first
        where = where._replace(since=max(since, where.since or since))
    if sign in ("<", "<=", "="):
        until = first if sign == "<" else last
        where = where._replace(until=min(until, where.until or until))
    return where
