"""Makes the record of a version from a draft or the previous version, and reads it as a memory with
its confidence. Pure: no function here reads or writes a store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from memories.core.ids import whole_id
from memories.core.times import from_millis, to_millis, to_stored_time
from memories.errors import InvalidInput
from memories.guard import validate
from memories.guard.origin import HELD, IMPORTED_AS, PINNED, origin_of, tags_of
from memories.models import DECLARED, PENDING, DecayPolicy, Draft, History, Memory, Version
from memories.settings import HalfLife
from memories.stores.records import Collection, Patch, Record, Ref

if TYPE_CHECKING:
    from memories.guard.redactor import Redactor

# Fields of a link: `corrects` is in the newer memory, the others in the older one. See
# `write.links`.
LINK = ("corrects", "corrected_by", "corrected_at", "corrected_until")
# fields with the links of a memory that was moved or imported without its neighbours, until it is
# reunited with them
FORMER_CORRECTS, FORMER_CORRECTED_BY = "former_corrects", "former_corrected_by"
FORMER_LINK = (FORMER_CORRECTS, FORMER_CORRECTED_BY)
# Field of the newer memory, set by `--not-corrects`: the ids of memories that it must not be linked
# to again. The field is stored under its former name.
NOT_CORRECTS = "not_corrected"
# field of a record returned by a change, never stored: the ids of the memories that are current
# again
CURRENT_AGAIN = "current_again"
# field of a proposal by `write.tidy`: what accepting it does, as JSON
PROPOSED = "tidy"
_RESTORED = " (restored)"  # suffix of a restored version's `ended_by`
_SCOPE = "\x1f"  # between project and key, neither of which can contain a control character
# Fields for the evidence that a memory cites; see `anchors`.
ANCHORS = ("anchors", "anchored_at", "valid_until", "recheck_days")
_ANCHOR_SEPARATOR = "\n"
# Fields that every new version copies from the previous one. `next_version` copies some others
# conditionally, and drops the rest.
_COPIED_FIELDS = (*DECLARED, "supersedes", *LINK, NOT_CORRECTS, "first_at")


# --- checking drafts ---


def redact(draft: Draft, redactor: "Redactor") -> tuple[Draft, list[str]]:
    """Return a draft without secrets, and the kinds of secrets that were removed."""
    content, kinds = redactor.text(draft.content)
    tags, tag_kinds = redactor.pairs(draft.tags)
    all_kinds = [*kinds, *tag_kinds]
    draft = replace(draft, content=content, tags=tags)
    if draft.key is not None:
        key, key_kinds = redactor.name(draft.key, "key")
        draft = replace(draft, key=key)
        all_kinds += key_kinds
    if draft.data:
        data, data_kinds = redactor.data(draft.data)
        draft = replace(draft, data=data)
        all_kinds += data_kinds
    if draft.source is not None:  # the name of a conversation, which can't be redacted
        redactor.refuse(draft.source, "source")
    return draft, all_kinds


def check_fields(draft: Draft) -> Draft:
    """Return a draft with its values in their stored form, except its content.

    Raises:
        InvalidInput: A value is invalid.
    """
    values: dict[str, Any] = {"tags": validate.tags(draft.tags)}
    if draft.decay is not None:
        if draft.decay not in tuple(DecayPolicy):
            shown = validate.shown(str(draft.decay))
            raise InvalidInput(f'decay must be {", ".join(DecayPolicy)}, not "{shown}"')
        values["decay"] = str(draft.decay)
    if draft.key is not None:
        values["key"] = validate.key(draft.key)
    if draft.confidence is not None:
        values["confidence"] = validate.unit(draft.confidence, "confidence")
    if draft.created_at is not None:
        values["created_at"] = to_stored_time(draft.created_at, "created_at")
    if draft.source is not None:
        values["source"] = validate.one_line(draft.source, "source")
    if draft.data is not None:
        values["data"] = validate.data(draft.data)
    if draft.id is not None:
        values["id"] = whole_id(draft.id)
    return replace(draft, **values)


# --- making records ---


def first_version(
    draft: Draft, memory_id: str, namespace: str, created_at: datetime, redacted: Sequence[str] = ()
) -> Record:
    """Return the record of a new memory; `redacted` lists the kinds of secrets removed from it."""
    fields = {
        **declared_fields(draft),
        "supersedes": draft.supersedes,
        "redacted": " ".join(redacted) or None,
    }
    labels = draft.tags
    if draft.imported_as is not None:
        labels = {**labels, IMPORTED_AS: draft.imported_as}
    record = Record(
        ref=Ref(Collection.MEMORY, namespace, memory_id, 1),
        text=draft.content,
        created_at=created_at,
        key=None if draft.key is None else scoped_key(draft.key, draft.tags),
        labels=labels,
        fields=_without_none(fields),
    )
    return hold_back(record) if draft.pending else record


def hold_back(record: Record) -> Record:
    """Return a record marked as awaiting review, so that it never counts as having been live."""
    return record._replace(
        ended_at=record.created_at, ended_by=PENDING, labels={**record.labels, HELD: "1"}
    )


def next_version(
    latest: Record, operation: str, now: datetime, *, restarts_decay: bool, **changes: Any
) -> Record:
    """Return the record of a memory's next version.

    Args:
        latest: The latest version of the memory.
        operation: `update`, `restore` or `confirm`.
        now: The time of writing.
        restarts_decay: Whether the memory was restated. Otherwise its decay continues.
        **changes: New values: `text`, `labels`, `fields` to set, or `pinned`.
    """
    written_at = to_millis(latest.created_at)
    copied = list(_COPIED_FIELDS)
    fields: dict[str, Any] = {"first_at": written_at}
    if not restarts_decay:
        copied += ["aging_from", "reinforced_at"]
        fields["aging_from"] = written_at
    if changes.get("text", latest.text) == latest.text:
        copied += ["data", *ANCHORS, *FORMER_LINK]
    else:
        copied.append("recheck_days")
        if not has_expired(latest, now):  # new text makes the memory valid again
            copied.append("valid_until")
        fields |= _anchors_left(latest, changes["text"])
    for name in copied:
        if latest.fields.get(name) is not None:
            fields[name] = latest.fields[name]
    fields["operation"] = operation
    fields |= changes.pop("fields", {})
    key = plain_key(latest.key)
    labels = changes.pop("labels", tags_of(latest.labels))
    if key is not None:
        key = scoped_key(key, labels)
    if changes.pop("pinned", PINNED in latest.labels):
        labels = {**labels, PINNED: "1"}
    return latest._replace(
        ref=latest.ref._replace(position=latest.ref.position + 1),
        # Even if the clock was set back, a version must not be older than the previous one.
        created_at=max(now, latest.created_at, latest.ended_at or latest.created_at),
        ended_at=None,
        ended_by=None,
        key=key,
        fields=_without_none(fields),
        vectors=None,
        accesses=0,
        labels=labels,
        **changes,
    )


def _anchors_left(latest: Record, text: str) -> dict[str, Any]:
    """Return the fields for the anchors that a memory keeps when its text changes."""
    anchors = split_anchors(latest.fields.get("anchors"))
    if not anchors:
        return {}
    from memories.anchors.grammar import select_named

    left = select_named(anchors, latest.text, text)
    if not left:
        return {}
    return {
        "anchors": _ANCHOR_SEPARATOR.join(left),
        "anchored_at": latest.fields.get("anchored_at"),
    }


def declared_fields(draft: Draft) -> dict[str, Any]:
    """Return the fields that a draft declares: decay policy, confidence, source, data, anchors and
    dates.

    A default value is stored as None, which takes no space.
    """
    fields = _without_none({name: getattr(draft, name) for name in DECLARED})
    if draft.decay == DecayPolicy.STABLE:
        fields["decay"] = None
    if draft.confidence == 1.0:
        fields["confidence"] = None
    if draft.data is not None:
        fields["data"] = draft.data or None
    if draft.anchors is not None:
        fields["anchors"] = _ANCHOR_SEPARATOR.join(draft.anchors) or None
        anchored_at = draft.anchored_at
        fields["anchored_at"] = None if anchored_at is None else to_millis(anchored_at)
    if draft.valid_until is not None:
        end = draft.valid_until
        fields["valid_until"] = to_millis(end) if isinstance(end, datetime) else None
    if draft.recheck is not None:
        fields["recheck_days"] = draft.recheck or None
    return fields


def end_version(record: Record, at: datetime, by: str, **fields: Any) -> Patch:
    """Return the patch that ends a version."""
    return Patch(record.ref, max(at, record.created_at), by, fields)


def undo_end(record: Record) -> Patch:
    """Return the patch that marks the deletion or replacement of an ended version as undone."""
    successor = {"superseded_by": None, "replaced_by": record.fields.get("superseded_by")}
    return Patch(record.ref, record.ended_at, f"{record.ended_by}{_RESTORED}", successor)


def scoped_key(key: str, labels: Mapping[str, str]) -> str:
    """Return the stored form of a key, which includes its project."""
    project = labels.get("project")
    if project is None:
        return key
    return f"{project}{_SCOPE}{key}"


def plain_key(stored_key: str | None) -> str | None:
    """Return a stored key as its writer gave it, without the project."""
    if stored_key is None:
        return None
    return stored_key.rpartition(_SCOPE)[2]


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


# --- reading records ---


def to_memory(latest: Record, now: datetime, half_life_hours: float) -> Memory:
    """Return the memory whose latest version is the given record, as of `now`."""
    fields = latest.fields
    has_ended = latest.ended_at is not None and latest.ended_at <= now
    corrected = () if has_ended else read_corrects(latest, now)
    return Memory(
        id=latest.ref.group,
        namespace=latest.ref.namespace,
        content=latest.text,
        tags=tags_of(latest.labels),
        decay_policy=decay_policy(latest),
        confidence=confidence(latest, now, half_life_hours),
        base_confidence=base_confidence(latest),
        created_at=first_written_at(latest),
        updated_at=latest.created_at,
        stated_at=stated_at(latest),
        last_reinforced_at=last_reinforced_at(latest, now),
        version=latest.ref.position,
        key=plain_key(latest.key),
        supersedes=fields.get("supersedes"),
        superseded_by=fields.get("superseded_by") if has_ended else None,
        deleted=latest.ended_by == "delete" and has_ended,
        access_count=latest.accesses,
        origin=origin_of(latest.labels),
        pending=latest.ended_by == PENDING,
        **_acceptance(fields),
        redacted=latest.read_list("redacted"),
        suspicious=latest.read_list("suspicious"),
        source=fields.get("source"),
        data=fields.get("data"),
        corrects=next(iter(corrected), None),
        also_corrects=corrected[1:],
        current_again=latest.read_list(CURRENT_AGAIN),
        corrected_by=None if has_ended else read_corrected_by(latest, now),
        pinned=PINNED in latest.labels,
        anchors=split_anchors(fields.get("anchors")),
        valid_until=time_of(fields, "valid_until"),
        recheck_days=fields.get("recheck_days"),
        anchored_at=time_of(fields, "anchored_at"),
    )


def to_draft(record: Record) -> Draft:
    """Return a draft with the text and the declared values of a record."""
    fields = record.fields
    declared: dict[str, Any] = {name: fields.get(name) for name in DECLARED}
    return Draft(
        record.text,
        tags=tags_of(record.labels),
        key=plain_key(record.key),
        supersedes=fields.get("supersedes"),
        data=fields.get("data"),
        anchors=split_anchors(fields.get("anchors")) or None,
        anchored_at=time_of(fields, "anchored_at"),
        valid_until=time_of(fields, "valid_until"),
        recheck=fields.get("recheck_days"),
        **declared,
    )


def split_anchors(field: object) -> tuple[str, ...]:
    """Split the value of a field into the anchors that it lists."""
    if field:
        return tuple(str(field).split(_ANCHOR_SEPARATOR))
    return ()


def time_of(fields: Mapping[str, Any], name: str) -> datetime | None:
    """Return the time in a field; None if the record lacks the field."""
    millis = fields.get(name)
    return None if millis is None else from_millis(millis)


def to_history(records: Sequence[Record], memory: Memory) -> History:
    """Return the history of a memory from the records of its versions, oldest first."""
    return History(
        memory.id,
        tuple(map(to_version, records)),
        memory.supersedes,
        memory.superseded_by,
        memory.namespace,
        memory.pending,
        memory.corrects,
        memory.corrected_by,
        memory.also_corrects,
        memory,
    )


def to_version(record: Record) -> Version:
    """Return a record as one version of a memory."""
    return Version(
        version=record.ref.position,
        content=record.text,
        tags=tags_of(record.labels),
        operation=record.fields.get("operation", "create"),
        created_at=record.created_at,
        ended_at=record.ended_at,
        ended_by=record.ended_by,
        origin=origin_of(record.labels),
        **_acceptance(record.fields),
        suspicious=record.read_list("suspicious"),
    )


def _acceptance(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return who accepted a record, and when; empty if it was not accepted in a review."""
    if "accepted_at" not in fields:
        return {}
    return {
        "accepted_at": from_millis(fields["accepted_at"]),
        "accepted_by": fields.get("accepted_by"),
    }


