"""Exports, imports, copies of whole stores and changes of the embedder, through the library and
real SQLite files.
"""

import base64
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memories import Draft, Memories, TurnDraft, load_config
from memories.core.ids import new_id
from memories.embedders.fake import FakeEmbedder
from memories.errors import (
    Conflict,
    EmbedderMismatch,
    InvalidInput,
    RequestError,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
)
from memories.stores import open_store
from memories.stores.protocol import Store
from memories.stores.records import Collection, Filter, Patch, Record, Ref, Space
from memories.stores.sqlite import connection
from memories.stores.sqlite.store import SQLiteStore
from memories.transfer import importing
from memories.transfer import migrate as reembedding
from memories.transfer.backup import restore
from memories.transfer.export import export, matching
from memories.transfer.importing import Imported, import_
from memories.transfer.intake import Intake
from memories.transfer.migrate import migrate, reembed
from memories.transfer.pages import pages, parts_of
from opening import opening

MEMORY, HISTORY = Collection.MEMORY, Collection.HISTORY
T0 = datetime(2026, 1, 1, tzinfo=UTC)
IDS = [new_id(T0 + timedelta(seconds=number)) for number in range(8)]
Open = Callable[..., SQLiteStore]


class Other(FakeEmbedder):
    """Another embedder, which shifts the fake vectors."""

    space = FakeEmbedder.space._replace(model="other/1", dimension=32)

    def embed(self, text: str) -> Any:
        half = FakeEmbedder().embed(text).reshape(2, 32)
        vector = (half[0] + 2 * half[1] + 1e-3)[np.newaxis]
        return (vector / np.linalg.norm(vector)).astype(np.float32)


class Unused(FakeEmbedder):
    """An embedder that must not be used."""

    def embed(self, text: str) -> Any:
        raise AssertionError(f"{text} was embedded")


class Turned(FakeEmbedder):
    """Another embedder, whose vectors have the same dimension and the opposite direction."""

    space = FakeEmbedder.space._replace(model="turned/1")

    def embed(self, text: str) -> Any:
        return -super().embed(text)


class ByLine(FakeEmbedder):
    """An embedder that embeds each line separately."""

    def embed(self, text: str) -> Any:
        return np.concatenate([FakeEmbedder().embed(line) for line in text.split("\n")])


class OtherByLine(ByLine):
    """Another one with the same vectors."""

    space = FakeEmbedder.space._replace(model="by-line/1")


def quiet(_what: str, _done: int, _whole: int) -> None:
    """Discard the progress."""


def at(seconds: float) -> datetime:
    """Return the time this many seconds after the first."""
    return T0 + timedelta(seconds=seconds)


def record(
    group: str, position: int = 1, *, namespace: str = "ann", text: str = "", **values: Any
) -> Record:
    """Return a version of a memory, or another record."""
    collection = values.pop("collection", MEMORY)
    text = text or f"note {group[-4:]} {position}"
    values.setdefault("created_at", at(position))
    values.setdefault("vectors", FakeEmbedder().embed(text))
    return Record(Ref(collection, namespace, group, position), text, **values)


def turn(position: int, group: str = "talk", **values: Any) -> Record:
    """Return a turn of a conversation."""
    return record(group, position, collection=HISTORY, session=0, **values)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens stores by name."""

    def open_one(
        name: str = "one", space: Space | None = FakeEmbedder.space, kind: Any = SQLiteStore
    ) -> Any:
        return kind(tmp_path / f"{name}.db", space)

    with opening(open_one) as opened:
        yield opened


@pytest.fixture(scope="module")
def full_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a store in which every field of a record is used; tests copy it."""
    file = tmp_path_factory.mktemp("full") / "one.db"
    store = SQLiteStore(file, FakeEmbedder.space)
    ended: dict[str, Any] = {"ended_at": at(7.5), "ended_by": "update"}
    store.append(
        [
            record(
                IDS[0], 1, text="old 'text' \"quoted\" \\ \n\ttwo lines", key="user/editor", **ended
            ),
            record(
                IDS[0],
                2,
                text="Ünï 日本 🎉",
                key="user/editor",
                labels={"type": "fact", "b": "ü", "a": ""},
            ),
            record(
                IDS[1],
                labels={"項目": "値=,;"},
                fields={"confidence": 0.5, "flag": True, "n": 2**40, "t": "x"},
            ),
            record(IDS[2], vectors=None, accesses=5),
            record(
                IDS[3], namespace="bob", text="bob's secret", labels={"secret": "bobs"}, accesses=2
            ),
            record(
                IDS[4],
                vectors=np.concatenate([FakeEmbedder().embed("a"), FakeEmbedder().embed("b")]),
            ),
        ]
    )
    store.append(
        [
            turn(number, labels={"role": "user", "speaker": "Zoë"}, key=f"talk\x1f{number}")
            for number in (0, 1)
        ]
    )
    store.append([turn(0, group) for group in (IDS[5], "about", "zebra", "0" * 36, "Talk", "über")])
    store.append([turn(0, namespace="bob", text="bob said a secret")])
    store.close()
    assert not file.with_name("one.db-wal").exists()
    return file


@pytest.fixture
def full(full_file: Path, opened: Open, tmp_path: Path) -> SQLiteStore:
    """A store in which every field of a record is used."""
    shutil.copy(full_file, tmp_path / "one.db")
    return opened()


def lines_of(
    store: SQLiteStore, namespaces: Sequence[str] | None = None, *, vectors: bool = False
) -> list[str]:
    """Return the export of a store."""
    lines: list[str] = []
    count = export(store, lines.append, namespaces=namespaces, with_vectors=vectors, progress=quiet)
    assert count == len(lines) - 2  # the header and the last line
    return lines


def import_lines(
    store: SQLiteStore, lines: Sequence[str], embedder: Any = None, **options: Any
) -> Imported:
    """Import lines; return the result."""
    options.setdefault("namespaces", None)
    return import_(store, [line.encode() for line in lines], embedder or FakeEmbedder(), **options)


def content(store: SQLiteStore) -> dict[Ref, Record]:
    """Return all records of a store."""
    records = [entry for part in parts_of(store) for page in pages(store, part) for entry in page]
    return {
        entry.ref: entry._replace(labels=dict(entry.labels), fields=dict(entry.fields))
        for entry in records
    }


def live(namespace: str = "ann", collection: Collection = MEMORY, **conditions: Any) -> Filter:
    """Return the filter for the current records of a namespace."""
    return Filter(collection, (namespace,), **conditions)


def edited(lines: Iterable[str]) -> list[str]:
    """Return lines of an export without the last line, as a person passes them on after editing."""
    header, *others = lines
    return [
        header.replace('"version":2', '"version":1'),
        *(line for line in others if not line.startswith('{"end"')),
    ]


