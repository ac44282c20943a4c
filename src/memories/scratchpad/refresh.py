"""Brings a scratchpad up to date. First, the user's edits are written to the store; then the file
is rewritten from the store.

Edits that can't be applied are kept in a separate file next to the scratchpad.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from memories.core.times import to_iso
from memories.errors import InvalidInput, NotFound, RequestError
from memories.guard.origin import PINNED
from memories.models import SESSION, Draft, describe_current_again
from memories.read import versions
from memories.read.lookup import only_pending
from memories.scratchpad import file
from memories.scratchpad.entries import (
    MOST_PINNED,
    MOST_SESSIONS,
    OF_PROJECT,
    PREFERENCE,
    Entry,
    EntryRules,
    choose,
)
from memories.scratchpad.file import PadFile
from memories.scratchpad.hot_tier import Scratchpad
from memories.scratchpad.layout import Pad, render
from memories.scratchpad.mirror import entry_of
from memories.scratchpad.text import read_text
from memories.stores.protocol import Store, scan_pages
from memories.stores.records import Collection, Filter, Record, Ref

if TYPE_CHECKING:
    from memories.write.write_context import WriteContext

_MOST_PROJECTS = 40  # maximum number of projects whose newest memories are read
_MARGIN = 4  # read four times as many records as needed, since some memories are not shown


def refresh(
    pad_file: PadFile, ctx: "WriteContext", rules: EntryRules, *, rebuild: bool = False
) -> Scratchpad:
    """Apply the user's edits to a scratchpad, and bring it up to date with the store.

    Args:
        pad_file: The scratchpad.
        ctx: The context for storing the edits; writes through it must not change a scratchpad.
        rules: The settings of the scratchpad.
        rebuild: Choose again from all memories, including those that the user has removed.

    Raises:
        InvalidInput: With `rebuild`, the file isn't this user's own, or is not safe to read.
    """
    with file.exclusive(pad_file):
        return file.retry_overtaken(
            lambda: _refresh(pad_file, ctx, rules, rebuild=rebuild), pad_file
        )


def _refresh(
    pad_file: PadFile, ctx: "WriteContext", rules: EntryRules, *, rebuild: bool
) -> Scratchpad:
    before = file.fingerprint(pad_file)
    try:
        text = read_text(pad_file.path)
    except InvalidInput as exc:  # the file is left unchanged
        if rebuild:
            raise
        scratchpad = read_store(ctx, rules)
        return scratchpad._replace(file=str(pad_file.path), notes=(str(exc),))
    edits = take_over(text, pad_file, ctx)
    old = Pad(pad_file.namespace, pad_file.store) if edits.pad is None or rebuild else edits.pad
    with file.clearing_stale(pad_file):
        selection = _select(ctx, rules, old.entries, rebuild=rebuild)
        fresh = Pad(
            pad_file.namespace,
            pad_file.store,
            waiting=selection.waiting,
            written=to_iso(ctx.now),
            until=selection.until,
            entries=tuple(selection.entries),
            left_out=() if rebuild else tuple(dict.fromkeys([*old.left_out, *edits.left_out])),
            gone=old.gone,
        )
        fresh = file.write(pad_file, fresh, before)
    entries = choose(fresh.entries, rules, ctx.now, fresh.left_out)
    return Scratchpad(
        tuple(entries), fresh.waiting, str(pad_file.path), edits.notes, tuple(edits.taken)
    )


def read_store(ctx: "WriteContext", rules: EntryRules, *, rebuild: bool = False) -> Scratchpad:
    """Return a namespace's scratchpad as read from the store, without using a file."""
    selection = _select(ctx, rules, (), rebuild=rebuild)
    entries = choose(selection.entries, rules, ctx.now)
    return Scratchpad(tuple(entries), selection.waiting, None)


# --- from the file into the store


class Edits(NamedTuple):
    """The result of applying the user's edits.

    Attributes:
        pad: The content of the file, including the edits; None if there is no readable file.
        taken: The edits that were applied, one sentence each.
        left_out: Ids of the entries that were removed.
        notes: If edits were refused, a sentence with the reason and the file that keeps them.
    """

    pad: Pad | None
    taken: Sequence[str] = ()
    left_out: Sequence[str] = ()
    notes: tuple[str, ...] = ()


