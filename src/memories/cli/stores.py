"""Commands that move whole stores or change their embedder: export, import, migrate, reembed."""

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from memories.answers import store_shapes
from memories.cli.app import command, option
from memories.cli.options import (
    ProgressBar,
    format_option,
    namespace_option,
    no_redact_option,
    no_shared_option,
    read_argument,
    store_option,
    where_option,
    with_settings,
)
from memories.cli.output import begin_change, emit, note, record_change, safe, watch
from memories.core.disk import replacing
from memories.core.urls import slashes_hint
from memories.errors import InvalidInput, MemoriesError, SystemFault
from memories.guard.validate import namespace, shown
from memories.models import SHARED
from memories.search.filters import SCOPES

if TYPE_CHECKING:
    import tempfile

    from memories.embedders import Embedder
    from memories.guard.origin import Origin
    from memories.settings import Config
    from memories.stores import Store
    from memories.stores.records import Collection, Record
    from memories.transfer.importing import Imported

_IN_MEMORY_BYTES = 16_777_216  # of an export on its way; the rest goes to a temporary file
_CHUNK_BYTES = 1_048_576
_MAX_URL_BYTES = 8_192

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
_store_settings = with_settings(store_option, format_option)


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

    It has every version and every field, deleted memories too, and memory import reads it. With
    --where, only memories whose latest version matches the expression, and turns that match.
    """
    from memories.transfer.export import export as run

    namespaces = _namespaces(config, all_namespaces, no_shared)
    selector = None if where is None else _selector(where, scope or "all", config)

    def write(stream: IO[bytes]) -> int:
        with _open_store(config.store, None, config) as store, ProgressBar() as bar:
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
    """Write an export to standard output from a copy, so that a slow reader blocks no writer."""
    with _temporary_copy() as copy:
        with _name_place(*_temporary_place()):
            write(copy)
        copy.seek(0)
        with _name_place("standard output", "the export is incomplete"):
            _copy_bytes(copy, sys.stdout.buffer)
            sys.stdout.buffer.flush()


def _own_key() -> bytes | None:
    """Return the key that proves this user's exports; note it if there can be none."""
    from memories.config import registers
    from memories.transfer.export import own_key

    folder = registers()
    try:
        return own_key(folder, make=True)
    except MemoriesError:
        raise
    except OSError as exc:
        note(
            "Note: nothing in this export proves that it is yours, since its key cannot be kept in "
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
        return with_versions(selectors[kind], records) if kind in selectors else iter(())

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
    nothing of an incomplete or damaged one is stored. Records that already exist stay as they are.
    Exits 1 if some records were left out because they conflict with existing ones.

    Your own exports are imported as they are. Memories of any other file wait for review: memory
    review. If an agent imports with --trusted, that agent counts as the writer, whatever the file
    says.
    """
    from memories.config import registers
    from memories.core.ids import new_id
    from memories.embedders import open_embedder
    from memories.transfer.export import own_key
    from memories.transfer.importing import Intake, check
    from memories.transfer.importing import import_ as run

    into = None if into is None else namespace(into)
    namespaces = None if into is not None else _namespaces(config, all_namespaces, no_shared)
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
        with _open_store(config.store, embedder, config) as store:
            imported = run(
                _logged(store, config, writer),
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
        record_change(f"{count} records were imported; running it again leaves those as they are")
    mark_all_stale(config.home)
    if imported.unchecked:
        note(f"Note: {store_shapes.HINT_UNCHECKED}.")
    answer = store_shapes.import_result(imported, import_id, dry_run=dry_run)
    emit(answer, partial(_render_import, imported, answer))
    return 1 if imported.conflict_count else 0


def _render_import(imported: "Imported", answer: Mapping[str, Any]) -> str:
    dry_run = answer["dry_run"]
    verb, wait = ("Would import", "would wait") if dry_run else ("Imported", "wait")
    lines = [f"{verb} {imported.imported} records; {imported.known} were already there."]
    if answer["pending"]:
        lines.append(
            f"{answer['pending']} memories {wait} for review, since nothing proves that this file "
            "is yours."
        )
    if "hint" in answer:
        lines.append(f"To decide: {answer['hint'].partition(': ')[2]}")
    if imported.without_vector:
        lines.append(_without_vector(imported.without_vector))
    if imported.conflict_count:
        lines.append(f"{imported.conflict_count} conflict with existing records and were left out:")
    for line, ref, reason in imported.conflicts:
        record = f"{ref.collection} {ref.group} ({ref.position}) of {ref.namespace}"
        lines.append(f"  line {line}: {record}: {reason}")
    return "\n".join(map(safe, lines))


def _without_vector(count: int) -> str:
    return f"{count} have no vector; memory reembed adds them."


def _importer(config: "Config", *, trusted: bool) -> "Callable[[], Origin] | None":
    """Return the writer of records that no key proves to be the user's own.

    None if the records keep their origins: a person imports them with --trusted.
    """
    from memories.guard.origin import AGENT, agent_variable, origin

    if trusted and agent_variable() is None:
        return None
    writer = origin("import", config.identity or config.namespace)

    def importer() -> "Origin":
        return writer._replace(trust=AGENT) if trusted else writer

    return importer


def _logged(store: "Store", config: "Config", writer: "Callable[[], Origin] | None") -> "Store":
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
            copy = stack.enter_context(_temporary_copy())
            with _name_place(*_temporary_place()):
                _copy_bytes(stream, copy)
            stream = copy
        size = stream.seek(0, os.SEEK_END)
        yield read_lines


def _open_file(file: str) -> IO[bytes]:
    """Open a regular file; a pipe or a device might never end.

    Raises:
        InvalidInput: It is not a regular file, or can't be read.
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


# --- migrate ---


@command(
    epilog="memory migrate --to postgresql://memories@db.example/memories\n"
    "memory migrate --partitions 16"
)
@option(
    "--to", "target", metavar="URL",
    help="Store to copy to: empty, or an unfinished copy; - reads its URL.",
)  # fmt: skip
@option(
    "--partitions", type=int, metavar="N",
    help="Instead of copying, divide the PostgreSQL store into N partitions, 1 to 64.",
)  # fmt: skip
@_store_settings
def migrate(config: "Config", target: str | None, partitions: int | None) -> None:
    """Copy the whole store into another one and verify it.

    The original stays as it is and can be used meanwhile. Run the same command again to continue an
    interrupted copy. Afterwards set MEMORY_STORE to the copy.

    Other users see options, so pass a URL with a password by --to - on standard input or by
    MEMORY_MIGRATE_TO.

    With --partitions the store stays where it is and is repartitioned while others use it,
    completely or not at all.
    """
    if target is not None and partitions is not None:
        raise InvalidInput("--to and --partitions do not go together; name one of them")
    if partitions is not None:
        _repartition(config, partitions)
        return
    if target is None:
        target = os.environ.get("MEMORY_MIGRATE_TO")
    if target is None:
        raise InvalidInput("Missing option '--to'; see memory migrate --help")
    if target == "-":
        target = _read_url()
    if hint := slashes_hint(target):
        note(hint)
    _copy_store(config, target)


def _read_url() -> str:
    url = read_argument("-", "the URL", _MAX_URL_BYTES).strip()
    if len(url.split()) != 1:
        raise InvalidInput("standard input is not one URL; write nothing else to it")
    return url


def _repartition(config: "Config", partitions: int) -> None:
    if not config.store.startswith(("postgresql:", "postgres:")):
        raise InvalidInput("only a PostgreSQL store has partitions")
    from memories.stores import open_store

    with contextlib.closing(cast("Any", open_store(config.store, None))) as store:
        before = store.repartition(partitions)
    if not before:
        raise InvalidInput(
            f"there is no store yet; create it with {partitions} partitions: add "
            f"?partitions={partitions} to its URL"
        )
    emit(
        {"partitions": partitions, "before": before},
        partial(str, f"The store has {partitions} partitions (before: {before})."),
    )


def _copy_store(config: "Config", target: str) -> None:
    from memories.embedders import open_embedder
    from memories.transfer.migrate import migrate as run

    if _absolute(target) == _absolute(config.store):
        raise InvalidInput("the store to copy to is the store itself; name another one")
    embedder = open_embedder(config.embedder, config)
    begin_change()
    with (
        _open_store(config.store, None, config) as source,
        _open_store(target, embedder, config) as copy,
        ProgressBar() as bar,
    ):
        migrated = run(source, copy, embedder, progress=bar)
    record_change(f"{migrated.copied} records were copied, and the copy was verified")
    answer = store_shapes.migrate_result(migrated, config.store, target) | {
        "switch": _setting(target, "set MEMORY_STORE to the URL that you gave"),
        "go_back": _setting(config.store, "set MEMORY_STORE back to the URL that you had"),
    }
    emit(answer, partial(_render_migration, answer))


def _render_migration(answer: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{count} of {name}" for name, count in answer["records"].items())
    lines = [f"Copied and verified: {counts}; {answer['copied']} new, {answer['changed']} changed."]
    if answer["without_vector"]:
        lines.append(_without_vector(answer["without_vector"]))
    lines.append(f"To use the copy: {answer['switch']}")
    lines.append(f"To go back: {answer['go_back']}")
    return "\n".join(lines)


def _setting(url: str, otherwise: str) -> str:
    """Return the command that sets a store; words if its URL has a password, which isn't shown."""
    import shlex

    from memories.core.urls import without_password

    if without_password(url) != url:
        return f"{otherwise} (its password is not shown)"
    return f"export MEMORY_STORE={shlex.quote(_absolute(url))}"


def _absolute(url: str) -> str:
    """Return the URL of a store in a form that means the same in every folder."""
    from memories.stores import local_path

    path = local_path(url)
    return url if path is None else f"{url.partition(':')[0]}:///{path}"


# --- reembed ---


@command(epilog="memory reembed\nmemory reembed --model minilm")
@option(
    "--model", metavar="NAME",
    help="Embedder to change to, a value of EMBEDDER. [default: the one that is set]",
)  # fmt: skip
@_store_settings
def reembed(config: "Config", model: str | None) -> None:
    """Recompute all vectors with another embedder.

    Searches go on meanwhile, and you can interrupt it and run it again. Afterwards set EMBEDDER to
    the new one. For the embedder in use, it computes only the vectors that are missing.
    """
    from memories.embedders import open_embedder
    from memories.transfer.migrate import reembed as run

    name = model or config.embedder
    embedder = open_embedder(name, config)
    if embedder is None:
        raise InvalidInput(
            '"none" makes no vectors; name an embedder, or set EMBEDDER=none to search by words '
            "only"
        )
    begin_change()
    with _open_store(config.store, None, config) as store, ProgressBar() as bar:
        reembedded = run(store, embedder, progress=bar)
    embedded = f"{reembedded.embedded} records"
    record_change(f"{embedded} were embedded with {reembedded.model}")
    answer = store_shapes.reembed_result(reembedded, name)
    if name != config.embedder:
        answer["switch"] = f"export EMBEDDER={name}"
        if reembedded.before:
            note(f"The store now uses {reembedded.model}; set EMBEDDER={name}.")
        else:
            note(f"The store has no vectors yet; for {reembedded.model} set EMBEDDER={name}.")
    emit(answer, partial(str, f"Embedded {embedded} with {reembedded.model}."))


# --- stores and files ---


def _namespaces(config: "Config", all_namespaces: bool, no_shared: bool) -> tuple[str, ...] | None:
    """Return the namespaces that are read and written; None for all."""
    from memories.config import is_own_name
    from memories.read.lookup import check_namespace

    if all_namespaces:
        return None
    if is_own_name(config.namespace, config):
        with _open_store(config.store, None, config) as store:
            check_namespace(config.namespace, store, config)
    if no_shared or config.namespace == SHARED:
        return (config.namespace,)
    return (config.namespace, SHARED)


def _open_store(
    url: str, embedder: "Embedder | None", config: "Config"
) -> "contextlib.closing[Store]":
    from memories.stores import open_store

    store = open_store(url, embedder.space if embedder else None, config)
    watch(store.damaged)
    return contextlib.closing(store)


def _copy_bytes(source: IO[bytes], target: IO[bytes]) -> None:
    while chunk := source.read(_CHUNK_BYTES):
        target.write(chunk)


def _temporary_copy() -> "tempfile.SpooledTemporaryFile[bytes]":
    """Return an empty private file, in memory as long as it is small."""
    import tempfile  # 5 ms that other commands do without

    return tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)


def _temporary_place() -> tuple[str, str]:
    """Return the folder of temporary files, and what to do if it is full."""
    import tempfile

    return tempfile.gettempdir(), "set TMPDIR to a folder with more room"


@contextlib.contextmanager
def _name_place(place: str, consequence: str) -> Iterator[None]:
    """Name the place in errors about writing, and the consequence or the remedy."""
    try:
        yield
    except (BrokenPipeError, MemoriesError):
        raise
    except OSError as exc:
        parts = [f"cannot write {place}: {exc.strerror or exc}"]
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            parts.append("make room on its disk and try again")
        raise SystemFault("; ".join([*parts, consequence])) from exc


COMMANDS = (export, import_, migrate, reembed)
