"""Forgetting in the SQLite store erases every byte, at a cost that doesn't depend on the size of
the store.
"""

import contextlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from contract import (
    MEMORY,
    OTHER,
    SPACE,
    OpenStore,
    at,
    by_words,
    pool,
    record,
    search,
    unit_vectors,
)
from sqlite_scripts import CHECK, GREP, RunPython

from memories import ErasureUnfinished, Memories, NotFound, StoreError, TurnDraft
from memories.config import load_config
from memories.core.batches import by_count
from memories.core.disk import try_lock
from memories.errors import StoreBusy
from memories.identity.namespaces import delete
from memories.server.api.idempotency import FileClaims, file_of
from memories.settings import Config
from memories.stores.records import Patch, Ref
from memories.stores.sqlite import connection as sqlite_file
from memories.stores.sqlite import words as sqlite_words
from memories.stores.sqlite.connection import SQLiteFile
from memories.stores.sqlite.quantize import Quantizer
from memories.stores.sqlite.store import SQLiteStore

REAL = SPACE._replace(model="random/1", dimension=384)


def run(path: Path, sql: str) -> list[Any]:
    """Run a statement on a new connection; return its rows."""
    db = apsw.Connection(str(path))
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


def written_bytes() -> int:
    """Return how many bytes this process has passed to write calls."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["wchar"])


def test_staged_vectors_are_erased_too(
    store: SQLiteStore, path: Path, run_python: RunPython
) -> None:
    vectors = unit_vectors(2, seed=33)[:, : OTHER.dimension]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    codes = [Quantizer(OTHER.dimension).encode(vectors[[number]])[4:].hex() for number in range(2)]
    refs = [Ref(MEMORY, "ann", name, 1) for name in ("m", "n")]
    store.append([record("m"), record("n")])
    store.stage(OTHER, {ref: vectors[[number]] for number, ref in enumerate(refs)})
    assert len(run_python(GREP, path, *codes).stdout.splitlines()) >= 2
    store.remove([refs[0]])
    assert run_python(GREP, path, codes[0]).stdout == ""
    assert run_python(GREP, path, codes[1]).stdout != ""
    store.switch(OTHER)
    assert run_python(CHECK, path).stdout == "ok\n"


@pytest.mark.parametrize("others", [0, 50])
def test_a_removal_leaves_no_bytes(
    path: Path, open_store: OpenStore, others: int, run_python: RunPython
) -> None:
    """This includes its earlier versions, metadata, words in the index and vectors. A second store
    is open.
    """
    store, idle = open_store(SPACE), open_store(SPACE)
    store.append(
        [
            record(f"other{number}", text=f"quite ordinary remark {number}")
            for number in range(others)
        ]
    )
    texts = ["the quixotrumpelstil word", "then a quixozanzibarel one", "last the quixofandangole"]
    vectors = unit_vectors(4, seed=12)
    for position, text in enumerate(texts, 1):
        if position > 1:
            store.patch(
                [
                    Patch(
                        Ref(MEMORY, "ann", "m", position - 1),
                        at(position),
                        "update",
                        {"mark": "fieldsentinel"},
                    )
                ]
            )
        windows = vectors[:2] if position == 1 else vectors[[position]]
        labels = {"labelkeysentinel": f"labelvaluesentinel{position}"}
        store.append(
            [record("m", position, text=text, labels=labels, key="key/sentinel", vectors=windows)]
        )
    assert idle.count(pool()) == others + 1
    codes = [Quantizer(SPACE.dimension).encode(vectors[[number]])[4:36] for number in range(4)]
    needles = [text.encode() for text in texts]
    # The index stores shared beginnings of words once, so the end of each word's stem is searched
    # for.
    needles += [b"umpelstil", b"anzibarel", b"fandangol"]
    needles += [
        b"fieldsentinel",
        b"labelkeysentinel",
        b"labelvaluesentinel",
        b"key/sentinel",
        *codes,
    ]
    shown = run_python(GREP, path, *(needle.hex() for needle in needles)).stdout
    assert len({line.split(" ", 1)[1] for line in shown.splitlines()}) == len(
        {needle[:12] for needle in needles}
    )
    store.remove([Ref(MEMORY, "ann", "m", position) for position in (1, 2, 3)])
    assert run_python(GREP, path, *(needle.hex() for needle in needles)).stdout == ""
    assert len(search(idle, "quixotrumpelstil ordinary remark", k=100)) == others
    assert run_python(CHECK, path).stdout == "ok\n"


def test_an_erasure_blocked_by_a_reader_is_reported_and_can_be_finished(
    path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, run_python: RunPython
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.3)
    store, reader = open_store(SPACE), open_store(SPACE)
    store.append([record("m", text="sentinelword"), record("n", text="other")])
    ref = Ref(MEMORY, "ann", "m", 1)
    with reader._file.read() as held:
        held.execute("SELECT * FROM record").fetchall()
        with pytest.raises(StoreBusy, match="forget it again"):
            store.remove([ref])
        assert store.count(pool()) == 1
    store.remove([ref])
    assert run_python(GREP, path, b"sentinelword".hex()).stdout == ""


def test_an_erasure_is_retried_until_the_reader_is_gone(
    path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, run_python: RunPython
) -> None:
    store, reader = open_store(SPACE), open_store(SPACE)
    store.append([record("m", text="sentinelword"), record("n", text="other")])
    monkeypatch.setattr(sqlite_file, "_ATTEMPT_MILLIS", 1)
    reading = contextlib.ExitStack()
    reading.enter_context(reader._file.read()).execute("SELECT * FROM record").fetchall()
    with reading, monkeypatch.context() as patch:
        patch.setattr(sqlite_file.time, "sleep", lambda _seconds: reading.close())
        store.remove([Ref(MEMORY, "ann", "m", 1)])
    assert run_python(GREP, path, b"sentinelword".hex()).stdout == ""


def test_an_erasure_does_not_complete_a_later_erasure(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later erasure was interrupted: its bytes may still be in the file, so the store still
    reports it.
    """
    store, other = open_store(SPACE), open_store(SPACE)
    store.append([record("m"), record("n")])

    def held_up() -> None:
        raise StoreBusy("somebody reads")

    def meanwhile() -> None:
        with pytest.raises(StoreBusy):
            other.remove([Ref(MEMORY, "ann", "n", 1)])

    with monkeypatch.context() as patch:
        patch.setattr(other._file, "erase_leftover_bytes", held_up)  # type: ignore[attr-defined]
        patch.setattr(store._file, "erase_leftover_bytes", meanwhile)  # type: ignore[attr-defined]
        store.remove([Ref(MEMORY, "ann", "m", 1)])
    assert store.info(pool()).erasing
    other.remove([])
    assert not store.info(pool()).erasing


