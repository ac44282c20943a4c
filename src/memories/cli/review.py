"""Commands for pending memories: review accepts or rejects them, and tidy proposes changes."""

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from select import select
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from memories.answers import shapes
from memories.answers.advice import complete_commands, options_for
from memories.cli.app import Group, command, option
from memories.cli.bulk import NOT_STORED
from memories.cli.options import (
    compact,
    cursor_option,
    dry_run_option,
    fields_option,
    limit_option,
    memory_id,
    read_argument,
    read_ids,
    review_filters,
    text,
    with_memories,
)
from memories.cli.output import (
    as_sentence,
    begin_change,
    edit_text,
    emit,
    note,
    record_change,
    require_person,
    safe,
    say,
    shows_text,
)
from memories.cli.search import emit_fields, field_names
from memories.errors import InvalidInput, MemoriesError, NotFound
from memories.guard.origin import is_person
from memories.guard.validate import amount
from memories.models import Page

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.settings import Config
    from memories.write.review import Reviewed, Rivals
    from memories.write.tidy import Choose, Suggestion

_MAY_DECIDE = "memories.review.may_decide"  # key in `Context.meta` if no subcommand is named
_REJECTED = "rejected"
_TICK = timedelta(milliseconds=1)  # the precision of the store's times
# An arrow or function key sends an escape character, and a sequence that ends in a letter: up is
# ESC [ A. That letter must not count as a key. These bytes can come before it.
_ESCAPE, _BEFORE_END = b"\x1b", b"\x1b[O;0123456789"
_KEYS = "a accept · r reject · e edit · s skip · u undo · q quit"
_all_option = option(
    "--all", "everything", is_flag=True, section="Filters", help="All pending memories."
)
_yes_option = option(
    "--yes", is_flag=True,
    help="Decide without a terminal; for your own scripts, not for agents.",
)  # fmt: skip
_suspicious_option = option(
    "--suspicious", is_flag=True, section="Filters", help="Only memories marked as suspicious."
)


