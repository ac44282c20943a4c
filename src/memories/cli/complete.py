"""Shell completion of names from the store: ids, keys, tags, namespaces.

Completion runs while the user types, so it prints no errors, changes nothing, and asks no server.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import click
from click.shell_completion import BashComplete, CompletionItem

from memories.errors import MemoriesError

if TYPE_CHECKING:
    from memories.memories import Memories

    _Finder = Callable[[Memories, str], list["CompletionItem"]]

_MAX_MEMORIES = 1_000  # the newest names
_MAX_EXCERPT = 60  # characters of the text shown next to an id


def completion(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return the completion for a kind: one of `_FINDERS`, or a tag whose values are offered."""
    find: _Finder = _FINDERS.get(kind) or partial(_find_values, kind)

    def complete(
        context: click.Context, _parameter: click.Parameter, beginning: str
    ) -> list[CompletionItem]:
        items: list[CompletionItem] = []
        # The command itself reports problems with the store.
        with contextlib.suppress(MemoriesError, OSError), _open(context) as memories:
            items = find(memories, beginning)
        return [
            item for item in items if item.value.startswith(beginning) and item.value.isprintable()
        ]

    return complete


@contextlib.contextmanager
def _open(context: click.Context) -> "Iterator[Memories]":
    """Open the store that the command line names, if it is on this machine and exists.

    Raises:
        MemoriesError: The store does not exist or can't be read.
    """
    from memories.config import load_config
    from memories.memories import Memories
    from memories.stores import local_path

    flags = {name: context.params.get(name) for name in ("namespace", "store")}
    config = load_config(flags, tell=lambda _message: None)
    path = local_path(config.store)
    if path is None or not path.exists():
        raise MemoriesError("there is no store on this machine")
    shared = not context.params.get("no_shared")
    with Memories(embedder="none", shared=shared, config=config) as memories:
        yield memories


def _find_ids(memories: "Memories", beginning: str) -> list[CompletionItem]:
    newest = [item for item in _list_ids(memories) if item.value.startswith(beginning)]
    return newest or [CompletionItem(memory_id) for memory_id in memories.ids(beginning)]


def _list_ids(memories: "Memories", *, deleted: bool = False) -> list[CompletionItem]:
    items = []
    for memory in memories.list(limit=_MAX_MEMORIES, deleted=deleted).memories:
        excerpt = " ".join(memory.content.split())[:_MAX_EXCERPT]
        items.append(CompletionItem(memory.id, help=excerpt))
    return items


def _find_keys(memories: "Memories", _beginning: str) -> list[CompletionItem]:
    newest = memories.list(limit=_MAX_MEMORIES).memories
    return [CompletionItem(key) for key in sorted({memory.key for memory in newest if memory.key})]


def _find_tags(memories: "Memories", beginning: str) -> list[CompletionItem]:
    key, equals, _ = beginning.partition("=")
    if not equals:
        return [CompletionItem(f"{name}=") for name in memories.tags()]
    return [CompletionItem(f"{key}={value}") for value in memories.tags(key)]


def _find_tag_keys(memories: "Memories", _beginning: str) -> list[CompletionItem]:
    return [CompletionItem(key) for key in memories.tags()]


def _find_values(key: str, memories: "Memories", _beginning: str) -> list[CompletionItem]:
    return [CompletionItem(value) for value in memories.tags(key)]


def _find_namespaces(memories: "Memories", _beginning: str) -> list[CompletionItem]:
    return [CompletionItem(namespace.name) for namespace in memories.namespaces()]


def _find_conversations(memories: "Memories", _beginning: str) -> list[CompletionItem]:
    newest = memories.conversations(limit=_MAX_MEMORIES)
    return [CompletionItem(conversation.id) for conversation in newest]


_FINDERS: "dict[str, _Finder]" = {
    "ids": _find_ids,
    "deleted ids": lambda memories, _: _list_ids(memories, deleted=True),
    "keys": _find_keys,
    "tags": _find_tags,
    "tag keys": _find_tag_keys,
    "namespaces": _find_namespaces,
    "conversations": _find_conversations,
}


class Bash(BashComplete):
    """Joins the words that Bash splits: `project=shop` becomes three words, and Bash replaces the
    last."""

    name = "bash"
    _prefix = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words and the incomplete one; see
        `BashComplete.get_completion_args`."""
        words, beginning = super().get_completion_args()
        if beginning == "=":
            words, beginning = [*words, "="], ""
        if len(words) > 1 and words[-1] == "=":
            *words, key, _ = words
            self._prefix = f"{key}="
            beginning = f"{key}={beginning}"
        return words, beginning

    def format_completion(self, item: CompletionItem) -> str:
        """Return a line for the shell, without the part that the shell keeps."""
        return f"{item.type},{item.value.removeprefix(self._prefix)}"
