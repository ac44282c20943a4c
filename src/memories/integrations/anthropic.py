"""Anthropic's memory tool, backed by our stores. A file is a memory whose key is the file's path,
and an edit adds a version.

runner = client.beta.messages.tool_runner(..., tools=[MemoriesTool(Memories(namespace="ann"))])
"""

import contextlib
import json
import unicodedata
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from anthropic.lib.tools import BetaAbstractMemoryTool, ToolError
from pydantic import ValidationError

from memories import Draft, Memories, MemoriesError, Memory

if TYPE_CHECKING:
    from anthropic.types.beta import (
        BetaMemoryTool20250818Command,
        BetaMemoryTool20250818CreateCommand,
        BetaMemoryTool20250818DeleteCommand,
        BetaMemoryTool20250818InsertCommand,
        BetaMemoryTool20250818RenameCommand,
        BetaMemoryTool20250818StrReplaceCommand,
        BetaMemoryTool20250818ViewCommand,
    )

ROOT = "/memories"
MAX_LINES = 999_999
_TAGS = {"tool": "memory"}  # tag of the memories that are files
_PAGE = 1_000
_BESIDE = 2  # number of lines shown before and after an edit


class MemoriesTool(BetaAbstractMemoryTool):
    """Claude's tool `memory`. The protocol prescribes the wording of its answers and errors."""

    def __init__(self, memories: Memories) -> None:
        """Initialize.

        Args:
            memories: The `Memories` whose namespace is read and written. The caller closes it.
        """
        super().__init__()
        self._memories = memories

    def execute(self, command: "BetaMemoryTool20250818Command") -> str:
        """Run a command, after checking its parameters, which the SDK doesn't do."""
        try:
            type(command).model_validate(vars(command))
        except ValidationError as exc:
            name, problem = exc.errors()[0]["loc"][0], exc.errors()[0]["msg"]
            if name == "command":
                raise ToolError(f"Unknown command: {command.command}") from exc
            raise ToolError(f"Invalid `{name}` parameter: {problem}") from exc
        return str(super().execute(command))

    def view(self, command: "BetaMemoryTool20250818ViewCommand") -> str:
        """Show a file with line numbers, or list a folder, two levels deep."""
        path = _normal_path(command.path)
        files = self._files()
        if path not in files:
            if path != ROOT and not _inside(files, path):
                raise ToolError(
                    f"The path {command.path} does not exist. Please provide a valid path."
                )
            return _list_folder(files, path)
        lines = _text(files[path]).split("\n")
        if len(lines) > MAX_LINES:
            raise ToolError(f"File {command.path} exceeds maximum line limit of 999,999 lines.")
        first, last = 1, len(lines)
        if command.view_range and len(command.view_range) == 2:
            first = max(1, command.view_range[0])
            last = last if command.view_range[1] == -1 else command.view_range[1]
        numbered = _number_lines(lines, first, last)
        return f"Here's the content of {command.path} with line numbers:\n{numbered}"

    def create(self, command: "BetaMemoryTool20250818CreateCommand") -> str:
        """Create a file."""
        with self._change():
            path, files = _normal_path(command.path), self._files()
            if path in files or path == ROOT or _inside(files, path):
                raise ToolError(f"File {command.path} already exists")
            self._refuse_file_above(files, path)
            self._write(path, command.file_text)
            return f"File created successfully at: {command.path}"

    def str_replace(self, command: "BetaMemoryTool20250818StrReplaceCommand") -> str:
        """Replace a string that occurs exactly once in a file."""
        with self._change():
            path, text = self._file(command.path)
            count = text.count(command.old_str) if command.old_str else 0
            where = f"`{command.old_str}`"
            if count == 0:
                raise ToolError(
                    f"No replacement was performed, old_str {where} did not appear verbatim in "
                    f"{command.path}."
                )
            if count > 1:
                lines = ", ".join(map(str, _find_lines(text, command.old_str)))
                raise ToolError(
                    f"No replacement was performed. Multiple occurrences of old_str {where} "
                    f"in lines: {lines}. Please ensure it is unique"
                )
            line = text[: text.index(command.old_str)].count("\n") + 1
            changed = text.replace(command.old_str, command.new_str)
            self._write(path, changed)
            snippet = _number_lines(changed.split("\n"), max(1, line - _BESIDE), line + _BESIDE)
            return (
                "The memory file has been edited. "
                f"Here is the snippet showing the change (with line numbers):\n{snippet}"
            )

    def insert(self, command: "BetaMemoryTool20250818InsertCommand") -> str:
        """Insert lines after a line of a file; 0 inserts at the beginning."""
        with self._change():
            path, text = self._file(command.path)
            lines = text.split("\n")[:-1] if text.endswith("\n") else text.split("\n")
            if not 0 <= command.insert_line <= len(lines):
                raise ToolError(
                    f"Invalid `insert_line` parameter: {command.insert_line}. "
                    f"It should be within the range [0, {len(lines)}]."
                )
            lines.insert(command.insert_line, command.insert_text.rstrip("\n"))
            self._write(path, "\n".join(lines) + "\n")
            return f"The file {command.path} has been edited."

    def delete(self, command: "BetaMemoryTool20250818DeleteCommand") -> str:
        """Delete a file, or a folder with its files. A person can restore them."""
        with self._change():
            path, files = _normal_path(command.path), self._files()
            if path == ROOT:
                raise ToolError("Cannot delete the /memories directory itself")
            for file in _find_files(files, path, command.path):
                self._memories.delete(files[file].id)
            return f"Successfully deleted {command.path}"

    def rename(self, command: "BetaMemoryTool20250818RenameCommand") -> str:
        """Move a file, or a folder with its files."""
        with self._change():
            old, new = _normal_path(command.old_path), _normal_path(command.new_path)
            files = self._files()
            if old == ROOT:
                raise ToolError("Cannot rename the /memories directory itself")
            paths = _find_files(files, old, command.old_path)
            if new in files or new == ROOT or _inside(files, new):
                raise ToolError(f"The destination {command.new_path} already exists")
            if new.startswith(f"{old}/"):
                raise ToolError(f"Cannot move {command.old_path} into itself")
            self._refuse_file_above(files, new)
            for file in paths:
                self._write(new + file.removeprefix(old), _text(files[file]))
                self._memories.delete(files[file].id)
            return f"Successfully renamed {command.old_path} to {command.new_path}"

    def clear_all_memory(self) -> str:
        """Delete all files; a person can restore them."""
        with self._change():
            for memory in self._files().values():
                self._memories.delete(memory.id)
            return "All memory cleared"

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        """Make all changes in one transaction; raise our errors as the tool's errors."""
        try:
            with self._memories.transaction():
                yield
        except MemoriesError as exc:
            raise ToolError(str(exc)) from exc

    def _files(self) -> dict[str, Memory]:
        files: dict[str, Memory] = {}
        cursor = None
        while True:
            page = self._memories.list(tags=_TAGS, limit=_PAGE, cursor=cursor)
            for memory in page.memories:
                is_own = memory.namespace == self._memories.namespace
                if is_own and memory.key and _is_path(memory.key):
                    files[memory.key] = memory
            cursor = page.next_cursor
            if cursor is None:
                return files

    def _file(self, name: str) -> tuple[str, str]:
        path, files = _normal_path(name), self._files()
        if path in files:
            return path, _text(files[path])
        if _inside(files, path):
            raise ToolError(f"The path {name} is not a file.")
        raise ToolError(f"The path {name} does not exist. Please provide a valid path.")

    def _write(self, path: str, text: str) -> None:
        self._memories.config.redactor().refuse(path, "path")
        content = text if any(map(str.isalnum, text)) else path
        # content is normalized to one Unicode form, so store the original text as well
        data = json.dumps({"text": text}, ensure_ascii=False)
        self._memories.create_many([Draft(content, _TAGS, key=path, data=data)], force=True)

    @staticmethod
    def _refuse_file_above(files: Mapping[str, Memory], path: str) -> None:
        folder = path.rpartition("/")[0]
        while folder != ROOT:
            if folder in files:
                raise ToolError(f"The path {folder} is a file, not a directory")
            folder = folder.rpartition("/")[0]


