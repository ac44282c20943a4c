"""Commands that move whole stores or change their embedder: export, import, migrate, reembed."""

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from memories.answers import store_shapes
from memories.cli.options import (
    command,
    format_option,
    namespace_option,
    no_redact_option,
    no_shared_option,
    option,
    store_option,
    where_option,
    with_settings,
)
from memories.cli.output import changing, emit, note, watch
from memories.cli.session import Bar, read_argument, texts
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
    from memories.transfer.migrate import Migrated, Reembedded

# of an export that waits for its reader; what is more lies in a temporary file
_IN_MEMORY_BYTES = 16_777_216
_PIECE = 1_048_576
_MAX_URL_BYTES = 8_192

_some_namespaces = with_settings(
    namespace_option,
    no_shared_option,
    option(
        "--all-namespaces",
        is_flag=True,
        section="Store",
        help="The whole store, every namespace in it.",
    ),
    store_option,
    format_option,
)
_whole_store = with_settings(store_option, format_option)


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
@_some_namespaces
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

    Every version and every field is in it, deleted memories too. memory import reads it. With
    --where, memories of which the latest version meets the expression, and turns that do.
    """
    from memories.transfer.export import export as run

    names = _namespaces(config, all_namespaces, no_shared)
    chosen = None if where is None else _chosen(where, scope or "all", config)

    def write_to(stream: IO[bytes]) -> int:
        with _opened(config.store, None, config) as opened, Bar() as bar:
            return run(
                opened,
                lambda line: stream.write(line.encode()),
                namespaces=names,
                with_vectors=vectors,
                prove=_own_key,
                select=chosen,
                progress=bar,
            )

    if file is None or file == "-":
        with _spooled() as spool:  # so that nobody waits for who reads it
            with _naming(*_temporary()):
                write_to(spool)
            spool.seek(0)
            with _naming("standard output", "for what was written there is incomplete"):
                _pour(spool, sys.stdout.buffer)
                sys.stdout.buffer.flush()
        return

    def written() -> int:
        with (
            _naming(file, "or name another one; it is as it was before"),
            replacing(Path(file)) as stream,
        ):
            return write_to(stream)

    count = changing(written, lambda count: f"{count} records were exported to {file}")
    emit({"exported": count, "output": file}, lambda: f"Exported {count} records to {file}.")


@command(
    "import",
    epilog="memory import backup.jsonl --dry-run\nmemory import everything.jsonl --all-namespaces",
)
@click.argument("file")
@option("--dry-run", is_flag=True, help="Store nothing, only report what an import would do.")
@option(
    "--trusted", is_flag=True,
    help="Take the file over as it is, without review, although nothing proves that you exported it.",
)  # fmt: skip
@option(
    "--as",
    "into",
    metavar="NAME",
    help="Namespace for the records of an export that has one namespace. [default: their own]",
)
@no_redact_option
@_some_namespaces
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

    FILE is what memory export wrote, or - for standard input. It is checked as a whole first:
    nothing of one that is incomplete or damaged is stored. Records that are already there are left
    as they are. Exits 1 if some records were left out because they conflict with what is there.

    What you exported yourself is taken over as it is. Memories of any other file wait for review:
    memory review. What an agent takes over by --trusted is written by that agent, whatever the file
    says.
    """
    from memories.config import registers
    from memories.core.ids import new_id
    from memories.embedders import open_embedder
    from memories.scratchpad.file import mark_all_stale
    from memories.transfer.export import own_key
    from memories.transfer.importing import Intake, check
    from memories.transfer.importing import import_ as run

    into = None if into is None else namespace(into)
    names = None if into is not None else _namespaces(config, all_namespaces, no_shared)
    embedder = open_embedder(config.embedder, config)
    redactor = None if no_redact else config.redactor()

    with _readable(file) as lines:

        def read() -> "Imported":
            with _opened(config.store, embedder, config) as opened:
                store = _logged(opened, config, writer)
                intake = Intake(import_id, redactor, into=into, accepted=writer is None)
                return run(
                    store,
                    lines("importing"),
                    embedder,
                    namespaces=names,
                    dry_run=dry_run,
                    intake=intake,
                )

        key = None if trusted else own_key(registers())
        proven = check(
            lines("checking"), namespaces=names, key=key, redactor=redactor, into=into
        ).proven
        import_id = None if trusted or proven else new_id(datetime.now(UTC))
        writer = None if proven else _importer(config, trusted=trusted)
        done = read() if dry_run else changing(read, _stored)
    mark_all_stale(config.home)
    if done.unchecked:
        note(f"Note: {store_shapes.HINT_UNCHECKED}.")
    answer = store_shapes.import_result(done, import_id, dry_run=dry_run)
    emit(answer, lambda: texts().imported(done, answer))
    return 1 if done.conflict_count else 0