class _Review(Group):
    """A group whose default command is `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; see `click.Group.parse_args`."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
            ctx.meta[_MAY_DECIDE] = True
        return super().parse_args(ctx, args)


@click.group(
    cls=_Review,
    epilog="memory review\nmemory review accept 01a1fdf1-92cd-72f2\n"
    "memory review reject --import 01a1fe00-17ab-7c55",
)
def review() -> None:
    """Review pending memories: list, accept, edit or reject them.

    Memories that a hook captured, or that come from someone else's export, are held for
    review: no search, list or context shows them until they are accepted. Without a subcommand, the
    pending memories in your namespace are listed; on a terminal, they are shown one by one, and you
    press a key for each: a accept, r reject, e edit, s skip, u undo, q quit. Only a person can
    decide; an agent may list pending memories and use --dry-run.
    """


@review.command(
    "list", epilog="memory review list --trust captured --since 7d\nmemory review --match deploy"
)
@review_filters
@_suspicious_option
@limit_option
@cursor_option
@fields_option
@with_memories(reads_shared=False)
def list_(
    memories: "Memories",
    suspicious: bool,
    limit: int | None,
    cursor: str | None,
    fields: str | None,
    filters: Mapping[str, Any],
) -> None:
    """List pending memories, newest first.

    Each memory is shown with the current memories that resemble it. Memories from one import are
    shown together.
    """
    names = field_names(fields)
    rule = _nonempty({**filters, "suspicious": suspicious or None})
    is_bare = click.get_current_context().meta.get(_MAY_DECIDE) and not (limit or cursor or fields)
    if is_bare and shows_text() and is_person() and sys.stdout.isatty():
        _Decisions(memories, rule).run()
        return
    page = memories.review.page(
        limit=memories.config.default_limit if limit is None else limit, cursor=cursor, **rule
    )
    rivals = memories.review.compare(page.memories)
    render = partial(_render_page, page, rivals)
    render_compact = partial(compact.page, memories, page.memories, page.next_cursor)
    emit_fields(shapes.review_page(page, rivals), render, render_compact, names)


def _render_page(page: Page, rivals: "Sequence[Rivals]") -> str:
    """Render a page, with the memories of each import grouped together."""
    if not page.memories:
        return "Nothing is waiting for review."
    groups: dict[str | None, list[str]] = {}
    for memory, resembling in zip(page.memories, rivals, strict=True):
        block = text.page(page._replace(memories=(memory,), next_cursor=None))
        lines = f"{block}\n{text.rivals(resembling)}".rstrip()
        groups.setdefault(resembling.import_id, []).append(lines)
    blocks: list[str] = []
    for import_id, members in groups.items():
        if import_id is not None:
            blocks.append(f"From import {import_id}:")
        blocks += members
    if page.next_cursor:
        blocks.append(f"Next page: --cursor {page.next_cursor}")
    where = options_for(page.memories[0].namespace)
    blocks.append(f"To decide: memory review accept ID…{where}, or edit ID, or reject ID…")
    return "\n\n".join(blocks)


@review.command(
    epilog="memory review accept 01a1fdf1-92cd-72f2\n"
    "memory review accept --import 01a1fe00-17ab-7c55 --dry-run\n"
    "memory review accept --all --trust captured"
)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@_all_option
@review_filters
@option("--suspicious", is_flag=True, help="Also accept suspicious memories not named by ID.")
@option("--force", is_flag=True, help="Store them without comparing them with existing memories.")
@_yes_option
@dry_run_option
@with_memories(reads_shared=False)
def accept(
    memories: "Memories",
    ids: Sequence[str],
    everything: bool,
    suspicious: bool,
    force: bool,
    yes: bool,
    dry_run: bool,
    filters: Mapping[str, Any],
) -> int:
    """Accept pending memories, so that searches find them.

    Name memories by ID (- reads IDs from standard input), or select them with --all and filters.
    Like a new memory, each accepted memory is compared with existing ones; exits 3 if some were
    left pending because they are duplicates. Suspicious memories must be named by ID, unless you
    add --suspicious.
    """
    _require_person(yes=yes, dry_run=dry_run)
    named, batch = _select(memories, ids, everything, _nonempty(filters))
    if not dry_run:
        begin_change()
    reviews = memories.review.accept(named, force=force, dry_run=dry_run)
    reviews += memories.review.accept(batch, suspicious=suspicious, force=force, dry_run=dry_run)
    return _emit_accepted(reviews, dry_run=dry_run)


@review.command(epilog='memory review edit 01a1fdf1-92cd-72f2 "Deploys happen on Thursdays"')
@memory_id
@click.argument("content", required=False)
@option("--force", is_flag=True, help="Store it without comparing it with existing memories.")
@_yes_option
@dry_run_option
@with_memories(reads_shared=False)
def edit(
    memories: "Memories", memory_id: str, content: str | None, force: bool, yes: bool, dry_run: bool
) -> int:
    """Accept a pending memory with different text.

    CONTENT is the new text, or - to read it from standard input. Without CONTENT, your editor
    opens. The new text becomes a version written by you; the captured text stays in the history.
    """
    _require_person(yes=yes, dry_run=dry_run)
    codes: list[int] = []

    def accept_as(content: str) -> None:
        if not dry_run:
            begin_change()
        reviews = memories.review.accept([memory_id], content=content, force=force, dry_run=dry_run)
        codes.append(_emit_accepted(reviews, dry_run=dry_run))

    if content is not None:
        accept_as(read_argument(content, "content"))
    else:
        before = memories.get(memory_id).content
        edit_text(before, accept_as, instead=f"memory review edit {memory_id} CONTENT")
    if not codes:
        note("Nothing was accepted.")
        return 1
    return codes[0]


@review.command(
    epilog="memory review reject 01a1fdf1-92cd-72f2\nmemory review reject --all --suspicious"
)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@_all_option
@review_filters
@_suspicious_option
@_yes_option
@dry_run_option
@with_memories(reads_shared=False)
def reject(
    memories: "Memories",
    ids: Sequence[str],
    everything: bool,
    suspicious: bool,
    yes: bool,
    dry_run: bool,
    filters: Mapping[str, Any],
) -> None:
    """Delete pending memories; to undo this, run memory restore.

    Name memories by ID (- reads IDs from standard input), or select them with --all and filters.
    """
    _require_person(yes=yes, dry_run=dry_run)
    rule = _nonempty({**filters, "suspicious": suspicious or None})
    named, batch = _select(memories, ids, everything, rule)
    if not dry_run:
        begin_change()
    reviews = memories.review.reject([*named, *batch], dry_run=dry_run)
    if not dry_run:
        record_change(f"{amount(len(reviews), 'memory was', 'memories were')} rejected")
    emit(
        shapes.reject_result(reviews, dry_run=dry_run),
        partial(text.reject_result, reviews, dry_run=dry_run),
    )


def _require_person(*, yes: bool, dry_run: bool) -> None:
    if not dry_run:  # a preview decides nothing
        require_person("whether to accept or reject a memory", yes=yes)


def _nonempty(filters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in filters.items() if value not in (None, {})}


def _select(
    memories: "Memories", ids: Sequence[str], everything: bool, rule: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Return the memories named by id, and those selected by filters or on standard input.

    Raises:
        InvalidInput: No memory is selected, or memories are both named and filtered.
    """
    if ids and (everything or rule):
        raise InvalidInput("name memories, or select them with --all and filters, not both")
    if not ids and not everything and not rule:
        raise InvalidInput(
            "name the memories by their ids, or select them with --all or a filter, such as "
            "--import ID"
        )
    if not ids:
        return [], memories.review.select(**rule)
    named = [memory_id for memory_id in ids if memory_id != "-"]
    return named, read_ids() if "-" in ids else []


