"""Scripts that tests run in separate processes, and prefixes that run them in private filesystems.

If a connection of this process has a file open, only another process inspects it: opening and
closing it here would cancel SQLite's locks.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from forkserver import Piped

RunPython = Callable[..., subprocess.CompletedProcess[str]]
StartPython = Callable[..., Piped]

needs_setpriv = pytest.mark.skipif(
    shutil.which("setpriv") is None or os.geteuid() != 0, reason="needs setpriv as root"
)
AS_PLAIN_USER = (
    "setpriv",
    "--bounding-set",
    "-dac_override,-dac_read_search",
    "--inh-caps",
    "-dac_override,-dac_read_search",
)

# The beginning of every script that uses a store; it opens the path of the first argument as
# `store`.
STORE = """
import os, sys, threading, time
from datetime import UTC, datetime
from pathlib import Path
from memories.embedders.fake import FakeEmbedder
from memories.errors import MemoriesError, StoreError
from memories.stores.records import Collection, Filter, Record, Ref
from memories.stores.sqlite import connection
from memories.stores.sqlite.store import SQLiteStore
path = Path(sys.argv[1])
store = SQLiteStore(path, FakeEmbedder.space)
mine = Filter(Collection.MEMORY, ("ann",))
def add(group, text=""):
    text = text or f"note {group}"
    ref = Ref(Collection.MEMORY, "ann", group, 1)
    store.append([Record(ref, text, datetime.now(UTC), vectors=FakeEmbedder().embed(text))])
def told(use):
    try:
        return use()
    except StoreError as exc:
        return exc
"""
# Prints "ok" if SQLite finds the file of the first argument and its word indexes sound.
CHECK = """
import sys, apsw
db = apsw.Connection(sys.argv[1])
print(db.pragma("integrity_check"))
for table in ("words", "turn_words", "words_ended"):
    db.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('integrity-check', 0)")
"""
# Searches for bytes, given in hexadecimal, in the files beside the first argument; prints the files
# that contain them.
GREP = """
import sys
from pathlib import Path
for file in sorted(Path(sys.argv[1]).parent.iterdir()):
    content = file.read_bytes() if file.is_file() else b""
    for needle in sys.argv[2:]:
        if bytes.fromhex(needle) in content:
            print(file.name, bytes.fromhex(needle)[:12])
"""


def on_tmpfs(folder: Path, options: str) -> tuple[str, ...]:
    """Return the prefix that runs a command with a small private filesystem in the place of a
    folder.
    """
    return (
        "unshare",
        "-m",
        "sh",
        "-c",
        f'mount -t tmpfs -o {options} tmpfs "{folder}" && exec "$@"',
        "sh",
    )


def mounted(folder: Path, script: str) -> tuple[str, ...]:
    """Return the prefix that runs a command after a shell script, which runs in the parent folder
    and may mount filesystems.
    """
    return ("unshare", "-m", "sh", "-ec", f'cd "{folder.parent}"; {script}; exec "$@"', "sh")