def line_of(**changes: Any) -> str:
    """Return a valid line with these changes; None removes a key."""
    shape = {
        "collection": "memory",
        "namespace": "ann",
        "group": IDS[0],
        "position": 1,
        "text": "text",
        "created_at": "2026-01-01T00:00:00.000Z",
    } | changes
    return json.dumps({name: value for name, value in shape.items() if value is not None}) + "\n"


def turn_line(**changes: Any) -> str:
    """Return a valid line of a turn with these changes."""
    return line_of(**{"collection": "history", "group": "talk", "session": 1} | changes)


# the header of an export without a last line; any lines may follow
HEADER = '{"format":"memories","version":1}\n'


# --- export


def test_an_export_is_canonical_json_lines(opened: Open) -> None:
    store = opened()
    store.append(
        [
            record(
                IDS[1],
                text="second",
                labels={"b": "2", "a": "1"},
                fields={"z": 1.0, "y": "ü"},
                accesses=3,
            ),
            record(IDS[0], text='日本 "x"\n', ended_at=at(2), ended_by="delete", key="k"),
        ]
    )
    store.append([turn(4, text="said")])
    lines = lines_of(store)
    digest = hashlib.sha256("".join(lines[:-1]).encode()).hexdigest()
    assert lines == [
        HEADER.replace("1", "2"),
        (
            '{"collection":"history","namespace":"ann","group":"talk","position":4,"text":"said",'
            '"created_at":"2026-01-01T00:00:04.000Z","session":0}\n'
        ),
        (
            f'{{"collection":"memory","namespace":"ann","group":"{IDS[0]}","position":1,'
            '"text":"日本 \\"x\\"\\n",'
            '"created_at":"2026-01-01T00:00:01.000Z","ended_at":"2026-01-01T00:00:02.000Z","ended_by":"delete","key":"k"}\n'
        ),
        (
            f'{{"collection":"memory","namespace":"ann","group":"{IDS[1]}","position":1,"text":"second",'
            '"created_at":"2026-01-01T00:00:01.000Z","labels":{"a":"1","b":"2"},"fields":{"y":"ü","z":1},"accesses":3}\n'
        ),
        f'{{"end":"memories","records":3,"sha256":"{digest}"}}\n',
    ]


@pytest.mark.parametrize("vectors", [False, True])
def test_an_export_of_an_import_has_the_same_bytes(
    full: SQLiteStore, opened: Open, vectors: bool
) -> None:
    lines = lines_of(full, vectors=vectors)
    assert len(lines) == 2 + len(content(full)) == 17
    other = opened("two")
    result = import_lines(other, lines)
    assert (result.imported, result.known, result.conflict_count, result.without_vector) == (
        15,
        0,
        0,
        0,
    )
    assert lines_of(other, vectors=vectors)[1:-1] == [
        line if '"vectors"' in line or not vectors else lines_of(other, vectors=True)[number]
        for number, line in enumerate(lines[1:-1], 1)
    ]
    assert lines_of(other) == lines_of(full)
    assert content(other) == content(full)


def test_vectors_are_exported_bit_for_bit(full: SQLiteStore, opened: Open) -> None:
    lines = lines_of(full, vectors=True)
    assert json.loads(lines[0])["model"] == "fake/1"
    vectors_before = full.vectors(list(content(full)))
    shapes = [json.loads(line) for line in lines[1:-1]]
    written = {
        Ref(
            Collection(shape["collection"]), shape["namespace"], shape["group"], shape["position"]
        ): shape["vectors"]
        for shape in shapes
        if "vectors" in shape
    }
    assert written.keys() == vectors_before.keys()
    assert len(vectors_before) == 14
    for ref, rows in written.items():
        assert [base64.b64decode(row) for row in rows] == [
            row.tobytes() for row in vectors_before[ref]
        ]
    other = opened("two")
    import_lines(
        other, edited(line for line in lines if '"vectors"' in line or "format" in line), Unused()
    )
    imported = other.vectors(list(vectors_before))
    assert imported.keys() == vectors_before.keys()
    assert all(np.array_equal(vectors, vectors_before[ref]) for ref, vectors in imported.items())


def test_every_store_exports_lines_in_the_same_order(full: SQLiteStore) -> None:
    shapes = [json.loads(line) for line in lines_of(full)[1:-1]]
    order = [
        (shape["collection"], shape["namespace"], shape["group"], shape["position"])
        for shape in shapes
    ]
    assert order == sorted(order)
    groups = [
        group
        for collection, namespace, group, _ in order
        if (collection, namespace) == ("history", "ann")
    ]
    assert groups == ["0" * 36, IDS[5], "Talk", "about", "talk", "talk", "zebra", "über"]


def test_memories_with_ids_from_another_program_are_exported_in_the_same_order(
    opened: Open,
) -> None:
    store = opened()
    ids = [IDS[3], "über", "zebra", "Note", "about", IDS[1]]
    store.append([Record(Ref(MEMORY, "ann", name, 1), f"text of {name}", T0) for name in ids])
    groups = [json.loads(line)["group"] for line in lines_of(store)[1:-1]]
    assert groups == sorted(ids)


def test_an_export_contains_nothing_from_other_namespaces(full: SQLiteStore) -> None:
    lines = lines_of(full, ["ann", "shared"])
    assert len(lines) == 15
    assert not any("bob" in line or "secret" in line for line in lines)
    assert len(lines_of(full, ["nobody"])) == 2