def has_link(record: Record) -> bool:
    """Return whether a memory corrects another or is corrected."""
    return any(name in record.fields for name in LINK)


def read_corrects(record: Record, now: datetime) -> tuple[str, ...]:
    """Return the ids of the memories that a version corrects at a given time."""
    return record.read_list("corrects") if _is_ahead(compute_correction_end(record), now) else ()


def compute_correction_end(record: Record) -> int | None:
    """Return when a version stops correcting others, in milliseconds since 1970; None for never.

    A version corrects others as long as it is valid. If a newer memory corrects it, the older ones
    stay corrected as long as either of the two is valid.
    """
    valid_until: int | None = record.fields.get("valid_until")
    if valid_until is None or "corrected_by" not in record.fields:
        return valid_until
    corrected_until: int | None = record.fields.get("corrected_until")
    return None if corrected_until is None else max(valid_until, corrected_until)


def is_corrected(record: Record, now: datetime) -> bool:
    """Return whether another memory corrects a version at a given time."""
    return read_corrected_by(record, now) is not None


def read_corrected_by(record: Record, now: datetime) -> str | None:
    """Return the id of the memory that corrects a version at a given time, if any. A correction
    that has expired doesn't count.
    """
    if not _is_ahead(record.fields.get("corrected_until"), now):
        return None
    return read_correction_link(record, now)


