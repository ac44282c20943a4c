"""Recall strategy of a hook: ask the server, else search here, else use the scratchpad.

A session waits once for a store that does not answer. A hook writes down until when it will have asked the store before
it does so, and takes that back when it was answered; so it stands there also when the hook was killed. While it stands
there, the hooks of the session take what the scratchpad has, and try the store when their host has its answer.
"""

import time

from memories.hooks import session
from memories.hooks.asking import Asking, Given

TYPE_CHECKING = False  # as in `typing`, whose import costs 3 ms
if TYPE_CHECKING:
    from collections.abc import Callable

    Ask = Callable[[bytes], bytes | None]

_PAUSE_MILLIS = 3_000  # between two trials
_AGAIN_MILLIS = 600_000  # after which the store is asked again although no trial has found it well


def given(asking: Asking, ask: "Ask") -> "tuple[Given, Callable[[], None]]":
    """Return what is put before a model, and what is left to do when the host has it.

    Args:
        asking: What is asked.
        ask: Asks a server; None if it does not answer, or there is none.

    Raises:
        MemoriesError: A setting is wrong; or a session begins, its store can't be asked, and it has no scratchpad.
    """
    now = time.time_ns() // 1_000_000
    known, seconds = session.read(asking.home, asking.session), asking.seconds()
    if known.late <= now < known.late + _AGAIN_MILLIS:
        found = _here(Asking(asking.where, asking.prompt, None))
        _note(asking, found, known.late)
        is_due = asking.prompt is not None and not 0 <= now - known.tried < _PAUSE_MILLIS  # without one, none is asked
        return found, (lambda: _try(asking, ask, seconds)) if is_due else _nothing
    session.note(asking.home, asking.session, **{session.LATE: now + int(seconds * 1000)})
    found = _asked(asking, ask)
    _note(asking, found, now if found.why else 0)
    return found, _nothing


def _nothing() -> None:
    """Do nothing."""


def _asked(asking: Asking, ask: "Ask") -> Given:
    answer = ask(asking.encoded())
    return _here(asking) if answer is None else Given.decoded(answer)


def _here(asking: Asking) -> Given:
    from memories.hooks.recall import answer

    return answer(asking)


def _note(asking: Asking, found: Given, late: int) -> None:
    """Remember what a session was given as whom, so that it is neither given again nor captured."""
    known: dict[str, object] = {session.LATE: late}
    if found.shown or found.marks:
        known |= {session.SHOWN: found.shown, session.SAID: found.marks, session.GIVEN_TO: found.namespace}
    session.note(asking.home, asking.session, **known)


def _try(asking: Asking, ask: "Ask", seconds: float) -> None:
    """Ask the store once more, now that nobody waits; if it answers, the next hook asks it too."""
    session.note(asking.home, asking.session, **{session.TRIED: time.time_ns() // 1_000_000})
    trial = Asking(asking.where, asking.prompt, time.monotonic() + seconds, counts=False)
    if not _asked(trial, ask).why:
        session.note(asking.home, asking.session, **{session.LATE: 0})