@pytest.mark.parametrize("step", ["import", "migrate"])
def test_an_error_says_how_much_was_written_before(
    opened: Open, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    source, target = opened(), opened("two")
    groups = [new_id(T0 + timedelta(seconds=number)) for number in range(300)]
    source.append([record(group, 1, text=f"text of {group}") for group in groups])
    append = target.append

    def append_until_full(records: Sequence[Record]) -> None:
        if len(records) < 250:  # the second page
            raise StoreFull("the disk of two is full; nothing was written; try again")
        append(records)

    monkeypatch.setattr(target, "append", append_until_full)
    with pytest.raises(StoreFull) as caught:
        if step == "import":
            import_lines(target, lines_of(source))
        else:
            migrate(source, target, FakeEmbedder(), progress=quiet)
    verb = {"import": "imported", "migrate": "copied"}[step]
    assert str(caught.value) == (f"250 records were {verb}, but the disk of two is full; try again")
    assert len(content(target)) == 250


def test_an_export_of_a_missing_store_is_empty_and_creates_no_store(
    opened: Open, tmp_path: Path
) -> None:
    lines = lines_of(opened())
    assert [json.loads(line).get("records") for line in lines] == [None, 0]
    assert import_lines(opened("two"), lines) == Imported()
    assert list(tmp_path.glob("*.db*")) == []


def test_an_export_shows_a_single_state_of_the_store(
    full: SQLiteStore, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.05)
    rival = opened()
    tried: list[str] = []

    def write(line: str) -> None:
        if not tried:
            with pytest.raises(StoreBusy):
                rival.append([record(IDS[7])])
        tried.append(line)

    export(full, write, namespaces=None, progress=quiet)
    assert len(tried) == 17
    rival.append([record(IDS[7])])


# --- import


def test_a_second_import_changes_nothing(full: SQLiteStore, opened: Open) -> None:
    other, lines = opened("two"), lines_of(full)
    import_lines(other, edited(lines[:7]))
    result = import_lines(other, lines)
    assert (result.imported, result.known, result.conflict_count) == (9, 6, 0)
    other.touch([Ref(MEMORY, "ann", IDS[0], 2)])
    result = import_lines(other, lines)
    assert (result.imported, result.known, result.conflict_count) == (0, 15, 0)


@pytest.mark.parametrize(
    "changed",
    [{"text": "other"}, {"labels": {"a": "2"}}, {"fields": {"n": 2}}, {"key": "other"},
     {"session": 1}, {"created_at": "2026-01-02T00:00:00Z"},
     {"ended_at": "2026-01-03T00:00:00Z", "ended_by": "delete"}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dry_run", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_different_record_at_an_address_is_a_conflict_and_changes_nothing(
    opened: Open, changed: Mapping[str, Any], dry_run: bool
) -> None:
    store = opened()
    first = {"labels": {"a": "1"}, "fields": {"n": 1}, "key": "k"}
    import_lines(store, [HEADER, line_of(**first)])
    before = content(store)
    lines = [
        HEADER,
        line_of(**first | changed),
        line_of(position=2, text="next"),
        line_of(group=IDS[1]),
    ]
    result = import_lines(store, lines, dry_run=dry_run)
    assert (result.imported, result.known, result.conflict_count) == (1, 0, 2)
    assert [(entry.line, entry.ref.position, entry.reason) for entry in result.conflicts] == [
        (2, 1, "another record has this address"),
        (3, 2, "belongs to a memory or conversation with a conflict"),
    ]
    after = content(store)
    assert after.pop(Ref(MEMORY, "ann", IDS[1], 1), None) is not None or dry_run
    assert after == before


def test_a_memory_with_many_versions_in_a_foreign_file_is_stored_as_a_whole(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "MAX_BATCH", 2)
    monkeypatch.setattr(importing, "PAGE", 1)
    store = opened()
    versions = [line_of(position=position, text=f"text {position}") for position in range(1, 6)]
    lines = [HEADER, *versions, line_of(group=IDS[1])]
    result = import_lines(store, lines, intake=Intake(foreign="import-1"))
    assert (result.imported, result.conflict_count) == (6, 0)
    assert sum(result.pending.values()) == 2


def test_a_foreign_file_with_another_version_of_our_memory_is_a_conflict(opened: Open) -> None:
    """A memory that once waited is known, regardless of the decision; one that never waited wasn't
    imported from such a file.
    """
    store, foreign = opened(), Intake(foreign="import-1")
    import_lines(store, [HEADER, line_of(fields={"confidence": 0.9})])
    import_lines(store, [HEADER, line_of(group=IDS[1], fields={"confidence": 0.9})], intake=foreign)
    steps = [line_of(group=group, fields={"confidence": 0.1}) for group in IDS[:2]]
    result = import_lines(store, [HEADER, *steps], intake=foreign)
    assert (result.imported, result.known, result.conflict_count) == (0, 1, 1)
    assert [entry.ref.group for entry in result.conflicts] == [IDS[0]]


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_taken_key_is_a_conflict_of_that_memory_only(opened: Open, dry_run: bool) -> None:
    store = opened()
    store.append([record(IDS[7], key="k")])
    lines = [
        HEADER,
        line_of(group=IDS[1]),
        line_of(ended_at="2026-01-02T00:00:00Z", ended_by="update", key="k"),
    ]
    lines += [line_of(position=2, key="k"), line_of(group=IDS[2], key="other")]
    result = import_lines(store, lines, dry_run=dry_run)
    assert (result.imported, result.conflict_count) == (2, 2)
    assert {(entry.line, entry.reason) for entry in result.conflicts} == {
        (number, "its key is in use by another record") for number in (3, 4)
    }
    assert store.count(live(state="any", group=IDS[0])) == 0
    assert store.count(live(state="any")) == (1 if dry_run else 3)


def test_a_memory_with_a_conflict_is_omitted_from_later_batches_too(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "PAGE", 1)
    monkeypatch.setattr(importing, "MAX_BATCH", 1)
    store = opened()
    store.append([turn(1, text="something else")])
    turns = [line_of(collection="history", group="talk", position=number) for number in range(4)]
    result = import_lines(store, [HEADER, *turns, line_of()])
    assert (result.imported, result.conflict_count) == (2, 3)
    assert [entry.ref.position for entry in result.conflicts] == [1, 2, 3]


def test_all_conflicts_are_counted_and_the_first_ones_are_named(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "MAX_SHOWN", 3)
    store = opened()
    store.append([record(group) for group in IDS])
    result = import_lines(store, [HEADER, *(line_of(group=group) for group in IDS)])
    assert (result.conflict_count, len(result.conflicts)) == (8, 3)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_links_to_memories_that_were_not_imported_have_no_effect(
    tmp_path: Path, order: Sequence[int]
) -> None:
    def open_one(name: str) -> Memories:
        """Open memories in a store of their own."""
        return Memories(f"sqlite:///{tmp_path}/{name}.db", embedder="none")

    with opening(open_one) as open_as:
        old, new = open_as("old"), open_as("new")
        ids = [str(old.create(f"The API listens on port {n}.").id) for n in (8080, 9090, 7070)]
        chain = {each.id: (each.corrects, each.corrected_by) for each in old.list().memories}
        for place in order:
            one = matching(f"id = {ids[place]}", "memories", 24)
            lines: list[str] = []
            export(old._store, lines.append, namespaces=None, select=one, progress=lambda *_: None)
            for _ in range(2):
                import_(new._store, [line.encode() for line in lines], None, namespaces=None)
            if place == order[0]:
                assert new.get(ids[place]).corrected_by is None
        linked = {each.id: (each.corrects, each.corrected_by) for each in new.list().memories}
        assert linked == chain


def test_a_link_has_no_effect_even_if_a_later_line_stops_the_import(
    memories: Memories, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "PAGE", 1)
    older, _ = [memories.create(f"The API listens on port {n}.").id for n in (8080, 9090)]
    lines: list[str] = []
    one = matching(f"id = {older}", "memories", 24)
    export(memories._store, lines.append, namespaces=None, select=one, progress=lambda *_: None)
    store = opened()
    with pytest.raises(InvalidInput, match="line 4 is not JSON"):
        import_lines(store, [*lines[:2], line_of(), "{"])
    [record] = store.scan(live("shared"), limit=9)
    assert "corrected_by" not in record.fields


def test_a_repeated_line_is_stored_once(opened: Open) -> None:
    result = import_lines(
        opened(),
        [HEADER, line_of(), line_of(), line_of(group=IDS[1]), line_of(group=IDS[1], text="x")],
    )
    assert (result.imported, result.known, result.conflict_count) == (1, 1, 2)


def test_a_memory_is_never_half_imported(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "PAGE", 2)
    sizes: list[int] = []

    class Counting(SQLiteStore):
        def append(self, records: Sequence[Record]) -> None:
            sizes.append(len(records))
            super().append(records)

    ended = {"ended_at": "2026-01-02T00:00:00Z", "ended_by": "update"}
    lines = [line_of(position=number, **(ended if number < 5 else {})) for number in range(1, 6)]
    import_lines(
        opened("two", kind=Counting), [HEADER, *lines, *(line_of(group=group) for group in IDS[1:])]
    )
    assert sizes == [5, 2, 2, 2, 1]


def test_lines_are_read_one_batch_at_a_time(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "PAGE", 10)
    store, ahead = opened(), []

    def lines() -> Iterator[bytes]:
        yield HEADER.encode()
        for number in range(200):
            ahead.append(number - store.count(live()))
            yield line_of(group=new_id(at(number))).encode()

    assert import_(store, lines(), FakeEmbedder(), namespaces=None).imported == 200
    assert max(ahead) <= 11


BAD_LINES = {
    "not json": ("{", "is not JSON"),
    "no object": ("[1]", "is not a JSON object"),
    "deep": ("[" * 100_000, "is not JSON"),
    "only content": ('{"content": "x"}', 'has no "collection"'),
    "unknown key": (line_of(color="red"), 'has an unknown key "color"'),
    "collection": (line_of(collection="memories"), "has the collection"),
    "namespace": (line_of(namespace="Ann"), "has the namespace"),
    "no namespace": (line_of(namespace=7), "namespace is of type int"),
    "id": (line_of(group=IDS[0].upper()), f"write that id as {IDS[0]}"),
    "no id": (line_of(group=""), "has a group that is not text of 1 to 256 characters"),
    "position": (line_of(position=-1), "has a position that is not a whole number"),
    "bool": (line_of(position=True), "has a position that is not a whole number"),
    "version 0": (line_of(position=0), "a memory's versions are numbered from 1"),
    "empty": (line_of(text=""), "content is empty"),
    "number": (line_of(text=5), "content is of type int"),
    "large": (line_of(text="x" * 1_048_577), "the limit is 1048576"),
    "surrogate": (line_of(text="x\ud800"), "content"),
    "time": (line_of(created_at="yesterday"), 'has the created_at "yesterday"'),
    "no zone": (line_of(created_at="2026-01-01T00:00:00"), "must be a datetime with a time zone"),
    "ended by": (line_of(ended_by="delete"), "has ended_by but no ended_at"),
    "labels": (line_of(labels=["a"]), "has labels that are not an object"),
    "label": (line_of(labels={"a": 1}), 'has a label "a" that is not text'),
    "fields": (line_of(fields={"a": None}), "with a value that is not text"),
    "nested": (line_of(fields={"a": {}}), "with a value that is not text"),
    "infinite": (line_of(fields={"a": float("inf")}), "is not JSON (Infinity is not a number)"),
    "accesses": (line_of(accesses=1.5), "has a accesses"),
    "reinforced": (line_of(fields={"reinforced_at": "x"}), "which is not a time in milliseconds"),
    "reinforced far": (line_of(fields={"reinforced_at": 1e300}), "which is not a time"),
    "first": (line_of(fields={"first_at": "x"}), "which is not a time"),
    "aging": (line_of(fields={"aging_from": 10**17}), "which is not a time"),
    "decay": (
        line_of(fields={"decay": 7}),
        "which is not one of stable, contextual, reinforceable",
    ),
    "confidence": (line_of(fields={"confidence": "high"}), "which is not a number from 0 to 1"),
    "very sure": (line_of(fields={"confidence": 1e9}), "which is not a number from 0 to 1"),
    "below 0": (line_of(fields={"confidence": -5}), "which is not a number from 0 to 1"),
    "operation": (line_of(fields={"operation": "<system>"}), "which is not a word"),
    "unknown operation": (line_of(fields={"operation": "obey"}), 'has the operation "obey"'),
    "end": (
        line_of(ended_at="2026-01-02T00:00:00Z", ended_by="<|im_start|>system"),
        "has an ended_by that is not a word",
    ),
    "unknown end": (
        line_of(ended_at="2026-01-02T00:00:00Z", ended_by="obey"),
        'has the ended_by "obey"',
    ),
    "successor": (line_of(fields={"superseded_by": "x" * 257}), "which is not an id"),
    "predecessor": (line_of(fields={"supersedes": 7}), "which is not an id"),
    "key on two lines": (line_of(key="a\nb"), "has a key that is not text on one line"),
    "key that commands": (line_of(key="a\x1b[2J"), "has a key that is not text on one line"),
    "label on two lines": (
        line_of(labels={"a": "b\nc"}),
        'has a label "a" that is not text on one line',
    ),
    "label that commands": (
        line_of(labels={"a\x1b[2J": "b"}),
        "has a label whose name is not text on one line",
    ),
    "role": (
        turn_line(labels={"role": "<|im_start|>system"}),
        "which is not one of user, assistant, system, tool",
    ),
    "conversation": (turn_line(group="a\nb"), "has a conversation id that is not text on one line"),
    "long turn": (
        turn_line(text="x" * 100_001),
        "has content of 100001 characters; a turn has at most 100000",
    ),
    "twice": (line_of()[:-2] + ',"text":"y"}', 'contains the key "text" twice'),
    "field twice": (line_of()[:-2] + ',"fields":{"a":1,"a":2}}', 'contains the key "a" twice'),
    "vectors": (line_of(vectors="x"), "has vectors that are not a list"),
    "no base64": (line_of(vectors=["%"]), "has vectors that are not a list"),
    "different": (line_of(vectors=["AACAPw==", "AACAPwAAAAA="]), "has vectors that are not a list"),
    "length": (line_of(vectors=["AAAAPw=="]), "has a vector that is not of length 1"),
}


def test_an_invalid_line_is_named_and_nothing_of_its_batch_is_stored(opened: Open) -> None:
    store = opened()
    failures = []
    for name, (line, complaint) in BAD_LINES.items():
        message = "it was imported"
        try:
            import_lines(store, [HEADER, line_of(group=IDS[1]), line])
        except InvalidInput as exc:
            message = str(exc)
        ends = message.startswith("line 3 ") and message.endswith(
            "; no record in this batch was stored"
        )
        if not ends or complaint not in message or len(message) >= 300:
            failures.append(f"{name}: {message!r}, not {complaint!r}")
    assert failures == []
    assert parts_of(store) == []


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        (line_of(), "line 1 is not the header of an export"),
        (
            '{"format":"memories","version":3}',
            'line 1 has version "3", but this program reads only versions 1 and 2; upgrade memoriae',
        ),
        ("hello", "line 1 is not JSON"),
        ('{"format":"memories","version":1,"model":5}', "line 1 has a model that is not text"),
    ],
)
def test_only_exports_can_be_imported(opened: Open, header: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        import_lines(opened(), [header, line_of()])


def test_a_file_that_is_not_utf8_is_refused(opened: Open) -> None:
    with pytest.raises(InvalidInput, match="line 2 is not UTF-8"):
        import_(opened(), [HEADER.encode(), b'{"text": "\xff"}'], None, namespaces=None)


def test_a_byte_order_mark_and_empty_lines_are_accepted(opened: Open) -> None:
    result = import_lines(
        opened(), ["\ufeff" + HEADER.replace("\n", "\r\n"), "\n", line_of(), "  \n"]
    )
    assert result.imported == 1
    with pytest.raises(InvalidInput, match="no records: the export is empty"):
        import_lines(opened("two"), [])


@pytest.mark.parametrize("line_count", [1, 2, 9, 16])
def test_an_export_truncated_at_the_end_of_a_line_is_incomplete(
    full: SQLiteStore, opened: Open, line_count: int
) -> None:
    lines = lines_of(full)[:line_count]
    with pytest.raises(
        InvalidInput,
        match=f"the export is incomplete: it was truncated after line {line_count}; use another copy",
    ):
        import_lines(opened("two"), lines)
    assert parts_of(opened("two")) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            lambda lines: [*lines[:4], *lines[5:]],
            "line 16 gives 15 as the number of records, but there are 14",
        ),
        (
            lambda lines: [*lines[:4], lines[4], *lines[4:]],
            "line 18 gives 15 as the number of records",
        ),
        (
            lambda lines: [line.replace("quoted", "quote") for line in lines],
            "line 17 does not match the lines before",
        ),
        (
            lambda lines: [*lines[:-1], '{"end":"memories"}'],
            "line 17 is not the last line of an export",
        ),
        (lambda lines: [*lines[:-1], '{"end":"memories","rec'], "line 17 is not JSON"),
        (
            lambda lines: [*lines, *lines],
            "line 18 comes after the last line of the export; import one export at a",
        ),
    ],
)
def test_a_changed_export_is_refused(
    full: SQLiteStore, opened: Open, change: Callable[[list[str]], list[str]], complaint: str
) -> None:
    lines = change(lines_of(full))
    with pytest.raises(InvalidInput, match=complaint):
        import_lines(opened("two"), lines)
    assert parts_of(opened("two")) == []
    with pytest.raises(InvalidInput, match=complaint):
        importing.check((line.encode() for line in lines), namespaces=None)


