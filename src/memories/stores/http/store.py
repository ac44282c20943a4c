"""`HttpStore`: the store that a server has, as one on this machine; each method is one request."""

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from memories.errors import MemoriesError, StoreError
from memories.settings import Config
from memories.stores.damage import Damaged
from memories.stores.http.driver import Driver
from memories.stores.records import (
    Candidate,
    Collection,
    Filter,
    Finding,
    Patch,
    Record,
    Ref,
    Space,
    StoreInfo,
)
from memories.stores.wire import from_wire, to_wire

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.records import Matches, TurnQuery

# of texts and vectors in one request; more goes in several, of one transaction
BATCH_BYTES = 16_777_216


class HttpStore:
    """Keeps records where a server keeps them; see `Store` for the rules.

    A transaction is held open on the server for this thread. The server undoes it if nothing is
    heard of it for ten seconds, as when this process dies.
    """

    def __init__(self, url: str, space: Space | None, config: Config | None = None) -> None:
        """Prepare; nothing is connected before the first request.

        Args:
            url: `http://host:port` or `https://host`.
            space: The space of the vectors to write and search; None in keyword-only mode.
            config: Has the token.

        Raises:
            ConfigError: The URL is not acceptable, or there is no token.
        """
        self._driver = Driver(url, config)
        self._space = to_wire(space)
        self._local = threading.local()
        self.damaged = Damaged()

    def _ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        transaction = getattr(self._local, "transaction", None)
        body: dict[str, Any] = {
            "space": self._space,
            "arguments": to_wire(list(arguments)),
            "named": to_wire(named),
        }
        if transaction is not None:
            body["transaction"] = transaction
        answer = self._driver.ask(method, body)
        for finding in from_wire(answer.get("damaged", [])):
            self.damaged.note(finding)
        return from_wire(answer.get("value"))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Store.transaction`."""
        inner = getattr(self._local, "transaction", None) is not None
        if inner:
            self._ask("enter")
        else:
            self._local.transaction = self._ask("begin")
        try:
            yield
        except BaseException:
            try:
                with contextlib.suppress(
                    MemoriesError
                ):  # the server undoes it by itself; the first error counts
                    self._ask("undo" if inner else "rollback")
            finally:
                self._local.transaction = self._local.transaction if inner else None
            raise
        try:
            self._ask("leave" if inner else "commit")
        finally:
            self._local.transaction = self._local.transaction if inner else None

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        batches = list(_batches(records))
        if len(batches) <= 1:
            self._ask("append", list(records))
            return
        with self.transaction():
            for batch in batches:
                self._ask("append", batch)

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        self._ask("patch", list(patches))

    def touch(self, refs: Sequence[Ref], batch: str = "") -> bool:
        """See `Store.touch`."""
        return bool(self._ask("touch", list(refs), batch))

    def used(self, where: Filter) -> list[tuple[Ref, int]]:
        """See `Store.used`."""
        return cast("list[tuple[Ref, int]]", self._ask("used", where))

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`."""
        if getattr(self._local, "transaction", None) is not None:
            raise StoreError("records can't be removed for good inside a transaction")
        also_in = cast("tuple[str, ...]", self._ask("remove", list(refs)))
        self.damaged.forget(set(refs).__contains__)
        return also_in

    def scan(
        self,
        where: Filter,
        *,
        limit: int,
        after: tuple[str, int] | None = None,
        newest_first: bool = False,
    ) -> list[Record]:
        """See `Store.scan`."""
        return cast(
            "list[Record]",
            self._ask("scan", where, limit=limit, after=after, newest_first=newest_first),
        )

    def groups(self, where: Filter, *, limit: int) -> list[tuple[str, str]]:
        """See `Store.groups`."""
        return cast("list[tuple[str, str]]", self._ask("groups", where, limit=limit))

    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """See `Store.candidates`."""
        return cast(
            "list[Candidate]", self._ask("candidates", where, vector=vector, terms=list(terms), k=k)
        )

    def matches(self, where: Filter, query: "TurnQuery") -> "Matches":
        """See `Store.matches`."""
        return cast("Matches", self._ask("matches", where, query))

    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """See `Store.read`."""
        return cast("list[Record]", self._ask("read", list(refs)))

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """See `Store.values`."""
        return cast("list[str]", self._ask("values", collection, list(namespaces), key))

    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """See `Store.count`."""
        return int(self._ask("count", where, at_most=at_most))

    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """See `Store.labels`."""
        return cast("Mapping[str, int]", self._ask("labels", where, key))

    def days(self, where: Filter) -> Mapping[int, int]:
        """See `Store.days`."""
        return cast("Mapping[int, int]", self._ask("days", where))

    def namespaces(self, collection: Collection) -> list[str]:
        """See `Store.namespaces`."""
        return cast("list[str]", self._ask("namespaces", collection))

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """See `Store.vectors`."""
        return cast("dict[Ref, NDArray[np.float32]]", self._ask("vectors", list(refs)))

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`."""
        return cast("list[Record]", self._ask("unstaged", space, collection, limit=limit))

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        self._ask("stage", space, dict(vectors))

    def switch(self, space: Space) -> None:
        """See `Store.switch`."""
        self._ask("switch", space)

    def info(self, where: Filter) -> StoreInfo:
        """See `Store.info`."""
        return cast("StoreInfo", self._ask("info", where))._replace(url=self._driver.url)

    def refs(self, where: Filter) -> list[Ref]:
        """See `Store.refs`."""
        return cast("list[Ref]", self._ask("refs", where))

    def check(self, *, deep: bool) -> Iterable[Finding]:
        """See `Store.check`."""
        return cast("list[Finding]", self._ask("check", deep=deep))

    def repair(self) -> list[str]:
        """See `Store.repair`."""
        return cast("list[str]", self._ask("repair"))

    def close(self) -> None:
        """See `Store.close`."""
        self._driver.close()


def _batches(records: Sequence[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for record in records:
        more = (
            2 * len(record.text)
            + (0 if record.vectors is None else 2 * record.vectors.nbytes)
            + 1_000
        )
        if batch and size + more > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += more
    if batch:
        yield batch
