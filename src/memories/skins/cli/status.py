"""Commands about the memory itself: status, config."""

import os
import sys
from typing import TYPE_CHECKING

from memories.errors import SystemFault
from memories.skins import shapes
from memories.skins.cli.options import command, format_option, in_session, namespace_option, store_option, with_settings
from memories.skins.cli.output import emit, unwatch
from memories.skins.cli.session import texts

if TYPE_CHECKING:
    from memories.config import Config
    from memories.service import Memories


@command(epilog="memory status\nmemory status --format text")
@in_session(reads=True)
def status(memories: "Memories") -> int:
    """Check that the store works, and show what it holds.

    Exits 1 if the store can't be used or is damaged; "error" says why.
    """
    unwatch()  # what is damaged is told in the answer
    try:
        found = memories.status()
    except SystemFault as exc:
        message = str(exc)
        emit(shapes.unhealthy(memories.config.store, message), lambda: f"unhealthy: {message}", stream=sys.stderr)
        return 1
    problem = shapes.trouble(found) or _why_not_creatable(found.store)
    emit(shapes.status(found, problem), lambda: texts().status(found, problem))
    return 1 if problem else 0


@command(epilog="memory config\nmemory config --format text")
@with_settings(namespace_option, store_option, format_option)
def config(found: "Config") -> None:
    """Show every setting and where it came from."""
    emit(shapes.config(found), lambda: texts().config(found))


def _why_not_creatable(store: str) -> str:
    """Return why a store on this machine can't be created; nothing if it can be, is there, or is on a server.

    Only trying tells: root may write everywhere, and yet not in /proc.
    """
    from memories.stores import local_path

    path = local_path(store)
    if path is None or os.path.lexists(path):
        return ""
    try:
        folder = next(folder for folder in path.parents if folder.exists())
        probe = folder / f".memories-{os.getpid()}"
        probe.mkdir()
        probe.rmdir()
    except OSError as exc:
        return f"cannot create {path}: {exc.strerror}; set MEMORY_HOME or MEMORY_STORE to a place that can be written"
    return ""


COMMANDS = (status, config)
