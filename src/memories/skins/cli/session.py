"""One run of a command: its settings, its memory, and how its answer or its error is printed."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TextIO
from unicodedata import category

from memories.config import Config, load_config
from memories.errors import InvalidInput
from memories.service import Memories
from memories.validate import MAX_CONTENT_BYTES

# Known once the options are read, so that an error is printed as the answer would have been.
_format: str | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """What a command works with."""

    memories: Memories
    config: Config

    def show(self, answer: Mapping[str, Any], text: Callable[[], str]) -> None:
        """Print the answer: as JSON, or as the text that `text` makes of it."""
        emit(answer, text)


def texts() -> ModuleType:
    """Return the module that renders answers for people; JSON does without it."""
    from memories.skins.cli import text

    return text


@contextmanager
def session(
    output: str | None, namespace: str | None = None, store: str | None = None, *, shared: bool = True
) -> Iterator[Session]:
    """Read the settings, and open the memory for one command."""
    config = settings(output, namespace, store)
    with Memories(shared=shared, config=config) as memories:
        yield Session(memories, config)


def settings(output: str | None, namespace: str | None = None, store: str | None = None) -> Config:
    """Return the settings of this run, and remember how to print."""
    global _format  # noqa: PLW0603 - one command runs in a process
    if output is not None:
        _format = output
    config = load_config({"format": output, "namespace": namespace, "store": store})
    _format = config.format if config.format != "auto" else _format_of(sys.stdout.isatty())
    return config


def emit(answer: Mapping[str, Any], text: Callable[[], str], *, stream: TextIO | None = None) -> None:
    """Print an answer, to standard output if nothing else is said."""
    stream = stream or sys.stdout
    printed = text() if _format == "text" else _to_json(answer, stream.isatty())
    _write(stream, printed)


def fail(message: str, code: int, matches: Sequence[str] = ()) -> int:
    """Print an error to standard error, one sentence; return the exit code."""
    chosen = _format or _format_of(sys.stderr.isatty())
    one_line = " ".join(message.split())
    if chosen == "text":
        from memories.skins.cli.text import safe

        red, plain = ("\033[31m", "\033[0m") if colored(sys.stderr) else ("", "")
        printed = f"{red}error:{plain} {safe(one_line)}" + "".join(f"\n  {match}" for match in matches)
    else:
        printed = _to_json({"error": one_line, **({"matches": list(matches)} if matches else {})}, indented=False)
    _write(sys.stderr, printed)
    return code


def note(message: str) -> None:
    """Print a remark for a person, to standard error."""
    _write(sys.stderr, message)


def colored(stream: Any) -> bool:
    """Return whether colours may be used: only on a terminal, and not where NO_COLOR is set."""
    return bool(stream.isatty()) and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def read_argument(given: str, name: str, most: int = MAX_CONTENT_BYTES) -> str:
    """Return a text argument; `-` stands for standard input.

    Args:
        given: What was written.
        name: What it is, for messages.
        most: How many bytes standard input may hold.

    Raises:
        InvalidInput: Standard input is too large, or not UTF-8.
    """
    if given != "-":
        return given
    framing = len("\ufeff\r\n".encode())  # what may stand around the longest content
    data = sys.stdin.buffer.read(most + framing + 1)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InvalidInput(f"{name} looks like UTF-16; save it as UTF-8")
    if len(data) > most + framing:
        raise InvalidInput(f"{name} is more than {most} bytes, the limit; store it in parts")
    try:
        return data.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as exc:
        line = data[: exc.start].count(b"\n") + 1
        raise InvalidInput(
            f"line {line} of {name} is not UTF-8 (byte 0x{data[exc.start]:02x} at {exc.start}); save it as UTF-8"
        ) from None


def _format_of(terminal: bool) -> str:
    chosen = os.environ.get("MEMORY_FORMAT", "auto")
    return chosen if chosen in ("json", "text") else ("text" if terminal else "json")


def _to_json(answer: Mapping[str, Any], indented: bool) -> str:
    """Return JSON in which characters that are invisible or command a terminal are written as escapes."""
    printed = json.dumps(answer, ensure_ascii=False, indent=2 if indented else None)
    if printed.isprintable():
        return printed
    return "".join(
        character if character == "\n" or character.isprintable() or category(character) == "Zs" else _escape(character)
        for character in printed
    )


def _escape(character: str) -> str:
    return json.dumps(character)[1:-1]


def _write(stream: TextIO, printed: str) -> None:
    stream.flush()
    stream.buffer.write(f"{printed}\n".encode("utf-8", "backslashreplace"))
    stream.flush()


def confirm(question: str) -> bool:
    """Ask a person before something that can't be undone.

    Raises:
        InvalidInput: There is nobody to ask.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidInput("this can't be undone and there is nobody to ask; add --yes to do it")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