def test_a_removal_inside_a_transaction_is_refused(store: SQLiteStore) -> None:
    store.append([record("m")])
    with pytest.raises(StoreError, match="can't be part of a transaction"), store.transaction():
        store.remove([Ref(MEMORY, "ann", "m", 1)])
    assert store.count(pool()) == 1


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "size",
    [
        2_000,
        pytest.param(48_000, marks=pytest.mark.thorough),
        pytest.param(200_000, marks=pytest.mark.thorough),
    ],
)
def test_the_bytes_written_by_forgetting_do_not_grow_with_the_store(
    tmp_path: Path, size: int, figures: dict[str, Any]
) -> None:
    """The memories have 20 words, a third of them rare, and vectors of 384 dimensions. Writes to
    log and database are counted together.
    """
    drawn = random.Random(5)
    rare = [f"{drawn.getrandbits(40):x}" for _ in range(20_000)]
    store = SQLiteStore(tmp_path / "memories.db", REAL)
    vectors = np.random.default_rng(5).standard_normal((1_000, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for first in range(0, size, 1_000):
        texts = (
            " ".join(drawn.choices(rare, k=7) + drawn.choices(rare[:500], k=13))
            for _ in range(1_000)
        )
        entries = [
            record(
                f"m{first + at}",
                text=text,
                vectors=vectors[at : at + 1],
                labels={"project": str(at % 9)},
            )
            for at, text in enumerate(texts)
        ]
        store.append(entries)
    store.remove([Ref(MEMORY, "ann", "m1", 1)])  # moves the earlier log into the file
    costs = []
    for number in drawn.sample(range(10, size), 5):
        before = written_bytes()
        store.remove([Ref(MEMORY, "ann", f"m{number}", 1)])
        costs.append(written_bytes() - before)
    store.close()
    figures |= {"memories": size, "most": max(costs)}
    assert max(costs) <= 512 * 1024


@pytest.mark.thorough
def test_forgetting_leaves_no_prefix_of_a_word_in_the_page_table(tmp_path: Path) -> None:
    """The table finds a page by a prefix of the word that was the page's first when it was
    written.
    """
    drawn, path = random.Random(11), tmp_path / "memories.db"
    store = SQLiteStore(path, None)
    words = [f"key{number:05}" for number in range(1_600)]
    for some in by_count(drawn.sample(words, len(words)), 20):
        store.append([record(word, text=f"{word} is common", vectors=None) for word in some])
    results = [
        key.partition("z")[2]
        for (key,) in run(path, "SELECT CAST(term AS TEXT) FROM words_idx WHERE term > x''")
    ]
    first = {word for word in words if word.startswith(tuple(results))}
    assert len(first) > 8
    store.remove([Ref(MEMORY, "ann", word, 1) for word in sorted(first)])
    left = [*sorted({*words} - first), "is", "common"]
    results = [
        key.partition("z")[2]
        for (key,) in run(path, "SELECT CAST(term AS TEXT) FROM words_idx WHERE term > x''")
    ]
    assert [key for key in results if not any(word.startswith(key) for word in left)] == []
    assert by_words(store, ["key*"], k=len(words)).keys() == {*words} - first
    assert list(store.check(deep=True)) == []
    store.close()
    content = path.read_bytes()
    assert [word for word in first if word.encode() in content] == []


def test_forgetting_erases_segments_that_a_merge_used_up(tmp_path: Path) -> None:
    """A merge takes several writes; a segment that it has read completely stays until the merge
    ends.
    """
    drawn, path = random.Random(12), tmp_path / "memories.db"
    store = SQLiteStore(path, None)
    rare = [f"{drawn.getrandbits(60):x}" for _ in range(40)]
    early = [record(f"early{at}", text=word, vectors=None) for at, word in enumerate(rare)]
    late = [f"zz{drawn.getrandbits(60):x}" for _ in range(20_000)]
    store.append(early)
    for some in by_count(late, 5_000):
        store.append([record(some[0], text=" ".join(some), vectors=None)])
    run(path, "INSERT INTO words (words, rank) VALUES ('merge', -1)")  # a part of the merge
    with store._file.read() as db:
        assert 0 in sqlite_words.read_segments(db, "words").values()
    store.remove([entry.ref for entry in early])
    assert list(store.check(deep=True)) == []
    store.close()
    content = path.read_bytes()
    assert [word for word in rare if word[2:].encode() in content] == []


@pytest.mark.parametrize(
    "damage", [True, False], ids=["a damaged text", "another version of Unicode"]
)
def test_forgetting_erases_words_of_a_damaged_text(
    tmp_path: Path, damage: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memories.db"
    store = SQLiteStore(path, SPACE)
    store.append(
        [
            record("m", text="the quixotrumpel and the wolfrenbittel"),
            record("n", text="the other one"),
        ]
    )
    if damage:
        run(path, "UPDATE record SET text = 'the x' WHERE seq = 1")
    else:
        tokens_of = sqlite_words.tokens_of
        monkeypatch.setattr(
            sqlite_words,
            "tokens_of",
            lambda entry: [token.replace("wolf", "wulf") for token in tokens_of(entry)],
        )
    store.remove([Ref(MEMORY, "ann", "m", 1)])
    assert by_words(store, ["the"]).keys() == {"n"}
    assert list(store.check(deep=True)) == []
    store.close()
    content = path.read_bytes()
    assert b"umpel" not in content
    assert b"ittel" not in content


@pytest.mark.parametrize(
    ("seed", "count"), [(5, 150), pytest.param(2, 300, marks=pytest.mark.thorough)]
)
def test_forgetting_erases_the_copies_that_sqlite_leaves_when_it_moves_rows(
    tmp_path: Path, seed: int, count: int
) -> None:
    """A growing row may push others onto the next page, and their copies stay in the unused middle
    of the first page. Without overwriting these, words would be left with these seeds.
    """
    drawn, path = random.Random(seed), tmp_path / "memories.db"
    store = SQLiteStore(path, SPACE)
    words: dict[Ref, list[str]] = {}
    for number in range(count):
        entry = record(
            f"m{number}",
            text=" ".join(f"{drawn.getrandbits(60):x}" for _ in range(drawn.choice((2, 9, 30)))),
        )
        store.append([entry])
        words[entry.ref] = entry.text.split()
        if drawn.random() < 0.3:
            changed = drawn.choice(sorted(words))
            store.patch(
                [Patch(changed, entry.created_at, "update", {"mark": "x" * drawn.randrange(90)})]
            )
    gone = drawn.sample(sorted(words), count * 2 // 3)
    for some in by_count(gone, 20):
        store.remove(some)
    store.close()
    content = path.read_bytes()
    assert [word for ref in gone for word in words[ref] if word[1:].encode() in content] == []
    left = store.read(sorted(words.keys() - {*gone}))
    assert {entry.ref: entry.text.split() for entry in left} == {
        ref: words[ref] for ref in words.keys() - {*gone}
    }
    assert list(store.check(deep=True)) == []
    store.close()


@pytest.mark.parametrize("seed", [1, pytest.param(8, marks=pytest.mark.thorough)])
def test_forgetting_erases_copies_of_short_texts_and_of_ends_of_texts(
    tmp_path: Path, seed: int
) -> None:
    """The text is a PIN of four digits, alone and after a long text. With these seeds SQLite leaves
    copies.
    """
    drawn, path = random.Random(seed), tmp_path / "memories.db"
    store = SQLiteStore(path, SPACE)
    texts: dict[Ref, str] = {}
    for number in range(200):
        text = f"do {1000 + 7 * number}"
        if drawn.random() < 0.5:
            text = " ".join(f"{drawn.getrandbits(50):x}" for _ in range(40)) + f" is {text}"
        entry = record(f"m{number}", text=text)
        store.append([entry])
        texts[entry.ref] = text
        if drawn.random() < 0.3:
            grown = Patch(
                drawn.choice(sorted(texts)),
                entry.created_at,
                "update",
                {"mark": "x" * drawn.randrange(400)},
            )
            store.patch([grown])
    gone = drawn.sample(sorted(texts), 60)
    for ref in gone:
        store.remove([ref])
    store.close()
    content = path.read_bytes()
    assert [texts[ref] for ref in gone if texts[ref][-7:].encode() in content] == []


def test_copies_of_short_texts_are_erased_even_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memories.db"
    store = SQLiteStore(path, SPACE)
    store.append(
        [
            record(f"m{number}", text=f"sentinel{number:03} and some more words")
            for number in range(200)
        ]
    )
    for number in range(0, 200, 3):
        store.patch([Patch(Ref(MEMORY, "ann", f"m{number}", 1), None, None, {"mark": "x" * 60})])
    with monkeypatch.context() as patched:
        patched.setattr(SQLiteFile, "erase_leftover_bytes", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.remove([Ref(MEMORY, "ann", f"m{number}", 1) for number in range(200)])
    store.remove([])
    store.close()
    assert b"sentinel" not in path.read_bytes()


# --- failures after the commit


class Failing:
    """A trace of all SQLite connections that fails the statement with a given number after an
    erasing commit.
    """

    def __init__(self, number: int) -> None:
        self.number, self.erased, self.seen, self.failed = number, False, 0, False
        self.removing = False

    def __call__(self, _: Any, sql: str, __: Any) -> bool:
        self.removing |= sql.startswith("DELETE FROM record ")
        if self.erased and not sql.startswith("ROLLBACK"):
            self.seen += 1
            if self.seen == self.number:
                self.failed = True
                raise apsw.FullError("database or disk is full")
        self.erased |= self.removing and sql == "COMMIT"
        return True


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Failing]:
    """Return a function that makes a later statement fail."""

    def install(number: int) -> Failing:
        failing = Failing(number)
        monkeypatch.setattr(
            apsw, "connection_hooks", [lambda db: setattr(db, "exec_trace", failing)]
        )
        return failing

    return install


def test_overwriting_ends_with_a_flush_and_excludes_other_writers(
    path: Path, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    store.append([record(f"m{n}", text=f"note {n} " * (n % 40)) for n in range(200)])
    foreign = apsw.Connection(str(path))

    class Noted(apsw.VFSFile):
        """A store's file that records writes and flushes."""

        def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
            with try_lock(Path(f"{path}.lock"), 0) as is_free, pytest.raises(apsw.BusyError):
                assert not is_free
                foreign.execute("BEGIN IMMEDIATE")
            return bytes(super().xRead(amount, offset))

        def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
            steps.append("write")
            super().xWrite(data, offset)

        def xSync(self, flags: int) -> None:  # noqa: N802
            steps.append("sync")
            super().xSync(flags)

    monkeypatch.setattr(apsw, "VFSFile", Noted)
    store.remove([Ref(MEMORY, "ann", f"m{n}", 1) for n in range(0, 200, 3)])
    foreign.close()
    assert {*steps[:-1]} == {"write"}
    assert steps[-1] == "sync"


ERASED = {
    "forget": ["quixotrumpel"],
    "forget_where": ["quixotrumpel"],
    "forget_turns": ["zebrafinch"],
    "forget_turns with_memories": ["quixotrumpel", "zebrafinch"],
    "delete_namespace": ["quixotrumpel", "zebrafinch"],
}
ERASING: dict[str, Callable[[Memories, str], object]] = {
    "forget": lambda memories, memory_id: memories.forget(memory_id),
    "forget_where": lambda memories, _: memories.forget_where("project = alpha"),
    "forget_turns": lambda memories, _: memories.forget_turns("talk"),
    "forget_turns with_memories": lambda memories, _: memories.forget_turns(
        "talk", with_memories=True
    ),
    "delete_namespace": lambda memories, _: delete(memories._store, memories.config, "shared"),
}


FILES = "files:///{}/files"  # these take five times as many statements
SQLITE = "sqlite:///{}/memories.db"
IN_STEPS = [  # the step between tried statements; for one verb every statement is tried
    (SQLITE, "forget", 1),
    (SQLITE, "forget_where", 7),
    (SQLITE, "forget_turns", 5),
    (SQLITE, "forget_turns with_memories", 13),
    (SQLITE, "delete_namespace", 13),
    (FILES, "forget", 23),
    *(
        pytest.param(SQLITE, verb, 1, marks=pytest.mark.thorough)
        for verb in ERASING
        if verb != "forget"
    ),
    *(
        pytest.param(FILES, verb, 23, marks=pytest.mark.thorough)
        for verb in ERASING
        if verb != "forget"
    ),
]


def config_of(folder: Path, url: str) -> Config:
    """Return the configuration of the store of a URL in a folder."""
    environment = {
        "MEMORY_HOME": str(folder),
        "MEMORY_STORE": url.format(folder),
        "EMBEDDER": "fake",
    }
    return load_config(environment=environment, folder=folder)


@pytest.mark.first(5)
@pytest.mark.parametrize(("url", "verb", "step"), IN_STEPS)
def test_a_failure_after_the_commit_of_an_erasure_is_reported_as_such(
    tmp_path: Path, url: str, verb: str, step: int, fail: Callable[[int], Failing]
) -> None:
    filled = tmp_path / "filled"
    filled.mkdir(mode=0o700)
    with Memories(config=config_of(filled, url)) as memories:
        memories.add_turns("talk", [TurnDraft("the zebrafinch was said")])
        made = memories.create("the quixotrumpel", tags={"project": "alpha"}, source="talk").memory
        assert made is not None
        memories.create("it stays")
    for number in range(1, 1_000, step):
        folder = tmp_path / str(number)
        shutil.copytree(filled, folder)
        config = config_of(folder, url)
        failing = fail(number)
        memories = Memories(config=config)
        try:
            ERASING[verb](memories, made.id)
        except ErasureUnfinished as exc:
            told = str(exc)
        else:
            told = ""
        memories.close()
        fail(0)
        again = Memories(config=config)
        if failing.failed and told:
            assert told.endswith("; forget it again"), (number, told)
            assert "nothing was" not in told
            if "only a part" not in told and "may or may not" not in told:
                with contextlib.suppress(NotFound):
                    ERASING[verb](again, made.id)
        elif failing.failed:  # the failed statement may only count for metadata.json
            files = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
            assert [word for word in ERASED[verb] if word.encode() in files] == [], number
        if "turns" not in verb:
            assert made.id not in {entry.id for entry in again.list().memories}
        again.close()
        if not failing.failed:
            assert number > 3
            return
        shutil.rmtree(folder)
    raise AssertionError("it never came to an end")


def test_a_failure_before_the_commit_of_an_erasure_is_an_ordinary_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories = Memories(f"sqlite:///{tmp_path}/memories.db", embedder="fake")
    made = memories.create("the quixotrumpel").memory
    assert made is not None

    def full(_: Any, sql: str, __: Any) -> bool:
        if sql.startswith("DELETE FROM record "):
            raise apsw.FullError("database or disk is full")
        return True

    store = memories._store.wrapped  # type: ignore[attr-defined]
    store._file._connection().exec_trace = full
    with pytest.raises(StoreError, match="nothing was written") as raised:
        memories.forget(made.id)
    assert not isinstance(raised.value, ErasureUnfinished)
    assert memories.get(made.id).content == "the quixotrumpel"
    memories.close()


IS_FREE = """
import fcntl, sys
with open(sys.argv[1], "rb+") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)  # held while the file is in use
    except OSError:
        print("in use")
"""


@pytest.mark.skipif(os.name != "posix", reason="SQLite uses POSIX locks")
@pytest.mark.parametrize("scheme", ["sqlite", "files"])
def test_looking_for_backups_does_not_release_locks_of_the_open_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_python: RunPython, scheme: str
) -> None:
    """Without the lock, the next process truncates the shared memory, and this one crashes."""
    monkeypatch.setenv("MEMORY_HOME", str(tmp_path))
    monkeypatch.setenv("MEMORY_STORE", f"{scheme}:///{tmp_path}/memories.db")
    with Memories(embedder="fake") as memories:
        memories.create("Ann's recipe for apple pie")
        other = memories.create("The harbor closes at nine")
        requests = FileClaims(file_of(load_config()))
        parts = sorted(tmp_path.glob("*-shm"))
        assert len(parts) == (2 if scheme == "sqlite" else 1)
        for action in (lambda: None, lambda: memories.forget(str(other.id))):
            action()
            for part in parts:
                assert run_python(IS_FREE, part).stdout == "in use\n"
        requests.close()
