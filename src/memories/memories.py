"""The class `Memories`, with one method for each operation on a memory, in any store.

Each method delegates to a package.
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from memories.anchors.judge import Judge, cache_of
from memories.config import load_config
from memories.core.events import note_methods, noting
from memories.core.ids import parse_id
from memories.core.times import from_millis, to_millis, to_moment
from memories.errors import InvalidInput, NotFound, RequestError, StoreError, StoreUnreachable
from memories.guard import validate
from memories.guard.origin import Place, origin, roots
from memories.models import Draft, Forgotten, History, Memory, Moment, Page, is_session_note
from memories.read import versions
from memories.read.lookup import Lookup, apply_filters, check_namespace, readable_namespaces
from memories.scratchpad.scratchpads import Scratchpads
from memories.settings import Config
from memories.stores import Store, open_store
from memories.stores.damage import Damaged
from memories.stores.records import Collection, Filter, Record

if TYPE_CHECKING:
    from datetime import date

    from memories.anchors.grammar import RootOf
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
    from memories.scratchpad.matching import ScratchpadMatches
    from memories.search.filters import SearchFilters
    from memories.search.results import Explanation, Hit, SearchResult
    from memories.stores.logged import LoggedStore
    from memories.transfer.audit import LogFilters
    from memories.transfer.moves import MovedMemories
    from memories.transfer.stats import Stats
    from memories.write.accesses import Accesses
    from memories.write.bulk import Affected
    from memories.write.captured import UnstoredTexts
    from memories.write.create import Batch, Created
    from memories.write.review import Review
    from memories.write.similar import RepeatedMemory
    from memories.write.truth import Truth
    from memories.write.write_context import WriteContext


Answer = TypeVar("Answer")


_utc_now = functools.partial(datetime.now, UTC)


@note_methods  # records a usage event for each call
class Memories:
    """Stores memories, finds them by meaning and by words, and keeps every version.

    Threads may share an instance, which is also a context manager, and processes may share a store.
    The store is opened, and the model loaded, on first use.

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
        clock: Callable[[], datetime] = _utc_now,
        channel: str = "python",
        client: tuple[str, str] | None = None,
        place: Callable[[], Place | None] | None = None,
    ) -> None:
        """Prepare the object. Omitted arguments come from the settings (`memory config`).

        Args:
            store: A URL or a `Store`. `close` does not close a store that was passed in.
            namespace: The namespace to write to and read from.
            shared: Also read the namespace `shared`.
            embedder: The name of an embedder, or an `Embedder`; `none` searches by words only.
            config: Settings to use instead of those in the environment and the files.
            clock: Returns the current time, with its time zone.
            channel: The channel of changes, for origins and the audit log: see `Origin`. An unknown
                name marks the writer as an agent.
            client: The name and version of the MCP client that writes.
            place: A function that returns where the caller works, called for each write. The
                place's project is the default for new memories, origins record its branch, and
                anchors are checked in its working tree. Without a place, memories get no verdicts.
                See `memories.identity.place`.

        Raises:
            ConfigError: A setting is invalid.
            InvalidInput: The namespace is invalid, or the store or embedder is of the wrong type.
            StoreError: The namespace's name is reserved, and the store can't check whether the
                namespace is already in use.
        """
        options = {"store": store, "embedder": embedder}
        flags = {name: value for name, value in options.items() if isinstance(value, str)}
        self.config = config or load_config(flags)
        if namespace is not None:
            named = validate.canonical_namespace(namespace)
            self.config = self.config._replace(namespace=named)
        self.namespace = self.config.namespace
        readable = readable_namespaces(self.namespace, shared=shared)
        self._clock, self._find_place = clock, place or (lambda: None)
        self._last_place: Place | None = None
        self._owns_store = store is None or isinstance(store, str)
        from memories.embedders import StoreEmbedder

        self._embedders = StoreEmbedder(embedder, self.config, may_change=self._owns_store)
        self._url = ""
        if store is None or isinstance(store, str):
            self._url = store or self.config.store
            store = open_store(self._url, self._embedders.space, self.config)
        elif not hasattr(store, "scan"):
            raise InvalidInput(f"store is of type {type(store).__name__}; pass a URL or a store")
        check_namespace(self.namespace, store, self.config)
        self._channel, self._open_transactions = channel, 0
        # For reading only. Writes go through `_store` and `_lookup`, which log them.
        self._raw_store, self._raw_lookup = store, Lookup(store, self.namespace, readable)
        self._scratchpads = Scratchpads(
            self.config, store, self._raw_lookup, channel, clock, owns_home=self._owns_store
        )
        if place is not None:
            self.judge_in(roots(self._find_place))
        self._write_as(client)

    def _write_as(self, client: tuple[str, str] | None) -> None:
        """Log all writes through this object, and stamp them with a client's origin."""
        self._client = None
        if client is not None:
            secrets = self.config.redactor().secrets
            self._client = (secrets(client[0]).text, secrets(client[1]).text)
        self._origins: dict[str | None, Origin] = {}
        vars(self).pop("_store", None)
        self._scratchpads.ctx = self._ctx
        self._scratchpads.flush_accesses = self.flush_accesses

    def of_client(self, name: str, version: str) -> Self:
        """Return a copy of this object whose writes are attributed to a server's client.

        Args:
            name: The client's own name.
            version: The version that the client reports.
        """
        if self._scratchpads.owns_home:
            _ = self._scratchpads.mirror  # created here, so that all copies share it
        twin = self._twin()
        twin._write_as((name, version))
        return twin

    def judge_in(self, root_of: "RootOf", seconds: float | None = None) -> Self:
        """Check anchors in the given working trees from now on, and return this object.

        Args:
            root_of: Returns the top folder of a project's working tree; None if there is none here.
            seconds: The time limit of the checks for one response; None for no limit.
        """
        judge = Judge(root_of, cache_of(self.config.home, self.namespace), seconds)
        self._raw_lookup = self._scratchpads.lookup = self._raw_lookup._replace(judge=judge)
        return self

    @property
    def place(self) -> "Place | None":
        """The project, branch and working tree where the program works, if any."""
        return self._find_place()

    def without_shared(self) -> Self:
        """Return a copy of this object that reads only its own namespace."""
        twin = self._twin()
        twin._raw_lookup = twin._scratchpads.lookup = self._raw_lookup.own
        return twin

    def _twin(self) -> Self:
        """Return another object that uses the same open store but doesn't close it."""
        _ = self._store  # created here, so that its changes reach this object's scratchpads
        twin = copy.copy(self)
        twin._scratchpads = copy.copy(self._scratchpads)
        twin._owns_store = twin._scratchpads.owns_store = False
        return twin

    # --- writing ---

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
        anchors: Sequence[str] | None = None,
        valid_until: Moment | None = None,
        recheck: str | int | None = None,
    ) -> "Created":
        """Store a memory, unless the same one is already stored.

        Args:
            content: The text, at most 1 MiB.
            tags: Arbitrary key-value pairs; `agent`, `personality`, `project`, `type` and `global`
                have special meanings.
            decay: `stable` (the default), `contextual` or `reinforceable`.
            key: A stable key such as `user/editor`, unique within a project. If a memory already
                has the key, it gets a new version, which keeps every value that is not given; see
                `update`.
            supersedes: The id of a memory in the same namespace that this one replaces.
            confidence: The writer's confidence, 0 to 1; 1.0 by default.
            created_at: When it was first written, for imports; now by default.
            pending: Keep the memory for review (see `review`). The key and `supersedes` take effect
                when it is accepted. Memories from the channel `hook` are always reviewed, except
                session notes, whose type is `session` and whose key begins with `session/`.
                Recall leaves out both session notes and memories that await review.
            source: The conversation, or the turn (such as `standup#3`), that it was made from.
                `forget_turns` can erase the memory together with its source.
            force: Store without a comparison: nothing is merged, refused or linked.
            redact: Remove secrets and the text in `<private>` tags; see the setting `redact`.
            within: Tag keys that distinguish memories, as `project` always does. The same text
                is stored again if such a tag has a different value.
            anchors: The evidence that it is true, such as `docker-compose.yml::5433`; see
                `anchors.grammar`. Each anchor must hold now in the project's working tree. If None,
                anchors are found in the content; an empty list adds none.
            valid_until: When it stops being true; a date means the end of that day.
            recheck: The time span after which it should be confirmed, such as "90d".

        Returns:
            The result. The same text in the same namespace and project is not stored again.
            Instead, anything new, such as tags, is merged into the existing memory: see `merged`
            and `reinforced`. A very similar text is refused unless it differs in a number, a date,
            a name or a negation: see `duplicates`.

        Raises:
            InvalidInput: A value is invalid; nothing was stored.
            NotFound: There is no memory with the id in `supersedes`.
        """
        draft = Draft(
            content, tags or {}, decay, key, supersedes, confidence, created_at, pending, source,
            anchors=anchors, valid_until=valid_until, recheck=recheck,
        )  # fmt: skip
        return self.create_many([draft], force=force, redact=redact, within=within)[0]

    def create_many(
        self,
        drafts: Iterable[Draft | str],
        *,
        force: bool = False,
        redact: bool = True,
        within: Sequence[str] = (),
    ) -> "list[Created]":
        """Store many memories as `create` does, but faster, since they share transactions.

        In a server, the transaction may be shared with other clients (`server.group_commit`).

        Args:
            drafts: Drafts, or texts.
            force: Store without a comparison: nothing is merged, refused or linked.
            redact: Remove secrets; see `create`.
            within: Tag keys that distinguish memories; see `create`.

        Returns:
            The results, in order.

        Raises:
            InvalidInput: A draft is invalid; nothing was stored.
        """
        from memories.write.create import write_batches

        if isinstance(drafts, str) or not isinstance(drafts, Iterable):
            raise InvalidInput(
                "create_many takes a list of drafts or texts; for one text use create"
            )
        all_drafts = [draft if isinstance(draft, Draft) else Draft(draft) for draft in drafts]
        return write_batches(self.prepare(all_drafts, force=force, redact=redact, within=within))

    def prepare(
        self,
        drafts: Iterable[Draft],
        *,
        force: bool = False,
        redact: bool = True,
        within: Sequence[str] = (),
    ) -> "Iterator[Batch]":
        """Yield the batches for `create_many`, each of which `Batch.write` stores in one
        transaction. Captured drafts are marked as pending; all drafts get the project and are
        redacted, checked and embedded.
        """
        from memories.write.create import prepare_batches

        if self._channel == "hook":  # captured memories must be reviewed
            drafts = [
                replace(draft, pending=not is_session_note(draft.tags, draft.key))
                for draft in drafts
            ]
        placed = [self._lookup.with_project(draft, self._place()) for draft in drafts]
        ctx = self._ctx(force=force, redact=redact)._replace(
            within=tuple(validate.tag_keys(within))
        )
        return prepare_batches(ctx, placed)

    @property
    def review(self) -> "Review":
        """The memories in your own namespace that await review, with methods to accept or reject
        them.
        """
        from memories.write.review import Review

        def note(name: str) -> AbstractContextManager[dict[str, Any]]:
            return noting(self.config, name, **self.event_figures())

        return Review(self._ctx(), self._origin(), note)

    def update(  # noqa: PLR0913 - the fields of a version, and its conditions
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
        anchors: Sequence[str] | None = None,
        valid_until: Moment | None = None,
        recheck: str | int | None = None,
    ) -> Memory:
        """Append a new version to a memory.

        Args:
            memory_id: The id, or an unambiguous prefix of 8 or more characters.
            content: The new text; None keeps the old one. If newer memories had corrected this one
                and the new text gives a different value, this memory now corrects the last of them.
            tags: Tags to add or change.
            remove_tags: Tag keys to remove; unknown keys are ignored.
            redact: Remove secrets from the arguments; see `create`.
            not_corrects: The id of a memory that this one was wrongly assumed to correct. Both are
                then considered true. This adds no version.
            if_version: Update only if the latest version still has this number.
            decay: A new decay policy.
            confidence: The writer's new confidence, 0 to 1.
            anchors: New anchors, which replace the old ones; see `create`. If None and the content
                changes, the memory keeps the anchors that still fit, and anchors named in the new
                content are added.
            valid_until: The new time at which it stops being true; "" for no end. None keeps the
                time, unless it has passed and the content changes.
            recheck: The new time span after which it should be confirmed; "" for never.

        Returns:
            The memory. If nothing changes, no version is added.

        Raises:
            NotFound: There is no such memory, or it was deleted.
            RequestError: Another memory has replaced this one.
            Conflict: The latest version isn't `if_version`.
            InvalidInput: A value is invalid, or no change was given.
        """
        from memories.write import change

        draft = Draft(
            "", self._lookup.with_whole_name(tags or {}, self._place()), decay, anchors=anchors,
            confidence=confidence, valid_until=valid_until, recheck=recheck,
        )  # fmt: skip
        redactor = self._redactor(redact)
        changes = change.Update(content, draft, remove_tags, redactor, not_corrects, if_version)
        record = change.update(self._lookup, self.embedder, memory_id, changes, self._now())
        return self.judge([self._memory(record)])[0]

    @property
    def truth(self) -> "Truth":
        """Methods that verify whether memories are still true, and confirm them."""
        from memories.write.truth import Truth

        return Truth(self._ctx(), self.judge)

    def reinforce(self, memory_id: str) -> Memory:
        """Reset a reinforceable memory's decay.

        Raises:
            NotFound: There is no such memory, or it was deleted.
            RequestError: Another memory has replaced this one, or only another namespace has it.
            NotReinforceable: The decay policy is not `reinforceable`.
        """
        from memories.write import change

        return self._memory(change.reinforce(self._lookup, memory_id, self._now()))

    def delete(self, memory_id: str) -> Memory:
        """Delete a memory, so that it is no longer found. `restore` brings it back.

        Returns:
            The memory, with the links that it had before.

        Raises:
            NotFound: There is no such memory, or it was already deleted.
        """
        from memories.write.change import delete

        return replace(self._memory(delete(self._lookup, memory_id, self._now())), deleted=True)

    def restore(self, memory_id: str, *, version: int | None = None) -> Memory:
        """Restore a deleted or superseded memory by adding a version with the same content.

        Args:
            memory_id: The id, or an unambiguous prefix of 8 or more characters.
            version: For a current memory, restore the text, tags, decay and confidence of this
                earlier version.

        Raises:
            NotFound: There is no such memory or version.
            RequestError: The memory is neither deleted nor superseded (with `version`, it isn't
                current), or another memory now has its key.
        """
        from memories.write import change, similar

        lookup, embedder, now = self._lookup, self.embedder, self._now()
        if version is None:
            restored = change.restore(lookup, embedder, memory_id, now)
            return similar.to_memory_with_twin(self._ctx(), restored)
        return self._memory(change.restore_version(lookup, embedder, memory_id, version, now))

    def forget(self, memory_id: str) -> Forgotten:
        """Erase a memory with all its versions, leaving no byte of it in the store. This can't be
        undone.

        Proposals by `Truth.tidy` about it, and reviewed memories that were merged into it, are
        erased too. A damaged memory can also be erased.

        Raises:
            NotFound: There is no such memory, not even a deleted one.
            ErasureUnfinished: The memory was erased, but something failed afterwards, for example
                because another process is reading the store. Some bytes may still be in the files.
                Forget it again to finish the erasure.
        """
        from memories.write.forget import finish_erasure, forget_memory

        try:
            group = self._lookup.resolve_own_id(memory_id)
        except InvalidInput:
            raise
        except RequestError as exc:
            if not isinstance(exc, NotFound):
                entries = self.log(memory_id, action="forget", limit=validate.MAX_LIMIT)
                if all(entry.namespace != self.namespace for entry in entries):
                    raise
            finished = finish_erasure(self._store, parse_id(memory_id), self._lookup.own.where())
            if finished is None:
                raise
            return finished
        return forget_memory(self._lookup, group, self._clock())

    def move(self, memory_ids: Sequence[str], to: str) -> "MovedMemories":
        """Move memories from your own namespace to another one.

        The memories keep their ids, versions, keys and times. They are copied in one transaction,
        and only then erased in your namespace. If the move is interrupted, they are in both
        namespaces, but deleted in your own; moving them again finishes the move. Moving them back
        undoes it.

        Args:
            memory_ids: Ids, or unambiguous prefixes of 8 or more characters, of memories in any
                state; an empty list does nothing.
            to: The target namespace.

        Raises:
            NotFound: One of the memories doesn't exist; nothing was moved.
            RequestError: A memory is in a different namespace, or the target namespace has another
                memory with its id or key; nothing was moved.
            InvalidInput: The target namespace is invalid, or is your own.
        """
        from memories.transfer.moves import move

        if isinstance(memory_ids, str) or not isinstance(memory_ids, Iterable):
            raise InvalidInput("move takes a list of ids; put a single id in a list")
        self.flush_accesses()
        lookup = self._lookup._replace(store=self._store.keeping_origins("move"))
        return move(lookup, self.embedder, memory_ids, to, self.config, self._now())

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a block as one transaction: all its writes are stored, or none.

        Other writers wait until the transaction ends. It includes all writes of its thread, so
        don't await in the block: other tasks' writes would become part of it. In stores without
        transactions (Chroma, Qdrant), only single writes are atomic.
        """
        self._open_transactions += 1
        try:
            with self._store.transaction():
                yield
        finally:
            self._open_transactions -= 1
        self.flush_accesses()

    # --- changing many ---

    def delete_where(self, where: str, *, dry_run: bool = False) -> "Affected":
        """Delete all memories in your own namespace that match an expression.

        All memories get the same deletion time, so a rollback with `undo_to` and `undo_where` from
        the result restores exactly these memories. Up to 10,000 memories are deleted in one
        transaction. If a larger run is interrupted, only some are deleted; run it again to delete
        the rest.

        Args:
            where: The expression, such as "by = claude-code and updated > 7d". Only current
                memories are deleted.
            dry_run: Change nothing; only return what would change.

        Raises:
            InvalidInput: The expression is malformed; the message gives the position.
        """
        from memories.write import bulk

        selector = self._selector(validate.text_of(where, "where"))
        return bulk.delete(self._lookup, selector, dry_run=dry_run)

    def forget_where(
        self, where: str, *, scope: str = "memories", dry_run: bool = False
    ) -> "Affected":
        """Erase all memories or turns in your own namespace that match an expression. This can't be
        undone.

        Args:
            where: The expression. It is applied to the latest version of each memory, in any state.
                All versions of a matching memory are erased. If the expression is just
                "conversation = NAME", the conversation's queued and captured turns are erased too.
            scope: `memories`, `history` (turns) or `all`.
            dry_run: Change nothing; only return what would change.

        Raises:
            InvalidInput: The expression is malformed, or it uses a name that turns don't have.
            ErasureUnfinished: See `forget`.
        """
        from memories.search.search import collections_of
        from memories.write.forget import forget_selected

        where = validate.text_of(where, "where")
        selectors = [
            self._selector(where, collection, any_state=collection is Collection.MEMORY)
            for collection in collections_of(scope)
        ]
        return forget_selected(self._lookup, selectors, self._waiting(), dry_run=dry_run)

    def tag_where(
        self,
        where: str | None,
        *,
        tags: Mapping[str, str] | None = None,
        remove_tags: Sequence[str] = (),
        rename_tags: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> "Affected":
        """Set, remove or rename tags on memories in your own namespace that match an expression.

        Args:
            where: The expression; None means all memories.
            tags: Tags to set.
            remove_tags: Tag keys to remove.
            rename_tags: Maps old keys to new keys, or old tags to new tags as `key=value`. If a
                memory already has the new key, that key keeps its value.
            dry_run: Change nothing; only return what would change.

        Raises:
            InvalidInput: The expression is malformed, or a tag is invalid.
        """
        from memories.write.bulk import Tagging, retag

        redactor = self.config.redactor()
        new_tags, _ = redactor.pairs(self._lookup.with_whole_name(tags or {}, self._place()))
        renamed, _ = redactor.pairs(rename_tags or {})
        tagging = Tagging(new_tags, remove_tags, renamed)
        return retag(self._lookup, self.embedder, self._selector(where), tagging, dry_run=dry_run)

    def rollback(
        self, to: Moment, *, where: str | None = None, dry_run: bool = False
    ) -> "Affected":
        """Roll back the memories in your own namespace to a given time, with new versions and
        deletions.

        Memories created later are deleted, changed memories get a version with the old content, and
        deleted or replaced memories are restored. Turns never change, so they are kept. To undo
        the rollback, roll back to `undo_to` in the result. Up to 10,000 memories change in one
        transaction. If a larger run is interrupted, only some are rolled back; run it again for
        the rest.

        Args:
            to: The time, not in the future; a date means the beginning of that day.
            where: Only memories that match this expression: in any version written since then or,
                if there is none, in the latest version.
            dry_run: Change nothing; only return what would change.

        Raises:
            InvalidInput: The time or the expression is invalid.
        """
        from memories.write.rollback import Rollback

        now = self._now()
        selector = None if where is None else self._selector(where, any_state=True, now=now)
        lookup = self._lookup._replace(store=self._store.keeping_origins())
        return Rollback.of(lookup, to, now, selector).run(self.embedder, dry_run=dry_run)

    # --- conversations ---

    def add_turns(
        self, conversation_id: str, turns: "Iterable[TurnDraft | str]", *, redact: bool = True
    ) -> "list[Turn]":
        """Append turns to a conversation in one transaction; stored turns never change.

        Args:
            conversation_id: The conversation, at most 256 characters.
            turns: Drafts, or texts said by the user, in order; an empty list does nothing.
            redact: Remove secrets; see `create`.

        Returns:
            The turns, each with a `status`. If the conversation already has a turn with the same
            `message_id`, that turn is returned. Its status is `known` if the content is the same.
            If it isn't, the new message is `refused`, and `reason` says why; the other turns are
            stored.

        Raises:
            InvalidInput: A value is invalid; nothing was stored.
            RequestError: The conversation is in a different namespace; nothing was stored.
        """
        from memories.read.turns import TurnDraft
        from memories.write.turns import append

        if isinstance(turns, str) or not isinstance(turns, Iterable):
            raise InvalidInput(
                "add_turns takes a list of turns or texts; put a single one in a list"
            )
        drafts = [turn if isinstance(turn, TurnDraft) else TurnDraft(turn) for turn in turns]
        lookup, place = self._lookup, self._place()
        drafts = [replace(draft, tags=lookup.in_project(draft.tags, place)) for draft in drafts]
        target = (self._lookup.readable, conversation_id)
        redactor = self._redactor(redact)
        return append(self._store, self.embedder, target, drafts, self._now(), redactor)

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
        """Set the title, the user and the tags of a conversation.

        Args:
            conversation_id: A conversation in your own namespace.
            title: The title, one line of at most 256 characters; empty to remove it, None to keep
                it.
            user: The user in the conversation, one line; empty to remove it, None to keep it.
            tags: Tags to add or change.
            remove_tags: Tag keys to remove; unknown keys are ignored.
            redact: Remove secrets; see `create`.

        Raises:
            NotFound: There is no such conversation.
            RequestError: Only another namespace has the conversation.
            InvalidInput: A value is invalid, or no change was given.
        """
        from memories.write.turns import Naming

        tags = self._lookup.with_whole_name(tags or {}, self._place())
        naming = Naming(title, user, tags, remove_tags).check(self._redactor(redact))
        return naming.apply(self._store, self._lookup.readable, conversation_id)

    def forget_turns(
        self,
        conversation_id: str,
        *,
        index: int | None = None,
        with_memories: bool = False,
        dry_run: bool = False,
    ) -> Forgotten:
        """Erase a conversation or one of its turns, leaving no byte of it in the store.

        This can't be undone.

        With an entire conversation, its waiting turns are erased too: queued turns (see
        `MemoryGateway`), and texts captured by hooks.

        Args:
            conversation_id: A conversation in your own namespace.
            index: Erase only this turn; the others keep their indexes.
            with_memories: Also erase your memories with a version that was made from these turns;
                see `source` in `create`.
            dry_run: Erase nothing; only return how much would be erased.

        Raises:
            NotFound: There is no such conversation or turn.
            RequestError: Only another namespace has the conversation.
            ErasureUnfinished: See `forget`.
        """
        from memories.write import forget

        turns = forget.Turns(self._store, self._lookup.readable, conversation_id, index)
        if not with_memories:
            return turns.forget(self._waiting(), dry_run=dry_run)
        return forget.forget_with_turns(turns, self._waiting(), self._now(), dry_run=dry_run)

    def tail_turns(
        self, conversation_id: str, *, limit: int | None = None, **filters: "Unpack[TurnFilters]"
    ) -> "list[Turn]":
        """Return a conversation's last turns, oldest first; empty if there is no such
        conversation.

        Queued turns come last and have `waiting` set; see `waiting_turns`.

        Args:
            conversation_id: The conversation. Your own conversation takes precedence over one in
                `shared`.
            limit: The maximum number, up to 1,000; by default the setting `default_limit`.
            **filters: See `TurnFilters`.

        Raises:
            InvalidInput: A value is invalid.
        """
        from memories.read.turns import tail

        turn_filter, limit = self._turns_of(conversation_id, filters), self._limit(limit)
        stored = tail(self._raw_store, turn_filter, limit)
        return [*stored, *self._waiting_in(turn_filter, conversation_id)][-limit:]

    def turns(
        self,
        conversation_id: str,
        *,
        start: int = 0,
        limit: int | None = None,
        **filters: "Unpack[TurnFilters]",
    ) -> "list[Turn]":
        """Return turns in a conversation, starting at an index, oldest first.

        Args:
            conversation_id: The conversation; see `tail_turns`.
            start: The index of the first turn.
            limit: The maximum number, up to 1,000; by default the setting `default_limit`.
            **filters: See `TurnFilters`.

        Raises:
            InvalidInput: A value is invalid.
        """
        from memories.read.turns import page

        turn_filter = self._turns_of(conversation_id, filters)
        start, limit = validate.whole_number(start, "start"), self._limit(limit)
        stored = page(self._raw_store, turn_filter, start, limit)
        if len(stored) == limit:
            return stored
        waiting = self._waiting_in(turn_filter, conversation_id)
        return [*stored, *(turn for turn in waiting if turn.index >= start)][:limit]

    def waiting_turns(self, conversation_id: str | None = None) -> "list[Turn]":
        """Return the queued turns, oldest first: those added while the store wasn't responding.

        This reads only the queue on disk (see `MemoryGateway`), so it works even while the store is
        down.

        Args:
            conversation_id: Return only turns of this conversation.
        """
        from memories.write.turn_queue import waiting_turns

        return waiting_turns(self._waiting().queue, self.namespace, conversation_id)

    def conversations(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        **filters: "Unpack[ConversationFilters]",
    ) -> "list[Conversation]":
        """Return the conversations on a page of `list_conversations`, without the next cursor.

        Args:
            limit: The maximum number, up to 1,000; by default the setting `default_limit`.
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
        """Return a page of conversations with their titles, turn counts and dates, most recent
        first.

        Args:
            limit: The maximum number, up to 1,000; by default the setting `default_limit`.
            cursor: `next_cursor` of the previous page.
            **filters: See `ConversationFilters`.

        Raises:
            InvalidInput: A value is invalid.
        """
        from memories.read.conversations import page

        is_first = cursor is None and not filters
        limit, namespaces = self._limit(limit), self._raw_lookup.readable
        stored = page(self._raw_store, namespaces, filters, self._now(), limit, cursor)
        waiting = [] if filters.get("as_of") else self.waiting_turns()
        if not waiting:
            return stored
        from memories.write.turn_queue import select_unstored, with_waiting

        return with_waiting(stored, select_unstored(self._raw_store, waiting), first=is_first)

    def conversation(self, conversation_id: str, *, as_of: Moment | None = None) -> "Conversation":
        """Return a conversation with its title, turn count and dates.

        Args:
            conversation_id: The conversation; see `tail_turns`.
            as_of: Return it as it was at this time.

        Raises:
            NotFound: There is no such conversation or, with `as_of`, it did not exist yet.
        """
        from memories.read.conversations import find
        from memories.read.turns import conversation_id as checked_id

        end = self._past(as_of)
        return find(self._raw_store, self._raw_lookup.readable, checked_id(conversation_id), end)

    # --- reading ---

    def get(self, memory_id: str, *, as_of: Moment | None = None) -> Memory:
        """Return a memory.

        Args:
            memory_id: The id, or an unambiguous prefix of 8 or more characters.
            as_of: Return it as it was at this time: a datetime with a time zone, or text such as
                "2026-05-01", which means the end of that day.

        Raises:
            NotFound: There is no such memory, or it was deleted. With `as_of`: there was none at
                that time.
            AmbiguousId: The prefix matches several memories.
        """
        moment = self._past(as_of)
        if moment is not None:
            return self._memory(self._raw_lookup.find_at(memory_id, moment), moment)
        latest = self._raw_lookup.find(memory_id)
        self._count_access([latest])
        return self.judge([self._memory(latest)])[0]

    def id_of_key(self, key: str, *, project: str | Sequence[str] | None = None) -> str:
        """Return the id of the memory with a key.

        Args:
            key: The key, such as `user/editor`.
            project: The memory's project, or its names in the order to search them, since each
                project has its own keys. By default, your current project is searched first, then
                the memories without a project.

        Raises:
            NotFound: No readable memory has the key. Your own namespace takes precedence over
                `shared`.
        """
        place = None if project is not None else self._place()
        names = (place.project, None) if place else self._raw_lookup.names_of_project(project)
        return self._raw_lookup.id_of_key(key, names or (None,), self.config)

    def short_ids(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the shortest unambiguous prefix of each id, at least 8 characters long."""
        return self._raw_lookup.short_ids(ids, self._now())

    def ids(self, prefix: str, *, limit: int | None = None) -> "list[str]":
        """Return the ids that begin with a prefix, in order of creation, of memories in any state.

        Args:
            prefix: The prefix, 8 or more characters.
            limit: The maximum number, up to 1,000; by default the setting `default_limit`.

        Raises:
            InvalidInput: No id can begin with this prefix.
        """
        return self._raw_lookup.ids(prefix, self._limit(limit))

    def namespaces(self, *, as_of: Moment | None = None) -> "tuple[NamespaceCounts, ...]":
        """Return the names and sizes of all namespaces in the store, sorted by name.

        Args:
            as_of: Return the namespaces that were not empty at this time, with their sizes then.
        """
        from memories.read.listing import count_namespaces

        return count_namespaces(self._raw_lookup, self._past(as_of))

    def history(self, memory_id: str, *, as_of: Moment | None = None) -> History:
        """Return every version of a memory, oldest first; deleted memories are found too.

        Args:
            memory_id: The id, or an unambiguous prefix of 8 or more characters.
            as_of: Return it as it was at this time, without later versions.

        Raises:
            NotFound: There is no such memory or, with `as_of`, it did not exist yet.
        """
        moment = self._past(as_of)
        records = self._raw_lookup.versions(memory_id, moment)
        return versions.to_history(records, self._memory(records[-1], moment))

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
            written_by: Only memories whose latest version is by this writer, a client or an
                operating-system user: see `Origin.by`.
            trust: Only memories whose latest version has this trust; see `Origin`.
            since: Only memories last written at this time or later: a datetime with a time zone, or
                text such as "7d".
            until: Only memories last written at this time or earlier.
            as_of: List the memories that were current at this time.
            deleted: List deleted memories instead.
            pending: List memories that await review instead; see `review`.
            where: An expression such as "type = fact and not by = ann".
            project: Only memories of this project, under any of its names, and global ones, which
                have the tag `global`.
            sort: `created` (the default), `updated`, `reinforced`, `confidence`, `accesses` or
                `version`, newest or largest first; or `key`, in alphabetical order. Every order
                except `created` requires reading all memories.
            reverse: Reverse the order.
            limit: The maximum number, up to 1,000.
            cursor: `next_cursor` of the previous page.
        """
        if [bool(deleted), bool(pending), as_of is not None].count(True) > 1:
            raise InvalidInput(
                "only one of deleted, pending and as_of can be given; leave the others out"
            )
        from memories.read.listing import Listing

        limit, now = self._limit(limit), self._now()
        judged_at = to_moment(as_of, now, end_of_day=True) or now
        selector = None
        if where is not None:
            selector = self._selector(where, now=judged_at, verdicts=as_of is None)
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
        listing = Listing(filters, deleted, pending, selector, project, sort, reverse)
        half_life_hours = self.config.decay_half_life_hours
        records, next_cursor = listing.page(self._raw_lookup, limit, cursor, now, half_life_hours)
        memories = [self._memory(record, judged_at) for record in records]
        if as_of is None:
            return Page(self.judge(memories), next_cursor)
        return Page(tuple(memories), next_cursor)

    def search(
        self, query: str, *, offline: bool = False, **filters: "Unpack[SearchFilters]"
    ) -> "tuple[Hit, ...]":
        """Return the memories, or with `scope` the turns, that answer a query, best first.

        Args:
            query: The question, in any script, at most 4,096 characters.
            offline: Search the scratchpad if the store can't be reached, or takes longer than the
                setting `memory_timeout_seconds`. `explain` reports which of them answered.
            **filters: See `SearchFilters`.

        Raises:
            InvalidInput: A value is invalid.
            EmbedderMismatch: The store's vectors come from another model.
            StoreError: The store can't be reached, and the scratchpad can't or may not answer.
        """
        return self._search_or_fall_back(query, filters, offline=offline).hits

    def explain(
        self, query: str, *, offline: bool = False, **filters: "Unpack[SearchFilters]"
    ) -> "Explanation":
        """Search as `search` does, but return every candidate with the numbers behind its score
        and, if it was dropped, the reason.
        """
        return self._search_or_fall_back(query, filters, offline=offline)

    def judge(self, memories: "Sequence[Memory]") -> "tuple[Memory, ...]":
        """Return memories with their verdicts, in the same order; see `judge_in`."""
        judge = self._raw_lookup.judge
        return tuple(memories if judge is None else judge.judge(memories, self._now()))

    def _judge_hits(self, explanation: "Explanation", filters: "SearchFilters") -> "Explanation":
        """Return a search's result with verdicts on its hits; doubtful hits come last."""
        if self._raw_lookup.judge is None or filters.get("as_of") is not None:
            return explanation
        from memories.search.results import with_verdicts

        return explanation._replace(hits=with_verdicts(explanation.hits, self.judge))

    def _search_or_fall_back(
        self, query: str, filters: "SearchFilters", *, offline: bool
    ) -> "Explanation":
        search = functools.partial(self._search_tier, query, filters)
        if not offline:
            return self._judge_hits(search(), filters)
        fallback = functools.partial(self._search_offline, query, filters)
        explanation, error = self.ask_store(search, fallback)
        if error is not None:
            explanation = explanation._replace(tier="hot", error=error)
        return self._judge_hits(explanation, filters)

    def _search_tier(self, query: str, filters: "SearchFilters") -> "Explanation":
        """Search the scratchpad, the store, or both, depending on the filter `tier`."""
        from memories.search.filters import only_in_store, tier_of

        tier = tier_of(filters)
        if tier == "hot" or (tier == "auto" and not only_in_store(filters)):
            matches = self._scratchpads.search(query, filters)
            if tier == "hot" or matches.is_enough:
                return matches.explanation
        return self._search_store(query, filters).explanation()._replace(tier=tier)

    def _search_offline(self, query: str, filters: "SearchFilters") -> "Explanation | None":
        """Search the scratchpads' files; return None if only the store can answer."""
        try:
            return self._scratchpads.search(query, filters, offline=True).explanation
        except InvalidInput:
            return None

    def _search_store(
        self, query: str, filters: "SearchFilters", *, counts: bool = True
    ) -> "SearchResult":
        from memories.search.search import search

        self._flush_before(filters.get("where"))
        result = search(self._raw_lookup, self.embedder, query, filters, self.config, self._now())
        if counts and filters.get("as_of") is None and not filters.get("pending"):
            self.count_reads(result.memory_records())
        return result

    def find_candidates(self, query: str, **filters: "Unpack[SearchFilters]") -> "SearchResult":
        """Search the store, and return all candidates with their features, without counting reads.

        The caller decides which candidates are hits, and then calls `count_reads`.
        """
        return self._search_store(query, filters, counts=False)

    def count_reads(self, records: "Sequence[Record]") -> None:
        """Count one read of each of these memories."""
        self._count_access(records)
        if records and self.config.count_accesses:
            records = self._accesses.include_waiting(records)
        self._scratchpads.promote(records)
        if self.config.reinforce_on_retrieval:
            from memories.write.change import reset_decay

            reset_decay(self._store, records, self._now())

    def duplicates(
        self, *, where: str | None = None, limit: int | None = None
    ) -> "Iterator[RepeatedMemory]":
        """Yield memories in your own namespace that `create` would refuse because they repeat older
        ones.

        Comparing takes a few milliseconds for each memory. Nothing is changed.

        Args:
            where: Only memories that match this expression. They are compared with all memories.
            limit: The maximum number, up to 1,000; by default the setting `default_limit`.
        """
        from memories.write.similar import find_repeats

        with noting(self.config, "duplicates", **self.event_figures()) as figures:
            repeats = find_repeats(self._ctx(), self._selector(where))
            for number, repeat in enumerate(islice(repeats, self._limit(limit)), 1):
                figures["results"] = number
                yield repeat

    # --- the scratchpad ---

    def pin(self, memory_id: str) -> Memory:
        """Pin a memory to the scratchpad. This adds a version with the same content.

        Raises:
            NotFound: There is no such memory, or it was deleted.
            RequestError: Another memory has replaced this one, it is in a different namespace, or
                50 memories are already pinned.
        """
        return self._pin(memory_id, pinned=True)

    def unpin(self, memory_id: str) -> Memory:
        """Unpin a memory from the scratchpad; see `pin`."""
        return self._pin(memory_id, pinned=False)

    def _pin(self, memory_id: str, *, pinned: bool) -> Memory:
        from memories.write import change

        now = self._clock()
        return self._memory(change.pin(self._lookup, self.embedder, memory_id, now, pinned=pinned))

    def scratchpad(self, *, refresh: bool = False, rebuild: bool = False) -> "Scratchpad":
        """Return the hot tier: the pinned, recent and frequently used memories of your own
        namespace and `shared`.

        Edits to the file are applied first. The store is opened only if a file is outdated.

        Args:
            refresh: Update the file of your namespace even if it seems up to date.
            rebuild: Choose again from all memories in the namespace, including those that a person
                has removed from the file.

        Raises:
            InvalidInput: With `rebuild`, the file isn't safe to read, for example because it is a
                symbolic link.
        """
        return self._scratchpads.show(refresh=refresh, rebuild=rebuild)

    def scratchpad_at_hand(self) -> "Scratchpad | None":
        """Return the hot tier; None if only the store can bring it up to date."""
        return self._scratchpads.at_hand()

    def search_scratchpad(
        self, query: str, *, offline: bool = False, **filters: "Unpack[SearchFilters]"
    ) -> "ScratchpadMatches":
        """Search the hot tier by words, without the store or a model.

        Args:
            query: The question.
            offline: Read the files without updating them, because the store can't be reached.
            **filters: As for `search`, except filters that only a store supports.

        Raises:
            InvalidInput: A value is invalid, a filter works only in a store, or a file is
                unreadable.
        """
        matches = self._scratchpads.search(query, filters, offline=offline)
        return matches._replace(explanation=self._judge_hits(matches.explanation, filters))

    def apply_edits(self) -> tuple[str, ...]:
        """Apply the edits made to the scratchpad's file; return the outcome of each.

        If nothing was edited, only the file is read. If the store is read-only, the edits are
        applied later.
        """
        return self._scratchpads.apply_edits()

    def offline(self) -> "Scratchpad | None":
        """Return the contents of the scratchpads' files, even if they mirror another store; None if
        there are none.

        Decaying memories in a file by an earlier version of Memories are left out, since their
        confidence can't be computed from the file.
        """
        return self._scratchpads.offline()

    @property
    def has_scratchpad(self) -> bool:
        """Whether a scratchpad can answer if the store can't be reached."""
        return self._scratchpads.are_there

    def ask_store(
        self, ask: "Callable[[], Answer]", fallback: "Callable[[], Answer | None]"
    ) -> "tuple[Answer, str | None]":
        """Return the store's answer and None, or a fallback and the reason why the store can't be
        reached.

        If there is a scratchpad, the store must answer within the setting `memory_timeout_seconds`.

        Args:
            ask: Asks the store.
            fallback: Answers from the scratchpad, or returns None if the scratchpad can't answer.

        Raises:
            StoreError: The store can't be reached, and there is no fallback.
        """
        if not self.has_scratchpad:
            return ask(), None
        try:
            return self._run_in_time(ask), None
        except StoreError as exc:
            answer = fallback()
            if answer is None:
                raise
            return answer, str(exc)

    def _run_in_time(self, ask: "Callable[[], Answer]") -> "Answer":
        """Return the result of a call that uses the store, limited to `memory_timeout_seconds`."""
        from memories.core.deadline import MemoryTimeout, run_within

        try:
            return run_within(self.config.memory_timeout_seconds, ask)
        except MemoryTimeout as exc:
            self.abandon()
            raise StoreUnreachable(str(exc)) from exc

    def abandon(self) -> None:
        """Make `close` leave the store open, because an abandoned call is still using it."""
        self._owns_store = self._scratchpads.owns_home = self._scratchpads.owns_store = False

    def at_home(self) -> Self:
        """Enable scratchpads for a store that was passed in; their files are in the home folder."""
        self._scratchpads.owns_home = True
        return self

    # --- the whole memory ---

    def log(
        self, memory_id: str | None = None, **filters: "Unpack[LogFilters]"
    ) -> "tuple[LogEntry, ...]":
        """Return entries of the audit log, newest first: who changed what and when, but no content.

        Args:
            memory_id: Only changes to the memory with this id, or this prefix of 8 or more
                characters, even a forgotten one.
            **filters: See `LogFilters`.

        Raises:
            InvalidInput: A value is invalid.
        """
        from memories.transfer.audit import parse_query, read_entries

        query = parse_query(memory_id, filters, self._now())
        query = query._replace(limit=self._limit(filters.get("limit")))
        return tuple(read_entries(self._raw_store, self._raw_lookup.readable, query))

    def verify_log(self, *, against: str | None = None) -> "tuple[LogCheck, ...]":
        """Check the audit log of each readable namespace for changed, removed or moved entries.

        Args:
            against: A hash that an earlier check returned as `head`. Anyone who can write to the
                store can compute valid hashes for a changed log. An earlier hash proves that no
                entry up to it was changed or cut off.

        Raises:
            InvalidInput: `against` isn't a hash.
        """
        from memories.transfer.audit import verify

        return tuple(verify(self._raw_store, self._raw_lookup.readable, against))

    def tags(
        self,
        key: str | None = None,
        *,
        written_by: str | None = None,
        trust: str | None = None,
        as_of: Moment | None = None,
    ) -> dict[str, int]:
        """Return the tag keys in use, or one key's values, with the number of memories for each.

        Args:
            key: Return the values of this key.
            written_by: Count only memories by this client or user; see `list`.
            trust: Count only memories with this trust.
            as_of: Count the memories that were current at this time.
        """
        from memories.read.listing import count_tags

        key = None if key is None else validate.tag_key(key)
        filters = {"written_by": written_by, "trust": trust, "as_of": as_of}
        memory_filter = apply_filters(self._raw_lookup.where(), filters, self._now())
        return count_tags(self._raw_lookup, memory_filter, key)

    def stats(self, *, since: Moment | None = None) -> "Stats":
        """Return usage statistics: operations, their times, and the memories read; see `Stats`.

        Args:
            since: Count only operations and writes from this time on: a datetime with a time zone,
                or text such as "7d".
        """
        from memories.transfer.stats import stats

        self.flush_accesses()
        return stats(self._raw_lookup, self.config, to_moment(since, self._now()))

    def days(self) -> "dict[date, int]":
        """Return the number of versions written on each UTC day, oldest first. Memories that await
        review are not counted.
        """
        from memories.read.listing import count_days

        return count_days(self._raw_lookup)

    def status(self) -> "Status":
        """Return where memories are stored, how many there are, and any damage found by a quick
        check.
        """
        from memories.read.listing import status

        return status(self._raw_lookup, self.config, self.embedder)

    @property
    def damaged(self) -> Damaged:
        """The damaged records that were left out of responses since the store was opened."""
        return self._raw_store.damaged

    def close(self) -> None:
        """Count the pending reads, and close the store unless it was passed in."""
        if "_accesses" in vars(self) and self._channel not in ("cli", "hook"):
            self.flush_accesses()
        self._scratchpads.flush()
        if self._owns_store:
            self._raw_store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- internals ---

    @functools.cached_property
    def _store(self) -> "LoggedStore":
        """The raw store, wrapped to log every change. The first write creates the wrapper."""
        from memories.stores.logged import LoggedStore

        quota = self.config.namespace_quota
        store = LoggedStore(self._raw_store, self._channel, self._clock, self._origin, quota=quota)
        store.on_change, store.find_copies = self._scratchpads.apply_changes, self._find_copies
        # Threads that make their first writes at the same time share one wrapper.
        shared: LoggedStore = vars(self).setdefault("_store", store)
        return shared

    @property
    def _lookup(self) -> Lookup:
        """The lookup for writes, which uses `_store`; `_raw_lookup` is only for reading."""
        return self._raw_lookup._replace(store=self._store)

    @property
    def embedder(self) -> "Embedder | None":
        """The embedder that was passed in or configured, else the one that made the store's
        vectors. To find out which, the first access opens the store.

        Raises:
            ConfigError: The package that contains this embedder's model is missing.
        """
        return self._embedders.of(self._raw_store)

    def event_figures(self) -> dict[str, str | None]:
        """Return the writer, the channel and the last known project, for `core.events`.

        The project is always the program's own. The project of a memory or a query is never
        recorded, since the memory may be forgotten later.
        """
        return {
            "namespace": self.namespace,
            "agent": self._client[0] if self._client else self.config.identity,
            "channel": self._channel,
            "project": self._last_place.project if self._last_place else None,
        }

    def _place(self) -> "Place | None":
        self._last_place = self._find_place()
        return self._last_place

    def _origin(self) -> "Origin":
        place = self._place()
        branch = place.branch if place else None
        if branch not in self._origins:
            identity = self.config.identity or self.namespace
            clean = branch and self.config.redactor().secrets(branch).text
            self._origins[branch] = origin(self._channel, identity, self._client, clean)
        return self._origins[branch]

    def _find_copies(self) -> tuple[str, ...]:
        from memories.transfer.backup import copies_of

        config = self.config._replace(store=self._url or self.config.store)
        return copies_of(config, owns_home=self._scratchpads.owns_home)

    def _ctx(self, *, force: bool = False, redact: bool = True) -> "WriteContext":
        from memories.write.write_context import WriteContext

        redactor = self._redactor(redact)
        return WriteContext(self._lookup, self.embedder, self._now(), self.config, force, redactor)

    def _redactor(self, redact: bool) -> "Redactor | None":
        return self.config.redactor() if redact else None

    def _selector(
        self,
        expression: str | None,
        collection: Collection = Collection.MEMORY,
        *,
        any_state: bool = False,
        now: datetime | None = None,
        verdicts: bool = False,
    ) -> "Selector":
        """Return the selector for an expression. Only with `verdicts` may it use the name
        `verdict`, since a verdict must not decide what is deleted or forgotten.
        """
        from memories.read import selector

        self._flush_before(expression)
        instant = selector.Instant(
            now or self._now(),
            self.config.decay_half_life_hours,
            self._raw_lookup.judge if verdicts else None,
        )
        if expression is None:
            return selector.select_all(collection, instant)
        return selector.parse(expression, collection, instant, any_state=any_state)

    def _memory(self, record: Record, now: datetime | None = None) -> Memory:
        return versions.to_memory(record, now or self._now(), self.config.decay_half_life_hours)

    def _now(self) -> datetime:
        return from_millis(to_millis(self._clock()))

    def _past(self, as_of: Moment | None) -> datetime | None:
        return to_moment(as_of, self._now(), end_of_day=True)

    def _limit(self, limit: int | None) -> int:
        return self.config.default_limit if limit is None else validate.limit(limit)

    # Reads are counted in batches; see `write.accesses`.

    def flush_accesses(self) -> None:
        """Count the pending reads, unless a transaction is open. Writes and `status` do so too."""
        if self.config.count_accesses and not self._open_transactions:
            self._accesses.flush(self._raw_store)

    def _flush_before(self, expression: str | None) -> None:
        """Count the pending reads if an expression uses access counts."""
        if expression is not None and "access_count" in validate.text_of(expression, "where"):
            self.flush_accesses()

    def _count_access(self, records: Sequence[Record]) -> None:
        if not self.config.count_accesses or not records:
            return
        if self._accesses.add([record.ref for record in records]):
            self.flush_accesses()

    @functools.cached_property
    def _accesses(self) -> "Accesses":
        from memories.write.accesses import Accesses

        url = self._url or self._raw_store.info(self._raw_lookup.where()).url
        return Accesses(self.config.home, url)

    # Turns that could not be stored are kept in a queue; see `write.turn_queue`.

    def _waiting(self) -> "UnstoredTexts":
        from memories.write.captured import UnstoredTexts
        from memories.write.turn_queue import RetryQueue, files_of

        queue = RetryQueue.of_turns(*files_of(self.config, self.namespace))
        return UnstoredTexts(
            queue, self.namespace, self.config if self._scratchpads.owns_home else None
        )

    def _turns_of(self, conversation_id: str, filters: "TurnFilters") -> Filter:
        from memories.read.conversations import narrow_turns
        from memories.read.turns import in_conversation

        all_turns = in_conversation(self._raw_store, self._raw_lookup.readable, conversation_id)
        return narrow_turns(all_turns, filters, self._now())

    def _waiting_in(self, turn_filter: Filter, conversation_id: str) -> "Sequence[Turn]":
        """Return a conversation's queued turns that match a filter, numbered after its stored
        turns.
        """
        from memories.write.turn_queue import number_turns

        return number_turns(self._raw_store, self.waiting_turns(conversation_id), turn_filter)
