"""What an expression of the filter language selects: what each name means on a record, and what a
store can find.
"""

import math
import operator
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple

from memories.core.ids import ID_LENGTH, parse_id
from memories.core.times import from_millis, parse_span
from memories.errors import InvalidInput
from memories.guard import validate
from memories.guard.origin import BY, CHANNELS, IMPORT, TRUST, TRUSTS, is_reserved, origin_of
from memories.languages.text import words_in
from memories.models import DecayPolicy
from memories.read import versions
from memories.read.turns import messages, start_of, whole
from memories.read.where import Condition, Every, Names, Node, Not, conditions, parse, wrong
from memories.stores.records import ROLE, ROLES, SPEAKER, Collection, Filter, Record

Test = Callable[[Record], bool]

DELETED, PENDING, SUPERSEDED = "deleted", "pending", "superseded"
LATEST = (
    "delete",
    "supersede",
    "pending",
)  # what ends a memory; all else ends a version that another one follows
_ENDED_BY = {DELETED: "delete", PENDING: "pending", SUPERSEDED: "supersede"}
_MARKS = ("suspicious", "redacted")  # fields that count as true when they are there
_BOUNDS = {"since": ">=", "until": "<="}
_IF_TAG = "if a tag has that name, put it in quotes"
_ORIGIN = ("by", "trust", "channel", "client", "user", "host", "identity")
_CHOICES: dict[str, Sequence[str]] = {
    "trust": TRUSTS,
    "channel": CHANNELS,
    "decay": tuple(DecayPolicy),
    "role": ROLES,
}
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}


class Moment(NamedTuple):
    """What a record is judged at.

    Attributes:
        now: The time that "7d" counts from, and at which confidence is computed.
        half_life_hours: See `read.versions.compute_confidence`.
    """

    now: datetime
    half_life_hours: float


class Selector(NamedTuple):
    """An expression that can be asked about records.

    Attributes:
        text: The expression.
        node: Its tree.
        states: The states that it names; what is in another one than live is looked at only if its
            state is named.
        collection: What it selects: memories or turns.
        moment: What records are judged at.
        fits: Returns whether a record meets it; of a memory, its latest version.
    """

    text: str
    node: Node
    states: frozenset[str]
    collection: Collection
    moment: Moment
    fits: Test

    def narrowed(self, where: Filter) -> Filter:
        """Return a filter that a store can find by: of what must hold in any case, as much as
        stores know.
        """
        for term in self.node.terms if isinstance(self.node, Every) else (self.node,):
            if isinstance(term, Condition):
                where = _narrowed(where, term, self)
        return where

    def among(self, where: Filter) -> Filter:
        """Return the filter of all that it may select: also what is not live, if it names such a
        state.
        """
        if not self.states:
            return where
        terms = self.node.terms if isinstance(self.node, Every) else (self.node,)
        named = [
            term.name for term in terms if isinstance(term, Condition) and term.operator == "is"
        ]
        ended_by = next((_ENDED_BY[name] for name in named if name in _ENDED_BY), None)
        return where._replace(state="any" if ended_by is None else "ended", ended_by=ended_by)

    def whole_conversation(self) -> str | None:
        """Return the conversation that it selects with all of its turns; None if it asks for
        anything else.
        """
        node = self.node
        if not isinstance(node, Condition) or self.collection is not Collection.HISTORY:
            return None
        alone = node.operator == "=" and not node.quoted and node.name.lower() == "conversation"
        return node.value if alone and (node.literal or not node.value.endswith("*")) else None

    def selects(self, record: Record) -> bool:
        """Return whether a record of `among` is selected: the latest version of a memory that meets
        it, or a turn.
        """
        if record.ended_at is not None:
            if record.ended_by not in LATEST:
                return False
            if not self.states & {
                state for state, by in _ENDED_BY.items() if by == record.ended_by
            }:
                return False
        return self.fits(record)


def listed(selector: Selector, among: Filter) -> tuple[Filter, Test]:
    """Return which records to read, and which of them to list, to list what is selected among what
    a filter matches.

    Raises:
        InvalidInput: A state is named although the filter says which one is meant.
    """
    if not selector.states:
        # Whatever state the filter asks for, such as what was current at a time, is the one that is
        # meant.
        return selector.narrowed(among), selector.fits
    if among.as_of is not None or among.state != "live":
        raise InvalidInput(
            "deleted or as_of, and a state in where, can't be combined; leave one out"
        )
    return selector.narrowed(selector.among(among)), selector.selects


