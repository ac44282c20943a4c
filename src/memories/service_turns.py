"""What `Memories` does with conversations: they are added to, read, listed and erased."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Unpack

from memories import validate
from memories.errors import InvalidInput
from memories.lookup import Lookup
from memories.models import Forgotten, Moment
from memories.origin import Place
from memories.settings import Config
from memories.stores import Store
from memories.stores.records import Collection, Filter
from memories.times import from_millis, to_millis, to_moment

if TYPE_CHECKING:
    from memories.conversations import Conversation, ConversationFilters, ConversationPage, TurnFilters
    from memories.embedders import Embedder
    from memories.redaction.redactor import Redactor
    from memories.turns import Turn, TurnDraft
    from memories.write.queue import RetryQueue


class ConversationVerbs:
    """The verbs of `Memories` that concern conversations; it opens the store that they use."""

    config: Config
    namespace: str
    _clock: Callable[[], datetime]
    _embedder: "Embedder | None"
    _lookup: Lookup
    _store: Store

    def _place(self) -> Place | None: ...

    def add_turns(
        self, conversation_id: str, turns: "Iterable[TurnDraft | str]", *, redact: bool = True
    ) -> "list[Turn]":
        """Append turns to a conversation in one transaction; stored turns never change.

        Args:
            conversation_id: The conversation, at most 256 characters.
            turns: Drafts, or texts said by the user, in order.
            redact: Take out secrets; see `create`.

        Returns:
            The turns, each with its `status`. If the conversation has a `message_id` already, that stored turn is
            returned: it is `known` if it says the same; else the new message is `refused`, its `reason` says why, and
            the others are stored.

        Raises:
            InvalidInput: A value is not acceptable; nothing was stored.
            RequestError: The conversation is in a namespace that is only read; nothing was stored.
        """
        from memories.turns import TurnDraft
        from memories.write.turns import append

        if isinstance(turns, str):
            raise InvalidInput("add_turns takes a list of turns or texts; put a single one in a list")
        drafts = [turn if isinstance(turn, TurnDraft) else TurnDraft(turn) for turn in turns]
        if at := self._place():
            drafts = [replace(each, tags=at.tags(each.tags)) for each in drafts]
        place = (self._lookup.readable, conversation_id)
        return append(self._store, self._embedder, place, drafts, self._now(), self._redactor(redact))

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
            title: Its title, one line of at most 256 characters; empty to remove it, None to leave it.
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
        self, conversation_id: str, *, index: int | None = None, with_memories: bool = False, dry_run: bool = False
    ) -> Forgotten:
        """Erase a conversation, or one of its turns: no byte of it stays in the store.

        Turns that are still queued for the conversation are erased with it; see `MemoryGateway`.

        Args:
            conversation_id: A conversation in your own namespace.
            index: The only turn to erase; the others keep their indexes.
            with_memories: Also erase your memories of which a version was made from what is erased; see `create`.
            dry_run: Erase nothing, only return how much there is.

        Raises:
            NotFound: There is no such conversation or turn.
            RequestError: The conversation is only in a namespace that is read.
            ErasureUnfinished: It failed after the turns were erased, so bytes of them may still be in the files;
                forgetting them again finishes the erasure.
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
        """Return the last turns of a conversation, oldest first; empty if there is no such conversation.

        Turns that wait to be stored come last and have `waiting` set; see `waiting_turns`.

        Args:
            conversation_id: The conversation; if your namespace and `shared` both have it, yours.
            limit: How many at most, up to 1,000; by default the setting `default_limit`.
            **filters: See `TurnFilters`.

        Raises:
            InvalidInput: A value is not acceptable.
        """
        from memories.turns import tail

        where, most = self._turns_of(conversation_id, filters), self._limit(limit)
        found = tail(self._store, where, most)
        return [*found, *self._behind(where, conversation_id)][-most:]

    def turns(
        self, conversation_id: str, *, start: int = 0, limit: int | None = None, **filters: "Unpack[TurnFilters]"
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
        from memories.turns import page

        where, first, most = self._turns_of(conversation_id, filters), validate.index(start), self._limit(limit)
        found = page(self._store, where, first, most)
        if len(found) == most:
            return found
        return [*found, *(turn for turn in self._behind(where, conversation_id) if turn.index >= first)][:most]

    def waiting_turns(self, conversation_id: str | None = None) -> "list[Turn]":
        """Return the turns that wait to be stored, oldest first: what an agent said while the store did not answer.

        It looks only at the queue on disk (see `MemoryGateway`), so it works while the store is down.

        Args:
            conversation_id: Only those of this conversation.
        """
        from memories.turns import conversation_id as checked
        from memories.write.waiting import waiting_turns

        name = None if conversation_id is None else checked(conversation_id)
        return waiting_turns(self._queue(), self.namespace, name)

    def conversations(
        self, *, limit: int | None = None, cursor: str | None = None, **filters: "Unpack[ConversationFilters]"
    ) -> "list[Conversation]":
        """Return the conversations of a page of `list_conversations`, newest first.

        Args:
            limit: How many at most, up to 1,000; by default the setting `default_limit`.
            cursor: `next_cursor` of the previous page.
            **filters: See `ConversationFilters`.
        """
        return list(self.list_conversations(limit=limit, cursor=cursor, **filters).conversations)

    def list_conversations(
        self, *, limit: int | None = None, cursor: str | None = None, **filters: "Unpack[ConversationFilters]"
    ) -> "ConversationPage":
        """Return a page of conversations with their titles, turn counts and dates, those with the newest turn first.

        Args:
            limit: How many at most, up to 1,000; by default the setting `default_limit`.
            cursor: `next_cursor` of the previous page.
            **filters: See `ConversationFilters`.

        Raises:
            InvalidInput: A value is not acceptable.
        """
        from memories.conversations import page

        found = page(self._store, self._lookup.readable, filters, self._now(), self._limit(limit), cursor)
        waiting = [] if filters.get("as_of") else self.waiting_turns()
        if not waiting:
            return found
        from memories.write.waiting import not_stored, with_waiting

        return with_waiting(found, not_stored(self._store, waiting), first=cursor is None and not filters)

    def conversation(self, conversation_id: str, *, as_of: Moment | None = None) -> "Conversation":
        """Return a conversation as a listing shows it.

        Args:
            conversation_id: The conversation; see `tail_turns`.
            as_of: As long as it was at this time.

        Raises:
            NotFound: There is no such conversation, or with `as_of` there was none.
        """
        from memories.conversations import find
        from memories.turns import conversation_id as checked

        end = to_moment(as_of, self._now(), end_of_day=True)
        return find(self._store, self._lookup.readable, checked(conversation_id), end)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _turns_of(self, conversation_id: str, filters: "TurnFilters") -> Filter:
        """Return the filter of the turns of a conversation that are wanted."""
        from memories.conversations import wanted_turns
        from memories.turns import in_conversation

        return wanted_turns(in_conversation(self._store, self._lookup.readable, conversation_id), filters, self._now())

    def _behind(self, where: Filter, conversation_id: str) -> "Sequence[Turn]":
        """Return the turns that wait to be stored behind those of a conversation, and are wanted."""
        waiting = self.waiting_turns(conversation_id)
        if not waiting:
            return []
        from memories.write.waiting import not_stored, numbered

        own = Filter(Collection.HISTORY, (self.namespace,), group=waiting[0].conversation_id)
        last = self._store.scan(own, limit=1, newest_first=True)
        return numbered(not_stored(self._store, waiting), where, last[0].ref.position if last else -1)

    def _now(self) -> datetime:
        return from_millis(to_millis(self._clock()))

    def _redactor(self, redact: bool) -> "Redactor | None":
        return self.config.redactor() if redact else None

    def _limit(self, given: int | None) -> int:
        return self.config.default_limit if given is None else validate.limit(given)

    def _queue(self) -> "RetryQueue":
        from memories.write.queue import RetryQueue, files_of

        return RetryQueue.of_turns(*files_of(self.config, self.namespace))
