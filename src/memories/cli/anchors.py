"""Commands for what makes memories true: verify, confirm, tidy."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from memories.answers import shapes
from memories.cli.app import command, option
from memories.cli.options import filter_option, in_session, named_options, text, together
from memories.cli.output import begin_change, emit, record_change, safe
from memories.errors import InvalidInput
from memories.models import Page

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.write.truth import Verification

CHANGED = 1
_ANCHORS, _CITED = "Anchors", "cited"  # a section of the help, and a group of options

anchor_option = option(
    "--anchor", "anchors", metavar="ANCHOR", multiple=True, section=_ANCHORS, group=_CITED,
    help="What makes it true: a path, FILE::SYMBOL, FILE::LITERAL, commit:ID or a URL; may be "
    "repeated.",
)  # fmt: skip


def valid_until_option(*aliases: str) -> Callable[[Any], Any]:
    """Return the option for the time until which a memory holds."""
    return option(
        "--valid-until", *aliases, "valid_until", metavar="TIME", section=_ANCHORS, group=_CITED,
        help="Time until which it holds: a date means its end, 90d counts from now.",
    )  # fmt: skip


def anchor_options(*aliases: str) -> Callable[[Any], Any]:
    """Return the options for what makes a memory true; see `read_cited`.

    Args:
        *aliases: Other names of `--valid-until`.
    """
    return together(
        anchor_option,
        option(
            "--no-anchors", is_flag=True, section=_ANCHORS, group=_CITED,
            help="No anchors, not even found ones.",
        ),
        valid_until_option(*aliases),
        option(
            "--recheck", metavar="SPAN", section=_ANCHORS, group=_CITED,
            help="Time after which it should be confirmed, such as 90d.",
        ),
    )  # fmt: skip


def read_cited(cited: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes a memory true, as arguments of `Memories.create` and `update`.

    Raises:
        InvalidInput: Anchors are given and refused at once.
    """
    anchors = cited.get("anchors") or None
    if cited.get("no_anchors"):
        if anchors:
            raise InvalidInput("--anchor and --no-anchors can't be combined; leave one out")
        anchors = ()
    return {
        "anchors": anchors,
        "valid_until": cited.get("valid_until"),
        "recheck": cited.get("recheck"),
    }


@command(epilog="memory verify --project .\nmemory verify || echo 'memories are out of date'")
@filter_option("project")
@in_session(reads=True)
def verify(memories: "Memories", project: Sequence[str] | None) -> int:
    """Check whether what memories cite still holds.

    Paths, symbols and literals are checked in the project of the working folder. Nothing is run,
    and no file outside it is read. Prints what no longer holds, and what could not be checked.
    Exits 1 if a memory changed or expired. Then update, delete or confirm it.
    """
    result = memories.truth.verify(project=project)
    emit(shapes.verification(result), partial(_render, result))
    return CHANGED if result.doubtful else 0


def _render(result: "Verification") -> str:
    """Return what no longer holds, what could not be checked, and the remedies."""
    memories = (*result.doubtful, *result.unverified)
    parts = [text.page(Page(memories, None))] if memories else []
    counted = [f"{count} {word}" for word, count in result.counts.items() if count]
    parts.append(f"{', '.join(counted)}." if counted else "No memory here has an anchor.")
    if result.doubtful:
        parts.append("To settle one: memory update ID TEXT, memory delete ID, or memory confirm ID")
    return "\n\n".join(parts)


@command(
    epilog="memory confirm 01a1fdf1-92cd-72f2\n"
    "memory confirm 01a1fdf1-92cd-72f2 --anchor compose.yml::5433"
)
@named_options
@anchor_option
@valid_until_option()
@in_session(reads=True)
def confirm(
    memories: "Memories",
    ids: Sequence[str],
    key: str | None,
    project: str | None,
    cited: Mapping[str, Any],
) -> int:
    """Say that a memory is still true: adds a version.

    The text stays. It keeps the anchors that hold, and gets those that its text names. --anchor
    gives it others. A date that has passed is removed unless --valid-until gives a new one. Give
    one ID or several, or - to read ids from standard input.
    """
    from memories.cli.bulk import for_each, select

    values = read_cited(cited)
    run = partial(
        memories.truth.confirm, anchors=values["anchors"], valid_until=values["valid_until"]
    )
    selection = select(memories, ids, key, project)
    return for_each(selection, run, shapes.memory, text.memory, "confirmed")


@command(epilog="memory tidy --dry-run\nmemory tidy && memory review")
@option("--dry-run", is_flag=True, help="Store nothing, only show the proposals.")
@in_session(reads=False)
def tidy(memories: "Memories", dry_run: bool) -> None:
    """Propose what to delete, link or keep, for review.

    Looks for memories that say the same or contradict each other, whose anchors changed or whose
    time has passed, that nobody read in a year, and for statements repeated in conversations.
    Nothing is done by itself: each proposal waits in memory review, at most 20 at a time, and a
    rejected one does not come back.
    """
    begin_change()
    proposals = memories.truth.tidy(dry_run=dry_run)
    if not dry_run:
        record_change(f"{len(proposals)} proposals wait for review")
    rows = [
        {"id": memory_id or None, "kind": kind, "content": content, "certainty": certainty}
        for (kind, content, certainty, _, _), memory_id in proposals
    ]
    emit({"proposals": rows, "count": len(rows)}, partial(_render_proposals, rows))


def _render_proposals(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"{row['certainty']:.2f} {row['kind']}: {safe(row['content'])}" for row in rows]
    lines.append("To decide: memory review" if rows else "Nothing to tidy.")
    return "\n".join(lines)


COMMANDS = (verify, confirm, tidy)
