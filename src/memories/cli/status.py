"""Commands about the memory itself: status, namespaces, config, trust."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memories.answers import shapes
from memories.cli.options import (
    command,
    format_option,
    in_session,
    namespace_option,
    option,
    store_option,
    with_settings,
)
from memories.cli.output import confirm, emit, require_person, set_format, unwatch
from memories.cli.session import texts
from memories.errors import NotFound, SystemFault

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.settings import Config


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


@command(epilog="memory trust\nmemory trust ~/work/shop --yes\nmemory trust --revoke\nmemory trust --list")
@click.argument("folder", default=".")
@option("--revoke", is_flag=True, help="Take it back.")
@option("--list", "listed", is_flag=True, help="List what is trusted.")
@option("--yes", is_flag=True, help="Do not ask: in a script of your own. An agent can't.")
@format_option
def trust(folder: str, revoke: bool, listed: bool, yes: bool, output: str | None) -> None:
    """Let the .env of a folder choose every setting.

    Otherwise such a file may choose how many results there are and how they are printed, and nothing else: a folder
    that came from elsewhere could choose where memories are kept and sent. Any change of the file ends the trust. Only
    a person may do this: an agent is refused.
    """
    from memories.config import registers, variables_of
    from memories.core import trust as register

    if output is not None:
        set_format(output)
    if listed:
        files = register.approved_files(registers())
        rows = [{"file": file, "sha256": digest} for file, digest in files.items()]
        emit({"trusted": rows}, lambda: "\n".join(files) or "No file is trusted.")
        return
    given = Path(folder).expanduser()
    file = (given / ".env" if given.is_dir() else given).absolute()
    if revoke:
        if not register.revoke(file, registers()):
            raise NotFound(f"{file} is not trusted")
        emit({"file": str(file), "trusted": False}, lambda: f"{file} is no longer trusted.")
        return
    require_person("which settings a folder chooses", yes=yes)
    found = register.read(file, registers())
    names = variables_of(found.values)
    question = f"Let {file} choose {', '.join(names) or 'no setting so far'}?"
    if yes or confirm(question, otherwise="Nothing was trusted."):
        digest = register.approve(file, registers())
        shape = {"file": str(file), "trusted": True, "sha256": digest, "settings": names}
        emit(shape, lambda: f"{file} is trusted as it is now.")


COMMANDS = (status, config, trust)
