"""Commands that keep a store safe: backup, doctor, and restore from a file."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memories.answers import store_shapes
from memories.answers.advice import complete_answer, complete_commands
from memories.cli.app import check_path, command, option
from memories.cli.options import (
    ProgressBar,
    format_option,
    store_option,
    whole_number_or,
    with_settings,
)
from memories.cli.output import (
    DIM,
    GREEN,
    YELLOW,
    begin_change,
    emit,
    format_time,
    note,
    paint,
    record_change,
    safe,
    table,
)
from memories.cli.text import without_vector
from memories.core.urls import local_path
from memories.errors import InvalidInput, MemoriesError
from memories.guard.validate import KEEP_RULE, OWN_FOLDERS, amount
from memories.stores.records import Finding

if TYPE_CHECKING:
    from memories.settings import Config
    from memories.transfer.doctor import Examined, Salvaged

_MAX_LOST = 100  # maximum number of lost records printed
_MODEL_PACKAGES = {"minilm": "memoriae", "e5": "memoriae-e5"}


# --- backup and restore ---


@command(epilog="memory backup\nmemory backup /mnt/disk/memories --keep 14")
@click.argument("target", metavar="[FILE|DIR]", required=False, callback=check_path)
@option(
    "--keep", metavar="N", parse=whole_number_or(KEEP_RULE),
    help="In DIR, keep only the N newest backups of this store. [default: all]",
)  # fmt: skip
@with_settings(store_option, format_option)
def backup(config: "Config", target: str | None, keep: int | None) -> None:
    """Copy the entire store to a file, and verify the copy.

    Other programs may write to the store during the backup. In a DIR, the file is named after the
    store and the time. The default DIR is MEMORY_HOME/backups. A SQLite store is copied to a SQLite
    file; any other store is exported with its vectors.
    """
    from memories.transfer.backup import back_up
    from memories.write.turn_queue import count_waiting

    with ProgressBar() as bar:
        result = back_up(config, target, keep=keep, now=datetime.now(UTC), progress=bar)
    queued = count_waiting(config)
    answer = store_shapes.backup_result(result, config.store, queued)
    records = amount(answer["records"], "record", "records")
    record_change(f"a backup with {records} was written to {answer['backup']}")
    lines = [f"Backed up and verified: {records} in {answer['backup']}."]
    lines += [f"Removed {file}" for file in answer["removed"]]
    emit(answer, "\n".join(map(safe, lines)))
    if queued:
        turns = amount(queued, "turn in the retry queue is", "turns in the retry queue are")
        note(f"{turns} not in the backup; waiting turns are stored when an agent next runs.")


def restore_store(config: "Config", file: str, *, replace: bool) -> None:
    """Restore the configured store from a file, and print the result."""
    from memories.embedders import open_embedder
    from memories.scratchpad.file import mark_all_stale
    from memories.transfer.backup import restore

    embedder = open_embedder(config.embedder, config)
    now = datetime.now(UTC)
    begin_change()
    with ProgressBar() as bar:
        restored = restore(config, Path(file), embedder, replace=replace, now=now, progress=bar)
    mark_all_stale(config.home)
    answer = store_shapes.restore_result(restored, file, config.store)
    record_change(f"the store was restored from {file}")
    emit(answer, partial(_render_restore, answer))
    if restored.unchecked:
        note(f"Note: {store_shapes.HINT_UNCHECKED}.")


def _render_restore(answer: Mapping[str, Any]) -> str:
    made = f", made at {format_time(answer['made_at'])}" if answer["made_at"] else ""
    records = amount(answer["records"], "record", "records")
    lines = [f"Restored and verified: {records} from {answer['restored']}{made}."]
    if answer["without_vector"]:
        lines.append(complete_commands(without_vector(answer["without_vector"])))
    if answer["kept"]:
        lines.append(
            f"The previous store is kept as {answer['kept']}; remove it when you no longer need it."
        )
    return "\n".join(map(safe, lines))


# --- doctor ---


@command(
    epilog="memory doctor --deep\nmemory doctor --fix\nmemory doctor --secrets\n"
    "memory doctor --salvage saved.jsonl"
)
@option("--deep", is_flag=True, help="Check everything in the store, even if it takes a long time.")
@option(
    "--fix", is_flag=True,
    help="After a backup, rebuild incorrect derived data (indexes, vectors).",
)  # fmt: skip
@option(
    "--secrets", is_flag=True,
    help="Also find stored secrets. The output shows where they are, never the secrets themselves.",
)  # fmt: skip
@option(
    "--salvage", metavar="FILE",
    help="Write every intact record to FILE, as an export, and list the others.",
)  # fmt: skip
@with_settings(store_option, format_option)
def doctor(config: "Config", deep: bool, fix: bool, secrets: bool, salvage: str | None) -> int:
    """Find problems in a store, and suggest remedies.

    Nothing is changed without --fix, and even --fix leaves the records unchanged. Exits with 1 if
    there is a problem.
    """
    from memories.transfer.doctor import examine
    from memories.transfer.doctor import fix as run_fix
    from memories.transfer.doctor import salvage as run_salvage

    if fix and salvage is not None:
        raise InvalidInput("--fix and --salvage can't be combined; run --salvage first")
    if secrets and (fix or salvage is not None):
        raise InvalidInput(
            "--secrets only finds secrets; run it without --fix and --salvage, and erase each "
            "secret with the command in its finding"
        )
    with ProgressBar() as bar:
        if salvage is not None:
            salvaged = run_salvage(config, Path(salvage), progress=bar)
            record_change(
                f"{amount(salvaged.saved, 'record was', 'records were')} saved to {salvage}"
            )
            answer = store_shapes.salvage_result(salvaged, salvage)
            emit(answer, partial(_render_salvage, salvaged, salvage))
            return 1 if salvaged.lost else 0
        examined = examine(config, deep=deep)
        examine_surroundings(config, examined)
        fixed = None
        if fix:
            begin_change()
            fixed = run_fix(config, examined.findings, now=datetime.now(UTC), progress=bar)
            record_change(", ".join(fixed.repaired) or "nothing had to be repaired")
            examined = examine(config, deep=deep)
            examine_surroundings(config, examined)
        if secrets:
            from memories.transfer.doctor import find_secrets
            from memories.write.turn_queue import lines_of

            examined.findings.extend(find_secrets(config, lines_of(config), bar))
    answer = complete_answer(store_shapes.doctor_result(examined, fixed))
    emit(answer, partial(_render_doctor, answer))
    return 1 if examined.findings else 0


def _render_doctor(answer: Mapping[str, Any]) -> str:
    findings = answer["findings"]
    lines = [paint(GREEN, "Nothing is wrong.")]
    if findings:
        lines = [paint(YELLOW, f"{amount(len(findings), 'problem', 'problems')} found:")]
    for number, finding in enumerate(findings, 1):
        lines.append(f"{number:>2}  {safe(finding['what'])}")
        if finding["remedy"]:
            lines.append(f"    {paint(DIM, safe(finding['remedy']))}")
    lines += [f"Repaired: {safe(repair)}" for repair in answer.get("repaired", ())]
    if answer.get("backup"):
        lines.append(f"The previous store is in {safe(answer['backup'])}")
    facts = []
    for name, value in answer.items():
        if name not in ("status", "findings", "repaired", "backup") and value not in (None, [], {}):
            label = name.removesuffix("_bytes").replace("_", " ")
            facts.append((label, safe(_describe_fact(name, value))))
    return "\n".join([*lines, table(facts)])


def _describe_fact(name: str, value: Any) -> str:
    if name == "program":
        return _describe_program(value)
    if name.endswith("_bytes"):
        return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.1f} MB"
    if isinstance(value, Mapping):
        value = [f"{key}: {part}" for key, part in value.items()]
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _describe_program(program: Mapping[str, Any]) -> str:
    first = program["first_on_path"]
    if program["is_this_one"]:
        found = f"{first} starts it"
    elif first:
        found = f"{first} starts a different program or installation"
    else:
        found = "the shell can't find the memory command"
    return f"installed with {program['installed_with']}; {found}; Python is {program['python']}"


def _render_salvage(salvaged: "Salvaged", file: str) -> str:
    records = amount(salvaged.saved, "record", "records")
    lines = [f"Saved {records} to {file}; memory restore reads it."]
    if salvaged.lost:
        lines.append(f"{len(salvaged.lost)} could not be saved:")
    for what, ref in salvaged.lost[:_MAX_LOST]:
        place = ""
        if ref:
            place = f" ({ref.collection} {ref.group} ({ref.position}) of {ref.namespace})"
        lines.append(f"  {what}{place}")
    if len(salvaged.lost) > _MAX_LOST:
        lines.append("  …")
    return "\n".join(map(safe, lines))


# --- doctor: checks outside the store ---


def examine_surroundings(config: "Config", examined: "Examined") -> None:
    """Check the queue, the hooks, the model, the settings and the program."""
    from memories.hooks.runs import examine as examine_hooks
    from memories.settings import SETTINGS
    from memories.write.turn_queue import count_refused, count_waiting

    facts, findings = examined.facts, examined.findings
    facts["queued"] = count_waiting(config)
    for file, count in count_refused(config).items():
        turns = amount(count, "queued turn was", "queued turns were")
        problem = f"{turns} permanently refused and kept in {file}"
        findings.append(Finding(problem, f"read them, then run: rm {file}"))
    hook_facts, hook_findings = examine_hooks(str(config.home))
    facts.update(hook_facts)
    findings.extend([*hook_findings, *examine_home(config)])
    _examine_model(config.embedder, examined)
    sources = {setting.name: config.sources[setting.name] for setting in SETTINGS}
    facts["settings"] = {name: source for name, source in sources.items() if source != "default"}
    _examine_program(examined)
    _examine_hosts(examined)


def _examine_hosts(examined: "Examined") -> None:
    """Check which agents are connected, and whether their server and hooks work."""
    from memories.config import registers
    from memories.connect.connect import Connector
    from memories.connect.hosts import Where
    from memories.connect.status import check_connections, describe_problem, find_connections

    try:
        connected = find_connections(Connector(Where(Path.home(), os.environ), registers()), None)
    except InvalidInput:
        return  # the register is damaged; `examine_home` reports it
    if connected and sys.stderr.isatty():
        hosts = ", ".join(dict.fromkeys(connection.host for connection in connected))
        note(f"starting the server and the hooks of {hosts}, to see whether they work …")
    names = []
    checks = {}
    for connection in check_connections(connected):
        place = f" in {connection.root}" if connection.root else ""
        name = f"{connection.host}{place}"
        if connection.entries is not None:
            names.append(name)
        if connection.summary:
            checks[name] = connection.summary
        if connection.problem:
            examined.findings.append(Finding(*describe_problem(connection)))
    examined.facts["connected"] = sorted(names)
    examined.facts["checked"] = checks


def _examine_model(embedder: str, examined: "Examined") -> None:
    """Check whether a packaged model's files were altered."""
    package = _MODEL_PACKAGES.get(embedder)
    if package is None:
        return
    altered = import_module(f"memories.embedders.{embedder}").altered_files()
    examined.facts["model_files"] = "altered" if altered else "as packaged"
    for file in altered:
        problem = f"{file} of the packaged model is missing or was altered"
        examined.findings.append(Finding(problem, f"install {package} again"))


