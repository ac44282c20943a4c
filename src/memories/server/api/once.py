"""Idempotency keys: a write that is sent again with its key is not done again, also after the server was killed.

Which requests were begun and done is kept where all servers of a store find it; see `stores.claims`. There is no
content there and no key: an answer that is not in memory is made again from the ids, or the write, which can tell by
itself what is there already, is run again.
"""

import hashlib
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from memories.errors import RequestError, StoreError
from memories.server.api.problems import Refused
from memories.stores.claims import Claim, Claims, Taken

_MAX_KEY = 255
_MAX_BYTES = 33_554_432  # of answers in memory
_MAX_ANSWERS = 10_000
_logger = logging.getLogger(__name__)


class Work(NamedTuple):
    """A write that is done once.

    Attributes:
        run: Does it. It is told when it was begun first, and whether it may have been done before: the server that did
            it was stopped, or its answer can't be made again.
        brief: Returns what is written down of its answer; None if a retry is to be run again, as it failed.
        revive: Makes the answer again from that; None if it has to be run again, which does no harm.
        size: Returns the size of an answer.
    """

    run: Callable[[datetime, bool], Any]
    brief: Callable[[Any], dict[str, Any] | None]
    revive: Callable[[dict[str, Any]], Any | None]
    size: Callable[[Any], int]


class _Answer(NamedTuple):
    """An answer of this process.

    Attributes:
        at: When its request was begun, which tells it from an earlier one with its key.
        size: In bytes.
    """

    at: float
    answer: Any
    size: int


class Once:
    """Does each write with a key once."""

    def __init__(self, opened: Callable[[], Claims]) -> None:
        """Prepare; nothing is opened before the first key comes.

        Args:
            opened: Opens what keeps the requests.
        """
        self._opened = opened
        self._lock = threading.Lock()
        self._claims: Claims | None = None
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._bytes = 0

    def do(self, key: str, who: str, asked: Any, work: Work, *, sync: bool) -> Any:
        """Return the answer to a write, which is done now unless it was before.

        Args:
            key: The key that came with it.
            who: Who sent it; keys of others are no concern of theirs.
            asked: What is asked, as JSON.
            work: Does it.
            sync: Write down that it is begun so that this survives a power cut.

        Raises:
            Refused: 400, the key is not acceptable; 409, the same request is being done; 422, the key was used for
                another request.
        """
        if not (1 <= len(key) <= _MAX_KEY and key.isascii() and key.isprintable()):
            raise Refused(400, f"Idempotency-Key must be 1 to {_MAX_KEY} printable ASCII characters")
        name = hashlib.sha256(f"{who}\0{key}".encode()).hexdigest()
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode("utf-8", "backslashreplace")).hexdigest()
        claim = self._claim(name, digest, sync=sync)
        told, nothing = None, False
        try:
            if claim.told is not None:
                answer = self._kept(claim) or work.revive(claim.told)
                if answer is not None:
                    return answer
            begun_at = datetime.fromtimestamp(int(claim.at * 1_000) / 1_000, UTC)  # as exact as times in a store
            answer = work.run(begun_at, claim.number > 1)
            told = work.brief(answer)
            nothing = told is None
            if told is not None:
                self._keep(claim, answer, work.size(answer))
        except (RequestError, Refused):  # it changed nothing; of other errors that is not known
            nothing = claim.number == 1
            raise
        else:
            return answer
        finally:
            self._end(claim, told, nothing=nothing)

    def _claim(self, name: str, digest: str, *, sync: bool) -> Claim:
        with self._lock:
            if self._claims is None:
                self._claims = self._opened()
        try:
            return self._claims.claim(name, digest, sync=sync)
        except Taken as exc:
            if exc.other:
                raise Refused(
                    422, "this Idempotency-Key was used for another request; make a new one for each"
                ) from None
            raise Refused(409, "the same request is being done; ask again", headers={"retry-after": "1"}) from None

    def _end(self, claim: Claim, told: dict[str, Any] | None, *, nothing: bool) -> None:
        """Write down how it ended; if that fails, a retry is as one after this server was killed."""
        assert self._claims is not None
        try:
            if nothing:
                self._claims.drop(claim)
            else:
                self._claims.settle(claim, told)
        except (StoreError, OSError) as exc:  # it is done all the same, and its answer tells so
            _logger.warning("how a request with a key ended could not be written down: %s", exc)

    # --- answers in memory -----------------------------------------------------------------------------------------

    def _kept(self, claim: Claim) -> Any | None:
        with self._lock:
            found = self._answers.get(claim.name)
        return found.answer if found is not None and found.at == claim.at else None

    def _keep(self, claim: Claim, answer: Any, size: int) -> None:
        with self._lock:
            before = self._answers.pop(claim.name, None)
            self._bytes += size - (before.size if before is not None else 0)
            self._answers[claim.name] = _Answer(claim.at, answer, size)
            while self._bytes > _MAX_BYTES or len(self._answers) > _MAX_ANSWERS:
                _, old = self._answers.popitem(last=False)
                self._bytes -= old.size

    def close(self) -> None:
        """Close what keeps the requests."""
        if self._claims is not None:
            self._claims.close()
