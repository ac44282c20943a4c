"""`MemoriesStore` implements LangGraph's `BaseStore` with our stores. An item is a memory with a
key.

The memory's `data` is the item's value, and its content is the value's text, which is searched. So
the command, the library and other agents find the items that a graph stored, and a user who edits
the content changes the item.

An item's namespace is stored as tags, one for each depth: `langgraph.1=users`,
`langgraph.2=users.ann`. So a search below a prefix filters by one exact tag, without comparing
string prefixes.
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
from memories.stores.records import Record

if TYPE_CHECKING:
    from memories import Config, Embedder, Store

Namespace = tuple[str, ...]

_TAG = "langgraph."
# tag of items that can be read by key but that no query finds
_UNSEARCHED = {"langgraph.index": "none"}
_BETWEEN = "."  # separates labels, so a namespace's labels can't contain it
_PAGE = 1_000
_HITS = 20  # number of hits that are fetched first; fewer would not be faster
_MORE = 4  # factor by which more are fetched if these are not enough
_Candidate = tuple[Memory, float | None, Record | None]  # a hit also has a score and a record


class MemoriesStore(BaseStore):
    """Stores the items of graphs and agents as memories with versions, and finds them by meaning
    and words.

    Threads and processes may share a store. A batch runs its reads first, then its writes in one
    transaction; the later of two writes to the same key wins. Without a query, the newest items
    come first. With a query, its hits come first, followed by the items that were put with
    `index=False`. Other items are left out.
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
        """Open a store. See `Memories` for the other arguments.

        Args:
            store: A URL or an open store; by default, the store in the settings.
            namespace: The Memories namespace that contains the items; no other is read.
            embedder: The embedder; `none` searches by words only.
            config: Used instead of the settings in the environment and the files.
            fields: The paths in a value that are searched, such as `text` or `messages[*].content`.
                By default `content`, or the entire value if it has no `content`. The argument
                `index` of a put overrides this.

        Raises:
            InvalidInput: A value is invalid.
            ConfigError: A setting is invalid.
        """
        self._memories = Memories(
            store, namespace=namespace, shared=False, embedder=embedder, config=config
        )
        self._fields = None if fields is None else list(fields)

    def close(self) -> None:
        """Close the store, unless it was passed in."""
        self._memories.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations: first the reads, then the writes in one transaction.

        Returns:
            The results in the order of the operations: for a get, the item, or None if there is no
            such item; for a search, its items; for a put, None; for a listing, the namespaces.

        Raises:
            InvalidNamespaceError: A label is invalid.
            InvalidInput: A key or a value is invalid; nothing was written.
            TypeError: A namespace, a key or a value is of the wrong type.
        """
        operations = list(ops)
        writes: dict[tuple[Namespace, str], PutOp] = {}
        for op in operations:
            if isinstance(getattr(op, "namespace", getattr(op, "namespace_prefix", None)), str):
                raise TypeError("the namespace is a string; pass a tuple of labels")
            validate_op_namespace(op)
            if isinstance(op, PutOp):
                self._check(op)
                writes[tuple(op.namespace), op.key] = op
        drafts = [self._draft(op) for op in writes.values() if op.value is not None]
        results = [None if isinstance(op, PutOp) else self._read(op) for op in operations]
        deletions = [op for op in writes.values() if op.value is None]
        # The model runs before the transaction, so that it doesn't keep other writers waiting.
        batches = list(self._memories.prepare(drafts, force=True))
        with self._memories.transaction() if deletions or len(batches) > 1 else nullcontext():
            for op in deletions:
                memory = self._find(op)
                if memory is not None:
                    self._memories.delete(memory.id)
            for batch in batches:
                batch.write()
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations in a thread; see `batch`."""
        return await asyncio.to_thread(self.batch, ops)

    def _check(self, op: PutOp) -> None:
        """Refuse operations whose values can't be stored, or would change when stored.

        Raises:
            InvalidInput: A label or the key is not normalized, is too long or contains a secret.
            NotImplementedError: The item has a TTL.
            TypeError: The key is not text, or the value is not a mapping.
        """
        if not isinstance(op.key, str):
            raise TypeError(f"the key {op.key!r} is of type {type(op.key).__name__}; pass a string")
        if op.value is not None and not isinstance(op.value, dict):
            raise TypeError(f"the value is of type {type(op.value).__name__}; pass a dict")
        if op.ttl is not None:
            raise NotImplementedError(
                "TTL is not supported by MemoriesStore; delete items that are no longer needed"
            )
        if not op.namespace:
            raise InvalidInput("the namespace is empty; give at least one label")
        for part in (*op.namespace, op.key):
            if validate.one_line(part, "label or key") != part:
                raise InvalidInput(
                    f'"{validate.shown(part)}" begins or ends with a space, or is not in Unicode '
                    "NFC"
                )
        redactor = self._memories.config.redactor()
        for name in (_key(op), *_tags(op.namespace).values()):
            redactor.refuse(name, "namespace or key")

    def _draft(self, op: PutOp) -> Draft:
        text = ""
        try:
            data = json.dumps(op.value, ensure_ascii=False, allow_nan=False)
            if op.index is not False:
                text = _searched_text(json.loads(data), op.index or self._fields)
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidInput(
                f'the value of "{validate.shown(op.key)}" can\'t be stored as JSON ({exc})'
            ) from exc
        tags = _tags(op.namespace)
        if not text:
            return Draft(data, tags | _UNSEARCHED, key=_key(op), data=data)
        return Draft(text, tags, key=_key(op), data=data)

    def _read(self, op: Op) -> Result:
        if isinstance(op, GetOp):
            memory = self._find(op)
            return None if memory is None else Item(**_parts(memory))
        if isinstance(op, SearchOp):
            return self._search(op)
        if isinstance(op, ListNamespacesOp):
            return self._namespaces(op)
        raise InvalidInput(f"there is no operation {type(op).__name__}")

    def _find(self, op: GetOp | PutOp) -> Memory | None:
        try:
            memory = self._memories.get(self._memories.id_of_key(_key(op)))
        except NotFound:
            return None
        # A lookup ignores blanks around a key, and may find a memory that is not an item.
        is_item = memory.key == _key(op) and _namespace(memory) == tuple(op.namespace)
        return memory if is_item else None

    def _search(self, op: SearchOp) -> list[SearchItem]:
        end = op.offset + op.limit
        items: list[SearchItem] = []
        read: list[Record | None] = []
        for memory, score, record in self._candidates(op) if op.limit > 0 else ():
            item = SearchItem(**_parts(memory), score=score)
            if op.filter is None or _fits_filter(item.value, op.filter):
                items.append(item)
                read.append(record)
            if len(items) >= end:  # stop before the next candidate, which may need a search
                break
        self._memories.count_reads(list(filter(None, read[op.offset : end])))
        return items[op.offset : end]

    def _candidates(self, op: SearchOp) -> Iterator[_Candidate]:
        """Yield a search's candidates, best first. Their order doesn't depend on the offset, so
        that the pages of a search fit together.
        """
        prefix = tuple(op.namespace_prefix)
        tags = {}
        if prefix:
            tags = {f"{_TAG}{len(prefix)}": _BETWEEN.join(prefix)}
        query = (op.query or "").strip()[: validate.MAX_QUERY_CHARACTERS]
        if query:
            for memory, score, record in self._hits(query, tags, max(_HITS, op.limit)):
                if _is_below(memory, prefix) and not _UNSEARCHED.items() <= memory.tags.items():
                    yield memory, score, record
            tags |= _UNSEARCHED
        cursor = None
        while True:
            page = self._memories.list(tags=tags, limit=_PAGE, cursor=cursor)
            for memory in page.memories:
                if _is_below(memory, prefix):
                    yield memory, None, None
            cursor = page.next_cursor
            if cursor is None:
                return

    def _hits(self, query: str, tags: dict[str, str], limit: int) -> Iterator[_Candidate]:
        """Yield a query's hits, each once. A search with a higher limit may order them differently,
        since it ranks more candidates.
        """
        seen: set[str] = set()
        limit = min(validate.MAX_LIMIT, limit)
        while True:
            result = self._memories.find_candidates(
                query, tags=tags, limit=limit, min_confidence=0.0
            )
            hits = result.hits()
            for hit, record in zip(hits, result.memory_records(), strict=True):
                if hit.id not in seen:
                    seen.add(hit.id)
                    yield hit.memory, hit.score, record
            if len(hits) < limit or limit == validate.MAX_LIMIT:
                return
            limit = min(validate.MAX_LIMIT, _MORE * limit)

    def _namespaces(self, op: ListNamespacesOp) -> list[Namespace]:
        rules = op.match_conditions or ()
        namespaces = sorted(self._all_namespaces())
        for rule in rules:
            namespaces = [name for name in namespaces if _matches(name, rule)]
        if op.max_depth is not None:
            namespaces = list(dict.fromkeys(name[: op.max_depth] for name in namespaces))
        return namespaces[op.offset : op.offset + op.limit]

    def _all_namespaces(self) -> Iterator[Namespace]:
        """Yield the namespaces that directly contain items.

        They are found by counting: a namespace directly contains items if it has more items in
        total than the namespaces one level below it together.
        """
        depth, counts = 1, self._memories.tags(f"{_TAG}1")
        while counts:
            deeper = self._memories.tags(f"{_TAG}{depth + 1}")
            below = dict.fromkeys(counts, 0)
            for name, count in deeper.items():
                parent = name.rpartition(_BETWEEN)[0]
                below[parent] = below.get(parent, 0) + count
            for name, count in counts.items():
                if count > below[name]:
                    yield tuple(name.split(_BETWEEN))
            depth, counts = depth + 1, deeper


