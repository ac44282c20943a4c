"""`Memories`: everything that can be done with memories, once, over any store; the command and servers only call it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from memories import validate, versions
from memories.config import Config, load_config
from memories.embedders.protocol import embed_to_store
from memories.errors import AmbiguousId, InvalidInput, NotFound, NotReinforceable, RequestError
from memories.ids import ID_LENGTH, parse_id
from memories.models import SHARED, DecayPolicy, Draft, Forgotten, History, Memory, Moment, Page, Status
from memories.stores import Store, open_store
from memories.stores.records import Collection, Filter, Patch, Record
from memories.times import asked_at, from_millis, mixes_zones, to_millis, to_moment

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.search.search import Explanation, Found, Hit, SearchFilters
    from memories.write.create import Created
    from memories.write.turns import Conversation, Turn, TurnDraft


def _clock() -> datetime:
    return datetime.now(UTC)


class Memories:
    """A memory: statements that are stored, found again by meaning and by word, versioned, and never lost.

    It may be used by many threads, and its store by many processes. It is a context manager; `close` releases what it
    holds. Nothing is opened, and no model loaded, before it is needed.

        with Memories() as memories:
            memories.create("The user prefers Python", tags={"type": "preference"})
            memories.search("which language?")[0].memory.content
    """

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        namespace: str | None = None,
        shared: bool = True,
        embedder: "str | Embedder | None" = None,
        config: Config | None = None,
        clock: Callable[[], datetime] = _clock,
    ) -> None:
        """Prepare a memory; every argument that is left out comes from the settings (`memory config`).

        Args:
            store: A store's URL, or a store; one that is given is not closed by `close`.
            namespace: The pool to write to, and to read from.
            shared: Also read the pool `shared`.
            embedder: The name of an embedder, or one; `none` goes by words alone.
            config: Settings instead of those of the environment and the files.
            clock: Returns the current time, aware.

        Raises:
            ConfigError: A setting is not acceptable.
            InvalidInput: The namespace is not acceptable.
        """
        flags = {
            "store": store if isinstance(store, str) else None,
            "embedder": embedder if isinstance(embedder, str) else None,
        }
        self.config = config or load_config(flags)
        self.namespace = validate.namespace(namespace) if namespace is not None else self.config.namespace
        self._readable = (self.namespace, SHARED) if shared and self.namespace != SHARED else (self.namespace,)
        self._clock = clock
        self._embedder = self._choose_embedder(embedder)
        self._owns_store = store is None or isinstance(store, str)
        if store is None or isinstance(store, str):
            space = self._embedder.space if self._embedder else None
            self._store = open_store(store or self.config.store, space, self.config)
        else:
            self._store = store

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
        force: bool = False,
    ) -> "Created":
        """Store a statement, unless it is there already.

        Args:
            content: The statement, at most 1 MiB.
            tags: Free pairs; `agent`, `personality`, `project`, `type` and `global` are known ones.
            decay: `stable` (the default), `contextual` or `reinforceable`.
            key: An address such as `user/editor`, of its own in each project: a memory that has it gets a new version
                instead, which keeps the tags, decay and confidence that are not given.
            supersedes: The id of a memory that this one replaces; of the same namespace.
            confidence: How sure the writer is, 0 to 1; 1.0 by default.
            created_at: When it was said, for imports; now by default.
            force: Store it whatever is there already.

        Returns:
            What became of it. The same text in the same namespace and project is not stored again, and one that is
            very similar, with no difference in numbers, dates, names or negation, is refused: see `duplicates`.

        Raises:
            InvalidInput: A value is not acceptable; nothing was stored.
            NotFound: There is no memory `supersedes`.
        """
        draft = Draft(content, tags or {}, decay, key, supersedes, confidence, created_at)
        return self.create_many([draft], force=force)[0]

    def create_many(self, drafts: Iterable[Draft | str], *, force: bool = False) -> "list[Created]":
        """Store many statements, each as `create` would; faster, since many go into one transaction.

        Args:
            drafts: Drafts, or contents.
            force: Store all of them whatever is there already.

        Returns:
            What became of each, in order.

        Raises:
            InvalidInput: One is not acceptable; none was stored.
        """
        from memories.write.create import Created, Writer

        if isinstance(drafts, str):
            raise InvalidInput("create_many takes a list of drafts or texts; for one text use create")
        now = self._now()
        writer = Writer(
            self._store,
            self._embedder,
            self.namespace,
            now,
            self._find,
            lambda record: versions.confidence(record, now, self.config.decay_half_life_hours),
            self.config.min_confidence,
            force=force,
        )
        written = writer.write([draft if isinstance(draft, Draft) else Draft(draft) for draft in drafts])
        return [
            Created(
                stored=outcome.stored,
                memory=None if outcome.record is None else self._memory(outcome.record, now),
                duplicates=outcome.duplicates,
                similar_to=outcome.similar_to,
                note=outcome.note,
            )
            for outcome in written
        ]

    def update(
        self,
        memory_id: str,
        content: str | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        remove_tags: Sequence[str] = (),
    ) -> Memory:
        """Append a new version to a memory.

        Args:
            memory_id: Its id, or an unambiguous prefix of 8 or more characters.
            content: What it says now; None leaves it.
            tags: Tags to add or to change.
            remove_tags: Keys of tags to take away; one that it does not have is left out.

        Returns:
            The memory. If nothing changed there is no new version.

        Raises:
            NotFound: There is no such memory, or it was deleted.
            RequestError: Another memory has replaced it.
            InvalidInput: A value is not acceptable, or no change was given.
        """
        if content is None and not tags and not remove_tags:
            raise InvalidInput("nothing to update was given; give new content or a tag")
        text = None if content is None else validate.content(content)
        added = validate.tags(tags or {})
        removed = {validate.tag_key(key) for key in ([remove_tags] if isinstance(remove_tags, str) else remove_tags)}
        expected = text or self._find(memory_id).text
        vectors = self._embed(expected)  # before the transaction, so that nobody waits for the model
        with self._store.transaction():
            latest = self._own(self._find_current(memory_id))
            labels = {key: value for key, value in (dict(latest.labels) | added).items() if key not in removed}
            said = text or latest.text
            if said == latest.text and labels == latest.labels:
                return self._memory(latest)
            changed = versions.next_version(
                latest, "update", self._now(), fresh=said != latest.text, text=said, labels=validate.tags(labels)
            )
            return self._append_version(latest, changed, vectors if said == expected else self._embed(said))

    def reinforce(self, memory_id: str) -> Memory:
        """Reset the decay of a reinforceable memory: its confidence starts anew.

        Raises:
            NotFound: There is no such memory, or it was deleted.
            RequestError: Another memory has replaced it, or it is in a namespace that is only read.
            NotReinforceable: Its policy is another one.
        """
        with self._store.transaction():
            latest = self._own(self._find_current(memory_id))
            policy = versions.decay_policy(latest)
            if policy is DecayPolicy.STABLE:
                raise NotReinforceable("Memory has stable decay policy, reinforcement has no effect")
            if policy is DecayPolicy.CONTEXTUAL:
                raise NotReinforceable("Memory has contextual decay policy, reinforcement is not supported")
            self._reinforce([latest], self._now())
            return self._memory(self._find(latest.ref.group))

    def delete(self, memory_id: str) -> Memory:
        """Delete a memory softly: it is no longer found, and `restore` brings it back.

        Raises:
            NotFound: There is no such memory, or it was deleted already.
        """
        with self._store.transaction():
            latest = self._own(self._find(memory_id))
            patch = versions.ended(latest, latest.ended_at or self._now(), "delete")
            self._store.patch([patch])
        return self._memory(latest._replace(ended_at=patch.ended_at, ended_by="delete"))

    def restore(self, memory_id: str) -> Memory:
        """Bring a deleted or superseded memory back, as a new version that says the same.

        Raises:
            NotFound: There is no such memory.
            RequestError: It is neither deleted nor superseded, or another memory has its key now.
        """
        known = self._find(memory_id, deleted=True)
        vectors = self._embed(known.text)
        with self._store.transaction():
            latest = self._own(self._find(known.ref.group, deleted=True))
            if latest.ended_at is None:
                raise RequestError("Memory is not deleted, there is nothing to restore")
            if latest.key is not None and self._by_key(latest.key, latest.ref.namespace):
                key = versions.plain_key(latest.key)
                raise RequestError(f'another memory has the key "{key}" now; delete or update that one first')
            restored = versions.next_version(latest, "restore", self._now(), fresh=False)
            return self._append_version(
                latest, restored, vectors if latest.text == known.text else self._embed(latest.text)
            )

    def forget(self, memory_id: str) -> Forgotten:
        """Remove a memory for good, with all its versions: no byte of it stays in the store. Nothing brings it back.

        Raises:
            NotFound: There is no such memory; deleted ones are found.
            StoreBusy: Another process reads the store, so that bytes are still in its files. The memory is gone all the
                same, and forgetting it again finishes the work.
        """
        from memories.write import forget as forgetting

        try:
            group = self._own(self._find(memory_id, deleted=True)).ref.group
        except NotFound:
            finished = forgetting.finish(self._store, parse_id(memory_id), self._where())
            if finished is None:
                raise
            return finished
        return forgetting.memory(self._store, self._where(state="any", group=group))

    def add_turns(self, conversation_id: str, turns: "Iterable[TurnDraft | str]") -> "list[Turn]":
        """Append what was said to a conversation, in one step; what is there is never changed.

        Args:
            conversation_id: Its name, at most 256 characters.
            turns: Drafts, or contents said by the user, in order.

        Returns:
            The turns. One whose `message_id` is in the conversation already is returned as it is there.

        Raises:
            InvalidInput: A value is not acceptable; nothing was stored.
        """
        from memories.write.turns import TurnDraft, append

        if isinstance(turns, str):
            raise InvalidInput("add_turns takes a list of turns or texts; put a single one in a list")
        drafts = [turn if isinstance(turn, TurnDraft) else TurnDraft(turn) for turn in turns]
        return append(self._store, self._embedder, (self.namespace, conversation_id), drafts, self._now())

    def forget_turns(self, conversation_id: str, *, index: int | None = None) -> Forgotten:
        """Remove a conversation for good, or one of its turns: no byte of it stays in the store.

        With a conversation go the turns that wait to be stored in it; see `MemoryGateway`.

        Args:
            conversation_id: Its name, in your own namespace.
            index: The index of the one turn to remove; the others keep theirs.

        Raises:
            NotFound: There is no such conversation or turn.
            StoreBusy: Another process reads the store, so that bytes are still in its files. The turns are gone all the
                same; forgetting anything finishes the work.
        """
        from memories.write import forget as forgetting
        from memories.write.queue import RetryQueue, files_of

        if index is not None:
            return forgetting.turn(self._store, self.namespace, conversation_id, index)
        queue = RetryQueue.of_turns(*files_of(self.config, self.namespace))
        return forgetting.conversation(self._store, self.namespace, conversation_id, queue)

    # --- reading ---------------------------------------------------------------------------------------------------

    def tail_turns(self, conversation_id: str, *, limit: int | None = None) -> "list[Turn]":
        """Return the last turns of a conversation, oldest first; none if there is no such conversation.

        Args:
            conversation_id: Its name; where your namespace and the shared one both have it, yours.
            limit: How many, at most 1,000; by default the setting `default_limit`.
        """
        from memories.write.turns import tail

        return tail(self._store, self._readable, conversation_id, self._limit(limit))

    def turns(self, conversation_id: str, *, start: int = 0, limit: int | None = None) -> "list[Turn]":
        """Return the turns of a conversation from an index on, oldest first; none if there are none.

        Args:
            conversation_id: Its name; see `tail_turns`.
            start: The index of the first one.
            limit: How many, at most 1,000; by default the setting `default_limit`.
        """
        from memories.write.turns import page

        return page(self._store, self._readable, conversation_id, validate.index(start), self._limit(limit))

    def conversations(self, *, limit: int | None = None) -> "list[Conversation]":
        """Return the conversations with their numbers of turns and their dates, the newest first.

        Args:
            limit: How many, at most 1,000; by default the setting `default_limit`.
        """
        from memories.write.turns import listing

        return listing(self._store, self._readable, self._limit(limit))

    def get(self, memory_id: str) -> Memory:
        """Return a memory.

        Args:
            memory_id: Its id, or an unambiguous prefix of 8 or more characters.

        Raises:
            NotFound: There is no such memory, or it was deleted.
            AmbiguousId: The prefix fits several.
        """
        latest = self._find(memory_id)
        self._count_access([latest])
        return self._memory(latest)

    def history(self, memory_id: str) -> History:
        """Return every version of a memory, oldest first; also of a deleted one.

        Raises:
            NotFound: There is no such memory.
        """
        latest = self._find(memory_id, deleted=True)
        records = self._store.scan(self._where(state="any", group=latest.ref.group), limit=1_000_000)
        memory = self._memory(latest)
        return History(memory.id, tuple(map(versions.to_version, records)), memory.supersedes, memory.superseded_by)

    def list(  # noqa: PLR0913 - the same filters as search
        self,
        *,
        tags: Mapping[str, str] | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        as_of: Moment | None = None,
        deleted: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        """Return a page of memories, newest first.

        Args:
            tags: Pairs that all must have.
            since: Last written at this time or later; an aware datetime, or text as `parse_time` reads it.
            until: Last written at this time or earlier.
            as_of: What was current at this time.
            deleted: The deleted ones instead.
            limit: How many, at most 1,000.
            cursor: `next_cursor` of the page before.
        """
        if deleted and as_of is not None:
            raise InvalidInput("deleted and as_of can't be combined; leave one out")
        limit = self._limit(limit)
        where = self._filter(tags, since, until, as_of)
        if deleted:
            where = where._replace(state="ended", ended_by="delete")
        after = None if cursor is None else _parse_cursor(cursor)
        records = self._store.scan(where, limit=limit + 1, after=after, newest_first=True)
        now = self._now() if where.as_of is None else where.as_of
        more = f"{records[limit - 1].ref.group}.{records[limit - 1].ref.position}" if len(records) > limit else None
        return Page(tuple(self._memory(record, now) for record in records[:limit]), more)

    def search(self, query: str, **filters: "Unpack[SearchFilters]") -> "tuple[Hit, ...]":
        """Return the memories, or with `scope` the turns, that answer a query, best first; none if nothing does.

        Args:
            query: What is asked, in words of any script, at most 4,096 characters.
            **filters: See `SearchFilters`.

        Raises:
            InvalidInput: A value is not acceptable.
            EmbedderMismatch: The store's vectors come from another model.
        """
        return self._search(query, filters).hits()

    def explain(self, query: str, **filters: "Unpack[SearchFilters]") -> "Explanation":
        """Search, and return with the hits every candidate, its numbers, and why it was dropped; see `search`."""
        return self._search(query, filters).explanation()

    def tags(self, key: str | None = None) -> dict[str, int]:
        """Return the keys of tags in use, or the values of one, and how many memories have each."""
        key = None if key is None else validate.tag_key(key)
        return dict(self._store.labels(self._where(), key))

    def status(self) -> Status:
        """Return where the memory lies and what it holds; it reads from the store, so it also shows that it answers."""
        where = self._where()
        history = where._replace(collection=Collection.HISTORY)
        info, said = self._store.info(where), self._store.info(history)
        return Status(
            store=info.url,
            collection=info.collection or self.config.collection_name,
            namespace=self.namespace,
            namespaces_read=self._readable,
            memory_count=self._store.count(where),
            deleted_count=self._store.count(where._replace(state="ended", ended_by="delete")),
            without_vector_count=info.without_vector_count + said.without_vector_count,
            turn_count=self._store.count(history),
            embedder=self._embedder.space.model if self._embedder else "none",
            store_model=info.model,
            schema_version=info.schema_version,
            size_bytes=info.size_bytes,
            erasing=info.erasing,
        )

    def close(self) -> None:
        """Release what is held, but not a store that was given."""
        if self._owns_store:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _now(self) -> datetime:
        return from_millis(to_millis(self._clock()))

    def _limit(self, given: int | None) -> int:
        return self.config.default_limit if given is None else validate.limit(given)

    def _embed(self, text: str) -> Any:
        return embed_to_store(self._embedder, [text]).vectors[0]

    def _memory(self, record: Record, now: datetime | None = None) -> Memory:
        return versions.to_memory(record, now or self._now(), self.config.decay_half_life_hours)

    def _where(self, **conditions: Any) -> Filter:
        return Filter(Collection.MEMORY, self._readable, **conditions)

    def _filter(
        self,
        tags: Mapping[str, str] | None,
        since: Moment | None,
        until: Moment | None,
        as_of: Moment | None,
    ) -> Filter:
        now = self._now()
        start, end = to_moment(since, now), to_moment(until, now, end_of_day=True)
        if isinstance(since, str) and isinstance(until, str) and mixes_zones(since, until):
            raise InvalidInput("only one of since and until names its time zone; write both the same way")
        if start is not None and end is not None and start > end:
            raise InvalidInput("since is later than until; exchange them")
        return self._where(
            labels=validate.tags(tags or {}), since=start, until=end, as_of=to_moment(as_of, now, end_of_day=True)
        )

    def _search(self, query: str, given: "SearchFilters") -> "Found":
        from memories.search.search import Search, SearchFilters, run

        for name in given:
            if name not in SearchFilters.__annotations__:
                known = ", ".join(SearchFilters.__annotations__)
                raise InvalidInput(f'there is no filter "{name}"; use {known}')

        min_confidence = given.get("min_confidence")
        search = Search(
            query=validate.query(query),
            where=self._search_filter(given),
            collections=_collections(given),
            limit=self._limit(given.get("limit")),
            min_confidence=(
                self.config.min_confidence
                if min_confidence is None
                else validate.unit(min_confidence, "min-confidence")
            ),
            min_similarity=validate.unit(given.get("min_similarity") or 0.0, "min-similarity"),
            half_life_hours=self.config.decay_half_life_hours,
            now=asked_at(given.get("now"), self._now()),
        )
        if search.min_similarity and self._embedder is None:
            raise InvalidInput("min-similarity needs an embedder, and EMBEDDER is none")
        found = run(self._store, self._embedder, search, self._now())
        if search.where.as_of is None:
            self._count_access(found.memories())
            if self.config.reinforce_on_retrieval:
                self._reinforce(found.memories(), self._now())
        return found

    def _search_filter(self, given: "SearchFilters") -> Filter:
        where = self._filter(given.get("tags"), given.get("since"), given.get("until"), given.get("as_of"))
        conversation = given.get("conversation")
        if conversation is None:
            return where
        if _collections(given) != (Collection.HISTORY,):
            raise InvalidInput("conversation narrows a search of the history; add scope history")
        return where._replace(group=validate.one_line(conversation, "conversation id"))

    def _find(self, memory_id: str, *, deleted: bool = False) -> Record:
        """Return the latest version of a memory that may be read."""
        group = parse_id(memory_id)
        if len(group) < ID_LENGTH:
            group = self._complete(group)
        found = self._store.scan(self._where(state="any", group=group), limit=1, newest_first=True)
        if not found or (found[0].ended_by == "delete" and not deleted):
            raise NotFound("Memory not found")
        return found[0]

    def _find_current(self, memory_id: str) -> Record:
        """Return the latest version of a memory that may be changed."""
        latest = self._find(memory_id)
        if latest.ended_at is not None:
            successor = latest.fields.get("superseded_by")
            raise RequestError(f"Memory was replaced by {successor}; change that one, or restore this one first")
        return latest

    def _own(self, record: Record) -> Record:
        """Return a record that is in the namespace that is written to; what others share is not changed by accident."""
        if record.ref.namespace != self.namespace:
            raise RequestError(
                f"Memory is in namespace {record.ref.namespace} and this writes to {self.namespace}; change it from "
                "there, or store one that says what holds instead"
            )
        return record

    def _complete(self, prefix: str) -> str:
        """Return the one id that begins so; one that is still current goes before those that are not."""
        for state in ("live", "any"):
            found = self._store.groups(self._where(state=state, group=prefix, prefix=True), limit=11)
            matches = tuple(group for _, group in found)
            if len(matches) == 1:
                return matches[0]
            if matches:
                count = "more than 10" if len(matches) > 10 else str(len(matches))
                raise AmbiguousId(f'"{prefix}" fits {count} memories; give more digits of the id', matches[:10])
        raise NotFound("Memory not found")

    def _by_key(self, key: str, namespace: str) -> Record | None:
        found = self._store.scan(Filter(Collection.MEMORY, (namespace,), key=key), limit=1)
        return found[0] if found else None

    def _append_version(self, latest: Record, changed: Record, vectors: Any) -> Memory:
        live = latest.ended_at is None
        self._store.patch([versions.ended(latest, changed.created_at, "update") if live else versions.undone(latest)])
        self._store.append([changed._replace(vectors=vectors)])
        return self._memory(changed)

    def _reinforce(self, records: Sequence[Record], now: datetime) -> None:
        """Reset the decay of those records that know it and are still current."""
        reset = {"reinforced_at": to_millis(now)}
        with self._store.transaction():
            for record in records:
                if versions.decay_policy(record) is DecayPolicy.REINFORCEABLE:
                    where = Filter(Collection.MEMORY, (record.ref.namespace,), group=record.ref.group)
                    self._store.patch([Patch(live.ref, None, None, reset) for live in self._store.scan(where, limit=1)])

    def _count_access(self, records: Sequence[Record]) -> None:
        if self.config.count_accesses and records:
            self._store.touch([record.ref for record in records])


def _collections(given: "SearchFilters") -> tuple[Collection, ...]:
    from memories.search.search import COLLECTIONS

    scope = given.get("scope", "memories")
    if not isinstance(scope, str) or scope not in COLLECTIONS:
        raise InvalidInput(f'"{validate.shown(str(scope))}" can\'t be searched; use {", ".join(COLLECTIONS)}')
    return COLLECTIONS[scope]


def _parse_cursor(cursor: str) -> tuple[str, int]:
    group, separator, position = str(cursor).rpartition(".")
    number = position.isascii() and position.isdigit() and len(position) <= 9
    try:
        known = parse_id(group) if separator and number and len(group) == ID_LENGTH else None
    except InvalidInput:
        known = None
    if known is None:
        raise InvalidInput("the cursor is not one that a listing returned; begin again without it")
    return known, int(position)
