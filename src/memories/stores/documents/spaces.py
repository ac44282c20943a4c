"""Which space the vectors on a document server are of, and how a store changes over to another one."""

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from memories.errors import Conflict, EmbedderMismatch, SchemaTooNew, StoreError
from memories.stores.documents.changes import by_part
from memories.stores.documents.driver import Condition, Driver, Kind, Part, Point
from memories.stores.documents.schema import (
    LIVE,
    Stored,
    Windows,
    decode,
    record_id,
    ref_of,
    vectors_payload,
    window_ids,
)
from memories.stores.records import Collection, Record, Ref, Space

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCHEMA = 1
_ASKED = 500  # ids in one look at records that may have no vectors


class Spaces:
    """The space in use and the one that is staged, as the store's state names them.

    The state has for each the model, the dimension, and letters that stand for it: new ones each time that it is begun,
    so that what was left of an earlier time is never taken for it. A record says in which spaces it has vectors.
    """

    def __init__(self, driver: Driver, space: Space | None) -> None:
        """Prepare.

        Args:
            driver: The server.
            space: The space that the store was opened with.
        """
        self._driver = driver
        self._space = space
        self._waiting: dict[tuple[str, Collection], list[Ref]] = {}

    def state(self) -> Mapping[str, str]:
        """Return what the store remembers about itself.

        Raises:
            SchemaTooNew: A newer program wrote it.
        """
        state = self._driver.state()
        schema = state.get("schema", str(SCHEMA))
        if not schema.isdecimal() or int(schema) > SCHEMA:
            raise SchemaTooNew(f"{self._driver.url} was written by a newer program (schema {schema}); update this one")
        return state

    def searched(self) -> str | None:
        """Return the letters of the space in use; None if there are no vectors.

        Raises:
            EmbedderMismatch: It is another one than the store was opened with.
        """
        state = self.state()
        if "space" not in state:
            return None
        self._compare(state, self._required())
        return state["space"]

    def check(self) -> None:
        """Raise if vectors of the space that the store was opened with may not go in."""
        space = self._required()
        state = self.state()
        if "space" in state:
            self._compare(state, space)

    def begin(self) -> None:
        """Make the store where it does not exist yet."""
        if not self.state():
            self._driver.claim({"schema": str(SCHEMA)})

    def claim(self) -> str:
        """Return the letters of the space in use, which is ours from now on if there was none."""
        space = self._required()
        state = self.state()
        if "space" not in state:
            state = self._driver.claim(_named(space) | {"schema": str(SCHEMA)})
        self._compare(state, space)
        return state["space"]

    def _required(self) -> Space:
        if self._space is None:
            raise StoreError("this store was opened without an embedder and was given a vector")
        return self._space

    def _compare(self, state: Mapping[str, str], space: Space) -> None:
        if _is(state, space):
            return
        raise EmbedderMismatch(
            f"this store's vectors were made by {state['model']} ({state['dimension']} dimensions) and the embedder is "
            f"{space.model} ({space.dimension}); set EMBEDDER to the one it was made with, or use another store"
        )

    # --- changing over ---------------------------------------------------------------------------------------------

    def unstaged(self, space: Space, collection: Collection, limit: int) -> list[Record]:
        """See `Store.unstaged`; the list of what waits is kept, and each page of it looked at again."""
        letters = self._letters(space)
        waiting = self._waiting.get((letters, collection), [])
        found: list[Record] = []
        renewed = False
        while len(found) < limit:
            if not waiting:
                if renewed:
                    break
                known = {record.ref for record in found}
                waiting = [ref for ref in self._without(letters, collection) if ref not in known]
                renewed = True
                continue
            asked, waiting = waiting[:_ASKED], waiting[_ASKED:]
            still = [stored for stored in self._read(asked) if letters not in stored.windows]
            found += [stored.record for stored in still]
        self._waiting = {(letters, collection): [record.ref for record in found] + waiting} if letters else {}
        return found[:limit]

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        found = self._read(vectors)
        if not found:
            return
        state = self.state()
        if "space" not in state:
            state = self._driver.claim(_named(space) | {"schema": str(SCHEMA)})
        if _is(state, space):
            letters = state["space"]
        else:
            if not _is(state, space, "staged_"):
                state = dict(state) | _named(space, "staged_")
                self._driver.set_state(state)
                self._put_away({state["space"], state["staged_space"]})
            letters = state["staged_space"]
        kept = {state["space"], state.get("staged_space", "")}
        for part, refs in by_part(stored.record.ref for stored in found).items():
            own = [stored for stored in found if stored.record.ref in set(refs)]
            self._write(part._replace(kind=Kind.VECTORS, space=letters), own, vectors, kept)

    def _write(
        self, part: Part, found: list[Stored], vectors: "Mapping[Ref, NDArray[np.float32]]", kept: set[str]
    ) -> None:
        """Add vectors, then tell the records of them, then remove those that they replace."""
        word = os.urandom(8).hex()
        windows = {stored.record.ref: Windows(word, len(vectors[stored.record.ref])) for stored in found}
        self._driver.add(
            part,
            [
                Point(name, {}, vector)
                for ref, own in windows.items()
                for name, vector in zip(window_ids(ref, own), vectors[ref], strict=True)
            ],
        )
        told = {
            record_id(stored.record.ref): vectors_payload(
                {space: own for space, own in stored.windows.items() if space in kept}
                | {part.space: windows[stored.record.ref]}
            )
            for stored in found
        }
        self._driver.update(part._replace(kind=Kind.RECORDS, space=""), told)
        replaced = [(stored.record.ref, stored.windows.get(part.space)) for stored in found]
        self._driver.delete(part, [name for ref, own in replaced if own for name in window_ids(ref, own)])

    def switch(self, space: Space) -> None:
        """See `Store.switch`."""
        state = self.state()
        if _is(state, space):
            return
        staged = _is(state, space, "staged_")
        self._refuse_incomplete(space, state["staged_space"] if staged else "")
        changed = {name: value for name, value in state.items() if not name.startswith("staged_")}
        changed |= _named(space) | {"schema": str(SCHEMA)}
        if staged:
            changed["space"] = state["staged_space"]
        self._driver.set_state(changed)
        try:
            self._refuse_incomplete(space, changed["space"])  # a machine that shares no lock may have added some
        except Conflict:
            self._driver.set_state(state)
            raise
        self._put_away({changed["space"]})

    def _refuse_incomplete(self, space: Space, letters: str) -> None:
        for collection in Collection:
            missing = self._without(letters, collection)
            if missing:
                raise Conflict(
                    f"{len(missing)} records have no vectors of {space.model} yet, such as {missing[0].group}; "
                    "embed them first"
                )

    def _letters(self, space: Space) -> str:
        """Return the letters of a space, in use or staged; none if it is neither."""
        state = self.state()
        if _is(state, space):
            return state["space"]
        return state["staged_space"] if _is(state, space, "staged_") else ""

    def _without(self, letters: str, collection: Collection) -> list[Ref]:
        """Return the addresses of all records that have no vectors of a space."""
        there = [Condition("ended", "<=", LIVE)]
        found: list[Ref] = []
        for part in self._driver.parts():
            if part.kind is Kind.RECORDS and part.collection is collection:
                ids = set(self._driver.ids(part, there))
                if letters and ids:
                    ids -= set(self._driver.ids(part, [*there, Condition("spaces", "has", letters)]))
                found += [ref_of(part, name) for name in sorted(ids)]
        return found

    def _read(self, refs: Iterable[Ref]) -> list[Stored]:
        found: list[Stored] = []
        for part, own in by_part(refs).items():
            points = self._driver.get(part, [record_id(ref) for ref in own])
            found += [stored for stored in (decode(part, point) for point in points) if stored is not None]
        return found

    def _put_away(self, kept: set[str]) -> None:
        """Drop the vectors of all spaces but these, also what a switch that was cut short has left."""
        for part in self._driver.parts():
            if part.kind is Kind.VECTORS and part.space not in kept:
                self._driver.drop(part)


def _named(space: Space, prefix: str = "") -> dict[str, str]:
    """Return a space as the state names it, with new letters."""
    values = {"model": space.model, "dimension": str(space.dimension), "space": os.urandom(5).hex()}
    return {f"{prefix}{name}": value for name, value in values.items()}


def _is(state: Mapping[str, str], space: Space, prefix: str = "") -> bool:
    named = state.get(f"{prefix}model"), state.get(f"{prefix}dimension")
    return f"{prefix}space" in state and named == (space.model, str(space.dimension))
