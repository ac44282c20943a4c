"""The process of `memory hook`: handles one host event by a deadline, and never breaks the agent.

The work runs in a child process. If the child crashes, waits for a lock, fills a disk or hangs in a
library, the hook still exits with code 0 by the deadline. It prints a complete response, an interim
response or nothing, and logs the reason in `hooks.log`. The parent does not touch the disk. This
module imports almost nothing.

The life of a response:

1. The parent starts the child, and reads from a pipe until the deadline. A hook whose process
   started late gets extra time, but only for reading the event.
2. The child reads the event. Before it recalls anything, it sends an interim response, which ends
   the extra time. The interim response may be empty, report that an earlier recall was too slow, or
   (for Gemini CLI) contain the session block.
3. The child sends the response and closes the pipe. The parent prints the response.
4. If the child fails or is late, the parent prints the last interim response instead. A child that
   crashed or is late can't log the reason, so a second child does.
5. The first child does the follow-up work after its response, so the host doesn't wait for it.
"""

import os
import select
import signal
import time

TYPE_CHECKING = False  # importing `typing` for this takes 3 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from memories.hooks.handler import HookCall, Outcome
    from memories.hooks.recall_strategy import AskServer

    Work = Callable[..., Outcome]  # its last argument is a function that sends an interim response

EVENTS = ("session-start", "user-prompt", "answer", "stop", "pre-compact", "session-end")
HOSTS = ("claude-code", "codex", "gemini", "opencode", "openclaw", "cursor")
SECONDS, MAX_SECONDS = 0.85, 30.0  # default and maximum time, from the start of the process
# The limits on a busy machine: half of the timeouts that `memory connect` sets; see hosts.toml.
_LONGEST = {"session-start": 5.0, "user-prompt": 2.5, "session-end": 1.5}
_LONGEST_OTHERS = 5.0
_QUIET_START = 0.1  # seconds that a process takes to start on an idle machine
_MIN_SECONDS = 0.05
_REPORT_SECONDS = 0.05  # how long the agent waits while a failure is logged
_MAX_REPORT_SECONDS = 5.0  # how long logging a failure may take
_MAX_READING_SECONDS = 1.0  # maximum extra time to read the event, for a hook that started late
# The last byte that a child sends: it succeeded, or it failed and has recorded the reason.
_SUCCEEDED, _FAILED = b"\1", b"\2"
# Ends an interim response. Responses are JSON, so they never contain this byte.
_INTERIM_END = b"\0"
_OPTIONS = {"--host": "host", "-n": "namespace", "--namespace": "namespace", "--seconds": "seconds"}
_children: "list[int]" = []


class UsageError(Exception):
    """The hook's arguments are wrong."""


def main(
    arguments: "Sequence[str]",
    ask_server: "AskServer | None" = None,
    start_server: "Callable[[str], None] | None" = None,
) -> None:
    """Handle one event, then end the process; the exit code is always 0.

    Args:
        arguments: The arguments of the hook.
        ask_server: Sends a recall request to a running server; returns None if there is none.
        start_server: Starts a server for a store.
    """
    try:
        _fill_streams()
        _answer_event(arguments, ask_server, start_server)
    except BaseException:  # noqa: BLE001, S110 - memory must never break an agent
        pass
    finally:
        os._exit(0)


def parse_arguments(arguments: "Sequence[str]") -> "HookCall":
    """Parse a hook's arguments.

    Raises:
        UsageError: An argument is unknown, or the event or the host is missing.
    """
    from memories.hooks.handler import HookCall

    call = HookCall()
    words = list(arguments)
    while words:
        word, _, value = words.pop(0).partition("=")
        if word == "--capture":
            call.capture = True
        elif word in _OPTIONS:
            if not value and not words:
                raise UsageError(f"{word} needs a value")
            setattr(call, _OPTIONS[word], value or words.pop(0))
        elif word in EVENTS and not call.event:
            call.event = word
        else:
            raise UsageError(f"memory hook does not take the argument {word[:40]!r}")
    if not call.event or call.host not in HOSTS:
        raise UsageError(
            f"memory hook needs an event ({', '.join(EVENTS)}) and --host ({', '.join(HOSTS)})"
        )
    return call


def _answer_event(
    arguments: "Sequence[str]",
    ask_server: "AskServer | None",
    start_server: "Callable[[str], None] | None",
) -> None:
    age = _process_age()
    started_at = time.monotonic() - age
    for number in (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGTERM)):
        signal.signal(number, _stop)
    try:
        call = parse_arguments(arguments)
        seconds = float(call.seconds or limit_seconds(call.event, age))
        if not _MIN_SECONDS <= seconds <= MAX_SECONDS:
            raise UsageError(f"--seconds must be a number from {_MIN_SECONDS} to {MAX_SECONDS:g}")
    except (UsageError, ValueError) as exc:
        if os.isatty(0):  # a person ran this; a host sends the event through a pipe
            _write_all(2, f"error: {exc}\n".encode())
        _run_in_child(_record_failure, (None, str(exc)), SECONDS, kill_overdue=False)
        return
    call.started_at, call.deadline = started_at, started_at + seconds
    call.ask_server, call.start_server = ask_server, start_server
    reading_seconds = min(age, _MAX_READING_SECONDS)
    answer, error = _run_in_child(_handle, (call,), _seconds_left(call), reading_seconds)
    if error:
        _run_in_child(_record_failure, (call, error), _REPORT_SECONDS, kill_overdue=False)
    if answer:
        if hasattr(signal, "setitimer"):  # the host may not read the response
            signal.signal(signal.SIGALRM, _stop)
            signal.setitimer(signal.ITIMER_REAL, _seconds_left(call))
        _write_all(1, answer)


