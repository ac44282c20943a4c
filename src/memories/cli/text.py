"""Text output for people: aligned, dated, coloured on a terminal, with control characters escaped.

Each line of content begins with a mark that no other line has, so content can't be mistaken for one
of our lines.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from memories.answers.advice import complete_commands
from memories.answers.fields import MEMORY
from memories.answers.shapes import (
    HINT_OUTDATED,
    describe_merge,
    hint_left,
    hint_of,
    search_note,
    summarize,
)
from memories.cli.output import (
    BOLD,
    DIM,
    GREEN,
    YELLOW,
    count_kinds,
    cut_around,
    fold,
    format_time,
    is_terminal,
    mark_lines,
    paint,
    safe,
    shorten,
    table,
    wrap,
)
from memories.core.ids import ID_LENGTH
from memories.core.times import describe_age
from memories.guard.origin import AGENT, Origin
from memories.guard.validate import amount
from memories.models import PENDING, SHARED, SHORT_ID, History, Memory, Page, Verdict, corrected_ids

if TYPE_CHECKING:
    from memories.models import Version
    from memories.read.conversations import Conversation, ConversationPage
    from memories.read.turns import Turn
    from memories.search.results import Considered, Explanation, Hit
    from memories.write.bulk import Affected
    from memories.write.create import Created
    from memories.write.review import Reviewed, Rivals
    from memories.write.similar import Similar

MAX_LINES = 6  # maximum number of lines of each text that are shown on a terminal
MAX_SHOWN = 2_000  # maximum number of characters of each text, if there are several
WAITS = "waiting for review"
NOTHING = "Nothing here."
# fields shown below a history
_LINKS = "supersedes superseded_by corrects also_corrects corrected_by".split()
_NEEDS_QUOTES = re.compile(r'[·│"=]|  ')


# --- memories ---


def memory(record: Memory) -> str:
    """Render a memory in full: all its fields that have a label in `answers.fields`."""
    cells = {field.name: _cell(getattr(record, field.name)) for field in MEMORY if field.label}
    cells["tags"] = _tags(record.tags) or "-"
    cells["decay_policy"] = f"{record.decay_policy}, confidence {record.confidence:.0%}"
    cells["updated_at"] = ""
    if record.version > 1:
        cells["updated_at"] = f"{format_time(record.updated_at)}, version {record.version}"
    cells["pending"] = paint(YELLOW, WAITS) if record.pending else ""
    cells["redacted"] = count_kinds(record.redacted)
    if record.accepted_at:
        cells["accepted_at"] += f" by {safe(record.accepted_by or '-')}"
    rows = [(field.label, cells[field.name]) for field in MEMORY if cells.get(field.name)]
    return f"{paint(BOLD, mark_lines(record.content))}\n{table(rows)}"


def _cell(value: object) -> str:
    """Return a memory's field in readable form; empty if the field is empty."""
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, Origin):
        parts = [value.client] if value.client else []
        parts += [f"{value.user}@{value.host}", f"namespace {value.namespace}"]
        parts.append(f"memories {value.program}")
        return safe(f"{value.by} ({value.trust}) by {value.channel}: {', '.join(parts)}")
    if isinstance(value, Verdict):
        return paint(YELLOW if value.is_doubtful else GREEN, safe(value.describe()))
    if isinstance(value, tuple):
        return safe(", ".join(value))
    return safe(str(value or ""))


def create_result(created: "Created") -> str:
    """Render the result of a create: one line if the memory was stored or already existed."""
    hint = safe(complete_commands(hint_of(created)))
    if created.memory is None:
        head = "✗ not stored: very similar to" if created.duplicates else "✗ not stored"
        lines = [paint(YELLOW, head)]
        for record in created.duplicates:
            remark = _similarity(record, f"{record.similarity:.2f} similar")
            lines.append(_line(record.id, record.content, remark))
        return "\n".join([*lines, *wrap(hint)])
    lines = fold(_join(_outcome(created, created.memory)), 0)
    mark, sign = (GREEN, "✓") if created.stored else (YELLOW, "=")
    lines[0] = f"{paint(mark, sign)} {lines[0]}"
    if created.corrects and created.stored:
        newer, older = created.memory.id[:SHORT_ID], created.corrects[:SHORT_ID]
        advice = f"both true? memory update {newer} --not-corrects {older}"
        lines.append(paint(DIM, f"  {complete_commands(advice)}"))
    if others := created.replaceable:
        lines.append(paint(YELLOW, "To replace one of these, add --supersedes ID:"))
        lines += [
            _line(record.id, record.content, _similarity(record, record.difference))
            for record in others
        ]
    if created.not_merged:
        lines += wrap(hint)
    if created.note:
        lines += wrap(paint(YELLOW, safe(created.note)))
    return "\n".join(lines)


