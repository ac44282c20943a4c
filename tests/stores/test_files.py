"""The files store passes the contract; also tests of lines that others read and write, locks,
crashes and merges.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest

pytest.register_assert_rewrite("contract")

from contract import (  # noqa: E402 - after its assertions are rewritten
    HISTORY,
    MEMORY,
    SPACE,
    OpenStore,
    StoreContract,
    at,
    by_words,
    embed,
    everything,
    pool,
    record,
    search,
    turn,
    turns,
)

from memories.errors import Conflict, RequestError, StoreBusy, StoreDamaged, StoreError  # noqa: E402
from memories.memories import Memories  # noqa: E402
from memories.models import LogCheck  # noqa: E402
from memories.stores.files import connection  # noqa: E402
from memories.stores.files.log import file_name, namespace_of  # noqa: E402
from memories.stores.files.store import FilesStore  # noqa: E402
from memories.stores.records import (  # noqa: E402
    SPEAKER,
    Patch,
    Ref,
    Space,
    TurnQuery,
)
from memories.stores.sqlite.quantize import Quantizer  # noqa: E402
from opening import opening  # noqa: E402

RunPython = Callable[..., subprocess.CompletedProcess[str]]

# The beginning of every script that runs in a separate process. `crashing` runs an action in a
# process that is killed at its first operation on the disk, then at its second, and so on until the
# action ends; `check` runs after each.
STORE = """
import os, signal, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
from datetime import UTC, datetime
from pathlib import Path
from memories.embedders.fake import FakeEmbedder
from memories.errors import MemoriesError
from memories.stores.records import Collection, Filter, Patch, Record, Ref
from memories.stores.files.store import FilesStore
SPACE, MEMORY, HISTORY = FakeEmbedder.space, Collection.MEMORY, Collection.HISTORY
folder = Path(sys.argv[1])

def note(group, position=1, collection=MEMORY, namespace="ann", **values):
    text = values.pop("text", f"note {group} {position}")
    values.setdefault("vectors", FakeEmbedder().embed(text))
    ref, written_at = Ref(collection, namespace, group, position), datetime(2026, 1, 1, tzinfo=UTC)
    return Record(ref, text, written_at, **values)