def read_correction_link(record: Record, now: datetime) -> str | None:
    """Return the same as `read_corrected_by`, except that an expired correction counts."""
    corrected_at = time_of(record.fields, "corrected_at")
    if corrected_at is None or corrected_at > now:
        return None
    memory_id: str | None = record.fields.get("corrected_by")
    return memory_id


def has_expired(record: Record, now: datetime) -> bool:
    """Return whether a version is no longer valid."""
    return not _is_ahead(record.fields.get("valid_until"), now)


def _is_ahead(millis: int | None, now: datetime) -> bool:
    """Return whether a time in milliseconds since 1970 is in the future, as None always is."""
    return millis is None or now <= from_millis(millis)


def known_at(records: Sequence[Record], moment: datetime) -> list[Record]:
    """Return the versions of a memory that existed at a given time, each as it was then.

    Args:
        records: All versions of the memory, oldest first.
        moment: The time.
    """
    existing: list[Record] = []
    for record in records:
        was_accepted = not is_unaccepted(record) and accepted_at(record) <= to_millis(moment)
        if record.created_at <= moment and was_accepted:
            existing.append(record)
    return [_as_of(record, moment, is_last=record is existing[-1]) for record in existing]


def _as_of(record: Record, moment: datetime, *, is_last: bool) -> Record:
    """Return a version as it was at a given time, before it was ended or restored later."""
    if record.ended_at is None or record.ended_at > moment:
        return record._replace(ended_at=None, ended_by=None)
    if is_last and record.ended_by is not None and record.ended_by.endswith(_RESTORED):
        fields = {**record.fields, "superseded_by": record.fields.get("replaced_by")}
        return record._replace(
            ended_by=record.ended_by.removesuffix(_RESTORED), fields=_without_none(fields)
        )
    return record


