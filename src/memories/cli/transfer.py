"""Commands that write a store to a file and read it back: export, import."""

import contextlib
import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from memories.answers import store_shapes
from memories.cli.app import command, option
from memories.cli.options import (
    ProgressBar,
    format_option,
    namespace_option,
    no_redact_option,
    no_shared_option,
    store_option,
    where_option,
    with_settings,
)
from memories.cli.output import begin_change, emit, note, record_change, safe
from memories.cli.stores import open_store, without_vector
from memories.core.disk import replacing
from memories.errors import InvalidInput, MemoriesError, SystemFault
from memories.guard.validate import namespace, shown
from memories.models import SHARED
from memories.search.filters import SCOPES

if TYPE_CHECKING:
    from memories.guard.origin import Origin
    from memories.settings import Config
    from memories.stores import Store
    from memories.stores.records import Collection, Record
    from memories.transfer.importing import Imported

_IN_MEMORY_BYTES = 16_777_216  # of an export kept in memory; the rest goes to a temporary file
_CHUNK_BYTES = 1_048_576

_namespace_settings = with_settings(
    namespace_option,
    no_shared_option,
    option(
        "--all-namespaces", is_flag=True, section="Store",
        help="The whole store, every namespace in it.",
    ),
    store_option,
    format_option,
)  # fmt: skip


# --- export ---


@command(
    epilog="memory export --output backup.jsonl\nmemory export --all-namespaces >everything.jsonl"
)
@option(
    "--output", "-o", "file", metavar="FILE",
    help="Write to FILE, either all of it or nothing. [default: standard output]",
)  # fmt: skip
@where_option
@option(
    "--in", "scope", metavar="WHAT", values=SCOPES, section="Filters",
    help="With --where: memories, history (turns) or all. [default: all]",
)  # fmt: skip
@option("--vectors", is_flag=True, help="Include vectors, so that an import need not compute them.")
@_namespace_settings
def export(
    config: "Config",
    file: str | None,
    where: str | None,
    scope: str | None,
    vectors: bool,
    all_namespaces: bool,
    no_shared: bool,
) -> None:
    """Write all memories and turns as JSON lines.

    It contains every version and every field, also of deleted memories, and memory import reads it.
    With --where, only memories whose latest version matches the expression, and turns that match.
    """
    from memories.transfer.export import export as run

    namespaces = _namespaces(config, all_namespaces, no_shared)
    selector = None if where is None else _selector(where, scope or "all", config)

    def write(stream: IO[bytes]) -> int:
        with open_store(config.store, None, config) as store, ProgressBar() as bar:
            return run(
                store,
                lambda line: stream.write(line.encode()),
                namespaces=namespaces,
                with_vectors=vectors,
                prove=_own_key,
                select=selector,
                progress=bar,
            )

    if file is None or file == "-":
        _write_to_output(write)
        return
    begin_change()
    with (
        _name_place(file, "nothing was written; name another file"),
        replacing(Path(file)) as stream,
    ):
        count = write(stream)
    record_change(f"{count} records were exported to {file}")
    emit({"exported": count, "output": file}, partial(str, f"Exported {count} records to {file}."))


def _write_to_output(write: Callable[[IO[bytes]], int]) -> None:
    """Write an export to standard output from a copy, so that a slow reader doesn't block
    writers."""
    with (
        _temporary_copy(write) as copy,
        _name_place("standard output", "the export is incomplete"),
    ):
        shutil.copyfileobj(copy, sys.stdout.buffer, _CHUNK_BYTES)
        sys.stdout.buffer.flush()


def _own_key() -> bytes | None:
    """Return the key that authenticates this user's exports; print a note if there can't be one."""
    from memories.config import registers
    from memories.transfer.export import own_key

    folder = registers()
    try:
        return own_key(folder, make=True)
    except MemoriesError:
        raise
    except OSError as exc:
        note(
            "Note: nothing in this export proves that it is yours, since its key can't be kept in "
            f"{folder} ({exc.strerror or exc}); an import needs --trusted, or its memories wait "
            "for review."
        )
        return None


