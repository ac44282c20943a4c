"""When a record that is pending on a document server was left behind by a transaction that has died."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memories.errors import StoreError
from memories.stores.documents.driver import Point, Value
from memories.stores.documents.schema import PENDING, writer_of

_UNCHANGED_SECONDS = 60  # a transaction that has not ended after so long has died
_CLOCKS_SECONDS = 86_400  # no two clocks are so far apart
_SINCE, _MACHINE = "pending.since", "pending.machine"


class Turn:
    """This machine's turn to write, and what it has seen of the transactions of other machines.

    Clocks of two machines may differ by hours, so a record that another one has begun is dead when it has stood there
    for a minute by the clock of the one who looks. When it was first seen is kept in a file beside the lock, for the
    next process to know.
    """

    def __init__(self, machine: str, seen: Path) -> None:
        """Prepare; nothing is read.

        Args:
            machine: Names those who take the same lock, and nobody else.
            seen: The file of what was seen, which only the holder of the lock touches.
        """
        self.machine = machine
        self._file = seen
        self._seen: dict[str, float] | None = None

    def has_died(self, point: Point) -> bool:
        """Return whether a record is pending and its transaction has died; that it was seen is remembered.

        Who holds the lock of this machine knows that no other transaction of this machine is alive.
        """
        payload: Mapping[str, Any] = point.payload
        if payload.get("ended") != PENDING:
            return False
        now = time.time()
        if payload.get(_MACHINE) == self.machine or now - payload.get(_SINCE, 0) > _CLOCKS_SECONDS:
            return True
        writer = writer_of(point)
        if self._seen is None:
            self._seen = self._read(now)
        if writer not in self._seen:
            self._seen[writer] = now
            self._write(self._seen)
        return now - self._seen[writer] > _UNCHANGED_SECONDS

    def _read(self, now: float) -> dict[str, float]:
        """Return when each writer was first seen, but for those so long ago that nobody asks for them any more."""
        try:
            found = json.loads(self._file.read_text())
            return {writer: at for writer, at in found.items() if 0 <= now - at < _CLOCKS_SECONDS}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError):  # torn by a crash: seen anew, a minute later
            return {}
        except OSError as exc:
            raise self._failed(exc) from exc

    def _write(self, seen: Mapping[str, float]) -> None:
        part = self._file.with_suffix(".part")
        try:
            with part.open("w") as file:
                json.dump(seen, file)
            part.replace(self._file)
        except OSError as exc:
            raise self._failed(exc) from exc

    def _failed(self, exc: OSError) -> StoreError:
        return StoreError(f"cannot note in {self._file} what others are writing: {exc.strerror or exc}")


def pending_since(machine: str) -> dict[str, Value]:
    """Return what a record says as long as its transaction has not ended."""
    return {_SINCE: int(time.time()), _MACHINE: machine}


def settled() -> dict[str, Value | None]:
    """Return the change that takes it out again."""
    return dict.fromkeys((_SINCE, _MACHINE))