def is_unaccepted(record: Record) -> bool:
    """Return whether a record was held for review and never accepted."""
    return HELD in record.labels and "accepted_at" not in record.fields


def accepted_at(record: Record) -> int:
    """Return when a record was accepted, in milliseconds since 1970; 0 if it wasn't."""
    return int(record.fields.get("accepted_at", 0))


# --- decay ---


def confidence(record: Record, now: datetime, half_life_hours: float) -> float:
    """Return the confidence in a version, 0 to 1: the declared confidence times the decay."""
    policy, decay = decay_policy(record), 1.0
    if policy is not DecayPolicy.STABLE:
        decay = compute_decay(policy, aging_from(record, now), now, half_life_hours)
    return round(base_confidence(record) * decay, 4)


def aging_from(record: Record, now: datetime) -> datetime:
    """Return the time at which a version's decay began, as known at `now`: when it was stated or
    last reinforced.
    """
    if not record.fields:
        return record.created_at
    return reference_time(decay_policy(record), stated_at(record), last_reinforced_at(record, now))


def stated_at(record: Record) -> datetime:
    """Return the time at which a version's text was last written or confirmed."""
    return time_of(record.fields, "aging_from") or record.created_at


def half_life_of(policy: DecayPolicy, half_life_hours: float) -> float:
    """Return a policy's half life; a `HalfLife` has a separate one for reinforceable memories."""
    if policy is DecayPolicy.REINFORCEABLE and isinstance(half_life_hours, HalfLife):
        return half_life_hours.reinforceable
    return float(half_life_hours)