def take_over(text: str | None, pad_file: PadFile, ctx: "WriteContext") -> Edits:
    """Store the edits, if any, that the user has made in the text of a scratchpad."""
    if text is None:
        return Edits(None)
    try:
        pad = file.parse_file(text, pad_file.path, pad_file.namespace)
    except InvalidInput as exc:
        return Edits(None, notes=_keep(pad_file, text, str(exc)))
    if not pad.edited:
        return Edits(pad)
    if pad.store != pad_file.store:
        reason = f"{pad_file.path} was edited, but belongs to the store {pad.store}"
        return Edits(pad, notes=_keep(pad_file, text, reason))

    taken: list[str] = []
    added: list[str] = []
    refused: list[Entry] = []
    reasons: list[str] = []
    for entry in pad.entries:
        try:
            if entry.id:
                taken += _take_over_entry(entry, ctx)
            else:
                memory_id, outcomes = _create(entry, ctx)
                added.append(memory_id)
                taken += outcomes
        except NotFound:
            refused.append(entry)
            reasons.append(f"there is no memory {entry.id[:64]} in namespace {pad_file.namespace}")
        except RequestError as exc:
            refused.append(entry)
            reasons.append(f"{entry.id[:64] or 'a new entry'} was not saved: {exc}")
    # A user who adds the text of a removed entry wants that entry back.
    left_out = [memory_id for memory_id in pad.left_out if memory_id not in added]
    held = [memory_id for memory_id in pad.held if memory_id not in added]
    pad = pad._replace(left_out=tuple(left_out), held=tuple(held))
    removed = _unpin_removed(pad, ctx, taken, reasons)
    # Commands that do something else show these sentences too.
    taken = [f"scratchpad: {outcome}" for outcome in taken]
    return Edits(pad, taken, removed, _describe_refused(pad_file, refused, reasons))


def _unpin_removed(
    pad: Pad, ctx: "WriteContext", taken: list[str], reasons: list[str]
) -> list[str]:
    """Unpin the memories whose entries the user removed, and return their ids."""
    present = {entry.id for entry in pad.entries}
    removed: list[str] = []
    for memory_id in pad.held:
        if memory_id in present:
            continue
        try:
            if _unpin(memory_id, ctx):
                taken.append(f"memory {memory_id} is unpinned")
            removed.append(memory_id)
        except NotFound:  # the memory was deleted in the meantime
            continue
        except RequestError as exc:
            reasons.append(f"{memory_id} was not unpinned: {exc}")
    return removed


def _describe_refused(
    pad_file: PadFile, refused: Sequence[Entry], reasons: list[str]
) -> tuple[str, ...]:
    if not reasons:
        return ()
    summary = f"{pad_file.path} was edited: {'; '.join(reasons)}"
    if not refused:
        return (summary,)
    pad = Pad(pad_file.namespace, pad_file.store, entries=tuple(refused))
    return _keep(pad_file, render(pad), summary)


def _keep(pad_file: PadFile, text: str, reason: str) -> tuple[str, ...]:
    copy = file.keep_copy(pad_file, text)
    return (f"{reason}; the edits that could not be applied are kept in {copy}",)


def _take_over_entry(entry: Entry, ctx: "WriteContext") -> list[str]:
    # only needed to store edits
    from memories.write import change

    latest = ctx.lookup.find_own(entry.id)
    if latest.ended_at is not None:  # replaced since the file was written, so drop the entry
        return []
    taken: list[str] = []
    if not _is_unchanged(entry, latest, ctx):
        if entry.cut is not None:
            raise RequestError(
                "the scratchpad shows only the beginning of the memory; edit it with: memory edit "
                f"{entry.id}"
            )
        update = change.Update(entry.content, Draft(""), (), ctx.redactor)
        new = change.update(ctx.lookup, ctx.embedder, entry.id, update, ctx.now)
        taken.append(f"memory {entry.id} now has version {new.ref.position}")
        taken += describe_current_again(ctx.to_memory(new).current_again)
    if entry.pinned != change.is_pinned(latest):
        change.pin(ctx.lookup, ctx.embedder, entry.id, ctx.now, pinned=entry.pinned)
        taken.append(f"memory {entry.id} is {'pinned' if entry.pinned else 'unpinned'}")
    return taken


def _is_unchanged(entry: Entry, latest: Record, ctx: "WriteContext") -> bool:
    """Return whether the user left an entry's text unchanged, or changed it to the latest text."""
    shown = latest
    for record in ctx.lookup.versions(entry.id):
        if record.ref.position == entry.version:
            shown = record
    written = entry_of(shown._replace(ended_at=None), ctx.now)
    return written is None or entry.content in (written.content, latest.text)


