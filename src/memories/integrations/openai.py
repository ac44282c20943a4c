"""Session for the OpenAI Agents SDK: stores a conversation as turns, so that `memory search --in
history` finds them.

result = await Runner.run(agent, "Hello", session=MemoriesSession("standup",
Memories(namespace="ann")))
"""

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from memories import InvalidInput, Memories, NotFound, Turn, TurnDraft
from memories.guard import validate
from memories.guard.validate import ROLES

if TYPE_CHECKING:
    from agents.memory import SessionSettings

    from memories.guard.redactor import Redactor

_PAGE = 1_000
_ENCRYPTED = "encrypted_content"  # name of the encrypted part of an item, such as its reasoning
_AS_JSON = {"format": "agents-item"}  # tag of a turn whose content is an item's JSON


class MemoriesSession:
    """The items of one conversation, in order; several processes may share it.

    A message with only a role and text becomes a turn with that role. Any other item is stored as
    JSON.

    Attributes:
        session_id: The conversation's id.
        session_settings: The SDK's settings for the session.
    """

    def __init__(
        self, session_id: str, memories: Memories, session_settings: "SessionSettings | None" = None
    ) -> None:
        """Initialize; nothing is read or written yet.

        Args:
            session_id: The conversation's id, at most 256 characters.
            memories: The `Memories` whose namespace stores it. The caller closes it.
            session_settings: The SDK's settings, such as the number of items for a run.

        Raises:
            InvalidInput: The conversation's id is too long, has several lines or contains a secret.
        """
        self.session_id = validate.one_line(session_id, "conversation id")
        memories.config.redactor().refuse(self.session_id, "conversation id")
        self.session_settings = session_settings
        self._memories = memories

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the last items, in order; all items if neither the argument nor the settings limit
        them.
        """
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        turns = await asyncio.to_thread(self._turns, limit)
        return list(map(_to_item, turns))

    async def add_items(self, items: Sequence[Any]) -> None:
        """Append items in one transaction."""
        await asyncio.to_thread(self._add, items)

    async def pop_item(self) -> Any:
        """Erase the last item, and return it; None if there is none."""
        return await asyncio.to_thread(self._pop)

    async def clear_session(self) -> None:
        """Erase the entire conversation; none of its bytes stay in the store."""
        await asyncio.to_thread(self._forget, None)

    def _turns(self, limit: int | None) -> list[Turn]:
        if limit is not None and limit <= 0:
            return []
        if limit is not None and limit <= _PAGE:
            return self._memories.tail_turns(self.session_id, limit=limit)
        turns: list[Turn] = []
        start = 0
        while page := self._memories.turns(self.session_id, start=start, limit=_PAGE):
            turns += page
            start = page[-1].index + page[-1].parts
        return turns if limit is None else turns[-limit:]

    def _add(self, items: Sequence[Mapping[str, Any]]) -> None:
        redactor = self._memories.config.redactor()
        groups = [
            ([_draft(item, redactor) for item in group], is_encrypted)
            for is_encrypted, group in itertools.groupby(items, _is_encrypted)
        ]
        with self._memories.transaction() if len(groups) > 1 else nullcontext():
            for drafts, is_encrypted in groups:
                # If an item has an encrypted part, `_draft` has redacted its readable parts.
                self._memories.add_turns(self.session_id, drafts, redact=not is_encrypted)

    def _pop(self) -> Any:
        for last in self._memories.tail_turns(self.session_id, limit=1):
            self._forget(last.index)
            return _to_item(last)
        return None

    def _forget(self, index: int | None) -> None:
        try:
            self._memories.forget_turns(self.session_id, index=index)
        except NotFound:
            return  # there is nothing to erase


def _draft(item: Mapping[str, Any], redactor: "Redactor") -> TurnDraft:
    role, content = item.get("role"), item.get("content")
    if set(item) == {"role", "content"} and role in ROLES and _is_stored_unchanged(content):
        return TurnDraft(str(content), role=str(role))
    if role not in ROLES:
        role = "tool" if str(item.get("type", "")).endswith("output") else "assistant"
    encrypted = {_ENCRYPTED: item[_ENCRYPTED]} if _is_encrypted(item) else {}
    readable = {name: value for name, value in item.items() if name not in encrypted}
    text = redactor.data(json.dumps(readable, ensure_ascii=True)).text
    if encrypted:
        text = json.dumps({**json.loads(text), **encrypted}, ensure_ascii=True)
    return TurnDraft(text, role=str(role), tags=_AS_JSON)


def _is_encrypted(item: Mapping[str, Any]) -> bool:
    """Return whether an item has an encrypted part. Such a part may happen to look like a secret,
    but the model's provider accepts it only unchanged.
    """
    return isinstance(item.get(_ENCRYPTED), str)


def _is_stored_unchanged(content: object) -> bool:
    """Return whether content stays as it is when it is normalized and stored."""
    if not isinstance(content, str) or not any(map(str.isalnum, content)):
        return False
    try:
        return validate.content(content) == content
    except InvalidInput:
        return False


def _to_item(turn: Turn) -> Any:
    if _AS_JSON.items() <= turn.tags.items():
        return json.loads(turn.content)
    return {"role": turn.role, "content": turn.content}