def with_versions(selector: Selector, records: Iterable[Record]) -> Iterator[Record]:
    """Yield what is selected of turns, or of memories with all of their versions.

    Args:
        selector: What is selected.
        records: Records of its collection; versions of a memory follow each other, the latest one
            last.
    """
    if selector.collection is Collection.HISTORY:
        for parts in messages(records):
            if selector.selects(whole(parts)):
                yield from parts
        return
    for _, versions_of_one in groupby(records, lambda record: record.ref.group):
        found = list(versions_of_one)
        if selector.selects(found[-1]):
            yield from found


def everything(collection: Collection, moment: Moment) -> Selector:
    """Return what selects all that is current."""
    return Selector("", Every(()), frozenset(), collection, moment, lambda _record: True)


def read(text: str, collection: Collection, moment: Moment, *, any_state: bool = False) -> Selector:
    """Return what an expression selects among memories or turns.

    Args:
        text: The expression.
        collection: Memories or turns.
        moment: What they are judged at.
        any_state: Also select memories that are deleted, pending or superseded if it does not name
            these states.

    Raises:
        InvalidInput: It can't be read, or a value is not acceptable.
    """
    names = _NAMES[collection]
    node = parse(text, Names((*_ENDED_BY, *_MARKS), _times(names), tuple(_BOUNDS)))
    named = frozenset(
        each.name for each in conditions(node) if each.operator == "is" and each.name in _ENDED_BY
    )
    named = frozenset(_ENDED_BY) if any_state else named
    return Selector(text, node, named, collection, moment, _test(node, collection, moment))


# --- what a name means
# -----------------------------------------------------------------------------------------------

Reader = Callable[[Record, Moment], Any]


class _Name(NamedTuple):
    """A name that is no tag: its kind (`text`, `choice`, `number`, `time`, `id` or `source`), and
    its value.
    """

    kind: str
    read: Reader


def _of_origin(name: str) -> Reader:
    attribute = "namespace" if name == "identity" else name

    def value(record: Record, _moment: Moment) -> Any:
        origin = origin_of(record.labels)
        return None if origin is None else getattr(origin, attribute)

    return value


def _time_of_field(name: str, otherwise: Callable[[Record], datetime | None]) -> Reader:
    def value(record: Record, _moment: Moment) -> datetime | None:
        millis = record.fields.get(name)
        return otherwise(record) if millis is None else from_millis(millis)

    return value


def source_of(record: Record) -> str | None:
    """Return what a memory was made from: a conversation, or a turn of one."""
    return record.fields.get("source") or record.labels.get("conversation_id")


def conversation_of(source: str) -> str:
    """Return the conversation of a source: of `standup#3` it is `standup`."""
    name, hash_sign, index = source.rpartition("#")
    return name if hash_sign and name and index.isascii() and index.isdigit() else source


def _conversation(record: Record, _moment: Moment) -> str | None:
    source = source_of(record)
    return None if source is None else conversation_of(source)


_BOTH: dict[str, _Name] = {
    "namespace": _Name("text", lambda record, _: record.ref.namespace),
    "content": _Name("text", lambda record, _: record.text),
    "import": _Name("text", lambda record, _: record.labels.get(IMPORT)),
    **{name: _Name("choice" if name in _CHOICES else "text", _of_origin(name)) for name in _ORIGIN},
}
_NAMES: dict[Collection, dict[str, _Name]] = {
    Collection.MEMORY: _BOTH
    | {
        "id": _Name("id", lambda record, _: record.ref.group),
        "key": _Name("text", lambda record, _: versions.plain_key(record.key)),
        "conversation": _Name("text", _conversation),
        "source": _Name("source", lambda record, _: source_of(record)),
        "decay": _Name("choice", lambda record, _: versions.decay_policy(record)),
        "confidence": _Name(
            "number", lambda record, at: versions.confidence(record, at.now, at.half_life_hours)
        ),
        "base_confidence": _Name("number", lambda record, _: record.fields.get("confidence", 1.0)),
        "version": _Name("number", lambda record, _: record.ref.position),
        "access_count": _Name("number", lambda record, _: record.accesses),
        "created": _Name("time", _time_of_field("first_at", lambda record: record.created_at)),
        "updated": _Name("time", lambda record, _: record.created_at),
        "reinforced": _Name("time", _time_of_field("reinforced_at", lambda _: None)),
        "ended": _Name("time", lambda record, _: record.ended_at),
        **{name: _Name("time", lambda record, _: record.created_at) for name in _BOUNDS},
    },
    Collection.HISTORY: _BOTH
    | {
        "id": _Name("text", lambda record, _: f"{record.ref.group}#{start_of(record)}"),
        "key": _Name(
            "text",
            lambda record, _: None if record.key is None else record.key.rpartition("\x1f")[2],
        ),
        "conversation": _Name("text", lambda record, _: record.ref.group),
        "role": _Name("choice", lambda record, _: record.labels.get(ROLE, ROLES[0])),
        "speaker": _Name("text", lambda record, _: record.labels.get(SPEAKER)),
        "index": _Name("number", lambda record, _: start_of(record)),
        "created": _Name("time", lambda record, _: record.created_at),
        "updated": _Name("time", lambda record, _: record.created_at),
        **{name: _Name("time", lambda record, _: record.created_at) for name in _BOUNDS},
    },
}


