"""The import command, which reads memories and turns from an export or from another program."""

import contextlib
import os
import shlex
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from memories.answers import store_shapes
from memories.answers.advice import complete_commands, options_for
from memories.cli.app import check_path, command, option
from memories.cli.options import ProgressBar, no_redact_option
from memories.cli.output import (
    begin_change,
    emit,
    note,
    record_change,
    safe,
)
from memories.cli.stores import (
    CHUNK_BYTES,
    apply_edits,
    namespace_settings,
    namespaces_of,
    open_store,
)
from memories.cli.text import without_vector
from memories.core.disk import temporary_copy
from memories.errors import InvalidInput, MemoriesError
from memories.guard.validate import amount, namespace, shown
from memories.transfer.bundle import is_bundle
from memories.transfer.sources import INCLUDE, SOURCES, Reading

if TYPE_CHECKING:
    from memories.settings import Config
    from memories.transfer.importing import Imported

_COUNTED_BYTES = 33_554_432  # maximum size of a source whose items are counted in the list


@command(
    "import",
    epilog="memory import\nmemory import chatgpt export.zip --dry-run\n"
    "memory import claude-code\nmemory import backup.jsonl --all-namespaces",
)
@click.argument("source", required=False, callback=check_path)
@click.argument("path", required=False, callback=check_path)
@option("--dry-run", is_flag=True, help="Store nothing; only report what an import would do.")
@option(
    "--trusted", is_flag=True,
    help="Import without review, even though nothing proves that the statements are yours.",
)  # fmt: skip
@option(
    "--include", metavar="WHAT", multiple=True, values=INCLUDE,
    help=(
        f"Include items that are left out by default: {', '.join(INCLUDE)}; may be repeated. "
        "[default: none]"
    ),
)  # fmt: skip
@option(
    "--as", "into", metavar="NAME",
    help="Namespace for the records of an export with a single namespace. [default: unchanged]",
)  # fmt: skip
@option(
    "--yes", is_flag=True,
    help="Do not ask before storing edited texts from a folder that export --markdown wrote.",
)  # fmt: skip
@no_redact_option
@namespace_settings
def import_(
    config: "Config",
    source: str | None,
    path: str | None,
    dry_run: bool,
    trusted: bool,
    include: Sequence[str],
    into: str | None,
    yes: bool,
    no_redact: bool,
    all_namespaces: bool,
    no_shared: bool,
) -> int:
    """Import an export, or memories from another program.

    SOURCE is a file or folder whose format is recognized, or the name of a program; add PATH if the
    program's files are not in the usual place. Without SOURCE, the command lists the programs whose
    files are on this machine, and imports nothing. Run an import again to add newer items.

    Conversations become turns; to search them, run memory search --in history. Statements await
    review (memory review), unless a person adds --trusted. The output contains the id of the import
    and the command that erases it.

    A file written by memory export is checked in full first: nothing from an incomplete or damaged
    file is stored, and records that already exist are not changed. Exits with 1 if some records
    conflict with existing ones. Your own exports are imported unchanged. Use - to read an export
    from standard input. If an agent imports an export with --trusted, that agent becomes the
    writer.

    Names of programs and formats: {sources}.
    """
    if source is None:
        return _list_sources()
    name, paths = _find_source(source, path)
    if name is None:
        run = partial(_import_bundle, yes=yes) if is_bundle(Path(source)) else _import_export
        return run(
            config,
            source,
            dry_run=dry_run,
            trusted=trusted,
            into=into,
            redact=not no_redact,
            namespaces=None if into else namespaces_of(config, all_namespaces, no_shared),
        )
    if into is not None:
        config = config._replace(namespace=namespace(into))
    # Raises an error for the name of one of our files.
    namespaces_of(config, all_namespaces=False, no_shared=True)
    reading = Reading(name, paths, frozenset(include), _project_of)
    return _import_source(config, reading, dry_run=dry_run, trusted=trusted, redact=not no_redact)


import_.help = (import_.help or "").replace("{sources}", ", ".join(SOURCES))


# --- sources ---


def _project_of(folder: str) -> str | None:
    """Return a folder's project; for a folder that no longer exists, the folder's name."""
    from memories.identity.project import identify

    # `Path.is_dir` raises for names that are too long.
    if os.path.isdir(folder):  # noqa: PTH112
        project = identify(Path(folder), record=False)
        return None if project is None else project.name
    return folder.replace("\\", "/").rstrip("/").rpartition("/")[2][:64] or None


