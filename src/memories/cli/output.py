"""How a run of the command speaks: answers to standard output, errors and notes to standard
error.
"""

import errno
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from memories.errors import ConfigError, InvalidInput, MemoriesError
from memories.languages import unseen

if TYPE_CHECKING:
    from memories.stores.damage import Damaged
    from memories.stores.records import Finding
INTERRUPTED = "Interrupted. Nothing was changed."
SCRATCHPAD_INSTEAD = "the store can't be asked, this is from the scratchpad: {}"
IN_DOUBT = "Interrupted. The change was not confirmed: it may or may not have been saved."

FORMATS = ("json", "text", "compact")

DAMAGED = 4  # the exit code of what was done, but for records that are damaged


class _Run:
    """What is known of one run; a server has many at a time, each in a context of its own.

    Attributes:
        format: One of `FORMATS`, once the options are read: so an error is printed as the answer
            would have been.
        changed: What it changed, as a part of a sentence; empty while that is not known, None
            before it changes anything.
        watched: What its stores left out since they were opened.
        told: The remarks that it made.
    """

    def __init__(self) -> None:
        self.format: str | None = None
        self.changed: str | None = None
        self.watched: list[tuple[Damaged, int]] = []
        self.told: set[str] = set()


_run: ContextVar[_Run] = ContextVar("run", default=_Run())  # noqa: B039 - `begin` gives each run one of its own

Result = TypeVar("Result")


def set_format(chosen: str | None) -> None:
    """Remember how to print: one of `FORMATS`, or `auto` for text on a terminal and JSON
    elsewhere.
    """
    _run.get().format = _format_of(sys.stdout) if chosen == "auto" else chosen


def begin() -> None:
    """Begin a run, of which nothing is known."""
    _run.set(_Run())


def changed() -> str | None:
    """Return what this run changed, as a part of a sentence; empty if that is not known, None if
    nothing.
    """
    return _run.get().changed


def changing(run: Callable[[], Result], tell: Callable[[Result], str]) -> Result:
    """Run what changes a store; remember how far it came, for when its answer is lost or Ctrl-C is
    pressed.

    Args:
        run: Makes the change.
        tell: Says what was done, as a part of a sentence; after a semicolon, what running it again
            would do.
    """
    state = _run.get()
    state.changed = ""
    result = run()
    state.changed = tell(result)
    return result


def so_far(done: str) -> None:
    """Remember how far a run of many steps has come, for when it is cut short; see `changing`."""
    _run.get().changed = done


def interrupted() -> int:
    """Print what is known of a run that Ctrl-C ended; return the exit code."""
    if changed() is None:
        return fail(INTERRUPTED, 1)
    return fail(_lost("it was interrupted before it answered") if changed() else IN_DOUBT, 1)


def failed(error: Exception) -> int:
    """Print an error of a command as one sentence; return the exit code."""
    if isinstance(error, MemoryError):
        return fail("out of memory; close other programs or raise the limit (ulimit -v)", 1)
    if isinstance(error, OSError) and not isinstance(error, MemoriesError):
        reason = error.strerror or str(error)
        if changed():
            return fail(_lost(f"the answer could not be printed: {reason}"), 1)
        if error.errno in (errno.EPIPE, errno.EBADF):
            return 0  # the reader has left, as `head` does, or there was none
        named = (
            f"cannot use {error.filename}"
            if isinstance(error.filename, str)
            else "operating system error"
        )
        many = "too many files are open; close some programs or raise the limit (ulimit -n)"
        return fail(
            many if error.errno in (errno.EMFILE, errno.ENFILE) else f"{named}: {reason}", 1
        )
    if changed():
        return fail(_lost(str(error)), 1)
    code = 2 if isinstance(error, ConfigError | InvalidInput) else 1
    return fail(str(error), code, matches=getattr(error, "matches", ()))


def unwatch() -> None:
    """Begin a command, which has not opened any store yet."""
    _run.get().watched.clear()


def watch(damaged: "Damaged") -> None:
    """Have what a store leaves out of this command's answer told with it."""
    _run.get().watched.append((damaged, damaged.mark()))


def told(answer: object) -> object:
    """Say in one line what was left out because it is damaged; return the exit code, 4 if the
    command did its work.
    """
    findings = _left_out()
    if not findings:
        return answer
    from memories.answers.store_shapes import describe_damage

    note(describe_damage(findings))
    return answer if isinstance(answer, int) and answer else DAMAGED


def _left_out() -> "list[Finding]":
    return [finding for damaged, mark in _run.get().watched for finding in damaged.since(mark)]


