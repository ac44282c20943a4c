"""`MemoriesStore` compared with LangGraph's own stores: where they agree, and where ours differs
intentionally.
"""

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from memories import Draft, InvalidInput, Memories
from memories.embedders.fake import FakeEmbedder
from memories.guard.redactor import Redactor
from memories.langgraph import MemoriesStore
from memories.transfer.export import export
from memories.transfer.importing import import_
from memories.transfer.intake import Intake

OURS = ("sqlite", "files", "qdrant")
ANN = ("users", "ann")


@pytest.fixture(params=(*OURS, "in memory", "their sqlite"))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseStore]:
    """Each store: two of LangGraph's and ours."""
    if request.param == "in memory":
        yield InMemoryStore()
    elif request.param == "their sqlite":
        connection = sqlite3.connect(
            tmp_path / "theirs.db", isolation_level=None, check_same_thread=False
        )
        theirs = SqliteStore(connection)
        theirs.setup()
        yield theirs
        connection.close()
    else:
        with MemoriesStore(f"{request.param}:///{tmp_path}/store", embedder="fake") as ours:
            yield ours


@pytest.fixture(params=OURS)
def ours(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MemoriesStore]:
    """Our store over each kind of file."""
    with MemoriesStore(f"{request.param}:///{tmp_path}/store", embedder="fake") as opened:
        yield opened


def keys(found: list[Any]) -> set[str]:
    """Return the keys of the items that were found."""
    return {item.key for item in found}


# --- all stores


def test_a_value_is_returned_unchanged(store: BaseStore) -> None:
    value = {
        "content": "Ann climbs",
        "n": 1,
        "deep": {"list": [1, 2.5, None, True, "é", "日本"]},
        "": "",
    }
    store.put(ANN, "k", value)
    item = store.get(ANN, "k")
    assert item is not None
    assert (item.value, item.key, tuple(item.namespace)) == (value, "k", ANN)
    store.put(ANN, "k", {"content": "Ann swims"})
    changed = store.get(ANN, "k")
    assert changed is not None
    assert changed.value == {"content": "Ann swims"}
    store.put(ANN, "k", {"content": "Ann swims", "n": 2})
    again = store.get(ANN, "k")
    assert again is not None
    assert again.value == {"content": "Ann swims", "n": 2}
    store.put(ANN, "k", {"content": "Ann swims"})
    last = store.get(ANN, "k")
    assert last is not None
    assert last.value == {"content": "Ann swims"}


def test_a_missing_item_is_none_and_deleting_it_has_no_effect(store: BaseStore) -> None:
    assert store.get(ANN, "k") is None
    store.delete(ANN, "k")
    store.put(ANN, "k", {"a": 1})
    store.delete(ANN, "k")
    store.delete(ANN, "k")
    assert store.get(ANN, "k") is None
    assert store.search(ANN) == []
    store.put(ANN, "k", {"a": 2})
    item = store.get(ANN, "k")
    assert item is not None
    assert item.value == {"a": 2}


def test_a_prefix_is_compared_label_by_label(store: BaseStore) -> None:
    for number, namespace in enumerate((("a",), ("a", "b"), ("ab",), ("a", "b", "c"), ("b", "a"))):
        store.put(namespace, f"k{number}", {"n": number})
    assert keys(store.search(("a",))) == {"k0", "k1", "k3"}
    assert keys(store.search(("a", "b"))) == {"k1", "k3"}
    assert keys(store.search(())) == {"k0", "k1", "k2", "k3", "k4"}
    assert store.search(("c",)) == []


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"n": 1}, {"one"}),
        ({"n": {"$eq": 2}}, {"two"}),
        ({"n": {"$ne": 2}, "kind": "x"}, {"one"}),
        ({"n": {"$gt": 1}}, {"two"}),
        ({"n": {"$gte": 1}}, {"one", "two"}),
        ({"n": {"$gte": 1, "$lt": 2}}, {"one"}),
        ({"n": {"$lte": 1}}, {"one"}),
        ({"tags": ["a", "b"]}, {"one"}),
        ({"kind": "none"}, set()),
        ({"missing": None}, {"one", "two"}),
    ],
)
def test_a_filter_selects_items(store: BaseStore, wanted: dict[str, Any], found: set[str]) -> None:
    store.put(ANN, "one", {"n": 1, "kind": "x", "tags": ["a", "b"]})
    store.put(ANN, "two", {"n": 2, "kind": "y", "tags": ["b", "a"]})
    assert keys(store.search(ANN, filter=wanted)) == found