def _create(entry: Entry, ctx: "WriteContext") -> tuple[str, list[str]]:
    """Store a line added by the user, even if a very similar memory exists.

    Returns:
        The memory's id, and the outcome in sentences.
    """
    from memories.write import change
    from memories.write.create import prepare_batches

    draft = Draft(entry.content, dict(entry.tags), key=entry.key)
    [batch] = prepare_batches(ctx, [draft])
    [created] = batch.write()
    if created.memory is None:
        [batch] = prepare_batches(ctx._replace(force=True), [draft])
        [created] = batch.write()
    assert created.memory is not None  # only a duplicate is refused, and `force` accepts it
    if entry.pinned:
        change.pin(ctx.lookup, ctx.embedder, created.memory.id, ctx.now, pinned=True)
    outcome = f"memory {created.memory.id} {'was' if created.stored else 'is already'} stored"
    return created.memory.id, [outcome, *describe_current_again(created.current_again)]


def _unpin(memory_id: str, ctx: "WriteContext") -> bool:
    """Unpin a memory that was removed from the file; return whether it was pinned.

    Raises:
        NotFound: The memory was deleted in the meantime.
    """
    from memories.write import change

    latest = ctx.lookup.find_own(memory_id)
    if latest.ended_at is not None or not change.is_pinned(latest):
        return False
    change.pin(ctx.lookup, ctx.embedder, memory_id, ctx.now, pinned=False)
    return True


# --- from the store into the file


class SelectedEntries(NamedTuple):
    """The result of reading a store.

    Attributes:
        entries: The entries.
        waiting: The number of memories that await review.
        until: See `Pad`.
    """

    entries: list[Entry]
    waiting: int
    until: str


def _select(
    ctx: "WriteContext", rules: EntryRules, shown: Sequence[Entry], *, rebuild: bool
) -> SelectedEntries:
    store, namespace = ctx.lookup.store, ctx.lookup.namespace
    if rebuild:
        return select_from_all(store, namespace, rules, ctx.now)
    return select(store, namespace, rules, ctx.now, shown)


def select(
    store: Store, namespace: str, rules: EntryRules, now: datetime, shown: Sequence[Entry] = ()
) -> SelectedEntries:
    """Select pinned memories, preferences, session summaries, the newest memories overall and in
    each project, and the memories that are already shown.

    Only a few hundred records are read, however large the store is.

    Args:
        store: The store.
        namespace: The namespace of the scratchpad.
        rules: The settings of the scratchpad.
        now: The current time.
        shown: The scratchpad's entries.
    """
    memories = Filter(Collection.MEMORY, (namespace,))
    pinned = memories._replace(labels={PINNED: "1"})
    sessions = memories._replace(labels={"type": SESSION})
    preferences = memories._replace(labels={"type": PREFERENCE})
    refs = [
        Ref(Collection.MEMORY, namespace, entry.id, entry.version)
        for entry in shown
        if entry.version
    ]
    projects = store.values(Collection.MEMORY, (namespace,), "project")
    of_projects = [memories._replace(labels={"project": project}) for project in projects]
    records = [
        *store.scan(pinned, limit=MOST_PINNED, newest_first=True),
        *store.scan(memories, limit=max(_MARGIN * rules.size, 1), newest_first=True),
        *store.scan(sessions, limit=_MARGIN * MOST_SESSIONS, newest_first=True),
        *store.scan(preferences, limit=max(rules.size, 1), newest_first=True),
        *store.read(refs),
    ]
    for where in of_projects[:_MOST_PROJECTS]:
        records += store.scan(where, limit=OF_PROJECT, newest_first=True)
    waiting = store.count(only_pending(memories))
    return SelectedEntries(_entries_of(records, now), waiting, _find_end(records, now))


def select_from_all(
    store: Store, namespace: str, rules: EntryRules, now: datetime
) -> SelectedEntries:
    """Select from all memories in a namespace. Unlike `select`, this finds old memories that are
    used frequently.
    """
    memories = Filter(Collection.MEMORY, (namespace,))
    entries: list[Entry] = []
    until = ""
    for page in scan_pages(store, memories):
        entries = choose([*entries, *_entries_of(page, now)], rules, now)
        until = min(filter(None, (until, _find_end(page, now))), default="")
    return SelectedEntries(entries, store.count(only_pending(memories)), until)


def _find_end(records: Iterable[Record], now: datetime) -> str:
    """Return the time at which the first correction will expire, ISO 8601; empty if none will."""
    corrected = [record for record in records if versions.is_corrected(record, now)]
    ends = [versions.time_of(record.fields, "corrected_until") for record in corrected]
    return min([to_iso(end) for end in ends if end is not None], default="")


def _entries_of(records: Iterable[Record], now: datetime) -> list[Entry]:
    entries = [entry_of(record, now) for record in records]
    return list({entry.id: entry for entry in entries if entry is not None}.values())
