"""Commands that copy a store, change its embedder, or import edits from an exported folder."""

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from memories.answers import store_shapes
from memories.cli.app import command, option
from memories.cli.options import (
    ProgressBar,
    format_option,
    namespace_option,
    no_shared_option,
    open_memories,
    read_argument,
    store_option,
    where_option,
    with_settings,
)
from memories.cli.output import begin_change, confirm, emit, note, record_change, watch
from memories.cli.text import without_vector
from memories.config import save_setting
from memories.core.disk import name_place, replacing, temporary_copy
from memories.core.urls import absolute_url, slashes_hint
from memories.errors import InvalidInput, MemoriesError, SystemFault
from memories.guard.validate import amount
from memories.models import SHARED
from memories.search.filters import SCOPES

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.models import History, Memory
    from memories.settings import Config
    from memories.stores import Store
    from memories.transfer.bundle import Edit
    from memories.transfer.export import Select

_MAX_URL_BYTES = 8_192
CHUNK_BYTES = 1_048_576

_store_settings = with_settings(store_option, format_option)
namespace_settings = with_settings(
    namespace_option,
    no_shared_option,
    option(
        "--all-namespaces", is_flag=True, section="Store",
        help="The entire store, with every namespace.",
    ),
    store_option,
    format_option,
)  # fmt: skip


def open_store(
    url: str, embedder: "Embedder | None", config: "Config"
) -> "contextlib.closing[Store]":
    """Open a store, and watch it for damaged records."""
    from memories import stores

    store = stores.open_store(url, embedder.space if embedder else None, config)
    watch(store.damaged)
    return contextlib.closing(store)


def namespaces_of(
    config: "Config", all_namespaces: bool, no_shared: bool
) -> tuple[str, ...] | None:
    """Return the namespaces to read and write; None means all."""
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


# --- export ---


@command(
    epilog="memory export --output backup.jsonl\nmemory export --all-namespaces >everything.jsonl\n"
    "memory export --markdown notes"
)
@option(
    "--output", "-o", "file", metavar="FILE",
    help="Write to FILE, completely or not at all. An existing file is replaced only if it is an "
    "export. [default: standard output]",
)  # fmt: skip
@option(
    "--markdown", "folder", metavar="FOLDER",
    help="Write memories as Markdown files into FOLDER, one file each. [default: JSON lines]",
)  # fmt: skip
@where_option
@option(
    "--in", "scope", metavar="WHAT", values=SCOPES, section="Filters",
    help="What to export: memories, history (turns) or all. [default: all]",
)  # fmt: skip
@option(
    "--vectors",
    is_flag=True,
    help="Include vectors, so that an import doesn't have to compute them.",
)
@namespace_settings
def export(
    config: "Config",
    file: str | None,
    folder: str | None,
    where: str | None,
    scope: str | None,
    vectors: bool,
    all_namespaces: bool,
    no_shared: bool,
) -> None:
    """Write memories and turns as JSON lines, or as Markdown.

    The export contains every version and every field, including deleted memories; memory import
    reads it. With --where, the export contains only turns that match the expression, and memories
    whose latest version matches.

    With --markdown, each memory becomes a file that you can read, edit and keep in git. memory
    import FOLDER reads the files back, and stores edited texts as new versions.
    """
    from memories.transfer.export import check_target, matching
    from memories.transfer.export import export as run
    from memories.write.accesses import Accesses

    if folder is not None:
        if file or vectors or scope not in (None, "memories"):
            raise InvalidInput("--markdown writes memories only; omit --output, --vectors and --in")
        scope = "memories"

    namespaces = namespaces_of(config, all_namespaces, no_shared)
    selector: Select | None = None
    if where is not None or scope is not None:
        selector = matching(where, scope or "all", config.decay_half_life_hours)

    def write(stream: IO[bytes]) -> int:
        with open_store(config.store, None, config) as store, ProgressBar() as bar:
            Accesses(config.home, config.store).flush(store)
            return run(
                store,
                lambda line: stream.write(line.encode()),
                namespaces=namespaces,
                with_vectors=vectors,
                prove=_own_key,
                select=selector,
                progress=bar,
            )

    if folder is not None:
        _write_markdown(write, Path(folder))
        return
    if file is None or file == "-":
        _write_to_output(write)
        return
    with name_place(file, "nothing was written; name a different file"):
        check_target(Path(file))
        begin_change()
        with replacing(Path(file)) as stream:
            count = write(stream)
    done = f"{amount(count, 'record was', 'records were')} exported to {file}"
    record_change(done)
    emit({"exported": count, "output": file}, f"{done}.")


