"""Merges a repeated text into its memory: new tags, a more durable decay policy or a higher
confidence are stored as a new version.

Contradictory values are not merged, except dates (`valid_until`, `recheck`), which replace the
memory's dates. A repetition never changes the text, tags or other values of a more trusted writer.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.times import to_millis
from memories.guard.origin import AGENT, TRUST, USER, tags_of
from memories.guard.validate import MAX_TAGS
from memories.models import DECLARED, DecayPolicy, Draft
from memories.read import versions
from memories.stores.logged import append_as_stamped, stamp_record
from memories.stores.protocol import Store
from memories.stores.records import Record
from memories.write.change import append_same, reset_decay
from memories.write.links import find_end_of_chain, move_to_end_of_chain, update_links_after_change
from memories.write.suspicion import mark_suspicious

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOTE_TRUST = "a more trusted writer stored the memory, so a repetition does not change it"
NOTE_TAGS = f"with these tags, the memory would have more than {MAX_TAGS} tags"
NOTE_WAITS = "a draft that awaits review does not change stored memories"
_LASTING = (DecayPolicy.CONTEXTUAL, DecayPolicy.REINFORCEABLE, DecayPolicy.STABLE)
_RANKS = {USER: 2, AGENT: 1}  # 0 for other writers, who didn't decide to store the text
_UNKNOWN_RANK = 1  # the rank of a memory stored before origins were recorded


class Differences(NamedTuple):
    """Differences between a draft and a memory with the same text.

    Attributes:
        new_tags: Tags to add: those that the memory lacks, or that make it valid in every project.
        new_fields: `decay`, `confidence`, `source` and the anchor fields, keyed by their names in
            `Draft`, if the memory lacks them or has a lower value.
        other_tags: The draft's tags that contradict the memory's.
        other_fields: The draft's `decay`, `confidence` and `source`, if they contradict the
            memory's.
    """

    new_tags: Mapping[str, str]
    new_fields: Mapping[str, Any]
    other_tags: Mapping[str, str]
    other_fields: Mapping[str, Any]

    def name_new(self) -> tuple[str, ...]:
        """Return the names of the fields that can be merged, and `tags` if there are new tags."""
        names = list(self.new_fields)
        if self.new_tags:
            names.insert(0, "tags")
        return tuple(names)

    def list_contradictions(self) -> dict[str, Any]:
        """Return the tags and fields that contradict the memory."""
        return _join_tags(self.other_tags, self.other_fields)

    def list_all(self) -> dict[str, Any]:
        """Return all tags and fields that differ."""
        tags = {**self.other_tags, **self.new_tags}
        return _join_tags(tags, {**self.other_fields, **self.new_fields})


def _join_tags(tags: Mapping[str, str], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields, plus `tags` if there are any."""
    if tags:
        return {"tags": dict(tags), **fields}
    return dict(fields)


class MergeResult(NamedTuple):
    """The result of merging a repetition.

    Attributes:
        record: The memory in its new state.
        merged: The names of the fields that a new version took from the draft; usually empty.
        not_merged: The tags and fields of the draft that were not merged.
        reinforced: Whether the memory's decay was reset.
        note: Why some or all of the differences were not merged; usually empty.
    """

    record: Record
    merged: tuple[str, ...] = ()
    not_merged: Mapping[str, Any] = {}
    reinforced: bool = False
    note: str = ""


