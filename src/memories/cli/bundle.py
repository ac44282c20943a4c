"""Edits in a folder of Markdown become new versions, after a look at the differences."""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from memories.cli.options import open_memory
from memories.cli.output import amount, begin_change, confirm, note, record_change
from memories.errors import MemoriesError
from memories.transfer import bundle

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.models import Memory
    from memories.settings import Config


def apply_edits(
    config: "Config", folder: Path, *, dry_run: bool, redact: bool, yes: bool
) -> tuple[Iterator[bytes], int] | None:
    """Store the edited texts of a folder as new versions, once they are confirmed.

    Args:
        config: The settings.
        folder: A folder that `memory export --markdown` wrote.
        dry_run: Only show the differences.
        redact: Whether secrets are removed.
        yes: Whether they are confirmed already; otherwise a person is asked.

    Returns:
        The lines of an export with all other memories of the folder, and the number of edits; None
        if the person said no.

    Raises:
        InvalidInput: There are edits to confirm, but no terminal to ask at. Nothing was stored.
    """
    contents = bundle.read(folder)
    missing: list[str] = []  # lines of edited memories that the store doesn't have
    edited: list[tuple[Memory, str]] = []
    with open_memory(config, shared=False) as memories:
        for edit in contents.edits:
            memory = _find_memory(memories, edit.memory_id)
            if memory is None:
                missing += edit.lines
            elif bundle.digest(memory.content) == edit.digest:
                edited.append((memory, edit.text))
                note(_describe_edit(memory, edit.text))
            elif memory.content != edit.text:
                note(
                    f"{memory.id} is left as it is: it has changed since the export, and its file "
                    "was edited; update one of them yourself"
                )
        if dry_run or not edited:
            return contents.to_export(missing), len(edited)
        question = f"Store {amount(len(edited), 'edit', 'edits')} as new versions?"
        why = "edits become new versions"
        if not yes and not confirm(question, otherwise="Nothing was changed.", why=why):
            return None
        begin_change()
        for memory, text in edited:
            memories.update(memory.id, text, redact=redact, if_version=memory.version)
            record_change(f"{memory.id} was updated; running it again does the rest")
    return contents.to_export(missing), len(edited)


def _find_memory(memories: "Memories", memory_id: str) -> "Memory | None":
    """Return a memory of the own namespace; None if there is none."""
    try:
        memory = memories.get(memory_id)
    except MemoriesError:
        return None
    return memory if memory.namespace == memories.namespace else None


def _describe_edit(memory: "Memory", text: str) -> str:
    """Return the difference between a memory and its edited text."""
    before, after = memory.content.splitlines(), text.splitlines()
    lines = list(difflib.unified_diff(before, after, lineterm=""))[2:]
    return "\n".join([f"{memory.id} was edited:", *lines])