def _write_markdown(write: Callable[[IO[bytes]], int], folder: Path) -> None:
    from memories.transfer import bundle

    begin_change()
    with (
        temporary_copy(write) as copy,
        name_place(str(folder), "some files may be missing; fix this and try again"),
    ):
        count = bundle.write(folder, (line.decode() for line in copy))
    done = f"{amount(count, 'memory was', 'memories were')} exported to {folder}"
    record_change(done)
    emit({"exported": count, "output": str(folder)}, f"{done}/{bundle.INDEX}.")


def _write_to_output(write: Callable[[IO[bytes]], int]) -> None:
    """Write an export to standard output.

    The export is first written to a temporary file, so that a slow reader doesn't block writers.
    """
    with (
        temporary_copy(write) as copy,
        name_place("standard output", "the export is incomplete"),
    ):
        shutil.copyfileobj(copy, sys.stdout.buffer, CHUNK_BYTES)
        sys.stdout.buffer.flush()


def _own_key() -> bytes | None:
    """Return the key that authenticates this user's exports; if that fails, print a note."""
    from memories.config import registers
    from memories.transfer.export import own_key

    folder = registers()
    try:
        return own_key(folder, make=True)
    except MemoriesError:
        raise
    except OSError as exc:
        note(
            "Note: nothing in this export proves that it is yours, since the key for your exports "
            f"can't be stored in {folder} ({exc.strerror or exc}); import the file with "
            "--trusted, or its memories will be held for review."
        )
        return None


# --- edits in a folder of Markdown ---


def apply_edits(
    config: "Config",
    folder: Path,
    *,
    namespaces: Sequence[str] | None,
    dry_run: bool,
    redact: bool,
    yes: bool,
) -> tuple[Iterator[bytes], int] | None:
    """Store the edited texts of a folder as new versions, once they are confirmed.

    Args:
        config: The settings.
        folder: A folder that `memory export --markdown` wrote.
        namespaces: Only edits in these namespaces are stored; None means all.
        dry_run: Whether to show only the differences.
        redact: Whether to remove secrets.
        yes: Whether the changes are already confirmed; otherwise, ask the user.

    Returns:
        The export lines of the folder's memories that weren't edited, and the number of edits; None
        if the user said no.

    Raises:
        InvalidInput: There are edits to confirm, but no terminal to ask on. Nothing was stored.
    """
    from memories.transfer import bundle

    contents = bundle.read(folder)
    missing: list[str] = []  # a line for each edited memory that the store lacks
    edited: list[tuple[Memory, str]] = []
    for namespace, edits in groupby(contents.edits, key=attrgetter("namespace")):
        if namespaces is not None and namespace not in namespaces:
            missing += [line for edit in edits for line in edit.lines]
            continue
        with open_memories(config._replace(namespace=namespace), shared=False) as memories:
            for edit in edits:
                history = None
                with contextlib.suppress(MemoriesError):
                    history = memories.history(edit.memory_id)
                if history is None or history.memory is None:
                    missing += edit.lines
                elif _is_editable(history, history.memory, edit):
                    edited.append((history.memory, edit.text))
    if dry_run or not edited:
        return contents.to_export(missing), len(edited)
    question = f"Store {amount(len(edited), 'edit', 'edits')} as new versions?"
    why = "edits become new versions"
    if not yes and not confirm(question, otherwise="Nothing was changed.", why=why):
        return None
    _store_edits(config, edited, redact=redact)
    return contents.to_export(missing), len(edited)


def _store_edits(config: "Config", edited: "Sequence[tuple[Memory, str]]", *, redact: bool) -> None:
    """Store edited texts as new versions, and print which correction links have changed."""
    from memories.answers import shapes

    begin_change()
    for namespace, pairs in groupby(edited, key=lambda pair: pair[0].namespace):
        with open_memories(config._replace(namespace=namespace), shared=False) as memories:
            for memory, text in pairs:
                changed = memories.update(memory.id, text, redact=redact, if_version=memory.version)
                record_change(f"{memory.id} was updated", "running the command again does the rest")
                advice = f"run: memory confirm {{}} -n {namespace}"
                if hint := shapes.change_hint(memory, changed, confirm=advice):
                    note(f"{memory.id}: {hint}")


