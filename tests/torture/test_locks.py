"""No command cancels the locks that this process holds on the store, since none opens the file
except through SQLite.
"""

import os
import platform
from pathlib import Path
from typing import Any

import pytest

from memories import Memories
from memories.__main__ import run
from memories.stores.sqlite import connection
from memories.stores.sqlite.store import SQLiteStore

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc/locks")

COMMANDS = (
    "create another --force", "create --force --key user/k keyed", "search first", "search first --in all --explain",
    "list", "list --deleted", "get ID", "history ID", "tags", "update ID --tag a=b", "delete ID", "restore ID",
    "turns add talk hello", "turns show talk", "turns list", "turns tail talk", "status", "config",
    "export --all-namespaces --output FOLDER/x.jsonl", "import FOLDER/x.jsonl --all-namespaces",
    "context hello --conversation talk",
    "migrate --to sqlite:///FOLDER/copy/m.db", "reembed --model fake", "turns forget talk --yes", "forget ID --yes",
)  # fmt: skip


def locks(file: Path) -> list[str]:
    """Return the locks of this process on a file, as the kernel lists them."""
    wanted = f"{os.getpid()} ", f":{file.stat().st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    return sorted(line.split(":", 1)[1] for line in lines if all(part in line for part in wanted))


@pytest.mark.torture
def test_no_command_cancels_the_locks_of_an_open_store(
    tmp_path: Path,
    figures: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "store" / "memories.db"
    monkeypatch.setenv("MEMORY_STORE", f"sqlite:///{path}")
    monkeypatch.setenv("EMBEDDER", "fake")
    monkeypatch.chdir(tmp_path)
    memories = Memories()
    made = memories.create("the first one").memory
    assert made is not None
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.2)  # forgetting waits for readers
    holder = SQLiteStore(path, None)
    with holder._file.read() as db:
        db.execute("SELECT count(*) FROM record").fetchall()
        held = locks(path)
        assert held
        for command in COMMANDS:
            words = [
                word.replace("ID", made.id).replace("FOLDER", str(tmp_path))
                for word in command.split()
            ]
            code = run(words)
            assert code in (0, 1, None) or "forget" in command, (command, capsys.readouterr())
            assert set(held) <= set(locks(path)), command
    figures |= {"commands": len(COMMANDS), "cancelled": 0}
    holder.close()
    memories.close()
