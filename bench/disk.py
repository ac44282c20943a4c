"""The size of a store file on disk, by part, without the text itself."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import report

# Runs in a separate process, since in this one only the store may have the file open.
_READ = """
import apsw, json, sys
db = apsw.Connection(sys.argv[1], flags=apsw.SQLITE_OPEN_READONLY)
print(json.dumps({
    "pages": dict(db.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name")),
    "text": db.execute(
        "SELECT sum(length(CAST(text AS BLOB))) FROM record "
        "WHERE pool NOT IN (SELECT id FROM pool WHERE collection = 'log')"
    ).fetchall()[0][0],
    "file": db.pragma("page_count") * db.pragma("page_size"),
}))
"""
_PARTS = {
    "vectors": ("vector",),
    "bit blocks": ("block",),
    "records without their text": ("record",),
    "index of positions": ("record_position",),
    "index of keys": ("record_key",),
    "word index": (
        "words_data",
        "words_idx",
        "words_docsize",
        "words_content",
        "words_config",
        "corpus",
    ),
    "tags": ("label", "record_label", "sqlite_autoindex_label_1"),
    "access counts": ("access",),
}


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes of a store file: of the text, and of each part beside it."""

    text: int
    parts: Mapping[str, int]

    @property
    def beside_text(self) -> int:
        """Return the bytes of everything except the text."""
        return sum(self.parts.values())


def measure(file: Path) -> Disk:
    """Return the sizes of the parts of a closed store file."""
    read = subprocess.run(
        [sys.executable, "-c", _READ, str(file)], check=True, capture_output=True, text=True
    )
    found = json.loads(read.stdout)
    pages = found["pages"]
    parts = {part: sum(pages.pop(name, 0) for name in names) for part, names in _PARTS.items()}
    parts["records without their text"] -= found["text"]
    parts["everything else"] = found["file"] - found["text"] - sum(parts.values())
    return Disk(found["text"], parts)


def print_table(disk: Disk, memories: int, mode: str = "") -> None:
    """Print the parts in MB for 10,000 memories."""
    scale = 10_000 / memories / 1e6
    rows = sorted(disk.parts.items(), key=lambda part: -part[1])
    report.heading(f"Disk by part, {memories:,} memories{', ' * bool(mode)}{mode}")
    report.table(
        ["part", "MB per 10,000"],
        [
            *((name, f"{size * scale:.2f}") for name, size in rows),
            ("**total without the text**", f"**{disk.beside_text * scale:.2f}**"),
            ("the text", f"{disk.text * scale:.2f}"),
        ],
    )