def _importer(config: "Config", *, trusted: bool) -> "Callable[[], Origin] | None":
    """Return what tells who writes what no key proves to be the user's; None if records keep their
    origins.
    """
    from memories.guard.origin import AGENT, agent_variable, origin

    if trusted and agent_variable() is None:
        return None
    writer = origin("import", config.identity or config.namespace)
    return lambda: writer._replace(trust=AGENT) if trusted else writer


def _logged(store: "Store", config: "Config", writer: "Callable[[], Origin] | None") -> "Store":
    """Return a store whose audit log tells of an import, and which takes no more than the quota
    allows.

    Args:
        store: The store.
        config: The settings.
        writer: Returns the origin that records get; None if they keep theirs.
    """
    from memories.stores.logged import LoggedStore
    from memories.write.quota import admission

    admit = admission(config.namespace_quota)
    return LoggedStore(
        store, "cli", lambda: datetime.now(UTC), writer, action="import", admit=admit
    )


@command(
    epilog="memory migrate --to postgresql://memories@db.example/memories\nmemory migrate --partitions 16"
)
@option(
    "--to",
    "target",
    metavar="URL",
    help="Store to copy to: empty, or an unfinished copy; - reads its URL.",
)
@option(
    "--partitions", type=int, metavar="N",
    help="Instead of copying, divide the PostgreSQL store into N partitions, 1 to 64.",
)  # fmt: skip
@_whole_store
def migrate(config: "Config", target: str | None, partitions: int | None) -> None:
    """Copy the whole store into another one and verify it.

    The original stays as it is and can be used meanwhile. An interrupted copy can be continued by
    running the same command again. Afterwards set MEMORY_STORE to the copy.

    A URL with a password is best given by --to - on standard input or by MEMORY_MIGRATE_TO: other
    users see options.

    With --partitions the store stays where it is. It is divided anew while others use it, as a
    whole or not at all.
    """
    if target is None and partitions is None:
        target = os.environ.get("MEMORY_MIGRATE_TO")
    if target is not None and partitions is not None:
        raise InvalidInput("--to and --partitions do not go together; name one of them")
    if partitions is not None:
        _repartition(config, partitions)
    elif target is not None:
        target = _url_on_input() if target == "-" else target
        if hint := slashes_hint(target):
            note(hint)
        _copy(config, target)
    else:
        raise InvalidInput("Missing option '--to'; see memory migrate --help")


def _url_on_input() -> str:
    """Return the URL that standard input holds."""
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
            f"there is no store yet; make one with {partitions} by ?partitions={partitions} in its URL"
        )
    emit(
        {"partitions": partitions, "before": before},
        lambda: f"The store has {partitions} partitions (before: {before}).",
    )


