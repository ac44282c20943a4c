"""Lists, edits, accepts and rejects memories that await review."""

import re
from collections.abc import Callable, Mapping, Sequence
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
from memories.read.lookup import Lookup, apply_filters
from memories.stores.logged import append_as_stamped, stamp_record
from memories.stores.protocol import PAGE_SIZE, add_count_to_errors, find_first, scan_pages
from memories.stores.records import Collection, Filter, Patch, Record, Ref
from memories.write import tidy
from memories.write.create import BATCH_COMPARED
from memories.write.links import find_current_again, link_correction, update_links_after_change
from memories.write.similar import Comparison, Similar, compare_draft, read_vectors
from memories.write.suspicion import mark_suspicious
from memories.write.write_context import WriteContext

_WORD = re.compile(r"\w+")
# Channels of programs, which are not allowed to review memories, since they would accept anything.
_PROGRAMS = ("mcp", "hook", "import", "chat")
# A server can't tell from its own environment who is deciding, so callers on these channels check
# that themselves.
_SERVED = ("http", "page")


class ReviewFilters(TypedDict, total=False):
    """Filters for memories that await review; an omitted filter does not restrict the result.

    Attributes:
        tags: Tags that each memory must have.
        trust: Only memories with this trust; see `Origin`.
        written_by: Only memories by this writer; see `Origin.by`.
        since: Only memories from this time or later: an aware datetime, or text such as "7d".
        until: Only memories from this time or earlier.
        import_id: Only memories from this import.
        match: Only memories with all of these words.
        suspicious: Only memories marked as suspicious if True, only unmarked ones if False.
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
    """The result of accepting or rejecting one memory.

    Attributes:
        id: The id of the reviewed memory.
        done: Whether the memory was accepted or rejected, so that it no longer awaits review.
        memory: The resulting memory: the reviewed one, or the one that already had its key or text.
        duplicates: Current memories that say nearly the same thing, if the memory still awaits
            review because of them. A memory that still awaits review and has no duplicates is
            suspicious.
        similar_to: Current memories that are similar but differ. The accepted memory may correct
            one of them; see `memory.corrects`.
        not_merged: Tags and fields that differ from those of the memory with the same text, which
            keeps its own values.
        is_outdated: Whether a proposal of `Truth.tidy` was not carried out because its memories had
            changed or its reason no longer held.
        current_again: The ids of the memories that are current again, because the accepted memory
            replaced their correction, or the accepted proposal deleted it.
    """

    id: str
    done: bool
    memory: Memory
    duplicates: tuple[Similar, ...] = ()
    similar_to: tuple[Similar, ...] = ()
    not_merged: Mapping[str, Any] = {}
    is_outdated: bool = False
    current_again: tuple[str, ...] = ()


class Rivals(NamedTuple):
    """The live memories that resemble one that awaits review.

    Attributes:
        import_id: The import that added the memory; None if it was not imported.
        duplicates: Memories that say the same thing.
        similar_to: Memories that are similar but differ. One of them or the memory under review may
            be wrong.
    """

    import_id: str | None
    duplicates: tuple[Similar, ...]
    similar_to: tuple[Similar, ...]


Noting = Callable[[str], AbstractContextManager[dict[str, Any]]]


class _Undo(Exception):
    """Raised inside a transaction to roll it back."""


class Review:
    """One namespace's memories that await review, and the decisions on them: `Memories.review`."""

    def __init__(self, ctx: WriteContext, origin: Origin, noting: Noting) -> None:
        """Initialize; nothing is read yet.

        Args:
            ctx: The context in which accepted memories are compared and written.
            origin: The origin of the decisions.
            noting: Records a decision; see `memories.core.events.noting`.
        """
        self._ctx, self._origin, self._noting = ctx, origin, noting
        self._lookup: Lookup = ctx.lookup

    def page(
        self, *, limit: int = 100, cursor: str | None = None, **filters: Unpack[ReviewFilters]
    ) -> Page:
        """Return a page of the memories that await review, newest first.

        Args:
            limit: The maximum number of memories, up to 1,000.
            cursor: `next_cursor` of the previous page.
            **filters: See `ReviewFilters`.
        """
        limit = validate.limit(limit)
        where = self._where(filters)
        records: list[Record] = []
        while len(records) < limit:
            page, cursor = read_page(self._lookup, where, limit - len(records), cursor)
            records += [record for record in page if _fits(record, filters)]
            if cursor is None:
                break
        return Page(tuple(map(self._ctx.to_memory, records)), cursor)

    def count(self) -> int:
        """Return the number of versions that await review."""
        return self._lookup.store.count(self._where({}))

    def compare(self, memories: Sequence[Memory]) -> list[Rivals]:
        """Return the live memories that resemble each of these pending memories."""
        store = self._lookup.store
        refs = [
            Ref(Collection.MEMORY, memory.namespace, memory.id, memory.version)
            for memory in memories
        ]
        records = {record.ref: record for record in store.read(refs)}
        vectors = read_vectors(self._ctx, list(records.values()))
        rivals: list[Rivals] = []
        for ref in refs:
            if ref not in records:  # another person has reviewed it in the meantime
                rivals.append(Rivals(None, (), ()))
                continue
            record = records[ref]
            comparison = compare_draft(self._ctx, versions.to_draft(record), vectors.get(ref))
            duplicates = comparison.duplicates
            if comparison.same is not None:
                same = comparison.same
                similar = Similar(same.ref.group, same.text, 1.0, same.created_at)
                duplicates = (similar, *duplicates)
            import_id = record.labels.get(IMPORT)
            rivals.append(Rivals(import_id, duplicates, comparison.differing))
        return rivals

    def select(self, **filters: Unpack[ReviewFilters]) -> list[str]:
        """Return the ids of matching memories that await review, oldest first."""
        where = self._where(filters)
        groups: dict[str, None] = {}
        for page in scan_pages(self._lookup.store, where):
            groups |= dict.fromkeys(record.ref.group for record in page if _fits(record, filters))
        return list(groups)

    def accept(
        self,
        ids: Sequence[str],
        *,
        content: str | None = None,
        suspicious: bool = True,
        force: bool = False,
        dry_run: bool = False,
    ) -> list[Reviewed]:
        """Accept memories that await review. Each is first compared with live memories, just as
        a new memory is.

        Even after an interruption, each memory has either been accepted or still awaits review.
        Accepting a memory doesn't change its origin or trust.

        Args:
            ids: The ids, or unambiguous prefixes of 8 or more characters.
            content: Other content for a single memory, stored as a version by the person who
                accepts it.
            suspicious: Also accept memories that are marked as suspicious.
            force: Do not compare the memories with live ones.
            dry_run: Change nothing; only return what would happen.

        Raises:
            NotFound: There is no such memory.
            RequestError: A memory does not await review, or the caller is an MCP client, a hook or
                another agent.
        """
        self._refuse_programs(dry_run=dry_run)
        with self._noting("review.accept") as event:
            results = self._accept_all(ids, content, suspicious, force, dry_run)
            event["written"] = 0 if dry_run else sum(result.done for result in results)
        return results

    def _accept_all(
        self, ids: Sequence[str], content: str | None, suspicious: bool, force: bool, dry_run: bool
    ) -> list[Reviewed]:
        records = self._find(ids)
        if content is not None:
            if len(records) != 1:
                raise InvalidInput(
                    "new content can be given for only one memory; accept the others separately"
                )
            if self._ctx.redactor is not None:
                content = self._ctx.redactor.text(content).text
            content = validate.content(content)
        ctx = self._ctx._replace(force=force)
        results: list[Reviewed] = []
        done = 0
        with add_count_to_errors(lambda: done, "accepted"):
            for batch in by_count(records, BATCH_COMPARED):
                texts = [content or record.text for record in batch]
                embedded = embed_to_store(ctx.embedder, texts)
                accepted: list[tuple[Reviewed, Sequence[Record]]] = []
                try:
                    with self._lookup.store.transaction():
                        for record, vectors in zip(batch, embedded.vectors, strict=True):
                            pending = self._read_again(record)
                            if pending is None:
                                continue
                            if _is_suspicious(pending) and not suspicious:
                                memory = ctx.to_memory(pending)
                                accepted.append((Reviewed(pending.ref.group, False, memory), ()))
                            else:
                                accepted.append(self._accept(ctx, pending, content, vectors))
                        results += map(self._name_current_again, accepted)
                        if dry_run:
                            raise _Undo
                except _Undo:
                    continue
                done = sum(result.done for result in results)
        return results

    def reject(self, ids: Sequence[str], *, dry_run: bool = False) -> list[Reviewed]:
        """Delete memories that await review. If `Memories.restore` restores them, they await review
        again.

        Args:
            ids: The ids, or unambiguous prefixes of 8 or more characters.
            dry_run: Change nothing; only return what would happen.

        Raises:
            NotFound: There is no such memory.
            RequestError: A memory does not await review, or the caller is an MCP client, a hook or
                another agent.
        """
        self._refuse_programs(dry_run=dry_run)
        results: list[Reviewed] = []
        store, written = self._lookup.store, 0
        count_in_errors = add_count_to_errors(lambda: written, "rejected")
        with self._noting("review.reject") as event, count_in_errors:
            for batch in by_count(self._find(ids), PAGE_SIZE):
                with store.transaction():
                    read_again = map(self._read_again, batch)
                    pending = [record for record in read_again if record is not None]
                    if not dry_run:
                        patches = [
                            Patch(record.ref, record.ended_at, "delete", {}) for record in pending
                        ]
                        for record in pending:
                            patches += self._end_older_versions(record)
                        store.patch(patches)
                for record in pending:
                    memory = self._ctx.to_memory(record._replace(ended_by="delete"))
                    results.append(Reviewed(record.ref.group, True, memory))
                if not dry_run:
                    written = len(results)
            event["written"] = written
        return results

    # --- finding

    def _refuse_programs(self, *, dry_run: bool) -> None:
        if self._origin.channel in _PROGRAMS:
            raise RequestError(
                "only a person can accept or reject pending memories; run memory review"
            )
        if self._origin.channel not in _SERVED and not dry_run:
            refuse_agent("whether to accept or reject a memory")

    def _where(self, filters: Mapping[str, Any]) -> Filter:
        for name in filters:
            if name not in ReviewFilters.__annotations__:
                raise InvalidInput(
                    f'there is no filter "{name}"; use {", ".join(ReviewFilters.__annotations__)}'
                )
        where = apply_filters(self._lookup.where_pending(), filters, self._ctx.now)
        labels = {HELD: "1", **where.labels}
        if filters.get("import_id") is not None:
            labels[IMPORT] = validate.one_line(str(filters["import_id"]), "import id")
        if filters.get("match") is not None:
            validate.one_line(filters["match"], "match")
        return where._replace(labels=labels)

    def _find(self, ids: Sequence[str]) -> list[Record]:
        """Return the memories with these ids, each once. All of them must await review."""
        if isinstance(ids, str):
            raise InvalidInput("ids must be a list; put a single id in a list")
        records: dict[str, Record] = {}
        for memory_id in ids:
            record = self._lookup.find_own(memory_id, deleted=True)
            if record.ended_by != PENDING:
                state = "was deleted" if record.ended_by == "delete" else "is not pending"
                raise RequestError(
                    f"Memory {record.ref.group} {state}; to list the memories that are waiting, "
                    "run memory review"
                )
            records[record.ref.group] = record
        return list(records.values())

    def _read_again(self, record: Record) -> Record | None:
        """Return the record in its current state; None if it no longer awaits review."""
        try:
            latest = self._lookup.own.find(record.ref.group)
        except NotFound:
            return None
        if latest.ended_by == PENDING and latest.ref == record.ref:
            return latest
        return None

    # --- accepting

    def _name_current_again(self, accepted: tuple[Reviewed, Sequence[Record]]) -> Reviewed:
        """Return a result with the ids of the memories that are current again."""
        review, before = accepted
        current_again = find_current_again(self._lookup.store, before, self._ctx.now)
        return review._replace(current_again=current_again)

    def _accept(
        self, ctx: WriteContext, record: Record, content: str | None, vectors: Any
    ) -> tuple[Reviewed, Sequence[Record]]:
        """Accept a memory; return the result, and the former state of the memories that it ended or
        changed.
        """
        applied = tidy.apply(ctx, record) if content is None else None
        if applied is not None:
            outdated = {tidy.OUTDATED: None if applied.is_done else 1}
            ended = self._end(record, "supersede", superseded_by=applied.target, **outdated)
            memory, is_outdated = ctx.to_memory(ended), not applied.is_done
            review = Reviewed(record.ref.group, True, memory, is_outdated=is_outdated)
            return review, () if applied.ended is None else (applied.ended,)
        draft = versions.to_draft(record)
        if content not in (None, record.text):  # `data` describes the old text
            draft = replace(draft, content=content, data=None)
        superseded = self._find_superseded(draft, record)
        latest = None
        if record.key is not None:
            latest = self._lookup.find_by_key(record.key)
        reviewed = self._accept_draft(ctx, record, draft, vectors, superseded, latest)
        if not reviewed.done:
            return reviewed, ()
        before = [each for each in filter(None, (superseded, latest)) if versions.has_link(each)]
        if before:
            memory = ctx.to_memory(ctx.take_links_of(superseded, reviewed.memory))
            reviewed = reviewed._replace(memory=memory)
        return reviewed, before

    def _accept_draft(
        self,
        ctx: WriteContext,
        record: Record,
        draft: Draft,
        vectors: Any,
        superseded: Record | None,
        latest: Record | None,
    ) -> Reviewed:
        """Store an accepted memory, unless it repeats a live one.

        Args:
            ctx: The context in which it is compared and written.
            record: The memory.
            draft: The memory as a draft, with the content to store.
            vectors: The vectors of that content.
            superseded: The memory that it replaces, if any.
            latest: The live memory with its key, if any.
        """
        if latest is not None:
            if superseded is not None and superseded.ref.group != latest.ref.group:
                latest = ctx.retire_for(superseded, latest, ctx.now)
            else:
                draft = replace(draft, supersedes=None)
            return self._add_version(latest, record, draft, vectors)
        comparison = Comparison() if ctx.force else compare_draft(ctx, draft, vectors)
        if draft.key is None and comparison.same is not None:
            repetition = ctx.make_repetition(comparison.same, draft, vectors)
            if not repetition.was_corrected():
                same = comparison.same
                ctx.retire(superseded, same.ref.group, ctx.now)
                self._end_as_said_by(record, same)
                not_merged = repetition.merge_nothing().not_merged
                memory = ctx.to_memory(same)
                return Reviewed(record.ref.group, True, memory, not_merged=not_merged)
        if draft.key is None and comparison.duplicates:
            memory = ctx.to_memory(record)
            return Reviewed(record.ref.group, False, memory, comparison.duplicates)
        ctx.retire(superseded, record.ref.group, ctx.now)
        if draft.content != record.text:
            new = self._make_live_edited(record, draft, comparison, vectors)
        else:
            new = self._make_live(record, comparison)
        memory = ctx.to_memory(new)
        return Reviewed(record.ref.group, True, memory, similar_to=comparison.differing)

    def _find_superseded(self, draft: Draft, record: Record) -> Record | None:
        """Find the memory that an accepted memory will replace; None if it has ended in the
        meantime.
        """
        if draft.supersedes is None:
            return None
        where = Filter(record.ref.collection, (record.ref.namespace,), group=draft.supersedes)
        return find_first(self._lookup.store, where)

    def _make_live_edited(
        self,
        record: Record,
        draft: Draft,
        comparison: Comparison,
        vectors: Any,
    ) -> Record:
        """Add the edited content as a version by the person who accepts it."""
        store, now, labels = self._lookup.store, self._ctx.now, tags_of(record.labels)
        new = versions.next_version(
            record, "update", now, restarts_decay=True, text=draft.content, labels=labels
        )
        new = stamp_record(store, mark_suspicious(new))
        self._end(record, "update")
        new = link_correction(store, new, comparison.to_correct, now=now)
        store.append([new._replace(vectors=vectors)])
        return new

    def _make_live(self, record: Record, comparison: Comparison) -> Record:
        store, now = self._lookup.store, self._ctx.now
        new = link_correction(store, record, comparison.to_correct, now=now, at=now)
        acceptance = self._acceptance_fields()
        links = {name: new.fields.get(name) for name in versions.LINK}
        patch = Patch(record.ref, None, None, acceptance | links)
        store.patch([*self._end_older_versions(record), patch])
        return new._replace(ended_at=None, ended_by=None, fields={**new.fields, **acceptance})

    def _add_version(self, latest: Record, record: Record, draft: Draft, vectors: Any) -> Reviewed:
        """Accept a memory as the next version of the live memory with the same key. The version
        keeps the accepted memory's writer.
        """
        store, now = self._lookup.store, self._ctx.now
        labels = {**tags_of(latest.labels), **draft.tags}
        fields = versions.declared_fields(draft) | self._acceptance_fields()
        if draft.supersedes is not None:
            fields["supersedes"] = draft.supersedes
        new = versions.next_version(
            latest,
            "update",
            now,
            restarts_decay=True,
            text=draft.content,
            labels=labels,
            fields=fields,
        )
        new = update_links_after_change(store, latest, new)
        store.patch([versions.end_version(latest, new.created_at, "update")])
        if draft.content == record.text:
            tags = tags_of(record.labels)
            origin = {name: value for name, value in record.labels.items() if name not in tags}
            new = new._replace(labels={**labels, **origin})
            append_as_stamped(store, [new._replace(vectors=vectors)])
        else:
            new = stamp_record(store, mark_suspicious(new))
            store.append([new._replace(vectors=vectors)])
        self._end_as_said_by(record, new)
        return Reviewed(record.ref.group, True, self._ctx.to_memory(new))

    def _end_as_said_by(self, record: Record, other: Record) -> None:
        """End an accepted record, since another memory already says the same thing."""
        self._end(record, "supersede", superseded_by=other.ref.group)

    def _end(self, record: Record, by: str, **fields: Any) -> Record:
        fields |= self._acceptance_fields()
        patch = Patch(record.ref, record.ended_at, by, fields)
        self._lookup.store.patch([*self._end_older_versions(record), patch])
        return record._replace(ended_by=by, fields={**record.fields, **fields})

    def _end_older_versions(self, record: Record) -> list[Patch]:
        """Return patches that end older versions of a record, which an import may have left
        pending.
        """
        where = self._lookup.where_pending(group=record.ref.group)
        return [
            Patch(older.ref, older.ended_at, "update", {})
            for older in self._lookup.store.scan(where, limit=PAGE_SIZE)
            if older.ref != record.ref
        ]

    def _acceptance_fields(self) -> dict[str, Any]:
        origin = self._origin
        return {
            "accepted_at": to_millis(self._ctx.now),
            "accepted_by": f"{origin.by}@{origin.host} ({origin.trust}, {origin.channel})",
        }


def _fits(record: Record, filters: Mapping[str, Any]) -> bool:
    """Return whether a record matches the filters `match` and `suspicious`."""
    match = filters.get("match")
    if match is not None and not _words(match) <= _words(record.text):
        return False
    return filters.get("suspicious") in (None, _is_suspicious(record))


def _is_suspicious(record: Record) -> bool:
    return bool(record.fields.get("suspicious"))


def _words(text: str) -> set[str]:
    return set(_WORD.findall(index_text(text)))
