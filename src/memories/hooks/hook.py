"""`memory hook`: what a host runs at its events. It imports next to nothing, ends in time, and
never fails its agent.

The work is done in a child. Whatever becomes of that, a crash, a lock, a disk or a library that
hangs, the hook exits 0 in time, and prints the whole answer or nothing; one line in `hooks.log`
says why. The parent touches no disk.
"""

import os
import select
import signal
import time

TYPE_CHECKING = False  # as in `typing`, whose import costs 3 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memories.hooks.events import Asked, Done

EVENTS = ("session-start", "user-prompt", "answer", "stop", "pre-compact", "session-end")
HOSTS = ("claude-code", "codex", "gemini", "opencode", "cursor")
SECONDS, MOST_SECONDS = 0.85, 30.0  # from the start of the process
_LEAST_SECONDS = 0.05
_DONE, _TOLD = (
    b"\1",
    b"\2",
)  # the last byte of a child that did it, and of one that failed and said why itself
_children: "list[int]" = []
_REPORT_SECONDS = 0.05  # that an agent waits for the line in the log
_MOST_REPORT_SECONDS = 5.0  # that the line may take


class Refused(Exception):
    """The hook was asked for something that is not there."""


def main(
    arguments: "Sequence[str]",
    ask: "Callable[[bytes], bytes | None]" = lambda _: None,
    start: "Callable[[str], None]" = lambda _: None,
) -> None:
    """Run one event, and end the process with exit code 0, whatever happens.

    Args:
        arguments: Of the hook.
        ask: Has the server of the store recall something; None if that has to be done here.
        start: Starts a server of a store.
    """
    try:
        _fill_streams()
        _run(arguments, ask, start)
    except BaseException:  # noqa: BLE001, S110 - an agent never fails for its memory, and what could tell has failed
        pass
    finally:
        os._exit(0)


def asked(arguments: "Sequence[str]") -> "Asked":
    """Return what the arguments ask for.

    Raises:
        Refused: They ask for something that is not there.
    """
    from memories.hooks.events import Asked

    given = Asked()
    rest = list(arguments)
    while rest:
        word, _, value = rest.pop(0).partition("=")
        if word == "--capture":
            given.capture = True
        elif word in _OPTIONS:
            if not value and not rest:
                raise Refused(f"{word} needs a value")
            setattr(given, _OPTIONS[word], value or rest.pop(0))
        elif word in EVENTS and not given.event:
            given.event = word
        else:
            raise Refused(f"memory hook knows no {word[:40]!r}")
    if not given.event or given.host not in HOSTS:
        raise Refused(
            f"memory hook needs an event ({', '.join(EVENTS)}) and --host ({', '.join(HOSTS)})"
        )
    return given


_OPTIONS = {"--host": "host", "-n": "namespace", "--namespace": "namespace", "--seconds": "seconds"}


def _run(
    arguments: "Sequence[str]",
    ask: "Callable[[bytes], bytes | None]",
    start: "Callable[[str], None]",
) -> None:
    began = time.monotonic() - _age()
    for number in (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGTERM)):
        signal.signal(number, _stop)
    try:
        given = asked(arguments)
        seconds = _seconds(given.seconds)
    except (Refused, ValueError) as exc:
        why = str(exc)
        _in_child(lambda: _told(None, why), SECONDS, ends=False)
        return
    given.began, given.ends, given.ask, given.start = began, began + seconds, ask, start
    answer, why = _in_child(
        lambda: _answer(given), max(_LEAST_SECONDS, began + seconds - time.monotonic())
    )
    if why:
        _in_child(lambda: _told(given, why), _REPORT_SECONDS, ends=False)
    if answer:
        if hasattr(signal, "setitimer"):  # a host that reads nothing keeps nobody waiting
            signal.signal(signal.SIGALRM, _stop)
            signal.setitimer(
                signal.ITIMER_REAL, max(_LEAST_SECONDS, began + seconds - time.monotonic())
            )
        while answer:
            answer = answer[os.write(1, answer) :]


def _age() -> float:
    """Return how long this process has run: on a busy machine the interpreter alone may take much
    of the time.
    """
    try:
        with open("/proc/self/stat", "rb") as own, open("/proc/uptime", "rb") as system:
            ticks = int(own.read().rpartition(b")")[2].split()[19])
            age = float(system.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0  # a system that does not tell
    return age if 0 <= age < MOST_SECONDS else 0.0


def _seconds(text: str) -> float:
    seconds = float(text) if text else SECONDS
    if not _LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise ValueError(f"--seconds must be a number from {_LEAST_SECONDS} to {MOST_SECONDS:g}")
    return seconds


def _answer(given: "Asked") -> "Done":
    from memories.hooks import events

    return events.handle(given)


def _told(given: "Asked | None", why: str) -> "Done":
    from memories.hooks import events

    return events.failed(given, why)


def _in_child(
    work: "Callable[[], Done]", seconds: float, *, ends: bool = True
) -> tuple[bytes, str]:
    """Do something in a process of its own; return its answer, or why there is none and nobody has
    told yet.

    What is left to do after the answer, the child does without anybody waiting for it.

    Args:
        work: What is done.
        seconds: How long it is waited for.
        ends: End what takes longer; else it goes on for a moment, without the agent.
    """
    if not hasattr(os, "fork"):
        return _in_time(work, seconds)
    until = time.monotonic() + seconds
    source, target = os.pipe()
    child = os.fork()
    if not child:
        _work(work, target, seconds if ends else seconds + _MOST_REPORT_SECONDS)
    _children.append(child)
    os.close(target)
    parts: list[bytes] = []
    while select.select([source], [], [], max(0.0, until - time.monotonic()))[0]:
        part = os.read(source, 65_536)
        if not part:
            said = b"".join(parts)
            _children.remove(child)  # what it does from now on is its own affair
            if said[-1:] in (_DONE, _TOLD):
                return said[:-1] if said.endswith(_DONE) else b"", ""
            return b"", f"it ended with {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}"
        parts.append(part)
    if ends:
        os.kill(child, signal.SIGKILL)
    return b"", "it was not done in time"


def _work(work: "Callable[[], Done]", target: int, seconds: float) -> None:
    """Do something in this child, and end it."""
    code = 1
    try:
        _children.clear()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (
            1,
            2,
        ):  # a host waits until nobody can write to it any more; and nobody else should
            os.dup2(null, number)
        if hasattr(
            signal, "setitimer"
        ):  # should the parent be killed: the kernel then ends us, whatever we wait for
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds + 0.5)
        done = work()
        answer = done.answer + (_TOLD if done.failed else _DONE)
        while answer:
            answer = answer[os.write(target, answer) :]
        os.close(target)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, seconds + 0.5)
        done.after()
        code = 0
    finally:
        os._exit(code)


def _in_time(work: "Callable[[], Done]", seconds: float) -> tuple[bytes, str]:
    """Do something where a process can't make a child of itself, and end the process when the time
    is over.
    """
    import threading

    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()
    done = work()
    timer.cancel()
    done.after()
    return done.answer, ""


def _stop(*_: object) -> None:
    """End at once, with the child; nothing was printed, or all of it."""
    for child in _children:
        os.kill(child, signal.SIGKILL)
    os._exit(0)


def _fill_streams() -> None:
    """Give a process that was started with a standard stream closed an empty one, before a pipe
    takes its number.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
