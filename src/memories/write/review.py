"""What waits to be accepted: listed, accepted as it is or as edited, and rejected."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple, TypedDict, Unpack

from memories.core.batches import by_count
from memories.core.times import to_millis
from memories.embedders.protocol import embed_to_store
from memories.errors import InvalidInput, NotFound, RequestError
from memories.guard import validate
from memories.guard.origin import HELD, IMPORT, Origin, refuse_agent, tags_of
from memories.languages.text import index_text
from memories.models import PENDING, Draft, Memory, Moment, Page
from memories.read import versions
from memories.read.listing import read_page
from memories.read.lookup import Lookup, narrow
from memories.stores.logged import append_stamped, stamp_origin
from memories.stores.records import Filter, Patch, Record
from memories.write.create import BATCH_COMPARED
from memories.write.links import link_correction, remove_ended_links
from memories.write.suspicion import mark_record
from memories.write.writer import Comparison, Similar, Writer

_PAGE = 500
_WORD = re.compile(r"\w+")
# These serve programs, and what they write down may say anything: only a person's own command
# decides.
_NOT_THEIRS = ("mcp", "hook", "import", "chat")
_SERVED = ("http", "page")  # whose callers decide; the environment is that of the server


class Waiting(TypedDict, total=False):
    """Which of the memories that wait; what is left out does not narrow.

    Attributes:
        tags: Tags that each must have.
        trust: Only of this trust: see `Origin`.
        written_by: Only what this writer wrote: see `Origin.by`.
        since: Only what was written at this time or later: an aware datetime, or text such as "7d".
        until: Only what was written at this time or earlier.
        import_id: Only what this import brought.
        match: Only what has all of these words.
        suspicious: Only what is marked as suspicious, or only what is not.
    """

    tags: Mapping[str, str] | None
    trust: str | None
    written_by: str | None
    since: Moment | None
    until: Moment | None
    import_id: str | None
    match: str | None
    suspicious: bool | None


class Reviewed(NamedTuple):
    """What became of a memory that waited.

    Attributes:
        id: Its id.
        done: Whether it no longer waits: it was accepted, or rejected.
        memory: What says it now; it is another one if that had its key, or said the same already.
        duplicates: Current memories that say nearly the same, if it was left waiting for that;
            without any it was left because it is suspicious.
        similar_to: Current memories that are like it but differ; it may correct one of them, which
            `memory` tells.
        not_merged: What it said beyond the memory that says the same already, which stays as it is.
    """

    id: str
    done: bool
    memory: Memory
    duplicates: tuple[Similar, ...] = ()
    similar_to: tuple[Similar, ...] = ()
    not_merged: Mapping[str, Any] = {}


Noting = Callable[[str], AbstractContextManager[dict[str, Any]]]


class _Undo(Exception):
    """Ends a transaction that is to change nothing."""


class Review:
    """Decides about the memories of one namespace that wait to be accepted: `Memories.review`."""

    def __init__(self, writer: Writer, origin: Origin, noting: Noting) -> None:
        """Prepare.

        Args:
            writer: Compares and writes what is accepted.
            origin: Who decides.
            noting: Notes a decision; see `memories.core.events.noting`.
        """
        self._writer, self._origin, self._noting = writer, origin, noting
        self._lookup: Lookup = writer.lookup

    def page(
        self, *, limit: int = 100, cursor: str | None = None, **which: Unpack[Waiting]
    ) -> Page:
        """Return a page of what waits, newest first.

        Args:
            limit: How many at most, up to 1,000.
            cursor: `next_cursor` of the page before.
            **which: See `Waiting`.
        """
        fits = _fits(which)
        found: list[Record] = []
        limit = validate.limit(limit)
        where = self._where(which)
        while len(found) < limit:
            records, cursor = read_page(self._lookup, where, limit - len(found), cursor)
            found += filter(fits, records)
            if cursor is None:
                break
        return Page(tuple(map(self._memory, found)), cursor)

    def count(self) -> int:
        """Return how many versions wait."""
        return self._lookup.store.count(self._where({}))

    def select(self, **which: Unpack[Waiting]) -> list[str]:
        """Return the ids of all that waits and fits, oldest first; see `Waiting`."""
        fits = _fits(which)
        return list(
            dict.fromkeys(
                record.ref.group for record in self._scan(self._where(which)) if fits(record)
            )
        )

    def accept(
        self,
        ids: Sequence[str],
        *,
        content: str | None = None,
        suspicious: bool = True,
        force: bool = False,
        dry_run: bool = False,
    ) -> list[Reviewed]:
        """Make memories current that waited; each is compared with what is current, as a new one
        is.

        Each of them waits afterwards or was accepted, whatever happens meanwhile. Its origin and
        its trust stay.

        Args:
            ids: Their ids, or unambiguous prefixes of 8 or more characters.
            content: Accept a single one so instead: that is a version by who accepts it.
            suspicious: Also accept what is marked as suspicious.
            force: Do not compare.
            dry_run: Change nothing, only return what would happen.

        Raises:
            NotFound: There is no such memory.
            RequestError: It does not wait, or who asks is no person: an MCP client, a hook or
                another agent.
        """
        self._refuse_programs(dry_run=dry_run)
        with self._noting("review.accept") as known:
            done = self._accepted(ids, content, suspicious, force, dry_run)
            known["written"] = 0 if dry_run else sum(each.done for each in done)
        return done

    def _accepted(
        self, ids: Sequence[str], content: str | None, suspicious: bool, force: bool, dry_run: bool
    ) -> list[Reviewed]:
        found = self._named(ids)
        if content is not None and len(found) != 1:
            raise InvalidInput(
                "new content is for a single memory; accept the others by themselves"
            )
        if content is not None and self._writer.redactor is not None:
            content = self._writer.redactor.text(content).text
        text = None if content is None else validate.content(content)
        writer = self._writer._replace(force=force)
        done: list[Reviewed] = []
        for batch in by_count(found, BATCH_COMPARED):
            vectors = embed_to_store(
                writer.embedder, [text or record.text for record in batch]
            ).vectors
            try:
                with self._lookup.store.transaction():
                    for record, each in zip(batch, vectors, strict=True):
                        for still in self._still(record):
                            if suspicious or not _is_suspicious(still):
                                done.append(self._accept(writer, still, text, each))
                            else:
                                done.append(Reviewed(still.ref.group, False, self._memory(still)))
                    if dry_run:
                        raise _Undo
            except _Undo:
                continue
        return done

    def reject(self, ids: Sequence[str], *, dry_run: bool = False) -> list[Reviewed]:
        """Delete memories that wait; `Memories.restore` has one wait again.

        Args:
            ids: Their ids, or unambiguous prefixes of 8 or more characters.
            dry_run: Change nothing, only return what would happen.

        Raises:
            NotFound: There is no such memory.
            RequestError: It does not wait, or who asks is no person: an MCP client, a hook or
                another agent.
        """
        self._refuse_programs(dry_run=dry_run)
        done: list[Reviewed] = []
        with self._noting("review.reject") as known:
            for batch in by_count(self._named(ids), _PAGE):
                with self._lookup.store.transaction():
                    waiting = [still for record in batch for still in self._still(record)]
                    if not dry_run:
                        patches = [Patch(each.ref, each.ended_at, "delete", {}) for each in waiting]
                        self._lookup.store.patch(
                            patches + [old for each in waiting for old in self._replaced(each)]
                        )
                ended = (each._replace(ended_by="delete") for each in waiting)
                done += [Reviewed(each.ref.group, True, self._memory(each)) for each in ended]
            known["written"] = 0 if dry_run else len(done)
        return done

    # --- which
    # -----------------------------------------------------------------------------------------------------

    def _refuse_programs(self, *, dry_run: bool) -> None:
        if self._origin.channel in _NOT_THEIRS:
            raise RequestError("what waits for review is decided by a person: memory review")
        if self._origin.channel not in _SERVED and not dry_run:
            refuse_agent("what waits for review")

    def _where(self, which: Mapping[str, Any]) -> Filter:
        for name in which:
            if name not in Waiting.__annotations__:
                raise InvalidInput(
                    f'there is no filter "{name}"; use {", ".join(Waiting.__annotations__)}'
                )
        where = narrow(self._lookup.where_pending(), which, self._writer.now)
        labels = {HELD: "1", **where.labels}
        if which.get("import_id") is not None:
            labels[IMPORT] = validate.one_line(str(which["import_id"]), "import id")
        return where._replace(labels=labels)

    def _scan(self, where: Filter) -> Iterator[Record]:
        after = None
        while page := self._lookup.store.scan(where, limit=_PAGE, after=after):
            yield from page
            after = (page[-1].ref.group, page[-1].ref.position)

    def _named(self, ids: Sequence[str]) -> list[Record]:
        """Return what waits under these ids, each once."""
        if isinstance(ids, str):
            raise InvalidInput("ids are a list; for a single one put it in a list")
        found: dict[str, Record] = {}
        for memory_id in ids:
            record = self._lookup.find_own(memory_id, deleted=True)
            if record.ended_by != PENDING:
                state = "was deleted" if record.ended_by == "delete" else "does not wait for review"
                raise RequestError(
                    f"Memory {record.ref.group} {state}; memory review lists what waits"
                )
            found[record.ref.group] = record
        return list(found.values())

    def _still(self, record: Record) -> list[Record]:
        """Return the record as it waits now; none if somebody else has decided meanwhile."""
        try:
            now = self._lookup.own.find(record.ref.group)
        except NotFound:
            return []
        return [now] if now.ended_by == PENDING and now.ref == record.ref else []

    # --- accepting
    # -------------------------------------------------------------------------------------------------

    def _accept(self, writer: Writer, record: Record, text: str | None, vectors: Any) -> Reviewed:
        edited = text is not None and text != record.text
        draft = _draft_of(record, text)
        superseded = self._superseded(draft, record)
        latest = None if record.key is None else self._lookup.find_by_key(record.key)
        if latest is not None:
            if superseded is not None and superseded.ref.group != latest.ref.group:
                writer.retire(superseded, latest.ref.group, writer.now)
            else:
                draft = replace(draft, supersedes=None)
            return self._add_version(latest, record, draft, vectors)
        found = Comparison() if writer.force else writer.compare(draft, vectors)
        repeats = None if found.same is None else writer.repetition(found.same, draft, vectors)
        if draft.key is None and repeats is not None and not repeats.was_corrected():
            writer.retire(superseded, repeats.known.ref.group, writer.now)
            self._store_in(record, repeats.known)
            left = repeats.leave_out().not_merged
            return Reviewed(record.ref.group, True, self._memory(repeats.known), not_merged=left)
        if draft.key is None and found.duplicates:
            return Reviewed(record.ref.group, False, self._memory(record), found.duplicates)
        writer.retire(superseded, record.ref.group, writer.now)
        if edited:
            changes = {"text": draft.content, "labels": tags_of(record.labels)}
            new = stamp_origin(
                writer.store,
                mark_record(
                    versions.next_version(record, "update", writer.now, fresh=True, **changes)
                ),
            )
            self._end(record, "update")
            new = link_correction(writer.store, new, found.corrected, retired=superseded)
            writer.store.append([new._replace(vectors=vectors)])
        else:
            new = link_correction(
                writer.store, record, found.corrected, retired=superseded, at=writer.now
            )
            fields = self._acceptance() | {name: new.fields.get(name) for name in versions.LINK}
            new = new._replace(
                ended_at=None, ended_by=None, fields={**new.fields, **self._acceptance()}
            )
            writer.store.patch([*self._replaced(record), Patch(record.ref, None, None, fields)])
        return Reviewed(record.ref.group, True, self._memory(new), similar_to=found.similar)

    def _superseded(self, draft: Draft, record: Record) -> Record | None:
        """Return the memory that one replaces by being accepted; what is gone or replaced meanwhile
        is left.
        """
        if draft.supersedes is None:
            return None
        where = Filter(record.ref.collection, (record.ref.namespace,), group=draft.supersedes)
        return next(iter(self._lookup.store.scan(where, limit=1)), None)

    def _add_version(self, latest: Record, record: Record, draft: Draft, vectors: Any) -> Reviewed:
        """Accept what has the key of a current memory: as its next version, by who wrote it."""
        store, now = self._lookup.store, self._writer.now
        labels = {**tags_of(latest.labels), **draft.tags}
        fields = versions.declared_fields(draft) | self._acceptance()
        fields |= {} if draft.supersedes is None else {"supersedes": draft.supersedes}
        new = versions.next_version(
            latest, "update", now, fresh=True, text=draft.content, labels=labels, fields=fields
        )
        new = remove_ended_links(store, new)
        store.patch([versions.end_version(latest, new.created_at, "update")])
        if draft.content == record.text:
            theirs = {
                name: value
                for name, value in record.labels.items()
                if name not in tags_of(record.labels)
            }
            new = new._replace(labels={**labels, **theirs})
            append_stamped(store, [new._replace(vectors=vectors)])
        else:
            new = stamp_origin(store, mark_record(new))
            store.append([new._replace(vectors=vectors)])
        self._store_in(record, new)
        return Reviewed(record.ref.group, True, self._memory(new))

    def _store_in(self, record: Record, other: Record) -> None:
        """Note that what was accepted is said by another memory."""
        self._end(record, "supersede", superseded_by=other.ref.group)

    def _end(self, record: Record, by: str, **fields: Any) -> None:
        patch = Patch(record.ref, record.ended_at, by, self._acceptance() | fields)
        self._lookup.store.patch([*self._replaced(record), patch])

    def _replaced(self, record: Record) -> list[Patch]:
        """Return the changes that end versions before, which a foreign file may have left
        waiting.
        """
        where = self._lookup.where_pending(group=record.ref.group)
        found = self._lookup.store.scan(where, limit=_PAGE)
        return [
            Patch(each.ref, each.ended_at, "update", {}) for each in found if each.ref != record.ref
        ]

    def _acceptance(self) -> dict[str, Any]:
        who = self._origin
        return {
            "accepted_at": to_millis(self._writer.now),
            "accepted_by": f"{who.by}@{who.host} ({who.trust}, {who.channel})",
        }

    def _memory(self, record: Record) -> Memory:
        return versions.to_memory(record, self._writer.now, self._writer.half_life_hours)


def _draft_of(record: Record, text: str | None) -> Draft:
    """Return what waits as a draft, which is written now."""
    fields = record.fields
    return Draft(
        record.text if text is None else text,
        tags=tags_of(record.labels),
        decay=fields.get("decay"),
        key=versions.plain_key(record.key),
        supersedes=fields.get("supersedes"),
        confidence=fields.get("confidence"),
        source=fields.get("source"),
        data=fields.get("data") if text in (None, record.text) else None,
    )


def _fits(which: Waiting) -> Callable[[Record], bool]:
    """Return what tells whether a record is meant, as far as its text tells."""
    wanted, suspicious = _words(which.get("match") or ""), which.get("suspicious")
    return lambda record: (
        wanted <= _words(record.text) and suspicious in (None, _is_suspicious(record))
    )


def _is_suspicious(record: Record) -> bool:
    return bool(record.fields.get("suspicious"))


def _words(text: str) -> set[str]:
    return set(_WORD.findall(index_text(text)))
