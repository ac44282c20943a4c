"""Proposals to tidy a namespace, for `Truth.tidy`. Each proposal awaits review, and nothing is done
until a person accepts it.

A proposal is a memory that awaits review; its field `tidy` says what accepting it does. A proposal
quotes memories, so forgetting one of these also erases the proposal. Proposals are imported only
from the user's own export. The same proposal always has the same text, so a rejected one is not
made again.

`consult` runs a user-configured command that decides which suggestions to keep. Only `memory tidy`
calls it.
"""

import contextlib
import json
import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.batches import by_count
from memories.core.ids import new_id
from memories.embedders.protocol import embed_to_store
from memories.errors import SystemFault
from memories.guard.origin import HELD
from memories.languages.text import coverage, index_text, query_terms
from memories.models import (
    CHANGED,
    EXPIRED,
    PENDING,
    VERIFIED,
    Draft,
    Memory,
    is_session_note,
)
from memories.read import versions
from memories.read.replacements import reports_change
from memories.read.turns import to_turn
from memories.stores.logged import append_as_stamped, stamp_record
from memories.stores.protocol import PAGE_SIZE, find_first, scan_pages
from memories.stores.records import Candidate, Collection, Filter, Patch, Record, Ref
from memories.write.change import is_pinned
from memories.write.links import leave_correction_chains, link_correction
from memories.write.repetitions import find_differences, trust_rank
from memories.write.similar import compare_stored, read_vectors, score_rivals
from memories.write.write_context import WriteContext

if TYPE_CHECKING:
    import subprocess

OUTDATED = "outdated"  # field of an accepted proposal that was not carried out
TYPE = "tidy"  # the tag `type` of proposals to change a memory
MAX_PROPOSALS = 20
_MAX_CONSULTED = 60  # maximum number of suggestions sent for a second opinion
_OPINION_SECONDS = 120.0
_MAX_OPINION_BYTES = 65_536
_POLL_SECONDS = 0.02
_KEEP, _DROP = "keep", "drop"
_MAX_COMPARED = 2_000  # maximum number of memories that are compared, the newest first
_UNREAD_FOR = timedelta(days=365)
_UNREAD = "unread"
_LEAST_REPEATS = 3  # minimum number of conversations in which a user says the same thing
_STATEMENT_WORDS = (4, 40)
_MAX_EXCERPT = 160
_MIN_SCORE = 1.0  # minimum score of a memory that replaces another; see `read.replacements`
_MOST_SHARED = 0.6  # maximum share of the newer text's words that the older text contains
_TODO = re.compile(r"\s*(?:todo|to-do|fixme)\b", re.IGNORECASE)


class Suggestion(NamedTuple):
    """A proposal before it is stored.

    Attributes:
        kind: `same`, `contradiction`, `changed`, `expired`, `todo`, `unread` or `repeated`.
        text: The proposal and its evidence.
        certainty: From 0 to 1.
        action: What accepting it does: `delete` or `link`, with ids and versions; empty to keep the
            text as a memory. `same_as` is the memory that says the same thing as the one to delete;
            if it has changed by then, nothing is deleted.
        source: The turn from which the proposed memory was made.
    """

    kind: str
    text: str
    certainty: float
    action: Mapping[str, Any]
    source: str | None = None


def suggest(ctx: WriteContext) -> list[Suggestion]:
    """Return the suggestions for the writer's namespace, most certain first."""
    records = _read_live(ctx)
    suggestions = [
        *_find_doubtful(ctx, records),
        *_find_alike(ctx, records[:_MAX_COMPARED]),
        *_find_unread(ctx, records),
        *_find_repeated(ctx),
    ]
    by_target: dict[str, Suggestion] = {}
    for suggestion in sorted(suggestions, key=lambda each: (-each.certainty, each.text)):
        target = str(suggestion.action.get("id") or suggestion.text)
        by_target.setdefault(target, suggestion)
    return list(by_target.values())


Choose = Callable[[Sequence[Suggestion]], Sequence[Suggestion]]


