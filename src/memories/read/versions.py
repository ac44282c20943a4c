"""How a memory is laid out in records, one for each version, and how it is read from them. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from memories.core.times import from_millis, to_millis
from memories.guard.origin import HELD, PINNED, origin_of, tags_of
from memories.models import PENDING, DecayPolicy, Draft, Memory, Version
from memories.settings import HalfLife
from memories.stores.records import Collection, Patch, Record, Ref

LINK = (
    "corrects",
    "corrected_by",
    "corrected_at",
)  # fields that tell of a correction; see `write.links`
_UNDONE = " (restored)"  # behind what ended a version that was brought back
_SCOPE = "\x1f"  # between project and key; neither can hold a control character


def first_version(
    draft: Draft, memory_id: str, namespace: str, created_at: datetime, redacted: Sequence[str] = ()
) -> Record:
    """Return the record of a new memory; `redacted` are the kinds of the secrets that were taken
    out of it.
    """
    record = Record(
        ref=Ref(Collection.MEMORY, namespace, memory_id, 1),
        text=draft.content,
        created_at=created_at,
        key=None if draft.key is None else scoped_key(draft.key, draft.tags),
        labels=draft.tags,
        fields=_present(
            {
                **declared(draft),
                "supersedes": draft.supersedes,
                "redacted": " ".join(redacted) or None,
            }
        ),
    )
    return held(record) if draft.pending else record


def held(record: Record, by: str = PENDING) -> Record:
    """Return a record that has never been current: it waits to be accepted, or was ended before it
    was.
    """
    return record._replace(
        ended_at=record.created_at, ended_by=by, labels={**record.labels, HELD: "1"}
    )


def is_unaccepted(record: Record) -> bool:
    """Return whether a record had to wait to be accepted and was not, whatever became of it."""
    return HELD in record.labels and "accepted_at" not in record.fields


def next_version(
    latest: Record, operation: str, now: datetime, *, fresh: bool, **changes: Any
) -> Record:
    """Return the record of a memory's next version.

    Args:
        latest: Its latest version.
        operation: `update` or `restore`.
        now: The time of writing.
        fresh: Its decay starts over because it was stated again; otherwise it goes on aging.
        **changes: `text`, `labels`, or `fields` to set, where they differ from the latest version;
            and `pinned`, which otherwise stays as it is.
    """
    kept = ("decay", "confidence", "source", "supersedes", *LINK, "first_at")
    names = (*kept, *(() if fresh else ("aging_from", "reinforced_at")))
    if changes.get("text", latest.text) == latest.text:
        names += ("data",)
    fields = {"first_at": to_millis(latest.created_at)} | (
        {} if fresh else {"aging_from": to_millis(latest.created_at)}
    )
    fields |= _present({name: latest.fields.get(name) for name in names})
    fields |= {"operation": operation} | changes.pop("fields", {})
    # A clock that was set back must not make a version older than the one before it.
    written_at = max(now, latest.created_at, latest.ended_at or latest.created_at)
    key = plain_key(latest.key)
    labels = changes.pop("labels", tags_of(latest.labels))
    pinned = changes.pop("pinned", PINNED in latest.labels)
    return latest._replace(
        ref=latest.ref._replace(position=latest.ref.position + 1),
        created_at=written_at,
        ended_at=None,
        ended_by=None,
        key=None if key is None else scoped_key(key, labels),
        fields=_present(fields),
        vectors=None,
        accesses=0,
        labels={**labels, PINNED: "1"} if pinned else labels,
        **changes,
    )


def declared(draft: Draft) -> dict[str, Any]:
    """Return the fields for the policy, confidence, source and data that a draft declares; what is
    usual is None.
    """
    fields: dict[str, Any] = {}
    if draft.decay is not None:
        fields["decay"] = None if draft.decay == DecayPolicy.STABLE else str(draft.decay)
    if draft.confidence is not None:
        fields["confidence"] = None if draft.confidence == 1.0 else draft.confidence
    if draft.source is not None:
        fields["source"] = draft.source
    if draft.data is not None:
        fields["data"] = draft.data or None
    return fields


def scoped_key(key: str, labels: Mapping[str, str]) -> str:
    """Return a key as it is stored: each project has its own keys."""
    project = labels.get("project")
    return key if project is None else f"{project}{_SCOPE}{key}"


def plain_key(stored: str | None) -> str | None:
    """Return a stored key as its writer knows it."""
    return None if stored is None else stored.rpartition(_SCOPE)[2]


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def undone(record: Record) -> Patch:
    """Return the change that marks the end of a version as undone, for it no longer counts as
    deleted.
    """
    successor = {"superseded_by": None, "replaced_by": record.fields.get("superseded_by")}
    return Patch(record.ref, record.ended_at, f"{record.ended_by}{_UNDONE}", successor)


def known_by(records: Sequence[Record], moment: datetime) -> list[Record]:
    """Return those versions of a memory that were current by a time, each as it was known then, in
    their order.

    Args:
        records: Its versions, oldest first.
        moment: The time.
    """
    then = [
        record
        for record in records
        if record.created_at <= moment
        and not is_unaccepted(record)
        and accepted_at(record) <= to_millis(moment)
    ]
    return [_known_by(record, moment, last=record is then[-1]) for record in then]


def _known_by(record: Record, moment: datetime, *, last: bool) -> Record:
    """Return a version without what became of it later: its end, or that its end was undone."""
    if record.ended_at is None or record.ended_at > moment:
        return record._replace(ended_at=None, ended_by=None)
    if last and record.ended_by is not None and record.ended_by.endswith(_UNDONE):
        fields = {**record.fields, "superseded_by": record.fields.get("replaced_by")}
        return record._replace(
            ended_by=record.ended_by.removesuffix(_UNDONE), fields=_present(fields)
        )
    return record


def accepted_at(record: Record) -> int:
    """Return when a record was accepted, in milliseconds since 1970; 0 if it did not have to wait,
    or waits.
    """
    return int(record.fields.get("accepted_at", 0))


def ended(record: Record, at: datetime, by: str, **fields: Any) -> Patch:
    """Return the change that ends a version."""
    return Patch(record.ref, max(at, record.created_at), by, fields)


def to_memory(latest: Record, now: datetime, half_life_hours: float) -> Memory:
    """Return the memory that a latest version stands for, as it was or is at `now`."""
    fields = latest.fields
    ended_by_now = latest.ended_at is not None and latest.ended_at <= now
    return Memory(
        id=latest.ref.group,
        namespace=latest.ref.namespace,
        content=latest.text,
        tags=tags_of(latest.labels),
        decay_policy=decay_policy(latest),
        confidence=confidence(latest, now, half_life_hours),
        base_confidence=_base_confidence(latest),
        created_at=from_millis(fields["first_at"]) if "first_at" in fields else latest.created_at,
        updated_at=latest.created_at,
        last_reinforced_at=last_reinforced_at(latest, now),
        version=latest.ref.position,
        key=plain_key(latest.key),
        supersedes=fields.get("supersedes"),
        superseded_by=fields.get("superseded_by") if ended_by_now else None,
        deleted=latest.ended_by == "delete" and ended_by_now,
        access_count=latest.accesses,
        origin=origin_of(latest.labels),
        pending=latest.ended_by == PENDING,
        **_acceptance(fields),
        redacted=latest.names("redacted"),
        suspicious=latest.names("suspicious"),
        source=fields.get("source"),
        data=fields.get("data"),
        corrects=fields.get("corrects"),
        corrected_by=corrected_by(latest, now),
        pinned=PINNED in latest.labels,
    )


def corrected_by(record: Record, now: datetime) -> str | None:
    """Return the memory that corrects a version, if it was written by `now`."""
    millis = record.fields.get("corrected_at")
    return (
        None if millis is None or from_millis(millis) > now else record.fields.get("corrected_by")
    )


def to_version(record: Record) -> Version:
    """Return what a record says as one version of a memory."""
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
        suspicious=record.names("suspicious"),
    )


def _acceptance(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return when, and by whom, a record was accepted; nothing if it did not have to wait, or
    waits.
    """
    if "accepted_at" not in fields:
        return {}
    return {
        "accepted_at": from_millis(fields["accepted_at"]),
        "accepted_by": fields.get("accepted_by"),
    }