def _outcome(created: "Created", record: Memory) -> list[str]:
    """Return the parts of the line that reports how a memory was stored."""
    name = safe(record.id[:SHORT_ID])
    verb = "stored" if created.stored else "already stored as"
    parts = [f"{verb} {name}"]
    if created.stored and record.version > 1:
        parts.append(f"version {record.version} of {_name(record.key or name)}")
    if created.stored and record.anchors:
        parts.append(f"anchors: {safe(', '.join(record.anchors))}")
    parts += map(safe, describe_merge(created))
    if created.reinforced:
        parts.append("reinforced")
    if created.corrects and created.stored:
        parts.append(_correction(created, record))
    if created.redacted:
        parts.append(f"removed: {count_kinds(created.redacted)}")
    if record.suspicious and created.stored:
        parts.append(_with_suspicion("", record.suspicious))
    if record.pending:
        parts.append(f"{WAITS}: {complete_commands('memory review')}")
    return parts


def _correction(created: "Created", record: Memory) -> str:
    ids = [name[:SHORT_ID] for name in corrected_ids(record)]
    corrected = f"corrects {safe(' and '.join(ids))}"
    for similar in created.similar_to:
        if similar.id == created.corrects and similar.difference:
            _, _, change = similar.difference.rpartition(": ")
            return f"{corrected}: {safe(change).replace(' -> ', ' → ')}"
    return corrected


def _similarity(record: "Similar", remark: str) -> str:
    if record.origin:
        remark = ", ".join(filter(None, [remark, f"by {_writer(record.origin)}"]))
    return _with_suspicion(remark, record.suspicious)


def bulk_result(affected: "Affected", undo: str | None, limit: int) -> str:
    """Render the result of a bulk change, with the first `limit` memories."""
    if not any(affected.counts.values()):
        lines = ["Nothing matches."]
    else:
        head = "Would be done" if affected.dry_run else "Done"
        lines = [f"{head}: {summarize(affected)}."]
    for step in affected.steps[:limit]:
        is_memory = len(step.id) == ID_LENGTH
        short_id = safe(step.id[:SHORT_ID] if is_memory else step.id)
        content = shorten(step.content, 12 + SHORT_ID)
        reason = f" ({safe(step.reason)})" if step.reason else ""
        lines.append(f"  {step.action:<8}{paint(DIM, short_id)}  {content}{reason}")
    more = sum(affected.counts.values()) - min(limit, len(affected.steps))
    if more > 0:
        lines.append(f"  and {more} more")
    lines += list_current_again(affected.current_again[:limit], affected.current_again_count)
    if undo:
        lines.append(f"To undo it: {undo}")
    return "\n".join(lines)


def without_vector(count: int) -> str:
    """Return a sentence on how many records have no vector, and the remedy."""
    have = amount(count, "has", "have")
    return f"{have} no vector; memory reembed adds the missing vectors, unless EMBEDDER=none."


def list_current_again(memory_ids: Sequence[str], count: int | None = None) -> list[str]:
    """Render a line about memories that are current again; no line if there are none.

    Args:
        memory_ids: The memories to name.
        count: How many such memories there are in all; by default, as many as are named.
    """
    count = len(memory_ids) if count is None else count
    names = ", ".join(memory_id[:SHORT_ID] for memory_id in memory_ids)
    return [f"Current again ({count}): {safe(names) or '…'}"] if count else []