def find_differences(record: Record, draft: Draft) -> Differences:
    """Compare a draft with the memory that has the same text. Fields that the draft doesn't set are
    ignored.
    """
    record_tags = tags_of(record.labels)
    new_tags: dict[str, str] = {}
    other_tags: dict[str, str] = {}
    for key, value in draft.tags.items():
        present = record_tags.get(key)
        is_same = value == present
        if key == "global" and present is not None:
            is_same = _is_true(value) == _is_true(present)
        becomes_global = key == "global" and _is_true(value) and not is_same
        if present is None or becomes_global:
            new_tags[key] = value
        elif not is_same:
            other_tags[key] = value

    new_fields: dict[str, Any] = {}
    other_fields: dict[str, Any] = {}
    policy, confidence = versions.decay_policy(record), versions.base_confidence(record)
    stored = {**record.fields, "decay": policy, "confidence": confidence}
    for name in DECLARED:
        value, old = getattr(draft, name), stored.get(name)
        if value is None or value == old:
            continue
        is_new = old is None
        if name == "decay":
            is_new = _rank_of(value) > _rank_of(policy)
        elif name == "confidence":
            is_new = value > confidence
        target = new_fields if is_new else other_fields
        target[name] = value
    new_fields |= _find_new_anchors(record, draft)
    return Differences(new_tags, new_fields, other_tags, other_fields)


def _find_new_anchors(record: Record, draft: Draft) -> dict[str, Any]:
    """Return the anchors in a draft that the memory with the same text lacks, and the dates that
    differ.
    """
    fields: dict[str, Any] = {}
    anchors = versions.split_anchors(record.fields.get("anchors"))
    both = tuple(dict.fromkeys((*anchors, *(draft.anchors or ()))))
    if both != anchors:
        fields["anchors"] = both
    declared = versions.declared_fields(draft)
    for name, stored in (("valid_until", "valid_until"), ("recheck", "recheck_days")):
        if stored in declared and declared[stored] != record.fields.get(stored):
            fields[name] = getattr(draft, name)
    return fields


