"""Commands that move whole stores or change their embedder: export, import, migrate, reembed."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from memories.config import Config, without_password
from memories.errors import InvalidInput
from memories.models import SHARED
from memories.skins.cli.options import format_option, namespace_option, store_option
from memories.skins.cli.session import emit, note, settings

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.stores import Store
    from memories.transfer.export import Imported
    from memories.transfer.migrate import Migrated

_IN_MEMORY_BYTES = 16_777_216  # of an export that waits for its reader; what is more lies in a temporary file

no_shared_option = click.option("--no-shared", is_flag=True, help="Leave out the shared pool.")
all_namespaces_option = click.option("--all-namespaces", is_flag=True, help="The whole store, whoever owns it.")


@click.command(epilog="Example: memory export --all-namespaces --output backup.jsonl")
@click.option("--output", "-o", "file", metavar="FILE", help="Write this file, as a whole or not at all.")
@click.option("--vectors", is_flag=True, help="With the vectors, so that an import need not make them.")
@all_namespaces_option
@namespace_option
@no_shared_option
@store_option
@format_option
def export(
    file: str | None,
    vectors: bool,
    all_namespaces: bool,
    namespace: str | None,
    no_shared: bool,
    store: str | None,
    output: str | None,
) -> None:
    """Print all memories and turns as JSON lines, every version and field."""
    import tempfile  # 5 ms that other commands do without

    from memories.transfer import export as transfer

    config = settings(output, namespace, store)
    names = None if all_namespaces else _readable(config, no_shared)

    def write_to(stream: IO[bytes]) -> int:
        with _opened(config.store, None, config) as opened, _Bar() as bar:
            return transfer.export(
                opened, lambda line: stream.write(line.encode()), namespaces=names, with_vectors=vectors, progress=bar
            )

    if file is None or file == "-":
        with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as spool:  # so that nobody waits for who reads it
            write_to(spool)
            spool.seek(0)
            while piece := spool.read(1 << 20):
                sys.stdout.buffer.write(piece)
        return
    with _replacing(Path(file)) as stream:
        count = write_to(stream)
    emit({"exported": count, "output": file}, lambda: f"Exported {count} records to {file}.")


@click.command("import", epilog="Example: memory import backup.jsonl --all-namespaces --dry-run")
@click.argument("file")
@click.option("--dry-run", is_flag=True, help="Store nothing, only tell what would become of it.")
@all_namespaces_option
@namespace_option
@no_shared_option
@store_option
@format_option
def import_(
    file: str,
    dry_run: bool,
    all_namespaces: bool,
    namespace: str | None,
    no_shared: bool,
    store: str | None,
    output: str | None,
) -> int:
    """Store what an export holds; - reads standard input. What is there already is left as it is."""
    from memories.embedders import open_embedder
    from memories.transfer import export as transfer

    config = settings(output, namespace, store)
    names = None if all_namespaces else _readable(config, no_shared)
    embedder = open_embedder(config.embedder, config)
    with _opened(config.store, embedder, config) as opened, _lines(file) as lines:
        done = transfer.import_(opened, lines, embedder, namespaces=names, dry_run=dry_run)
    answer = _imported(done) | {"dry_run": dry_run}
    emit(answer, lambda: _imported_text(done, dry_run=dry_run))
    return 1 if done.conflict_count else 0


@click.command(epilog="Example: memory migrate --to postgresql://memories@db.example/memories")
@click.option("--to", "target", metavar="URL", required=True, help="The store to copy to: empty, or a copy begun.")
@store_option
@format_option
def migrate(target: str, store: str | None, output: str | None) -> None:
    """Copy the whole store into another one, and verify the copy; the original stays as it is.

    It may be stopped and run again, and the original may be used meanwhile. Then set MEMORY_STORE to the copy.
    """
    from memories.embedders import open_embedder
    from memories.transfer.migrate import migrate as run

    config = settings(output, None, store)
    if target == config.store:
        raise InvalidInput("the store to copy to is the store itself; name another one")
    embedder = open_embedder(config.embedder, config)
    with (
        _opened(config.store, None, config) as source,
        _opened(target, embedder, config) as copy,
        _Bar() as bar,
    ):
        done = run(source, copy, embedder, progress=bar)
    answer = _migrated(done) | {
        "from": without_password(config.store),
        "to": without_password(target),
        "switch": _setting(target, "set MEMORY_STORE to the URL that you gave"),
        "go_back": _setting(config.store, "set MEMORY_STORE back to the URL that you had"),
    }
    emit(answer, lambda: _migrated_text(answer))


@click.command(epilog="Example: memory reembed --model minilm")
@click.option("--model", metavar="NAME", help="A value of EMBEDDER; without it, the one that is set.")
@store_option
@format_option
def reembed(model: str | None, store: str | None, output: str | None) -> None:
    """Give all memories and turns vectors of another embedder; searches go on meanwhile.

    It may be stopped and run again. Then set EMBEDDER to it. With the embedder in use it makes what is missing.
    """
    from memories.embedders import open_embedder
    from memories.transfer.reembed import reembed as run

    config = settings(output, None, store)
    name = model or config.embedder
    embedder = open_embedder(name, config)
    if embedder is None:
        raise InvalidInput("none makes no vectors; name an embedder, or set EMBEDDER=none to go by words alone")
    with _opened(config.store, None, config) as opened, _Bar() as bar:
        done = run(opened, embedder, progress=bar)
    answer = {"embedded": done.embedded, "model": done.model, "model_before": done.before, "embedder": name}
    if name != config.embedder:
        answer |= {"switch": f"export EMBEDDER={name}"}
        note(f"The store is searched by {done.model} now; set EMBEDDER={name}.")
    emit(answer, lambda: f"Embedded {done.embedded} records by {done.model}.")


def _readable(config: Config, no_shared: bool) -> tuple[str, ...]:
    return (config.namespace,) if no_shared else tuple(dict.fromkeys((config.namespace, SHARED)))


@contextlib.contextmanager
def _opened(url: str, embedder: "Embedder | None", config: Config) -> "Iterator[Store]":
    from memories.stores import open_store

    store = open_store(url, embedder.space if embedder else None, config)
    try:
        yield store
    finally:
        store.close()


@contextlib.contextmanager
def _replacing(file: Path) -> Iterator[IO[bytes]]:
    """Give a file beside the one that is meant, and put it in its place at the end, if all went well."""
    import tempfile

    fd, scratch = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with open(fd, "wb") as stream:  # noqa: PTH123 - a descriptor
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        Path(scratch).replace(file)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _lines(file: str) -> Iterator[Iterator[bytes]]:
    """Give the lines of a file, or of standard input; show how far it is."""
    from memories.transfer.lines import MAX_LINE_BYTES

    def read(stream: IO[bytes], size: int) -> Iterator[bytes]:
        done = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                raise InvalidInput(f"{file} has a line of more than {MAX_LINE_BYTES} bytes; it is no export")
            done += len(line)
            if size:
                bar("importing", done, size)
            yield line

    with _Bar() as bar:
        if file == "-":
            yield read(sys.stdin.buffer, 0)
            return
        try:
            stream = Path(file).open("rb")  # noqa: SIM115 - closed below; only errors of opening are caught here
        except OSError as exc:
            raise InvalidInput(f"cannot read {file}: {exc.strerror}") from exc
        with stream:
            yield read(stream, os.fstat(stream.fileno()).st_size)


class _Bar:
    """Shows on a terminal how far something is; says nothing elsewhere."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._what = ""
        self._bar: Any = None

    def __call__(self, what: str, done: int, total: int) -> None:
        if not self._shown:
            return
        if self._bar is None or what != self._what or done < self._bar.pos:
            self._end()
            self._what = what
            self._bar = click.progressbar(length=total, label=what, file=sys.stderr).__enter__()
        self._bar.length = total
        self._bar.update(done - self._bar.pos)

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.render_finish()
            self._bar = None

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


