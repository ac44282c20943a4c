"""`MemoriesStore`: LangGraph's `BaseStore` over a store of ours. An item is a memory with a key.

Its content is the text of the value, which is searched, and its `data` is the value. So the command, the library and
other agents find what a graph stored, and editing the content by hand changes the item.

Tags hold the namespace, one for each depth: `langgraph.1=users`, `langgraph.2=users.ann`. So a prefix is one tag, and
labels are never compared as strings.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from operator import eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING, Any, Self

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    validate_op_namespace,
)
from langgraph.store.base.embed import get_text_at_path

from memories import Draft, InvalidInput, Memories, Memory, NotFound
from memories.guard import validate

if TYPE_CHECKING:
    from memories import Config, Embedder, Store

Namespace = tuple[str, ...]

_TAG = "langgraph."
_UNSEARCHED = {"langgraph.index": "none"}  # of what is read by its key, and found by no query of a graph
_BETWEEN = "."  # labels of a namespace can't hold it
_PAGE = 1_000
_MORE = 4  # times as many hits are looked at where a filter may drop some


class MemoriesStore(BaseStore):
    """Keeps the items of graphs and agents as memories, with versions, and finds them by meaning and by word.

    It may be shared by threads and by processes. What one batch puts and deletes is stored in one transaction, after
    its reads; of two writes of one key the later counts. Without a query the newest items come first. With one, those
    that answer it come first, then those that were put with `index=False`; what does not answer it is left out.
    """

    __slots__ = ("_fields", "_memories")

    def __init__(
        self,
        store: "str | Store | None" = None,
        *,
        namespace: str | None = None,
        embedder: "str | Embedder | None" = None,
        config: "Config | None" = None,
        fields: Sequence[str] | None = None,
    ) -> None:
        """Open a store; see `Memories` for the arguments that are not here.

        Args:
            store: A URL, or an open store; by default the one of the settings.
            namespace: The namespace of ours that the items belong to; no other is read.
            embedder: What makes the vectors; `none` searches by words alone.
            config: Settings instead of those of the environment and the files.
            fields: The paths in a value that are searched, such as `text` or `messages[*].content`; by default
                `content` if a value has it, else all of the value. `index` of a put goes before.

        Raises:
            InvalidInput: A value is not acceptable.
            ConfigError: A setting is not acceptable.
        """
        self._memories = Memories(store, namespace=namespace, shared=False, embedder=embedder, config=config)
        self._fields = None if fields is None else list(fields)

    def close(self) -> None:
        """Close the store, unless it was passed in."""
        self._memories.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry operations out: first what reads, then what writes, all of that in one transaction.

        Returns:
            The result of each, in order: an item or None, items, None, or namespaces.

        Raises:
            InvalidNamespaceError: A label is not acceptable.
            InvalidInput: A key or a value is not acceptable; nothing was written.
        """
        given = list(ops)
        writes: dict[tuple[Namespace, str], PutOp] = {}
        for op in given:
            validate_op_namespace(op)
            if isinstance(op, PutOp):
                _check(op)
                writes[op.namespace, op.key] = op
        drafts = [self._draft(op) for op in writes.values() if op.value is not None]
        results = [None if isinstance(op, PutOp) else self._read(op) for op in given]
        gone = [op for op in writes.values() if op.value is None]
        # A single put is a transaction by itself; inside of another one it would keep writers waiting for the model.
        with self._memories.transaction() if gone or len(drafts) > 1 else nullcontext():
            self._delete(gone)
            self._memories.create_many(drafts, force=True)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry operations out in a thread; see `batch`."""
        return await asyncio.to_thread(self.batch, ops)

    # --- writing ---------------------------------------------------------------------------------------------------

    def _draft(self, op: PutOp) -> Draft:
        try:
            data = json.dumps(op.value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidInput(f'the value of "{validate.shown(op.key)}" can\'t be kept as JSON ({exc})') from exc
        text = "" if op.index is False else _searched_text(json.loads(data), op.index or self._fields)
        tags = {f"{_TAG}{depth}": _BETWEEN.join(op.namespace[:depth]) for depth in range(1, len(op.namespace) + 1)}
        if not text:
            return Draft(data, tags | _UNSEARCHED, key=_key(op), data=data)
        return Draft(text, tags, key=_key(op), data=data)

    def _delete(self, ops: Sequence[PutOp]) -> None:
        for op in ops:
            known = self._memory(op)
            if known is not None:
                self._memories.delete(known.id)

    # --- reading ---------------------------------------------------------------------------------------------------

    def _read(self, op: Op) -> Result:
        if isinstance(op, GetOp):
            found = self._memory(op)
            return None if found is None else Item(**_parts(found))
        if isinstance(op, SearchOp):
            return self._search(op)
        if isinstance(op, ListNamespacesOp):
            return self._namespaces(op)
        raise InvalidInput(f"there is no operation {type(op).__name__}")

    def _memory(self, op: GetOp | PutOp) -> Memory | None:
        try:
            return self._memories.get(self._memories.id_of_key(_key(op)))
        except NotFound:
            return None

    def _search(self, op: SearchOp) -> list[SearchItem]:
        end = op.offset + op.limit
        found: list[SearchItem] = []
        for memory, score in self._candidates(op, end) if op.limit > 0 else ():
            item = SearchItem(**_parts(memory), score=score)
            if op.filter is None or _fits_filter(item.value, op.filter):
                found.append(item)
            if len(found) >= end:  # before the next one is asked for, which may take another search
                break
        return found[op.offset : end]

    def _candidates(self, op: SearchOp, wanted: int) -> Iterator[tuple[Memory, float | None]]:
        """Yield what may be found, best first, each with its score if it has one."""
        depth = len(op.namespace_prefix)
        tags = {f"{_TAG}{depth}": _BETWEEN.join(op.namespace_prefix)} if depth else {}
        query = (op.query or "").strip()[: validate.MAX_QUERY_CHARACTERS]
        if query:
            yield from self._hits(query, tags, min(validate.MAX_LIMIT, wanted * (1 if op.filter is None else _MORE)))
            tags |= _UNSEARCHED
        cursor = None
        while True:
            page = self._memories.list(tags=tags, limit=_PAGE, cursor=cursor)
            yield from ((memory, None) for memory in page.memories if _namespace(memory))
            if (cursor := page.next_cursor) is None:
                return

    def _hits(self, query: str, tags: dict[str, str], limit: int) -> Iterator[tuple[Memory, float]]:
        """Yield the items that answer a query; of what is not stored by a graph, and of what is not searched, none."""
        seen = 0
        while True:
            hits = self._memories.search(query, tags=tags, limit=limit, min_confidence=0.0)
            for hit in hits[seen:]:
                if _namespace(hit.memory) and not _UNSEARCHED.items() <= hit.memory.tags.items():
                    yield hit.memory, hit.score
            if len(hits) < limit or limit == validate.MAX_LIMIT:
                return
            seen, limit = len(hits), min(validate.MAX_LIMIT, _MORE * limit)

    def _namespaces(self, op: ListNamespacesOp) -> list[Namespace]:
        rules = op.match_conditions or ()
        found = [each for each in sorted(self._known_namespaces()) if all(_matches(each, rule) for rule in rules)]
        if op.max_depth is not None:
            found = list(dict.fromkeys(each[: op.max_depth] for each in found))
        return found[op.offset : op.offset + op.limit]

    def _known_namespaces(self) -> Iterator[Namespace]:
        """Yield the namespaces with an item of their own: those that more items begin with than with longer ones."""
        depth, counts = 1, self._memories.tags(f"{_TAG}1")
        while counts:
            deeper = self._memories.tags(f"{_TAG}{depth + 1}")
            below = dict.fromkeys(counts, 0)
            for name, count in deeper.items():
                parent = name.rpartition(_BETWEEN)[0]
                below[parent] = below.get(parent, 0) + count
            yield from (tuple(name.split(_BETWEEN)) for name, count in counts.items() if count > below[name])
            depth, counts = depth + 1, deeper


def _check(op: PutOp) -> None:
    """Refuse what can't be kept, and what would come back as something else.

    Raises:
        InvalidInput: A label or the key has another form than it is kept in, or the key is too long.
        NotImplementedError: An item is to end by itself.
        TypeError: The key is not text, or the value is no mapping.
    """
    if not isinstance(op.key, str):
        raise TypeError(f"the key {op.key!r} is of type {type(op.key).__name__}; give text")
    if op.value is not None and not isinstance(op.value, dict):
        raise TypeError(f"the value is of type {type(op.value).__name__}; give a dict")
    if op.ttl is not None:
        raise NotImplementedError("TTL is not supported by MemoriesStore; delete what is no longer wanted")
    if not op.namespace:
        raise InvalidInput("the namespace is empty; give at least one label")
    for part in (*op.namespace, op.key):
        if validate.one_line(part, "label or key") != part:
            raise InvalidInput(f'"{validate.shown(part)}" begins or ends with a space or is not in Unicode form NFC')


def _key(op: GetOp | PutOp) -> str:
    """Return the key of an item among all memories."""
    return f"{_BETWEEN.join(op.namespace)}/{op.key}"


def _namespace(memory: Memory) -> Namespace:
    """Return the namespace of an item; empty if a memory is none."""
    depth = sum(name.removeprefix(_TAG).isdigit() for name in memory.tags if name.startswith(_TAG))
    return tuple(memory.tags.get(f"{_TAG}{depth}", "").split(_BETWEEN)) if depth and memory.key else ()


def _parts(memory: Memory) -> dict[str, Any]:
    namespace = _namespace(memory)
    key = (memory.key or "").removeprefix(_BETWEEN.join(namespace) + "/")
    value = {"content": memory.content} if memory.data is None else json.loads(memory.data)
    times = {"created_at": memory.created_at, "updated_at": memory.updated_at}
    return {"namespace": namespace, "key": key, "value": value, **times}


def _matches(namespace: Namespace, rule: MatchCondition) -> bool:
    """Return whether a namespace begins or ends with labels; `*` stands for any one label."""
    path = tuple(rule.path)
    if len(path) > len(namespace):
        return False
    part = namespace[: len(path)] if rule.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))


_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "$eq": eq, "$ne": ne, "$gt": gt, "$gte": ge, "$lt": lt, "$lte": le,
}  # fmt: skip


def _searched_text(value: dict[str, Any], paths: Sequence[str] | None) -> str:
    """Return what is searched of a value; empty if it has no words there.

    Args:
        value: The value.
        paths: Where, such as `text` or `messages[*].content`; None for `content` or, without it, all of the value.
    """
    if paths is None:
        told = _told(value.get("content") or value)
    else:
        found = (each for path in paths for each in ([_told(value)] if path == "$" else get_text_at_path(value, path)))
        told = "\n".join(each for each in found if each)
    return told if any(map(str.isalnum, told)) else ""


def _told(value: Any) -> str:
    """Return a value as text: the pairs of an object one a line, the entries of a list in a row."""
    if isinstance(value, dict):
        return "\n".join(f"{name}: {told}" for name, each in value.items() if (told := _told(each)))
    if isinstance(value, list):
        return ", ".join(filter(None, map(_told, value)))
    return "" if value is None else str(value)


def _fits_filter(value: Any, wanted: Mapping[str, Any]) -> bool:
    """Return whether a value meets a filter: each name has what is wanted there, or meets its operators.

    What is missing is None. Numbers are compared as numbers and texts as texts; what can't be compared does not fit.

    Raises:
        ValueError: There is no such operator.
    """
    return all(_fits(value.get(name) if isinstance(value, dict) else None, each) for name, each in wanted.items())


def _fits(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, Mapping):
        return bool(value == (list(wanted) if isinstance(wanted, tuple) else wanted))
    if not any(str(name).startswith("$") for name in wanted):
        return isinstance(value, dict) and _fits_filter(value, wanted)
    for name in wanted:
        if name not in _OPERATORS:
            raise ValueError(f"Unsupported operator: {name}")
    return all(_compares(_OPERATORS[name], value, other) for name, other in wanted.items())


def _compares(operator: Callable[[Any, Any], Any], value: Any, other: Any) -> bool:
    try:
        return bool(operator(value, other))
    except TypeError:
        return False
