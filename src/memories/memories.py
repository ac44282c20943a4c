"""`Memories`: one method for each verb, over any store. Each calls one room, where the work is
done.
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from memories.config import load_config
from memories.core.events import noting, observed
from memories.core.ids import parse_id
from memories.core.times import from_millis, to_millis, to_moment
from memories.errors import InvalidInput, NotFound, RequestError, StoreError, StoreUnreachable
from memories.guard import validate
from memories.guard.origin import Place, origin
from memories.models import Draft, Forgotten, History, Memory, Moment, Page, is_session_note
from memories.read import versions
from memories.read.lookup import Lookup, check_namespace, narrow, readable_namespaces
from memories.scratchpad.scratchpads import Scratchpads
from memories.settings import Config
from memories.stores import Store, local_path, open_store
from memories.stores.damage import Damaged
from memories.stores.logged import LoggedStore
from memories.stores.records import Collection, Filter, Record

if TYPE_CHECKING:
    from datetime import date

    from memories.embedders import Embedder
    from memories.guard.origin import Origin
    from memories.guard.redactor import Redactor
    from memories.models import LogCheck, LogEntry, NamespaceCounts, Status
    from memories.read.conversations import (
        Conversation,
        ConversationFilters,
        ConversationPage,
        TurnFilters,
    )
    from memories.read.selector import Selector
    from memories.read.turns import Turn, TurnDraft
    from memories.scratchpad.hot_tier import Scratchpad
    from memories.scratchpad.matching import Matches
    from memories.search.filters import SearchFilters
    from memories.search.results import Explanation, Found, Hit
    from memories.transfer.audit import LogFilters
    from memories.transfer.stats import Stats
    from memories.write.accesses import Accesses
    from memories.write.create import Batch, Created
    from memories.write.many import Affected
    from memories.write.queue import RetryQueue
    from memories.write.review import Review
    from memories.write.writer import Repeat, Writer


Answer = TypeVar("Answer")


def _clock() -> datetime:
    return datetime.now(UTC)


@observed
class Memories:
    """Stores statements, finds them again by meaning and by word, keeps every version, and loses
    none.

    Many threads may share one object, and many processes one store. It is a context manager. The
    store is opened and the model loaded when they are first needed.

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
            channel: How changes are made, for origins and the audit log: see `Origin`. Another name
                than those makes the writer an agent.
            client: The name and the version of the MCP client that writes.
            place: Returns where the writer works, whenever something is written: its project is
                that of what is written without one, and its branch goes into origins. See
                `memories.identity.place`.

        Raises:
            ConfigError: A setting is not acceptable.
            InvalidInput: The namespace is not acceptable.
            StoreError: The namespace has the name of one of our own files, and the store can't be
                asked if it is used.
        """
        flags = {
            "store": store if isinstance(store, str) else None,
            "embedder": embedder if isinstance(embedder, str) else None,
        }
        self.config = config or load_config(flags)
        self.namespace = (
            self.config.namespace if namespace is None else validate.canonical_namespace(namespace)
        )
        readable = readable_namespaces(self.namespace, shared=shared)
        self._clock, self._tell_place = clock, place
        self._worked_in: Place | None = None
        self._embedder = self._choose_embedder(embedder)
        self._owns_store = store is None or isinstance(store, str)
        self._url = ""
        if store is None or isinstance(store, str):
            space = self._embedder.space if self._embedder else None
            self._url = store or self.config.store
            store = open_store(self._url, space, self.config)
        check_namespace(self.namespace, store, self.config)
        self._kept, self._channel = store, channel
        self._accesses: Accesses | None = None
        self._transactions = 0
        self._lookup = Lookup(store, self.namespace, readable)
        self._scratchpads = Scratchpads(
            self.config, store, self._lookup, channel, clock, home=self._owns_store
        )
        self._write_as(client)

    def _write_as(self, client: tuple[str, str] | None) -> None:
        self._agent = client[0] if client else self.config.identity
        identity = self.config.identity or self.namespace

        @functools.lru_cache(maxsize=8)
        def of_branch(branch: str | None) -> "Origin":
            return origin(self._channel, identity, client, branch)

        self._origin: Callable[[], Origin] = lambda: of_branch(
            (place := self._place()) and place.branch
        )
        admit = None
        if self.config.namespace_quota is not None:
            from memories.write.quota import admission

            admit = admission(self.config.namespace_quota)
        told = self._scratchpads.tell
        self._store = LoggedStore(
            self._kept,
            self._channel,
            self._clock,
            self._origin,
            admit=admit,
            on_change=told,
            backups=self._backups,
        )
        self._lookup = self._lookup._replace(store=self._store)
        self._scratchpads.lookup = self._lookup
        self._scratchpads.writer, self._scratchpads.flush_accesses = (
            self._writer,
            self.flush_accesses,
        )

    def of_client(self, name: str, version: str) -> Self:
        """Return the same memory as a client of a server writes to it: what it writes names that
        client.

        Args:
            name: What the client calls itself.
            version: Its version, as it tells it.
        """
        if self._scratchpads.is_home:
            _ = self._scratchpads.mirror  # which they share
        twin = self._twin()
        twin._write_as((name, version))
        return twin

    def without_shared(self) -> Self:
        """Return the same memory, which reads its own namespace alone."""
        twin = self._twin()
        twin._lookup = twin._scratchpads.lookup = self._lookup.own
        return twin

    def _twin(self) -> Self:
        """Return another object over the same open store, which it does not close."""
        twin = copy.copy(self)
        twin._scratchpads = copy.copy(self._scratchpads)
        twin._owns_store = twin._scratchpads.owns_store = False
        return twin

    def _choose_embedder(self, given: "str | Embedder | None") -> "Embedder | None":
        if given is None or isinstance(given, str):
            from memories.embedders import open_embedder

            return open_embedder(given or self.config.embedder, self.config)
        return given

    # --- writing
    # ---------------------------------------------------------------------------------------------------

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
            key: A stable key such as `user/editor`, unique within a project. If a memory has it,
                that memory gets a new version, which keeps the tags, decay and confidence that are
                not given.
            supersedes: The id of a memory in the same namespace that this one replaces.
            confidence: How sure the writer is, 0 to 1; 1.0 by default.
            created_at: When it was first written, for imports; now by default.
            pending: It waits until a person accepts it (see `review`); its key and `supersedes`
                count from then on. What comes by the channel `hook` always waits, but for what a
                session left: its type is `session` and its key begins with `session/`. No context
                has that either.
            source: The conversation that it was made from, or one of its turns, such as
                `standup#3`: `forget_turns` erases it with them if it is told to.
            force: Skip the duplicate check.
            redact: Take out secrets, and what stands in `<private>` tags; see the setting `redact`.
            within: Keys of tags that tell statements apart, as `project` always does: the same text
                with another value of one of them is stored.

        Returns:
            What happened. The same text in the same namespace and project is not stored again: what
            it adds is merged into the memory that says it, see `merged` and `reinforced`. A very
            similar text is refused unless it differs in a number, a date, a name or a negation: see
            `duplicates`.

        Raises:
            InvalidInput: A value is not acceptable; nothing was stored.
            NotFound: There is no memory `supersedes`.
        """
        draft = Draft(
            content, tags or {}, decay, key, supersedes, confidence, created_at, pending, source
        )
        return self.create_many([draft], force=force, redact=redact, within=within)[0]

    def create_many(
        self,
        drafts: Iterable[Draft | str],
        *,
        force: bool = False,
        redact: bool = True,
        within: Sequence[str] = (),
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
            raise InvalidInput(
                "create_many takes a list of drafts or texts; for one text use create"
            )
        given = [draft if isinstance(draft, Draft) else Draft(draft) for draft in drafts]
        batches = self.prepare(given, force=force, redact=redact, within=within)
        return [created for batch in batches for created in batch.write()]

    def prepare(
        self,
        drafts: Iterable[Draft],
        *,
        force: bool = False,
        redact: bool = True,
        within: Sequence[str] = (),
    ) -> "Iterator[Batch]":
        """Redact, check and embed drafts as `create_many` does; yield the batches, whose `write` is
        a transaction.
        """
        from memories.write.create import prepare

        if self._channel == "hook":  # what a hook took down waits until somebody decides
            drafts = [
                replace(draft, pending=not is_session_note(draft.tags, draft.key))
                for draft in drafts
            ]
        placed = [self._lookup.with_project(draft, self._place()) for draft in drafts]
        return prepare(
            self._writer(force=force, redact=redact)._replace(within=tuple(within)), placed
        )

    def _writer(self, *, force: bool = False, redact: bool = True) -> "Writer":
        from memories.write.writer import Writer

        half_life, least = self.config.decay_half_life_hours, self.config.min_confidence
        redactor = self._redactor(redact)
        return Writer(self._lookup, self._embedder, self._now(), half_life, least, force, redactor)

    @property
    def review(self) -> "Review":
        """What waits to be accepted in your own namespace, and the decisions about it."""
        from memories.write.review import Review

        return Review(
            self._writer(),
            self._origin(),
            lambda name: noting(self.config, name, **self.event_figures()),
        )

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
            not_corrects: The id of a memory that it was taken to correct: both hold. This adds no
                version.
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
        given = change.Update(
            content, tags or {}, remove_tags, taken_out, not_corrects, if_version, decay, confidence
        )
        return self._memory(
            change.update(self._lookup, self._embedder, memory_id, given, self._now())
        )

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
            version: Of a current memory, the version whose text, tags, decay and confidence it is
                to have again.

        Raises:
            NotFound: There is no such memory, or version.
            RequestError: It is neither deleted nor superseded, or another memory has its key now.
        """
        from memories.write import change

        if version is not None:
            return self._memory(
                change.restore_version(
                    self._lookup, self._embedder, memory_id, version, self._now()
                )
            )
        return self._memory(change.restore(self._lookup, self._embedder, memory_id, self._now()))

    def forget(self, memory_id: str) -> Forgotten:
        """Erase a memory with all its versions: no byte of it stays in the store. This cannot be
        undone.

        A damaged one is erased as well: only its address is looked at.

        Raises:
            NotFound: There is no such memory; deleted ones are found.
            ErasureUnfinished: It failed after the memory was erased, as when another process is
                reading the store, so bytes of it may still be in the files; forgetting it again
                finishes the erasure.
        """
        from memories.write import forget

        try:
            group = self._lookup.resolve_own_id(memory_id)
        except RequestError as exc:
            if isinstance(exc, InvalidInput) or not (
                isinstance(exc, NotFound) or self._has_forgotten(memory_id)
            ):
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

        Other writers wait until it ends. A store without transactions (Chroma, Qdrant) keeps each
        write whole, not all of them together.
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

    # --- changing many
    # ---------------------------------------------------------------------------------------------

    def delete_where(self, where: str, *, dry_run: bool = False) -> "Affected":
        """Delete all memories of one's own namespace that meet an expression of the filter
        language.

        All are deleted at one moment, so that the rollback that the answer names brings back just
        these. Up to 10,000 are deleted in one transaction; of more, a run that was cut short has
        deleted some, and a second one the rest.

        Args:
            where: The expression, such as "by = claude-code and updated > 7d". Only current
                memories are deleted.
            dry_run: Change nothing, only return what would be done.

        Raises:
            InvalidInput: The expression can't be read; the message names the place.
        """
        from memories.write import many

        return many.delete(self._lookup, self._selector(where), dry_run=dry_run)

    def forget_where(
        self, where: str, *, scope: str = "memories", dry_run: bool = False
    ) -> "Affected":
        """Erase all memories or turns of one's own namespace that meet an expression. This cannot
        be undone.

        Args:
            where: The expression. A memory is judged by its latest version, whatever state it is
                in, and erased with all of its versions. If it is "conversation = NAME" and nothing
                else, turns that are still queued for that conversation are erased too.
            scope: `memories`, `history` (turns) or `all`.
            dry_run: Change nothing, only return what would be done.

        Raises:
            InvalidInput: The expression can't be read, or asks turns for what only memories have.
            ErasureUnfinished: See `forget`.
        """
        from memories.search.search import collections_of
        from memories.write import many

        kinds = collections_of(scope)
        selectors = [
            self._selector(where, kind, any_state=kind is Collection.MEMORY) for kind in kinds
        ]
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
        """Set, remove or rename tags of all memories of one's own namespace that meet an
        expression.

        Args:
            where: The expression; None for all memories.
            tags: Tags to set.
            remove_tags: Keys of tags to remove.
            rename_tags: Keys by their new keys, or tags as `key=value` by what they are to be. A
                memory that has the new key already keeps the value that it has there.
            dry_run: Change nothing, only return what would be done.

        Raises:
            InvalidInput: The expression can't be read, or a tag is not acceptable.
        """
        from memories.write import many

        tagging = many.Tagging(tags or {}, remove_tags, rename_tags or {})
        return many.retag(
            self._lookup, self._embedder, self._selector(where), tagging, dry_run=dry_run
        )

    def rollback(
        self, to: Moment, *, where: str | None = None, dry_run: bool = False
    ) -> "Affected":
        """Put the memories of one's own namespace back as they were at a time, by new versions and
        deletions.

        What was created since is deleted, what was changed gets a version that says what it said,
        what was deleted or replaced is restored. Turns stay as they are, for they never change. The
        answer names the rollback that undoes this one. Up to 10,000 memories are put back in one
        transaction; of more, a run that was cut short has put back some, and a second one the rest.

        Args:
            to: The time, not in the future; a date means its beginning.
            where: Only memories of which a version since then, or else the latest one, meets this
                expression.
            dry_run: Change nothing, only return what would be done.

        Raises:
            InvalidInput: The time or the expression is not acceptable.
        """
        from memories.write.rollback import Rollback

        now = self._now()
        selector = None if where is None else self._selector(where, any_state=True, now=now)
        told = self._scratchpads.tell
        lookup = self._lookup._replace(
            store=LoggedStore(self._kept, self._channel, self._clock, None, on_change=told)
        )
        return Rollback.of(lookup, to, now, selector).run(self._embedder, dry_run=dry_run)

    # --- conversations
    # ---------------------------------------------------------------------------------------------

    def add_turns(
        self, conversation_id: str, turns: "Iterable[TurnDraft | str]", *, redact: bool = True
    ) -> "list[Turn]":
        """Append turns to a conversation in one transaction; stored turns never change.

        Args:
            conversation_id: The conversation, at most 256 characters.
            turns: Drafts, or texts said by the user, in order.
            redact: Take out secrets; see `create`.

        Returns:
            The turns, each with its `status`. If the conversation has a `message_id` already, that
            stored turn is
            returned: it is `known` if it says the same; else the new message is `refused`, its
                `reason` says why, and
            the others are stored.

        Raises:
            InvalidInput: A value is not acceptable; nothing was stored.
            RequestError: The conversation is in a namespace that is only read; nothing was stored.
        """
        from memories.read.turns import TurnDraft
        from memories.write.turns import append

        if isinstance(turns, str):
            raise InvalidInput(
                "add_turns takes a list of turns or texts; put a single one in a list"
            )
        drafts = [turn if isinstance(turn, TurnDraft) else TurnDraft(turn) for turn in turns]
        if at := self._place():
            drafts = [replace(each, tags=at.tags(each.tags)) for each in drafts]
        place = (self._lookup.readable, conversation_id)
        return append(
            self._store, self._embedder, place, drafts, self._now(), self._redactor(redact)
        )

    def update_conversation(
        self,
        conversation_id: str,
        *,
        title: str | None = None,
        user: str | None = None,
        tags: Mapping[str, str] | None = None,
        remove_tags: Sequence[str] = (),
        redact: bool = True,
    ) -> "Conversation":
        """Say what a conversation is called, whom it is held with, and how it is tagged.

        Args:
            conversation_id: A conversation in your own namespace.
            title: Its title, one line of at most 256 characters; empty to remove it, None to leave
                it.
            user: Whom it is held with, one line; empty to remove it, None to leave it.
            tags: Tags to add or change.
            remove_tags: Keys of tags to remove; keys that it does not have are ignored.
            redact: Take out secrets; see `create`.

        Raises:
            NotFound: There is no such conversation.
            RequestError: It is in a namespace that is only read.
            InvalidInput: A value is not acceptable, or no change was given.
        """
        from memories.write.turns import Naming

        naming = Naming(title, user, tags or {}, remove_tags).checked(self._redactor(redact))
        return naming.apply(self._store, self._lookup.readable, conversation_id)

    def forget_turns(
        self,
        conversation_id: str,
        *,
        index: int | None = None,
        with_memories: bool = False,
        dry_run: bool = False,
    ) -> Forgotten:
        """Erase a conversation, or one of its turns: no byte of it stays in the store.

        Turns that are still queued for the conversation are erased with it; see `MemoryGateway`.

        Args:
            conversation_id: A conversation in your own namespace.
            index: The only turn to erase; the others keep their indexes.
            with_memories: Also erase your memories of which a version was made from what is erased;
                see `create`.
            dry_run: Erase nothing, only return how much there is.

        Raises:
            NotFound: There is no such conversation or turn.
            RequestError: The conversation is only in a namespace that is read.
            ErasureUnfinished: It failed after the turns were erased, so bytes of them may still be
                in the files; forgetting them again finishes the erasure.
        """
        from memories.write import forget

        turns = forget.Turns(self._store, self._lookup.readable, conversation_id, index)
        if not with_memories:
            return turns.forget(self._queue(), dry_run=dry_run)
        from memories.write.many import forget_with_turns

        return forget_with_turns(self._lookup, turns, self._queue(), dry_run=dry_run)

    def tail_turns(
        self, conversation_id: str, *, limit: int | None = None, **filters: "Unpack[TurnFilters]"
    ) -> "list[Turn]":
        """Return the last turns of a conversation, oldest first; empty if there is no such
        conversation.

        Turns that wait to be stored come last and have `waiting` set; see `waiting_turns`.

        Args:
            conversation_id: The conversation; if your namespace and `shared` both have it, yours.
            limit: How many at most, up to 1,000; by default the setting `default_limit`.
            **filters: See `TurnFilters`.

        Raises:
            InvalidInput: A value is not acceptable.
        """
        from memories.read.turns import tail

        where, most = self._turns_of(conversation_id, filters), self._limit(limit)
        found = tail(self._store, where, most)
        return [*found, *self._behind(where, conversation_id)][-most:]

    def turns(
        self,
        conversation_id: str,
        *,
        start: int = 0,
        limit: int | None = None,
        **filters: "Unpack[TurnFilters]",
    ) -> "list[Turn]":
        """Return the turns of a conversation from an index on, oldest first.

        Args:
            conversation_id: The conversation; see `tail_turns`.
            start: The index of the first turn.
            limit: How many at most, up to 1,000; by default the setting `default_limit`.
            **filters: See `TurnFilters`.

        Raises:
            InvalidInput: A value is not acceptable.
        """
        from memories.read.turns import page

        where, first, most = (
            self._turns_of(conversation_id, filters),
            validate.index(start),
            self._limit(limit),
        )
        found = page(self._store, where, first, most)
        if len(found) == most:
            return found
        return [
            *found,
            *(turn for turn in self._behind(where, conversation_id) if turn.index >= first),
        ][:most]

    def waiting_turns(self, conversation_id: str | None = None) -> "list[Turn]":
        """Return the turns that wait to be stored, oldest first: what an agent said while the store
        did not answer.

        It looks only at the queue on disk (see `MemoryGateway`), so it works while the store is
        down.

        Args:
            conversation_id: Only those of this conversation.
        """
        from memories.read.turns import conversation_id as checked
        from memories.write.waiting import waiting_turns

        name = None if conversation_id is None else checked(conversation_id)
        return waiting_turns(self._queue(), self.namespace, name)

    def conversations(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        **filters: "Unpack[ConversationFilters]",
    ) -> "list[Conversation]":
        """Return the conversations of a page of `list_conversations`, newest first.

        Args:
            limit: How many at most, up to 1,000; by default the setting `default_limit`.
            cursor: `next_cursor` of the previous page.
            **filters: See `ConversationFilters`.
        """
        return list(self.list_conversations(limit=limit, cursor=cursor, **filters).conversations)

    def list_conversations(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        **filters: "Unpack[ConversationFilters]",
    ) -> "ConversationPage":
        """Return a page of conversations with their titles, turn counts and dates, those with the
        newest turn first.

        Args:
            limit: How many at most, up to 1,000; by default the setting `default_limit`.
            cursor: `next_cursor` of the previous page.
            **filters: See `ConversationFilters`.

        Raises:
            InvalidInput: A value is not acceptable.
        """
        from memories.read.conversations import page

        found = page(
            self._store, self._lookup.readable, filters, self._now(), self._limit(limit), cursor
        )
        waiting = [] if filters.get("as_of") else self.waiting_turns()
        if not waiting:
            return found
        from memories.write.waiting import not_stored, with_waiting

        return with_waiting(
            found, not_stored(self._store, waiting), first=cursor is None and not filters
        )

    def conversation(self, conversation_id: str, *, as_of: Moment | None = None) -> "Conversation":
        """Return a conversation as a listing shows it.

        Args:
            conversation_id: The conversation; see `tail_turns`.
            as_of: As long as it was at this time.

        Raises:
            NotFound: There is no such conversation, or with `as_of` there was none.
        """
        from memories.read.conversations import find
        from memories.read.turns import conversation_id as checked

        end = to_moment(as_of, self._now(), end_of_day=True)
        return find(self._store, self._lookup.readable, checked(conversation_id), end)

    # --- reading
    # ---------------------------------------------------------------------------------------------------

    def get(self, memory_id: str, *, as_of: Moment | None = None) -> Memory:
        """Return a memory.

        Args:
            memory_id: Its id, or an unambiguous prefix of 8 or more characters.
            as_of: As it was at this time: an aware datetime, or text such as "2026-05-01", which
                means its end.

        Raises:
            NotFound: There is no such memory, or it was deleted; with `as_of`, then or not written
                yet.
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
            project: The project that it belongs to; each project has keys of its own. By default
                the one where you work, then none.

        Raises:
            NotFound: None that you read has it; your own namespace goes before `shared`.
        """
        place = None if project is not None else self._place()
        if place is not None:
            with contextlib.suppress(NotFound):  # then it is outside of projects, or nowhere
                return self._lookup.id_of_key(key, place.project)
        return self._lookup.id_of_key(key, project)

    def short_ids(self, ids: Sequence[str]) -> dict[str, str]:
        """Return for each id of a memory the shortest beginning, of 8 or more characters, that
        names it alone.
        """
        return self._lookup.short_ids(ids, self._now())

    def ids(self, prefix: str, *, limit: int | None = None) -> "list[str]":
        """Return ids of memories that begin so, whatever became of them, in the order of creation.

        Args:
            prefix: The beginning, of 8 or more characters.
            limit: How many at most, up to 1,000; by default the setting `default_limit`.

        Raises:
            InvalidInput: No id begins so.
        """
        where, most = (
            self._lookup.where(state="any", group=parse_id(prefix), prefix=True),
            self._limit(limit),
        )
        each = (
            where._replace(namespaces=(name,)) for name in where.namespaces
        )  # which may share ids
        return sorted({group for one in each for _, group in self._store.groups(one, limit=most)})[
            :most
        ]

    def namespaces(self, *, as_of: Moment | None = None) -> "tuple[NamespaceCounts, ...]":
        """Return the namespaces of the whole store, in order, with how much is in each; never what
        it says.

        Args:
            as_of: Those that held something at this time, with how much that was.
        """
        names = {
            *self._store.namespaces(Collection.MEMORY),
            *self._store.namespaces(Collection.HISTORY),
        }
        moment = to_moment(as_of, self._now(), end_of_day=True)
        found = (self._lookup.count_namespace(name, moment) for name in sorted(names))
        return tuple(
            each for each in found if moment is None or each.memory_count or each.turn_count
        )

    def history(self, memory_id: str, *, as_of: Moment | None = None) -> History:
        """Return every version of a memory, oldest first; also of a deleted one.

        Args:
            memory_id: Its id, or an unambiguous prefix of 8 or more characters.
            as_of: As it was at this time: what came later is left out.

        Raises:
            NotFound: There is no such memory, or with `as_of` there was none.
        """
        moment = to_moment(as_of, self._now(), end_of_day=True)
        records = (
            self._lookup.versions_at(memory_id, moment)
            if moment
            else self._lookup.versions(memory_id)
        )
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
            written_by: Only memories whose latest version this client, or user of the operating
                system, wrote: its name as `Origin.by` tells it.
            trust: Only memories whose latest version has this trust; see `Origin`.
            since: Only memories last written at this time or later: an aware datetime, or text such
                as "7d".
            until: Only memories last written at this time or earlier.
            as_of: List what was current at this time.
            deleted: List deleted memories instead.
            pending: List those that wait to be accepted instead; see `review`.
            where: An expression of the filter language, such as "type = fact and not by = ann".
            project: Only memories of this project (all of its names), and those that are valid in
                every one, with the tag `global`.
            sort: `created` (the default), `updated`, `reinforced`, `confidence`, `accesses` or
                `version`, the newest or largest first, or `key`, in the order of the alphabet. All
                but the first read every memory.
            reverse: The other way round.
            limit: How many at most, up to 1,000.
            cursor: `next_cursor` of the previous page.
        """
        if sum((deleted, pending, as_of is not None)) > 1:
            raise InvalidInput(
                "only one of deleted, pending and as_of can be given; leave the others out"
            )
        from memories.read.listing import Listing

        most, now = self._limit(limit), self._now()
        judged_at = to_moment(as_of, now, end_of_day=True) or now
        selector = None if where is None else self._selector(where, now=judged_at)
        if sort == "accesses":
            self.flush_accesses()
        filters = {
            "tags": tags,
            "written_by": written_by,
            "trust": trust,
            "since": since,
            "until": until,
            "as_of": as_of,
        }
        listing = Listing(filters, deleted, pending, selector, project, sort or "created", reverse)
        records, more = listing.page(
            self._lookup, most, cursor, now, self.config.decay_half_life_hours
        )
        return Page(tuple(self._memory(record, judged_at) for record in records), more)

    def search(
        self, query: str, *, offline: bool = False, **filters: "Unpack[SearchFilters]"
    ) -> "tuple[Hit, ...]":
        """Return the memories, or with `scope` the turns, that answer a query, best first; empty if
        nothing does.

        Args:
            query: The question, in any script, at most 4,096 characters.
            offline: Let the scratchpad answer if the store can't be asked, or takes longer than the
                setting `memory_timeout_seconds`; `explain` tells which of them did.
            **filters: See `SearchFilters`.

        Raises:
            InvalidInput: A value is not acceptable.
            EmbedderMismatch: The store's vectors come from another model.
            StoreError: The store can't be asked, and no scratchpad is asked or can answer instead.
        """
        return self._answer(query, filters, offline=offline).hits

    def explain(
        self, query: str, *, offline: bool = False, **filters: "Unpack[SearchFilters]"
    ) -> "Explanation":
        """Search, and also return every candidate with its numbers and why it was dropped; see
        `search`.
        """
        return self._answer(query, filters, offline=offline)

    def duplicates(
        self, *, where: str | None = None, limit: int | None = None
    ) -> "Iterator[Repeat]":
        """Yield memories of your own namespace that say the same as older ones: what `create` would
        have refused.

        Every memory is compared, which takes some milliseconds each. Nothing is changed.

        Args:
            where: Only memories that meet this expression; they are compared with all.
            limit: How many at most, up to 1,000; by default the setting `default_limit`.
        """
        from memories.write.writer import find_repeats

        with noting(self.config, "duplicates", **self.event_figures()) as known:
            repeated = find_repeats(self._writer(), self._selector(where), self._limit(limit))
            for known["results"], repetition in enumerate(repeated, 1):
                yield repetition

    # --- the scratchpad
    # --------------------------------------------------------------------------------------------

    def pin(self, memory_id: str) -> Memory:
        """Keep a memory in the scratchpad, by a version of it that says the same.

        Raises:
            NotFound: There is no such memory, or it was deleted.
            RequestError: Another memory has replaced it, it is in a namespace that is only read, or
                50 are pinned.
        """
        from memories.write import change

        return self._memory(
            change.pin(self._lookup, self._embedder, memory_id, self._clock(), pinned=True)
        )

    def unpin(self, memory_id: str) -> Memory:
        """Take back that a memory is kept in the scratchpad; see `pin`."""
        from memories.write import change

        return self._memory(
            change.pin(self._lookup, self._embedder, memory_id, self._clock(), pinned=False)
        )

    def scratchpad(self, *, refresh: bool = False, rebuild: bool = False) -> "Scratchpad":
        """Return the hot tier: pinned, recent and often used memories of your own namespace, and
        those of `shared`.

        What a person changed in a file is taken over first. The store is opened only if a file is
        out of date.

        Args:
            refresh: Bring the file of your namespace up to date whatever it says of itself.
            rebuild: Choose anew from all memories of it, those included that were taken out of the
                file.

        Raises:
            InvalidInput: With `rebuild`: the file isn't safe to read, such as a symbolic link.
        """
        return self._scratchpads.show(refresh=refresh, rebuild=rebuild)

    def scratchpad_at_hand(self) -> "Scratchpad | None":
        """Return what `scratchpad` does if that takes no look at the store; else None."""
        return self._scratchpads.at_hand()

    def search_scratchpad(
        self, query: str, *, offline: bool = False, **filters: "Unpack[SearchFilters]"
    ) -> "Matches":
        """Search the hot tier by words, without the store or a model.

        Args:
            query: The question.
            offline: Read the files as they are, because the store can't be asked.
            **filters: As for `search`, but those that only a store can answer.

        Raises:
            InvalidInput: A value is not acceptable, only a store can answer this, or a file can't
                be read.
        """
        return self._scratchpads.search(query, filters, offline=offline)

    def edits(self) -> tuple[str, ...]:
        """Take over what a person changed in the scratchpad's file; return what was not, each a
        sentence.

        It costs a look at the file unless there is something. A store that can't be written is left
        for later.
        """
        return self._scratchpads.edits()

    def offline(self) -> "Scratchpad | None":
        """Return what the files of scratchpads say, whichever store they mirror; None if there are
        none.

        A memory that decays is left out if an older program wrote the file, which lacks what its
        confidence depends on.
        """
        return self._scratchpads.offline()

    def missing(self) -> str | None:
        """Return that the file of the store is gone although its scratchpad has memories, a
        sentence; None if not.
        """
        return self._scratchpads.missing()

    @property
    def has_scratchpad(self) -> bool:
        """Whether there is a scratchpad that can answer when the store can't be asked."""
        return self._scratchpads.are_there

    def ask_store(
        self, ask: "Callable[[], Answer]", instead: "Callable[[], Answer | None]"
    ) -> "tuple[Answer, str | None]":
        """Return the store's answer, and None; if it can't be asked, what the scratchpad says, and
        why.

        The store may take as long as `memory_timeout_seconds` allows, if there is a scratchpad.

        Args:
            ask: Asks the store.
            instead: Answers from the scratchpad; None if it can't.

        Raises:
            StoreError: The store can't be asked, and the scratchpad can't answer.
        """
        if not self.has_scratchpad:
            return ask(), None
        try:
            return self._ask_in_time(ask), None
        except StoreError as exc:
            found = instead()
            if found is None:
                raise
            return found, str(exc)

    def abandon(self) -> None:
        """Leave the store open when this is closed: a call that was given up still uses it."""
        self._owns_store = self._scratchpads.is_home = self._scratchpads.owns_store = False

    def at_home(self) -> Self:
        """Return it with scratchpads: the store that was passed in is the one that the settings
        name, opened before.
        """
        self._scratchpads.is_home = True
        return self

    # --- all of it
    # -------------------------------------------------------------------------------------------------

    def log(
        self, memory_id: str | None = None, **filters: "Unpack[LogFilters]"
    ) -> "tuple[LogEntry, ...]":
        """Return entries of the audit log, newest first: who changed what and when; never any
        content.

        Args:
            memory_id: Only changes of this memory, also of one that was forgotten: its id, or a
                prefix of 8 or more characters.
            **filters: See `LogFilters`.

        Raises:
            InvalidInput: A value is not acceptable.
        """
        from memories.transfer.audit import entries, wanted

        given = wanted(memory_id, filters, self._now())._replace(
            limit=self._limit(filters.get("limit"))
        )
        return tuple(entries(self._store, self._lookup.readable, given))

    def verify_log(self, *, against: str | None = None) -> "tuple[LogCheck, ...]":
        """Check the audit log of each namespace that is read: that no entry was changed, removed or
        moved.

        Args:
            against: A hash that an earlier check returned as `head`. It proves that nothing up to
                there was changed, although who can write the store can also compute hashes, and
                that the end was not cut off.

        Raises:
            InvalidInput: `against` is no hash.
        """
        from memories.transfer.audit import verify

        return tuple(verify(self._store, self._lookup.readable, against))

    def tags(
        self,
        key: str | None = None,
        *,
        written_by: str | None = None,
        trust: str | None = None,
        as_of: Moment | None = None,
    ) -> dict[str, int]:
        """Return the tag keys in use, or the values of one key, with the number of memories that
        have each.

        Args:
            key: The key whose values are returned.
            written_by: Count only memories that it wrote; see `list`.
            trust: Count only memories of this trust.
            as_of: Count what was current at this time.
        """
        from memories.read.listing import count_tags

        key = None if key is None else validate.tag_key(key)
        given = {"written_by": written_by, "trust": trust, "as_of": as_of}
        return count_tags(self._lookup, narrow(self._lookup.where(), given, self._now()), key)

    def stats(self, *, since: Moment | None = None) -> "Stats":
        """Return what was done with the memory, how long it took, and what of it is used; see
        `Stats`.

        Args:
            since: Count only what was done or written at this time or later: an aware datetime, or
                text such as "7d".
        """
        from memories.transfer.stats import stats

        self.flush_accesses()
        return stats(self._lookup, self.config, to_moment(since, self._now()))

    def days(self) -> "dict[date, int]":
        """Return how many versions of memories were written on each day of UTC, oldest first; not
        what waits.
        """
        from memories.read.listing import count_days

        return count_days(self._lookup)

    def status(self) -> "Status":
        """Return where memories are stored, how many there are, and what a quick look finds
        wrong.
        """
        from memories.read.listing import status

        return status(self._lookup, self.config, self._embedder)

    @property
    def damaged(self) -> Damaged:
        """What was left out of answers since the store was opened because it is damaged; see
        `Damaged.since`.
        """
        return self._store.damaged

    def close(self) -> None:
        """Close the store, unless it was passed in; what is known of reads is counted at the end of
        a session.
        """
        if self._accesses is not None and self._channel not in (
            "cli",
            "hook",
        ):  # which are one short command
            self.flush_accesses()
        self._scratchpads.flush()
        if self._owns_store:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- inside
    # ----------------------------------------------------------------------------------------------------

    def event_figures(self) -> dict[str, str | None]:
        """Return who works with this memory, how and, once that was asked for, in which project,
        for `events`.

        The project is that of the place, never one that a memory or a query names: those may be
        forgotten.
        """
        project = self._worked_in.project if self._worked_in else None
        return {
            "namespace": self.namespace,
            "agent": self._agent,
            "channel": self._channel,
            "project": project,
        }

    def _place(self) -> "Place | None":
        self._worked_in = self._tell_place()
        return self._worked_in

    def _backups(self) -> tuple[str, ...]:
        if not self._scratchpads.is_home:
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
        from memories.read import selector

        self._count_for(where)
        moment = selector.Instant(now or self._now(), self.config.decay_half_life_hours)
        if where is None:
            return selector.select_all(collection, moment)
        return selector.parse(where, collection, moment, any_state=any_state)

    def _memory(self, record: Record, now: datetime | None = None) -> Memory:
        return versions.to_memory(record, now or self._now(), self.config.decay_half_life_hours)

    def _answer(self, query: str, filters: "SearchFilters", *, offline: bool) -> "Explanation":
        """Search, with the scratchpad in place of a store that can't be asked if `offline`; see
        `search`.
        """
        if not offline or not self.has_scratchpad:
            return self._search_tier(query, filters)
        ask = functools.partial(self._search_tier, query, filters)
        instead = functools.partial(self._search_offline, query, filters)
        found, error = self.ask_store(ask, instead)
        return found if error is None else found._replace(tier="hot", error=error)

    def _ask_in_time(self, ask: "Callable[[], Answer]") -> "Answer":
        """Return what the store answers within `memory_timeout_seconds`."""
        from memories.core.deadline import DEADLINE, Deadline, MemoryTimeout

        if missing := self.missing():
            raise StoreError(missing)
        shared, seconds = DEADLINE.get(), self.config.memory_timeout_seconds
        deadline = Deadline(seconds) if shared is None else shared(seconds)
        try:
            return deadline.run(ask)
        except MemoryTimeout as exc:
            self.abandon()
            raise StoreUnreachable(str(exc)) from exc
        finally:
            if shared is None:
                deadline.close()

    def _search_tier(self, query: str, filters: "SearchFilters") -> "Explanation":
        from memories.search.filters import TIERS

        tier = filters.get("tier") or "deep"
        if tier not in TIERS:
            raise InvalidInput(f'tier must be deep, hot or auto, not "{validate.shown(str(tier))}"')
        if tier != "deep":
            hot = self._scratchpads.search(query, filters)
            if tier == "hot" or hot.enough:
                return hot.found
        return self._search(query, filters).explanation()._replace(tier=tier)

    def _search_offline(self, query: str, filters: "SearchFilters") -> "Explanation | None":
        """Search the scratchpad as it is; None if only the store can answer."""
        try:
            return self._scratchpads.search(query, filters, offline=True).found
        except InvalidInput:
            return None

    def _search(self, query: str, filters: "SearchFilters") -> "Found":
        from memories.search.search import search

        self._count_for(filters.get("where"))
        now = self._now()
        found = search(self._lookup, self._embedder, query, filters, self.config, now)
        if filters.get("as_of") is None and not filters.get("pending"):
            self._count_access(found.memories())
            self._scratchpads.promote(self._as_counted(found.memories()))
            if self.config.reinforce_on_retrieval:
                from memories.write.change import reset_decay

                reset_decay(self._store, found.memories(), now)
        return found

    def _count_access(self, records: Sequence[Record]) -> None:
        if (
            self.config.count_accesses
            and records
            and self._waiting().add([record.ref for record in records])
        ):
            self.flush_accesses()

    def _count_for(self, where: str | None) -> None:
        """Have reads counted that wait, if an expression asks for their number."""
        if where is not None and "access_count" in where:
            self.flush_accesses()

    def _as_counted(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return records as they were read before this time, with the reads that wait to be
        counted.
        """
        return (
            self._waiting().included(records) if self.config.count_accesses and records else records
        )

    def _waiting(self) -> "Accesses":
        if self._accesses is None:
            from memories.write.accesses import Accesses

            url = self._url or self._store.info(self._lookup.where()).url
            self._accesses = Accesses(self.config.home, str(local_path(url) or url))
        return self._accesses

    def flush_accesses(self) -> None:
        """Have reads counted that wait for it, unless another one writes; writes and `status` do it
        by themselves.
        """
        if self.config.count_accesses and not self._transactions:
            self._waiting().flush(self._store)

    def _turns_of(self, conversation_id: str, filters: "TurnFilters") -> Filter:
        """Return the filter of the turns of a conversation that are wanted."""
        from memories.read.conversations import narrow_turns
        from memories.read.turns import in_conversation

        return narrow_turns(
            in_conversation(self._store, self._lookup.readable, conversation_id),
            filters,
            self._now(),
        )

    def _behind(self, where: Filter, conversation_id: str) -> "Sequence[Turn]":
        """Return the turns that wait to be stored behind those of a conversation, and are
        wanted.
        """
        waiting = self.waiting_turns(conversation_id)
        if not waiting:
            return []
        from memories.write.waiting import not_stored, numbered

        own = Filter(Collection.HISTORY, (self.namespace,), group=waiting[0].conversation_id)
        last = self._store.scan(own, limit=1, newest_first=True)
        return numbered(
            not_stored(self._store, waiting), where, last[0].ref.position if last else -1
        )

    def _now(self) -> datetime:
        return from_millis(to_millis(self._clock()))

    def _redactor(self, redact: bool) -> "Redactor | None":
        return self.config.redactor() if redact else None

    def _limit(self, given: int | None) -> int:
        return self.config.default_limit if given is None else validate.limit(given)

    def _queue(self) -> "RetryQueue":
        from memories.write.queue import RetryQueue, files_of

        return RetryQueue.of_turns(*files_of(self.config, self.namespace))