def _examine_program(examined: "Examined") -> None:
    """Check how this program is installed, and which other programs might start in its place."""
    from memories.connect.program import find_beside, find_conflicts, is_same_file
    from memories.core.installation import find_installation

    first = shutil.which("memory")
    examined.facts["program"] = {
        "python": sys.executable,
        "installed_with": find_installation().installer,
        "first_on_path": first,
        "is_this_one": first is not None and is_same_file(first, find_beside("memory")),
    }
    examined.findings.extend(Finding(*conflict) for conflict in find_conflicts(os.environ))


def examine_home(config: "Config") -> list[Finding]:
    """Read each file next to the store, and return any problems."""
    from memories.config import registers
    from memories.connect.files import load_receipts
    from memories.core.trust import approved_files, read_secret
    from memories.identity import tokens
    from memories.scratchpad import file as scratchpad
    from memories.transfer.export import own_key

    folder, own_token = registers(), tokens.own_file(config.home)
    reads: list[Callable[[], object]] = [partial(tokens.read, config.home)]
    if own_token.exists():
        reads.append(partial(read_secret, own_token))
    reads += [partial(read, folder) for read in (approved_files, load_receipts, own_key)]
    reads += [partial(scratchpad.load, config.home, name) for name in _folders(config.home)]
    findings = list(_folders_instead_of_files(config))
    for read in reads:
        try:
            read()
        except (MemoriesError, OSError) as exc:
            problem, _, remedy = str(exc).partition("; ")
            findings.append(Finding(problem, remedy))
    return findings