def propose(
    ctx: WriteContext, *, dry_run: bool = False, choose: Choose | None = None
) -> list[tuple[Suggestion, str]]:
    """Store new proposals for review; return each with its id, which is empty in a dry run."""
    where = ctx.lookup.own.where(state="any", labels={HELD: "1"})
    earlier: set[str] = set()
    waiting = 0
    for page in scan_pages(ctx.store, where):
        earlier |= {record.text for record in page if OUTDATED not in record.fields}
        proposed = [record for record in page if versions.PROPOSED in record.fields]
        waiting += sum(record.ended_by == PENDING for record in proposed)
    room = max(0, MAX_PROPOSALS - waiting)
    new = [suggestion for suggestion in suggest(ctx) if suggestion.text not in earlier]
    if choose is not None and new and room:
        new = list(choose(new[:_MAX_CONSULTED]))
    if dry_run:
        return [(suggestion, "") for suggestion in new[:room]]
    stored = [(suggestion, _store(ctx, suggestion)) for suggestion in new[:room]]
    return [(suggestion, memory_id) for suggestion, memory_id in stored if memory_id]


def _store(ctx: WriteContext, suggestion: Suggestion) -> str:
    """Store a proposal; return its id, or "" if a memory that it quotes was forgotten."""
    tags = {"type": TYPE} if suggestion.action else {}
    draft = Draft(
        suggestion.text, tags, confidence=suggestion.certainty, pending=True,
        source=suggestion.source,
    )  # fmt: skip
    memory_id = new_id(ctx.now)
    record = versions.first_version(draft, memory_id, ctx.lookup.namespace, ctx.now)
    proposed = json.dumps(suggestion.action and {**suggestion.action, "kind": suggestion.kind})
    fields = {**record.fields, versions.PROPOSED: proposed}
    vectors = embed_to_store(ctx.embedder, [suggestion.text]).vectors[0]
    record = stamp_record(ctx.store, record._replace(fields=fields))
    with ctx.store.transaction():
        if not _has_quoted(ctx, suggestion):
            return ""
        append_as_stamped(ctx.store, [record._replace(vectors=vectors)])
    return memory_id


def _has_quoted(ctx: WriteContext, suggestion: Suggestion) -> bool:
    """Return whether the memories or the turn that a suggestion quotes still exist."""
    action, where = suggestion.action, ctx.lookup.own.where()
    if suggestion.source is not None:
        conversation, _, index = suggestion.source.rpartition("#")
        ref = Ref(Collection.HISTORY, ctx.lookup.namespace, conversation, int(index))
        return bool(ctx.store.read([ref]))
    ids = [action[name] for name in ("id", "corrects", "same_as") if name in action]
    return all(find_first(ctx.store, where._replace(group=name)) for name in ids)


class Applied(NamedTuple):
    """The result of an accepted proposal.

    Attributes:
        target: The id of the memory that the proposal is about.
        is_done: Whether the proposal was carried out.
        ended: The target as it was before, if it was deleted.
    """

    target: str
    is_done: bool
    ended: Record | None = None


def apply(ctx: WriteContext, record: Record) -> Applied | None:
    """Carry out a proposal in a transaction, unless its memories have changed since it was made, or
    its reason no longer holds. Return None if the record doesn't propose a change to a memory.
    """
    action = json.loads(record.fields.get(versions.PROPOSED, "{}"))
    if not action:
        return None
    where = Filter(Collection.MEMORY, (record.ref.namespace,), group=action["id"])
    live = find_first(ctx.store, where)
    if live is None or live.ref.position != action["version"]:
        return Applied(str(action["id"]), False)
    other = action.get("corrects", action.get("same_as"))
    older = None
    if other is not None:
        older = _find_with_same_text(ctx, where._replace(group=other), record.created_at)
        if older is None:
            return Applied(live.ref.group, False)
    if action["do"] == "link":
        return Applied(live.ref.group, older is not None and _link(ctx, live, older))
    if not _is_still_right(ctx, live, older, action.get("kind")):
        return Applied(live.ref.group, False)
    leave_correction_chains(ctx.store, [live])
    ctx.store.patch([versions.end_version(live, ctx.now, "delete")])
    return Applied(live.ref.group, True, ended=live)


