"""The spaces of vectors on a document server: which one is in use, which is staged, and the switch
between them.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from memories.errors import Conflict, SchemaTooNew
from memories.stores.damage import Damaged
from memories.stores.documents.changes import Changes, by_part
from memories.stores.documents.driver import Condition, Driver, Kind, Part, Point
from memories.stores.documents.query import View
from memories.stores.documents.schema import (
    LIVE,
    Stored,
    Windows,
    part_of,
    record_id,
    ref_of,
    vectors_payload,
    window_ids,
)
from memories.stores.protocol import other_space, required
from memories.stores.records import SEARCHED, Collection, Record, Ref, Space

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCHEMA = 1
_USED, _STAGED = "", "staged_"  # before the names of the model, the dimension and the id of a space
_EITHER = (_USED, _STAGED)
_ASKED = 500  # ids in one look at records that may have no vectors


class Spaces:
    """The space in use and the one that is staged, as the store's state names them.

    The state has the model, the dimension, and an id of each: a new one each time that a space is
    begun, so that it is never confused with the remains of an earlier one. A record lists the
    spaces in which it has vectors.
    """

    def __init__(self, driver: Driver, space: Space | None, damaged: Damaged) -> None:
        """Prepare.

        Args:
            driver: The server.
            space: The space that the store was opened with.
            damaged: Takes records that are not what was written.
        """
        self._driver = driver
        self._space = space
        self._view = View(driver, Changes(), damaged)
        self._waiting: dict[tuple[str, Collection], list[Ref]] = {}

    def state(self) -> Mapping[str, str]:
        """Return what the store remembers about itself.

        Raises:
            SchemaTooNew: A newer program wrote it.
        """
        state = self._driver.state()
        schema = state.get("schema", str(SCHEMA))
        if not schema.isdecimal() or int(schema) > SCHEMA:
            raise SchemaTooNew(
                f"{self._driver.url} was written by a newer program (schema {schema}); update this one"
            )
        return state

    def searched(self) -> str | None:
        """Return the id of the space in use; None if there are no vectors.

        Raises:
            EmbedderMismatch: It is another one than the store was opened with.
        """
        state = self.state()
        return self._checked(state) if "space" in state else None

    def check(self) -> None:
        """Raise if vectors of the space that the store was opened with may not be added."""
        required(self._space)
        self.searched()

    def begin(self) -> None:
        """Make the store if it does not exist yet."""
        if not self.state():
            self._driver.claim({"schema": str(SCHEMA)})

    def claim(self) -> str:
        """Return the id of the space in use; the first space decides for the store."""
        return self._checked(self._claimed(required(self._space)))

    def _claimed(self, space: Space) -> Mapping[str, str]:
        """Return the state, with a space in use: this one if there was none."""
        state = self.state()
        return (
            state
            if "space" in state
            else self._driver.claim(_named(space, _USED) | {"schema": str(SCHEMA)})
        )

    def _checked(self, state: Mapping[str, str]) -> str:
        space = required(self._space)
        if not _id_of(state, space, _USED):
            raise other_space(state["model"], int(state["dimension"]), space)
        return state["space"]

    # --- changing over
    # ---------------------------------------------------------------------------------------------

    def unstaged(self, space: Space, collection: Collection, limit: int) -> list[Record]:
        """See `Store.unstaged`; the list of waiting records is kept, and each page of it checked
        again.
        """
        space_id = _id_of(self.state(), space, *_EITHER)
        waiting = self._waiting.get((space_id, collection), [])
        found: list[Record] = []
        renewed = False
        while len(found) < limit:
            if not waiting:
                if renewed:
                    break
                known = {record.ref for record in found}
                waiting = [ref for ref in self._without(space_id, collection) if ref not in known]
                renewed = True
                continue
            asked, waiting = waiting[:_ASKED], waiting[_ASKED:]
            still = [
                stored for stored in self._view.stored(asked) if space_id not in stored.windows
            ]
            found += [stored.record for stored in still]
        self._waiting = (
            {(space_id, collection): [record.ref for record in found] + waiting} if space_id else {}
        )
        return found[:limit]

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        found = self._view.stored(vectors)
        if not found:
            return
        state = self._claimed(space)
        space_id = _id_of(state, space, *_EITHER)
        if not space_id:
            state = dict(state) | _named(space, _STAGED)
            space_id = state["staged_space"]
            self._driver.set_state(state)
            self._drop_all_but({state["space"], space_id})
        kept = {state["space"], state.get("staged_space", "")}
        for part in by_part(stored.record.ref for stored in found):
            own = [stored for stored in found if part_of(stored.record.ref) == part]
            self._write(part._replace(kind=Kind.VECTORS, space=space_id), own, vectors, kept)

    def _write(
        self,
        part: Part,
        found: list[Stored],
        vectors: "Mapping[Ref, NDArray[np.float32]]",
        kept: set[str],
    ) -> None:
        """Add vectors, then list them in the records, then remove those that they replace."""
        write_id = os.urandom(8).hex()
        windows = {
            stored.record.ref: Windows(write_id, len(vectors[stored.record.ref]))
            for stored in found
        }
        self._driver.add(
            part,
            [
                Point(name, {}, vector)
                for ref, own in windows.items()
                for name, vector in zip(window_ids(ref, own), vectors[ref], strict=True)
            ],
        )
        listed = {
            record_id(stored.record.ref): vectors_payload(
                {space: own for space, own in stored.windows.items() if space in kept}
                | {part.space: windows[stored.record.ref]}
            )
            for stored in found
        }
        self._driver.update(part._replace(kind=Kind.RECORDS, space=""), listed)
        replaced = [(stored.record.ref, stored.windows.get(part.space)) for stored in found]
        self._driver.delete(
            part, [name for ref, own in replaced if own for name in window_ids(ref, own)]
        )

    def switch(self, space: Space) -> None:
        """See `Store.switch`."""
        state = self.state()
        if _id_of(state, space, _USED):
            return
        staged = _id_of(state, space, _STAGED)
        self._refuse_incomplete(space, staged)
        changed = {name: value for name, value in state.items() if not name.startswith(_STAGED)}
        changed |= _named(space, _USED) | {"schema": str(SCHEMA)}
        if staged:
            changed["space"] = staged
        self._driver.set_state(changed)
        try:
            self._refuse_incomplete(
                space, changed["space"]
            )  # a machine that shares no lock may have added some
        except Conflict:
            self._driver.set_state(state)
            raise
        self._drop_all_but({changed["space"]})

    def _refuse_incomplete(self, space: Space, space_id: str) -> None:
        for collection in SEARCHED:
            lacking = self._without(space_id, collection)
            missing = self._view.stored(lacking)  # without those that are damaged
            if missing:
                first = missing[0].record.ref.group
                raise Conflict(
                    f"{len(missing)} records have no vectors of {space.model} yet, such as {first}; embed them first"
                )

    def _without(self, space_id: str, collection: Collection) -> list[Ref]:
        """Return the refs of all records that have no vectors of a space."""
        there = [Condition("ended", "<=", LIVE)]
        found: list[Ref] = []
        for part in self._driver.parts():
            if part.kind is Kind.RECORDS and part.collection is collection:
                ids = set(self._driver.ids(part, there))
                if space_id and ids:
                    ids -= set(
                        self._driver.ids(part, [*there, Condition("spaces", "has", space_id)])
                    )
                found += [ref_of(part, name) for name in sorted(ids)]
        return found

    def _drop_all_but(self, kept: set[str]) -> None:
        """Drop the vectors of all spaces but these, including the remains of an interrupted
        switch.
        """
        for part in self._driver.parts():
            if part.kind is Kind.VECTORS and part.space not in kept:
                self._driver.drop(part)


def _named(space: Space, prefix: str) -> dict[str, str]:
    """Return a space as the state names it, with a new id."""
    values = {"model": space.model, "dimension": str(space.dimension), "space": os.urandom(5).hex()}
    return {f"{prefix}{name}": value for name, value in values.items()}


def _id_of(state: Mapping[str, str], space: Space, *prefixes: str) -> str:
    """Return the id of a space if it is the one that the state names after one of the prefixes;
    else nothing.
    """
    for prefix in prefixes:
        if (state.get(f"{prefix}model"), state.get(f"{prefix}dimension")) == (
            space.model,
            str(space.dimension),
        ):
            return state.get(f"{prefix}space", "")
    return ""
