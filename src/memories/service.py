"""`Memories`: one method for each verb, over any store. Each calls one room; search and write logic live there."""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from memories import validate, versions
from memories.config import load_config
from memories.errors import InvalidInput, NotFound, RequestError
from memories.events import noting, observed
from memories.hot.verbs import ScratchpadVerbs
from memories.ids import parse_id
from memories.lookup import Lookup, accepted, known_at, narrowed, order_by, readable_with, waiting, with_global
from memories.models import (
    Draft,
    Forgotten,
    History,
    Memory,
    Moment,
    Page,
)
from memories.origin import Place, origin
from memories.service_overview import OverviewVerbs
from memories.service_turns import ConversationVerbs
from memories.settings import Config
from memories.stores import Store, local_path, open_store
from memories.stores.damage import Damaged
from memories.stores.logged import logged
from memories.stores.records import Collection, Record
from memories.times import to_moment

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.models import NamespaceCounts
    from memories.origin import Origin
    from memories.search.filters import SearchFilters
    from memories.search.results import Explanation, Found, Hit
    from memories.where.selector import Selector
    from memories.write.accesses import Accesses
    from memories.write.create import Created, Prepared, Writer
    from memories.write.many import Affected
    from memories.write.repeats import Repetition
    from memories.write.review import Review


def _clock() -> datetime:
    return datetime.now(UTC)


def _is_summary(draft: Draft) -> bool:
    """Return whether a draft says what a session left; see `skins.capture.summary`."""
    return draft.tags.get("type") == "session" and (draft.key or "").startswith("session/")