def _folders(folder: Path) -> list[str]:
    """Return the names of the folders that may belong to namespaces."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(
            entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")
        )


def _folders_instead_of_files(config: "Config") -> Iterator[Finding]:
    """Yield a finding for each folder that has the name of one of our files."""
    from memories.config import is_own_name

    folders = {config.home / name for name in _folders(config.home) if is_own_name(name, config)}
    needed = set()
    store = local_path(config.store)
    if store is not None:
        # Writing to a SQLite store needs these files.
        needed = {Path(f"{store}{end}") for end in ("-wal", "-shm", "-journal", ".lock")}
        parts = {*needed, Path(f"{store}-requests")}
        folders |= {part for part in parts if part.is_dir()}
    for path in sorted(folders):
        if path == store or path.name in OWN_FOLDERS:
            continue
        problem = f"{path} is a folder, but should be a file"
        if path in needed:
            problem += ", so nothing can be written to the store"
        moved = path.with_name(f".{path.name}.moved")
        remedy = f"run: {shlex.join(['mv', str(path), str(moved)])}"
        if (path / "scratchpad.yaml").exists():
            remedy += (
                "; then rename the namespace, whose memories are in the store: memory namespaces "
                f"rename {path.name} NEW"
            )
        yield Finding(problem, remedy)


COMMANDS = (backup, doctor)