def _selector(
    where: str, scope: str, config: "Config"
) -> "Callable[[Collection, Iterator[Record]], Iterator[Record]]":
    """Return a function that selects the records that match an expression."""
    from memories.read.selector import Instant, parse, with_versions
    from memories.search.search import collections_of
    from memories.stores.records import Collection

    instant = Instant(datetime.now(UTC), config.decay_half_life_hours)
    selectors = {}
    for kind in collections_of(scope):
        selectors[kind] = parse(where, kind, instant, any_state=kind is Collection.MEMORY)

    def select(kind: "Collection", records: "Iterator[Record]") -> "Iterator[Record]":
        if kind not in selectors:
            return iter(())
        return with_versions(selectors[kind], records)

    return select


# --- import ---


@command(
    "import",
    epilog="memory import backup.jsonl --dry-run\nmemory import everything.jsonl --all-namespaces",
)
@click.argument("file")
@option("--dry-run", is_flag=True, help="Store nothing, only report what an import would do.")
@option(
    "--trusted", is_flag=True,
    help="Import without review, although nothing proves that you exported the file.",
)  # fmt: skip
@option(
    "--as", "into", metavar="NAME",
    help="Namespace for the records of an export that has one namespace. [default: their own]",
)  # fmt: skip
@no_redact_option
@_namespace_settings
def import_(
    config: "Config",
    file: str,
    dry_run: bool,
    trusted: bool,
    into: str | None,
    no_redact: bool,
    all_namespaces: bool,
    no_shared: bool,
) -> int:
    """Read an export into the store.

    FILE was written by memory export, or is - for standard input. The whole file is checked first:
    nothing from an incomplete or damaged file is stored. Records that already exist are not
    changed. Exits 1 if some records were left out because they conflict with existing ones.

    Your own exports are imported unchanged. Memories from any other file wait for review: memory
    review. If an agent imports with --trusted, that agent counts as the writer, no matter what the
    file says.
    """
    from memories.config import registers
    from memories.core.ids import new_id
    from memories.embedders import open_embedder
    from memories.transfer.export import own_key
    from memories.transfer.importing import check
    from memories.transfer.importing import import_ as run
    from memories.transfer.intake import Intake

    if into is None:
        namespaces = _namespaces(config, all_namespaces, no_shared)
    else:
        into, namespaces = namespace(into), None
    embedder = open_embedder(config.embedder, config)
    redactor = None if no_redact else config.redactor()

    with _readable(file) as read_lines:
        is_proven = check(
            read_lines("checking"),
            namespaces=namespaces,
            key=None if trusted else own_key(registers()),
            redactor=redactor,
            into=into,
        ).proven
        import_id = None if trusted or is_proven else new_id(datetime.now(UTC))
        writer = None if is_proven else _importer(config, trusted=trusted)
        intake = Intake(import_id, redactor, into=into, accepted=writer is None)
        if not dry_run:
            begin_change()
        with open_store(config.store, embedder, config) as store:
            imported = run(
                _with_log(store, config, writer),
                read_lines("importing"),
                embedder,
                namespaces=namespaces,
                dry_run=dry_run,
                intake=intake,
            )
    return _report_import(config, imported, import_id, dry_run=dry_run)


def _report_import(
    config: "Config", imported: "Imported", import_id: str | None, *, dry_run: bool
) -> int:
    """Print the result of an import; return the exit code."""
    from memories.scratchpad.file import mark_all_stale

    if not dry_run:
        count = imported.imported
        record_change(f"{count} records were imported; running it again leaves those unchanged")
    mark_all_stale(config.home)
    if imported.unchecked:
        note(f"Note: {store_shapes.HINT_UNCHECKED}.")
    answer = store_shapes.import_result(imported, import_id, dry_run=dry_run)
    emit(answer, partial(_render_import, imported, answer))
    return 1 if imported.conflict_count else 0


def _render_import(imported: "Imported", answer: Mapping[str, Any]) -> str:
    dry_run = answer["dry_run"]
    verb, wait = "Imported", "wait"
    if dry_run:
        verb, wait = "Would import", "would wait"
    lines = [f"{verb} {imported.imported} records; {imported.known} were already there."]
    if answer["pending"]:
        lines.append(
            f"{answer['pending']} memories {wait} for review, since nothing proves that this file "
            "is yours."
        )
    if "hint" in answer:
        lines.append(f"To decide: {answer['hint'].partition(': ')[2]}")
    if imported.without_vector:
        lines.append(without_vector(imported.without_vector))
    if imported.conflict_count:
        lines.append(f"{imported.conflict_count} conflict with existing records and were left out:")
    for line, ref, reason in imported.conflicts:
        record = f"{ref.collection} {ref.group} ({ref.position}) of {ref.namespace}"
        lines.append(f"  line {line}: {record}: {reason}")
    return "\n".join(map(safe, lines))


