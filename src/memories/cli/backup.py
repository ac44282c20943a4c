"""Commands that keep a store safe: backup, doctor, and the part of restore that reads a file."""

import functools
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memories.answers import store_shapes
from memories.cli.options import (
    command,
    format_option,
    option,
    store_option,
    whole_number,
    with_settings,
)
from memories.cli.output import emit, note
from memories.cli.session import Bar, texts
from memories.core.urls import local_path
from memories.errors import InvalidInput, MemoriesError
from memories.guard.validate import OWN_FOLDERS
from memories.stores.records import Finding

if TYPE_CHECKING:
    from memories.settings import Config
    from memories.transfer.doctor import Examined

_KEEP = "--keep must be a whole number from 1 to 10000"


@command(epilog="memory backup\nmemory backup /mnt/disk/memories --keep 14")
@click.argument("target", metavar="[FILE|DIR]", required=False)
@option(
    "--keep",
    metavar="N",
    help="In DIR, remove older backups of this store than the newest N. [default: none]",
)
@with_settings(store_option, format_option)
def backup(config: "Config", target: str | None, keep: str | None) -> None:
    """Copy the whole store into a file, and verify the copy.

    Others may write meanwhile. In DIR the file gets a name with its store and time; by default DIR
    is the folder backups in MEMORY_HOME. A SQLite store becomes a SQLite file, any other one an
    export with vectors.
    """
    from memories.transfer.backup import back_up
    from memories.write.queue import waiting

    kept = whole_number(keep, _KEEP)
    if kept is not None and not 1 <= kept <= 10_000:
        raise InvalidInput(_KEEP)
    with Bar() as bar:
        done = back_up(config, target, keep=kept, now=datetime.now(UTC), progress=bar)
    queued = waiting(config)
    answer = store_shapes.backup_result(done, config.store, queued)
    emit(answer, lambda: texts().backed_up(answer))
    if queued:
        note(
            f"{queued} turns wait in the retry queue and are not in the backup; they are stored when an agent goes on."
        )


def restore_store(config: "Config", file: str, *, replace: bool) -> None:
    """Make the store of the settings from a file, and say so."""
    from memories.embedders import open_embedder
    from memories.scratchpad.file import mark_all_stale
    from memories.transfer.backup import restore

    embedder = open_embedder(config.embedder, config)
    with Bar() as bar:
        done = restore(
            config, Path(file), embedder, replace=replace, now=datetime.now(UTC), progress=bar
        )
    mark_all_stale(config.home)
    answer = store_shapes.restore_result(done, file, config.store)
    emit(answer, lambda: texts().restored(answer))
    if done.unchecked:
        note(f"Note: {store_shapes.HINT_UNCHECKED}.")


@command(
    epilog="memory doctor --deep\nmemory doctor --fix\nmemory doctor --secrets\nmemory doctor --salvage saved.jsonl"
)
@option("--deep", is_flag=True, help="Look at everything in the store, however long it takes.")
@option(
    "--fix",
    is_flag=True,
    help="Make again what is derived and wrong (indexes, vectors), after a backup.",
)
@option(
    "--secrets",
    is_flag=True,
    help="Also look for secrets that were stored; name where they are, never what.",
)
@option(
    "--salvage",
    metavar="FILE",
    help="Write every sound record to FILE, an export, and name the others.",
)
@with_settings(store_option, format_option)
def doctor(config: "Config", deep: bool, fix: bool, secrets: bool, salvage: str | None) -> int:
    """Find out what is wrong with a store, and what to do.

    Nothing is changed without --fix, and that leaves records as they are. Exits 1 if something is
    wrong.
    """
    from memories.transfer.doctor import examine
    from memories.transfer.doctor import fix as run_fix
    from memories.transfer.doctor import salvage as run_salvage

    if fix and salvage is not None:
        raise InvalidInput("--fix and --salvage can't be combined; salvage first")
    if secrets and (fix or salvage is not None):
        raise InvalidInput(
            "--secrets only finds; each finding tells the command that erases it, so leave the others out"
        )
    with Bar() as bar:
        if salvage is not None:
            saved = run_salvage(config, Path(salvage), progress=bar)
            emit(
                store_shapes.salvage_result(saved, salvage),
                lambda: texts().salvaged(saved, salvage),
            )
            return 1 if saved.lost else 0
        found = examine(config, deep=deep)
        look_around(config, found)
        fixed = None
        if fix:
            fixed = run_fix(config, found.findings, now=datetime.now(UTC), progress=bar)
            found = examine(config, deep=deep)
            look_around(config, found)
        if secrets:
            from memories.transfer.doctor import find_secrets
            from memories.write.queue import lines_of

            found.findings.extend(find_secrets(config, lines_of(config), bar))
    answer = store_shapes.doctor_result(found, fixed)
    emit(answer, lambda: texts().examined(answer))
    return 1 if found.findings else 0