def _normal_path(path: str) -> str:
    """Return a normalized path.

    Raises:
        ToolError: The path is ambiguous, or leads outside the tool's folder.
    """
    path = unicodedata.normalize("NFC", path.rstrip("/") or path)
    if path != ROOT and not path.startswith(f"{ROOT}/"):
        raise ToolError(f"Path must start with /memories, got: {path}")
    if not _is_path(path) and path != ROOT:
        raise ToolError(f"Path {path} would escape /memories directory or is not a path")
    return path


def _is_path(path: str) -> bool:
    if not path.startswith(f"{ROOT}/") or "\\" in path or "%" in path:
        return False
    parts = path.removeprefix(f"{ROOT}/").split("/")
    return all(part == part.strip() and part not in ("", ".", "..") for part in parts)


def _inside(files: Mapping[str, Memory], folder: str) -> list[str]:
    return [path for path in files if path.startswith(f"{folder}/")]


def _find_files(files: Mapping[str, Memory], path: str, name: str) -> list[str]:
    """Return a file, or the files in a folder.

    Raises:
        ToolError: There is no such file or folder.
    """
    paths = [path] if path in files else _inside(files, path)
    if not paths:
        raise ToolError(f"The path {name} does not exist")
    return paths


def _text(memory: Memory) -> str:
    """Return a file's text. If its memory was edited elsewhere, return the memory's content."""
    text = None if memory.data is None else json.loads(memory.data).get("text")
    return text if isinstance(text, str) else memory.content


def _list_folder(files: Mapping[str, Memory], folder: str) -> str:
    """List a folder, two levels deep, without hidden files. A folder's size is the size of its
    files.
    """
    sizes = {"": 0}
    for path in _inside(files, folder):
        size = len(_text(files[path]).encode())
        sizes[""] += size
        parts = path.removeprefix(f"{folder}/").split("/")
        if any(part.startswith(".") or part == "node_modules" for part in parts):
            continue
        for depth in range(1, min(2, len(parts)) + 1):
            name = "/".join(parts[:depth])
            if depth < len(parts):
                name += "/"
            sizes[name] = sizes.get(name, 0) + size
    named = sorted((name, size) for name, size in sizes.items() if name)
    lines = [
        f"{_size(sizes[''])}\t{folder}",
        *(f"{_size(size)}\t{folder}/{name}" for name, size in named),
    ]
    head = f"Here're the files and directories up to 2 levels deep in {folder}"
    return "\n".join([f"{head}, excluding hidden items:", *lines])


def _size(count: float) -> str:
    """Format a number of bytes as `6B`, `1.5K` or `4K`."""
    units = iter("BKMG")
    unit = next(units)
    while count >= 1024 and unit != "G":
        count, unit = count / 1024, next(units)
    return f"{count:.1f}".removesuffix(".0") + unit


def _number_lines(lines: list[str], first: int, last: int) -> str:
    return "\n".join(
        f"{number:6d}\t{line}" for number, line in enumerate(lines[first - 1 : last], first)
    )


def _find_lines(text: str, part: str) -> list[int]:
    """Return the numbers of the lines in which a string begins."""
    numbers, position = [], text.find(part)
    while position >= 0:
        numbers.append(text[:position].count("\n") + 1)
        position = text.find(part, position + 1)
    return numbers