def _tags(namespace: Namespace) -> dict[str, str]:
    depths = range(1, len(namespace) + 1)
    return {f"{_TAG}{depth}": _BETWEEN.join(namespace[:depth]) for depth in depths}


def _key(op: GetOp | PutOp) -> str:
    return _key_prefix(tuple(op.namespace)) + op.key


def _key_prefix(namespace: Namespace) -> str:
    """Return the beginning of the keys of a namespace's items.

    It ends at the first slash that doesn't follow a dot. A slash in a label becomes `./`, and
    nothing else produces `./`, since a label is not empty and contains no dot.
    """
    return _BETWEEN.join(namespace).replace("/", "./") + "/"


def _namespace(memory: Memory) -> Namespace:
    """Return an item's namespace; empty if the memory is not an item."""
    labels = (name.removeprefix(_TAG) for name in memory.tags if name.startswith(_TAG))
    depth = sum(map(str.isdigit, labels))
    if not depth or not memory.key:
        return ()
    return tuple(memory.tags.get(f"{_TAG}{depth}", "").split(_BETWEEN))


def _is_below(memory: Memory, prefix: Namespace) -> bool:
    """Return whether a memory is an item whose namespace begins with the given labels. A filter by
    tag would also accept labels with blanks around them.
    """
    namespace = _namespace(memory)
    return bool(namespace) and namespace[: len(prefix)] == prefix