def emit(
    answer: Mapping[str, Any],
    text: Callable[[], str],
    *,
    compact: Callable[[], str] | None = None,
    stream: TextIO | None = None,
) -> None:
    """Print an answer: as JSON, or as the text that `text` makes of it; to standard output by
    default.

    Args:
        answer: The answer.
        text: Makes the text for people.
        compact: Makes the text for a model; by default that is the JSON.
        stream: Where it is printed.
    """
    stream = stream or sys.stdout
    render = {"text": text, "compact": compact}.get(_run.get().format or "")
    if findings := _left_out():
        from memories.answers import store_shapes

        answer = {**answer, "damaged": store_shapes.damage_details(findings)}
    printed = _to_json(answer, stream.isatty()) if render is None else render()
    if printed:
        say(printed, stream)


def emit_lines(answers: Sequence[Mapping[str, Any]], text: Callable[[], Sequence[str]]) -> None:
    """Print answers, each on a line of its own: as JSON, or as the texts that `text` makes of
    them.
    """
    as_json = _run.get().format not in ("text", "compact")
    say("\n".join([_to_json(answer, indented=False) for answer in answers] if as_json else text()))


def fail(message: str, code: int, matches: Sequence[str] = ()) -> int:
    """Print an error to standard error, one sentence; return the exit code."""
    from memories.guard.redactor import redact

    one_line = " ".join(
        redact(message).text.split()
    )  # a wrong option may quote what was meant for another
    if (_run.get().format or _format_of(sys.stderr)) in ("text", "compact"):
        red, plain = ("\033[31m", "\033[0m") if colored(sys.stderr) else ("", "")
        say(
            f"{red}error:{plain} {safe(one_line)}"
            + "".join(f"\n  {safe(match)}" for match in matches),
            sys.stderr,
        )
    else:
        shape = {"error": one_line, **({"matches": list(matches)} if matches else {})}
        say(_to_json(shape, indented=False), sys.stderr)
    return code


def note(message: str) -> None:
    """Print a remark for a person, to standard error; once in a run, whoever makes it again."""
    told = _run.get().told
    if message in told:
        return
    told.add(message)
    say("\n".join(map(safe, message.split("\n"))), sys.stderr)


def say(printed: str, stream: TextIO | None = None) -> None:
    """Print a text and a line end, in UTF-8 whatever the terminal's settings are; to standard
    output by default.
    """
    stream = stream or sys.stdout
    stream.flush()
    stream.buffer.write(f"{printed}\n".encode("utf-8", "backslashreplace"))
    stream.flush()


def _lost(reason: str) -> str:
    done, separator, again = (changed() or "").partition(";")
    return f"{done}, but {reason}{separator}{again}"


def colored(stream: Any) -> bool:
    """Return whether colours may be used: only on a terminal, and not where NO_COLOR is set."""
    return (
        bool(stream.isatty()) and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    )


def amount(count: int, one: str, many: str) -> str:
    """Return a number with its noun, such as `1 memory`."""
    return f"{count} {one if count == 1 else many}"


def safe(text: str) -> str:
    """Return text on one line, every character escaped that is invisible, reorders others, or
    commands a terminal.
    """
    return unseen.shown(text.replace("\t", "    "), lambda sign: f"\\u{{{ord(sign):x}}}")


def require_person(decision: str, *, yes: bool) -> None:
    """Refuse a decision that is a person's, unless a person is at the terminal or a script of
    theirs says yes.

    Args:
        decision: What a person decides, the subject of a sentence.
        yes: The writer of a script has confirmed it. That is nothing that an agent can do.

    Raises:
        InvalidInput: An agent runs the command, or nobody can be asked.
    """
    from memories.guard.origin import is_person, refuse_agent

    refuse_agent(decision)
    if not yes and not is_person():
        raise InvalidInput(
            f"{decision} is for a person to decide and there is nobody to ask; add --yes to confirm"
        )


def confirm(
    question: str, *, otherwise: str = "Nothing was forgotten.", why: str = "this can't be undone"
) -> bool:
    """Ask a person before something that counts.

    Args:
        question: What to ask.
        otherwise: What to say if the answer is no.
        why: Why a person is asked.

    Raises:
        InvalidInput: There is nobody to ask.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidInput(f"{why} and there is nobody to ask; add --yes to confirm")
    sys.stderr.write(f"{safe(question)} [y/N] ")
    sys.stderr.flush()
    agreed = sys.stdin.readline().strip().lower() in ("y", "yes")
    if not agreed:
        note(otherwise)
    return agreed


def _format_of(stream: TextIO) -> str:
    chosen = os.environ.get("MEMORY_FORMAT", "auto")
    return chosen if chosen in FORMATS else ("text" if stream.isatty() else "json")


def _to_json(answer: Mapping[str, Any], indented: bool) -> str:
    """Return JSON in which characters that are invisible or command a terminal are written as
    escapes.
    """
    printed = json.dumps(answer, ensure_ascii=False, indent=2 if indented else None)
    return unseen.shown(printed, lambda sign: json.dumps(sign)[1:-1], keep="\n")
