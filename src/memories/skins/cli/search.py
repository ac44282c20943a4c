"""Commands that only read: search, get, history, list, tags."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from memories.skins import shapes
from memories.skins.cli.options import (
    in_session,
    limit_option,
    memory_id,
    share,
    tag_options,
    time_options,
    whole_number,
)
from memories.skins.cli.session import Session, read_argument, texts

if TYPE_CHECKING:
    from memories.search.search import Scope


@click.command(epilog='Example: memory search "when do we deploy?" --project shop --limit 3')
@click.argument("query")
@tag_options
@time_options
@limit_option
@click.option("--min-confidence", metavar="0..1", help="Leave out what is less current.")
@click.option("--min-similarity", metavar="0..1", help="Leave out what is less similar.")
@click.option("--in", "scope", metavar="WHAT", help="memories (if nothing is said), history, or all.")
@click.option("--conversation", metavar="NAME", help="Only turns of this conversation; with --in history.")
@click.option("--now", metavar="TIME", help='When the question is asked, for "yesterday"; filters nothing.')
@click.option("--explain", is_flag=True, help="Show every candidate, its numbers, and why it was dropped.")
@in_session(reads=True)
def search(
    run: Session,
    query: str,
    limit: str | None,
    min_confidence: str | None,
    min_similarity: str | None,
    scope: str | None,
    conversation: str | None,
    now: str | None,
    explain: bool,
    tags: Mapping[str, str],
    times: Mapping[str, Any],
) -> None:
    """Find memories, or turns of conversations, by meaning and by word, best first."""
    found = run.memories.explain(
        read_argument(query, "query"),
        tags=tags,
        limit=whole_number(limit),
        min_confidence=share(min_confidence, "min-confidence"),
        min_similarity=share(min_similarity, "min-similarity"),
        scope=cast("Scope", scope or "memories"),  # the service refuses any other
        conversation=conversation,
        now=now,
        **times,
    )
    run.show(shapes.found(found, explain=explain), lambda: texts().found(found, explain=explain))


@click.command(epilog="Example: memory get 01a1fdf1-92cd-72f2")
@memory_id
@in_session(reads=True)
def get(run: Session, memory_id: str) -> None:
    """Show a memory."""
    memory = run.memories.get(memory_id)
    run.show(shapes.memory(memory), lambda: texts().memory(memory))


@click.command(epilog="Example: memory history 01a1fdf1-92cd-72f2")
@memory_id
@in_session(reads=True)
def history(run: Session, memory_id: str) -> None:
    """Show every version of a memory, oldest first."""
    versions = run.memories.history(memory_id)
    run.show(shapes.history(versions), lambda: texts().history(versions))


@click.command("list", epilog="Example: memory list --since 7d --type preference")
@tag_options
@time_options
@click.option("--deleted", is_flag=True, help="The deleted ones instead.")
@limit_option
@click.option("--cursor", metavar="CURSOR", help="Continue where next_cursor of the page before says.")
@in_session(reads=True)
def list_(
    run: Session,
    deleted: bool,
    limit: str | None,
    cursor: str | None,
    tags: Mapping[str, str],
    times: Mapping[str, Any],
) -> None:
    """List memories, newest first."""
    page = run.memories.list(tags=tags, deleted=deleted, limit=whole_number(limit), cursor=cursor, **times)
    run.show(shapes.page(page), lambda: texts().page(page))


@click.command(epilog="Example: memory tags project")
@click.argument("key", required=False)
@in_session(reads=True)
def tags(run: Session, key: str | None) -> None:
    """List tag keys, or one key's values, with counts."""
    counts = run.memories.tags(key)
    run.show(shapes.tags(key, counts), lambda: texts().tags(key, counts))


COMMANDS = (search, get, history, list_, tags)