def _emit_accepted(reviews: "Sequence[Reviewed]", *, dry_run: bool) -> int:
    """Print the result of accepting memories; return the exit code."""
    if not dry_run:
        count = sum(review.done for review in reviews)
        accepted = amount(count, "memory was", "memories were")
        record_change(f"{accepted} accepted", "running the command again leaves those unchanged")
    render = partial(text.accept_result, reviews, dry_run=dry_run)
    emit(shapes.accept_result(reviews, dry_run=dry_run), render, compact=render)
    return NOT_STORED if any(review.duplicates for review in reviews) else 0


# --- decisions key by key ---


class _Decision(NamedTuple):
    """A decision about one memory.

    Attributes:
        word: What was decided, such as `accepted`.
        at: The time just before the memory was accepted; None if it was not.
    """

    word: str
    at: datetime | None


class _Decisions:
    """Shows the pending memories one by one, and reads a key to decide on each."""

    def __init__(self, memories: "Memories", rule: Mapping[str, Any]) -> None:
        self._memories = memories
        self._ids = memories.review.select(**rule)[::-1]  # newest first, as in the list
        self._decisions: list[_Decision] = []  # `_decisions[n]` is about `_ids[n]`

    def run(self) -> None:
        """Read keys until everything is decided, or the user quits."""
        if not self._ids:
            say("Nothing is waiting for review.")
            return
        try:
            with _single_keys() as read_key:
                while self._find_next():
                    self._show()
                    while (count := len(self._decisions)) < len(self._ids):
                        key = read_key()
                        if key in ("q", ""):
                            return
                        self._obey(key)
                        if len(self._decisions) != count:
                            break
        except KeyboardInterrupt:
            return
        finally:
            self._sum_up()

    def _obey(self, key: str) -> None:
        """Run a key's action; for any other key, list the valid keys."""
        verbs: dict[str, Callable[[], None]] = {
            "a": self._store,
            "f": partial(self._store, force=True),
            "r": self._reject,
            "e": self._edit,
            "s": partial(self._decide, "skipped", None),
            "u": self._undo,
        }
        try:
            verbs.get(key, partial(say, _KEYS))()
        except MemoriesError as exc:
            say(safe(str(exc)))

    def _find_next(self) -> bool:
        """Skip memories that are no longer waiting; return whether any memory is left."""
        while len(self._decisions) < len(self._ids):
            with contextlib.suppress(NotFound):
                if self._memories.get(self._id).pending:
                    return True
            self._decide("decided elsewhere", None)
        return False

    @property
    def _id(self) -> str:
        return self._ids[len(self._decisions)]

    def _show(self) -> None:
        memory = self._memories.get(self._id)
        number = f"{len(self._decisions) + 1} of {len(self._ids)}"
        block = text.page(Page((memory,), None))
        resembling = text.rivals(self._memories.review.compare([memory])[0])
        say(f"\n{number}\n{block}\n{resembling}".rstrip())
        say(_KEYS)

    def _decide(self, word: str, at: datetime | None) -> None:
        self._decisions.append(_Decision(word, at))
        say(f"→ {word}")

    def _store(self, content: str | None = None, *, force: bool = False) -> None:
        """Accept the memory, optionally with different text.

        The memory stays in the queue if a current memory says the same thing.
        """
        at = datetime.now(UTC) - _TICK
        begin_change()
        result = self._memories.review.accept([self._id], content=content, force=force)[0]
        if result.done:
            self._decide("accepted" if content is None else "accepted as edited", at)
            if result.is_outdated:
                say(shapes.HINT_OUTDATED)
        else:
            say(
                "Not accepted: a current memory says the same thing. Press r to reject the waiting "
                "memory, or f to accept it anyway."
            )

    def _reject(self) -> None:
        begin_change()
        self._memories.review.reject([self._id])
        self._decide(_REJECTED, None)

    def _edit(self) -> None:
        before = self._memories.get(self._id).content
        if not edit_text(before, self._store, instead=f"memory review edit {self._id} CONTENT"):
            say("The text is unchanged; press a to accept the memory.")

    def _undo(self) -> None:
        """Undo the last decision, so that the memory is pending again."""
        if not self._decisions:
            say("There is nothing to undo.")
            return
        decision = self._decisions.pop()
        if decision.word == _REJECTED:
            self._memories.restore(self._id)
        elif decision.at is not None:
            self._memories.rollback(decision.at, where=f"id = {self._id}")
        say(f"→ undone: {decision.word}")

    def _sum_up(self) -> None:
        """Print the decisions, and how many memories are still waiting."""
        counts = Counter(decision.word for decision in self._decisions)
        parts = [f"{count} {word}" for word, count in counts.items()]
        waiting = amount(self._memories.review.count(), "memory is", "memories are")
        summary = ", ".join(parts) or "nothing decided"
        record_change(summary)
        say(f"\n{as_sentence(summary)} {waiting} waiting for review.")