def look_around(config: "Config", found: "Examined") -> None:
    """Look at what is not the store's: the queue, the hooks, the model, the settings, and which
    program runs.
    """
    from memories.hooks.runs import examine as examine_hooks
    from memories.settings import SETTINGS
    from memories.write.queue import refused, waiting

    found.facts["queued"] = waiting(config)
    aside = refused(config)
    found.findings.extend(
        Finding(
            f"{count} queued turns were refused for good and lie in {file}",
            f"read them, then run: rm {file}",
        )
        for file, count in aside.items()
    )
    facts, findings = examine_hooks(str(config.home))
    found.facts.update(facts)
    found.findings.extend([*findings, *examine_home(config)])
    _look_at_model(config.embedder, found)
    found.facts["settings"] = {
        setting.name: config.sources[setting.name]
        for setting in SETTINGS
        if config.sources[setting.name] != "default"
    }
    _look_for_program(found)
    _look_at_hosts(found)


def _look_at_hosts(found: "Examined") -> None:
    """Look which agents are connected, and whether what they start is there."""
    from memories.config import registers
    from memories.connect.connect import Connector
    from memories.connect.hosts import Where
    from memories.connect.status import describe_problem, find_connections

    try:
        every = find_connections(Connector(Where(Path.home(), os.environ), registers()), None)
    except InvalidInput:
        return  # the register is damaged, which the look at the home tells
    found.facts["connected"] = sorted(
        f"{each.host} in {each.root}" if each.root else each.host for each in every
    )
    found.findings.extend(Finding(*describe_problem(each)) for each in every if each.problem)


def _look_at_model(embedder: str, found: "Examined") -> None:
    """Look whether the files of a packaged model are what was packaged."""
    package = {"minilm": "memoriae", "e5": "memoriae-e5"}.get(embedder)
    if package is None:
        return
    altered = import_module(f"memories.embedders.{embedder}").altered_files()
    found.facts["model_files"] = "altered" if altered else "as packaged"
    found.findings.extend(
        Finding(
            f"{file} of the packaged model is missing or was altered", f"install {package} again"
        )
        for file in altered
    )


def _look_for_program(found: "Examined") -> None:
    """Look which `memory` is first on PATH: an agent starts that one."""
    first, ours = shutil.which("memory"), Path(sys.executable).with_name("memory")
    same = first is not None and ours.exists() and Path(first).samefile(ours)
    found.facts["program"] = {"python": sys.executable, "first_on_path": first, "is_this_one": same}
    if first is None or same:
        return
    try:
        is_memories = b"memories" in Path(first).read_bytes()[:4096]
    except OSError:
        is_memories = False
    if not is_memories:
        found.findings.append(
            Finding(
                f"{first}, the first memory on PATH, is another program",
                f"put {ours.parent} before it in PATH",
            )
        )


_PARTS = (
    "-wal",
    "-shm",
    "-journal",
    ".lock",
)  # of a SQLite store, which can't be written without them


def examine_home(config: "Config") -> list[Finding]:
    """Return what is wrong with the files beside the store; a remedy is what the reader of the file
    proposes.
    """
    from memories.config import registers
    from memories.connect.files import load_receipts
    from memories.core.trust import approved_files, read_secret
    from memories.identity import tokens
    from memories.scratchpad import file
    from memories.transfer.export import own_key

    folder, own_token = registers(), tokens.own_file(config.home)
    looks: list[Callable[[], object]] = [
        lambda: tokens.read(config.home),
        lambda: read_secret(own_token) if own_token.exists() else None,
        lambda: approved_files(folder),
        lambda: load_receipts(folder),
        lambda: own_key(folder),
    ]
    looks += [functools.partial(file.load, config.home, name) for name in _folders(config.home)]
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
        return sorted(
            each.name for each in found if each.is_dir() and not each.name.startswith(".")
        )


def _in_the_place_of_files(config: "Config") -> Iterator[Finding]:
    """Yield the folders that have the name of a file of the program or of its store, and where to
    move them.
    """
    from memories.config import is_own_name

    store = local_path(config.store)
    parts = (
        {}
        if store is None
        else {f"{store}{end}": True for end in _PARTS} | {f"{store}-requests": False}
    )
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


COMMANDS = (backup, doctor)