@observed
class Memories(ConversationVerbs, OverviewVerbs, ScratchpadVerbs):
    """Stores statements, finds them again by meaning and by word, keeps every version, and loses none.

    Many threads may share one object, and many processes one store. It is a context manager. The store is opened and
    the model loaded when they are first needed.

        with Memories() as memories:
            memories.create("The user prefers Python", tags={"type": "preference"})
            memories.search("which language?")[0].memory.content
    """

    def __init__(  # noqa: PLR0913 - these are the settings of a memory
        self,
        store: str | Store | None = None,
        *,
        namespace: str | None = None,
        shared: bool = True,
        embedder: "str | Embedder | None" = None,
        config: Config | None = None,
        clock: Callable[[], datetime] = _clock,
        channel: str = "python",
        client: tuple[str, str] | None = None,
        place: Callable[[], Place | None] = lambda: None,
    ) -> None:
        """Prepare a memory. Arguments that are left out come from the settings (`memory config`).

        Args:
            store: A URL or a `Store`. `close` does not close a store that was passed in.
            namespace: The namespace to write to and to read from.
            shared: Also read the namespace `shared`.
            embedder: The name of an embedder, or an `Embedder`; `none` searches by words alone.
            config: Settings instead of those of the environment and the files.
            clock: Returns the current time, aware.
            channel: How changes are made, for origins and the audit log: see `Origin`. Another name than those makes
                the writer an agent.
            client: The name and the version of the MCP client that writes.
            place: Returns where the writer works, whenever something is written: its project is that of what is
                written without one, and its branch goes into origins. See `memories.identity.place`.

        Raises:
            ConfigError: A setting is not acceptable.
            InvalidInput: The namespace is not acceptable.
            StoreError: The namespace has the name of one of our own files, and the store can't be asked if it is used.
        """
        flags = {
            "store": store if isinstance(store, str) else None,
            "embedder": embedder if isinstance(embedder, str) else None,
        }
        self.config = config or load_config(flags)
        self.namespace = self.config.namespace if namespace is None else validate.canonical_namespace(namespace)
        readable = readable_with(self.namespace, shared=shared)
        self._clock, self._tell_place = clock, place
        self._worked_in: Place | None = None
        self._embedder = self._choose_embedder(embedder)
        self._owns_store = self._is_home = store is None or isinstance(store, str)
        self._url = ""
        if store is None or isinstance(store, str):
            space = self._embedder.space if self._embedder else None
            self._url = store or self.config.store
            store = open_store(self._url, space, self.config)
        accepted(self.namespace, store, self.config)
        self._kept, self._channel = store, channel
        self._accesses: Accesses | None = None
        self._transactions = 0
        self._lookup = Lookup(store, self.namespace, readable)
        self._write_as(client)

    def _write_as(self, client: tuple[str, str] | None) -> None:
        self._agent = client[0] if client else self.config.identity
        identity = self.config.identity or self.namespace

        @functools.lru_cache(maxsize=8)
        def of_branch(branch: str | None) -> "Origin":
            return origin(self._channel, identity, client, branch)

        self._origin: Callable[[], Origin] = lambda: of_branch((place := self._place()) and place.branch)
        admit = None
        if self.config.namespace_quota is not None:
            from memories.write.quota import admission

            admit = admission(self.config.namespace_quota)
        told = self._tell_scratchpads()
        self._store = logged(
            self._kept, self._channel, self._clock, self._origin, admit=admit, told=told, backups=self._backups
        )
        self._lookup = self._lookup._replace(store=self._store)

    def of_client(self, name: str, version: str) -> Self:
        """Return the same memory as a client of a server writes to it: what it writes names that client.

        Args:
            name: What the client calls itself.
            version: Its version, as it tells it.
        """
        if self._is_home:
            _ = self._mirror  # which they share
        twin = copy.copy(self)
        twin._owns_store = False
        twin._write_as((name, version))
        return twin

    def without_shared(self) -> Self:
        """Return the same memory, which reads its own namespace alone."""
        twin = copy.copy(self)
        twin._owns_store = False
        twin._lookup = self._lookup.own
        return twin

    def _choose_embedder(self, given: "str | Embedder | None") -> "Embedder | None":
        if given is None or isinstance(given, str):
            from memories.embedders import open_embedder

            return open_embedder(given or self.config.embedder, self.config)
        return given

    # --- writing ---------------------------------------------------------------------------------------------------

    def create(  # noqa: PLR0913 - these are the fields of a memory
        self,
        content: str,
        *,
        tags: Mapping[str, str] | None = None,
        decay: str | None = None,
        key: str | None = None,
        supersedes: str | None = None,
        confidence: float | None = None,
        created_at: datetime | None = None,
        pending: bool = False,
        source: str | None = None,
        force: bool = False,
        redact: bool = True,
        within: Sequence[str] = (),
    ) -> "Created":
        """Store a statement, unless the same one is stored already.

        Args:
            content: The statement, at most 1 MiB.
            tags: Free pairs; `agent`, `personality`, `project`, `type` and `global` are known ones.
            decay: `stable` (the default), `contextual` or `reinforceable`.
            key: A stable key such as `user/editor`, unique within a project. If a memory has it, that memory gets a
                new version, which keeps the tags, decay and confidence that are not given.
            supersedes: The id of a memory in the same namespace that this one replaces.
            confidence: How sure the writer is, 0 to 1; 1.0 by default.
            created_at: When it was first written, for imports; now by default.
            pending: It waits until a person accepts it (see `review`); its key and `supersedes` count from then on.
                What comes by the channel `hook` always waits, but for what a session left: its type is `session`
                and its key begins with `session/`. No context has that either.
            source: The conversation that it was made from, or one of its turns, such as `standup#3`: `forget_turns`
                erases it with them if it is told to.
            force: Skip the duplicate check.
            redact: Take out secrets, and what stands in `<private>` tags; see the setting `redact`.
            within: Keys of tags that tell statements apart, as `project` always does: the same text with another value
                of one of them is stored.

        Returns:
            What happened. The same text in the same namespace and project is not stored again: what it adds is merged
            into the memory that says it, see `merged` and `reinforced`. A very similar text is refused unless it
            differs in a number, a date, a name or a negation: see `duplicates`.

        Raises:
            InvalidInput: A value is not acceptable; nothing was stored.
            NotFound: There is no memory `supersedes`.
        """
        draft = Draft(content, tags or {}, decay, key, supersedes, confidence, created_at, pending, source)
        return self.create_many([draft], force=force, redact=redact, within=within)[0]

    def create_many(
        self, drafts: Iterable[Draft | str], *, force: bool = False, redact: bool = True, within: Sequence[str] = ()
    ) -> "list[Created]":
        """Store many statements as `create` does; faster, because many share one transaction.

        Args:
            drafts: Drafts, or contents.
            force: Skip the duplicate check.
            redact: Take out secrets; see `create`.
            within: Keys of tags that tell statements apart; see `create`.

        Returns:
            What happened to each, in order.

        Raises:
            InvalidInput: One is not acceptable; none was stored.
        """
        if isinstance(drafts, str):
            raise InvalidInput("create_many takes a list of drafts or texts; for one text use create")
        given = self._held(draft if isinstance(draft, Draft) else Draft(draft) for draft in drafts)
        return self._writer(force=force, redact=redact)._replace(within=tuple(within)).write(given)

    def prepare(self, drafts: Iterable[Draft], *, force: bool = False, redact: bool = True) -> "Iterator[Prepared]":
        """Yield what `create_many` would write, in parts of which each `write` writes one, in a transaction.

        What takes time is done before: they are checked, redacted and embedded.
        """
        return self._writer(force=force, redact=redact).prepared(self._held(drafts))

    def _held(self, drafts: Iterable[Draft]) -> list[Draft]:
        held = self._channel == "hook"  # what a hook took down waits until somebody decides
        given = (replace(draft, pending=not _is_summary(draft)) if held else draft for draft in drafts)
        return [self._lookup.placed(draft, self._place()) for draft in given]

    def _writer(self, *, force: bool = False, redact: bool = True) -> "Writer":
        from memories.write.create import Writer

        half_life, least = self.config.decay_half_life_hours, self.config.min_confidence
        redactor = self._redactor(redact)
        return Writer(self._lookup, self._embedder, self._now(), half_life, least, force, redactor)

    @property
    def review(self) -> "Review":
        """What waits to be accepted in your own namespace, and the decisions about it."""
        from memories.write.review import Review

        return Review(self._writer(), self._origin(), lambda name: noting(self.config, name, **self.event_figures()))

    def update(  # noqa: PLR0913 - what a version may say, and when
        self,
        memory_id: str,
        content: str | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        remove_tags: Sequence[str] = (),
        redact: bool = True,
        not_corrects: str | None = None,
        if_version: int | None = None,
        decay: str | None = None,
        confidence: float | None = None,
    ) -> Memory:
        """Append a new version to a memory.

        Args:
            memory_id: Its id, or an unambiguous prefix of 8 or more characters.
            content: The new content; None keeps the old.
            tags: Tags to add or change.
            remove_tags: Keys of tags to remove; keys that it does not have are ignored.
            redact: Take out secrets of what is given; see `create`.
            not_corrects: The id of a memory that it was taken to correct: both hold. This adds no version.
            if_version: Only if this is still its latest version.
            decay: Another decay policy.
            confidence: Another confidence of its writer, 0 to 1.

        Returns:
            The memory. If nothing changes, no version is added.

        Raises:
            NotFound: There is no such memory, or it was deleted.
            RequestError: Another memory has replaced it.
            Conflict: It has another version than `if_version`.
            InvalidInput: A value is not acceptable, or no change was given.
        """
        from memories.write import change

        taken_out = self._redactor(redact)
        given = change.Update(content, tags or {}, remove_tags, taken_out, not_corrects, if_version, decay, confidence)
        return self._memory(change.update(self._lookup, self._embedder, memory_id, given, self._now()))

    def reinforce(self, memory_id: str) -> Memory:
        """Reset the decay of a reinforceable memory: its confidence starts over.

        Raises:
            NotFound: There is no such memory, or it was deleted.
            RequestError: Another memory has replaced it, or it is in a namespace that is only read.
            NotReinforceable: Its decay policy is not `reinforceable`.
        """
        from memories.write import change

        return self._memory(change.reinforce(self._lookup, memory_id, self._now()))

    def delete(self, memory_id: str) -> Memory:
        """Delete a memory. It is no longer found; `restore` brings it back.

        Raises:
            NotFound: There is no such memory, or it was deleted already.
        """
        from memories.write import change

        return self._memory(change.delete(self._lookup, memory_id, self._now()))

    def restore(self, memory_id: str, *, version: int | None = None) -> Memory:
        """Bring a deleted or superseded memory back, as a new version that says the same.

        Args:
            memory_id: Its id, or an unambiguous prefix of 8 or more characters.
            version: Of a current memory, the version whose text, tags, decay and confidence it is to have again.

        Raises:
            NotFound: There is no such memory, or version.
            RequestError: It is neither deleted nor superseded, or another memory has its key now.
        """
        from memories.write import change

        if version is not None:
            return self._memory(change.restore_version(self._lookup, self._embedder, memory_id, version, self._now()))
        return self._memory(change.restore(self._lookup, self._embedder, memory_id, self._now()))

    def forget(self, memory_id: str) -> Forgotten:
        """Erase a memory with all its versions: no byte of it stays in the store. This cannot be undone.

        A damaged one is erased as well: only its address is looked at.

        Raises:
            NotFound: There is no such memory; deleted ones are found.
            ErasureUnfinished: It failed after the memory was erased, as when another process is reading the store, so
                bytes of it may still be in the files; forgetting it again finishes the erasure.
        """
        from memories.write import forget

        try:
            group = self._lookup.own_group_of(memory_id)
        except RequestError as exc:
            if isinstance(exc, InvalidInput) or not (isinstance(exc, NotFound) or self._has_forgotten(memory_id)):
                raise
            finished = forget.finish(self._store, parse_id(memory_id), self._lookup.own.where())
            if finished is None:
                raise
            return finished
        return forget.memory(self._store, self._lookup.own.where(state="any", group=group))

    def _has_forgotten(self, memory_id: str) -> bool:
        """Return whether the log has an erasure of a memory in the namespace that is written to."""
        logged = self.log(memory_id, action="forget", limit=validate.MAX_LIMIT)
        return any(entry.namespace == self.namespace for entry in logged)

    def transaction(self) -> AbstractContextManager[None]:
        """Run what is written inside as one step: all of it is stored, or nothing.

        Other writers wait until it ends. A store without transactions (Chroma, Qdrant) keeps each write whole, not
        all of them together.
        """
        return self._unflushed()

    @contextlib.contextmanager
    def _unflushed(self) -> Iterator[None]:
        """Run a transaction, within which no batch of reads is counted: it may be undone."""
        self._transactions += 1
        try:
            with self._store.transaction():
                yield
        finally:
            self._transactions -= 1
        self.flush_accesses()

    # --- changing many ---------------------------------------------------------------------------------------------

    def delete_where(self, where: str, *, dry_run: bool = False) -> "Affected":
        """Delete all memories of one's own namespace that meet an expression of the filter language.

        All are deleted at one moment, so that the rollback that the answer names brings back just these. Up to 10,000
        are deleted in one transaction; of more, a run that was cut short has deleted some, and a second one the rest.

        Args:
            where: The expression, such as "by = claude-code and updated > 7d". Only current memories are deleted.
            dry_run: Change nothing, only return what would be done.

        Raises:
            InvalidInput: The expression can't be read; the message names the place.
        """
        from memories.write import many

        return many.delete(self._lookup, self._selector(where), dry_run=dry_run)

    def forget_where(self, where: str, *, scope: str = "memories", dry_run: bool = False) -> "Affected":
        """Erase all memories or turns of one's own namespace that meet an expression. This cannot be undone.

        Args:
            where: The expression. A memory is judged by its latest version, whatever state it is in, and erased with
                all of its versions. If it is "conversation = NAME" and nothing else, turns that are still queued for
                that conversation are erased too.
            scope: `memories`, `history` (turns) or `all`.
            dry_run: Change nothing, only return what would be done.

        Raises:
            InvalidInput: The expression can't be read, or asks turns for what only memories have.
            ErasureUnfinished: See `forget`.
        """
        from memories.search.search import collections_of
        from memories.write import many

        kinds = collections_of(scope)
        selectors = [self._selector(where, kind, any_state=kind is Collection.MEMORY) for kind in kinds]
        return many.forget(self._lookup, selectors, self._queue().discard, dry_run=dry_run)

    def tag_where(
        self,
        where: str | None,
        *,
        tags: Mapping[str, str] | None = None,
        remove_tags: Sequence[str] = (),
        rename_tags: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> "Affected":
        """Set, remove or rename tags of all memories of one's own namespace that meet an expression.

        Args:
            where: The expression; None for all memories.
            tags: Tags to set.
            remove_tags: Keys of tags to remove.
            rename_tags: Keys by their new keys, or tags as `key=value` by what they are to be. A memory that has the
                new key already keeps the value that it has there.
            dry_run: Change nothing, only return what would be done.

        Raises:
            InvalidInput: The expression can't be read, or a tag is not acceptable.
        """
        from memories.write import many

        tagging = many.Tagging(tags or {}, remove_tags, rename_tags or {})
        return many.retag(self._lookup, self._embedder, self._selector(where), tagging, dry_run=dry_run)

    def rollback(self, to: Moment, *, where: str | None = None, dry_run: bool = False) -> "Affected":
        """Put the memories of one's own namespace back as they were at a time, by new versions and deletions.

        What was created since is deleted, what was changed gets a version that says what it said, what was deleted or
        replaced is restored. Turns stay as they are, for they never change. The answer names the rollback that undoes
        this one. Up to 10,000 memories are put back in one transaction; of more, a run that was cut short has put back
        some, and a second one the rest.

        Args:
            to: The time, not in the future; a date means its beginning.
            where: Only memories of which a version since then, or else the latest one, meets this expression.
            dry_run: Change nothing, only return what would be done.

        Raises:
            InvalidInput: The time or the expression is not acceptable.
        """
        from memories.write.rollback import Rollback

        now = self._now()
        selector = None if where is None else self._selector(where, any_state=True, now=now)
        told = self._tell_scratchpads()
        lookup = self._lookup._replace(store=logged(self._kept, self._channel, self._clock, None, told=told))
        return Rollback.of(lookup, to, now, selector).run(self._embedder, dry_run=dry_run)

    # --- reading ---------------------------------------------------------------------------------------------------

    def get(self, memory_id: str, *, as_of: Moment | None = None) -> Memory:
        """Return a memory.

        Args:
            memory_id: Its id, or an unambiguous prefix of 8 or more characters.
            as_of: As it was at this time: an aware datetime, or text such as "2026-05-01", which means its end.

        Raises:
            NotFound: There is no such memory, or it was deleted; with `as_of`, then or not written yet.
            AmbiguousId: The prefix fits several.
        """
        if moment := to_moment(as_of, self._now(), end_of_day=True):
            return self._memory(self._lookup.find_at(memory_id, moment), moment)
        latest = self._lookup.find(memory_id)
        self._count_access([latest])
        return self._memory(latest)

    def id_of_key(self, key: str, *, project: str | None = None) -> str:
        """Return the id of the memory that has a key.

        Args:
            key: Its key, such as `user/editor`.
            project: The project that it belongs to; each project has keys of its own. By default the one where you
                work, then none.

        Raises:
            NotFound: None that you read has it; your own namespace goes before `shared`.
        """
        place = None if project is not None else self._place()
        if place is not None:
            with contextlib.suppress(NotFound):  # then it is outside of projects, or nowhere
                return self._lookup.group_with_key(key, place.project)
        return self._lookup.group_with_key(key, project)

    def short_ids(self, ids: Sequence[str]) -> dict[str, str]:
        """Return for each id of a memory the shortest beginning, of 8 or more characters, that names it alone."""
        return self._lookup.short(ids, self._now())

    def ids(self, prefix: str, *, limit: int | None = None) -> "list[str]":
        """Return ids of memories that begin so, whatever became of them, in the order of creation.

        Args:
            prefix: The beginning, of 8 or more characters.
            limit: How many at most, up to 1,000; by default the setting `default_limit`.

        Raises:
            InvalidInput: No id begins so.
        """
        where, most = self._lookup.where(state="any", group=parse_id(prefix), prefix=True), self._limit(limit)
        each = (where._replace(namespaces=(name,)) for name in where.namespaces)  # which may share ids
        return sorted({group for one in each for _, group in self._store.groups(one, limit=most)})[:most]

    def namespaces(self, *, as_of: Moment | None = None) -> "tuple[NamespaceCounts, ...]":
        """Return the namespaces of the whole store, in order, with how much is in each; never what it says.

        Args:
            as_of: Those that held something at this time, with how much that was.
        """
        names = {*self._store.namespaces(Collection.MEMORY), *self._store.namespaces(Collection.HISTORY)}
        moment = to_moment(as_of, self._now(), end_of_day=True)
        found = (self._lookup.counts(name, moment) for name in sorted(names))
        return tuple(each for each in found if moment is None or each.memory_count or each.turn_count)

    def history(self, memory_id: str, *, as_of: Moment | None = None) -> History:
        """Return every version of a memory, oldest first; also of a deleted one.

        Args:
            memory_id: Its id, or an unambiguous prefix of 8 or more characters.
            as_of: As it was at this time: what came later is left out.

        Raises:
            NotFound: There is no such memory, or with `as_of` there was none.
        """
        moment = to_moment(as_of, self._now(), end_of_day=True)
        records = self._lookup.versions_at(memory_id, moment) if moment else self._lookup.versions(memory_id)
        memory = self._memory(records[-1], moment)
        told = tuple(map(versions.to_version, records))
        chain = memory.supersedes, memory.superseded_by
        links = memory.corrects, memory.corrected_by
        return History(memory.id, told, *chain, memory.namespace, memory.pending, *links)

    def list(  # noqa: PLR0913 - the same filters as search
        self,
        *,
        tags: Mapping[str, str] | None = None,
        written_by: str | None = None,
        trust: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        as_of: Moment | None = None,
        deleted: bool = False,
        pending: bool = False,
        where: str | None = None,
        project: str | Sequence[str] | None = None,
        sort: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        """Return a page of memories, newest first.

        Args:
            tags: Tags that each memory must have.
            written_by: Only memories whose latest version this client, or user of the operating system, wrote: its
                name as `Origin.by` tells it.
            trust: Only memories whose latest version has this trust; see `Origin`.
            since: Only memories last written at this time or later: an aware datetime, or text such as "7d".
            until: Only memories last written at this time or earlier.
            as_of: List what was current at this time.
            deleted: List deleted memories instead.
            pending: List those that wait to be accepted instead; see `review`.
            where: An expression of the filter language, such as "type = fact and not by = ann".
            project: Only memories of this project (all of its names), and those that are valid in every one, with the
                tag `global`.
            sort: `created` (the default), `updated`, `reinforced`, `confidence`, `accesses` or `version`, the newest
                or largest first, or `key`, in the order of the alphabet. All but the first read every memory.
            reverse: The other way round.
            limit: How many at most, up to 1,000.
            cursor: `next_cursor` of the previous page.
        """
        if sum((deleted, pending, as_of is not None)) > 1:
            raise InvalidInput("only one of deleted, pending and as_of can be given; leave the others out")
        limit, now = self._limit(limit), self._now()
        given = {"tags": tags, "written_by": written_by, "trust": trust, "since": since, "until": until, "as_of": as_of}
        among = narrowed(self._lookup.where(), given, now)
        if deleted:
            among = among._replace(state="ended", ended_by="delete")
        if pending:
            among = waiting(among)
        judged = functools.partial(versions.confidence, now=now, half_life_hours=self.config.decay_half_life_hours)
        if sort == "accesses":
            self.flush_accesses()
        order = order_by(sort or "created", judged, reverse=reverse, as_of=among.as_of is not None)
        if where is None:
            records, more = self._lookup.page(with_global(among, project), limit, cursor, order=order)
        else:
            from memories.where.selector import listed

            asked = self._selector(where, now=among.as_of or now)
            among, selects = listed(asked, among)
            records, more = self._lookup.page(with_global(among, project), limit, cursor, selects, order)
        if among.as_of is not None:
            records = known_at(self._store, records, among.as_of)
        return Page(tuple(self._memory(record, among.as_of or now) for record in records), more)

    def search(self, query: str, *, offline: bool = False, **filters: "Unpack[SearchFilters]") -> "tuple[Hit, ...]":
        """Return the memories, or with `scope` the turns, that answer a query, best first; empty if nothing does.

        Args:
            query: The question, in any script, at most 4,096 characters.
            offline: Let the scratchpad answer if the store can't be asked, or takes longer than the setting
                `memory_timeout_seconds`; `explain` tells which of them did.
            **filters: See `SearchFilters`.

        Raises:
            InvalidInput: A value is not acceptable.
            EmbedderMismatch: The store's vectors come from another model.
            StoreError: The store can't be asked, and no scratchpad is asked or can answer instead.
        """
        return self._answer(query, filters, offline=offline).hits

    def explain(self, query: str, *, offline: bool = False, **filters: "Unpack[SearchFilters]") -> "Explanation":
        """Search, and also return every candidate with its numbers and why it was dropped; see `search`."""
        return self._answer(query, filters, offline=offline)

    def duplicates(self, *, where: str | None = None, limit: int | None = None) -> "Iterator[Repetition]":
        """Yield memories of your own namespace that say the same as older ones: what `create` would have refused.

        Every memory is compared, which takes some milliseconds each. Nothing is changed.

        Args:
            where: Only memories that meet this expression; they are compared with all.
            limit: How many at most, up to 1,000; by default the setting `default_limit`.
        """
        from memories.write.repeats import find

        with noting(self.config, "duplicates", **self.event_figures()) as known:
            repeated = find(self._writer(force=False), self._selector(where), self._limit(limit))
            for known["results"], repetition in enumerate(repeated, 1):
                yield repetition

    @property
    def damaged(self) -> Damaged:
        """What was left out of answers since the store was opened because it is damaged; see `Damaged.since`."""
        return self._store.damaged

    def close(self) -> None:
        """Close the store, unless it was passed in; what is known of reads is counted at the end of a session."""
        if self._accesses is not None and self._channel not in ("cli", "hook"):  # which are one short command
            self.flush_accesses()
        self._tell_the_rest()
        if self._owns_store:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- inside ----------------------------------------------------------------------------------------------------

    def event_figures(self) -> dict[str, str | None]:
        """Return who works with this memory, how and, once that was asked for, in which project, for `events`.

        The project is that of the place, never one that a memory or a query names: those may be forgotten.
        """
        project = self._worked_in.project if self._worked_in else None
        return {"namespace": self.namespace, "agent": self._agent, "channel": self._channel, "project": project}

    def _place(self) -> "Place | None":
        self._worked_in = self._tell_place()
        return self._worked_in

    def _backups(self) -> tuple[str, ...]:
        if not self._is_home:
            return ()
        from memories.transfer.backup import backups_of

        return backups_of(self.config._replace(store=self._url or self.config.store))

    def _selector(
        self,
        where: str | None,
        collection: Collection = Collection.MEMORY,
        *,
        any_state: bool = False,
        now: datetime | None = None,
    ) -> "Selector":
        from memories.where import selector

        self._count_for(where)
        moment = selector.Moment(now or self._now(), self.config.decay_half_life_hours)
        if where is None:
            return selector.everything(collection, moment)
        return selector.read(where, collection, moment, any_state=any_state)

    def _memory(self, record: Record, now: datetime | None = None) -> Memory:
        return versions.to_memory(record, now or self._now(), self.config.decay_half_life_hours)

    def _search(self, query: str, filters: "SearchFilters") -> "Found":
        from memories.search.search import search

        self._count_for(filters.get("where"))
        now = self._now()
        found = search(self._lookup, self._embedder, query, filters, self.config, now)
        if filters.get("as_of") is None and not filters.get("pending"):
            self._count_access(found.memories())
            self._promote(self._with_waiting(found.memories()))
            if self.config.reinforce_on_retrieval:
                from memories.write.change import reset_decay

                reset_decay(self._store, found.memories(), now)
        return found

    def _count_access(self, records: Sequence[Record]) -> None:
        if self.config.count_accesses and records and self._waiting().add([record.ref for record in records]):
            self.flush_accesses()

    def _count_for(self, where: str | None) -> None:
        """Have reads counted that wait, if an expression asks for their number."""
        if where is not None and "access_count" in where:
            self.flush_accesses()

    def _with_waiting(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return records as they were read before this time, with the reads that wait to be counted."""
        if not (self.config.count_accesses and records):
            return records
        waiting = self._waiting().of([record.ref for record in records])
        return [
            record._replace(accesses=max(0, record.accesses + count - 1))
            for record, count in zip(records, waiting, strict=True)
        ]

    def _waiting(self) -> "Accesses":
        if self._accesses is None:
            from memories.write.accesses import Accesses

            url = self._url or self._store.info(self._lookup.where()).url
            self._accesses = Accesses(self.config.home, str(local_path(url) or url))
        return self._accesses

    def flush_accesses(self) -> None:
        """Have reads counted that wait for it, unless another one writes; writes and `status` do it by themselves."""
        if self.config.count_accesses and not self._transactions:
            self._waiting().flush(self._store)
