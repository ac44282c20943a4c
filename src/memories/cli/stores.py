"""Commands that copy a whole store or change its embedder: migrate, reembed."""

import contextlib
import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from memories.answers import store_shapes
from memories.cli.app import command, option
from memories.cli.options import (
    ProgressBar,
    format_option,
    read_argument,
    store_option,
    with_settings,
)
from memories.cli.output import begin_change, emit, note, record_change, watch
from memories.core.urls import slashes_hint
from memories.errors import InvalidInput

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.settings import Config
    from memories.stores import Store

_MAX_URL_BYTES = 8_192
_store_settings = with_settings(store_option, format_option)


def open_store(
    url: str, embedder: "Embedder | None", config: "Config"
) -> "contextlib.closing[Store]":
    """Open a store, and watch it for damaged records."""
    from memories import stores

    store = stores.open_store(url, embedder.space if embedder else None, config)
    watch(store.damaged)
    return contextlib.closing(store)


def without_vector(count: int) -> str:
    """Return how many records have no vector, and the remedy."""
    return f"{count} have no vector; memory reembed adds them."


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

    The original is not changed and can be used meanwhile. Run the same command again to continue an
    interrupted copy. Afterwards set MEMORY_STORE to the copy.

    Other users can see options, so pass a URL with a password through standard input (--to -) or
    MEMORY_MIGRATE_TO.

    With --partitions the store stays in place and is repartitioned while others use it, completely
    or not at all.
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
            raise InvalidInput("standard input is not one URL; write nothing else to it")
    if hint := slashes_hint(target):
        note(hint)
    _copy_store(config, target)


def _repartition(config: "Config", partitions: int) -> None:
    if not config.store.startswith(("postgresql:", "postgres:")):
        raise InvalidInput("only a PostgreSQL store has partitions")
    from memories import stores

    with contextlib.closing(cast("Any", stores.open_store(config.store, None))) as store:
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
        open_store(config.store, None, config) as source,
        open_store(target, embedder, config) as copy,
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
        lines.append(without_vector(answer["without_vector"]))
    lines.append(f"To use the copy: {answer['switch']}")
    lines.append(f"To go back: {answer['go_back']}")
    return "\n".join(lines)


def _setting(url: str, otherwise: str) -> str:
    """Return the command that sets a store, or a sentence if its URL has a password, which isn't
    shown."""
    import shlex

    from memories.core.urls import without_password

    if without_password(url) != url:
        return f"{otherwise} (its password is not shown)"
    return f"export MEMORY_STORE={shlex.quote(_absolute(url))}"


def _absolute(url: str) -> str:
    """Return a store's URL in a form that means the same in every folder."""
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

    Searches continue meanwhile, and you can interrupt it and run it again. Afterwards set EMBEDDER
    to the new one. For the embedder in use, it computes only the vectors that are missing.
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
    with open_store(config.store, None, config) as store, ProgressBar() as bar:
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


COMMANDS = (migrate, reembed)