def forked(act):
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException as exc:
            print(f"{type(exc).__name__}: {exc}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]

def killed_at(step, act):
    left = step
    def counting(name, real):
        def call(*given, **named):
            nonlocal left
            left -= 1
            if left == 0:
                if name == "write":
                    real(given[0], bytes(given[1])[: len(given[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **named)
        return call
    for name in ("write", "fsync", "replace", "rename", "unlink", "truncate", "mkdir"):
        setattr(os, name, counting(name, getattr(os, name)))
    act()

def crashing(prepare, act, check, every=1):
    for step in range(1, 500, every):
        prepare()
        ended = forked(lambda: killed_at(step, act))
        assert ended in (0, signal.SIGKILL), ended
        assert forked(lambda: check(ended == 0)) == 0, f"after a crash at step {step}"
        if ended == 0:
            print(step)
            return
    raise AssertionError("it never ended")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a store that doesn't exist yet."""
    return tmp_path / "notes"


@pytest.fixture
def open_store(folder: Path) -> Iterator[OpenStore]:
    """Opens the store of `folder`."""
    with opening(lambda space: FilesStore(folder, space)) as open_store:
        yield open_store


class TestFiles(StoreContract):
    """The contract on files."""


def lines(folder: Path, name: str = "ann.jsonl") -> list[dict[str, Any]]:
    """Return the objects in the lines of a file."""
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def write_file(folder: Path, *found: Mapping[str, Any] | str, name: str = "ann.jsonl") -> Path:
    """Write a file as another program would; return its path."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(
        "".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in found),
        encoding="utf-8",
    )
    return file


def foreign_line(number: int, **values: Any) -> dict[str, Any]:
    """Return a line with only the fields that the chat agent writes."""
    return {
        "updated_at": "2026-02-05T10:00:00.123456+00:00",
        "created_at": "2026-02-05T10:00:00.123456+00:00",
        "kind": "preference",
        "content": f"fact {number}",
        "user_id": "ann",
        "id": f"m{number}",
    } | values


def codes_of(text: str) -> bytes:
    """Return the code of a text's vector in the index."""
    return Quantizer(SPACE.dimension).encode(embed(text))


def all_bytes(folder: Path) -> bytes:
    """Return the bytes of all files in a folder."""
    return b"".join(file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file())


# --- lines


def test_a_memory_is_a_line_that_people_and_the_chat_agent_can_read(
    store: FilesStore, folder: Path
) -> None:
    values: dict[str, Any] = {
        "labels": {"type": "preference", "project": "käse"},
        "fields": {"confidence": 0.8, "source_turn_id": "t1", "decay": "contextual"},
    }
    store.append([record("m", text='Ann says "grüß dich" 日本\n', key="user/greeting", **values)])
    line = (folder / "ann.jsonl").read_text(encoding="utf-8")
    own = json.loads(line)
    assert line == (
        '{"id": "m", "user_id": "ann", "content": "Ann says \\"grüß dich\\" 日本\\n", '
        '"kind": "preference", "created_at": "2026-01-01T00:00:01.000Z", '
        '"updated_at": "2026-01-01T00:00:01.000Z", "confidence": 0.8, "source_turn_id": "t1", '
        '"version": 1, "key": "user/greeting", "tags": {"project": "käse"}, '
        '"fields": {"decay": "contextual"}, "op": "create", '
        f'"event": "{own["event"]}", "time": "{own["time"]}"}}\n'
    )


def test_a_line_contains_the_time_of_the_first_version(store: FilesStore, folder: Path) -> None:
    first_at = int(at(1).timestamp() * 1000)
    store.append(
        [
            record("m", 2, created_at=at(9), fields={"first_at": first_at}),
            record("n", fields={"first_at": 5}),
        ]
    )
    assert [line["created_at"] for line in lines(folder)] == [
        "2026-01-01T00:00:01.000Z",
        "1970-01-01T00:00:00.005Z",
    ]
    assert [line["updated_at"] for line in lines(folder)] == [
        "2026-01-01T00:00:09.000Z",
        "2026-01-01T00:00:01.000Z",
    ]
    assert [entry.fields for entry in store.scan(pool(), limit=9)] == [
        {"first_at": first_at},
        {"first_at": 5},
    ]


def test_turns_are_in_a_separate_file(store: FilesStore, folder: Path) -> None:
    store.append([turn(7, text="hello", labels={SPEAKER: "Ann"})])
    [line] = lines(folder, "ann.turns.jsonl")
    assert line["id"] == "talk#7"
    assert (line["conversation_id"], line["turn_index"], line["session"], line["kind"]) == (
        "talk",
        7,
        0,
        "turn",
    )
    assert not (folder / "ann.jsonl").exists()


@pytest.mark.parametrize("kind", ["memory", "turn", "fact", "", None])
def test_any_value_of_the_type_tag_is_kept(store: FilesStore, kind: str | None) -> None:
    labels = {"a": "b"} if kind is None else {"a": "b", "type": kind}
    for collection in (MEMORY, HISTORY):
        store.append([record("m", collection=collection, labels=labels)])
        assert store.scan(pool(collection=collection), limit=1)[0].labels == labels


def test_lines_of_the_chat_agent_are_memories(store: FilesStore, folder: Path) -> None:
    bare = "0b1c2d3e4f5060718293a4b5c6d7e8f9"
    write_file(
        folder,
        foreign_line(1, confidence=0.5, source_turn_id="t9"),
        foreign_line(2, id=bare.upper(), created_at="2026-02-05 09:00:00", kind="memory"),
    )
    one, two = sorted(store.scan(pool(), limit=9), key=lambda entry: entry.text)
    assert (one.ref, one.labels) == (Ref(MEMORY, "ann", "m1", 1), {"type": "preference"})
    assert one.fields == {"confidence": 0.5, "source_turn_id": "t9"}
    assert one.created_at == datetime(2026, 2, 5, 10, 0, 0, 123_000, tzinfo=UTC)
    assert (two.ref.group, two.labels) == ("0b1c2d3e-4f50-6071-8293-a4b5c6d7e8f9", {})
    assert two.fields == {"first_at": int(datetime(2026, 2, 5, 9, tzinfo=UTC).timestamp() * 1000)}
    assert by_words(store, ["fact"]).keys() == {"m1", two.ref.group}
    with Memories(store, namespace="ann", embedder="none") as memories:
        assert memories.get(bare).content == "fact 2"
        assert memories.update(bare, "another fact").version == 2


CHANGED = {
    "created_at": "2026-02-05T10:00:00.123Z",
    "ended_by": "delete",
    "confidence": 0.25,
    "op": "end",
}


def test_unknown_fields_of_a_line_stay_when_it_changes(store: FilesStore, folder: Path) -> None:
    write_file(folder, foreign_line(1, mood={"deep": [1, 2]}), foreign_line(2, note="ä"))
    before = (folder / "ann.jsonl").read_text(encoding="utf-8")
    store.patch(
        [Patch(Ref(MEMORY, "ann", "m1", 1), at(9), "delete", {"mark": 1, "confidence": 0.25})]
    )
    assert (folder / "ann.jsonl").read_text(encoding="utf-8").startswith(before)
    found = lines(folder)[-1]
    assert (
        found.items()
        >= (foreign_line(1) | {"updated_at": "2026-02-05T10:00:00.123Z"} | CHANGED).items()
    )
    assert (found["fields"], found["ended_at"]) == ({"mark": 1}, "2026-01-01T00:00:09.000Z")
    store.patch(
        [Patch(Ref(MEMORY, "ann", "m1", 1), None, None, {"mark": None, "confidence": None})]
    )
    found = lines(folder)[-1]
    assert not found.keys() & {"ended_at", "ended_by", "confidence", "fields"}
    store.remove([Ref(MEMORY, "ann", "m2", 1)])
    assert lines(folder)[0] == foreign_line(1, mood={"deep": [1, 2]}), (
        "unknown fields stay even if the file is rewritten"
    )


def test_a_new_memory_and_a_change_each_append_one_line(store: FilesStore, folder: Path) -> None:
    store.append([record("m1"), record("m2"), record("m3")])
    before = (folder / "ann.jsonl").read_bytes()
    inode = (folder / "ann.jsonl").stat().st_ino
    store.append([record("m4")])
    assert (folder / "ann.jsonl").read_bytes().startswith(before)
    assert (folder / "ann.jsonl").stat().st_ino == inode
    store.patch([Patch(Ref(MEMORY, "ann", "m2", 1), at(9), "delete", {})])
    now = (folder / "ann.jsonl").read_bytes()
    assert now.startswith(before)
    assert [line["id"] for line in lines(folder)] == ["m1", "m2", "m3", "m4", "m2"]
    assert (folder / "ann.jsonl").stat().st_ino == inode


def test_git_ignores_derived_files(store: FilesStore, folder: Path) -> None:
    store.append([record("m")])
    store.touch([Ref(MEMORY, "ann", "m", 1)])
    assert sorted(part.name for part in folder.iterdir()) == [".memories", "ann.jsonl"]
    assert (folder / ".memories" / ".gitignore").read_text() == "*\n"


def test_only_the_owner_can_read_the_files(store: FilesStore, folder: Path) -> None:
    store.append([record("m"), turn(1)])
    modes = {
        part.stat().st_mode & 0o077
        for part in [folder, *folder.rglob("*")]
        if part.name != ".gitignore"
    }
    assert modes == {0}


def test_a_world_writable_folder_is_refused(store: FilesStore, folder: Path) -> None:
    store.append([record("m")])
    folder.chmod(0o777)
    with pytest.raises(StoreError, match="chmod o-w"):
        store.append([record("n")])
    assert store.count(pool()) == 1
    folder.chmod(0o1777)
    store.append([record("n")])


def test_a_world_writable_folder_is_refused_at_the_first_write(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(StoreError, match="chmod o-w"):
        FilesStore(folder, SPACE).append([record("m")])
    assert list(folder.iterdir()) == []


def test_a_read_only_folder_is_read_and_not_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(folder, foreign_line(1))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    store = FilesStore(folder, SPACE)
    assert by_words(store, ["fact"]).keys() == {"m1"}
    store.touch([Ref(MEMORY, "ann", "m1", 1)])
    store.close()
    assert [part.name for part in folder.iterdir()] == ["ann.jsonl"]


def test_changed_permissions_of_a_file_are_kept(store: FilesStore, folder: Path) -> None:
    store.append([record("m")])
    (folder / "ann.jsonl").chmod(0o640)
    store.patch([Patch(Ref(MEMORY, "ann", "m", 1), at(9), "delete", {})])
    assert (folder / "ann.jsonl").stat().st_mode & 0o777 == 0o640


# --- names of files

NAMES = (
    "ann ANN Ann an%6e ann.turns ann.turns.turns ann.jsonl x.moved . .. .a a.b-c_d con CON con.x "
    "nul com1 com10"
).split()
NAMES += [
    "",
    " ",
    "a b",
    "a/b",
    "../x",
    "%",
    "%%",
    "%41",
    "日本",
    "é",
    "e\u0301",
    "a\nb",
    "ann ",
    "ann.",
    "-",
    "shared",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_name_identifies_its_namespace(name: str) -> None:
    for collection in (MEMORY, HISTORY):
        file = file_name(collection, name)
        assert namespace_of(file, collection) == name
        assert namespace_of(file, HISTORY if collection is MEMORY else MEMORY) is None
        assert "/" not in file
        assert not file.startswith(".")
        assert file == file.lower()


def test_no_two_namespaces_share_a_file() -> None:
    files = [file_name(collection, name) for name in NAMES for collection in (MEMORY, HISTORY)]
    assert len(set(files)) == 2 * len(set(NAMES))


def test_namespaces_with_any_names_are_separate(store: FilesStore, folder: Path) -> None:
    for name in NAMES:
        store.append([record("m", namespace=name, text=f"of {name!r}"), turn(1, namespace=name)])
    assert store.namespaces(MEMORY) == store.namespaces(HISTORY) == sorted(NAMES)
    for name in NAMES:
        assert [entry.text for entry in store.scan(pool(name), limit=9)] == [f"of {name!r}"]
    assert {part.parent for part in folder.rglob("*")} == {folder, folder / ".memories"}


@pytest.mark.parametrize(
    "name", ["Ann.jsonl", "a%.jsonl", "%zz.jsonl", "%c3.jsonl", "%61.jsonl", "ann.json", ".jsonl"]
)
def test_another_programs_file_is_not_a_namespace(
    store: FilesStore, folder: Path, name: str
) -> None:
    write_file(folder, foreign_line(1), name=name)
    assert store.namespaces(MEMORY) == store.namespaces(HISTORY) == []


# --- damage

BROKEN: dict[str, bytes] = {
    "no JSON": b'{"id": "m1", \n',
    "no object": b"[1, 2]\n",
    "two in a line": (
        json.dumps(foreign_line(1)) + "," + json.dumps(foreign_line(2)) + "\n"
    ).encode(),
    "a field is missing": (
        json.dumps({"id": "m1", "user_id": "ann", "content": "x"}) + "\n"
    ).encode(),
    "another user": (json.dumps(foreign_line(1, user_id="bob")) + "\n").encode(),
    "no time": (json.dumps(foreign_line(1, created_at="yesterday")) + "\n").encode(),
    "content is missing or not a string": (json.dumps(foreign_line(1, content=5)) + "\n").encode(),
    "tags are no texts": (json.dumps(foreign_line(1, tags={"a": 1})) + "\n").encode(),
    "fields are no object": (json.dumps(foreign_line(1, fields=[1])) + "\n").encode(),
    "half a character": (json.dumps(foreign_line(1, content="\ud800")) + "\n").encode(),
    "a key twice": json.dumps(foreign_line(1))
    .replace("{", '{"content": "another text", ', 1)
    .encode()
    + b"\n",
    "no version": (json.dumps(foreign_line(1, version="one")) + "\n").encode(),
    "too deep": b"[" * 100_000 + b"\n",
    "not UTF-8": json.dumps(foreign_line(1), ensure_ascii=False)
    .replace("fact", "fäct")
    .encode("latin-1")
    + b"\n",
}


@pytest.mark.parametrize("grown", [False, True])
@pytest.mark.parametrize("what", BROKEN)
def test_a_damaged_file_causes_a_warning_and_reads_as_empty_without_change(
    store: FilesStore, folder: Path, caplog: pytest.LogCaptureFixture, what: str, grown: bool
) -> None:
    file = write_file(folder, foreign_line(7), foreign_line(8))
    if grown:
        assert store.count(pool()) == 2
    data = file.read_bytes() + BROKEN[what] + json.dumps(foreign_line(9)).encode() + b"\n"
    file.write_bytes(data)
    store.append([record("b", namespace="bob")])
    assert store.count(pool()) == 0
    assert everything(store, pool("ann", "bob"))[0].ref.namespace == "bob"
    assert search(store, "fact") == {}
    [warning] = caplog.records
    assert warning.levelname == "WARNING"
    assert f"{file}:3 " in warning.getMessage()
    assert "fact" not in warning.getMessage()
    ref = Ref(MEMORY, "ann", "m7", 1)
    for write in (
        lambda: store.append([record("n")]),
        lambda: store.patch([Patch(ref, at(9), "delete", {})]),
        lambda: store.remove([ref]),
        lambda: store.append([record("c", namespace="bob"), record("n")]),
    ):
        with pytest.raises(StoreDamaged, match=r"ann\.jsonl:3 can't be read"):
            write()
    store.touch([ref])
    assert file.read_bytes() == data
    assert [entry.ref.group for entry in everything(store, pool("bob"))] == ["b"]
    assert store.append([turn(1)]) is None  # its other file is sound
    write_file(folder, foreign_line(7))
    assert store.count(pool()) == 1


READS: dict[str, Callable[[FilesStore], object]] = {
    "scan": lambda store: store.scan(pool("bob", "ann"), limit=9),
    "groups": lambda store: store.groups(pool(), limit=9),
    "count": lambda store: store.count(pool()),
    "labels": lambda store: store.labels(pool(), None),
    "values": lambda store: store.values(MEMORY, ["ann"], "type"),
    "read": lambda store: store.read([Ref(MEMORY, "ann", "m1", 1)]),
    "vectors": lambda store: store.vectors([Ref(MEMORY, "ann", "m1", 1)]),
    "candidates": lambda store: store.candidates(pool(), vector=None, terms=["fact"], k=5),
    "matches": lambda store: store.matches(pool(), TurnQuery(None, ["fact"], k=5)),
    "unstaged": lambda store: store.unstaged(SPACE, MEMORY, limit=9),
    "switch": lambda store: store.switch(SPACE._replace(model="other/1")),
}


@pytest.mark.parametrize("name", READS)
def test_a_damaged_file_does_not_read_as_empty_in_a_transaction(
    store: FilesStore, folder: Path, name: str
) -> None:
    store.append([record("b", namespace="bob")])
    file = write_file(folder, foreign_line(1), "<<<<<<< HEAD", foreign_line(2))
    with (
        pytest.raises(
            StoreDamaged, match=rf"{file}:2 can't be read: it is not JSON .*; repair the line"
        ),
        store.transaction(),
    ):
        READS[name](store)
    if name != "switch":
        READS[name](store)
    with store.transaction():
        assert store.count(pool("bob")) == 1
        assert store.namespaces(MEMORY) == ["ann", "bob"]
    assert store.namespaces(MEMORY) == ["ann", "bob"]


def test_a_damaged_file_makes_the_status_fail(store: FilesStore, folder: Path) -> None:
    store.append([turn(1)])
    write_file(folder, foreign_line(1), "<<<<<<< HEAD")
    with pytest.raises(StoreDamaged, match=r"ann\.jsonl:2"):
        store.info(pool("bob", "ann"))
    with pytest.raises(StoreDamaged, match=r"ann\.jsonl:2"), store.transaction():
        store.info(pool())
    assert store.info(turns()).without_vector_count == 0
    assert store.info(pool("bob")).erasing is False
    with (
        pytest.raises(StoreDamaged),
        Memories(store=store, namespace="ann", embedder="none") as memories,
    ):
        memories.status()


def test_a_transaction_sees_the_new_namespace_that_it_writes(store: FilesStore) -> None:
    with store.transaction():
        store.append([record("n", namespace="new")])
        assert store.namespaces(MEMORY) == ["new"]
        assert store.namespaces(HISTORY) == []


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_a_folder_link_or_pipe_is_not_touched(
    store: FilesStore, folder: Path, tmp_path: Path, kind: str
) -> None:
    store.append([record("b", namespace="bob")])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(json.dumps(foreign_line(1)) + "\n")
    place = folder / "ann.jsonl"
    {
        "folder": place.mkdir,
        "link": lambda: place.symlink_to(elsewhere),
        "pipe": lambda: os.mkfifo(place),
    }[kind]()
    for act in (
        lambda: store.count(pool()),
        lambda: store.namespaces(MEMORY),
        lambda: store.append([record("m")]),
    ):
        with pytest.raises(
            StoreError, match=rf"cannot read {place}: .*; make it a regular file that you may read"
        ):
            act()
    assert store.count(pool("bob")) == 1
    assert elsewhere.read_text() == json.dumps(foreign_line(1)) + "\n"


def test_a_file_without_read_permission_does_not_read_as_empty(
    store: FilesStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_file(folder, foreign_line(1))
    real = os.open

    def opening(path: Any, *given: Any, **named: Any) -> int:
        if Path(path) == file:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *given, **named)

    monkeypatch.setattr(os, "open", opening)
    with pytest.raises(
        StoreError,
        match=r"cannot read .*ann\.jsonl: Permission denied; make it a regular file that you may",
    ):
        store.count(pool())
    monkeypatch.undo()
    assert store.count(pool()) == 1


def test_a_truncated_last_line_is_ignored_and_removed_by_the_next_write(
    store: FilesStore, folder: Path
) -> None:
    store.append([record("m1"), record("m2")])
    whole = (folder / "ann.jsonl").read_bytes()
    torn = (
        whole.splitlines(keepends=True)[0]
        .replace(b'"m1"', b'"m3"')
        .replace(b"note", "nöte".encode())
    )
    for size in range(1, len(torn) - 2):
        (folder / "ann.jsonl").write_bytes(whole + torn[:size])
        assert [entry.ref.group for entry in FilesStore(folder, SPACE).scan(pool(), limit=9)] == [
            "m1",
            "m2",
        ]
    store.append([record("m4")])
    assert (folder / "ann.jsonl").read_bytes().startswith(whole)
    assert [line["id"] for line in lines(folder)] == ["m1", "m2", "m4"]


def test_a_complete_last_line_without_a_newline_is_read(store: FilesStore, folder: Path) -> None:
    """Editors and some programs leave it out."""
    file = write_file(folder, foreign_line(1), foreign_line(2))
    file.write_bytes(file.read_bytes()[:-1])
    assert store.count(pool()) == 2
    store.append([record("m3")])
    assert [line["id"] for line in lines(folder)] == ["m1", "m2", "m3"]


def test_empty_lines_and_windows_line_endings_are_accepted(store: FilesStore, folder: Path) -> None:
    write_file(folder, json.dumps(foreign_line(1)) + "\r", "", "  ", foreign_line(2))
    assert store.count(pool()) == 2


# --- other programs


def test_lines_from_another_program_are_read_immediately(store: FilesStore, folder: Path) -> None:
    file = write_file(folder, foreign_line(1))
    assert store.count(pool()) == 1
    with file.open("a") as opened:
        opened.write(json.dumps(foreign_line(2)) + "\n")
    assert store.count(pool()) == 2
    write_file(folder, foreign_line(3))
    assert [entry.ref.group for entry in store.scan(pool(), limit=9)] == ["m3"]
    file.unlink()
    assert store.count(pool()) == 0


@pytest.mark.parametrize("count", [1, 2])
def test_concurrent_changes_by_another_program_are_not_overwritten(
    store: FilesStore, folder: Path, count: int
) -> None:
    file = write_file(folder, foreign_line(1))
    with (
        pytest.raises(StoreBusy, match=r"ann\.jsonl was changed by another program"),
        store.transaction(),
    ):
        store.append([record(f"n{number}") for number in range(count)])
        with file.open("a") as opened:
            opened.write(json.dumps(foreign_line(2)) + "\n")
    assert [line["id"] for line in lines(folder)] == ["m1", "m2"]
    assert not list((folder / ".memories").glob("*.new"))
    store.append([record("n")])
    assert [line["id"] for line in lines(folder)] == ["m1", "m2", "n"]


OWN = {"op", "event", "time"}


def test_after_a_merge_equal_lines_count_once_and_different_versions_are_kept(
    store: FilesStore, folder: Path
) -> None:
    """Two branches each wrote a second version, one of them ended the first, and the merge kept all
    lines.
    """
    store.append([record("m", key="k", labels={"a": "1"}), record("other")])
    one, other = ({name: line[name] for name in line.keys() - OWN} for line in lines(folder))
    ended = one | {"ended_at": "2026-01-01T00:00:05.000Z", "ended_by": "update"}
    mine = one | {"version": 2, "content": "mine", "updated_at": "2026-01-01T00:00:05.000Z"}
    theirs = mine | {"content": "theirs", "updated_at": "2026-01-01T00:00:06.000Z"}
    write_file(folder, one, ended, mine, theirs, other, other)
    found = [
        (entry.ref.position, entry.text, entry.ended_by)
        for entry in everything(store, pool(group="m"))
    ]
    assert found == [(1, "note m 1", "update"), (2, "mine", "update"), (3, "theirs", None)]
    assert store.count(pool(state="any")) == 4
    with pytest.raises(Conflict):
        store.append([record("m", 3)])
    store.append([record("m", 4, text="last")])
    assert [entry.text for entry in everything(FilesStore(folder, None), pool(group="m"))] == [
        "note m 1",
        "mine",
        "theirs",
        "last",
    ]
    store.patch([Patch(Ref(MEMORY, "ann", "m", 3), at(9), "update", {})])
    versions = [
        (entry.text, entry.ref.position, entry.ended_at)
        for entry in everything(store, pool(group="m"))
    ]
    assert versions[2:] == [("theirs", 3, at(9)), ("last", 4, None)]


def test_a_line_edited_by_hand_has_no_vector_until_one_is_staged(
    store: FilesStore, folder: Path
) -> None:
    store.append([record("m", text="red apple"), record("n", text="pear")])
    (folder / "ann.jsonl").write_text(
        (folder / "ann.jsonl").read_text().replace("red apple", "green apple")
    )
    assert store.info(pool()).without_vector_count == 1
    found = search(store, "green apple")["m"]
    assert (found.similarity, found.word_score > 0) == (None, True)
    [entry] = store.unstaged(SPACE, MEMORY, limit=9)
    store.stage(SPACE, {entry.ref: np.eye(1, SPACE.dimension, dtype=np.float32)})
    assert store.info(pool()).without_vector_count == 0


def test_deleting_the_derived_files_loses_no_memory(open_store: OpenStore, folder: Path) -> None:
    store = open_store(SPACE)
    store.append([record("m"), turn(1)])
    store.touch([Ref(MEMORY, "ann", "m", 1)])
    shutil.rmtree(folder / ".memories")
    for again in (store, open_store(SPACE)):
        assert [entry.accesses for entry in again.scan(pool(), limit=9)] == [0]
        assert again.count(turns()) == 1
        assert (again.info(pool()).model, again.info(pool()).without_vector_count) == (None, 1)
    store.append([record("n")])
    assert open_store(SPACE).info(pool()).without_vector_count == 1


def test_a_write_whose_lines_are_stored_succeeds_even_if_the_index_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error would falsely say that nothing was written."""
    memories = Memories(f"files:///{tmp_path}/files", embedder="fake")
    memories.create("a first one")
    commit, full = connection.Folder.commit, False

    def trace(_: Any, sql: str, __: Any) -> bool:
        if full and sql.startswith(("INSERT", "UPDATE", "DELETE", "BEGIN IMMEDIATE")):
            raise apsw.FullError("database or disk is full")
        return True

    def commit_then_fill(*given: Any, **named: Any) -> None:
        nonlocal full
        commit(*given, **named)
        full = True

    index = memories._store.wrapped._files.index  # type: ignore[attr-defined]
    index._file._connection().exec_trace = trace
    monkeypatch.setattr(connection.Folder, "commit", commit_then_fill)
    made = memories.create("the quixotrumpel").memory
    full = False
    assert made is not None
    assert memories.update(made.id, "the wolfrenbittel").content == "the wolfrenbittel"
    full = False
    memories.close()
    memories = Memories(f"files:///{tmp_path}/files", embedder="fake")
    assert [found.content for found in memories.history(made.id).versions] == [
        "the quixotrumpel",
        "the wolfrenbittel",
    ]
    assert [hit.memory.id for hit in memories.search("wolfrenbittel")] == [made.id]
    memories.close()


def test_a_damaged_index_is_reported_and_can_be_removed(
    open_store: OpenStore, folder: Path
) -> None:
    store = open_store(SPACE)
    store.append([record("m")])
    store.close()
    index = folder / ".memories" / "index.db"
    for data in (b"no database" * 1_000, b""):
        index.write_bytes(data)
        for use in (
            lambda: search(open_store(SPACE), "note"),
            lambda: open_store(SPACE).append([record("n")]),
        ):
            with pytest.raises(
                StoreDamaged, match=r"remove .*\.memories \(no memory is lost\).*memory reembed"
            ):
                use()
    shutil.rmtree(folder / ".memories")
    assert open_store(SPACE).count(pool()) == 1


def test_vectors_rewritten_by_another_process_are_read_again(open_store: OpenStore) -> None:
    reader, writer = open_store(SPACE), open_store(SPACE)
    writer.append([record("m0"), record("m1", text="apple")])
    assert search(reader, "apple")["m1"].similarity == pytest.approx(1.0, abs=0.01)
    writer.remove([Ref(MEMORY, "ann", "m0", 1)])
    for number in range(2, 9):
        writer.append([record(f"m{number}")])
    assert reader.info(pool()).without_vector_count == 0
    assert search(reader, "note m8 1")["m8"].similarity == pytest.approx(1.0, abs=0.01)


def test_an_acknowledged_write_was_flushed(
    store: FilesStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (flushed.append(os.fstat(fd).st_ino), real(fd)))
    store.append([record("m1")])
    assert {part.stat().st_ino for part in (folder, folder / "ann.jsonl", folder.parent)} <= set(
        flushed
    )
    for write in (
        lambda: store.append([record("m2")]),
        lambda: store.append([record("m3"), record("m4")]),
        lambda: store.patch([Patch(Ref(MEMORY, "ann", "m3", 1), at(9), "delete", {})]),
    ):
        flushed.clear()
        write()
        assert (folder / "ann.jsonl").stat().st_ino in flushed


# --- erasing


def test_a_removed_record_leaves_no_bytes(store: FilesStore, folder: Path) -> None:
    store.append(
        [record("keep"), record("gone", text="a zanzibar secret", labels={"who": "xylophone"})]
    )
    store.append([turn(1, text="a zanzibar secret"), turn(2)])
    (folder / ".memories" / "ann.jsonl.0000.new").write_text(
        "a zanzibar secret"
    )  # as left by a crash
    refs = [Ref(MEMORY, "ann", "gone", 1), Ref(HISTORY, "ann", "talk", 1)]
    store.touch(refs)
    store.stage(
        Space("other/1", 8, 0, 0, 0, 0, (0, 0)),
        {ref: np.eye(1, 8, dtype=np.float32) for ref in refs},
    )
    codes = [codes_of("a zanzibar secret"), Quantizer(8).encode(np.eye(1, 8, dtype=np.float32))]
    assert all(code in all_bytes(folder) for code in codes)
    assert store.remove(refs) == ()
    left = all_bytes(folder)
    for secret in (b"zanzibar", b"xylophone", b"gone", *codes):
        assert secret not in left
    assert not store.info(pool()).erasing
    assert store.info(pool()).without_vector_count == 0


def test_the_next_removal_finishes_an_interrupted_removal(
    run_python: RunPython, folder: Path
) -> None:
    script = """
import shutil
def prepare():
    shutil.rmtree(folder, ignore_errors=True)
    store = FilesStore(folder, SPACE)
    turn = note("turn", collection=HISTORY, text="zanzibar")
    store.append([note("gone", text="zanzibar"), note("keep"), turn])
    store.touch([Ref(MEMORY, "ann", "gone", 1)])
refs = [Ref(MEMORY, "ann", "gone", 1), Ref(HISTORY, "ann", "turn", 1)]
from memories.stores.sqlite.quantize import Quantizer
vector = Quantizer(SPACE.dimension).encode(FakeEmbedder().embed("zanzibar"))
def bytes_left():
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
def check(ended):
    store = FilesStore(folder, SPACE)
    left = store.read(refs)
    assert len(left) in ((0,) if ended else (0, 2)), left
    if vector in bytes_left() or b"zanzibar" in bytes_left():
        assert left or store.info(where).erasing
    store.remove([record.ref for record in left])
    assert not store.info(where).erasing
    for erased in (vector, b"zanzibar", b"gone"):
        assert erased not in bytes_left()
    assert store.count(where) == 1 and store.info(where).without_vector_count == 0
where = Filter(MEMORY, ("ann",), state="any")
crashing(prepare, lambda: FilesStore(folder, SPACE).remove(refs), check)
"""
    assert int(run_python(STORE + script, folder).stdout) > 10


# --- crashes, threads and processes


def test_a_crash_at_any_step_of_a_transaction_leaves_all_of_it_or_nothing(
    run_python: RunPython, folder: Path
) -> None:
    """It changes two namespaces and both collections, on top of an earlier transaction of the same
    kind.
    """
    script = """
import shutil
def change(store, name):
    with store.transaction():
        turn, bobs = note(name, collection=HISTORY), note(name, namespace="bob")
        store.append([note(name), turn, bobs, note(name, 2)])
        ended_at = datetime(2026, 1, 2, tzinfo=UTC)
        store.patch([Patch(Ref(MEMORY, "ann", "base", 1), ended_at, name, {"by": name})])
def prepare():
    shutil.rmtree(folder, ignore_errors=True)
    store = FilesStore(folder, SPACE)
    store.append([note("base"), note("base", namespace="bob")])
    change(store, "first")
anns = Filter(MEMORY, ("ann",), state="any")
wheres = [anns, Filter(HISTORY, ("ann",)), Filter(MEMORY, ("bob",))]
def seen(store):
    found = []
    for where in wheres:
        found.append([(r.ref.group, r.ref.position) for r in store.scan(where, limit=99)])
    return found, store.scan(wheres[0], limit=1)[0].ended_by
before = [("base", 1), ("first", 1), ("first", 2)], [("first", 1)], [("base", 1), ("first", 1)]
def with_change(state, name):
    return [state[0] + [(name, 1), (name, 2)], state[1] + [(name, 1)], state[2] + [(name, 1)]]
def check(ended):
    store = FilesStore(folder, SPACE)
    found = seen(store)
    possible = [(with_change(before, "second"), "second")]
    if not ended:
        possible.append(([*before], "first"))
    assert found in possible, found
    assert store.candidates(wheres[0], vector=FakeEmbedder().embed("note")[0], terms=["note"], k=9)
    change(store, "third")
    now = seen(FilesStore(folder, SPACE))
    assert now == (with_change(found[0], "third"), "third")
    for where in wheres:
        assert store.info(where).without_vector_count == 0
crashing(prepare, lambda: change(FilesStore(folder, SPACE), "second"), check)
"""
    assert int(run_python(STORE + script, folder).stdout) > 8


def test_a_crash_at_any_step_of_an_append_loses_no_earlier_record(
    run_python: RunPython, folder: Path
) -> None:
    script = """
import shutil
where = Filter(MEMORY, ("ann",))
def prepare():
    shutil.rmtree(folder, ignore_errors=True)
    FilesStore(folder, SPACE).append([note("m0"), note("m1")])
def check(ended):
    store = FilesStore(folder, SPACE)
    count = store.count(where)
    assert count == 3 if ended else count in (2, 3)
    store.append([note("m9")])
    assert FilesStore(folder, SPACE).count(where) == count + 1
    assert store.info(where).without_vector_count == 0
crashing(prepare, lambda: FilesStore(folder, SPACE).append([note("m2")]), check)
prepare = lambda: shutil.rmtree(folder, ignore_errors=True)
def check(ended):
    store = FilesStore(folder, SPACE)
    assert store.count(where) == 1 if ended else store.count(where) in (0, 1)
    store.append([note("m9")])
    assert store.info(where).without_vector_count == 0
crashing(prepare, lambda: FilesStore(folder, SPACE).append([note("m0")]), check)
"""
    first, second = run_python(STORE + script, folder).stdout.split()
    assert int(first) > 2
    assert int(second) > 12


def test_writes_acknowledged_before_a_kill_are_kept(
    folder: Path, clean_environment: Mapping[str, str]
) -> None:
    script = (
        STORE
        + """
store = FilesStore(folder, SPACE)
for number in range(10_000):
    name = f"{sys.argv[2]}-{number}"
    store.append([note(name), note(name, 2)] if number % 3 == 0 else [note(name)])
    print(number, flush=True)
"""
    )
    acknowledged: dict[str, int] = {}
    for worker in "abc":
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(folder), worker],
            stdout=subprocess.PIPE,
            text=True,
            env=dict(clean_environment),
        )
        assert process.stdout is not None
        for line in process.stdout:
            acknowledged[worker] = int(line)
            if acknowledged[worker] == 40:
                process.kill()
        process.stdout.close()
        process.wait(300)
    found = [
        (entry.ref.group, entry.ref.position)
        for entry in FilesStore(folder, SPACE).scan(pool(), limit=9999)
    ]
    for worker, last in acknowledged.items():
        assert last >= 40
        for number in range(last + 1):
            assert found.count((f"{worker}-{number}", 1)) == 1
            assert found.count((f"{worker}-{number}", 2)) == (number % 3 == 0)


def test_several_processes_write_and_read_concurrently(
    folder: Path, clean_environment: Mapping[str, str]
) -> None:
    """Each process adds, changes and counts; readers never see half of a transaction in two
    namespaces.
    """
    script = (
        STORE
        + """
store, who = FilesStore(folder, SPACE), sys.argv[2]
both = Filter(MEMORY, ("ann", "bob"), state="any")
for number in range(25):
    with store.transaction():
        name = f"{who}-{number:02}"
        place = store.count(Filter(HISTORY, ("ann",)))
        turn = note("talk", place, collection=HISTORY)
        store.append([note(name), note(name, namespace="bob"), turn])
        if number:
            store.patch([Patch(Ref(MEMORY, "ann", f"{who}-00", 1), None, None, {"number": number})])
    groups = [record.ref.group for record in store.scan(both, limit=9999)]
    assert all(groups.count(group) == 2 for group in groups), groups
"""
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(folder), who], env=dict(clean_environment)
        )
        for who in "abcd"
    ]
    assert [process.wait(100) for process in running] == [0] * 4
    store = FilesStore(folder, SPACE)
    assert store.count(pool()) == store.count(pool("bob")) == 100
    assert [entry.ref.position for entry in store.scan(turns(), limit=999)] == list(range(100))
    assert [store.scan(pool(group=f"{who}-00"), limit=1)[0].fields for who in "abcd"] == [
        {"number": 24}
    ] * 4
    assert store.info(pool("ann", "bob")).without_vector_count == 0


def test_a_reader_of_two_files_sees_both_before_or_both_after_a_transaction(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction ends between the reader's looks at the first file and the second."""
    writer, reader = open_store(SPACE), open_store(SPACE)
    writer.append([record("base"), record("base", namespace="bob")])
    real = connection.Folder.stamp

    def between(self: connection.Folder, name: str) -> Any:
        found = real(self, name)
        if name == "ann.jsonl":
            monkeypatch.setattr(connection.Folder, "stamp", real)
            writer.append([record("new"), record("new", namespace="bob")])
        return found

    monkeypatch.setattr(connection.Folder, "stamp", between)
    assert reader.count(pool("ann", "bob")) == 4


def test_a_writer_that_waits_too_long_for_the_lock_gets_a_busy_error(
    store: FilesStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.05)
    store.append([record("m")])
    with (folder / ".memories" / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreBusy, match="kept busy"):
            store.append([record("n")])
        store.touch([Ref(MEMORY, "ann", "m", 1)])  # the index has a separate lock
        assert [entry.accesses for entry in store.scan(pool(), limit=9)] == [1]
    store.append([record("n")])


def test_a_full_disk_leaves_the_file_unchanged(run_python: RunPython, folder: Path) -> None:
    script = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = FilesStore(folder, None)
store.append([note("m", vectors=None)])
before = (folder / "ann.jsonl").read_bytes()
resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, -1))
long = "long text " * 50
first, second = note("n", text=long, vectors=None), note("o", vectors=None)
for records in ([first], [first, second]):
    try:
        store.append(records)
    except MemoriesError as exc:
        print(exc)
    assert (folder / "ann.jsonl").read_bytes() == before
    assert store.count(Filter(MEMORY, ("ann",))) == 1
assert not list((folder / ".memories").glob("*.new"))
"""
    messages = run_python(STORE + script, folder).stdout.splitlines()
    assert len(messages) == 2
    assert all(str(folder) in message for message in messages)


@pytest.mark.parametrize("full", ["ann.jsonl", "bob.jsonl", "journal"])
def test_a_disk_that_fills_up_at_any_file_leaves_all_files_unchanged(
    store: FilesStore, folder: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    store.append([record("m"), record("m", namespace="bob")])
    before = {name: (folder / name).read_bytes() for name in ("ann.jsonl", "bob.jsonl")}
    inode = (folder / ".memories" / full if full == "journal" else folder / full).stat().st_ino

    def writing(fd: int, data: bytes) -> None:
        half = os.fstat(fd).st_ino == inode and len(data) > 0
        os.write(fd, data[: len(data) // 2] if half else data)
        if half:
            raise OSError(28, "No space left on device", full)

    with monkeypatch.context() as patched:
        patched.setattr(connection, "write_all", writing)
        with pytest.raises(StoreError, match=f"cannot use {full}: No space left"):
            store.append([record("n"), record("n", namespace="bob"), record("o")])
        if full == "ann.jsonl":
            with pytest.raises(StoreError, match="No space left"):
                store.append([record("n")])
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert store.count(pool("ann", "bob")) == 2
    store.append([record("n"), record("n", namespace="bob")])
    assert FilesStore(folder, SPACE).count(pool("ann", "bob")) == 4


def test_a_child_forked_inside_a_transaction_cannot_use_it(
    run_python: RunPython, folder: Path
) -> None:
    script = """
store = FilesStore(folder, SPACE)
with store.transaction():
    store.append([note("m")])
    def use():
        try:
            store.append([note("n")])
        except MemoriesError as exc:
            assert "forked" in str(exc)
        else:
            raise AssertionError
    assert forked(use) == 0
assert forked(lambda: store.append([note("n")])) == 0
print(store.count(Filter(MEMORY, ("ann",))))
"""
    assert run_python(STORE + script, folder).stdout == "2\n"


def test_operations_without_vectors_do_not_load_numpy(
    run_python: RunPython, folder: Path, store: FilesStore
) -> None:
    store.append([record("m"), turn(1)])
    script = """
import sys
from pathlib import Path
from memories.stores.records import Collection, Filter, Patch, Ref
from memories.stores import open_store
store = open_store(f"files:///{sys.argv[1]}", None)
where = Filter(Collection.MEMORY, ("ann",))
[record] = store.scan(where, limit=9)
store.info(where), store.labels(where, None), store.groups(where, limit=9), store.read([record.ref])
store.patch([Patch(record.ref, None, None, {"a": 1})])
store.touch([record.ref])
print([name for name in ["numpy"] if name in sys.modules])
"""
    assert run_python(script, folder).stdout == "[]\n"


def test_removing_inside_a_transaction_is_refused(store: FilesStore) -> None:
    store.append([record("m")])
    with pytest.raises(StoreError, match="transaction"), store.transaction():
        store.remove([Ref(MEMORY, "ann", "m", 1)])
    assert store.count(pool()) == 1


# --- merges by Git


class Branches:
    """A repository with a folder of notes, a clone in which others write, and real merges of the
    two.
    """

    def __init__(
        self, tmp_path: Path, fill: Callable[[Memories], Any], *, union: bool = True
    ) -> None:
        self.mine, self.theirs = tmp_path / "mine", tmp_path / "theirs"
        (self.mine / "notes").mkdir(parents=True)
        self.git(self.mine, "init", "-q", "-b", "main")
        if union:
            (self.mine / ".gitattributes").write_text("*.jsonl merge=union\n")
        self.made = self.write(self.mine, fill)
        self.commit(self.mine)
        self.git(tmp_path, "clone", "-q", "mine", "theirs")

    def git(self, folder: Path, *command: str, code: int = 0) -> str:
        names = [
            "-c",
            "user.name=x",
            "-c",
            "user.email=x@example.com",
            "-c",
            "commit.gpgsign=false",
        ]
        done = subprocess.run(
            ["git", *names, *command], cwd=folder, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def commit(self, folder: Path) -> None:
        self.git(folder, "add", ".")
        self.git(folder, "commit", "-q", "-a", "-m", "x")

    def write(self, folder: Path, act: Callable[[Memories], Any]) -> Any:
        """Run a function with the memories of a folder."""
        with Memories(
            f"files:///{folder}/notes", embedder="none", namespace="ann", shared=False
        ) as memories:
            return act(memories)

    def merge(self, into: Path, other: Path, *, code: int = 0) -> None:
        """Commit both sides, then pull the other one with Git."""
        for folder in (into, other):
            if self.git(folder, "status", "--porcelain"):
                self.commit(folder)
        self.git(into, "pull", "-q", "--no-rebase", "--no-edit", str(other), "main", code=code)

    def merged(self) -> list[Path]:
        """Merge each side into the other; return both folders, whose lines are in different
        orders.
        """
        third = self.mine.parent / "third"
        self.commit(self.theirs)
        self.git(third.parent, "clone", "-q", "theirs", "third")
        self.merge(third, self.mine)
        self.merge(self.mine, self.theirs)
        return [self.mine, third]

    def current(self, folder: Path) -> list[str]:
        return self.write(
            folder, lambda memories: [memory.content for memory in memories.list(limit=99).memories]
        )


def create(content: str, **values: Any) -> Callable[[Memories], str]:
    """Return a function that creates a memory and returns its id."""

    def act(memories: Memories) -> str:
        made = memories.create(content, force=True, **values).memory
        assert made is not None
        return made.id

    return act


def test_the_later_update_of_two_branches_becomes_current_and_stays_so(tmp_path: Path) -> None:
    sides = Branches(tmp_path, create("We ship on Friday"))
    sides.write(sides.theirs, lambda memories: memories.update(sides.made, "We ship on Thursday"))
    sides.write(sides.mine, lambda memories: memories.update(sides.made, "We ship on Monday"))
    for folder in sides.merged():
        assert sides.current(folder) == ["We ship on Monday"]
        history = sides.write(folder, lambda memories: memories.history(sides.made).versions)
        told = [(version.version, version.content, version.ended_by) for version in history]
        assert told == [
            (1, "We ship on Friday", "update"),
            (2, "We ship on Thursday", "update"),
            (3, "We ship on Monday", None),
        ]
        assert (
            sides.write(
                folder, lambda memories: memories.update(sides.made, "We ship on Wednesday")
            ).version
            == 4
        )
        assert sides.current(folder) == ["We ship on Wednesday"]
        shutil.rmtree(folder / "notes" / ".memories")
        assert sides.current(folder) == ["We ship on Wednesday"]
        found = sides.write(folder, lambda memories: memories.search("ship", limit=9))
        assert [hit.memory.content for hit in found] == ["We ship on Wednesday"]


def test_a_key_claimed_in_two_branches_goes_to_the_later_memory(tmp_path: Path) -> None:
    sides = Branches(tmp_path, create("Something else"))
    late = sides.write(sides.theirs, create("The office is in Hamburg", key="office"))
    sides.write(sides.mine, lambda memories: memories.update(sides.made, "Something else again"))
    early = sides.write(sides.mine, create("The office is in Cologne", key="office"))
    late, early = early, late
    for folder in sides.merged():
        assert sides.current(folder) == ["The office is in Cologne", "Something else again"]
        sides.write(folder, lambda memories: memories.delete(late))
        shutil.rmtree(folder / "notes" / ".memories")
        assert sides.current(folder) == ["Something else again"], (
            "the replaced memory does not come back"
        )
        assert (
            sides.write(folder, lambda memories: memories.history(early).versions[0].ended_by)
            == "supersede"
        )
        made = sides.write(folder, create("The office is in Bonn", key="office"))
        assert made not in (early, late)


def test_a_memory_deleted_in_one_branch_and_updated_in_the_other_is_current(tmp_path: Path) -> None:
    sides = Branches(tmp_path, create("We ship on Friday"))
    sides.write(sides.mine, lambda memories: memories.delete(sides.made))
    sides.write(sides.theirs, lambda memories: memories.update(sides.made, "We ship on Monday"))
    for folder in sides.merged():
        assert sides.current(folder) == ["We ship on Monday"]
        sides.write(folder, lambda memories: memories.delete(sides.made))
        assert sides.current(folder) == []
        sides.write(folder, lambda memories: memories.restore(sides.made))
        assert sides.current(folder) == ["We ship on Monday"]


def test_a_memory_forgotten_in_one_branch_does_not_return_from_the_other(
    tmp_path: Path,
) -> None:
    sides = Branches(
        tmp_path,
        lambda memories: [create(f"note {name}")(memories) for name in ("one", "zanzibar")],
    )
    gone = sides.made[1]
    sides.write(sides.theirs, lambda memories: memories.update(gone, "another zanzibar"))
    sides.write(sides.theirs, create("note three"))
    sides.write(sides.mine, lambda memories: memories.forget(gone))
    for folder in sides.merged():
        assert sides.current(folder) == ["note three", "note one"]
        assert b"zanzibar" not in all_bytes(folder / "notes")
        assert gone.encode() not in all_bytes(folder / "notes")


def test_a_line_removed_in_one_branch_and_changed_in_the_other_is_current(
    tmp_path: Path,
) -> None:
    sides = Branches(tmp_path, create("We ship on Friday"))
    file = sides.mine / "notes" / "ann.jsonl"
    other = sides.write(sides.mine, create("Another"))
    file.write_text(
        "".join(
            line for line in file.read_text().splitlines(keepends=True) if sides.made not in line
        )
    )
    sides.write(sides.theirs, lambda memories: memories.update(sides.made, "We ship on Monday"))
    for folder in sides.merged():
        assert set(sides.current(folder)) == {"We ship on Monday", "Another"}
        sides.write(folder, lambda memories: memories.update(sides.made, "We ship on Tuesday"))
        assert set(sides.current(folder)) == {"We ship on Tuesday", "Another"}
        assert sides.write(folder, lambda memories: memories.get(other).content) == "Another"


def test_a_conflict_is_resolved_by_removing_its_markers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sides = Branches(tmp_path, create("We ship on Friday"), union=False)
    sides.write(sides.theirs, lambda memories: memories.update(sides.made, "We ship on Thursday"))
    sides.write(sides.mine, lambda memories: memories.update(sides.made, "We ship on Monday"))
    sides.merge(sides.mine, sides.theirs, code=1)
    file, log = sides.mine / "notes" / "ann.jsonl", sides.mine / "notes" / "ann~log.jsonl"
    torn = file.read_bytes()
    assert sides.current(sides.mine) == []
    assert "ann.jsonl:2 can't be read" in caplog.text
    with pytest.raises(StoreDamaged, match=r"ann\.jsonl:2 can't be read"):
        sides.write(sides.mine, create("More"))
    assert file.read_bytes() == torn

    def without_markers(data: bytes) -> list[bytes]:
        return [
            line
            for line in data.splitlines(keepends=True)
            if not line.startswith((b"<", b"=", b">"))
        ]

    log.write_bytes(b"".join(without_markers(log.read_bytes())))
    whole = without_markers(torn)
    for order in (whole, whole[::-1], whole[2:] + whole[:2]):
        file.write_bytes(b"".join(order))
        assert sides.current(sides.mine) == ["We ship on Monday"]
    sides.write(sides.mine, lambda memories: memories.update(sides.made, "We ship on Wednesday"))
    assert sides.current(sides.mine) == ["We ship on Wednesday"]


def test_merged_logs_of_two_branches_are_reported_as_a_fork_and_not_as_damage(
    tmp_path: Path,
) -> None:
    def check(memories: Memories) -> LogCheck:
        [found] = memories.verify_log()
        return found

    sides = Branches(tmp_path, create("We ship on Friday"))
    sides.write(sides.theirs, lambda memories: memories.update(sides.made, "We ship on Thursday"))
    sides.write(sides.mine, lambda memories: memories.update(sides.made, "We ship on Monday"))
    sides.write(sides.theirs, lambda memories: memories.add_turns("talk", ["one"]))
    sides.write(sides.mine, create("Lunch is at noon"))
    heads = [sides.write(side, check).head for side in (sides.mine, sides.theirs)]
    for folder in sides.merged():
        found = sides.write(folder, check)
        assert (found.entries, found.forks, found.problem) == (5, (2, 3), None)
        sides.write(folder, create("Dinner is at eight"))
        for head in heads:
            [found] = sides.write(
                folder, lambda memories, head=head: memories.verify_log(against=head)
            )
            assert (found.entries, found.forks, found.problem) == (6, (2, 3), None)
        assert {line["kind"] for line in lines(folder / "notes", "ann~log.jsonl")} == {"log"}


def test_turns_of_two_branches_are_merged_in_order_of_time(tmp_path: Path) -> None:
    def said(*contents: str) -> Callable[[Memories], Any]:
        return lambda memories: memories.add_turns("talk", list(contents))

    sides = Branches(tmp_path, said("zero", "one"))
    sides.write(sides.theirs, said("two"))
    sides.write(sides.mine, said("three", "four"))
    sides.write(sides.theirs, said("five"))
    for folder in sides.merged():
        told = sides.write(folder, lambda memories: memories.tail_turns("talk", limit=9))
        assert [(turn.index, turn.content) for turn in told] == list(
            enumerate(["zero", "one", "two", "three", "four", "five"])
        )
        [more] = sides.write(folder, said("six"))
        assert more.index == 6


def test_lines_have_the_same_meaning_in_any_order(store: FilesStore, folder: Path) -> None:
    """This includes lines of changed, ended, restored and removed records."""
    store.append([record("a", key="k"), record("b"), record("c", text="zanzibar"), record("b", 2)])
    ref = Ref(MEMORY, "ann", "a", 1)
    store.patch([Patch(ref, at(5), "delete", {"mark": 1})])
    store.append([record("d", key="k")])
    store.patch(
        [
            Patch(Ref(MEMORY, "ann", "d", 1), at(6), "delete", {}),
            Patch(ref, None, None, {"mark": 2}),
        ]
    )
    store.remove([Ref(MEMORY, "ann", "c", 1)])
    whole, expected = (
        (folder / "ann.jsonl").read_bytes().splitlines(keepends=True),
        everything(store, pool()),
    )
    assert len(expected) == 4
    for seed in range(20):
        shuffled = [whole[number] for number in np.random.default_rng(seed).permutation(len(whole))]
        (folder / "ann.jsonl").write_bytes(b"".join(shuffled + shuffled[:3]))
        assert everything(FilesStore(folder, SPACE), pool()) == expected
    assert store.info(pool()).without_vector_count == 0


def test_a_byte_order_mark_is_read(store: FilesStore, folder: Path) -> None:
    file = write_file(folder, foreign_line(1), foreign_line(2))
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert store.count(pool()) == 2
    store.append([record("n")])
    store.remove([Ref(MEMORY, "ann", "m1", 1)])
    assert FilesStore(folder, SPACE).count(pool()) == 2


def test_a_copied_line_with_a_new_text_and_id_is_a_separate_memory(
    store: FilesStore, folder: Path
) -> None:
    """A user can make such a copy in an editor; it includes our own fields."""
    store.append([record("m", text="red apple")])
    [line] = (folder / "ann.jsonl").read_text().splitlines(keepends=True)
    copy = line.replace("red apple", "pear").replace('"id": "m"', '"id": "n"')
    for lines_of in ([line, copy], [copy, line]):
        (folder / "ann.jsonl").write_text("".join(lines_of))
        found = FilesStore(folder, SPACE)
        assert {entry.ref.group: entry.text for entry in found.scan(pool(), limit=9)} == {
            "m": "red apple",
            "n": "pear",
        }
    store.remove([Ref(MEMORY, "ann", "n", 1)])
    assert [entry.text for entry in everything(FilesStore(folder, SPACE), pool())] == ["red apple"]


@pytest.mark.parametrize(
    "given", ["abc1", "abcdef12", "ABCDEF12", "fact 1", "日本", "x" * 99, "a.b.2", "0" * 40]
)
def test_ids_from_other_programs_can_be_used(folder: Path, given: str) -> None:
    write_file(
        folder,
        foreign_line(1, id=given),
        foreign_line(2, id=f"{given}x"),
        foreign_line(3, id=f"{given}y"),
    )
    with Memories(f"files:///{folder}", embedder="none", namespace="ann") as memories:
        assert memories.get(given).content == "fact 1"
        listed, cursor = [], None
        while not listed or cursor:
            page = memories.list(limit=1, cursor=cursor)
            listed += [memory.id for memory in page.memories]
            cursor = page.next_cursor
        assert sorted(listed) == sorted([given, f"{given}x", f"{given}y"])
        assert memories.update(given, "fact one").version == 2
        assert len(memories.history(given).versions) == 2
        memories.delete(given)
        assert memories.restore(given).id == given
        assert memories.forget(given).versions == 3
        for wrong in (given, f"{given}z", "nobody", "\ud800", "a\0b", ""):
            with pytest.raises(
                RequestError, match=r"is not a memory id|not found|matches 2 memories"
            ):
                memories.get(wrong)
    assert b"fact one" not in all_bytes(folder)
