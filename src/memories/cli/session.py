"""One run of a command: its settings, what it reads from standard input, how it renders answers,
how far it is.
"""

import sys
from contextvars import ContextVar
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

from memories.cli.output import note, set_format
from memories.errors import InvalidInput
from memories.guard.validate import MAX_CONTENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from memories.memories import Memories
    from memories.settings import Config

# In a server: what gives a run its memory. And the id of what it creates, if it may be the second
# run of one command.
OPENED: "ContextVar[Callable[[Config, bool], Memories] | None]" = ContextVar("opened", default=None)
WANTED: list[str] = []  # the stores of runs whose settings want a server for them
ONCE: ContextVar[str] = ContextVar("once", default="")


def texts() -> ModuleType:
    """Return the module that renders answers for people; JSON does without it."""
    return import_module("memories.cli.text")


def compacts() -> ModuleType:
    """Return the module that renders answers for models, with few characters beside the texts."""
    from memories.answers import compact

    return compact


def settings(output: str | None, namespace: str | None, store: str | None) -> "Config":
    """Return the settings of this run, and remember how to print."""
    from memories.config import load_config  # 4 ms that `--help` does without

    if output is not None:
        set_format(output)  # also for the error, should a setting be wrong
    config = load_config({"format": output, "namespace": namespace, "store": store}, tell=note)
    set_format(config.format)
    if config.log_level == "DEBUG" and OPENED.get() is None:  # a server serves others too
        from memories.core import logs

        logs.enable(config.log_level)
    if config.serve == "auto":
        WANTED.append(config.store)
    return config


def memory(config: "Config", *, shared: bool) -> "Memories":
    """Return the memory of this run; in a server, over the store that it has open."""
    opened = OPENED.get()
    if opened is not None:
        return opened(config, shared)
    from memories.identity.place import here
    from memories.memories import Memories  # after the settings, whose errors need none of it

    return Memories(shared=shared, config=config, channel="cli", place=here(config))


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


class Bar:
    """Shows on a terminal how far something is; says nothing elsewhere. It is a context manager."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._shown = sys.stderr.isatty()
        self._what = ""
        self._bar: Any = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how much of it is done."""
        if not self._shown:
            return
        if self._bar is None or what != self._what or done < self._bar.pos:
            self.close()
            self._what = what
            import click

            self._bar = click.progressbar(length=total, label=what, file=sys.stderr).__enter__()
        self._bar.length = total
        self._bar.update(done - self._bar.pos)

    def close(self) -> None:
        """End the line."""
        if self._bar is not None:
            self._bar.render_finish()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