@contextlib.contextmanager
def _single_keys() -> Iterator[Callable[[], str]]:
    """Yield a function that waits for a key and returns it in lower case.

    At the end of the input, the function returns an empty string. `click.getchar` isn't used, since
    it would drop keys that are typed while a decision is being stored.
    """
    try:
        import termios
        import tty
    except ImportError:  # Windows
        yield lambda: click.getchar().lower()
        return
    terminal = sys.stdin.fileno()
    settings = termios.tcgetattr(terminal)
    tty.setcbreak(terminal, termios.TCSADRAIN)

    def read_key() -> str:
        key = part = os.read(terminal, 1)
        if key == _ESCAPE:
            while part and part in _BEFORE_END and select([terminal], [], [], 0.2)[0]:
                part = os.read(terminal, 1)
        return key.decode("ascii", "replace").lower()

    try:
        yield read_key
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, settings)


@command(epilog="memory tidy --dry-run\nmemory tidy && memory review")
@option("--dry-run", is_flag=True, help="Store nothing; only show the proposals.")
@with_memories(reads_shared=False)
def tidy(memories: "Memories", dry_run: bool) -> None:
    """Propose memories to delete, link or keep, for review.

    Looks for memories that repeat or contradict each other, memories whose anchors have changed,
    memories that have expired or have not been read for a year, and statements repeated in
    conversations. Nothing is changed automatically: up to 20 proposals at a time are queued for
    memory review, and a rejected proposal does not come back. TIDY_COMMAND names a command that can
    withhold proposals.
    """
    begin_change()
    withheld: list[Suggestion] = []
    choose = _ask_second_opinion(memories.config, withheld)
    proposals = memories.truth.tidy(dry_run=dry_run, choose=choose)
    if not dry_run:
        waiting = amount(len(proposals), "proposal is", "proposals are")
        record_change(f"{waiting} waiting for review")
    rows = [
        {"id": memory_id or None, "kind": kind, "content": content, "certainty": certainty}
        for (kind, content, certainty, _, _), memory_id in proposals
    ]
    answer: dict[str, Any] = {"proposals": rows, "count": len(rows)}
    if choose is not None:
        answer["withheld"] = len(withheld)
    emit(answer, partial(_render_proposals, answer))


def _ask_second_opinion(config: "Config", withheld: "list[Suggestion]") -> "Choose | None":
    """Return a function that lets the user's command choose proposals; None if there is no command.

    Proposals that the command drops are added to `withheld`. If the command fails, all are kept.
    """
    command = config.tidy_command
    if command is None:
        return None

    def choose(suggestions: "Sequence[Suggestion]") -> "Sequence[Suggestion]":
        from memories.write.tidy import consult

        try:
            chosen = consult(command, suggestions)
        except MemoriesError as exc:
            note(f"TIDY_COMMAND gave no second opinion: {exc}.")
            return suggestions
        withheld.extend(suggestion for suggestion in suggestions if suggestion not in chosen)
        return chosen

    return choose


def _render_proposals(answer: Mapping[str, Any]) -> str:
    rows = answer["proposals"]
    lines = [f"{row['certainty']:.2f} {row['kind']}: {safe(row['content'])}" for row in rows]
    if answer.get("withheld"):
        withheld = amount(answer["withheld"], "proposal", "proposals")
        lines.append(f"TIDY_COMMAND withheld {withheld}.")
    lines.append(complete_commands("To decide: memory review") if rows else "Nothing new to tidy.")
    return "\n".join(lines)


COMMANDS = (review, tidy)