def confidence(record: Record, now: datetime, half_life_hours: float) -> float:
    """Return how current and how sure a version is, 0 to 1: what its writer declared, times its
    decay.
    """
    policy, decayed = decay_policy(record), 1.0
    if policy is not DecayPolicy.STABLE:
        decayed = compute_confidence(policy, aging_from(record, now), now, half_life_hours)
    return round(_base_confidence(record) * decayed, 4)


def aging_from(record: Record, now: datetime) -> datetime:
    """Return when the decay of a version began, as it was known at `now`."""
    if not record.fields:
        return record.created_at
    millis = record.fields.get("aging_from")
    written_at = record.created_at if millis is None else from_millis(millis)
    return reference_time(decay_policy(record), written_at, last_reinforced_at(record, now))


def half_life_of(policy: DecayPolicy, half_life_hours: float) -> float:
    """Return the hours of a policy: reinforceable memories have their own if it is a `HalfLife`."""
    if policy is DecayPolicy.REINFORCEABLE and isinstance(half_life_hours, HalfLife):
        return half_life_hours.reinforceable
    return float(half_life_hours)


def compute_confidence(
    policy: DecayPolicy, reference_at: datetime, now: datetime, half_life_hours: float
) -> float:
    """Return how current a statement is: 1.0 when fresh, falling in a straight line to 0.0.

    The formula is that of the command's specification, section 5.2: `max(0, 1 - age / half_life)`,
    to four digits. (What it calls a half life is the whole time until nothing is left.) A time of
    reference in the future, as after a clock was set back, counts as now.

    Args:
        policy: `stable` never decays.
        reference_at: From when age counts, see `reference_time`.
        now: The time to judge at.
        half_life_hours: Hours until confidence is 0.0; greater than 0. A `HalfLife` may have others
            for this policy.

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
    """Return from when age counts: the last reinforcement if the policy heeds it, else when the
    version was written.
    """
    if policy is DecayPolicy.REINFORCEABLE and last_reinforced_at is not None:
        return max(last_reinforced_at, written_at)
    return written_at


def _base_confidence(record: Record) -> float:
    return float(record.fields.get("confidence", 1.0))


def decay_policy(record: Record) -> DecayPolicy:
    """Return how a version decays."""
    declared = record.fields.get("decay")
    return DecayPolicy.STABLE if declared is None else DecayPolicy(declared)


def last_reinforced_at(record: Record, now: datetime) -> datetime | None:
    """Return when a version was last reinforced, if that was before `now`."""
    millis = record.fields.get("reinforced_at")
    return None if millis is None or from_millis(millis) > now else from_millis(millis)