def test_line_endings_of_another_system_are_accepted(full: SQLiteStore, opened: Open) -> None:
    lines = lines_of(full)
    result = import_lines(
        opened("two"),
        ["\ufeff" + lines[0], "\r\n", *(line.replace("\n", "\r\n") for line in lines[1:])],
    )
    assert (result.imported, result.unchecked) == (15, False)


def test_an_export_from_an_older_version_is_imported_as_unchecked(
    full: SQLiteStore, opened: Open
) -> None:
    result = import_lines(opened("two"), edited(lines_of(full)))
    assert (result.imported, result.unchecked) == (15, True)


def test_only_the_given_namespaces_are_imported(full: SQLiteStore, opened: Open) -> None:
    other, lines = opened("two"), lines_of(full)
    with pytest.raises(
        InvalidInput,
        match="line 10 belongs to namespace bob; name that namespace, or add --all-namespaces",
    ):
        import_lines(other, lines, namespaces=["ann"])
    with pytest.raises(InvalidInput, match="line 10 belongs to namespace bob"):
        importing.check((line.encode() for line in lines), namespaces=["ann"])
    assert parts_of(other) == []


def test_a_dry_run_creates_no_store(full: SQLiteStore, opened: Open, tmp_path: Path) -> None:
    result = import_lines(opened("two"), lines_of(full), Unused(), dry_run=True)
    assert (result.imported, result.known) == (15, 0)
    assert not (tmp_path / "two.db").exists()