def _find_source(source: str, path: str | None) -> tuple[str | None, Sequence[Path | str]]:
    """Return the name of a source and its paths; None for a file that may be an export.

    Raises:
        InvalidInput: The source is unknown, or has no files in the usual locations.
    """
    from memories.transfer.sources import locate, recognize

    if source in SOURCES and path is not None:
        is_server = source == "chroma" and "://" in path
        return source, [path if is_server else Path(path)]
    if source in SOURCES:
        paths = [place for name, place in locate(Path.home()) if name == source]
        if not paths:
            raise InvalidInput(
                f"no {source} files are in the usual places; give the file or folder: "
                f"memory import {source} PATH"
            )
        return source, paths
    if path is not None:
        raise InvalidInput(f'there is no source "{shown(source)}"; use {", ".join(SOURCES)}')
    file = None
    # opening the file later reports the error
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        file = Path(source).resolve(strict=True)
    if file is None or source in ("", "-") or is_bundle(file) or _is_export(file):
        return None, []
    return recognize(file), [file]


def _is_export(file: Path) -> bool:
    try:
        with _open_file(str(file)) as stream:
            return b'"format":"memories"' in stream.readline(1_024).replace(b" ", b"")
    except InvalidInput:
        return False


def _import_source(
    config: "Config", reading: Reading, *, dry_run: bool, trusted: bool, redact: bool
) -> int:
    from memories.core.ids import new_id
    from memories.embedders import open_embedder
    from memories.guard.origin import origin, refuse_agent
    from memories.scratchpad.file import mark_all_stale
    from memories.transfer.foreign import Importer, SourceTerms, survey

    if trusted:
        refuse_agent("whether statements from another program count as yours")
    embedder = open_embedder(config.embedder, config)
    now = datetime.now(UTC)
    import_id = new_id(now)
    terms = SourceTerms(
        source=reading.source,
        namespace=config.namespace,
        origin=origin("import", config.identity or config.namespace)._replace(import_id=import_id),
        trusted=trusted,
        redactor=config.redactor() if redact else None,
        now=now,
        dry_run=dry_run,
    )
    with ProgressBar() as bar, open_store(config.store, embedder, config) as store:
        if not dry_run:  # read everything first, so that nothing from a damaged file is stored
            survey(reading.items(partial(bar, "checking")), now)
        where = shlex.quote(f"import = {import_id}")
        undo = f"memory forget{options_for(config.namespace)} --where {where} --in all"

        def begin() -> None:
            begin_change()
            bar.close()
            note(f"Import {import_id}; to erase it, except memories changed since: {undo}")

        importer = Importer(store, embedder, config, terms, begin)
        for counts in importer.store(reading.items(partial(bar, "importing"))):
            if not dry_run:
                items = amount(counts.turns + counts.memories, "item was", "items were")
                done = f"{items} imported as {import_id}"
                record_change(done, "running the command again adds the rest")
    counts = importer.counts
    counts.skipped.update(reading.skipped)
    answer = store_shapes.source_import_result(counts, reading.source, dry_run=dry_run)
    if not dry_run and counts.turns + counts.memories:
        mark_all_stale(config.home)
        answer |= {"import": import_id, "undo": undo}
        if counts.pending:
            answer["hint"] = f"memory review{options_for(config.namespace)} --import {import_id}"
    if not any((counts.turns, counts.memories, counts.known, counts.skipped)):
        note("No messages or statements were found; a newer version may understand this source.")
    emit(answer, partial(_render_result, answer))
    return 0


def _render_result(answer: Mapping[str, Any]) -> str:
    verb = "Would import" if answer["dry_run"] else "Imported"
    counts = _render_counts(answer) or "nothing"
    lines = [f"{verb} {counts} from {answer['source']}; {answer['known']} already known."]
    if "first" in answer:
        lines.append(f"Dates: {answer['first'][:10]} to {answer['last'][:10]}")
    if answer["pending"]:
        lines.append(f"{_render_pending(answer)}.")
    for reason, count in answer["skipped"].items():
        lines.append(f"Left out: {count} {reason}")
    if answer.get("redacted"):
        kinds = ", ".join(f"{count} {kind}" for kind, count in answer["redacted"].items())
        lines.append(f"Secrets removed: {kinds}")
    if answer["without_vector"]:
        lines.append(complete_commands(without_vector(answer["without_vector"])))
    if "hint" in answer:
        lines.append(f"To decide: {answer['hint']}")
    if "undo" in answer:
        lines.append(f"To erase this import, except memories changed since: {answer['undo']}")
    return "\n".join(map(safe, lines))


