"""Embedding spaces on a document server: the space in use, the staged one, and the switch."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from memories.errors import Conflict, SchemaTooNew
from memories.guard.validate import amount
from memories.stores.damage import Damaged
from memories.stores.documents.changes import Changes, by_part
from memories.stores.documents.driver import Condition, Driver, Kind, Partition, Point, Value
from memories.stores.documents.query import Overlay
from memories.stores.documents.schema import (
    LIVE,
    StoredRecord,
    Windows,
    part_of,
    record_id,
    ref_of,
    vectors_payload,
    window_ids,
)
from memories.stores.protocol import RefuseLost, other_space
from memories.stores.records import SEARCHED, Collection, Record, Ref, Space, require_space

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCHEMA = 1
# The state stores the model, the dimension and the id of a space under names with these prefixes.
_USED, _STAGED = "", "staged_"
_BATCH = 500  # number of records checked for vectors in one step


class Spaces:
    """The space in use and the staged space, as the store's state describes them.

    For each of the two, the state contains the model, the dimension and an id. Each new space gets
    a new id, so that it is never confused with the remains of an earlier one. A record lists the
    spaces in which it has vectors.

    Attributes:
        was_read: Whether the state was read, which proves that the store is neither lost nor too
            new.
    """

    def __init__(
        self, driver: Driver, space: Space | None, damaged: Damaged, refuse_lost: RefuseLost
    ) -> None:
        """Initialize; nothing is read yet.

        Args:
            driver: The server.
            space: The space that the store was opened with.
            damaged: Receives damaged records.
            refuse_lost: Called before a server without the store is treated as new.
        """
        self._driver = driver
        self._space = space
        self._refuse_lost = refuse_lost
        self.was_read = False
        self._view = Overlay(driver, Changes(), damaged)
        self._waiting: dict[tuple[str, Collection], list[Ref]] = {}

    def state(self) -> Mapping[str, str]:
        """Return the store's state.

        Raises:
            SchemaTooNew: A newer program wrote it.
            StoreDamaged: There is no store, but scratchpads mirror it.
        """
        state = self._driver.state()
        if not state:
            self._refuse_lost(lambda: not self._driver.state())
        schema = state.get("schema", str(SCHEMA))
        if not schema.isdecimal() or int(schema) > SCHEMA:
            raise SchemaTooNew(
                f"{self._driver.url} was written by a newer program (schema {schema}); upgrade "
                "memoriae"
            )
        self.was_read = True
        return state

    def find_searched(self) -> str | None:
        """Return the id of the space in use; None if there are no vectors.

        Raises:
            EmbedderMismatch: The store was opened with a space other than the one in use.
        """
        state = self.state()
        return self._checked_id(state) if "space" in state else None

    def check(self) -> None:
        """Check that the store accepts vectors of the space with which it was opened."""
        require_space(self._space)
        self.find_searched()

    def begin(self) -> None:
        """Create the store if it doesn't exist yet."""
        if not self.state():
            self._driver.set_missing_state({"schema": str(SCHEMA)})

    def ensure_space(self) -> str:
        """Return the id of the space in use; if there is none, begin to use the opened one."""
        return self._checked_id(self._select_space(require_space(self._space)))

    def _select_space(self, space: Space) -> Mapping[str, str]:
        """Return the state. If no space is in use, first begin to use this one."""
        state = self.state()
        if "space" in state:
            return state
        return self._driver.set_missing_state(_describe(space, _USED) | {"schema": str(SCHEMA)})

    def _checked_id(self, state: Mapping[str, str]) -> str:
        space = require_space(self._space)
        if not _find_id(state, space, _USED):
            raise other_space(state["model"], int(state["dimension"]), space)
        return state["space"]

    def unstaged(self, space: Space, collection: Collection, limit: int) -> list[Record]:
        """See `Store.unstaged`; each call continues with the refs that haven't been checked yet."""
        space_id = _find_id(self.state(), space, _USED, _STAGED)
        waiting = self._waiting.get((space_id, collection), [])
        records: list[Record] = []
        is_listed_again = False
        while len(records) < limit:
            if not waiting:
                if is_listed_again:
                    break
                read = {record.ref for record in records}
                waiting = [ref for ref in self._without(space_id, collection) if ref not in read]
                is_listed_again = True
                continue
            batch, waiting = waiting[:_BATCH], waiting[_BATCH:]
            stored_batch = self._view.read(batch)
            records += [stored.record for stored in stored_batch if space_id not in stored.windows]
        self._waiting = {}
        if space_id:
            self._waiting[space_id, collection] = [record.ref for record in records] + waiting
        return records[:limit]

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        records = self._view.read(vectors)
        if not records:
            return
        state = self._select_space(space)
        space_id = _find_id(state, space, _USED, _STAGED)
        if not space_id:
            state = dict(state) | _describe(space, _STAGED)
            space_id = state["staged_space"]
            self._driver.set_state(state)
            self._drop_all_but({state["space"], space_id})
        current_spaces = {state["space"], state.get("staged_space", "")}
        for part in by_part(stored.ref for stored in records):
            part_records = [stored for stored in records if part_of(stored.ref) == part]
            windows_part = part._replace(kind=Kind.VECTORS, space=space_id)
            self._write(windows_part, part_records, vectors, current_spaces)

    def _write(
        self,
        part: Partition,
        records: list[StoredRecord],
        vectors: "Mapping[Ref, NDArray[np.float32]]",
        current_spaces: set[str],
    ) -> None:
        """Add vectors, then list them in the records, then remove the vectors that they replace."""
        write_id = os.urandom(8).hex()
        points: list[Point] = []
        payloads: dict[str, Mapping[str, Value | None]] = {}
        replaced_ids: list[str] = []
        for stored in records:
            ref = stored.ref
            windows = Windows(write_id, len(vectors[ref]))
            for name, vector in zip(window_ids(ref, windows), vectors[ref], strict=True):
                points.append(Point(name, {}, vector))
            listed = {part.space: windows}
            for space in current_spaces & stored.windows.keys() - {part.space}:
                listed[space] = stored.windows[space]
            payloads[record_id(ref)] = vectors_payload(listed)
            if part.space in stored.windows:
                replaced_ids += window_ids(ref, stored.windows[part.space])
        self._driver.add(part, points)
        self._driver.update(part._replace(kind=Kind.RECORDS, space=""), payloads)
        self._driver.delete(part, replaced_ids)

    def switch(self, space: Space) -> None:
        """See `Store.switch`."""
        state = self.state()
        if _find_id(state, space, _USED):
            return
        staged_id = _find_id(state, space, _STAGED)
        self._refuse_incomplete(space, staged_id)
        new_state = {name: value for name, value in state.items() if not name.startswith(_STAGED)}
        new_state |= _describe(space, _USED) | {"schema": str(SCHEMA)}
        if staged_id:
            new_state["space"] = staged_id
        self._driver.set_state(new_state)
        try:
            # Another machine, which has its own lock, may have added records.
            self._refuse_incomplete(space, new_state["space"])
        except Conflict:
            self._driver.set_state(state)
            raise
        self._drop_all_but({new_state["space"]})

    def _refuse_incomplete(self, space: Space, space_id: str) -> None:
        for collection in SEARCHED:
            # `read` leaves out damaged records, which can't get vectors.
            missing = self._view.read(self._without(space_id, collection))
            if missing:
                records = amount(len(missing), "record has", "records have")
                raise Conflict(
                    f"{records} no vectors from {space.model} yet, such as "
                    f"{missing[0].ref.group}; embed them first"
                )

    def _without(self, space_id: str, collection: Collection) -> list[Ref]:
        """Return the refs of all records that lack vectors in a space."""
        exists = Condition("ended", "<=", LIVE)
        has_space = Condition("spaces", "has", space_id)
        refs: list[Ref] = []
        for part in self._driver.parts():
            if part.kind is Kind.RECORDS and part.collection is collection:
                ids = set(self._driver.ids(part, [exists]))
                if space_id and ids:
                    ids.difference_update(self._driver.ids(part, [exists, has_space]))
                refs += [ref_of(part, name) for name in sorted(ids)]
        return refs

    def _drop_all_but(self, space_ids: set[str]) -> None:
        """Drop the vectors of other spaces, including leftovers of an interrupted switch."""
        for part in self._driver.parts():
            if part.kind is Kind.VECTORS and part.space not in space_ids:
                self._driver.drop(part)


def _describe(space: Space, prefix: str) -> dict[str, str]:
    return {
        f"{prefix}model": space.model,
        f"{prefix}dimension": str(space.dimension),
        f"{prefix}space": os.urandom(5).hex(),
    }


def _find_id(state: Mapping[str, str], space: Space, *prefixes: str) -> str:
    """Look for a space under these prefixes in the store's state; return its id, or ""."""
    for prefix in prefixes:
        model, dimension = state.get(f"{prefix}model"), state.get(f"{prefix}dimension")
        if (model, dimension) == (space.model, str(space.dimension)):
            return state.get(f"{prefix}space", "")
    return ""
