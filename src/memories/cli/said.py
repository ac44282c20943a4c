"""Answers about turns and conversations for people; `text` has those about memories."""

from collections import Counter
from typing import TYPE_CHECKING

from memories.cli.output import safe
from memories.cli.text import _dated, _name, _said, _table, _tags, counted
from memories.core.times import to_iso

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memories.read.conversations import Conversation, ConversationPage
    from memories.read.turns import Turn


def turns(said: "Sequence[Turn]") -> str:
    """Return turns in order."""
    return "\n\n".join(_said(None, turn, "") for turn in said) or "Nothing here."


def added_one(said: "Turn") -> str:
    """Return what became of a turn that was added."""
    if said.status == "stored":
        return turns([said])
    told = (
        "Nothing was stored: its message id is that of this turn."
        if said.reason
        else "Known already: not stored again."
    )
    return f"{turns([said])}\n{told}"


def added(said: "Sequence[Turn]") -> str:
    """Return what became of many turns that were added to a conversation."""
    if not said:
        return "No turns."
    counts = Counter(turn.status for turn in said)
    redacted = counted([kind for turn in said for kind in turn.redacted])
    stored = max((turn.index for turn in said if turn.status == "stored"), default=None)
    last = "." if stored is None else f"; the last one has index {stored}."
    lines = [f"Added {counts['stored']} turns{last}" + (f" Taken out before: {redacted}." if redacted else "")]
    lines += [f"Known already: {counts['known']}."] if counts["known"] else []
    lines += [f"Refused: {safe(turn.reason)}." for turn in said if turn.reason]
    return "\n".join(lines)


def conversations(found: "ConversationPage") -> str:
    """Return a page of conversations."""
    if not found.conversations:
        return "Nothing here."
    rows = _table((_name(each.id), _described(each)) for each in found.conversations)
    return rows + (f"\n\nNext page: --cursor {safe(found.next_cursor)}" if found.next_cursor else "")


def conversation(each: "Conversation") -> str:
    """Return a conversation as a listing shows it."""
    return _table([(_name(each.id), _described(each))])


def _described(each: "Conversation") -> str:
    """Return what is told of a conversation beside its name."""
    waiting = f"{each.waiting_count} wait to be stored" if each.waiting_count else ""
    when = f"{each.turn_count:>6} turns, {to_iso(each.first_at)[:10]} to {_dated(each.last_at)}"
    named = [(name, value) for name, value in (("title", each.title), ("user", each.user)) if value]
    about = " ".join(f"{name}={_name(value)}" for name, value in named)
    return " · ".join(part for part in (when, waiting, about, _tags(each.tags)) if part)