def _times(names: dict[str, _Name]) -> tuple[str, ...]:
    return tuple(name for name, each in names.items() if each.kind == "time")


# --- tests
# -----------------------------------------------------------------------------------------------------------


def _test(node: Node, collection: Collection, moment: Moment) -> Test:
    if isinstance(node, Condition):
        return _condition(node, collection, moment)
    if isinstance(node, Not):
        term = _test(node.term, collection, moment)
        return lambda record: not term(record)
    terms = [_test(term, collection, moment) for term in node.terms]
    met = all if isinstance(node, Every) else any
    return lambda record: met(term(record) for term in terms)


def _condition(condition: Condition, collection: Collection, moment: Moment) -> Test:
    if condition.operator == "is":
        return _state(condition, collection)
    name = _name(condition, collection)
    read = _tag_reader(condition) if name is None else name.read
    if name is not None:  # as names are kept; the values of tags are kept as they were given
        condition = condition._replace(value=unicodedata.normalize("NFC", condition.value))
    if condition.operator == "exists":
        return lambda record: read(record, moment) is not None
    if condition.operator in ("!=", "!~"):
        meets = _condition(condition._replace(operator=condition.operator[1]), collection, moment)
        return lambda record: not meets(record)
    if condition.operator == "~":
        return _holds_words(condition, read, moment)
    return _comparison(condition, "text" if name is None else name.kind, read, moment)


def _name(condition: Condition, collection: Collection) -> _Name | None:
    """Return what a name means; None for a tag.

    Raises:
        InvalidInput: It belongs to the other collection.
    """
    known = None if condition.quoted else condition.name.lower()
    if known in _ENDED_BY or known in _MARKS:
        raise wrong(condition.place, f"{known} stands alone, as in: not {known}; {_IF_TAG}")
    if known is None or known in _NAMES[collection]:
        return None if known is None else _NAMES[collection][known]
    if known in _NAMES[Collection.MEMORY]:
        raise wrong(condition.place, f"turns have no {known}; {_IF_TAG}")
    return None


def _tag_reader(condition: Condition) -> Reader:
    try:
        key = validate.tag_key(condition.name)
    except InvalidInput as exc:
        raise wrong(condition.place, str(exc)) from exc
    assert not is_reserved(key)
    return lambda record, _moment: record.labels.get(key)


def _state(condition: Condition, collection: Collection) -> Test:
    name = condition.name
    if name in _MARKS:
        return lambda record: bool(record.fields.get(name))
    if collection is Collection.HISTORY:
        raise wrong(
            condition.place,
            f'turns are never {name}; of a tag with that name, write: "{name}" exists',
        )
    ended_by = _ENDED_BY[name]
    return lambda record: record.ended_at is not None and record.ended_by == ended_by


def _holds_words(condition: Condition, read: Reader, moment: Moment) -> Test:
    given = condition.value.split()
    begun = {word for part in given if part.endswith("*") for word in words_in(part)}
    whole = {word for part in given if not part.endswith("*") for word in words_in(part)}
    if not begun and not whole:
        raise wrong(condition.place, f'"{validate.shown(condition.value)}" has no word')

    # Taking a text apart costs as much as reading it, and most have none of the words. Signs are
    # spelled: C++, C#.
    spelled = any(sign in condition.value for sign in "+#")
    plain = [] if spelled else [word for word in (*whole, *begun) if word.isascii()]

    def test(record: Record) -> bool:
        value = read(record, moment)
        if value is None or (value.isascii() and not all(word in value.lower() for word in plain)):
            return False
        held = words_in(str(value))
        return whole <= held and all(
            any(word.startswith(start) for word in held) for start in begun
        )

    return test


