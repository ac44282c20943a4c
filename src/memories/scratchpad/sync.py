"""Brings a scratchpad and its store together: what a person wrote in the file, then what the store
has.
"""

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from memories.errors import InvalidInput, NotFound, RequestError
from memories.models import Draft
from memories.scratchpad import scratchpad
from memories.scratchpad.at_hand import Scratchpad
from memories.scratchpad.choice import Selection, entry_of, select, select_all
from memories.scratchpad.entries import Entry, Rules, chosen
from memories.scratchpad.layout import Pad
from memories.scratchpad.scratchpad import Place

if TYPE_CHECKING:
    from memories.write.writer import Writer


def refreshed(place: Place, writer: "Writer", rules: Rules, *, rebuild: bool = False) -> Scratchpad:
    """Take over what a person wrote in a scratchpad, and bring it up to date with the store.

    Where something can't be taken over, the file stays as it is, and what the store has is
    returned.

    Args:
        place: The scratchpad.
        writer: Writes what is taken over; it tells no scratchpad.
        rules: What the settings say.
        rebuild: Choose anew from all memories, those included that were left out.

    Raises:
        InvalidInput: With `rebuild`: the file can't be read, or what a person wrote in it can't be
            taken over.
    """
    with scratchpad.alone(place):
        return scratchpad.attempted(
            lambda: _refreshed(place, writer, rules, rebuild=rebuild), place
        )


def _refreshed(place: Place, writer: "Writer", rules: Rules, *, rebuild: bool) -> Scratchpad:
    namespace, now = place.namespace, writer.now
    before = scratchpad.seen(place)
    try:
        pad = scratchpad.load(place.home, namespace)
        done = (
            _adopt(pad, place, writer) if pad is not None and pad.edited else _Adopted([], [], [])
        )
    except InvalidInput as exc:
        if rebuild:
            raise
        pad, done = None, _Adopted([str(exc)], [], [])
    if rebuild and done.notes:
        raise InvalidInput("; ".join(done.notes))
    with scratchpad.freshening(place):
        store = writer.lookup.store
        if rebuild:
            found = select_all(store, namespace, rules, now)
            pad = None
        else:
            found = select(store, namespace, rules, now, () if pad is None else pad.entries)
        left = () if pad is None else tuple(dict.fromkeys([*pad.left_out, *done.left_out]))
        fresh = Pad(
            namespace,
            place.store,
            waiting=found.waiting,
            written=_iso(now),
            entries=tuple(found.entries),
        )
        if not done.notes:
            gone = () if pad is None else pad.gone
            fresh = scratchpad.write(place, fresh._replace(left_out=left, gone=gone), before)
        chose = chosen(fresh.entries, rules, now, left)
    return Scratchpad(
        tuple(chose), found.waiting, str(place.file), tuple(done.notes), tuple(done.taken)
    )


def from_store(writer: "Writer", rules: Rules, *, rebuild: bool = False) -> Scratchpad:
    """Return what a scratchpad of a namespace would hold, without a file."""
    store, namespace, now = writer.lookup.store, writer.lookup.namespace, writer.now
    found: Selection = (select_all if rebuild else select)(store, namespace, rules, now)
    return Scratchpad(tuple(chosen(found.entries, rules, now)), found.waiting, None)


def _iso(now: datetime) -> str:
    from memories.core.times import to_iso

    return to_iso(now)


# --- what a person wrote
# ---------------------------------------------------------------------------------------------


class _Adopted(NamedTuple):
    """What became of what a person wrote: what was refused, what was taken over, and what was taken
    out.
    """

    notes: list[str]
    taken: list[str]
    left_out: list[str]


def _adopt(pad: Pad, place: Place, writer: "Writer") -> _Adopted:
    """Take over what a person changed; of entries that are as they were, nothing is written."""
    done = _Adopted([], [], [])
    if pad.store != place.store:
        done.notes.append(
            f"{place.file} was edited and belongs to the store {pad.store}; use that store, or remove it"
        )
        return done
    there = {entry.id for entry in pad.entries}
    for entry, span in zip(pad.entries, pad.spans, strict=True):
        where = f"{place.file}, line {span[0] + 1}"
        try:
            said = _adopt_entry(entry, writer)
        except NotFound:
            done.notes.append(
                f"{where}: there is no memory {entry.id[:64]} in namespace {place.namespace}"
            )
        except RequestError as exc:
            done.notes.append(f"{where} was not taken over: {exc}")
        else:
            done.taken.extend(said)
    for name in pad.held:
        if name not in there:
            try:
                _leave_out(name, writer, done)
            except RequestError as exc:
                done.notes.append(f"{place.file}: {name[:64]} was not unpinned: {exc}")
    return done


def _adopt_entry(entry: Entry, writer: "Writer") -> list[str]:
    from memories.write import change  # which reading does without

    if not entry.id:
        return [_create(entry, writer)]
    lookup, now = writer.lookup, writer.now
    latest = lookup.find_own(entry.id)
    taken: list[str] = []
    if (
        latest.ended_at is not None
    ):  # replaced or taken back to waiting since the file was written: it just leaves
        return taken
    shown = next((r for r in lookup.versions(entry.id) if r.ref.position == entry.version), latest)
    known = entry_of(shown._replace(ended_at=None), now)
    same = known is None or entry.content in (known.content, latest.text)
    if not same:
        if entry.cut is not None:
            raise RequestError(
                f"only its beginning is shown there; edit it with: memory edit {entry.id}"
            )
        given = change.Update(entry.content, {}, (), writer.redactor)
        new = change.update(lookup, writer.embedder, entry.id, given, now)
        taken.append(f"{entry.id} has version {new.ref.position}")
    if entry.pinned != change.is_pinned(latest):
        change.pin(lookup, writer.embedder, entry.id, now, pinned=entry.pinned)
        taken.append(f"{entry.id} is {'pinned' if entry.pinned else 'unpinned'}")
    return taken


def _create(entry: Entry, writer: "Writer") -> str:
    """Store a line that a person added; a very similar memory does not keep it out, for it was
    meant to be there.
    """
    from memories.write import change
    from memories.write.create import create

    draft = Draft(entry.content, dict(entry.tags), key=entry.key)
    [created] = create(writer, [draft])
    if created.memory is None:
        [created] = create(writer._replace(force=True), [draft])
    assert created.memory is not None  # nothing else keeps a draft out
    if entry.pinned:
        change.pin(writer.lookup, writer.embedder, created.memory.id, writer.now, pinned=True)
    return f"{created.memory.id} was {'stored' if created.stored else 'there already'}"


def _leave_out(name: str, writer: "Writer", done: _Adopted) -> None:
    """Leave out what a person took out of the file: unpin it, and remember that it is not wanted
    there.
    """
    from memories.write import change

    try:
        latest = writer.lookup.find_own(name)
    except NotFound:  # deleted meanwhile
        return
    if latest.ended_at is None and change.is_pinned(latest):
        change.pin(writer.lookup, writer.embedder, name, writer.now, pinned=False)
        done.taken.append(f"{name} is unpinned")
    done.left_out.append(name)
