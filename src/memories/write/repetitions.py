"""What a text adds that is stored already: new tags, a more lasting policy, more confidence become
a version.

What contradicts the memory stays as the memory has it. Nobody changes by repeating what a more
trusted writer wrote.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.times import to_millis
from memories.guard.origin import AGENT, TRUST, USER, tags_of
from memories.guard.validate import MAX_TAGS
from memories.models import DecayPolicy, Draft
from memories.read import versions
from memories.stores.logged import append_stamped, stamp_origin
from memories.stores.protocol import Store
from memories.stores.records import Record
from memories.write.change import reset_decay
from memories.write.links import last_correction, recorrected
from memories.write.suspicion import mark_record

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOTE_TRUST = "it was stored by a more trusted writer, so a repetition changes nothing in it"
NOTE_TAGS = f"with these tags it would have more than {MAX_TAGS}"
NOTE_WAITS = "what is to wait for review changes nothing that is stored"
_LASTING = (DecayPolicy.CONTEXTUAL, DecayPolicy.REINFORCEABLE, DecayPolicy.STABLE)
_RANKS = {USER: 2, AGENT: 1}  # nobody decided about what was captured or imported
_UNKNOWN = 1  # written before origins were kept


class Addition(NamedTuple):
    """What a draft says beyond a memory with the same text.

    Attributes:
        tags: Tags that the memory does not have.
        more: `decay`, `confidence` and `source` that it does not have, or has less of.
        other_tags: Tags that it has with another value.
        less: `decay`, `confidence` and `source` that contradict it.
    """

    tags: Mapping[str, str]
    more: Mapping[str, Any]
    other_tags: Mapping[str, str]
    less: Mapping[str, Any]

    def merged(self) -> tuple[str, ...]:
        """Return the names of what can be merged."""
        return (*(("tags",) if self.tags else ()), *self.more)

    def left(self, *, everything: bool = False) -> dict[str, Any]:
        """Return what contradicts the memory, or all that the draft says beyond it."""
        tags = {**self.other_tags, **(self.tags if everything else {})}
        return ({"tags": tags} if tags else {}) | {**self.less, **(self.more if everything else {})}


class Repeated(NamedTuple):
    """What a repetition did.

    Attributes:
        record: The memory as it is now.
        merged: The names of what was merged into it, by a version; usually empty.
        left: What the draft said that was not merged.
        reinforced: Whether its decay was reset.
        note: Why nothing was merged although there was something to merge.
    """

    record: Record
    merged: tuple[str, ...] = ()
    left: Mapping[str, Any] = {}
    reinforced: bool = False
    note: str = ""


def addition(known: Record, draft: Draft) -> Addition:
    """Return what a draft says beyond a memory with the same text; what it leaves open says
    nothing.
    """
    tags = tags_of(known.labels)
    wider = {
        key
        for key in draft.tags
        if key == "global" and _is_true(draft.tags[key]) and not _is_true(tags.get(key))
    }
    new = {key: value for key, value in draft.tags.items() if key not in tags or key in wider}
    other = {
        key: value
        for key, value in draft.tags.items()
        if key not in new and not _is_same(key, value, tags[key])
    }
    more: dict[str, Any] = {}
    less: dict[str, Any] = {}
    if draft.decay is not None and (
        change := _rank_of(draft.decay) - _rank_of(versions.decay_policy(known))
    ):
        (more if change > 0 else less)["decay"] = str(draft.decay)
    sure = known.fields.get("confidence", 1.0)
    if draft.confidence is not None and draft.confidence != sure:
        (more if draft.confidence > sure else less)["confidence"] = draft.confidence
    source = known.fields.get("source")
    if draft.source is not None and draft.source != source:
        (more if source is None else less)["source"] = draft.source
    return Addition(new, more, other, less)


class Repetition(NamedTuple):
    """A draft that repeats a memory.

    Attributes:
        store: Where the memory is; a transaction runs in it.
        known: The memory.
        draft: What repeats it.
        vectors: Those of the draft; None if there is no model.
        redacted: The kinds of the secrets that were taken out of the draft.
        at: When it is said.
    """

    store: Store
    known: Record
    draft: Draft
    vectors: "NDArray[Any] | None"
    redacted: tuple[str, ...]
    at: datetime

    def is_barred(self) -> bool:
        """Return whether whoever writes is less trusted than the writer of the memory."""
        return self._writer() < _trust(self.known)

    def is_restated(self) -> bool:
        """Return whether the memory was corrected before it is said again."""
        return versions.corrected_by(self.known, self.at) is not None

    def conflicts(self) -> int:
        """Return how much of the draft contradicts the memory."""
        added = addition(self.known, self.draft)
        return len(added.other_tags) + len(added.less)

    def left_out(self) -> Repeated:
        """Return that nothing is merged, for the draft is to wait for a review."""
        left = addition(self.known, self.draft).left(everything=True)
        left |= {} if self.draft.supersedes is None else {"supersedes": self.draft.supersedes}
        return Repeated(self.known, (), left, note=NOTE_WAITS if left else "")

    def write(self) -> Repeated:
        """Merge what the draft adds, and reinforce the memory if it can be."""
        added = addition(self.known, self.draft)
        superseding = () if self.draft.supersedes is None else ("supersedes",)
        if self.is_barred():
            left = added.left(everything=True)
            return self._reinforced(
                Repeated(self.known, superseding, left, note=NOTE_TRUST if left else "")
            )
        note = ""
        if added.tags and len(self._tags(added)) > MAX_TAGS:
            note, added = (
                NOTE_TAGS,
                added._replace(tags={}, other_tags={**added.other_tags, **added.tags}),
            )
        merged = added.merged() + superseding
        merged += ("trust",) if self._writer() > _trust(self.known) else ()
        correction = last_correction(self.store, self.known) if self.is_restated() else None
        merged += () if correction is None else ("corrects",)
        record = self._version(added, correction) if merged else self.known
        return self._reinforced(Repeated(record, merged, added.left(), note=note))

    def _writer(self) -> int:
        return _trust(stamp_origin(self.store, self.known))

    def _tags(self, added: Addition) -> dict[str, str]:
        return {**tags_of(self.known.labels), **added.tags}

    def _version(self, added: Addition, correction: Record | None) -> Record:
        """Add a version: of the same text, unless a more trusted writer said it, whose own words
        then count.
        """
        known, draft = self.known, self.draft
        trusted = self._writer() > _trust(known)
        more = added.more
        said = Draft(
            draft.content,
            decay=more.get("decay"),
            confidence=more.get("confidence"),
            source=more.get("source"),
        )
        kinds = (() if trusted else known.names("redacted")) + self.redacted
        fields = versions.declared_fields(said) | {
            "redacted": " ".join(dict.fromkeys(kinds)) or None
        }
        fields |= {} if draft.supersedes is None else {"supersedes": draft.supersedes}
        changes = {
            "text": draft.content if trusted else known.text,
            "labels": self._tags(added),
            "fields": fields,
        }
        new = mark_record(versions.next_version(known, "update", self.at, fresh=False, **changes))
        new = stamp_origin(
            self.store,
            new if correction is None else recorrected(self.store, known, new, correction),
        )
        vectors = self.vectors
        if vectors is not None and new.text != draft.content:
            vectors = self.store.vectors([known.ref]).get(known.ref)
        self.store.patch([versions.end_version(known, new.created_at, "update")])
        append_stamped(self.store, [new._replace(vectors=vectors)])
        return new

    def _reinforced(self, done: Repeated) -> Repeated:
        """Reset the decay of the memory, unless nobody decided that it is said again, or it was
        said before.
        """
        record = done.record
        decided = self._writer() >= min(_trust(record), _RANKS[AGENT])
        if versions.decay_policy(record) is not DecayPolicy.REINFORCEABLE or not decided:
            return done
        if self.at < versions.aging_from(record, self.at):
            return done
        reset_decay(self.store, [record], self.at)
        fields = {**record.fields, "reinforced_at": to_millis(self.at)}
        return done._replace(record=record._replace(fields=fields), reinforced=True)


def _trust(record: Record) -> int:
    known = record.labels.get(TRUST)
    return _UNKNOWN if known is None else _RANKS.get(known, 0)


def _rank_of(policy: str) -> int:
    return _LASTING.index(DecayPolicy(policy))


def _is_true(value: str | None) -> bool:
    return (value or "").lower() == "true"


def _is_same(key: str, value: str, known: str) -> bool:
    return value == known or (key == "global" and _is_true(value) == _is_true(known))
