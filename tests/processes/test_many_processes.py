"""Many processes use one store at once: no acknowledged write is lost or duplicated, and no process
gets an error.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from forkserver import together

RunPython = Callable[..., subprocess.CompletedProcess[str]]

# The beginning of every worker's script.
WORKER = """
import json, sys
from memories import Memories
memories, number = Memories(sys.argv[1], embedder="fake"), int(sys.argv[2])
def show(found):
    print(json.dumps(found))
"""
INSPECT = """
import json, sys, apsw
db = apsw.Connection(sys.argv[1])
RECORDS = "(SELECT 1 FROM record WHERE pool NOT IN (SELECT id FROM pool WHERE collection = 'log'))"
WORDS = "(SELECT rowid FROM words UNION ALL SELECT rowid FROM words_ended)"
for table in ("words", "words_ended"):
    db.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('integrity-check', 0)")
print(json.dumps([
    db.pragma("integrity_check"),
    *[db.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0] for table in (RECORDS, "vector", WORDS)],
]))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a store that doesn't exist yet."""
    return tmp_path / "store" / "memories.db"


@pytest.fixture
def at_once(
    path: Path, tmp_path: Path, clean_environment: Mapping[str, str]
) -> Callable[..., list[Any]]:
    """Return a function that runs a script in many processes, which begin at the same moment, and
    returns the output of each.
    """

    def run(script: str, count: int) -> list[Any]:
        runs = [(f"sqlite:///{path}", number) for number in range(count)]
        script = f"{WORKER}{script}\nmemories.close()"
        printed = together(script, runs, environment=clean_environment, folder=tmp_path)
        return [json.loads(line) for text in printed for line in text.splitlines()]

    return run


def inspect_store(run_python: RunPython, path: Path) -> tuple[str, int, int, int]:
    """Return the result of integrity_check, and the numbers of records, vectors and indexed texts."""
    return tuple(json.loads(run_python(INSPECT, path).stdout))  # type: ignore[return-value]


@pytest.mark.thorough
def test_sixteen_processes_lose_nothing(
    path: Path, at_once: Callable[..., list[Any]], run_python: RunPython
) -> None:
    acknowledged = at_once(
        """
made = []
for turn in range(100):
    content = f"process {number} noted in turn {turn} that w{number}x{turn} is so"
    made.append(memories.create(content, force=True, tags={"by": str(number)}).memory.id)
    if turn % 10 == 3:
        assert memories.get(made[-1]).content == content
        assert made[-1] in {hit.memory.id for hit in memories.search(f"w{number}x{turn}", limit=20)}
        listed = memories.list(tags={"by": str(number)}, limit=1000).memories
        assert {memory.id for memory in listed} == set(made)
    if turn % 25 == 24:
        memories.update(made[0], f"{content}, and was updated")
show(made)
""",
        16,
    )
    ids = [memory_id for made in acknowledged for memory_id in made]
    assert len(ids) == len(set(ids)) == 1600
    listing = """
import json, sys
from memories import Memories
found, cursor = [], None
with Memories(f"sqlite:///{sys.argv[1]}", embedder="fake") as memories:
    while True:
        page = memories.list(limit=1000, cursor=cursor)
        found += [memory.id for memory in page.memories]
        cursor = page.next_cursor
        if cursor is None:
            break
    [log] = memories.verify_log()
print(json.dumps([found, log.entries, log.problem, log.forks]))
"""
    listed, *log = json.loads(run_python(listing, path).stdout)
    assert sorted(listed) == sorted(ids)
    records = 1600 + 16 * 4
    assert inspect_store(run_python, path) == ("ok", records, records, records)
    assert log == [
        records,
        None,
        [],
    ]  # one chain with one entry for each transaction, in any order


@pytest.mark.thorough
def test_eight_commands_at_once_all_succeed(
    path: Path, tmp_path: Path, clean_environment: Mapping[str, str], run_python: RunPython
) -> None:
    environment = {**clean_environment, "MEMORY_STORE": f"sqlite:///{path}"}
    answers: list[Any] = []
    for turn in range(5):
        running = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "memories",
                    "create",
                    f"turn {turn}: w{number}z{turn} was noted",
                    "--force",
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
                env=environment,
            )
            for number in range(8)
        ]
        for process in running:
            printed, error = process.communicate(timeout=300)
            assert (process.returncode, error) == (0, "")
            answers.append(json.loads(printed))
    assert all(answer["stored"] for answer in answers)
    assert len({answer["id"] for answer in answers}) == 40
    assert inspect_store(run_python, path) == ("ok", 40, 40, 40)