def _comparison(condition: Condition, kind: str, read: Reader, moment: Moment) -> Test:
    sign = _BOUNDS.get(condition.name, condition.operator) if kind == "time" else condition.operator
    if kind == "time":
        first, last = _moments(condition, moment)
        return _time_test(sign, first, last, lambda record: read(record, moment))
    if kind == "number":
        number, compared = _number(condition), _COMPARED[sign]
        return lambda record: (
            (value := read(record, moment)) is not None and compared(value, number)
        )
    if sign != "=":
        raise wrong(
            condition.place,
            f"{validate.shown(condition.name)} is text: it is compared with =, !=, ~ and !~",
        )
    if kind == "source":
        return lambda record: (
            (value := read(record, moment)) is not None and is_from(value, condition.value)
        )
    if kind == "choice" and condition.value not in _CHOICES[condition.name.lower()]:
        allowed = ", ".join(_CHOICES[condition.name.lower()])
        raise wrong(
            condition.place,
            f'{condition.name} is one of {allowed}, not "{validate.shown(condition.value)}"',
        )
    if kind == "id":
        start = _id(condition)
        return lambda record: record.ref.group.startswith(start)
    if condition.value.endswith("*") and not condition.literal:
        start = condition.value[:-1]
        return lambda record: (
            (value := read(record, moment)) is not None and value.startswith(start)
        )
    return lambda record: bool(read(record, moment) == condition.value)


def is_from(source: str, wanted: str) -> bool:
    """Return whether a source is what is wanted, which is a turn, or a conversation with all of its
    turns.
    """
    return source == wanted or conversation_of(source) == wanted


def _time_test(
    sign: str, first: datetime, last: datetime, read: Callable[[Record], datetime | None]
) -> Test:
    """Return a comparison with a time that may last: what is before it is before its beginning, and
    so on.
    """

    def test(record: Record) -> bool:
        at = read(record)
        if at is None:
            return False
        if sign == "=":
            return first <= at <= last
        return _COMPARED[sign](at, first if sign in ("<", ">=") else last)

    return test


def _moments(condition: Condition, moment: Moment) -> tuple[datetime, datetime]:
    if condition.name in _BOUNDS and condition.operator != "=":
        raise wrong(condition.place, f"{condition.name} takes a time: {condition.name} 7d")
    try:
        return parse_span(condition.value, moment.now)
    except InvalidInput as exc:
        raise wrong(condition.place, str(exc)) from exc


def _number(condition: Condition) -> float:
    try:
        found = float(condition.value)
    except ValueError:
        found = float("nan")
    if not math.isfinite(found):
        raise wrong(
            condition.place,
            f'"{validate.shown(condition.value)}" is no number; {condition.name} is one',
        )
    if condition.name.endswith("confidence"):
        try:
            return validate.unit(found, condition.name)
        except InvalidInput as exc:
            raise wrong(condition.place, str(exc)) from exc
    return found


def _id(condition: Condition) -> str:
    try:
        return parse_id(condition.value.rstrip("*"))
    except InvalidInput:  # files may hold ids that another program gave
        return condition.value


# --- what a store can find
# -------------------------------------------------------------------------------------------


def _narrowed(where: Filter, condition: Condition, selector: Selector) -> Filter:
    """Return a filter with a condition that must hold, if stores know such a one; `fits` asks
    again.
    """
    name = None if condition.quoted else condition.name.lower()
    exact = condition.operator == "=" and (condition.literal or not condition.value.endswith("*"))
    known = _NAMES[selector.collection]
    if name in known and known[name].kind == "time":
        return (
            _narrowed_by_time(where, condition, selector)
            if name in ("updated", *_BOUNDS)
            else where
        )
    label = (
        {"by": BY, "trust": TRUST, "import": IMPORT, "speaker": SPEAKER}.get(name or "")
        if name in known
        else condition.name
    )
    if (
        exact and label is not None and label not in where.labels
    ):  # nothing has two values of one, which `fits` tells
        where = where._replace(labels={**where.labels, label: condition.value})
    is_group = (name == "id" and len(condition.value) == ID_LENGTH) or name == "conversation"
    memory = selector.collection is Collection.MEMORY
    if exact and is_group and memory is (name == "id") and where.group is None:
        where = where._replace(group=_id(condition) if memory else condition.value)
    return where


def _narrowed_by_time(where: Filter, condition: Condition, selector: Selector) -> Filter:
    sign = _BOUNDS.get(condition.name.lower(), condition.operator)
    first, last = _moments(condition, selector.moment)
    if sign in (">", ">=", "="):
        since = last if sign == ">" else first
        where = where._replace(since=since if where.since is None else max(where.since, since))
    if sign in ("<", "<=", "="):
        until = first if sign == "<" else last
        where = where._replace(until=until if where.until is None else min(where.until, until))
    return where