def _parts(memory: Memory) -> dict[str, Any]:
    namespace = _namespace(memory)
    key = (memory.key or "").removeprefix(_key_prefix(namespace))
    value = {"content": memory.content} if memory.data is None else json.loads(memory.data)
    times = {"created_at": memory.created_at, "updated_at": memory.updated_at}
    return {"namespace": namespace, "key": key, "value": value, **times}


def _matches(namespace: Namespace, rule: MatchCondition) -> bool:
    """Return whether a namespace starts or ends with the given labels; `*` matches any label."""
    path = tuple(rule.path)
    if len(path) > len(namespace):
        return False
    start = 0 if rule.match_type == "prefix" else len(namespace) - len(path)
    part = namespace[start : start + len(path)]
    return all(label in ("*", actual) for label, actual in zip(path, part, strict=True))


_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "$eq": eq, "$ne": ne, "$gt": gt, "$gte": ge, "$lt": lt, "$lte": le,
}  # fmt: skip


def _searched_text(value: dict[str, Any], paths: Sequence[str] | None) -> str:
    """Return the part of a value that is searched, as text; empty if it contains no words.

    Args:
        value: The value.
        paths: Paths such as `text` or `messages[*].content`; None for `content`, or for the entire
            value if it has no `content`.
    """
    if paths is None:
        text = _to_text(value.get("content") or value)
    else:
        texts: list[str] = []
        for path in paths:
            texts += [_to_text(value)] if path == "$" else get_text_at_path(value, path)
        text = "\n".join(filter(None, texts))
    return text if any(map(str.isalnum, text)) else ""


def _to_text(value: Any) -> str:
    """Return a value as text: an object with one line for each key, a list on one line."""
    if isinstance(value, dict):
        pairs = [(name, _to_text(member)) for name, member in value.items()]
        return "\n".join(f"{name}: {text}" for name, text in pairs if text)
    if isinstance(value, list):
        return ", ".join(filter(None, map(_to_text, value)))
    return "" if value is None else str(value)


def _fits_filter(value: Any, conditions: Mapping[str, Any]) -> bool:
    """Return whether a value matches a filter: each member equals its condition, or satisfies its
    operators.

    A name with dots, such as `user.city`, is a path, unless the value has a member with that name.
    Missing members count as None. Values that can't be compared, such as a number and a string,
    don't match.

    Raises:
        ValueError: An operator is unknown.
    """
    return all(_fits(_member(value, name), condition) for name, condition in conditions.items())


def _member(value: Any, path: str) -> Any:
    """Return the member of a value at a path; None if there is none."""
    if not isinstance(value, dict):
        return None
    if path in value or _BETWEEN not in path:
        return value.get(path)
    for end in range(len(path)):
        if path[end] == _BETWEEN and isinstance(value.get(path[:end]), dict):
            member = _member(value[path[:end]], path[end + 1 :])
            if member is not None:
                return member
    return None


def _fits(value: Any, condition: Any) -> bool:
    if isinstance(condition, tuple):
        condition = list(condition)
    if not isinstance(condition, Mapping):
        return bool(value == condition)
    if not any(str(name).startswith("$") for name in condition):
        return isinstance(value, dict) and _fits_filter(value, condition)
    for name in condition:
        if name not in _OPERATORS:
            raise ValueError(f"Unsupported operator: {name}")
    try:
        return all(_OPERATORS[name](value, bound) for name, bound in condition.items())
    except TypeError:  # the values can't be compared
        return False
