"""Commands that keep a store safe: backup, doctor, and the part of restore that takes a file."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memories.errors import InvalidInput
from memories.skins import shapes
from memories.skins.cli.options import (
    command,
    format_option,
    option,
    store_option,
    whole_number,
    with_settings,
)
from memories.skins.cli.output import emit, note
from memories.skins.cli.progress import Bar
from memories.skins.cli.session import texts

if TYPE_CHECKING:
    from memories.config import Config

_KEEP = "--keep must be a whole number from 1 to 10000"


@command(epilog="memory backup\nmemory backup /mnt/disk/memories --keep 14")
@click.argument("target", metavar="[FILE|DIR]", required=False)
@option("--keep", metavar="N", help="In DIR, keep the newest N backups of this store and remove older ones.")
@with_settings(store_option, format_option)
def backup(config: "Config", target: str | None, keep: str | None) -> None:
    """Copy the whole store into a file, and verify the copy.

    Others may write meanwhile. In DIR the file gets a name with its store and time; by default DIR is the folder
    backups in MEMORY_HOME. A SQLite store becomes a SQLite file, any other one an export with vectors.
    """
    from memories.transfer.backup import back_up
    from memories.write.queue import waiting

    kept = whole_number(keep, _KEEP)
    if kept is not None and not 1 <= kept <= 10_000:
        raise InvalidInput(_KEEP)
    with Bar() as bar:
        done = back_up(config, target, keep=kept, now=datetime.now(UTC), progress=bar)
    queued = waiting(config)
    answer = shapes.backed_up(done, config.store, queued)
    emit(answer, lambda: texts().backed_up(answer))
    if queued:
        note(
            f"{queued} turns wait in the retry queue and are not in the backup; they are stored when an agent goes on."
        )


def restore_store(config: "Config", file: str, *, replace: bool) -> None:
    """Make the store of the settings from a file, and say so."""
    from memories.embedders import open_embedder
    from memories.transfer.backup import restore

    embedder = open_embedder(config.embedder, config)
    with Bar() as bar:
        done = restore(config, Path(file), embedder, replace=replace, now=datetime.now(UTC), progress=bar)
    answer = shapes.restored(done, file, config.store)
    emit(answer, lambda: texts().restored(answer))
    if done.unchecked:
        note(f"Note: {shapes.HINT_UNCHECKED}.")


COMMANDS = (backup,)