@pytest.mark.thorough
def test_processes_that_create_the_store_at_the_same_moment_all_succeed(
    path: Path, at_once: Callable[..., list[Any]], run_python: RunPython
) -> None:
    script = (
        'memories.create(f"first of {number}", force=True); show(memories.status().memory_count)'
    )
    for _ in range(3):
        counts = at_once(script, 24)
        assert max(counts) == 24
        assert inspect_store(run_python, path) == ("ok", 24, 24, 24)
        assert sorted(found.name for found in path.parent.iterdir()) == [
            "memories.db",
            "memories.db.lock",
        ]
        path.unlink()
        path.with_name("memories.db.lock").unlink()
        path.parent.rmdir()


def test_a_key_written_by_many_processes_has_one_memory_without_gaps(
    path: Path, at_once: Callable[..., list[Any]], run_python: RunPython
) -> None:
    written = at_once(
        """
made = [memories.create(f"process {number} says {turn}", key="user/editor").memory for turn in range(8)]
show([(memory.id, memory.version) for memory in made])
""",
        4,
    )
    (memory_id,) = {memory_id for made in written for memory_id, _ in made}
    assert sorted(version for made in written for _, version in made) == list(range(1, 33))
    history = """
import json, sys
from memories import Memories
with Memories(f"sqlite:///{sys.argv[1]}", embedder="fake") as memories:
    found = memories.history(sys.argv[2]).versions
    print(json.dumps([[version.version, version.content, version.ended_at is None] for version in found]))
"""
    versions: Sequence[Any] = json.loads(run_python(history, path, memory_id).stdout)
    assert [version for version, _, _ in versions] == list(range(1, 33))
    assert [current for _, _, current in versions] == [False] * 31 + [True]
    assert {content for _, content, _ in versions} == {
        f"process {n} says {t}" for n in range(4) for t in range(8)
    }


@pytest.mark.thorough
def test_the_same_text_from_many_processes_is_stored_once(
    path: Path, at_once: Callable[..., list[Any]], run_python: RunPython
) -> None:
    answers = at_once(
        'made = memories.create("Deploys happen on Tuesdays"); show([made.stored, made.memory.id])',
        8,
    )
    assert sorted(stored for stored, _ in answers) == [False] * 7 + [True]
    assert len({memory_id for _, memory_id in answers}) == 1
    assert inspect_store(run_python, path) == ("ok", 1, 1, 1)


def test_each_concurrent_update_of_a_memory_becomes_a_version(
    path: Path, at_once: Callable[..., list[Any]], run_python: RunPython
) -> None:
    made = """
import sys
from memories import Memories
with Memories(f"sqlite:///{sys.argv[1]}", embedder="fake") as memories:
    print(memories.create("the first version").memory.id)
"""
    memory_id = run_python(made, path).stdout.strip()
    written = at_once(
        f"show([memories.update({memory_id!r}, f'says {{number}} {{turn}}').version for turn in range(6)])",
        4,
    )
    assert sorted(version for versions in written for version in versions) == list(range(2, 26))
    assert inspect_store(run_python, path) == ("ok", 25, 25, 25)


@pytest.mark.thorough
def test_tags_that_concurrent_repetitions_add_are_all_kept(
    path: Path, at_once: Callable[..., list[Any]], run_python: RunPython
) -> None:
    script = """
made = memories.create("Deploys happen on Tuesdays", tags={f"by-{number}": "yes"})
show([made.stored, made.memory.id])
"""
    answers = at_once(script, 5)
    assert sorted(stored for stored, _ in answers) == [False] * 4 + [True]
    read = """
import json, sys
from memories import Memories
with Memories(f"sqlite:///{sys.argv[1]}", embedder="fake") as memories:
    print(json.dumps(sorted(memories.get(sys.argv[2]).tags)))
"""
    (memory_id,) = {memory_id for _, memory_id in answers}
    assert json.loads(run_python(read, path, memory_id).stdout) == [
        f"by-{number}" for number in range(5)
    ]