def _process_age() -> float:
    """Return how many seconds ago the system started this process; 0 if unknown."""
    try:
        with open("/proc/self/stat", "rb") as stat, open("/proc/uptime", "rb") as uptime:
            ticks = int(stat.read().rpartition(b")")[2].split()[19])
            age = float(uptime.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0  # this system has no such files
    return age if 0 <= age < MAX_SECONDS else 0.0


def limit_seconds(event: str, age: float) -> float:
    """Return how long a hook may take: longer on a busy machine, up to half the host's limit.

    Two figures show how busy a machine is: the load average per core, and the time that this
    process took to start, which reacts to new load immediately.

    Args:
        event: The event.
        age: How many seconds ago the process started.
    """
    waiting = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    busy = max(1.0, waiting / (os.cpu_count() or 1), age / _QUIET_START)
    return min(SECONDS * busy, _LONGEST.get(event, _LONGEST_OTHERS))


def _seconds_left(call: "HookCall") -> float:
    return max(_MIN_SECONDS, call.deadline - time.monotonic())


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


# The next two functions import `handler` in the child, since the import may be slow on a busy
# machine.


def _handle(call: "HookCall", send_interim: "Callable[[bytes], None]") -> "Outcome":
    from memories.hooks import handler

    call.send_interim = send_interim
    return handler.handle(call)


def _record_failure(call: "HookCall | None", reason: str, _send_interim: object) -> "Outcome":
    from memories.hooks import handler

    return handler.record_failure(call, reason)


def _run_in_child(
    work: "Work",
    arguments: "tuple[Any, ...]",
    seconds: float,
    reading_seconds: float = 0.0,
    *,
    kill_overdue: bool = True,
) -> tuple[bytes, str]:
    """Do some work in a child process; return the response, and the error to record, if any.

    If the work fails or takes too long, the last interim response is returned instead.

    Args:
        work: The work.
        arguments: The arguments for the work. A function that sends an interim response is
            appended.
        seconds: How long to wait for the response.
        reading_seconds: Extra time for reading the event; it ends when the first interim response
            arrives.
        kill_overdue: Whether to kill a child that takes longer. If not, the child may continue for
            up to `_MAX_REPORT_SECONDS`.
    """
    if not hasattr(os, "fork"):
        return _run_with_timer(work, arguments, seconds)
    deadline = time.monotonic() + seconds
    source, target = os.pipe()
    child = os.fork()
    if not child:
        limit = seconds + reading_seconds if kill_overdue else seconds + _MAX_REPORT_SECONDS
        _work_as_child(work, arguments, target, limit)
    _children.append(child)
    os.close(target)
    interim_answer, received = b"", b""
    wait_until = deadline + reading_seconds
    while select.select([source], [], [], max(0.0, wait_until - time.monotonic()))[0]:
        part = os.read(source, 65_536)
        received += part
        if _INTERIM_END in part:
            *_, interim_answer, received = received.split(_INTERIM_END)
            wait_until = deadline  # the event has been read
        if part:
            continue
        # The child has closed the pipe.
        _children.remove(child)  # the follow-up work may outlive this process
        if received.endswith(_SUCCEEDED):
            return received[:-1], ""
        if received.endswith(_FAILED):
            return interim_answer, ""
        exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return interim_answer, f"the hook ended with exit code {exit_code}"
    if kill_overdue:
        os.kill(child, signal.SIGKILL)
    return interim_answer, "the hook did not finish in time"


def _work_as_child(work: "Work", arguments: "tuple[Any, ...]", target: int, seconds: float) -> None:
    """Do the work in this child process, send the response, follow up, and exit."""

    def send_interim(answer: bytes) -> None:
        _write_all(target, answer + _INTERIM_END)

    code = 1
    try:
        _children.clear()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (1, 2):  # the host waits until every process has closed the host's pipes
            os.dup2(null, number)
        if hasattr(signal, "setitimer"):  # if the parent is killed, this timer ends the child
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds + 0.5)
        outcome = work(*arguments, send_interim)
        _write_all(target, outcome.response + (_FAILED if outcome.failed else _SUCCEEDED))
        os.close(target)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, seconds + 0.5)
        outcome.follow_up()
        code = 0
    finally:
        os._exit(code)


def _run_with_timer(
    work: "Work", arguments: "tuple[Any, ...]", seconds: float
) -> tuple[bytes, str]:
    """Do the work in this process, on systems without `fork`; a timer ends the process in time."""
    import threading

    interim_answer = b""

    def send_interim(answer: bytes) -> None:
        nonlocal interim_answer
        interim_answer = answer

    def end() -> None:
        _write_all(1, interim_answer)
        os._exit(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    outcome = work(*arguments, send_interim)
    timer.cancel()
    outcome.follow_up()
    return outcome.response, ""


def _stop(*_: object) -> None:
    """End this process and its child at once. The response is printed completely or not at all."""
    for child in _children:
        os.kill(child, signal.SIGKILL)
    os._exit(0)


def _fill_streams() -> None:
    """Replace closed standard streams with /dev/null, before a pipe gets their descriptors."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
