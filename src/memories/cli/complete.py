"""Shell completion of names from the store, such as ids, keys, tags and namespaces.

Completion runs while the user types: it prints no errors, changes nothing and contacts no server.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click
from click.shell_completion import BashComplete, CompletionItem

from memories.errors import MemoriesError

if TYPE_CHECKING:
    from memories.memories import Memories

_MAX_MEMORIES = 1_000  # maximum number of memories searched, newest first
_MAX_EXCERPT = 60  # maximum number of characters shown next to an id
_SEPARATORS = ("=", ":")  # characters at which Bash splits a word


def complete(kind: str, context: click.Context, beginning: str) -> list[CompletionItem]:
    """Return the completions for `hosts`, `ids`, `deleted ids`, or a kind in `_find_names`."""
    items: list[CompletionItem] = []
    if kind == "hosts":
        from memories.connect.hosts import load_hosts

        items = list(map(CompletionItem, load_hosts()))
        return [item for item in items if item.value.startswith(beginning)]
    # The command itself reports problems with the store.
    with contextlib.suppress(MemoriesError, OSError), _open(context) as memories:
        if kind in ("ids", "deleted ids"):
            items = _find_ids(memories, beginning, deleted=kind != "ids")
        else:
            items = list(map(CompletionItem, _find_names(memories, kind, beginning)))
    return [item for item in items if item.value.startswith(beginning) and item.value.isprintable()]


@contextlib.contextmanager
def _open(context: click.Context) -> "Iterator[Memories]":
    """Open the store that the command line names, if it is on this machine and exists.

    Raises:
        MemoriesError: The store does not exist or can't be read.
    """
    from memories.config import load_config
    from memories.core.urls import local_path
    from memories.memories import Memories

    flags = {name: context.params.get(name) for name in ("namespace", "store")}
    config = load_config(flags, tell=lambda _message: None)
    path = local_path(config.store)
    if path is None or not path.exists():
        raise MemoriesError("there is no store on this machine")
    shared = not context.params.get("no_shared")
    with Memories(embedder="none", shared=shared, config=config) as memories:
        yield memories


def _find_ids(memories: "Memories", beginning: str, *, deleted: bool) -> list[CompletionItem]:
    """Return the matching ids, with excerpts, of the newest memories.

    If none of them matches, return the matching ids of all memories, without excerpts.
    """
    items = []
    for memory in memories.list(limit=_MAX_MEMORIES, deleted=deleted).memories:
        excerpt = " ".join(memory.content.split())[:_MAX_EXCERPT]
        if memory.id.startswith(beginning):
            items.append(CompletionItem(memory.id, help=excerpt))
    if items or deleted:
        return items
    return [CompletionItem(memory_id) for memory_id in memories.ids(beginning)]


def _find_names(memories: "Memories", kind: str, beginning: str) -> Iterable[str]:
    """Return names to complete: keys, tags, namespaces, conversations, or the values of a tag."""
    names: Iterable[str] = []
    if kind == "keys":
        newest = memories.list(limit=_MAX_MEMORIES).memories
        names = sorted({memory.key for memory in newest if memory.key})
    elif kind == "tags" and "=" in beginning:
        key = beginning.partition("=")[0]
        names = [f"{key}={value}" for value in memories.tags(key)]
    elif kind == "tags":
        names = [f"{key}=" for key in memories.tags()]
    elif kind == "namespaces":
        names = [namespace.name for namespace in memories.namespaces()]
    elif kind == "conversations":
        names = [talk.id for talk in memories.conversations(limit=_MAX_MEMORIES)]
    else:
        names = memories.tags(None if kind == "tag keys" else kind)
    return names


class Bash(BashComplete):
    """Joins words that Bash splits.

    Bash treats `project=shop` and `codex:s1` as three words, and replaces only the last of them.
    """

    name = "bash"
    _prefix = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words and the incomplete one; see
        `BashComplete.get_completion_args`."""
        words, beginning = super().get_completion_args()
        if beginning in _SEPARATORS:
            words, beginning = [*words, beginning], ""
        while len(words) > 1 and words[-1] in _SEPARATORS:
            *words, start, separator = words
            beginning = f"{start}{separator}{beginning}"
            if not start.startswith("-"):  # click removes an option's name
                self._prefix = f"{start}{separator}{self._prefix}"
        return words, beginning

    def format_completion(self, item: CompletionItem) -> str:
        """Return the line that offers a completion, without the beginning that Bash keeps."""
        return f"{item.type},{item.value.removeprefix(self._prefix)}"
