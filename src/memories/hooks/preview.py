"""What an agent sees: the context that hooks would give it, with a reason for each memory.

The context comes from the functions that hooks call. No memory is counted as read, and no session
is recorded. A preview shows a new session: the session block, then the first prompt.
"""

import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from memories.core.prompts import clean_prompt, typed_part
from memories.hooks import gate, host_events, model_context, switch
from memories.hooks.prompt_recall import Rated, RecallTrace, id_of_turn
from memories.hooks.recall_strategy import HookContext, RecallRequest, query_of
from memories.identity import session_block
from memories.identity.place import names_of
from memories.models import is_recall_off, is_valid_in

if TYPE_CHECKING:
    from memories.context.protocol import HistoryTurn
    from memories.hooks.model_context import Situation
    from memories.models import Memory
    from memories.scratchpad.entries import Entry

SECONDS = 20.0  # maximum time that a person has to wait; a hook has less time
NEAR = 1.5  # how far below the threshold a memory may be and still be listed
MAX_LEFT_OUT = 10  # maximum number of memories to list as left out
_NO_SESSION = ".preview"  # no session has this name


class ConsideredMemory(NamedTuple):
    """A memory that is shown or left out, and why.

    Attributes:
        memory: The memory, or its entry in the scratchpad.
        is_shown: Whether the agent sees it.
        reason: The reason. In the session block: a group of `session_block.group_of` or a key of
            `SessionBlock.omitted`, or `beyond`. For a prompt: `needed`, `correction`, `in_context`,
            `recall_off`, `expired`, `corrected`, `below`, `other_project`, `beyond`, `no_room`, or
            a reason of `context.admission`.
        rating: The log-odds that the prompt needs the memory; None in the session block.
        meaning: The log-odds of the calibrated similarity to the prompt; None if it is unknown.
        threshold: The minimum rating of a memory in the session's project; None in the session
            block.
    """

    memory: "Entry | Memory"
    is_shown: bool
    reason: str
    rating: float | None = None
    meaning: float | None = None
    threshold: float | None = None


class QuotedTurn(NamedTuple):
    """A turn that the text quotes; `rating` is None if it is only next to a needed turn."""

    turn: "HistoryTurn"
    rating: float | None


class PreviewedText(NamedTuple):
    """One text that an agent gets.

    Attributes:
        text: The exact text; may be empty.
        tokens: An upper bound on its tokens.
        milliseconds: How long it took to produce the text.
        lines: The memories that were considered; the shown ones come first.
        turns: The recalled conversation turns.
        silence: Why hooks don't look for memories: the message is a `command`, turns memory on or
            off (`switch`), or is `empty`. An empty string if they do look.
        error: Why the store did not respond, so that the scratchpad was used; empty if it
            responded.
    """

    text: str
    tokens: int
    milliseconds: float
    lines: list[ConsideredMemory]
    turns: list[QuotedTurn]
    silence: str = ""
    error: str = ""


class Preview(NamedTuple):
    """The texts that an agent sees at the start of a session, and with its first prompt if any."""

    start: PreviewedText
    prompt: PreviewedText | None


def preview(situation: "Situation", folder: str, message: str) -> Preview:
    """Return a preview of what an agent would see.

    Args:
        situation: The settings, the project, and how the agent reaches its memory.
        folder: The agent's working folder; empty if only the project matters.
        message: The prompt; may be empty.

    Raises:
        MemoriesError: The store can't be reached, and there is no scratchpad.
    """
    caller = (str(situation.config.home), folder or os.sep, _NO_SESSION, None)
    start = time.monotonic()
    request = RecallRequest(caller, None, start + SECONDS, marks_read=False)
    block = model_context.build_block(request, situation)
    context = model_context.context_of(block, situation.config.namespace)
    projects = names_of(situation.project)
    lines = list(_block_lines(block, projects, is_shown=bool(context.text)))
    milliseconds = _elapsed_ms(start)
    tokens = block.tokens if context.text else 0
    first = PreviewedText(context.text, tokens, milliseconds, lines, [], error=context.error)
    if not message.strip():
        return Preview(first, None)
    return Preview(first, _preview_prompt(situation, caller, message, context))