def test_an_unknown_operator_is_refused(store: BaseStore) -> None:
    store.put(ANN, "k", {"n": 1})
    with pytest.raises(ValueError, match=r"Unsupported operator: \$in"):
        store.search(ANN, filter={"n": {"$in": [1]}})


def test_a_batch_reads_the_state_before_its_writes(store: BaseStore) -> None:
    store.put(ANN, "k", {"n": 0})
    results = store.batch(
        [PutOp(ANN, "k", {"n": 1}), GetOp(ANN, "k"), PutOp(ANN, "k", {"n": 2}), SearchOp(ANN)]
    )
    assert results[0] is None
    assert results[1].value == {"n": 0}  # type: ignore[union-attr]
    assert results[2] is None
    item = store.get(ANN, "k")
    assert item is not None
    assert item.value == {"n": 2}


def test_namespaces_are_listed_by_prefix_suffix_and_depth(store: BaseStore) -> None:
    for namespace in (("a",), ("a", "b", "c"), ("a", "b", "d"), ("e", "b")):
        store.put(namespace, "k", {"n": 1})
    assert store.list_namespaces() == [("a",), ("a", "b", "c"), ("a", "b", "d"), ("e", "b")]
    assert store.list_namespaces(prefix=("a",)) == [("a",), ("a", "b", "c"), ("a", "b", "d")]
    assert store.list_namespaces(prefix=("a", "*")) == [("a", "b", "c"), ("a", "b", "d")]
    assert store.list_namespaces(suffix=("b",)) == [("e", "b")]
    assert store.list_namespaces(max_depth=2) == [("a",), ("a", "b"), ("e", "b")]
    assert store.list_namespaces(limit=2, offset=1) == [("a", "b", "c"), ("a", "b", "d")]


@pytest.mark.parametrize("namespace", [(), ("langgraph", "x"), ("a.b",), ("",)])
def test_an_invalid_namespace_is_refused(store: BaseStore, namespace: tuple[str, ...]) -> None:
    with pytest.raises(InvalidNamespaceError):
        store.put(namespace, "k", {"n": 1})


def test_items_are_returned_in_pages(store: BaseStore) -> None:
    for number in range(5):
        store.put(ANN, f"k{number}", {"n": number})
    pages = [
        store.search(ANN, limit=2, offset=offset, filter={"n": {"$gte": 1}}) for offset in (0, 2, 4)
    ]
    assert [len(page) for page in pages] == [2, 2, 0]
    assert keys([*pages[0], *pages[1]]) == {"k1", "k2", "k3", "k4"}


def test_the_async_methods_return_the_same_results(store: BaseStore) -> None:
    async def use() -> Any:
        await store.aput(ANN, "k", {"content": "Ann climbs"})
        return await store.aget(ANN, "k"), await store.asearch(ANN), await store.alist_namespaces()

    if type(store) is not SqliteStore:  # LangGraph has a separate class for that
        item, found, namespaces = asyncio.run(use())
        assert item.value == {"content": "Ann climbs"}
        assert keys(found) == {"k"}
        assert namespaces == [ANN]


# --- only our store, or not all of theirs


def test_the_newest_items_come_first(ours: MemoriesStore) -> None:
    for number in range(4):
        ours.put(ANN, f"k{number}", {"n": number})
    assert [item.key for item in ours.search(ANN)] == ["k3", "k2", "k1", "k0"]


def test_a_nested_filter_compares_part_of_a_value(ours: MemoriesStore) -> None:
    ours.put(ANN, "k", {"o": {"p": 1, "q": 2}})
    ours.put(ANN, "other", {"o": 1})
    assert keys(ours.search(ANN, filter={"o": {"p": 1}})) == {"k"}
    assert keys(ours.search(ANN, filter={"o": {"p": {"$gt": 0}}})) == {"k"}
    assert keys(ours.search(ANN, filter={"missing": {"$ne": 1}})) == {"k", "other"}
    assert keys(ours.search(ANN, filter={"o": {"$gt": "a"}})) == set()


def test_a_returned_item_is_a_copy(ours: MemoriesStore) -> None:
    value = {"list": [1]}
    ours.put(ANN, "k", value)
    value["list"].append(2)
    item = ours.get(ANN, "k")
    assert item is not None
    item.value["list"].append(3)
    again = ours.get(ANN, "k")
    assert again is not None
    assert again.value == {"list": [1]}
    ours.put(ANN, "k", {"list": []})
    changed = ours.get(ANN, "k")
    assert changed is not None
    assert item.created_at == changed.created_at
    assert item.created_at.tzinfo is not None
    assert changed.updated_at >= item.updated_at


