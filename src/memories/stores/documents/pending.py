"""Which pending records on a document server were left behind by a transaction that has died."""

import json
import time
from pathlib import Path
from typing import Any

from memories.core.disk import read_file, replacing
from memories.errors import StoreError
from memories.stores.documents.driver import Point, Value
from memories.stores.documents.schema import PENDING, write_id_of

_UNCHANGED_SECONDS = 60  # a transaction that has not ended by then has died
_CLOCKS_SECONDS = 86_400  # no two clocks are further apart
_SINCE, _MACHINE = "pending.since", "pending.machine"


class WriterLock:
    """The lock of this machine's writers while it is held, and what it has seen of writes by other machines.

    The clocks of two machines may differ by hours, so a record that another machine has begun is dead when it has been
    pending for a minute by the clock of this one. When it was first seen is kept in a file beside the lock, for the
    next process.
    """

    def __init__(self, machine: str, seen: Path) -> None:
        """Prepare; nothing is read.

        Args:
            machine: Identifies those who share this lock, and nobody else.
            seen: The file of what was seen, which only the holder of the lock touches.
        """
        self.machine = machine
        self._file = seen
        self._seen: dict[str, float] | None = None

    def has_died(self, point: Point) -> bool:
        """Return whether a record is pending and its transaction has died; remember that it was seen.

        While this lock is held, no other transaction of this machine is alive.
        """
        payload: Any = point.payload
        if payload.get("ended") != PENDING:
            return False
        now = time.time()
        if payload.get(_MACHINE) == self.machine or now - payload.get(_SINCE, 0) > _CLOCKS_SECONDS:
            return True
        write_id = write_id_of(point)
        try:
            if self._seen is None:
                self._seen = self._read(now)
            if write_id not in self._seen:
                self._seen[write_id] = now
                with replacing(self._file, self._file.with_suffix(".part")) as file:
                    file.write(json.dumps(self._seen).encode())
        except OSError as exc:
            raise StoreError(f"cannot note in {self._file} what others are writing: {exc.strerror or exc}") from exc
        return now - self._seen[write_id] > _UNCHANGED_SECONDS

    def _read(self, now: float) -> dict[str, float]:
        """Return when each pending write was first seen, without those so old that nobody asks for them any more."""
        try:
            found = json.loads(read_file(self._file))
            return {write_id: at for write_id, at in found.items() if 0 <= now - at < _CLOCKS_SECONDS}
        except (FileNotFoundError, ValueError, TypeError, AttributeError):  # torn by a crash: they wait a minute again
            return {}


def pending_since(machine: str) -> dict[str, Value]:
    """Return what the payload of a pending record contains besides the record."""
    return {_SINCE: int(time.time()), _MACHINE: machine}


def settled() -> dict[str, Value | None]:
    """Return the change that removes this again."""
    return dict.fromkeys((_SINCE, _MACHINE))
