"""Reads other programs' files as a stream of messages and statements.

Each module has a table `SOURCES` that maps the names of its sources to a `sample.Source`.
`reader.include` contains the names from `INCLUDE` that the user asked for.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from memories.errors import InvalidInput
from memories.guard.validate import shown

if TYPE_CHECKING:
    from memories.transfer.sources.items import Item
    from memories.transfer.sources.sample import Source

# The module of each source. A path belongs to the first source that recognizes it.
SOURCES = {
    "claude-code": "sessions",
    "codex": "sessions",
    "gemini": "sessions",
    "opencode": "chats",
    "cursor": "chats",
    "chatgpt": "web_exports",
    "claude": "web_exports",
    "server-memory": "memory_programs",
    "mem0": "memory_programs",
    "mcp-memory-service": "memory_programs",
    "mempalace": "memory_programs",
    "omega": "memory_programs",
    "engram": "memory_programs",
    "claude-mem": "memory_programs",
    "chroma": "chroma",
    "basic-memory": "markdown",
    "okf": "markdown",
    "anthropic": "markdown",
    "markdown": "markdown",
    "csv": "plain_files",
    "jsonl": "plain_files",
    "lines": "plain_files",
}
INCLUDE = ("branches", "subagents", "attachments")


def load(name: str) -> "Source":
    """Return the source with this name."""
    source: Source = import_module(f"{__name__}.{SOURCES[name]}").SOURCES[name]
    return source


def recognize(path: Path) -> str | None:
    """Return the name of the source that wrote a file or folder; None for an unknown file.

    Raises:
        InvalidInput: The path is a folder or an archive in an unknown format.
    """
    from memories.transfer.sources.sample import Sample

    sample = Sample(path)
    for name in SOURCES:
        if load(name).recognize(sample):
            return name
    if sample.is_folder:
        raise InvalidInput(
            f"cannot read {shown(path.name)}: it is a folder in an unknown format; if you know "
            "which program wrote it, run: memory import SOURCE PATH"
        )
    if sample.is_archive:
        problem = "that is truncated or empty; use another copy"
        if sample.names:
            problem = "in an unknown format; unpack it, and run: memory import FOLDER"
        raise InvalidInput(f"{shown(path.name)} is not an export: it is a ZIP archive {problem}")
    return None


def locate(home: Path) -> Iterator[tuple[str, Path]]:
    """Yield the sources that have files in their usual places on this machine, with the paths."""
    for name in SOURCES:
        for path in load(name).locate(home):
            if path.exists():
                yield name, path


class Reading:
    """Reads a source's files, from the beginning each time.

    Attributes:
        source: The name of the source.
        paths: Its files or folders.
        skipped: The number of items left out when the source was last read, keyed by reason.
    """

    def __init__(
        self,
        source: str,
        paths: Sequence[Path | str],
        include: frozenset[str] = frozenset(),
        project_of: Callable[[str], str | None] = lambda _folder: None,
    ) -> None:
        """Initialize.

        Args:
            source: The name of the source.
            paths: Its files or folders, or the URL of a server.
            include: Names from `INCLUDE`.
            project_of: Returns the project name for a local folder.

        Raises:
            InvalidInput: A name is not one of `INCLUDE`.
        """
        for name in include:
            if name not in INCLUDE:
                raise InvalidInput(f'"{shown(name)}" can\'t be included; use {", ".join(INCLUDE)}')
        self.source, self.paths = source, paths
        self.skipped: dict[str, int] = {}
        self._include, self._project_of = include, project_of

    def items(self, progress: Callable[[int, int], None]) -> "Iterator[Item]":
        """Yield the messages and statements of the source.

        Args:
            progress: Receives the number of bytes read so far, and the total.
        """
        from memories.transfer.sources.reader import Reader

        self.skipped = {}
        for path in self.paths:
            reader = Reader(
                path, include=self._include, progress=progress, project_of=self._project_of
            )
            yield from load(self.source).read(reader)
            for reason, count in reader.skipped.items():
                if count:
                    self.skipped[reason] = self.skipped.get(reason, 0) + count
