"""Imports other programs' files: messages become turns, and statements await review.

An import writes in small transactions and recognizes items that are already stored: a turn by its
message id, a statement by its text. So it can be interrupted at any moment, and a second run adds
only new items.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.errors import ConfigError, InvalidInput
from memories.guard import validate
from memories.guard.origin import IMPORTED_AS, USER, Origin
from memories.languages.text import index_text
from memories.models import PENDING, Draft
from memories.read.lookup import Lookup
from memories.read.turns import KNOWN, REFUSED, STORED, TurnDraft, scoped_key
from memories.stores.logged import LoggedStore
from memories.stores.protocol import Store
from memories.stores.records import Collection, Filter, Record
from memories.transfer.sources.items import Item, SourceMessage, add_tag, one_line
from memories.write.create import Batch, Created, Prepared, prepare_batches
from memories.write.similar import compare_draft
from memories.write.turns import Naming, append
from memories.write.write_context import WriteContext

if TYPE_CHECKING:
    from memories.embedders.protocol import Embedder
    from memories.guard.redactor import Redactor
    from memories.settings import Config

_BATCH = 200  # maximum number of messages or statements stored in one transaction
_BATCH_CHARACTERS = 2_000_000
_MAX_NAMES = 1_000_000  # maximum number of names kept to recognize repetitions; they take 100 MB
_MAX_REASONS = 20
# a message without a time is dated this much after the previous one
_STEP = timedelta(milliseconds=1)
_DAY = timedelta(days=1)
_INFERRED = {"time": "inferred"}
_WAITING = "known statements that still await review; an import doesn't accept them"


class SourceTerms(NamedTuple):
    """Settings for importing a source.

    Attributes:
        source: The name of the source.
        namespace: The namespace to which everything is written.
        origin: The origin of all imported records, which contains the id of the import.
        trusted: Whether the user vouches for the statements, so that none has to be reviewed.
        redactor: Removes secrets; None to keep them.
        now: The current time, used for items without a time. Times in the future are ignored.
        dry_run: Store nothing; only count the new items.
    """

    source: str
    namespace: str
    origin: Origin
    trusted: bool
    redactor: "Redactor | None"
    now: datetime
    dry_run: bool


@dataclass(slots=True)
class Counts:
    """Counts of an import.

    Attributes:
        turns: New messages.
        memories: New statements.
        known: Messages and statements that were stored before.
        conversations: Ids of the conversations with new messages.
        pending: Statements that await review.
        skipped: The number of items left out, keyed by reason.
        redacted: The number of secrets removed, keyed by kind.
        without_vector: New turns and statements without a vector, since there is no embedder.
        first: The earliest time of a message or statement in the source, new or known.
        last: The latest such time.
    """

    turns: int = 0
    memories: int = 0
    known: int = 0
    conversations: set[str] = field(default_factory=set)
    pending: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    redacted: Counter[str] = field(default_factory=Counter)
    without_vector: int = 0
    first: datetime | None = None
    last: datetime | None = None

    def accept_time(self, at: datetime | None, now: datetime) -> datetime | None:
        """Include a time from the source in `first` and `last`, and return it.

        Returns:
            The time; None if it is missing or in the future.
        """
        if at is None or at > now + _DAY:
            return None
        self.first = at if self.first is None else min(self.first, at)
        self.last = at if self.last is None else max(self.last, at)
        return at


def survey(items: Iterable[Item], now: datetime) -> Counts:
    """Read and count all items; nothing is stored.

    Raises:
        InvalidInput: The source is damaged.
    """
    counts = Counts()
    names: set[int] = set()  # sessions may repeat messages from other sessions
    for item in items:
        if isinstance(item, SourceMessage):
            name = hash((item.conversation, item.turn.message_id))
            counts.turns += name not in names
            names.add(name)
            counts.conversations.add(item.conversation)
            counts.accept_time(item.turn.created_at, now)
        else:
            counts.memories += 1
            counts.accept_time(item.created_at, now)
    return counts


class Importer:
    """Imports a source's items, batch by batch.

    Attributes:
        counts: The counts so far.
    """

    def __init__(
        self,
        store: Store,
        embedder: "Embedder | None",
        config: "Config",
        terms: SourceTerms,
        begin: Callable[[], None],
    ) -> None:
        """Initialize; nothing is stored yet.

        Args:
            store: The store.
            embedder: Makes the vectors; None to search by words only.
            config: The settings.
            terms: The terms of the import.
            begin: Called before the first change, so that an interrupted import can be undone.
        """
        self.counts = Counts()
        self._begin: Callable[[], None] | None = begin
        self._names: set[int] = set()  # hashes
        self._previous = "", terms.now  # conversation and time of the last message
        self._redacted: dict[
            str | None, tuple[str, ...]
        ] = {}  # kinds of secrets removed, keyed by draft
        self._terms, self._embedder = terms, embedder
        self._store = store
        try:
            others = store.namespaces(Collection.HISTORY)
        except ConfigError:  # a token for one namespace can't list the others
            others = []
        self._namespaces = tuple({terms.namespace, *others})
        statement_origin = terms.origin._replace(trust=USER) if terms.trusted else terms.origin

        def logged(origin: Origin) -> LoggedStore:
            now, quota = lambda: terms.now, config.namespace_quota
            return LoggedStore(store, "cli", now, lambda: origin, action="import", quota=quota)

        self._turns = logged(terms.origin)
        self._ctx = WriteContext(
            Lookup(logged(statement_origin), terms.namespace, (terms.namespace,)),
            embedder,
            terms.now,
            config,
            force=not terms.trusted,
            redactor=terms.redactor,
        )

    def store(self, items: Iterable[Item]) -> Iterator[Counts]:
        """Store items in order; yield the counts after each transaction."""
        messages: list[SourceMessage] = []
        drafts: list[Draft] = []
        for item in items:
            if isinstance(item, SourceMessage):
                is_other = messages and item.conversation != messages[0].conversation
                characters = sum(len(message.turn.content) for message in messages)
                if is_other or len(messages) >= _BATCH or characters >= _BATCH_CHARACTERS:
                    yield self._store_messages(messages)
                    messages = []
                messages.append(self._with_time(item))
            else:
                drafts.append(self._with_tags(item))
                if len(drafts) >= _BATCH:
                    yield self._store_drafts(drafts)
                    drafts = []
        if messages:
            yield self._store_messages(messages)
        if drafts:
            yield self._store_drafts(drafts)

    def _is_repeated(self, name: str | None, reason: str) -> bool:
        """Return whether this import has seen this name before; if so, count a skipped item."""
        if name is None:
            return False
        is_repeated = hash(name) in self._names
        if is_repeated:
            self.counts.skipped[reason] += 1
        elif len(self._names) < _MAX_NAMES:
            self._names.add(hash(name))
        return is_repeated

    def _announce(self) -> None:
        if self._begin is not None:
            self._begin()
            self._begin = None

    # --- messages

    def _with_time(self, item: SourceMessage) -> SourceMessage:
        """Return a message ready to be stored, with an inferred time if it has none."""
        turn = item.turn
        tags: dict[str, str] = {"source": self._terms.source}
        for key, value in {**turn.tags, "project": item.project}.items():
            add_tag(tags, key, value)
        at = self.counts.accept_time(turn.created_at, self._terms.now)
        if at is None:
            conversation, previous_at = self._previous
            is_first = conversation != item.conversation
            at = self._terms.now if is_first else previous_at + _STEP
            tags |= _INFERRED
        self._previous = item.conversation, at
        turn = replace(
            turn,
            created_at=at,
            tags=tags,
            speaker=one_line(turn.speaker) or None,
            message_id=one_line(turn.message_id) or None,
        )
        return item._replace(conversation=one_line(item.conversation), turn=turn)

    def _store_messages(self, messages: Sequence[SourceMessage]) -> Counts:
        conversation = messages[0].conversation
        new = [message for message in messages if self._is_new(message)]
        if not new:
            return self.counts
        if self._terms.dry_run:
            self._count_turns(conversation, len(new))
            return self.counts
        self._announce()
        self._append(conversation, [message.turn for message in new])
        if conversation in self.counts.conversations:
            self._describe(new[0])
        return self.counts

    def _is_new(self, message: SourceMessage) -> bool:
        """Return whether a message was neither imported before nor captured by a hook.

        A session may have been captured in the namespace of another identity.
        """
        turn = message.turn
        key = scoped_key(message.conversation, turn.message_id)
        if self._is_repeated(key, "repeated messages"):
            return False
        # Hooks use the same digest; see `Utterance.message_id` in `hooks.transcripts`.
        digest = hashlib.blake2b(turn.content.encode(), digest_size=12).hexdigest()
        session = message.session or message.conversation
        captured_key = scoped_key(session, f"{turn.role}:{digest}:1")
        is_known = self._has_turn(key, (self._terms.namespace,)) or self._has_turn(
            captured_key, self._namespaces
        )
        self.counts.known += is_known
        return not is_known

    def _has_turn(self, key: str | None, namespaces: tuple[str, ...]) -> bool:
        where = Filter(Collection.HISTORY, namespaces, key=key)
        return key is not None and bool(self._store.scan(where, limit=1))

    def _append(self, conversation: str, drafts: Sequence[TurnDraft]) -> None:
        """Append turns in one transaction or, if one of them is refused, one by one."""
        terms = self._terms
        target = ((terms.namespace,), conversation)
        try:
            turns = append(self._turns, self._embedder, target, drafts, terms.now, terms.redactor)
        except InvalidInput as exc:
            self._store_each(drafts, partial(self._append, conversation), exc)
            return
        statuses = Counter(turn.status for turn in turns)
        self.counts.known += statuses[KNOWN]
        if statuses[REFUSED]:
            reason = "messages that changed since they were imported"
            self.counts.skipped[reason] += statuses[REFUSED]
        if statuses[STORED]:
            self._count_turns(conversation, statuses[STORED])
        for turn in turns:
            self.counts.redacted.update(turn.redacted if turn.status == STORED else ())

    def _count_turns(self, conversation: str, count: int) -> None:
        self.counts.turns += count
        self.counts.conversations.add(conversation)
        if self._embedder is None:
            self.counts.without_vector += count

    def _describe(self, message: SourceMessage) -> None:
        """Set the title and tags of a message's conversation."""
        tags: dict[str, str] = {"source": self._terms.source}
        add_tag(tags, "project", message.project)
        naming = Naming(one_line(message.title) or None, None, tags, ())
        try:
            checked = naming.check(self._terms.redactor)
        except InvalidInput:  # the title is a secret, or invisible
            checked = naming._replace(title=None)
        checked.apply(self._turns, (self._terms.namespace,), message.conversation)

    # --- statements

    def _with_tags(self, draft: Draft) -> Draft:
        """Return a draft as it will be imported, without secrets."""
        content = draft.content
        kinds: tuple[str, ...] = ()
        if self._terms.redactor is not None:
            content, kinds = self._terms.redactor.text(content)
        tags: dict[str, str] = {"source": self._terms.source}
        for name, value in draft.tags.items():
            add_tag(tags, name, value)
        at = self.counts.accept_time(draft.created_at, self._terms.now)
        if at is None:
            tags = {**_INFERRED, **tags}
        key = draft.key
        if key is not None:
            key = f"{self._terms.source}/{key}"[: validate.MAX_KEY]
        text = f"{tags.get('project', '')}\x1f{index_text(content)}"
        name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        self._redacted[name] = kinds
        return replace(
            draft,
            content=content,
            tags=tags,
            key=key,
            created_at=at,
            pending=not self._terms.trusted,
            imported_as=name,
        )

    def _store_drafts(self, drafts: Sequence[Draft]) -> Counts:
        new = [draft for draft in drafts if self._is_unknown(draft)]
        for draft in new:
            self.counts.redacted.update(self._redacted[draft.imported_as])
        self._redacted.clear()
        if self._terms.dry_run:
            self._count_memories(len(new))
        elif new:
            self._announce()
            self._create(new)
        return self.counts

    def _is_unknown(self, draft: Draft) -> bool:
        """Return whether a statement was never imported; rejected statements count as imported."""
        if self._is_repeated(draft.imported_as, "repeated statements"):
            return False
        known = self._find_imported(draft)
        self.counts.known += len(known)
        if self._terms.trusted and any(record.ended_by == PENDING for record in known):
            self.counts.skipped[_WAITING] += 1
        return not known

    def _find_imported(self, draft: Draft) -> Sequence[Record]:
        """Return the first version of the memory that a statement became, if it was imported."""
        labels = {IMPORTED_AS: draft.imported_as or ""}
        where = Filter(Collection.MEMORY, (self._terms.namespace,), labels=labels, state="any")
        return self._store.scan(where, limit=1)

    def _create(self, drafts: Sequence[Draft]) -> None:
        """Store drafts in batches or, if one of them is refused, one by one."""
        try:
            batches = list(prepare_batches(self._ctx, drafts))
        except InvalidInput as exc:
            self._store_each(drafts, self._create, exc)
            return
        for batch in batches:
            with self._ctx.store.transaction():
                results = self._without_known(batch).write()
            self._count_created(results)

    def _without_known(self, batch: Batch) -> Batch:
        """Return a batch without statements that are already imported or equal to a memory.

        Statements that only resemble a memory await review, where a person sees both.
        """
        drafts: list[Prepared] = []
        for prepared in batch.drafts:
            is_known = bool(self._find_imported(prepared.draft))
            if not self._terms.trusted and not is_known:
                comparison = compare_draft(self._ctx, prepared.draft, prepared.vectors)
                is_known = comparison.same is not None
            if not is_known:
                drafts.append(prepared)
        self.counts.known += len(batch.drafts) - len(drafts)
        return batch._replace(drafts=drafts)

    def _count_created(self, results: Sequence[Created]) -> None:
        for created in results:
            if created.stored:
                self._count_memories(1)
            elif created.memory is not None:
                self.counts.known += 1
            else:
                self.counts.skipped["statements that say the same thing as a memory"] += 1

    def _count_memories(self, count: int) -> None:
        self.counts.memories += count
        if not self._terms.trusted:
            self.counts.pending += count
        if self._embedder is None:
            self.counts.without_vector += count

    def _store_each(
        self, drafts: Sequence[Any], run: Callable[[Sequence[Any]], None], error: InvalidInput
    ) -> None:
        """Store the drafts of a refused batch one by one; skip and count each that is refused."""
        if len(drafts) > 1:
            for draft in drafts:
                run([draft])
            return
        reason = f"refused: {str(error).partition(';')[0]}"
        if len(self.counts.skipped) >= _MAX_REASONS:
            reason = "refused for other reasons"
        self.counts.skipped[reason] += 1
