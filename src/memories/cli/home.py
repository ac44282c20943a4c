"""What is wrong in the home beside the store: each file is read as the commands that need it read it."""

import functools
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from memories.config import is_own_name, registers
from memories.connect import receipts
from memories.core.trust import approved_files, read_secret
from memories.core.urls import local_path
from memories.errors import MemoriesError
from memories.guard.validate import OWN_FOLDERS
from memories.identity import tokens
from memories.scratchpad import scratchpad
from memories.settings import Config
from memories.stores.records import Finding
from memories.transfer.proof import own_key

_PARTS = ("-wal", "-shm", "-journal", ".lock")  # of a SQLite store, which can't be written without them


def examine(config: Config) -> list[Finding]:
    """Return what is wrong with the files beside the store; a remedy is what the reader of the file proposes."""
    folder, own_token = registers(), tokens.own_file(config.home)
    looks: list[Callable[[], object]] = [
        lambda: tokens.read(config.home),
        lambda: read_secret(own_token) if own_token.exists() else None,
        lambda: approved_files(folder),
        lambda: receipts.load(folder),
        lambda: own_key(folder),
    ]
    looks += [functools.partial(scratchpad.load, config.home, name) for name in _folders(config.home)]
    findings = list(_in_the_place_of_files(config))
    for look in looks:
        try:
            look()
        except (MemoriesError, OSError) as exc:
            what, _, remedy = str(exc).partition("; ")
            findings.append(Finding(what, remedy))
    return findings


def _folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder that may be those of namespaces."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as found:
        return sorted(each.name for each in found if each.is_dir() and not each.name.startswith("."))


def _in_the_place_of_files(config: Config) -> Iterator[Finding]:
    """Yield the folders that have the name of a file of the program or of its store, and where to move them."""
    store = local_path(config.store)
    parts = {} if store is None else {f"{store}{end}": True for end in _PARTS} | {f"{store}-requests": False}
    homes = {config.home / name for name in _folders(config.home) if is_own_name(name, config)}
    for path in sorted(homes | {Path(part) for part in parts if Path(part).is_dir()}):
        if path == store or path.name in OWN_FOLDERS:
            continue
        what = f"{path} is a folder in the place of a file"
        what += ", so nothing can be written to the store" if parts.get(str(path)) else ""
        remedy = f"run: {shlex.join(['mv', str(path), str(path.with_name(f'.{path.name}.moved'))])}"
        if (path / "scratchpad.yaml").exists():
            remedy += f"; its memories are in the store: memory namespaces rename {path.name} NEW"
        yield Finding(what, remedy)