class Repetition(NamedTuple):
    """A draft that repeats a memory.

    Attributes:
        store: The store of the memory, in a transaction.
        record: The memory.
        draft: The draft.
        vectors: The draft's vectors; None without a model.
        redacted: The kinds of secrets that were removed from the draft.
        at: The time of the repetition.
    """

    store: Store
    record: Record
    draft: Draft
    vectors: "NDArray[Any] | None"
    redacted: tuple[str, ...]
    at: datetime

    def is_less_trusted(self) -> bool:
        """Return whether the draft's writer is less trusted than the memory's."""
        return self._writer_rank() < trust_rank(self.record)

    def was_corrected(self) -> bool:
        """Return whether the memory had been corrected before this repetition."""
        return versions.is_corrected(self.record, self.at)

    def count_conflicts(self) -> int:
        """Return how many of the draft's tags and fields conflict with the memory's."""
        differences = find_differences(self.record, self.draft)
        return len(differences.other_tags) + len(differences.other_fields)

    def merge_nothing(self) -> MergeResult:
        """Return a result that merges nothing, since the draft awaits review."""
        not_merged = find_differences(self.record, self.draft).list_all()
        if self.draft.supersedes is not None:
            not_merged["supersedes"] = self.draft.supersedes
        return MergeResult(self.record, (), not_merged, note=NOTE_WAITS if not_merged else "")

    def merge(self) -> MergeResult:
        """Merge the new fields and tags, and reinforce the memory if its policy allows it."""
        differences = find_differences(self.record, self.draft)
        is_limited = isinstance(self.draft.valid_until, datetime)
        if not is_limited and versions.has_expired(self.record, self.at):
            # An expired memory that is restated is valid again.
            new_fields = {**differences.new_fields, "valid_until": ""}
            differences = differences._replace(new_fields=new_fields)
        superseding = () if self.draft.supersedes is None else ("supersedes",)
        if self.is_less_trusted():
            not_merged = differences.list_all()
            note = NOTE_TRUST if not_merged else ""
            record = self._add_supersedes() if superseding else self.record
            return self._reinforce(MergeResult(record, superseding, not_merged, note=note))
        note = ""
        if differences.new_tags and len(self._merge_tags(differences)) > MAX_TAGS:
            note = NOTE_TAGS
            all_tags = {**differences.other_tags, **differences.new_tags}
            differences = differences._replace(new_tags={}, other_tags=all_tags)
        merged = differences.name_new() + superseding
        if self._writer_rank() > trust_rank(self.record):
            merged += ("trust",)
        end_of_chain = None
        until = self.draft.valid_until
        if not isinstance(until, datetime) or until >= self.at:  # not expired
            end_of_chain = find_end_of_chain(self.store, self.record, self.at)
        if end_of_chain is not None:
            merged += ("corrects",)
        record = self._add_version(differences, end_of_chain) if merged else self.record
        not_merged = differences.list_contradictions()
        return self._reinforce(MergeResult(record, merged, not_merged, note=note))

    def _writer_rank(self) -> int:
        return trust_rank(stamp_record(self.store, self.record))

    def _merge_tags(self, differences: Differences) -> dict[str, str]:
        return {**tags_of(self.record.labels), **differences.new_tags}

    def _add_supersedes(self) -> Record:
        """Add a version that takes over the draft's `supersedes`. The writer stays the same."""
        fields = {"supersedes": self.draft.supersedes}
        new = versions.next_version(
            self.record, "update", self.at, restarts_decay=False, fields=fields
        )
        vectors = self.store.vectors([self.record.ref]).get(self.record.ref)
        return append_same(self.store, self.record, new, vectors)

    def _add_version(self, differences: Differences, end_of_chain: Record | None) -> Record:
        """Add a version with the same text. If the writer is more trusted than the memory's, the
        version has the draft's wording. If the memory was corrected, it moves to the end of its
        chain of corrections.
        """
        existing, draft = self.record, self.draft
        is_more_trusted = self._writer_rank() > trust_rank(existing)
        declared = Draft(draft.content, anchored_at=draft.anchored_at, **differences.new_fields)
        kinds = self.redacted
        if not is_more_trusted:
            kinds = (*existing.read_list("redacted"), *kinds)
        fields = versions.declared_fields(declared)
        fields["redacted"] = " ".join(dict.fromkeys(kinds)) or None
        if draft.supersedes is not None:
            fields["supersedes"] = draft.supersedes
        new = versions.next_version(
            existing,
            "update",
            self.at,
            restarts_decay=end_of_chain is not None,
            text=draft.content if is_more_trusted else existing.text,
            labels=self._merge_tags(differences),
            fields=fields,
        )
        new = mark_suspicious(new)
        if end_of_chain is None:
            new = update_links_after_change(self.store, existing, new)
        else:
            new = move_to_end_of_chain(self.store, existing, new, end_of_chain)
        new = stamp_record(self.store, new)
        vectors = self.vectors
        if vectors is not None and new.text != draft.content:
            vectors = self.store.vectors([existing.ref]).get(existing.ref)
        self.store.patch([versions.end_version(existing, new.created_at, "update")])
        append_as_stamped(self.store, [new._replace(vectors=vectors)])
        return new

    def _reinforce(self, result: MergeResult) -> MergeResult:
        """Reset a reinforceable memory's decay, unless the draft is older than the last reset.

        A captured or imported draft doesn't reset the decay of a memory that a user or an agent
        decided to store.
        """
        record = result.record
        is_decided = self._writer_rank() >= min(trust_rank(record), _RANKS[AGENT])
        is_reinforceable = versions.decay_policy(record) is DecayPolicy.REINFORCEABLE
        if not is_reinforceable or not is_decided:
            return result
        if self.at < versions.aging_from(record, self.at):
            return result
        reset_decay(self.store, [record], self.at)
        fields = {**record.fields, "reinforced_at": to_millis(self.at)}
        return result._replace(record=record._replace(fields=fields), reinforced=True)


def trust_rank(record: Record) -> int:
    """Return how far a memory's writer is trusted; 2 is highest."""
    trust = record.labels.get(TRUST)
    if trust is None:
        return _UNKNOWN_RANK
    return _RANKS.get(trust, 0)


def _rank_of(policy: str) -> int:
    return _LASTING.index(DecayPolicy(policy))


def _is_true(value: str | None) -> bool:
    return (value or "").lower() == "true"