def _link(ctx: WriteContext, live: Record, older: Record) -> bool:
    """Link a memory to an older one that it corrects; return whether they were linked."""
    if not {"corrects", "corrected_by"}.isdisjoint(live.fields):
        return False
    linked = link_correction(ctx.store, live, [older], now=ctx.now, at=ctx.now)
    links = {name: linked.fields.get(name) for name in versions.LINK}
    ctx.store.patch([Patch(live.ref, None, None, links)])
    return "corrects" in linked.fields


def _is_still_right(
    ctx: WriteContext, record: Record, older: Record | None, kind: str | None
) -> bool:
    """Return whether the reason for deleting a memory still holds, if it can be checked here."""
    if older is not None:
        return _adds_nothing(ctx, record, older)
    if kind == _UNREAD:
        return any(_find_unread(ctx, [record]))
    if ctx.lookup.judge is None:
        return True
    [memory] = ctx.lookup.judge.judge([ctx.to_memory(record)], ctx.now)
    return memory.verdict is None or memory.verdict.word != VERIFIED


def _find_with_same_text(ctx: WriteContext, where: Filter, since: datetime) -> Record | None:
    """Return the live version of a memory; None if its text was changed after a given time."""
    live = find_first(ctx.store, where)
    before = find_first(ctx.store, where._replace(state="any", until=since), newest_first=True)
    if live is None or before is None or live.text != before.text:
        return None
    return live


# --- a second opinion


def consult(command: str, suggestions: Sequence[Suggestion]) -> list[Suggestion]:
    """Return the suggestions that the user's command decides to keep.

    The command reads them as JSON from standard input. It prints `keep` or `drop` for each, one per
    line, or a JSON object with the ids of the suggestions to drop, such as `{"2": "drop"}`.

    Raises:
        SystemFault: The command failed, took too long, or printed anything else.
    """
    rows = [
        {"id": number, "kind": kind, "content": text, "certainty": certainty, "action": action}
        for number, (kind, text, certainty, action, _) in enumerate(suggestions, 1)
    ]
    output = _run(command, json.dumps({"proposals": rows}).encode())
    words = _read_words(output.decode("utf-8", "replace"), len(rows))
    return [
        suggestion for suggestion, word in zip(suggestions, words, strict=True) if word == _KEEP
    ]


def _read_words(output: str, count: int) -> list[str]:
    """Return a command's choice for each suggestion: `keep` or `drop`."""
    words: Any = output.lower().split()
    with contextlib.suppress(ValueError, RecursionError):
        words = json.loads(output)
    ids = list(map(str, range(1, count + 1)))
    if isinstance(words, dict) and words.keys() <= set(ids):
        words = [words.get(name, _KEEP) for name in ids]
    is_list = isinstance(words, list) and len(words) == count
    if not is_list or any(word not in (_KEEP, _DROP) for word in words):
        raise SystemFault(
            'it must print keep or drop for each proposal, or JSON such as {"2": "drop"}'
        )
    return list(words)