def _copy(config: "Config", target: str) -> None:
    from memories.embedders import open_embedder
    from memories.transfer.migrate import migrate as run

    if _absolute(target) == _absolute(config.store):
        raise InvalidInput("the store to copy to is the store itself; name another one")
    embedder = open_embedder(config.embedder, config)

    def copied() -> "Migrated":
        with (
            _opened(config.store, None, config) as source,
            _opened(target, embedder, config) as copy,
            Bar() as bar,
        ):
            return run(source, copy, embedder, progress=bar)

    done = changing(
        copied, lambda done: f"{done.copied} records were copied, and the copy was verified"
    )
    switch = _setting(target, "set MEMORY_STORE to the URL that you gave")
    go_back = _setting(config.store, "set MEMORY_STORE back to the URL that you had")
    answer = store_shapes.migrate_result(done, config.store, target) | {
        "switch": switch,
        "go_back": go_back,
    }
    emit(answer, lambda: texts().migrated(answer))


@command(epilog="memory reembed\nmemory reembed --model minilm")
@option(
    "--model",
    metavar="NAME",
    help="Embedder to change to, a value of EMBEDDER. [default: the one that is set]",
)
@_whole_store
def reembed(config: "Config", model: str | None) -> None:
    """Recompute all vectors with another embedder.

    Searches go on meanwhile, and it can be interrupted and run again. Afterwards set EMBEDDER to
    the new one. For the embedder in use, it computes only the vectors that are missing.
    """
    from memories.embedders import open_embedder
    from memories.transfer.migrate import reembed as run

    name = model or config.embedder
    embedder = open_embedder(name, config)
    if embedder is None:
        raise InvalidInput(
            '"none" makes no vectors; name an embedder, or set EMBEDDER=none to search by words only'
        )

    def embedded() -> "Reembedded":
        with _opened(config.store, None, config) as opened, Bar() as bar:
            return run(opened, embedder, progress=bar)

    done = changing(
        embedded, lambda done: f"{done.embedded} records were embedded with {done.model}"
    )
    answer = store_shapes.reembed_result(done, name)
    if name != config.embedder:
        answer |= {"switch": f"export EMBEDDER={name}"}
        held = "The store now uses" if done.before else "Nothing is stored yet that is embedded by"
        note(f"{held} {done.model}; set EMBEDDER={name}.")
    emit(answer, lambda: f"Embedded {done.embedded} records with {done.model}.")


def _own_key() -> bytes | None:
    """Return the key of this user's exports; tell it if there can be none."""
    from memories.config import registers
    from memories.transfer.export import own_key

    folder = registers()
    try:
        return own_key(folder, make=True)
    except OSError as exc:
        if isinstance(exc, MemoriesError):
            raise
        note(
            f"Note: nothing in this export proves that it is yours, since its key cannot be kept in {folder} "
            f"({exc.strerror or exc}); an import of it needs --trusted, or its memories wait for review."
        )
        return None


def _chosen(
    where: str, scope: str, config: "Config"
) -> "Callable[[Collection, Iterator[Record]], Iterator[Record]]":
    """Return what chooses the records that meet an expression."""
    from memories.read.selector import Instant, parse, with_versions
    from memories.search.search import collections_of
    from memories.stores.records import Collection

    instant = Instant(datetime.now(UTC), config.decay_half_life_hours)
    selectors = {
        kind: parse(where, kind, instant, any_state=kind is Collection.MEMORY)
        for kind in collections_of(scope)
    }
    return lambda kind, records: (
        with_versions(selectors[kind], records) if kind in selectors else iter(())
    )


def _namespaces(config: "Config", all_namespaces: bool, no_shared: bool) -> tuple[str, ...] | None:
    """Return the namespaces that are read and written; None for all."""
    from memories.config import is_own_name
    from memories.read.lookup import check_namespace

    if all_namespaces:
        return None
    if is_own_name(config.namespace, config):
        with _opened(config.store, None, config) as store:
            check_namespace(config.namespace, store, config)
    return (config.namespace,) if no_shared else tuple(dict.fromkeys((config.namespace, SHARED)))


