"""Sources: what other programs keep, read as a stream of messages and statements.

Each module is one source. It has a docstring whose first line says what it reads, and

- `FILES`, the patterns of its files in a folder;
- `locate(home)`, which returns where its program keeps them on a machine;
- `recognize(sample)`, which returns whether a file or folder is one of its own;
- `read(reader)`, which yields a `Message` or a `Statement` for each that is worth keeping, in
  order, and calls `reader.skip` for the others. It may be called twice, and must yield the same.

`reader.include` has the names of `INCLUDE` for which the user asked.
"""

from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from memories.transfer.sources.items import Item
    from memories.transfer.sources.reader import Reader
    from memories.transfer.sources.sample import Sample

# Each source and its module. A path is of the first one that recognizes it.
SOURCES = {
    "claude-code": "claude_code",
    "codex": "codex",
    "gemini": "gemini",
    "opencode": "opencode",
    "cursor": "cursor",
    "chatgpt": "chatgpt",
    "claude": "claude",
    "csv": "csv_rows",
    "jsonl": "jsonl",
    "lines": "lines",
}
INCLUDE = ("branches", "subagents", "attachments")


class Source(Protocol):
    """The module of a source; see the docstring of this package."""

    FILES: tuple[str, ...]

    def locate(self, home: Path) -> Iterable[Path]:
        """Return where the program keeps its files below a home folder, if it is installed."""

    def recognize(self, sample: "Sample") -> bool:
        """Return whether a file or folder is of this source."""

    def read(self, reader: "Reader") -> "Iterator[Item]":
        """Yield what is worth keeping; see the docstring of this package."""


def load(name: str) -> Source:
    """Return the module of a source."""
    return cast("Source", import_module(f"{__name__}.{SOURCES[name]}"))


def recognize(path: Path) -> str | None:
    """Return the name of the source that wrote a file or folder; None if it is unknown."""
    from memories.transfer.sources.sample import Sample

    sample = Sample(path)
    for name in SOURCES:
        if load(name).recognize(sample):
            return name
    return None


def locate(home: Path) -> Iterator[tuple[str, Path]]:
    """Yield the sources that exist on this machine, with their paths."""
    for name in SOURCES:
        for path in load(name).locate(home):
            if path.exists():
                yield name, path
