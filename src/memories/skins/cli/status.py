"""Commands about the memory itself: status, config."""

import sys

import click

from memories.config import without_password
from memories.errors import SystemFault
from memories.skins import shapes
from memories.skins.cli.options import format_option, in_session, namespace_option, store_option
from memories.skins.cli.session import Session, emit, settings, texts


@click.command(epilog="Example: memory status --format text")
@in_session(reads=True)
def status(run: Session) -> int:
    """Check that it works; show where it lies."""
    try:
        found = run.memories.status()
    except SystemFault as exc:
        message = str(exc)
        store = without_password(run.config.store)
        answer = {"status": "unhealthy", "store": store, "error": message}
        answer |= {"chromadb_host": host} if (host := shapes.chroma_host(store)) else {}
        emit(answer, lambda: f"unhealthy: {message}", stream=sys.stderr)
        return 1
    run.show(shapes.status(found), lambda: texts().status(found))
    return 1 if shapes.trouble(found) else 0


@click.command(epilog="Example: memory config --format text")
@namespace_option
@store_option
@format_option
def config(namespace: str | None, store: str | None, output: str | None) -> None:
    """Show every setting and where it came from."""
    found = settings(output, namespace, store)
    emit(shapes.config(found), lambda: texts().config(found))


COMMANDS = (status, config)