def _is_editable(history: "History", memory: "Memory", edit: "Edit") -> bool:
    """Return whether an edit can become a version, and print the edit or the reason it can't."""
    place = f"{memory.id} -n {memory.namespace}"
    if memory.pending:
        reason = f"it is waiting for review; to edit it, run: memory review edit {place}"
    elif history.versions[-1].ended_at is not None:
        reason = f"it was deleted or replaced; to edit it, first run: memory restore {place}"
    elif edit.applies_to(memory.content):
        note(f"{memory.id} was edited:\n{edit.difference(memory.content)}")
        return True
    else:
        reason = (
            "both the memory and its file have changed since the export; update one of them "
            "yourself"
        )
    if memory.content != edit.text:
        note(f"{memory.id} was left unchanged: {reason}")
    return False


# --- migrate ---


@command(
    epilog="memory migrate --to postgresql://memories@db.example/memories\n"
    "memory migrate --partitions 16"
)
@option(
    "--to", "target", metavar="URL",
    help="The store to copy to: empty, or an unfinished copy; - reads the URL from standard input.",
)  # fmt: skip
@option(
    "--partitions", type=int, metavar="N",
    help="Instead of copying, divide the PostgreSQL store into N partitions, 1 to 64.",
)  # fmt: skip
@_store_settings
def migrate(config: "Config", target: str | None, partitions: int | None) -> None:
    """Copy the entire store to another one, and verify the copy.

    The original is not changed, and you can use it during the copy. Run the same command again to
    continue an interrupted copy. Afterwards, set MEMORY_STORE to the copy.

    Other users of the machine can see a command's options, so pass a URL with a password through
    standard input (--to -) or MEMORY_MIGRATE_TO.

    With --partitions, the store is repartitioned instead, completely or not at all. You can use it
    in the meantime.
    """
    if target is not None and partitions is not None:
        raise InvalidInput("--to and --partitions can't be combined; give one of them")
    if partitions is not None:
        _repartition(config, partitions)
        return
    if target is None:
        target = os.environ.get("MEMORY_MIGRATE_TO")
    if target is None:
        raise InvalidInput("Missing option '--to'; see memory migrate --help")
    if target == "-":
        target = read_argument("-", "the URL", _MAX_URL_BYTES).strip()
        if len(target.split()) != 1:
            raise InvalidInput("standard input must contain exactly one URL")
    if hint := slashes_hint(target):
        note(hint)
    _copy_store(config, target)


def _repartition(config: "Config", partitions: int) -> None:
    from memories import stores
    from memories.stores.protocol import Partitioned

    with contextlib.closing(stores.open_store(config.store, None, config)) as store:
        if not isinstance(store, Partitioned):
            raise InvalidInput("this store has no partitions; only PostgreSQL stores do")
        before = store.repartition(partitions)
    if not before:
        raise InvalidInput(
            f"there is no store yet; create it with {partitions} partitions: add "
            f"?partitions={partitions} to its URL"
        )
    emit(
        {"partitions": partitions, "before": before},
        f"The store has {partitions} partitions (before: {before}).",
    )


def _copy_store(config: "Config", target: str) -> None:
    from memories.embedders import open_embedder, own_embedder
    from memories.transfer.migrate import migrate as run
    from memories.write.accesses import Accesses

    if absolute_url(target) == absolute_url(config.store):
        raise InvalidInput("the target is the same store as the source; name a different store")
    embedder = open_embedder(config.embedder, config)
    begin_change()
    with (
        open_store(config.store, None, config) as source,
        open_store(target, embedder, config) as copy,
        ProgressBar() as bar,
    ):
        Accesses(config.home, config.store).flush(source)
        embedder = own_embedder(source, embedder, config)
        if embedder is not None:
            copy.use_space(embedder.space)
        migrated = run(source, copy, embedder, progress=bar)
    records = amount(migrated.copied, "record was", "records were")
    record_change(f"{records} copied, and the copy was verified")
    answer = store_shapes.migrate_result(migrated, config.store, target) | {
        "switch": _setting(target, "set MEMORY_STORE to the URL that you gave"),
        "go_back": _setting(config.store, "set MEMORY_STORE back to the URL that you had"),
    }
    emit(answer, partial(_render_migration, answer))