def _render_pending(answer: Mapping[str, Any]) -> str:
    """Return how many memories are held for review, as a sentence without its full stop."""
    count = answer["pending"]
    waiting = amount(count, "memory is now held", "memories are now held")
    if answer["dry_run"]:
        waiting = amount(count, "memory would be held", "memories would be held")
    return f"{waiting} for review"


def _render_counts(counts: Mapping[str, Any]) -> str:
    """Return the numbers of turns, conversations and memories; empty if there are none."""
    parts: list[str] = []
    if counts["turns"]:
        conversations = amount(counts["conversations"], "conversation", "conversations")
        parts.append(f"{amount(counts['turns'], 'turn', 'turns')} of {conversations}")
    if counts["memories"]:
        parts.append(amount(counts["memories"], "memory", "memories"))
    return " and ".join(parts)


def _list_sources() -> int:
    from memories.transfer.sources import locate

    rows: list[dict[str, Any]] = []
    with ProgressBar() as bar:
        for name, path in locate(Path.home()):
            if row := _describe_source(name, path, bar):
                rows.append(row)
    emit({"sources": rows, "count": len(rows)}, partial(_render_sources, rows))
    return 0


def _describe_source(name: str, path: Path, bar: ProgressBar) -> dict[str, Any] | None:
    """Return the counts of a source, or only its size if it is large; None for an empty source."""
    from memories.transfer.foreign import survey
    from memories.transfer.sources import load
    from memories.transfer.sources.reader import Reader

    files = Reader(path).files(*load(name).files)
    size = sum(file.stat().st_size for file in files)
    row: dict[str, Any] = {"source": name, "path": str(path), "files": len(files), "bytes": size}
    if size <= _COUNTED_BYTES:
        reading = Reading(name, [path])
        try:
            counts = survey(reading.items(partial(bar, "counting")), datetime.now(UTC))
        except MemoriesError as exc:
            row["error"] = str(exc)
        else:
            row |= store_shapes.kind_counts(counts)
            if not counts.turns and not counts.memories:
                return None
    command = f"{complete_commands('memory import')} {name} {shlex.quote(str(path))}"
    return row | {"command": command} if files else None


