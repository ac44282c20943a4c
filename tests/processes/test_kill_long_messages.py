"""A writer of long messages is killed between their parts: each message is stored completely or not
at all.
"""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from memories import Memories
from memories.read.turns import parts_of
from memories.stores.records import Collection, Filter

ROUNDS = 6
WRITER = """
import sys
from memories import Memories, TurnDraft
url, first = sys.argv[1], int(sys.argv[2])
with Memories(url, embedder="fake") as memories:
    print("ready", flush=True)
    for number in range(first, first + 1000):
        text = f"message {number}. " * 12_000
        [turn] = memories.add_turns("talk", [TurnDraft(text, message_id=str(number))])
        print(number, flush=True)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_message_is_stored_with_all_of_its_parts_or_not_at_all(
    kind: str, tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    url = f"sqlite:///{tmp_path}/m.db" if kind == "sqlite" else f"files:///{tmp_path}/memories"
    drawn, acknowledged = random.Random(kind), set()
    for number in range(ROUNDS):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, url, str(number * 1000)],
            stdout=subprocess.PIPE, text=True, cwd=tmp_path, env={**clean_environment, "FILE_MIGRATE_AT": "100000"},
        )  # fmt: skip
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        for _ in range(drawn.randrange(1, 3)):
            acknowledged.add(int(writer.stdout.readline()))
        try:
            writer.wait(drawn.random() * 0.3)  # at some point of the next message
        except subprocess.TimeoutExpired:
            writer.kill()
        acknowledged.update(map(int, filter(str.isdigit, writer.stdout.read().split())))
        writer.wait(300)
        writer.stdout.close()
    with Memories(url, embedder="fake") as memories:
        turns = memories.turns("talk", limit=1000)
        assert acknowledged <= {int(turn.message_id or -1) for turn in turns}
        assert all(turn.content == f"message {turn.message_id}. " * 12_000 for turn in turns)
        assert memories.conversation("talk").turn_count == len(turns)
        everything = memories._store.scan(
            Filter(Collection.HISTORY, ("shared",), state="any"), limit=100_000
        )
        assert all(
            len(parts_of(memories._store, record)) == record.fields["parts"]
            for record in everything
        )
