"""The pause after a failure of a service: processes of one home do not all wait for it again."""

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memories.core.disk import replacing

LEAST_SECONDS, MOST_SECONDS = 15.0, 600.0
_CLOSE = 2  # a caller who would wait at most so many times as long is told of the failure


class Rest:
    """A file in the home that says until when a service is not asked. Losing it costs one more try.

    A failure counts only for callers who would not wait much longer than the one who met it: a hook gives up after a
    fraction of a second, which says little about the service.
    """

    def __init__(self, home: Path, service: str, clock: Callable[[], float]) -> None:
        """Choose the file; nothing is read yet.

        Args:
            home: The folder of the file; without it, this process alone remembers.
            service: All that a failure may depend on: the model, the URL, the key.
            clock: Returns seconds since 1970.
        """
        digest = hashlib.blake2b(service.encode("utf-8", "replace"), digest_size=8).hexdigest()
        self.path = home / f".embedder-{digest}"
        self._clock = clock
        self._known: dict[str, Any] = {}

    def reason(self, seconds: float) -> str:
        """Return why a caller who would wait so long should not ask now; empty if it should."""
        with contextlib.suppress(OSError, ValueError):  # there is none, or it is damaged
            self._known = json.loads(self.path.read_bytes())
        known = self._known
        try:
            left = known["until"] - self._clock()
            rests = 0 < left <= MOST_SECONDS and seconds <= _CLOSE * known["waited"]
            return str(known["why"]) if rests else ""
        except (KeyError, TypeError):
            return ""

    def begin(self, why: str, waited: float, asked: float) -> None:
        """Remember a failure.

        Args:
            why: What is said of it meanwhile.
            waited: How long the caller would have waited.
            asked: How many seconds the service asks to wait; 0 if it does not say.
        """
        until = self._clock() + min(MOST_SECONDS, max(LEAST_SECONDS, asked))
        self._known = {"until": until, "waited": waited, "why": why}
        if self.path.parent.is_dir():
            with contextlib.suppress(OSError), replacing(self.path) as stream:  # a full disk: this process remembers
                stream.write(json.dumps(self._known).encode())

    def end(self) -> None:
        """Forget the failure: the service has answered."""
        self._known = {}
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