def _run(command: str, text: bytes) -> bytes:
    """Run a command without a shell, with a text as standard input; return its standard output."""
    import shlex  # imported here, since only a second opinion needs it
    import subprocess
    import tempfile

    deadline = time.monotonic() + _OPINION_SECONDS
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output:
        given.write(text)
        given.seek(0)
        try:
            process = subprocess.Popen(  # noqa: S603 - from the user's own settings
                shlex.split(command), stdin=given, stdout=output, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except OSError as exc:
            raise SystemFault(f"it can't be started: {exc.strerror or exc}") from exc
        try:
            while process.poll() is None:
                if os.fstat(output.fileno()).st_size > _MAX_OPINION_BYTES:
                    break
                if time.monotonic() > deadline:
                    raise SystemFault(f"it did not answer within {_OPINION_SECONDS:g} seconds")
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                _kill_group(process)
        output.seek(0)
        printed = output.read(_MAX_OPINION_BYTES + 1)
    if len(printed) > _MAX_OPINION_BYTES:
        raise SystemFault(f"it printed more than {_MAX_OPINION_BYTES // 1024} KiB")
    if process.returncode:
        raise SystemFault(f"it ended with exit code {process.returncode}")
    return printed


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and the processes that it started."""
    if os.name == "posix":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


# --- what to propose


def _read_live(ctx: WriteContext) -> list[Record]:
    """Return the live memories in the writer's namespace, newest first."""
    records: list[Record] = []
    for page in scan_pages(ctx.store, ctx.lookup.own.where(), newest_first=True):
        records += [
            record
            for record in page
            if not is_session_note(record.labels, versions.plain_key(record.key))
        ]
    return records


def _find_doubtful(ctx: WriteContext, records: Sequence[Record]) -> Iterator[Suggestion]:
    """Yield suggestions about memories that have expired or whose anchors changed."""
    judge = ctx.lookup.judge
    if judge is None:
        return
    anchored = [
        record for record in records if any(name in record.fields for name in versions.ANCHORS)
    ]
    for memory in judge.judge(list(map(ctx.to_memory, anchored)), ctx.now):
        verdict = memory.verdict
        if verdict is None or not verdict.is_doubtful:
            continue
        kind, certainty = verdict.word, {EXPIRED: 0.97, CHANGED: 0.9}[verdict.word]
        is_todo = memory.tags.get("type") == "todo" or _TODO.match(memory.content) is not None
        if kind == CHANGED and is_todo:
            kind, certainty = "todo", 0.92
        yield _deletion(kind, certainty, memory, verdict.reason)


def _find_alike(ctx: WriteContext, records: Sequence[Record]) -> Iterator[Suggestion]:
    """Yield suggestions about memories that repeat older ones or may correct them."""
    for page in by_count(records, PAGE_SIZE):
        vectors = read_vectors(ctx, page)
        for record in page:
            comparison = compare_stored(ctx, record, vectors.get(record.ref))
            older = [similar.id for similar in comparison.duplicates]
            if comparison.same is not None:
                older.insert(0, comparison.same.ref.group)
            if older and record.key is None:
                yield from _find_repetition(ctx, record, older)
            elif not versions.has_link(record) and not versions.has_expired(record, ctx.now):
                corrected = comparison.to_correct or _find_reworded(
                    ctx, record, comparison.rivals, vectors.get(record.ref)
                )
                yield from _find_contradictions(ctx, record, corrected)


def _find_repetition(
    ctx: WriteContext, record: Record, older_ids: Sequence[str]
) -> Iterator[Suggestion]:
    """Yield a suggestion to delete a memory that adds nothing to an older one."""
    for older_id in older_ids:
        where = Filter(Collection.MEMORY, (record.ref.namespace,), group=older_id)
        older = find_first(ctx.store, where)
        if older is not None and _adds_nothing(ctx, record, older):
            evidence = f"memory {older_id} says the same thing"
            same = _deletion("same", 0.95, ctx.to_memory(record), evidence)
            yield same._replace(action={**same.action, "same_as": older_id})
            return


def _adds_nothing(ctx: WriteContext, record: Record, older: Record) -> bool:
    """Return whether a memory adds nothing to an older one that says the same thing.

    That is so if the older one isn't corrected, and is as detailed, as lasting and as trusted.
    """
    differences = find_differences(older, versions.to_draft(record))
    if differences.name_new() or differences.other_tags or "source" in differences.other_fields:
        return False
    fields, older_fields = record.fields, older.fields
    if fields.get("data") not in (None, older_fields.get("data")):
        return False
    if fields.get("valid_until") != older_fields.get("valid_until"):
        return False
    if trust_rank(record) > trust_rank(older) or (is_pinned(record) and not is_pinned(older)):
        return False
    if ctx.to_memory(record).confidence > ctx.to_memory(older).confidence:
        return False
    return not versions.is_corrected(older, ctx.now)


def _find_reworded(
    ctx: WriteContext, record: Record, rivals: Sequence[Candidate], vectors: Any
) -> Sequence[Record]:
    """Return the older memory that a newer one makes out of date, if there is one.

    The newer one reports a change in different words.

    Texts with the same words but different values are left to `write.compare.corrections`, since
    usually both are true, such as the ports of two services. If both texts report changes, they are
    skipped too.
    """
    if not reports_change(record.text):
        return ()
    terms = query_terms(record.text)
    older: list[Candidate] = []
    for rival in rivals:
        have_keys = None not in (rival.record.key, record.key)
        is_older = _is_older(rival.record, record)
        if not is_older or have_keys or reports_change(rival.record.text):
            continue
        if coverage(rival.record.text, terms) <= _MOST_SHARED:
            older.append(rival)
    scored = score_rivals(ctx, Draft(record.text), older, vectors)
    return [rival.record for score, rival in scored[:1] if score >= _MIN_SCORE]


def _is_older(record: Record, other: Record) -> bool:
    """Return whether a memory's text was stated before another's."""
    stated_at, other_stated_at = versions.stated_at(record), versions.stated_at(other)
    return (stated_at, record.ref.group) < (other_stated_at, other.ref.group)


def _find_contradictions(
    ctx: WriteContext, record: Record, corrected: Sequence[Record]
) -> Iterator[Suggestion]:
    """Yield a suggestion about the newest of the older memories that a memory contradicts."""
    older: list[Record] = []
    refused = record.read_list(versions.NOT_CORRECTS)
    for rival in corrected:
        is_open = rival.ref.group not in refused and not versions.is_corrected(rival, ctx.now)
        if is_open and _is_older(rival, record):
            older.append(rival)
    if older:
        newest = max(older, key=versions.stated_at)
        text = f"Mark as corrected: {_quote(newest.text)}, because {_quote(record.text)} is newer"
        action = {
            "do": "link", "id": record.ref.group, "version": record.ref.position,
            "corrects": newest.ref.group,
        }  # fmt: skip
        yield Suggestion("contradiction", text, 0.85, action)


def _find_unread(ctx: WriteContext, records: Sequence[Record]) -> Iterator[Suggestion]:
    """Yield suggestions about memories that have not been read for a year."""
    for record in records:
        memory = ctx.to_memory(record)
        is_lasting = memory.pinned or memory.key or memory.tags.get("type") == "preference"
        since = memory.last_reinforced_at or memory.updated_at
        if not memory.access_count and not is_lasting and ctx.now - since > _UNREAD_FOR:
            evidence = f"it has not been read since {since.date().isoformat()}"
            yield _deletion(_UNREAD, 0.6, memory, evidence)


def _find_repeated(ctx: WriteContext) -> Iterator[Suggestion]:
    """Yield suggestions to keep statements that a user made in several conversations."""
    places: dict[str, dict[str, str]] = defaultdict(dict)
    texts: dict[str, str] = {}
    where = Filter(Collection.HISTORY, (ctx.lookup.namespace,))
    for page in scan_pages(ctx.store, where):
        for turn in map(to_turn, page):
            if turn.role == "user" and _is_statement(turn.content) and not turn.suspicious:
                normal = index_text(turn.content).strip(" .!")
                places[normal][turn.conversation_id] = turn.id
                texts.setdefault(normal, turn.content.strip())
    known = {index_text(record.text).strip(" .!") for record in _read_live(ctx)}
    for normal, ids in places.items():
        if len(ids) >= _LEAST_REPEATS and normal not in known:
            yield Suggestion("repeated", texts[normal], 0.7, {}, max(ids.values()))


def _is_statement(text: str) -> bool:
    lowest, highest = _STATEMENT_WORDS
    is_question = any(sign in text for sign in "?？؟")
    return not is_question and lowest <= len(text.split()) <= highest and "\n" not in text.strip()


def _deletion(kind: str, certainty: float, memory: Memory, evidence: str) -> Suggestion:
    text = f"Delete {_quote(memory.content)}: {evidence}"
    action = {"do": "delete", "id": memory.id, "version": memory.version}
    return Suggestion(kind, text, certainty, action)


def _quote(text: str) -> str:
    line = " ".join(text.split())
    if len(line) > _MAX_EXCERPT:
        return f'"{line[:_MAX_EXCERPT]}…"'
    return f'"{line}"'