def test_an_import_without_an_embedder_stores_no_vectors(full: SQLiteStore, opened: Open) -> None:
    other = opened("two", None)
    result = import_(
        other, [line.encode() for line in lines_of(full, vectors=True)], None, namespaces=None
    )
    assert (result.imported, result.without_vector) == (15, 15)
    assert other.info(live()).model is None


@pytest.mark.parametrize("model", [Other, Turned])
def test_vectors_of_another_model_are_recomputed(
    full: SQLiteStore, opened: Open, model: type[FakeEmbedder]
) -> None:
    """This includes a model whose vectors have the same dimension."""
    other = opened("two", model.space)
    import_lines(other, lines_of(full, vectors=True), model())
    (vectors,) = other.vectors([Ref(MEMORY, "ann", IDS[0], 2)]).values()
    assert float(vectors[0] @ model().embed("Ünï 日本 🎉")[0]) == pytest.approx(1.0, abs=0.01)


def test_a_store_with_another_model_refuses_an_import(full: SQLiteStore, opened: Open) -> None:
    before = content(full)
    with pytest.raises(EmbedderMismatch, match="memory reembed"):
        import_lines(opened("one", Other.space), [HEADER, line_of(group=IDS[6])], Other())
    assert content(full) == before


# --- migrate


def test_a_copy_is_complete_and_leaves_the_original_unchanged(
    full: SQLiteStore, opened: Open, tmp_path: Path
) -> None:
    before, copy = lines_of(full, vectors=True), opened("two")
    result = migrate(opened("one", None), copy, FakeEmbedder(), progress=quiet)
    assert (result.copied, result.changed, result.removed, result.without_vector) == (15, 0, 0, 0)
    assert {tuple(part): contents.records for part, contents in result.contents.items()} == {
        ("history", "ann"): 8,
        ("history", "bob"): 1,
        ("memory", "ann"): 5,
        ("memory", "bob"): 1,
    }
    assert content(copy) == content(full)
    vectors_before = full.vectors(list(content(full)))
    copied = copy.vectors(list(vectors_before))
    assert len(copied) == len(vectors_before) > 0
    assert all(np.array_equal(vectors, vectors_before[ref]) for ref, vectors in copied.items())
    assert lines_of(full, vectors=True) == before
    with Memories(f"sqlite:///{tmp_path}/two.db", namespace="ann", embedder="fake") as memories:
        assert memories.search("Ünï 日本")[0].memory.content == "Ünï 日本 🎉"
    again = migrate(full, copy, FakeEmbedder(), progress=quiet)
    assert (again.copied, again.changed) == (0, 0)


