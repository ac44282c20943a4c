"""The command that puts memories back as they were at a time."""

from typing import TYPE_CHECKING

from memories.skins.cli.many import told
from memories.skins.cli.options import command, dry_run_option, in_session, option, show_option, where_option

if TYPE_CHECKING:
    from memories.service import Memories


@command(
    epilog='memory rollback --to "2 hours ago" --dry-run\n'
    "memory rollback --to 2026-05-01T09:00 --where 'by = claude-code'"
)
@option("--to", "to", metavar="TIME", required=True, help="The time to go back to; a date means its beginning.")
@where_option
@dry_run_option
@show_option
@in_session(reads=False)
def rollback(memories: "Memories", to: str, where: str | None, dry_run: bool, show: str | None) -> int:
    """Put memories back as they were at a time.

    What was created since is deleted, what was changed gets a version that says what it said, what was deleted or
    replaced is restored. Nothing is lost: the answer names the command that undoes it. Turns stay as they are. With
    --where, only memories of which a version since then, or else the latest one, meets it. Exits 1 if some could not be
    put back.
    """
    return told(memories, lambda: memories.rollback(to, where=where, dry_run=dry_run), show)


COMMANDS = (rollback,)