def _importer(config: "Config", *, trusted: bool) -> "Callable[[], Origin] | None":
    """Return the writer of records that no key authenticates as the user's own.

    None if the records keep their origins because a person imports them with --trusted.
    """
    from memories.guard.origin import AGENT, agent_variable, origin

    if trusted and agent_variable() is None:
        return None
    writer = origin("import", config.identity or config.namespace)
    if trusted:
        writer = writer._replace(trust=AGENT)
    return lambda: writer


def _with_log(store: "Store", config: "Config", writer: "Callable[[], Origin] | None") -> "Store":
    """Return the store with an audit log of the import, limited by the quota.

    Args:
        store: The store.
        config: The settings.
        writer: Returns the origin that records get; None if they keep theirs.
    """
    from memories.stores.logged import LoggedStore
    from memories.write.quota import admission

    admit = admission(config.namespace_quota)
    return LoggedStore(
        store, "cli", partial(datetime.now, UTC), writer, action="import", admit=admit
    )


@contextlib.contextmanager
def _readable(file: str) -> Iterator[Callable[[str], Iterator[bytes]]]:
    """Yield a function that reads the lines of a file from the first one, with a progress bar."""
    from memories.transfer.lines import MAX_LINE_BYTES

    def read_lines(step: str) -> Iterator[bytes]:
        stream.seek(0)
        position = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                raise InvalidInput(
                    f"{file} has a line of more than {MAX_LINE_BYTES} bytes; it is not an export"
                )
            position += len(line)
            bar(step, position, size)
            yield line

    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(ProgressBar())
        stream = sys.stdin.buffer if file == "-" else stack.enter_context(_open_file(file))
        if not stream.seekable():  # a pipe; the import reads it twice
            copy = partial(shutil.copyfileobj, stream, length=_CHUNK_BYTES)
            stream = stack.enter_context(_temporary_copy(copy))
        size = stream.seek(0, os.SEEK_END)
        yield read_lines


def _open_file(file: str) -> IO[bytes]:
    """Open a regular file; a pipe or a device might never end.

    Raises:
        InvalidInput: The path is not a regular file, or can't be read.
    """
    try:
        mode = os.stat(file).st_mode  # noqa: PTH116 - `Path.stat` raises another error for a NUL in some versions
        if stat.S_ISREG(mode):
            return Path(file).open("rb")
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise InvalidInput(f"cannot read {shown(file)}: {reason}") from exc
    kind = "Is a directory" if stat.S_ISDIR(mode) else "it is a pipe or a device"
    raise InvalidInput(
        f"cannot read {shown(file)}: {kind}; name a file, or pipe it to: memory import -"
    )


# --- stores and files ---


def _namespaces(config: "Config", all_namespaces: bool, no_shared: bool) -> tuple[str, ...] | None:
    """Return the namespaces to read and write; None for all."""
    from memories.config import is_own_name
    from memories.read.lookup import check_namespace

    if all_namespaces:
        return None
    if is_own_name(config.namespace, config):
        with open_store(config.store, None, config) as store:
            check_namespace(config.namespace, store, config)
    if no_shared or config.namespace == SHARED:
        return (config.namespace,)
    return (config.namespace, SHARED)


@contextlib.contextmanager
def _temporary_copy(write: Callable[[IO[bytes]], object]) -> Iterator[IO[bytes]]:
    """Yield a private file that a function has written, in memory as long as it is small."""
    import tempfile  # takes 5 ms, which other commands avoid

    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as copy:
        with _name_place(tempfile.gettempdir(), "set TMPDIR to a folder with more space"):
            write(copy)
        copy.seek(0)
        yield copy


@contextlib.contextmanager
def _name_place(place: str, consequence: str) -> Iterator[None]:
    """Add the place to errors about writing, and the consequence or the remedy."""
    try:
        yield
    except (BrokenPipeError, MemoriesError):
        raise
    except OSError as exc:
        parts = [f"cannot write {place}: {exc.strerror or exc}"]
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            parts.append("free some space on its disk and try again")
        raise SystemFault("; ".join([*parts, consequence])) from exc


COMMANDS = (export, import_)