def test_a_namespace_disappears_with_its_last_item(ours: MemoriesStore) -> None:
    ours.put(ANN, "k", {"n": 1})
    ours.delete(ANN, "k")
    assert ours.list_namespaces() == []


def test_operations_are_validated_like_method_calls(ours: MemoriesStore) -> None:
    for op in (PutOp(("a.b",), "k", {}), GetOp(("a.b",), "k"), SearchOp(("a.b",))):
        with pytest.raises(InvalidNamespaceError):
            ours.batch([op])
    with pytest.raises(TypeError):
        ours.batch([PutOp(ANN, 3, {"n": 1})])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        ours.batch([PutOp((), "k", {"n": 1})])
    with pytest.raises(TypeError):
        ours.put(ANN, "k", ["no"])  # type: ignore[arg-type]
    for call in (lambda: ours.put("ann", "k", {}), lambda: ours.search("ann")):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="pass a tuple of labels"):
            call()
    ours.put(["list"], "k", {"n": 1})  # type: ignore[arg-type]
    assert ours.get(["list"], "k") is not None  # type: ignore[arg-type]
    ours.delete(("list",), "k")
    with pytest.raises(NotImplementedError):
        ours.put(ANN, "k", {"n": 1}, ttl=5)
    assert ours.batch([ListNamespacesOp()]) == [[]]


@pytest.mark.parametrize("key", [" k", "k\n", "", "e\u0301", "k" * 300])
def test_a_key_that_would_be_normalized_is_refused(ours: MemoriesStore, key: str) -> None:
    with pytest.raises(InvalidInput):
        ours.put(ANN, key, {"n": 1})
    assert ours.search(()) == []


DEEP = json.loads("[" * 900 + "]" * 900)


