"""A review is killed at random moments: afterwards each memory awaits review or was accepted, and
none is lost or stored twice.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from torture.forks import ON_PATH

RunPython = Callable[..., subprocess.CompletedProcess[str]]

# It never opens the store itself; only its forks do, which start with all modules loaded. A
# reviewer accepts some memories unchanged, some edited, and one whose key is taken meanwhile; it
# reports each batch that has returned.
DRIVER = """
import json, os, random, signal, sys, time
from torture import forks
from torture.forks import fork
from pathlib import Path
from memories import Draft, Memories
from memories.embedders import open_embedder
from memories.write import review

open_embedder("fake").embed("warm")
review.BATCH_COMPARED = 3
url, folder, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
forks.LONGEST_SECONDS = 600
drawn = random.Random(7)
COUNT = 24


def opened():
    return Memories(url, embedder="fake")


def capture(number, out):
    with opened() as memories:
        keys = {each: f"{number}/{each}" for each in range(0, COUNT, 4)}
        drafts = [Draft(f"fact {each} of round {number}", pending=True, key=keys.get(each)) for each in range(COUNT)]
        made = [created.memory.id for created in memories.create_many(drafts, force=True)]
        taken = [Draft(f"taken {each} in {number}", key=f"{number}/{each}") for each in range(0, COUNT, 8)]
        others = [created.memory.id for created in memories.create_many(taken, force=True)]
        out.write_text(json.dumps([made, others]))


def decide(made, done):
    note = os.open(done, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    memories = opened()
    for first in range(0, COUNT, 6):
        batch = made[first : first + 6]
        ended = memories.review.accept([batch[0]], content=f"edited {batch[0]}", force=True)
        ended += memories.review.accept(batch[1:5], force=True)
        ended += memories.review.reject(batch[5:])
        os.write(note, "".join(f"{each.id}\\n" for each in ended).encode())
    os.write(note, b"end\\n")


def check(number, made, others, done):
    acknowledged = set(done.read_text().split()) if done.exists() else set()
    with opened() as memories:
        current = {memory.id: memory for memory in memories.list(limit=1000).memories}
        waiting = {memory.id for memory in memories.list(limit=1000, pending=True).memories}
        gone = {memory.id for memory in memories.list(limit=1000, deleted=True).memories}
        for each, memory_id in enumerate(made):
            found = memories.get(memory_id) if memory_id not in gone else None
            states = [memory_id in current, memory_id in waiting, memory_id in gone,
                      found is not None and found.superseded_by is not None]
            assert sum(states) == 1, (memory_id, states)
            if memory_id in acknowledged:
                assert memory_id not in waiting
            if states[3]:  # its text is the next version of the memory with its key
                other = memories.get(found.superseded_by)
                assert other.content in (found.content, f"edited {memory_id}")
                assert other.version == 2
        assert [log.problem for log in memories.verify_log()] == [None]
        texts = [memory.content for memory in current.values()]
        assert len(texts) == len(set(texts))
        memories.review.reject(memories.review.select())


def waited(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


killed = 0
for number in range(rounds):
    out, done = folder / f"made{number}", folder / f"done{number}"
    assert waited(fork(capture, number, out)) == 0
    made, others = json.loads(out.read_text())
    child = fork(decide, made, done)
    time.sleep(drawn.uniform(0, 0.25))
    os.kill(child, signal.SIGKILL)
    waited(child)
    ended = done.exists() and "end" in done.read_text()
    killed += not ended
    assert waited(fork(check, number, made, others, done)) == 0
print(json.dumps({"rounds": rounds, "killed": killed}))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["sqlite", "files"])
def test_each_memory_of_an_interrupted_review_waits_or_was_accepted(
    tmp_path: Path, run_python: RunPython, size: Callable[[int, int], int], scheme: str
) -> None:
    rounds = size(6, 100)
    totals = json.loads(
        run_python(ON_PATH + DRIVER, f"{scheme}:///{tmp_path}/store", tmp_path, rounds).stdout
    )
    assert totals["rounds"] == rounds
    assert totals["killed"] > 0