def compute_decay(
    policy: DecayPolicy, reference_at: datetime, now: datetime, half_life_hours: float
) -> float:
    """Return the factor by which age lowers a confidence: 1.0 when fresh, falling linearly to 0.0.

    The formula is from section 5.2 of the command's specification: `max(0, 1 - age / half_life)`,
    rounded to four digits. Unlike in physics, its half life is the time until the factor is 0. A
    reference time in the future, as after a clock was set back, counts as now.

    Args:
        policy: `stable` never decays.
        reference_at: The time at which aging began; see `reference_time`.
        now: The current time, or another time of interest.
        half_life_hours: Hours until the factor is 0.0; greater than 0. A `HalfLife` may have a
            different value for this policy.

    Returns:
        0.0 to 1.0.
    """
    if policy is DecayPolicy.STABLE:
        return 1.0
    age_hours = max(0.0, (now - reference_at).total_seconds() / 3600)
    return round(max(0.0, 1.0 - age_hours / half_life_of(policy, half_life_hours)), 4)


def reference_time(
    policy: DecayPolicy, written_at: datetime, last_reinforced_at: datetime | None
) -> datetime:
    """Return the time at which aging began: when the version was written, or when it was last
    reinforced if the policy allows that.
    """
    if policy is DecayPolicy.REINFORCEABLE and last_reinforced_at is not None:
        return max(last_reinforced_at, written_at)
    return written_at


def base_confidence(record: Record) -> float:
    """Return the declared confidence of a version, 0 to 1, before decay."""
    return float(record.fields.get("confidence", 1.0))


def first_written_at(record: Record) -> datetime:
    """Return the time at which the first version of a memory was written."""
    return time_of(record.fields, "first_at") or record.created_at


def decay_policy(record: Record) -> DecayPolicy:
    """Return the decay policy of a version."""
    declared = record.fields.get("decay")
    return DecayPolicy.STABLE if declared is None else DecayPolicy(declared)


def last_reinforced_at(record: Record, now: datetime) -> datetime | None:
    """Return the time at which a version was last reinforced, if that was before `now`."""
    reinforced_at = time_of(record.fields, "reinforced_at")
    if reinforced_at is None or reinforced_at > now:
        return None
    return reinforced_at
