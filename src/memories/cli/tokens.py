"""Commands about the tokens of a server: tokens create, list, revoke."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from memories.cli.options import Group, format_option, option, with_settings
from memories.cli.output import changing, emit, note, safe
from memories.core.times import parse_time, to_iso
from memories.errors import InvalidInput
from memories.identity import tokens as register

if TYPE_CHECKING:
    from memories.settings import Config

_SPAN = re.compile(r"\d{1,6}\s*(h|d|w|mo|y)")  # as `parse_time` reads it, which takes it for one that is over
_settings = with_settings(format_option)


@click.group(
    cls=Group,
    invoke_without_command=True,
    epilog="memory tokens create laptop --allow bob:rw --allow shared:r\nmemory tokens revoke laptop",
)
@click.pass_context
def tokens(context: click.Context) -> None:
    """Make, list and revoke the tokens of a server.

    Who asks a server over the network shows a token. It says which namespaces may be read, written or managed.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@tokens.command(
    epilog="memory tokens create ci --allow shop:rw --expires 90d\nmemory tokens create admin --allow '*:admin'"
)
@click.argument("name")
@option(
    "--allow", metavar="NAMESPACE[:LEVEL]", multiple=True,
    help="Namespace and r, rw (if left out) or admin; * is every other one. May be repeated.",
)  # fmt: skip
@option("--expires", metavar="TIME", help="When it ends: a time, or a span such as 90d from now. [default: never]")
@_settings
def create(config: "Config", name: str, allow: Sequence[str], expires: str | None) -> None:
    """Make a token and print it, this once.

    Only its hash is kept. What is written with it tells its NAME. r may read, rw also write, admin also erase for good,
    decide about reviews, and write records from another store.
    """
    grants = register.parse_grants(allow)
    until = None if expires is None else _to_come(expires)
    secret, made = changing(
        lambda: register.create(config.home, name, grants, until),
        lambda done: f'the token "{done[1].name}" was made; memory tokens revoke {done[1].id} removes it',
    )
    emit({"token": secret, **register.shape(made)}, lambda: secret)
    note("Keep it now: only its hash is stored, and it is not shown again.")


def _to_come(text: str) -> datetime:
    """Return a time to come; a span counts from now on."""
    now = datetime.now(UTC)
    time = parse_time(text, now)
    return now + (now - time) if _SPAN.fullmatch(text.strip()) else time


@tokens.command("list", epilog="memory tokens list --format text")
@_settings
def list_(config: "Config") -> None:
    """List the tokens, without what they are."""
    found = register.read(config.home)

    def text() -> str:
        rows = []
        for each in found:
            grants = " ".join(f"{name}:{level}" for name, level in each.namespaces.items())
            until = f"  until {to_iso(each.expires_at)}" if each.expires_at else ""
            used = f"  last used {to_iso(each.last_used_at)}" if each.last_used_at else "  never used"
            rows.append(f"{each.id}  {safe(each.name)}  {grants}{until}{used}")
        return "\n".join(rows) or "There are no tokens."

    emit({"tokens": [register.shape(each) for each in found], "count": len(found)}, text)


@tokens.command(epilog="memory tokens revoke laptop")
@click.argument("which", metavar="NAME|ID")
@_settings
def revoke(config: "Config", which: str) -> None:
    """Revoke a token: a running server refuses it from now on."""
    if not which.strip():
        raise InvalidInput("name the token; memory tokens list shows them")
    gone = changing(lambda: register.revoke(config.home, which), lambda done: f"the token {done.id} was revoked")
    emit(register.shape(gone) | {"revoked": True}, lambda: f"Revoked: {safe(gone.name)}")


COMMANDS = (tokens,)
