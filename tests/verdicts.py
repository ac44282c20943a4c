"""The rules' verdicts on every text of a corpus, one letter per text, in `data/verdicts.json`.

Tests of percentages show whether the rules are good enough, but not that one verdict has changed.
If a change is intended, run the tests once with WRITE_VERDICTS=1 and review the diff of the file.
"""

import json
import os
import string
import zlib
from collections.abc import Iterable
from pathlib import Path

FILE = Path(__file__).parent / "data" / "verdicts.json"
LETTERS = string.ascii_letters + string.digits
LINE = 80


def changed(name: str, verdicts: Iterable[tuple[object, object]]) -> list[tuple[object, object]]:
    """Return the texts whose verdicts differ from the recorded ones, with their verdicts."""
    listed = list(verdicts)
    letters = "".join(LETTERS[zlib.crc32(repr(verdict).encode()) % 62] for _, verdict in listed)
    known: dict[str, list[str]] = json.loads(FILE.read_text(encoding="utf-8"))
    if os.environ.get("WRITE_VERDICTS"):
        known[name] = [letters[start : start + LINE] for start in range(0, len(letters), LINE)]
        FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    expected = "".join(known[name])
    assert len(expected) == len(letters)
    return [
        entry for entry, *pair in zip(listed, letters, expected, strict=True) if pair[0] != pair[1]
    ]