def test_with_another_embedder_the_copy_is_embedded_again(full: SQLiteStore, opened: Open) -> None:
    copy = opened("two", Other.space)
    migrate(full, copy, Other(), progress=quiet)
    assert copy.info(live()).model == "other/1"
    assert content(copy) == content(full)
    assert (
        copy.unstaged(Other.space, MEMORY, limit=9)
        == copy.unstaged(Other.space, HISTORY, limit=9)
        == []
    )


def test_without_an_embedder_the_copy_has_no_vectors_and_counts_them(
    full: SQLiteStore, opened: Open
) -> None:
    assert migrate(full, opened("two", None), None, progress=quiet).without_vector == 15


def test_a_missing_store_is_not_migrated(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no records, so there is nothing to migrate"):
        migrate(opened(), opened("two"), FakeEmbedder(), progress=quiet)
    assert list(tmp_path.glob("*.db*")) == []


@pytest.mark.parametrize(
    "own", [record(IDS[7]), turn(77), record(IDS[2], text="another text"), turn(1, text="other")]
)
def test_a_target_that_is_not_a_copy_is_refused(
    full: SQLiteStore, opened: Open, own: Record
) -> None:
    copy = opened("two")
    copy.append([own])
    with pytest.raises(
        RequestError,
        match=r"the target is not a copy of this store: it has a record that this store lacks",
    ):
        migrate(full, copy, FakeEmbedder(), progress=quiet)
    assert content(copy)[own.ref]._replace(vectors=None) == own._replace(vectors=None)


def test_a_migration_keeps_other_namespaces_of_the_target(full: SQLiteStore, opened: Open) -> None:
    copy = opened("two")
    copy.append([record(IDS[7], namespace="carl"), turn(1, namespace="carl")])
    migrate(full, copy, FakeEmbedder(), progress=quiet)
    records = content(copy)
    assert {ref for ref in records if ref.namespace == "carl"} == {
        Ref(MEMORY, "carl", IDS[7], 1),
        Ref(HISTORY, "carl", "talk", 1),
    }
    assert {ref: entry for ref, entry in records.items() if ref.namespace != "carl"} == content(
        full
    )


def test_a_second_migration_catches_up(opened: Open, tmp_path: Path) -> None:
    """It copies versions, ends, restored memories, keys that moved to another memory,
    reinforcements and accesses.
    """
    url = f"sqlite:///{tmp_path}/one.db"
    with Memories(url, embedder="fake") as memories:
        first = memories.create("about apples", key="a").memory
        second = memories.create("about bananas", decay="reinforceable").memory
        assert first is not None
        assert second is not None
        memories.delete(first.id)
        third = memories.create("about cherries", key="a").memory
        assert third is not None
        copy = opened("two")
        migrate(opened(), copy, FakeEmbedder(), progress=quiet)
        memories.delete(third.id)
        memories.restore(first.id)
        memories.reinforce(second.id)
        memories.update(second.id, "about many bananas")
        memories.search("bananas")
        memories.add_turns("talk", ["said"])
        result = migrate(opened(), copy, FakeEmbedder(), progress=quiet)
        assert (result.copied, result.changed) == (3, 3)
        assert content(copy) == content(opened())


def test_a_record_forgotten_between_two_migrations_is_refused(
    full: SQLiteStore, opened: Open
) -> None:
    copy, ref = opened("two"), Ref(MEMORY, "ann", IDS[2], 1)
    migrate(full, copy, FakeEmbedder(), progress=quiet)
    full.remove([ref])
    with pytest.raises(
        RequestError,
        match=f"memory {ref.group} .* forgot or moved the record after it was copied, forget it",
    ):
        migrate(full, copy, FakeEmbedder(), progress=quiet)
    copy.remove([ref])
    assert migrate(full, copy, FakeEmbedder(), progress=quiet).copied == 0


def on(what: str, action: Callable[[], object]) -> Callable[[str, int, int], None]:
    """Return a progress callback that runs an action when a step is first reported."""
    waiting = [action]

    def tell(step: str, _done: int, _whole: int) -> None:
        if step == what and waiting:
            waiting.pop()()

    return tell


def test_a_record_forgotten_during_a_migration_is_removed_from_the_copy(
    full: SQLiteStore, opened: Open
) -> None:
    copy, rival, ref = opened("two"), opened(), Ref(MEMORY, "ann", IDS[2], 1)

    def tell(step: str, result: int, whole: int) -> None:
        if step == "copying" and result == whole and ref in content(opened()):
            assert content(copy).keys() == content(full).keys()
            rival.remove([Ref(HISTORY, "ann", "talk", 0), ref, Ref(MEMORY, "bob", IDS[3], 1)])

    result = migrate(full, copy, FakeEmbedder(), progress=tell)
    assert result.removed == 3  # these include all memories of bob
    assert ref not in content(copy)
    assert content(copy) == content(full)


def test_a_target_that_another_program_writes_to_is_refused(
    full: SQLiteStore, opened: Open
) -> None:
    rival = opened("two")
    tell = on("copying", lambda: rival.append([record(IDS[7])]))
    with pytest.raises(RequestError, match="the target is not a copy"):
        migrate(full, opened("two"), FakeEmbedder(), progress=tell)
    assert Ref(MEMORY, "ann", IDS[7], 1) in content(rival)


def test_a_key_that_moves_during_a_migration_does_not_conflict(opened: Open) -> None:
    source, copy, rival = opened(), opened("two"), opened()
    source.append([record(IDS[0], ended_at=at(5), ended_by="delete"), record(IDS[1], key="k")])

    def move() -> None:
        rival.patch([Patch(Ref(MEMORY, "ann", IDS[1], 1), at(9), "delete", {"mark": 1})])
        rival.append([record(IDS[0], 2, key="k")])

    tell = on("copying", move)
    migrate(source, copy, FakeEmbedder(), progress=tell)
    assert content(copy) == content(source)
    assert copy.scan(live(key="k"), limit=1)[0].ref.group == IDS[0]


LOSSES: dict[str, Callable[[Record], Record]] = {
    "fields": lambda entry: entry._replace(fields={}),
    "labels": lambda entry: entry._replace(labels={}),
    "text": lambda entry: entry._replace(text=entry.text.upper()),
    "end": lambda entry: entry._replace(ended_by=None),
    "time": lambda entry: entry._replace(created_at=entry.created_at + timedelta(milliseconds=1)),
    "namespace": lambda entry: entry._replace(ref=entry.ref._replace(namespace="else")),
}


@pytest.mark.parametrize(
    ("loss", "seldom"),
    [
        *(pytest.param(loss, True, id=f"{name}, read") for name, loss in LOSSES.items()),
        pytest.param(LOSSES["text"], False, id="text, written"),
        *(
            pytest.param(loss, False, id=f"{name}, written", marks=pytest.mark.thorough)
            for name, loss in LOSSES.items()
            if name != "text"
        ),
    ],
)
def test_a_copy_that_differs_never_passes_verification(
    full: SQLiteStore, opened: Open, loss: Callable[[Record], Record], seldom: bool
) -> None:
    """The loss occurs in writes, or in the final reads, and no patch repairs it."""

    class Lossy(SQLiteStore):
        def patch(self, patches: Sequence[Patch]) -> None:
            """Change nothing."""

        def append(self, records: Sequence[Record]) -> None:
            super().append(records if seldom else [loss(entry) for entry in records])

        def scan(self, where: Filter, **options: Any) -> list[Record]:
            records = super().scan(where, **options)
            return [loss(entry) for entry in records] if seldom else records

    before = content(full)
    with pytest.raises(
        (StoreError, RequestError),
        match=r"the copy differs from the original|the target is not a copy",
    ):
        migrate(full, opened("two", kind=Lossy), FakeEmbedder(), progress=quiet)
    assert content(full) == before


def test_writers_wait_only_at_the_end_of_a_migration(
    full: SQLiteStore, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.05)
    rival = opened()
    waits: list[bool] = []

    class Target(SQLiteStore):
        def read(self, refs: Sequence[Ref]) -> list[Record]:
            try:
                with rival.transaction():
                    waits.append(False)
            except StoreBusy:
                waits.append(True)
            return super().read(refs)

    migrate(full, opened("two", kind=Target), FakeEmbedder(), progress=quiet)
    assert waits == [False] * 4 + [True] * 4


# --- unreadable records


@pytest.fixture
def torn(tmp_path: Path) -> Iterator[Store]:
    """A files store with a conflict marker of Git in the file of one namespace."""
    store = open_store(f"files:///{tmp_path}/notes", FakeEmbedder.space)
    store.append([record(IDS[0])])
    store.append([record(IDS[1], namespace="bob"), turn(0, namespace="bob")])
    with (tmp_path / "notes" / "ann.jsonl").open("a") as file:
        file.write("<<<<<<< HEAD\n")
    yield store
    store.close()


def test_unreadable_records_are_never_silently_omitted(
    torn: Store, opened: Open, tmp_path: Path
) -> None:
    copy, steps = opened("copy"), []
    for move in (
        lambda: export(torn, lambda _: None, namespaces=None, progress=quiet),
        lambda: export(torn, lambda _: None, namespaces=["ann"], with_vectors=True, progress=quiet),
        lambda: migrate(torn, copy, FakeEmbedder(), progress=lambda *_: steps.append("copying")),
        lambda: reembed(torn, Other(), progress=lambda *_: steps.append("embedding")),
        lambda: import_lines(torn, [HEADER, line_of()], namespaces=["ann"]),  # type: ignore[arg-type]
        lambda: import_lines(torn, [HEADER, line_of()], namespaces=["ann"], dry_run=True),  # type: ignore[arg-type]
    ):
        with pytest.raises(StoreDamaged, match=r"ann\.jsonl:2 can't be read"):
            move()
    assert steps == []
    assert not (tmp_path / "copy.db").exists()
    assert export(torn, lambda _: None, namespaces=["bob"], progress=quiet) == 2


def test_damage_during_a_migration_fails_its_verification(
    torn: Store, opened: Open, tmp_path: Path
) -> None:
    file = tmp_path / "notes" / "ann.jsonl"
    damaged, well = file.read_text(), file.read_text().replace("<<<<<<< HEAD\n", "")
    file.write_text(well)
    tell = on("copying", lambda: file.write_text(damaged))
    with pytest.raises(StoreDamaged, match=r"ann\.jsonl:2"):
        migrate(torn, opened("copy"), FakeEmbedder(), progress=tell)
    file.write_text(well)
    assert len(migrate(torn, opened("copy"), FakeEmbedder(), progress=quiet).contents) == 3


# --- reembed


def found_by(store: SQLiteStore, embedder: FakeEmbedder, query: str) -> str:
    """Return the id of the memory nearest to a query."""
    (best, *_) = sorted(
        store.candidates(live(), vector=embedder.embed(query)[0], terms=[], k=5),
        key=lambda hit: -(hit.similarity or 0),
    )
    assert best.similarity == pytest.approx(1.0, abs=0.01)
    return best.record.ref.group


def test_searches_work_while_the_embedder_is_changed(full: SQLiteStore, opened: Open) -> None:
    old, seen = opened(), []
    tell = lambda *_: seen.append(found_by(old, FakeEmbedder(), "Ünï 日本 🎉"))  # noqa: E731
    before = content(full)
    result = reembed(opened("one", None), Other(), progress=tell)
    assert (result.embedded, result.before, result.model) == (15, "fake/1", "other/1")
    assert set(seen) == {IDS[0]}
    assert len(seen) >= 2
    with pytest.raises(EmbedderMismatch, match="memory reembed"):
        found_by(old, FakeEmbedder(), "Ünï 日本 🎉")
    new = opened("one", Other.space)
    assert found_by(new, Other(), "Ünï 日本 🎉") == IDS[0]
    assert content(new) == before
    assert reembed(new, Other(), progress=quiet).embedded == 0


def test_a_long_answer_has_the_same_vectors_regardless_of_how_it_is_stored(
    opened: Open, tmp_path: Path
) -> None:
    text = "rye bread\nwarm water\nthe train to Basel"
    plain = ByLine().embed(text)
    with Memories(
        f"sqlite:///{tmp_path}/one.db", embedder=ByLine(), namespace="ann", shared=False
    ) as memories:
        memories.add_turns("talk", [TurnDraft(text, role=role) for role in ("user", "assistant")])
        memories.create(text, tags={"role": "assistant"})
    store = opened("one")
    refs = [
        records.ref
        for kind in (HISTORY, MEMORY)
        for records in store.scan(live(collection=kind), limit=9)
    ]
    vectors_before = store.vectors(refs)
    user, answer, note = (vectors_before[ref] for ref in refs)
    halfway = plain + plain[:1]
    assert np.allclose(user, plain, atol=0.02)
    assert np.allclose(answer, halfway / np.linalg.norm(halfway, axis=1, keepdims=True), atol=0.02)
    assert np.allclose(note, plain, atol=0.02)  # regardless of the names of its tags
    bare = opened("bare")
    import_lines(bare, lines_of(store), ByLine())
    assert reembed(opened("one", None), OtherByLine(), progress=quiet).embedded == 3
    for again in (bare.vectors(refs), opened("one", OtherByLine.space).vectors(refs)):
        assert np.allclose(
            [again[ref] for ref in refs], [vectors_before[ref] for ref in refs], atol=0.02
        )


def test_records_written_while_the_embedder_is_changed_get_vectors_too(
    full: SQLiteStore, opened: Open
) -> None:
    rival = opened()
    tell = on("embedding", lambda: rival.append([record(IDS[6], text="elder tea"), turn(9)]))
    assert reembed(full, Other(), progress=tell).embedded == 17
    new = opened("one", Other.space)
    assert found_by(new, Other(), "elder tea") == IDS[6]
    assert new.info(live(state="any")).without_vector_count == 0


def test_an_interrupted_change_of_the_embedder_can_be_continued(
    full: SQLiteStore, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded: list[str] = []

    class Failing(Other):
        def embed(self, text: str) -> Any:
            embedded.append(text)
            if len(embedded) == 9:
                raise KeyboardInterrupt
            return super().embed(text)

    monkeypatch.setattr(reembedding, "PAGE", 4)
    monkeypatch.setattr(reembedding, "FEW_CHANGES", 4)
    with pytest.raises(
        KeyboardInterrupt
    ):  # once all 6 memories are staged, in the first batch of turns
        reembed(full, Failing(), progress=quiet)
    assert found_by(full, FakeEmbedder(), "Ünï 日本 🎉") == IDS[0]
    assert reembed(opened(), Failing(), progress=quiet).embedded == 9
    assert opened("one", None).info(live()).model == "other/1"


def test_an_empty_store_reports_a_missing_model(opened: Open) -> None:
    class Absent(Other):
        def embed(self, text: str) -> Any:
            raise InvalidInput(f"no model for {text}")

    with pytest.raises(InvalidInput, match="no model"):
        reembed(opened(), Absent(), progress=quiet)


def test_reembedding_with_the_same_embedder_creates_missing_vectors(opened: Open) -> None:
    plain = opened("one", None)
    plain.append([record(IDS[0], text="apple", vectors=None), turn(1, vectors=None)])
    assert reembed(plain, FakeEmbedder(), progress=quiet)[:2] == (2, None)
    plain.append([record(IDS[1], text="pear", vectors=None)])
    assert reembed(plain, FakeEmbedder(), progress=quiet) == (1, "fake/1", "fake/1")
    assert found_by(opened(), FakeEmbedder(), "pear") == IDS[1]


def test_reembedding_a_missing_store_does_nothing(opened: Open, tmp_path: Path) -> None:
    assert reembed(opened(), Other(), progress=quiet).embedded == 0
    assert list(tmp_path.glob("*.db*")) == []


def test_a_store_that_does_not_stage_vectors_causes_no_endless_loop(
    full: SQLiteStore, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgetful(SQLiteStore):
        def stage(self, space: Space, vectors: Mapping[Ref, Any]) -> None:
            """Store nothing."""

    monkeypatch.setattr(reembedding, "PAGE", 4)
    with pytest.raises(StoreError, match="does not keep the new vectors"):
        reembed(opened("one", kind=Forgetful), Other(), progress=quiet)
    assert found_by(full, FakeEmbedder(), "Ünï 日本 🎉") == IDS[0]


def test_a_conflict_in_a_store_without_transactions_is_retried(
    full: SQLiteStore, opened: Open
) -> None:
    rival = opened()
    writes = iter([IDS[6], IDS[7]])

    class Loose(SQLiteStore):
        """A store to which another program writes between the last look and the switch."""

        @contextmanager
        def transaction(self) -> Iterator[None]:
            yield

        def switch(self, space: Space) -> None:
            for group in writes:
                rival.append([record(group)])
                break
            super().switch(space)

    assert reembed(opened("one", kind=Loose), Other(), progress=quiet).embedded == 17
    assert opened("one", Other.space).unstaged(Other.space, MEMORY, limit=9) == []


def test_writers_do_not_wait_for_an_embedder(
    full: SQLiteStore, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer writes during each embedding until only the last record is left, which is
    embedded while writers wait.
    """
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.05)
    rival, waits, left = opened(), [], list(range(100, 100 + 50))

    class Watched(Other):
        embed_query = Other.embed

        def embed_many(self, texts: Sequence[str]) -> Any:
            try:
                rival.append([turn(left.pop())])
                waits.append(0)
            except StoreBusy:
                waits.append(len(texts))
            return [self.embed(text) for text in texts]

    assert reembed(opened("one", None), Watched(), progress=quiet).model == "other/1"
    assert waits[:2] == [0, 0]
    assert waits.count(0) >= reembedding.PATIENCE
    assert [count for count in waits if count] == [1]
    assert opened("one", Other.space).unstaged(Other.space, HISTORY, limit=9) == []


def test_writers_that_outpace_the_embedder_cause_an_error(full: SQLiteStore, opened: Open) -> None:
    rival, positions = opened(), iter(range(100, 100_000))

    class Slow(Other):
        embed_query = Other.embed

        def embed_many(self, texts: Sequence[str]) -> Any:
            rival.append([turn(next(positions)) for _ in range(reembedding.FEW_LEFT + 1)])
            return [self.embed(text) for text in texts]

    with pytest.raises(StoreError, match="run this again later"):
        reembed(full, Slow(), progress=quiet)
    assert found_by(full, FakeEmbedder(), "Ünï 日本 🎉") == IDS[0]


def test_persistent_conflicts_cause_an_error(full: SQLiteStore, opened: Open) -> None:
    class Raced(SQLiteStore):
        def switch(self, space: Space) -> None:
            raise Conflict("somebody wrote")

    with pytest.raises(StoreError, match="run this again later"):
        reembed(opened("one", kind=Raced), Other(), progress=quiet)
    assert found_by(full, FakeEmbedder(), "Ünï 日本 🎉") == IDS[0]


def test_records_stored_during_a_restore_are_detected(home: Path, tmp_path: Path) -> None:
    """This can't happen in a SQLite file, which is replaced as a whole."""
    lines: list[str] = []
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none") as memories:
        memories.create("Deploys happen on Tuesdays")
        export(memories._store, lines.append, namespaces=None, progress=lambda *_: None)
    source, url = tmp_path / "backup.jsonl", f"files:///{tmp_path}/restored"
    source.write_text("".join(f"{line.rstrip()}\n" for line in lines), encoding="utf-8")
    others = ["Rain is expected"]

    def progress(_what: str, _done: int, _whole: int) -> None:
        if others:
            with Memories(url, embedder="none") as other:
                other.create(others.pop())

    with pytest.raises(
        StoreError, match=r"has 1 record, 1 was added, and .* now has 2, .* memory import"
    ):
        restore(load_config({"store": url}), source, None, now=T0, progress=progress)


def test_waiting_memories_of_an_import_are_counted_by_namespace(tmp_path: Path) -> None:
    lines: list[str] = []
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none") as memories:
        memories.create_many(
            [Draft(f"Rain falls in {place}", pending=True) for place in ("Rome", "Oslo", "Lima")]
        )
        export(memories._store, lines.append, namespaces=None, progress=lambda *_: None)
    with Memories(f"sqlite:///{tmp_path}/other.db", embedder="none") as memories:
        result = import_(memories._store, [line.encode() for line in lines], None, namespaces=None)
    assert result.pending == {"shared": 3}
