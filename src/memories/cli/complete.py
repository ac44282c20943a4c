"""What a shell completes words to that only the store knows: ids, keys, tags, names.

It is asked while somebody types, so it says nothing, changes nothing, and asks no server.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import click
from click.shell_completion import BashComplete, CompletionItem

from memories.errors import MemoriesError

if TYPE_CHECKING:
    from memories.memories import Memories

_NEWEST = 1_000  # memories that are looked through for what they have
_SHOWN = 60  # characters of a text beside an id


def completion(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return what click asks for words of a kind: one of `_FINDERS`, or the key of a tag for its
    values.
    """

    def complete(
        context: click.Context, _parameter: click.Parameter, begun: str
    ) -> list[CompletionItem]:
        with contextlib.suppress(MemoriesError, OSError), _opened(context) as memories:
            find = _FINDERS.get(kind)
            items = (
                map(CompletionItem, memories.tags(kind)) if find is None else find(memories, begun)
            )
            return [
                item for item in items if item.value.startswith(begun) and item.value.isprintable()
            ]
        return []  # whatever is wrong with the store is told by the command, not while it is typed

    return complete


@contextlib.contextmanager
def _opened(context: click.Context) -> "Iterator[Memories]":
    """Open the store that the words so far name, if it is one on this machine that is there.

    Raises:
        MemoriesError: It is not, or can't be read.
    """
    from memories.config import load_config
    from memories.memories import Memories
    from memories.stores import local_path

    given = {name: context.params.get(name) for name in ("namespace", "store")}
    config = load_config(given, tell=lambda _: None)
    path = local_path(config.store)
    if path is None or not path.exists():
        raise MemoriesError("there is no store on this machine")
    with Memories(
        embedder="none", shared=not context.params.get("no_shared"), config=config
    ) as memories:
        yield memories


def _ids(memories: "Memories", begun: str) -> Iterable[CompletionItem]:
    newest = [item for item in _listed(memories) if item.value.startswith(begun)]
    return newest or map(CompletionItem, memories.ids(begun))


def _listed(memories: "Memories", *, deleted: bool = False) -> Iterable[CompletionItem]:
    found = memories.list(limit=_NEWEST, deleted=deleted).memories
    return (CompletionItem(each.id, help=" ".join(each.content.split())[:_SHOWN]) for each in found)


def _keys(memories: "Memories", _begun: str) -> Iterable[CompletionItem]:
    found = memories.list(limit=_NEWEST).memories
    return map(CompletionItem, sorted({memory.key for memory in found if memory.key}))


def _tags(memories: "Memories", begun: str) -> Iterable[CompletionItem]:
    key, sign, _ = begun.partition("=")
    if not sign:
        return (CompletionItem(f"{name}=") for name in memories.tags())
    return (CompletionItem(f"{key}={value}") for value in memories.tags(key))


_FINDERS: "dict[str, Callable[[Memories, str], Iterable[CompletionItem]]]" = {
    "ids": _ids,
    "deleted ids": lambda memories, _: _listed(memories, deleted=True),
    "keys": _keys,
    "tags": _tags,
    "tag keys": lambda memories, _: map(CompletionItem, memories.tags()),
    "namespaces": lambda memories, _: (
        CompletionItem(found.name) for found in memories.namespaces()
    ),
    "conversations": lambda memories, _: (
        CompletionItem(each.id) for each in memories.conversations(limit=_NEWEST)
    ),
}


class Bash(BashComplete):
    """Puts together what Bash has taken apart: to it `project=shop` is three words, and it replaces
    the last one.
    """

    name = "bash"
    _cut = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words so far and the one that is begun; see
        `BashComplete.get_completion_args`.
        """
        words, begun = super().get_completion_args()
        if begun == "=":
            words, begun = [*words, "="], ""
        if len(words) > 1 and words[-1] == "=":
            *words, key, _ = words
            self._cut, begun = f"{key}=", f"{key}={begun}"
        return words, begun

    def format_completion(self, item: CompletionItem) -> str:
        """Return a line for the shell, without what it does not replace."""
        return f"{item.type},{item.value.removeprefix(self._cut)}"