@pytest.mark.parametrize(
    "value", [{"n": float("nan")}, {"n": {1, 2}}, {"n": "\ud800"}, {"n": DEEP}]
)
def test_a_value_that_is_not_json_is_refused_and_its_batch_stores_nothing(
    ours: MemoriesStore, value: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        ours.batch([PutOp(ANN, "good", {"n": 1}), PutOp(ANN, "bad", value)])
    assert ours.search(()) == []


def test_a_query_ranks_its_hits_before_items_that_are_not_indexed(
    ours: MemoriesStore,
) -> None:
    ours.put(ANN, "sport", {"content": "Ann climbs in the mountains every summer"})
    ours.put(ANN, "food", {"food": "pizza", "when": "on fridays"})
    ours.put(ANN, "later", {"content": "nothing of mountains here"}, index=False)
    ours.put(ANN, "path", {"title": "winter", "hidden": "mountains"}, index=["title"])
    ours.put(("users", "ben"), "other", {"content": "Ben climbs in the mountains too"})
    found = ours.search(ANN, query="who climbs in the mountains?")
    assert [item.key for item in found] == ["sport", "later"]
    assert found[0].score is not None
    assert found[1].score is None
    assert [item.key for item in ours.search(ANN, query="pizza")] == ["food", "later"]
    assert keys(
        ours.search(("users",), query="climbs in the mountains", filter={"content": {"$ne": ""}})
    ) >= {"other"}
    item = ours.get(ANN, "later")
    assert item is not None
    assert item.value == {"content": "nothing of mountains here"}


def test_a_filter_finds_its_only_match_behind_many_hits(ours: MemoriesStore) -> None:
    ours.batch(
        [
            PutOp(ANN, f"k{n}", {"content": f"a day in the mountains, number {n}", "n": n})
            for n in range(60)
        ]
    )
    assert keys(ours.search(ANN, query="mountains", filter={"n": 7}, limit=1)) == {"k7"}


@pytest.mark.parametrize("wanted", [None, {"n": 3}], ids=["no filter", "filter"])
def test_a_querys_pages_contain_each_hit_once(
    ours: MemoriesStore, wanted: dict[str, Any] | None
) -> None:
    subjects = ("Ann", "Bob", "Cy", "Dee", "Eve")
    places = ("Alps", "Rome", "garden", "port", "tea house")
    contents = [f"{subjects[n % 5]} likes the {places[n % 7 % 5]}, note {n % 9}" for n in range(90)]
    ours.batch([PutOp(ANN, f"k{n}", {"content": contents[n], "n": n % 4}) for n in range(90)])
    for query in ("Eve", "who likes the Alps?"):
        pages = [
            item.key
            for offset in range(0, 90, 6)
            for item in ours.search(ANN, query=query, filter=wanted, limit=6, offset=offset)
        ]
        whole = ours.search(ANN, query=query, filter=wanted, limit=90)
        assert len(pages) == len(set(pages))
        assert set(pages) == keys(whole)
        assert len(whole) == len(pages)


def test_a_search_counts_only_the_reads_of_the_items_that_it_returns(ours: MemoriesStore) -> None:
    ours.batch([PutOp(ANN, f"k{n}", {"content": f"a day in the mountains, {n}"}) for n in range(9)])
    found = keys(ours.search(ANN, query="mountains", limit=2, offset=1))
    ours._memories.flush_accesses()
    read = [item for item in ours._memories.list().memories if item.access_count]
    assert {str(item.key).removeprefix("users.ann/") for item in read} == found


def test_items_whose_labels_and_keys_contain_slashes_are_different(store: BaseStore) -> None:
    places = [(("a/b",), "k"), (("a",), "b/k"), (("a/",), "k"), (("a",), "/k"), (("a", "/b"), "k")]
    for number, (namespace, key) in enumerate(places):
        store.put(namespace, key, {"content": f"number {number}"})
    for number, (namespace, key) in enumerate(places):
        item = store.get(namespace, key)
        assert item is not None
        assert (tuple(item.namespace), item.key) == (namespace, key)
        assert item.value == {"content": f"number {number}"}
    assert {(tuple(item.namespace), item.key) for item in store.search(())} == set(places)


@pytest.mark.parametrize(
    ("namespace", "key"),
    [
        (ANN, "ghp_52bed334f8730fed0e717859699da7cc2379"),
        (("users", "token: 4c55f1fdb129c430fbc54589d3478fc5"), "k"),
    ],
    ids=["key", "label"],
)
def test_a_name_that_contains_a_secret_is_refused(
    ours: MemoriesStore, namespace: tuple[str, ...], key: str
) -> None:
    with pytest.raises(InvalidInput, match="contains what looks like a secret"):
        ours.put(namespace, key, {"content": "Ann climbs"})
    assert ours.search(()) == []


def test_a_name_with_an_extra_space_finds_nothing(store: BaseStore) -> None:
    store.put(ANN, "k", {"content": "Ann climbs"})
    assert store.get(ANN, "k ") is None
    assert store.search(("users ",)) == []


def test_a_batch_embeds_before_it_begins_to_write(
    ours: MemoriesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_transactions = []

    def embed(self: FakeEmbedder, text: str) -> Any:
        open_transactions.append(ours._memories._open_transactions)
        return real_embed(self, text)

    real_embed = FakeEmbedder.embed
    monkeypatch.setattr(FakeEmbedder, "embed", embed)
    ours.batch([PutOp(ANN, "k", {"content": "Ann climbs"}), PutOp(ANN, "l", {"content": "Ben"})])
    assert set(open_transactions) == {0}


def test_an_item_is_a_memory_that_the_user_can_change(ours: MemoriesStore) -> None:
    ours.put(ANN, "k", {"content": "Ann climbs", "n": 1})
    memories = ours._memories
    (memory,) = memories.list().memories
    assert memory.content == "Ann climbs"
    assert memory.key == "users.ann/k"
    memories.update(memory.id, tags={"type": "fact"})
    item = ours.get(ANN, "k")
    assert item is not None
    assert item.value == {"content": "Ann climbs", "n": 1}
    memories.update(memory.id, "Ann swims")
    item = ours.get(ANN, "k")
    assert item is not None
    assert item.value == {"content": "Ann swims"}
    memories.rollback(memory.updated_at)
    item = ours.get(ANN, "k")
    assert item is not None
    assert item.value == {"content": "Ann climbs", "n": 1}


def test_other_memories_are_not_items(ours: MemoriesStore) -> None:
    ours._memories.create("Ann climbs in the mountains", key="users.ann/k")
    assert ours.search((), query="mountains") == []
    assert ours.search(()) == []
    assert ours.list_namespaces() == []


def test_secrets_in_values_are_redacted(ours: MemoriesStore) -> None:
    token = "ghp_" + "a1B2c3D4e5" * 3 + "abcdef"
    ours.put(
        ANN,
        "k",
        {
            "content": "see the notes",
            "list": [{"deep": f"token {token}"}],
            token: 1,
            "password": "zX9!kq7Lm2",
        },
    )
    item = ours.get(ANN, "k")
    assert item is not None
    assert token not in str(item.value)
    assert "zX9!kq7Lm2" not in str(item.value)
    assert item.value["content"] == "see the notes"


def test_items_in_another_memories_namespace_are_not_seen(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store"
    with (
        MemoriesStore(url, namespace="ann", embedder="fake") as ann,
        MemoriesStore(url, embedder="fake") as shared,
    ):
        shared.put(("x",), "k", {"n": 1})
        assert ann.get(("x",), "k") is None
        assert ann.search(()) == []
        assert ann.list_namespaces() == []


def test_many_threads_lose_nothing(ours: MemoriesStore) -> None:
    def put(number: int) -> None:
        ours.put(ANN, f"k{number}", {"n": number})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(40)))
    assert {item.value["n"] for item in ours.search(ANN, limit=100)} == set(range(40))


def test_an_export_contains_the_values_without_their_secrets(
    ours: MemoriesStore, tmp_path: Path
) -> None:
    token = "ghp_" + "a1B2c3D4e5" * 3 + "abcdef"
    ours.put(ANN, "k", {"content": "Ann climbs", "n": 1})
    tags = {"langgraph.1": "users", "langgraph.2": "users.ann"}
    late = Draft(
        "Ann swims",
        tags,
        key="users.ann/late",
        data=json.dumps({"content": "Ann swims", "n": token}),
    )
    ours._memories.create_many([late], redact=False)
    lines: list[str] = []
    export(
        ours._memories._raw_store,
        lines.append,
        namespaces=None,
        progress=lambda what, done, whole: None,
    )
    url = f"sqlite:///{tmp_path}/copy"
    with MemoriesStore(url, embedder="fake") as copy:
        kept = copy._memories._raw_store
        intake = Intake(redactor=Redactor())
        import_(kept, map(str.encode, lines), FakeEmbedder(), namespaces=None, intake=intake)
        item = copy.get(ANN, "k")
        assert item is not None
        assert item.value == {"content": "Ann climbs", "n": 1}
        item = copy.get(ANN, "late")
        assert item is not None
        assert item.value == {"content": "Ann swims", "n": "[redacted:github_token]"}


def test_a_pending_memory_keeps_its_value_unless_its_content_is_changed(tmp_path: Path) -> None:
    with Memories(f"sqlite:///{tmp_path}/store", embedder="fake") as memories:
        for number, content in enumerate(("Ann climbs", "Ann swims")):
            draft = Draft(content, key=f"k{number}", pending=True, data='{"n": 1}')
            assert memories.create_many([draft])[0].stored
        first, second = sorted(memories.list(pending=True).memories, key=lambda each: each.content)
        memories.review.accept([first.id])
        memories.review.accept([second.id], content="Ann rows")
        assert {each.content: each.data for each in memories.list().memories} == {
            "Ann climbs": '{"n": 1}',
            "Ann rows": None,
        }


@pytest.mark.parametrize("data", ["[1]", "{", '{"a": NaN}', "1", '{"a": 1, "a": 2}'])
def test_data_must_be_a_json_object(tmp_path: Path, data: str) -> None:
    with Memories(f"sqlite:///{tmp_path}/store", embedder="fake") as memories:
        with pytest.raises(InvalidInput, match="data"):
            memories.create_many([Draft("Ann climbs", data=data)])
        assert memories.list().memories == ()


def test_sixteen_processes_lose_nothing(tmp_path: Path, clean_environment: dict[str, str]) -> None:
    url = f"sqlite:///{tmp_path}/store"
    script = """
import sys
from langgraph.store.base import PutOp
from memories.langgraph import MemoriesStore
with MemoriesStore(sys.argv[1], embedder="fake") as store:
    for turn in range(10):
        store.put(("users", sys.argv[2]), f"k{turn}", {"n": turn})
        store.put(("users", "all"), "last", {"by": sys.argv[2], "n": turn})
"""
    running = [
        subprocess.Popen([sys.executable, "-c", script, url, str(number)], env=clean_environment)
        for number in range(16)
    ]
    assert [process.wait(timeout=900) for process in running] == [0] * 16
    with MemoriesStore(url, embedder="fake") as store:
        assert len(store.search(("users",), limit=1_000)) == 16 * 10 + 1
        (last,) = store.search(("users", "all"))
        assert last.value["n"] == 9
        memory_id = store._memories.id_of_key("users.all/last")
        assert len(store._memories.history(memory_id).versions) == 160


def test_without_langgraph_the_import_names_the_extra() -> None:
    script = "import sys; sys.modules['langgraph.store.base'] = None; import memories.langgraph"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: memories.langgraph needs langgraph; run: ")
    assert "[langgraph]" in last