def _render_migration(answer: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{count} of {name}" for name, count in answer["records"].items())
    lines = [f"Copied and verified: {counts}; {answer['copied']} new, {answer['changed']} changed."]
    if answer["without_vector"]:
        lines.append(without_vector(answer["without_vector"]))
    lines.append(f"To use the copy: {answer['switch']}")
    lines.append(f"To go back: {answer['go_back']}")
    return "\n".join(lines)


def _setting(url: str, otherwise: str) -> str:
    """Return the command that selects a store, or a sentence if the URL has a password."""
    from memories.core.urls import without_password

    if without_password(url) != url:
        return f"{otherwise} (its password is not shown)"
    return f"export MEMORY_STORE={shlex.quote(absolute_url(url))}"


# --- reembed ---


@command(epilog="memory reembed\nmemory reembed --model e5 --install")
@option(
    "--model", metavar="NAME",
    help="The embedder to switch to: any value of EMBEDDER. [default: the one in use]",
)  # fmt: skip
@option("--install", is_flag=True, help="First install the model, if it is a separate package.")
@_store_settings
def reembed(config: "Config", model: str | None, install: bool) -> None:
    """Recompute all vectors with another embedder.

    Searches work while the command runs, and an interrupted command can be run again. Afterwards,
    the new embedder is used. Its name is saved in config.toml, unless an option or the environment
    names the store. If the embedder is already in use, only missing vectors are computed.

    The model e5 supports about 100 languages; --install adds it to the installation of this
    program.
    """
    from importlib.util import find_spec

    from memories.embedders import name_of, open_embedder, own_embedder
    from memories.transfer.migrate import reembed as run

    name = config.embedder if model is None else model
    embedder = open_embedder(name, config)
    if embedder is None:
        raise InvalidInput(
            '"none" has no vectors to compute; name an embedder, or, to search by words only, '
            "set EMBEDDER=none"
        )
    if install and name == "e5" and find_spec("memories_e5") is None:
        _install_model()
    begin_change()
    with open_store(config.store, None, config) as store, ProgressBar() as bar:
        if model is None:
            embedder = own_embedder(store, embedder, config) or embedder
        reembedded = run(store, embedder, progress=bar)
    records = amount(reembedded.embedded, "record was", "records were")
    done = f"{records} embedded with {reembedded.model}"
    record_change(done)
    answer = store_shapes.reembed_result(reembedded, name_of(reembedded.model) or name)
    if model is not None:
        answer |= _use_embedder(config, name)
    emit(answer, f"{done}.")


def _use_embedder(config: "Config", name: str) -> dict[str, str]:
    """Switch to an embedder; print and return the saved setting, or what the user must still do."""
    source = config.sources["embedder"]
    if source in ("environment", ".env"):
        if config.embedder == name:
            return {}
        note(f"EMBEDDER ({source}) is still {config.embedder}; set EMBEDDER={name}, or unset it.")
        return {"switch": f"export EMBEDDER={name}"}
    if config.sources["store"] in ("flag", "environment", ".env") and source == "default":
        if name in ("minilm", "e5"):
            return {}  # a store's own model needs no setting
        note(f"This store is now used with EMBEDDER={name}.")
        return {"switch": f"export EMBEDDER={name}"}
    file = str(save_setting("embedder", name))
    note(f"Saved in {file}: embedder = {name}")
    return {"saved": file}


def _install_model() -> None:
    """Install the package of a model, and run this command again in the new environment.

    Raises:
        SystemFault: The installation failed.
    """
    import subprocess

    from memories.core.installation import install_arguments

    arguments = install_arguments("multilingual")
    note(f"Installing:\n  {shlex.join(arguments)}")
    sys.stderr.flush()
    try:
        code = subprocess.run(arguments, stdout=2, check=False).returncode  # noqa: S603
    except OSError as exc:
        raise SystemFault(f"cannot run {arguments[0]}: {exc.strerror or exc}; install it") from exc
    if code:
        raise SystemFault(
            f"the model was not installed: {arguments[0]} ended with exit code {code}; "
            f"nothing was changed; run: {shlex.join(arguments)}"
        )
    # The installation may have replaced the environment, so start a new process in it.
    again = [argument for argument in sys.argv[1:] if argument != "--install"]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "memories", *again])  # noqa: S606


COMMANDS = (export, migrate, reembed)
