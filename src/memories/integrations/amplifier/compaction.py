"""Which messages of a conversation a request has room for. Pure: the conversation itself is never changed.

What leaves no room is left out in this order: the text of old tool results, old messages, the text of the newer tool
results, and what was done since the user spoke last. Instructions, the last message of the user and the newest messages
stay. A tool call and its results stay or go together.
"""

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from memories.context.tokens import estimate_tokens

Message = Mapping[str, Any]
TARGET = 0.7  # of the budget is what a compaction leaves, so that the next messages need none
RECENT_RESULTS = 5  # tool results whose text is kept as long as that is possible
SHORTENED = 250  # characters of a tool result that are kept
NOTICE = {
    "role": "system",
    "content": "To save room, earlier messages of this conversation are left out here, or old tool results shortened.",
}
_WORTH_IT = 50  # characters that must be saved by it
_PER_MESSAGE = 4  # tokens of a message beside what it says


class Cut(NamedTuple):
    """What a view leaves out; it only grows, so that what a model reads begins the same from request to request.

    Attributes:
        start: The index of the first message that is shown.
        shortened: Tool results before this index are shortened.
    """

    start: int = 0
    shortened: int = 0


class Size(NamedTuple):
    """The tokens of a message, as it is and with its tool results shortened."""

    whole: int
    shortened: int


def fit(messages: Sequence[Message], sizes: Sequence[Size], cut: Cut, budget: int) -> Cut:
    """Return what a view has to leave out to fit a budget; what was left out before stays out.

    Args:
        messages: The conversation, without instructions that are made anew for each request.
        sizes: The tokens of each message; see `size_of`.
        cut: What was left out so far.
        budget: How many tokens the view may have.
    """

    def size(of: Cut) -> int:
        return sum(sizes[at].shortened if at < of.shortened else sizes[at].whole for at in _shown(messages, of))

    if size(cut) <= budget:
        return cut
    users = [at for at, message in enumerate(messages) if _is_from_user(message)]
    since = users[-1] if users else -1
    results = [at + 1 for at, message in enumerate(messages) if _answers(message)]
    steps = [at for at in _beginnings(messages) if at > since]
    target = int(budget * TARGET)
    for wanted, name, values in (
        (target, "shortened", results[: max(0, len(results) - RECENT_RESULTS)]),
        (target, "start", users),
        (budget, "shortened", results),
        (budget, "start", steps),
    ):
        if wanted == budget and size(cut) <= budget:
            return cut
        further = [cut._replace(**{name: at}) for at in values if at > getattr(cut, name)]
        enough = bisect_left(further, -wanted, key=lambda each: -size(each))
        if enough < len(further):
            return further[enough]
        cut = further[-1] if further else cut
    return cut


def view(messages: Sequence[Message], cut: Cut) -> list[dict[str, Any]]:
    """Return the messages that are shown, copies of those of the conversation."""
    shown = [dict(_shortened(messages[at]) if at < cut.shortened else messages[at]) for at in _shown(messages, cut)]
    if cut == Cut():
        return shown
    first = instructions(messages)
    return [*shown[:first], dict(NOTICE), *shown[first:]]


def instructions(messages: Sequence[Message]) -> int:
    """Return how many instructions a conversation begins with."""
    return next((at for at, message in enumerate(messages) if not is_instruction(message)), len(messages))


def is_instruction(message: Message) -> bool:
    """Return whether a message is an instruction, which is always shown."""
    return message.get("role") in ("system", "developer")


def size_of(message: Message) -> Size:
    """Return what a message takes, whole and shortened."""
    return Size(tokens_of(message), tokens_of(_shortened(message)))


def tokens_of(message: Message) -> int:
    """Return an upper bound of the tokens of a message."""
    content = message.get("content")
    parts = [content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)]
    if message.get("tool_calls"):
        parts.append(json.dumps(message["tool_calls"], ensure_ascii=False, default=str))
    return _PER_MESSAGE + sum(map(estimate_tokens, parts))


def _shown(messages: Sequence[Message], cut: Cut) -> Iterator[int]:
    """Yield the indices of what is shown: instructions, the user's last message, and all from the cut on."""
    last_user = max((at for at, message in enumerate(messages) if _is_from_user(message)), default=-1)
    for at, message in enumerate(messages):
        if at >= cut.start or at == last_user or is_instruction(message):
            yield at


def _beginnings(messages: Sequence[Message]) -> Iterator[int]:
    """Yield the indices at which a view can begin: not between a tool call and its results."""
    waiting: set[str] = set()
    for at, message in enumerate(messages):
        if not waiting or _is_from_user(message):
            waiting.clear()
            yield at
        waiting |= _calls(message)
        waiting -= _answers(message)


def _calls(message: Message) -> set[str]:
    """Return the ids of the tool calls that a message makes."""
    ids = {str(call.get("id") or call.get("tool_call_id")) for call in message.get("tool_calls") or ()}
    return ids | {str(block.get("id")) for block in _blocks(message) if block.get("type") in ("tool_call", "tool_use")}


def _answers(message: Message) -> set[str]:
    """Return the ids of the tool calls that a message has results of."""
    blocks = [block for block in _blocks(message) if block.get("type") == "tool_result"]
    ids = {str(block.get("tool_call_id") or block.get("tool_use_id")) for block in blocks}
    return ids | {str(message.get("tool_call_id"))} if message.get("role") == "tool" else ids


def _blocks(message: Message) -> list[Mapping[str, Any]]:
    content = message.get("content")
    return [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []


def _is_from_user(message: Message) -> bool:
    hook = (message.get("metadata") or {}).get("source") == "hook"
    return message.get("role") == "user" and not hook and not _answers(message)


def _shortened(message: Message) -> Message:
    """Return a tool result with the beginning of its text; any other message as it is."""
    if not _answers(message):
        return message
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": _cut(content)}
    if isinstance(content, list):
        return {**message, "content": [_shortened_block(block) for block in content]}
    return message


def _shortened_block(block: Any) -> Any:
    if not isinstance(block, Mapping):
        return block
    texts = {name: _cut(block[name]) for name in ("text", "content", "output") if isinstance(block.get(name), str)}
    return {**block, **texts}


def _cut(text: str) -> str:
    return (
        text if len(text) <= SHORTENED + 50 else f"{text[:SHORTENED]}… ({len(text) - SHORTENED:,} characters left out)"
    )