def page(result: Page) -> str:
    """Render a page of memories."""
    if not result.memories:
        return NOTHING
    blocks = [
        _memory_block(None, record, f"version {record.version}") for record in result.memories
    ]
    if result.next_cursor:
        blocks.append(f"Next page: --cursor {result.next_cursor}")
    return "\n\n".join(blocks)


def history(record: History) -> str:
    """Render every version of a memory."""
    blocks = [paint(DIM, safe(record.id)), *map(_version, record.versions)]
    links = {field.label: getattr(record, field.name) for field in MEMORY if field.name in _LINKS}
    blocks += [f"{label} {_cell(names)}" for label, names in links.items() if names]
    return "\n\n".join(blocks)


def _version(version: "Version") -> str:
    head = f"version {version.version}, {version.operation}"
    if version.origin:
        head += f" by {_writer(version.origin)}"
    head += f", {format_time(version.created_at)}"
    if version.ended_by == PENDING:
        head += f", {WAITS}"
    elif version.ended_at:
        head += f", until {format_time(version.ended_at)} ({version.ended_by})"
    else:
        head += ", current"
    if version.accepted_at:
        by = safe(version.accepted_by or "-")
        head += f", accepted {format_time(version.accepted_at)} by {by}"
    head = _with_suspicion(head, version.suspicious, ", ")
    lines = [
        *(paint(DIM, part) for part in wrap(head)),
        f"  {mark_lines(version.content, indent='  ')}",
    ]
    if version.tags:
        lines.append(f"  {paint(DIM, _tags(version.tags))}")
    return "\n".join(lines)


def tags(key: str | None, counts: Mapping[str, int]) -> str:
    """Render the tag keys, or the values of one key, with their counts."""
    if not counts:
        return "No tags." if key is None else f"No memory has the tag {safe(key)}."
    return table((safe(name), f"{count:>6}") for name, count in counts.items())


# --- search ---


def search_result(explanation: "Explanation", *, explain: bool) -> str:
    """Render a search's hits and, with `explain`, the table of candidates."""
    words = frozenset(explanation.terms)
    hits = [_hit(place, hit, words, explain) for place, hit in enumerate(explanation.hits, 1)]
    answer = "\n\n".join(hits) or "Nothing found."
    if note := search_note(explanation):
        answer += f"\n\n{paint(YELLOW, safe(note))}"
    if not explain:
        return answer
    terms = ", ".join(map(safe, explanation.terms)) or "-"
    lines = [answer, "", f"words searched for: {terms}", *_candidates(explanation.considered)]
    return "\n".join(lines)


def _hit(place: int, hit: "Hit", words: frozenset[str], explain: bool) -> str:
    score = f"score {hit.score:.2f}" if explain else ""
    if explain and hit.similarity is not None:
        score += f" · similarity {hit.similarity:.2f}"
    if isinstance(hit.found, Memory):
        return _memory_block(place, hit.found, score, words)
    return _turn_block(place, hit.found, score, words)


def _candidates(candidates: "Sequence[Considered]") -> list[str]:
    """Render the table of candidates, without columns that are empty for all of them."""
    if not candidates:
        return []
    head = "  score"
    widths: dict[str, int] = {}
    for name in candidates[0].features:
        if any(candidate.features[name] for candidate in candidates):
            title = name.replace("similarity", "sim.").replace("_", " ")
            widths[name] = max(7, len(title) + 2)
            head += title.rjust(widths[name])
    lines = [head]
    for candidate in candidates:
        cells = ""
        for name, width in widths.items():
            value = candidate.features[name]
            cell = "-" if value is None else f"{value:.3g}"
            cells += cell.rjust(width)
        content = shorten(candidate.content, 9 + sum(widths.values()))
        lines.append(f"{candidate.score:>7.4f}{cells}  {content}")
        if candidate.dropped:
            lines.append(f"{'':>7}  {paint(YELLOW, f'dropped: {candidate.dropped}')}")
    return lines


# --- review ---


def rivals(record: "Rivals") -> str:
    """Render the current memories that resemble a waiting one, one per line."""
    lines = [_line(same.id, same.content, "says the same thing") for same in record.duplicates]
    lines += [_similar_line(similar, "differs") for similar in record.similar_to]
    return "\n".join(lines)