def _render_sources(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return complete_commands(
            "Found nothing in the usual places; give a file or folder: memory import PATH"
        )
    lines = []
    for row in rows:
        if "error" in row:
            counts = row["error"]
        elif "turns" in row:
            counts = _render_counts(row)
        else:
            files = amount(row["files"], "file", "files")
            counts = f"{files}, {row['bytes'] / 1e6:,.0f} MB"
        lines += [f"{row['source']:<20}{counts}", f"  {row['command']}"]
    return "\n".join(map(safe, lines))


# --- exports ---


def _import_export(
    config: "Config",
    file: str | IO[bytes],
    *,
    dry_run: bool,
    trusted: bool,
    into: str | None,
    redact: bool,
    namespaces: Sequence[str] | None,
    edited: int | None = None,
) -> int:
    """Import a file that `memory export` wrote; return the exit code."""
    from memories.config import registers
    from memories.embedders import open_embedder, own_embedder
    from memories.guard.origin import agent_variable, origin
    from memories.transfer.export import own_key
    from memories.transfer.importing import ImportTerms, examine, log_import
    from memories.transfer.importing import import_ as run

    embedder = open_embedder(config.embedder, config)
    terms = ImportTerms(
        writer=origin("import", config.identity or config.namespace),
        key=None if trusted else own_key(registers()),
        namespaces=namespaces,
        into=None if into is None else namespace(into),
        redactor=config.redactor() if redact else None,
        trusted=trusted,
        by_person=agent_variable() is None,
    )
    with _readable(file) as read_lines:
        intake, writer = examine(read_lines("checking"), terms)
        if not dry_run:
            begin_change()
        with open_store(config.store, embedder, config) as store:
            embedder = own_embedder(store, embedder, config)
            imported = run(
                log_import(store, "cli", writer, config.namespace_quota),
                read_lines("importing"),
                embedder,
                namespaces=namespaces,
                dry_run=dry_run,
                intake=intake,
            )
    return _report_import(config, imported, intake.foreign, dry_run=dry_run, edited=edited)


def _import_bundle(config: "Config", folder: str, *, yes: bool, **terms: Any) -> int:
    """Import a folder that `memory export --markdown` wrote: its edited texts and new memories."""
    options = {name: terms[name] for name in ("namespaces", "dry_run", "redact")}
    if terms["into"] is not None:  # the edited texts go into that namespace too
        options["namespaces"] = ()
    applied = apply_edits(config, Path(folder).resolve(), yes=yes, **options)
    if applied is None:
        return 1
    lines, edited = applied
    with temporary_copy(lambda stream: stream.writelines(lines)) as export:
        return _import_export(config, export, edited=edited, **terms)


def _report_import(
    config: "Config",
    imported: "Imported",
    import_id: str | None,
    *,
    dry_run: bool,
    edited: int | None,
) -> int:
    """Print the result of an import; return the exit code."""
    from memories.scratchpad.file import mark_all_stale

    if not dry_run:
        records = amount(imported.imported, "record was", "records were")
        record_change(f"{records} imported", "running the command again leaves those unchanged")
    mark_all_stale(config.home)
    if imported.unchecked:
        note(f"Note: {store_shapes.HINT_UNCHECKED}.")
    answer = store_shapes.import_result(imported, import_id, dry_run=dry_run)
    if edited is not None:
        answer["edited"] = edited
    emit(answer, partial(_render_import, imported, answer))
    return 1 if imported.conflict_count else 0


def _render_import(imported: "Imported", answer: Mapping[str, Any]) -> str:
    verb, became = "Imported", "became"
    if answer["dry_run"]:
        verb, became = "Would import", "would become"
    records = amount(imported.imported, "record", "records")
    known = amount(imported.known, "was", "were")
    still = f", {imported.still_pending} still held for review" if imported.still_pending else ""
    lines = [f"{verb} {records}; {known} already there{still}."]
    if answer.get("edited"):
        count = amount(answer["edited"], "edited text", "edited texts")
        lines.append(f"{count} {became} new versions.")
    if answer["pending"] and answer["trusted"]:
        lines.append(f"{_render_pending(answer)}, as when the file was exported.")
    elif answer["pending"]:
        lines.append(
            f"{_render_pending(answer)}. Nothing proves that this file is yours, so none of its "
            "memories is used before you accept it."
        )
    if imported.proposals:
        count = amount(imported.proposals, "proposal", "proposals")
        lines.append(f"Left out: {count} from memory tidy, which can make them again.")
    if "hint" in answer:
        lines.append(f"To decide: {complete_commands(answer['hint']).partition(': ')[2]}")
    if imported.without_vector:
        lines.append(complete_commands(without_vector(imported.without_vector)))
    if imported.conflict_count:
        left_out = amount(imported.conflict_count, "record was", "records were")
        lines.append(f"{left_out} left out because of a conflict with existing ones:")
    for line, ref, reason in imported.conflicts:
        record = f"{ref.collection} {ref.group} ({ref.position}) of {ref.namespace}"
        lines.append(f"  line {line}: {record}: {reason}")
    return "\n".join(map(safe, lines))


@contextlib.contextmanager
def _readable(file: str | IO[bytes]) -> Iterator[Callable[[str], Iterator[bytes]]]:
    """Yield a function that reads a file's lines from the beginning, with a progress bar."""
    from memories.transfer.lines import split_lines

    def read_lines(step: str) -> Iterator[bytes]:
        position = 0
        for line in split_lines(stream, str(file)):
            position += len(line)
            bar(step, position, size)
            yield line

    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(ProgressBar())
        if isinstance(file, str):
            stream = sys.stdin.buffer if file == "-" else stack.enter_context(_open_file(file))
        else:
            stream = file
        if not stream.seekable():  # an import reads its file twice, which a pipe doesn't allow
            copy = partial(shutil.copyfileobj, stream, length=CHUNK_BYTES)
            stream = stack.enter_context(temporary_copy(copy))
        size = stream.seek(0, os.SEEK_END)
        yield read_lines


def _open_file(file: str) -> IO[bytes]:
    """Open a regular file; a pipe or a device might never end.

    Raises:
        InvalidInput: The path is not a regular file, or can't be read.
    """
    from memories.transfer.sources.reader import open_named, unreadable

    try:
        mode = os.stat(file).st_mode  # noqa: PTH116 - `Path.stat` raises another error for a NUL in some versions
    except (OSError, ValueError) as exc:
        raise unreadable(Path(file), exc) from exc
    if stat.S_ISREG(mode):
        return open_named(Path(file))
    kind = "Is a directory" if stat.S_ISDIR(mode) else "it is a pipe or a device"
    raise InvalidInput(
        f"cannot read {shown(file)}: {kind}; give a file, or pipe it to: memory import -"
    )


COMMANDS = (import_,)