def _imported(done: "Imported") -> dict[str, Any]:
    conflicts = [
        {"line": line, **dict(zip(ref._fields, ref, strict=True)), "reason": reason}
        for line, ref, reason in done.conflicts
    ]
    return {
        "imported": done.imported,
        "known": done.known,
        "conflict_count": done.conflict_count,
        "conflicts": conflicts,
        "without_vector": done.without_vector,
    }


def _imported_text(done: "Imported", *, dry_run: bool) -> str:
    lines = [f"{'Would import' if dry_run else 'Imported'} {done.imported} records; {done.known} were there already."]
    if done.without_vector:
        lines.append(f"{done.without_vector} have no vector; memory reembed makes them.")
    if done.conflict_count:
        lines.append(f"{done.conflict_count} are in conflict with what is there and were left out:")
    lines += [
        f"  line {line}: {ref.collection} {ref.group} ({ref.position}) of {ref.namespace}: {reason}"
        for line, ref, reason in done.conflicts
    ]
    return "\n".join(lines)


def _migrated(done: "Migrated") -> dict[str, Any]:
    records: dict[str, int] = {}
    for place, contents in done.contents.items():
        records[str(place.collection)] = records.get(str(place.collection), 0) + contents.records
    return {
        "verified": True,
        "records": records,
        "namespaces": sorted({place.namespace for place, contents in done.contents.items() if contents.records}),
        "copied": done.copied,
        "changed": done.changed,
        "removed": done.removed,
        "without_vector": done.without_vector,
    }


def _setting(url: str, otherwise: str) -> str:
    """Return the command that sets a store; words instead if its URL has a password, which is never shown."""
    import shlex

    if without_password(url) != url:
        return f"{otherwise} (its password is not shown)"
    return f"export MEMORY_STORE={shlex.quote(url)}"


def _migrated_text(answer: dict[str, Any]) -> str:
    counts = ", ".join(f"{count} of {collection}" for collection, count in answer["records"].items())
    lines = [f"Copied and verified: {counts}; {answer['copied']} new, {answer['changed']} changed."]
    if answer["without_vector"]:
        lines.append(f"{answer['without_vector']} have no vector; memory reembed makes them.")
    return "\n".join([*lines, f"To use the copy: {answer['switch']}", f"To go back: {answer['go_back']}"])


COMMANDS = (export, import_, migrate, reembed)