def _similar_line(record: "Similar", label: str) -> str:
    """Render a memory on one line, with a label and a description of the difference, if any."""
    return _line(record.id, record.content, ": ".join(filter(None, (label, record.difference))))


def accept_result(reviews: "Sequence[Reviewed]", *, dry_run: bool) -> str:
    """Render the result of accepting memories."""
    count = sum(review.done for review in reviews)
    verb = "Would accept" if dry_run else "Accepted"
    head = f"{verb} {count}"
    if count < len(reviews):
        head += f", {len(reviews) - count} left waiting"
    lines = [f"{head}."]
    for review in reviews:
        render = _render_accepted if review.done else _render_waiting
        lines += render(review)
    return "\n".join(lines)


def _render_accepted(review: "Reviewed") -> list[str]:
    record, remark = review.memory, ""
    if record.id != review.id:
        remark = f"as {record.id[:SHORT_ID]}, which has the same key or says the same thing"
    elif review.is_outdated:
        remark = HINT_OUTDATED
    similar = [_similar_line(similar, "similar") for similar in review.similar_to]
    current_again = list_current_again(review.current_again)
    return [_line(review.id, record.content, remark), *similar, *current_again]


def _render_waiting(review: "Reviewed") -> list[str]:
    head = _line(review.id, review.memory.content, "left waiting")
    duplicates = [
        _line(similar.id, similar.content, f"{similar.similarity:.2f} similar")
        for similar in review.duplicates
    ]
    hint = complete_commands(hint_left(review, review.id[:SHORT_ID]))
    return [head, *duplicates, *(f"  {paint(YELLOW, part)}" for part in wrap(hint, 2))]


def reject_result(reviews: "Sequence[Reviewed]", *, dry_run: bool) -> str:
    """Render the result of rejecting memories."""
    verb = "Would reject" if dry_run else "Rejected"
    head = f"{verb} {len(reviews)}; memory restore ID puts one back in the review queue."
    head = complete_commands(head)
    return "\n".join([head, *(_line(review.id, review.memory.content) for review in reviews)])


# --- conversations ---


def turns(records: "Sequence[Turn]") -> str:
    """Render turns, in order."""
    return "\n\n".join(_turn_block(None, record, "") for record in records) or NOTHING


def add_turn_result(turn: "Turn") -> str:
    """Render the result of adding one turn."""
    if turn.status == "stored":
        return turns([turn])
    remark = "Already known: not stored again."
    if turn.reason:
        remark = "Nothing was stored: the message id belongs to this turn."
    return f"{turns([turn])}\n{remark}"


def add_turns_result(records: "Sequence[Turn]") -> str:
    """Render the result of adding many turns."""
    if not records:
        return "No turns."
    counts = Counter(turn.status for turn in records)
    redacted: list[str] = []
    refused = []
    for turn in records:
        redacted += turn.redacted
        if turn.reason:
            refused.append(f"Refused: {safe(turn.reason)}.")
    head = f"Added {amount(counts['stored'], 'turn', 'turns')}"
    if counts["stored"]:
        last = max(turn.index for turn in records if turn.status == "stored")
        head += f"; the last one has index {last}"
    if redacted:
        head += f". Removed before storing: {count_kinds(redacted)}"
    lines = [f"{head}."]
    if counts["known"]:
        lines.append(f"Already known: {counts['known']}.")
    return "\n".join([*lines, *refused])


def conversations(page: "ConversationPage") -> str:
    """Render a page of conversations."""
    if not page.conversations:
        return NOTHING
    rows = table((_name(record.id), _summary(record)) for record in page.conversations)
    if page.next_cursor:
        return f"{rows}\n\nNext page: --cursor {safe(page.next_cursor)}"
    return rows


def conversation(record: "Conversation") -> str:
    """Render a conversation as it appears in lists."""
    return table([(_name(record.id), _summary(record))])


def _summary(record: "Conversation") -> str:
    first, last = f"{record.first_at.astimezone():%Y-%m-%d}", format_time(record.last_at)
    turns = amount(record.turn_count, "turn", "turns")
    parts = [f"{turns:>12}, {first} to {last}"]
    if record.waiting_count:
        parts.append(f"{record.waiting_count} waiting to be stored")
    labels = []
    if record.title:
        labels.append(f"title={_name(record.title)}")
    if record.user:
        labels.append(f"user={_name(record.user)}")
    return _join([*parts, " ".join(labels), _tags(record.tags)])