def _preview_prompt(
    situation: "Situation",
    caller: tuple[str, str, str, None],
    message: str,
    start: HookContext,
) -> PreviewedText:
    from memories.context.tokens import estimate_tokens

    prompt = clean_prompt(message)
    silence = _why_silent(prompt)
    if silence:
        return PreviewedText("", 0, 0.0, [], [], silence=silence)
    begun = time.monotonic()
    query = query_of(prompt, typed_part(message))
    request = RecallRequest(caller, query, begun + SECONDS, marks_read=False)
    trace = RecallTrace(start)
    context = model_context.open_and_recall(request, situation, trace)
    milliseconds = _elapsed_ms(begun)
    lines = _prompt_lines(trace, set(context.shown))
    if not context.text:
        return PreviewedText("", 0, milliseconds, lines, [], error=context.error)
    tokens = estimate_tokens(context.text)
    turns = [QuotedTurn(turn, trace.turn_ratings.get(id_of_turn(turn))) for turn in trace.turns]
    return PreviewedText(context.text, tokens, milliseconds, lines, turns, error=context.error)


def _why_silent(prompt: str) -> str:
    """Return the value of `PreviewedText.silence` for a prompt."""
    if not prompt:
        return "empty"
    if switch.parse_wish(prompt) is not None:
        return "switch"
    return "command" if host_events.is_command(prompt) else ""


def _elapsed_ms(start: float) -> float:
    return round((time.monotonic() - start) * 1000, 1)


def _block_lines(
    block: session_block.SessionBlock, projects: Sequence[str], *, is_shown: bool
) -> Iterator[ConsideredMemory]:
    for entry in (*block.entries, *block.sessions):
        yield ConsideredMemory(entry, is_shown, session_block.group_of(entry, projects))
    for reason, entries in block.omitted.items():
        for entry in entries:
            yield ConsideredMemory(entry, False, reason)
    for entry in block.beyond[:MAX_LEFT_OUT]:
        yield ConsideredMemory(entry, False, "beyond")


def _prompt_lines(trace: RecallTrace, shown: set[str]) -> list[ConsideredMemory]:
    """Return the memories that were shown, passed the gate, or nearly passed it."""
    rated = sorted(trace.rated.values(), key=lambda entry: -entry.rating)
    own = (entry.rating for entry in rated if is_valid_in(entry.memory.tags, trace.projects))
    threshold = gate.threshold(next(own, gate.THRESHOLD))
    lines: list[ConsideredMemory] = []
    left_out: list[ConsideredMemory] = []
    for entry in rated:
        memory = entry.memory
        is_shown = memory.id in shown
        is_near = entry.rating >= threshold - NEAR or memory.id in trace.current
        if not is_shown and not is_near:
            continue
        reason = _reason_of(entry, trace, shown)
        line = ConsideredMemory(memory, is_shown, reason, entry.rating, entry.meaning, threshold)
        (lines if is_shown else left_out).append(line)
    return [*lines, *left_out[:MAX_LEFT_OUT]]


def _reason_of(entry: Rated, trace: RecallTrace, shown: set[str]) -> str:
    """Return the reason a memory is shown or left out, as a key of `ConsideredMemory.reason`."""
    memory_id = entry.memory.id
    if memory_id in shown:
        return "needed" if memory_id in trace.selected else "correction"
    if memory_id in trace.current:
        if is_recall_off(entry.memory.tags):
            return "recall_off"
        if memory_id in trace.start.shown:
            return "in_context"
        reason = "beyond" if trace.current.index(memory_id) >= gate.MAX_MEMORIES else "no_room"
        return trace.left_out.get(memory_id, reason)
    if memory_id in trace.selected:
        return "corrected"
    is_needed = entry.rating >= gate.THRESHOLD
    is_valid = is_valid_in(entry.memory.tags, trace.projects)
    return "below" if not is_needed or is_valid else "other_project"
