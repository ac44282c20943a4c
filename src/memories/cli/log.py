"""The command about the audit log: log."""

from typing import TYPE_CHECKING

import click

from memories.answers import transfers
from memories.cli.options import command, in_session, limit_option, option, since_option, until_option, whole_number
from memories.cli.output import emit
from memories.cli.session import texts
from memories.errors import InvalidInput

if TYPE_CHECKING:
    from memories.memories import Memories

_ACTIONS = tuple("create update restore delete supersede reinforce turns forget import undone change".split())


@command(epilog="memory log --since 7d --action forget\nmemory log 01a1fdf1-92cd-72f2\nmemory log --verify")
@click.argument("memory_id", metavar="[ID]", required=False)
@option(
    "--conversation", metavar="NAME", section="Filters",
    help="Only changes of this conversation, even if it was forgotten.",
)  # fmt: skip
@option(
    "--action", metavar="ACTION", values=_ACTIONS, section="Filters",
    help="Only changes of this kind, such as create, reinforce or forget.",
)  # fmt: skip
@since_option
@until_option
@limit_option
@option("--verify", is_flag=True, section="Check", help="Check that no entry was changed, moved or removed.")
@option(
    "--against", metavar="HASH", section="Check",
    help="With --verify: a head that an earlier check printed. It proves that nothing before it was rewritten or cut.",
)  # fmt: skip
@in_session(reads=True)
def log(
    memories: "Memories",
    memory_id: str | None,
    conversation: str | None,
    action: str | None,
    since: str | None,
    until: str | None,
    limit: str | None,
    verify: bool,
    against: str | None,
) -> int:
    """Show who changed what and when; verify it.

    Newest first, one entry for each transaction, without any content. What was forgotten stays in the log as a fact:
    its ID, how many versions it had, who forgot it and when. With --verify, exits 1 if the log is not whole.
    """
    if not verify:
        if against is not None:
            raise InvalidInput("--against needs --verify")
        found = memories.log(
            memory_id, conversation=conversation, action=action, since=since, until=until, limit=whole_number(limit)
        )
        emit(transfers.log_entries(found), lambda: texts().log(found))
        return 0
    if any(given is not None for given in (memory_id, conversation, action, since, until, limit)):
        raise InvalidInput("--verify checks the whole log; leave out what narrows it")
    checks = memories.verify_log(against=against)
    emit(transfers.log_checks(checks), lambda: texts().log_check(checks))
    return 1 if any(check.problem for check in checks) else 0


COMMANDS = (log,)