# --- parts of the output ---


def _turn_block(
    place: int | None, turn: "Turn", score: str, words: frozenset[str] = frozenset()
) -> str:
    """Render a turn: its content, speaker, time and place."""
    part = ""
    if turn.part:
        part = f"part {turn.part} of {turn.parts}"
    elif turn.waiting:
        part = "waiting to be stored"
    details = [
        score,
        part,
        _with_suspicion("", turn.suspicious),
        f"{_name(turn.speaker or turn.role)} in {_name(turn.conversation_id)}",
        format_time(turn.created_at),
        _tags(turn.tags),
        f"stored by {_writer(turn.origin)}" if turn.origin else "",
    ]
    return _block(place, turn.content, _join(details), turn.id, words)


def _memory_block(
    place: int | None, record: Memory, remark: str, words: frozenset[str] = frozenset()
) -> str:
    """Render a memory in the form used in listings: its content, and a line about it."""
    details = [record.verdict.describe()] if record.verdict else []
    if record.corrected_by:
        details.append(f"corrected by {safe(record.corrected_by)[:SHORT_ID]}")
    details += [remark, _with_suspicion("", record.suspicious)]
    if record.confidence < 0.995:
        details.append(f"confidence {record.confidence:.0%}")
    details.append(describe_age(record.updated_at, datetime.now(UTC)))
    if record.origin:
        details.append(f"by {_writer(record.origin)}")
    details.append(_tags(record.tags))
    if record.namespace != SHARED:
        details.append(f"in {record.namespace}")
    if record.pending:
        details.append(WAITS)
        if record.key:  # accepting it would also replace the existing memory that has the same key
            details.append(f"key {safe(record.key)}")
        if record.supersedes:
            details.append(f"supersedes {record.supersedes}")
    return _block(place, record.content, _join(details), record.id[:SHORT_ID], words)


def _block(place: int | None, content: str, details: str, name: str, words: frozenset[str]) -> str:
    number = "" if place is None else f"{place:>2}  "
    indent = " " * len(number)
    if len(content) > MAX_SHOWN:
        content = f"{content[:MAX_SHOWN]}…"
    lines = mark_lines(content, indent).split("\n")
    shown = paint(BOLD, "\n".join(lines))
    if len(lines) > MAX_LINES and is_terminal():
        shown = cut_around(lines, words, f"{complete_commands('memory get')} {safe(name)}", indent)
    folded = f"\n{indent}    ".join(fold(safe(details), len(indent) + 4))
    return f"{number}{shown}\n{indent}{paint(DIM, folded)}\n{indent}{paint(DIM, safe(name))}"


def _line(memory_id: str, content: str, remark: str = "") -> str:
    note = paint(DIM, f"({safe(remark)})") if remark else ""
    return f"  {safe(memory_id[:SHORT_ID])}  {shorten(content, SHORT_ID + 4)}  {note}".rstrip()


def _join(details: Iterable[str]) -> str:
    return " · ".join(filter(None, details))


def _writer(origin: Origin) -> str:
    """Return who wrote a record and, unless an agent did, how far the record is trusted."""
    trust = "" if origin.trust == AGENT else f" ({origin.trust})"
    return f"{_name(origin.by)}{trust}"


def _with_suspicion(remark: str, rules: Sequence[str], separator: str = " · ") -> str:
    """Add to a remark the rules that flagged a text as a possible instruction to a model."""
    if not rules:
        return remark
    return separator.join(filter(None, [remark, f"suspicious: {', '.join(rules)}"]))


def _tags(tags: Mapping[str, str]) -> str:
    return " ".join(f"{_name(key)}={_name(value)}" for key, value in tags.items())


def _name(text: str) -> str:
    """Return a name or tag value, quoted if it could be mistaken for anything else."""
    name = safe(text)
    return f'"{name}"' if _NEEDS_QUOTES.search(name) else name
