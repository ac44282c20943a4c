"""Commands that decide about memories that wait for review: review list, accept, edit, reject."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from memories.answers import shapes
from memories.cli.bulk import ids_from_input
from memories.cli.memories import NOT_STORED, edited
from memories.cli.options import (
    Group,
    fields_option,
    in_session,
    limit_option,
    memory_id,
    option,
    rule_options,
    whole_number,
)
from memories.cli.output import changing, emit, note, require_person
from memories.cli.search import emit_fields, field_names
from memories.cli.session import read_argument, texts
from memories.errors import InvalidInput

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.write.review import Reviewed

_all = option("--all", "everything", is_flag=True, section="Filters", help="All that waits.")
_yes = option(
    "--yes",
    is_flag=True,
    help="Decide without a terminal: in a script of your own. An agent can't.",
)
_dry_run = option("--dry-run", is_flag=True, help="Change nothing, only show what would happen.")


class _Review(Group):
    """A group that lists where no other command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; see `click.Group.parse_args`."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_Review,
    epilog="memory review\nmemory review accept 01a1fdf1-92cd-72f2\nmemory review reject --import 01a1fe00-17ab-7c55",
)
def review() -> None:
    """Decide about memories that wait: list, accept, edit, reject.

    What a hook has captured and what an import of a foreign file brought waits here: no search,
    list or context shows it before it is accepted. Without a command it lists what waits in the
    namespace. Only a person decides. An agent may list what waits and use --dry-run.
    """


@review.command(
    "list", epilog="memory review list --trust captured --since 7d\nmemory review --match deploy"
)
@rule_options
@option("--suspicious", is_flag=True, section="Filters", help="Only what is marked as suspicious.")
@limit_option
@option(
    "--cursor",
    metavar="CURSOR",
    section="Output",
    help="Continue after a page; next_cursor of that page.",
)
@fields_option
@in_session(reads=False)
def list_(
    memories: "Memories",
    which: Mapping[str, Any],
    suspicious: bool,
    limit: str | None,
    cursor: str | None,
    fields: str | None,
) -> None:
    """List what waits for review, newest first."""
    most, names = whole_number(limit), field_names(fields)
    page = memories.review.page(
        limit=memories.config.default_limit if most is None else most,
        cursor=cursor,
        suspicious=suspicious or None,
        **which,
    )
    emit_fields(shapes.page(page), lambda: str(texts().waiting(page)), None, names)


@review.command(
    epilog="memory review accept 01a1fdf1-92cd-72f2\nmemory review accept --import 01a1fe00-17ab-7c55 --dry-run\n"
    "memory review accept --all --trust captured"
)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@_all
@rule_options
@option(
    "--suspicious", is_flag=True, help="Also what is marked as suspicious, without naming each."
)
@option("--force", is_flag=True, help="Store them without comparing them with what is there.")
@_yes
@_dry_run
@in_session(reads=False)
def accept(
    memories: "Memories",
    ids: Sequence[str],
    everything: bool,
    which: Mapping[str, Any],
    suspicious: bool,
    force: bool,
    yes: bool,
    dry_run: bool,
) -> int:
    """Accept memories that wait, so that they are found.

    ID is the memory's id, or - to read ids from standard input; or choose by --all and filters.
    Each is compared with what is there, as a new one is: exits 3 if some were left waiting, each a
    duplicate. What is marked as suspicious has to be named by its ID.
    """
    _decide(yes=yes, dry_run=dry_run)
    chosen, batch = _chosen(memories, ids, everything, which)

    def run() -> "list[Reviewed]":
        named = memories.review.accept(chosen, force=force, dry_run=dry_run)
        return named + memories.review.accept(
            batch, suspicious=suspicious, force=force, dry_run=dry_run
        )

    done = run() if dry_run else changing(run, _accepted)
    return _answer(done, dry_run=dry_run)


@review.command(epilog='memory review edit 01a1fdf1-92cd-72f2 "Deploys happen on Thursdays"')
@memory_id
@click.argument("content", required=False)
@option("--force", is_flag=True, help="Store it without comparing it with what is there.")
@_yes
@_dry_run
@in_session(reads=False)
def edit(
    memories: "Memories", memory_id: str, content: str | None, force: bool, yes: bool, dry_run: bool
) -> int:
    """Accept a memory that waits, but with another text.

    CONTENT is the new text, or - to read it from standard input. Without it, the editor is opened
    on a terminal. The text is a version by you; what was captured stays in the history.
    """
    _decide(yes=yes, dry_run=dry_run)
    code = 0

    def accept_as(text: str) -> None:
        nonlocal code

        def run() -> "list[Reviewed]":
            return memories.review.accept([memory_id], content=text, force=force, dry_run=dry_run)

        code = _answer(run() if dry_run else changing(run, _accepted), dry_run=dry_run)

    if content is not None:
        accept_as(read_argument(content, "content"))
    elif not edited(
        memories.get(memory_id).content,
        accept_as,
        instead=f"memory review edit {memory_id} CONTENT",
    ):
        note("Nothing was accepted.")
        return 1
    return code


@review.command(
    epilog="memory review reject 01a1fdf1-92cd-72f2\nmemory review reject --all --suspicious"
)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@_all
@rule_options
@option("--suspicious", is_flag=True, section="Filters", help="Only what is marked as suspicious.")
@_yes
@_dry_run
@in_session(reads=False)
def reject(
    memories: "Memories",
    ids: Sequence[str],
    everything: bool,
    which: Mapping[str, Any],
    suspicious: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Delete memories that wait; restore has one wait again.

    ID is the memory's id, or - to read ids from standard input; or choose by --all and filters.
    """
    _decide(yes=yes, dry_run=dry_run)
    chosen, batch = _chosen(
        memories, ids, everything, {**which, "suspicious": True} if suspicious else which
    )

    def run() -> "list[Reviewed]":
        return memories.review.reject([*chosen, *batch], dry_run=dry_run)

    done = run() if dry_run else changing(run, lambda done: f"{len(done)} memories were rejected")
    emit(
        shapes.reject_result(done, dry_run=dry_run), lambda: texts().rejected(done, dry_run=dry_run)
    )


def _decide(*, yes: bool, dry_run: bool) -> None:
    """Leave the decision to a person; a look at what would happen decides nothing."""
    if not dry_run:
        require_person("what waits for review", yes=yes)


def _chosen(
    memories: "Memories", ids: Sequence[str], everything: bool, which: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Return the memories that are named, and those that are chosen by a rule or come from standard
    input.

    Raises:
        InvalidInput: None is, or both are.
    """
    if ids and (everything or which):
        raise InvalidInput("name memories, or choose them by --all and filters, not both")
    if not ids and not everything and not which:
        raise InvalidInput(
            "name the memories by their ids, or choose them by --all or a filter, such as --import ID"
        )
    piped = ids_from_input() if "-" in ids else []
    named = [each for each in ids if each != "-"]
    return named, piped if ids else memories.review.select(**which)


def _accepted(done: "Sequence[Reviewed]") -> str:
    """Return what was accepted, as a part of a sentence."""
    count = sum(each.done for each in done)
    return f"{count} memories were accepted; running it again leaves those as they are"


def _answer(done: "Sequence[Reviewed]", *, dry_run: bool) -> int:
    emit(
        shapes.accept_result(done, dry_run=dry_run), lambda: texts().accepted(done, dry_run=dry_run)
    )
    return NOT_STORED if any(each.duplicates for each in done) else 0


COMMANDS = (review,)