def _opened(url: str, embedder: "Embedder | None", config: "Config") -> "contextlib.closing[Store]":
    from memories.stores import open_store

    store = open_store(url, embedder.space if embedder else None, config)
    watch(store.damaged)
    return contextlib.closing(store)


@contextlib.contextmanager
def _readable(file: str) -> Iterator[Callable[[str], Iterator[bytes]]]:
    """Give what reads the lines of a file, or of standard input, from the first one; it shows how
    far it is.
    """
    from memories.transfer.lines import MAX_LINE_BYTES

    def read(what: str) -> Iterator[bytes]:
        stream.seek(0)
        done = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                raise InvalidInput(
                    f"{file} has a line of more than {MAX_LINE_BYTES} bytes; it is not an export"
                )
            done += len(line)
            bar(what, done, size)
            yield line

    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(Bar())
        stream = sys.stdin.buffer if file == "-" else stack.enter_context(_regular(file))
        if not stream.seekable():  # a pipe; it is read twice
            spool = stack.enter_context(_spooled())
            with _naming(*_temporary()):
                _pour(stream, spool)
            stream = spool
        size = stream.seek(0, os.SEEK_END)
        yield read


def _pour(source: IO[bytes], target: IO[bytes]) -> None:
    while piece := source.read(_PIECE):
        target.write(piece)


def _regular(file: str) -> IO[bytes]:
    """Open a regular file; a pipe or a device could keep us waiting for ever.

    Raises:
        InvalidInput: It is none, or can't be read.
    """
    try:
        kind = os.stat(file).st_mode  # noqa: PTH116 - `Path.stat` raises another error for a NUL in some versions
        if not stat.S_ISREG(kind):
            what = "Is a directory" if stat.S_ISDIR(kind) else "it is a pipe or a device"
            raise InvalidInput(
                f"cannot read {shown(file)}: {what}; name a file, or pipe it to: memory import -"
            )
        return Path(file).open("rb")
    except (OSError, ValueError) as exc:
        if isinstance(exc, InvalidInput):
            raise
        raise InvalidInput(
            f"cannot read {shown(file)}: {getattr(exc, 'strerror', None) or exc}"
        ) from exc


def _stored(done: "Imported") -> str:
    """Return what an import did, as a part of a sentence."""
    return f"{done.imported} records were imported; running it again leaves those as they are"


def _spooled() -> "tempfile.SpooledTemporaryFile[bytes]":
    """Return an empty file that nobody else sees, in memory as long as it is small."""
    import tempfile  # 5 ms that other commands do without

    return tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)


def _temporary() -> tuple[str, str]:
    """Return where it lies, and what to do if there is no room."""
    import tempfile

    return tempfile.gettempdir(), "or set TMPDIR to a folder with more room"


@contextlib.contextmanager
def _naming(place: str, consequence: str) -> Iterator[None]:
    """Name the place that could not be written, and what follows from it."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as exc:
        if isinstance(exc, MemoriesError):
            raise
        remedy = (
            "make room on its disk and try again, "
            if exc.errno in (errno.ENOSPC, errno.EDQUOT)
            else ""
        )
        raise SystemFault(
            f"cannot write {place}: {exc.strerror or exc}; {remedy}{consequence}"
        ) from exc


def _setting(url: str, otherwise: str) -> str:
    """Return the command that sets a store; words instead if its URL has a password, which is never
    shown.
    """
    import shlex

    from memories.core.urls import without_password

    if without_password(url) != url:
        return f"{otherwise} (its password is not shown)"
    return f"export MEMORY_STORE={shlex.quote(_absolute(url))}"


def _absolute(url: str) -> str:
    """Return a store's URL as it means the same in every folder."""
    from memories.stores import local_path

    path = local_path(url)
    return url if path is None else f"{url.partition(':')[0]}:///{path}"


COMMANDS = (export, import_, migrate, reembed)
