"""The origin of a record: every store keeps it and filters by it, and never shows it as a tag."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clock import Clock
from contract.samples import SPACE, OpenStore, record
from memories import Memories, TurnDraft
from memories.embedders.fake import FakeEmbedder
from memories.errors import InvalidInput
from memories.guard.origin import origin, origin_of
from memories.stores.sqlite.store import SQLiteStore
from memories.transfer.migrate import migrate

MANY = 70  # more than the best matches that a search reads
CURSOR, CODEX = ("cursor", "2.0"), ("codex", "1.1")


class Origins:
    """Tests of the origins of records."""

    def test_filters_by_origin_match_only_that_origin(self, open_store: OpenStore) -> None:
        memories = Memories(
            open_store(SPACE), namespace="ann", embedder=FakeEmbedder(), channel="mcp"
        )
        cursor, codex = memories.of_client(*CURSOR), memories.of_client(*CODEX)
        texts = [f"Deploys of service {number} happen on Tuesdays" for number in range(MANY)]
        codex.create_many(texts, force=True)
        codex.add_turns("talk", texts)
        made = cursor.create(
            "Deploys happen on Tuesdays after lunch", tags={"type": "fact"}, force=True
        ).memory
        assert made is not None
        [said] = cursor.add_turns("talk", [TurnDraft("Deploys happen on Tuesdays, I said")])
        query = "when do deploys happen on Tuesdays"
        given: dict[str, Any]
        for given in ({"written_by": "cursor"}, {"written_by": "cursor", "trust": "agent"}):
            assert [hit.id for hit in memories.search(query, **given)] == [made.id]
            assert [hit.id for hit in memories.search(query, scope="history", **given)] == [said.id]
            both = memories.search(query, scope="all", **given)
            assert {hit.id for hit in both} == {made.id, said.id}
            assert memories.list(**given).memories[0].id == made.id
            assert memories.tags(**given) == {"type": 1}
        assert memories.tags() == {"type": 1}
        assert memories.tags("type", written_by="codex") == {}
        assert memories.search(query, tags={"type": "fact"}, written_by="codex") == ()
        for given in ({"trust": "user"}, {"written_by": "Cursor"}, {"written_by": "nobody"}):
            assert memories.search(query, scope="all", **given) == ()
            assert memories.list(**given).memories == ()
        seen = [hit.found.origin for hit in memories.search(query, scope="all", limit=200)]
        assert {entry.client for entry in seen if entry} == {"cursor 2.0", "codex 1.1"}
        for wrong in ("", "king", "=trust", "User"):
            with pytest.raises(
                InvalidInput, match="trust must be user, agent, captured or imported"
            ):
                memories.search(query, trust=wrong)

    def test_each_version_keeps_its_writer(self, open_store: OpenStore) -> None:
        clock, store = Clock(), open_store(SPACE)
        memories = Memories(
            store, namespace="ann", embedder=FakeEmbedder(), channel="mcp", clock=clock
        )
        made = memories.of_client(*CODEX).create("The user drinks tea").memory
        assert made is not None
        before, clock.now = clock.now, clock.now + timedelta(days=1)
        memories.of_client(*CURSOR).update(made.id, "The user drinks green tea")
        versions = memories.history(made.id).versions
        assert [version.origin for version in versions] == [
            origin("mcp", "ann", CODEX),
            origin("mcp", "ann", CURSOR),
        ]
        assert memories.list(written_by="codex").memories == ()
        [then] = memories.list(written_by="codex", as_of=before).memories
        assert (then.content, then.origin) == (made.content, versions[0].origin)

    def test_a_copy_keeps_origins(self, open_store: OpenStore, tmp_path: Path) -> None:
        store = open_store(SPACE)
        memories = Memories(store, namespace="ann", embedder=FakeEmbedder(), channel="mcp")
        memories.of_client(*CODEX).create("The user drinks tea")
        memories.of_client(*CURSOR).add_turns("talk", ["Tea?"])
        copy = SQLiteStore(tmp_path / "copy.db", SPACE)
        migrate(store, copy, FakeEmbedder(), progress=lambda *_: None)
        with Memories(copy, namespace="ann", embedder=FakeEmbedder()) as copied:
            assert [entry.origin for entry in copied.list().memories] == [
                origin("mcp", "ann", CODEX)
            ]
            assert [turn.origin for turn in copied.turns("talk")] == [origin("mcp", "ann", CURSOR)]
        copy.close()

    def test_a_record_without_an_origin_has_none(self, open_store: OpenStore) -> None:
        store = open_store(SPACE)
        old = record("01a1fdf1-92cd-72f2-8000-000000000001")
        store.append([old])
        [result] = store.read([old.ref])
        assert origin_of(result.labels) is None
        memories = Memories(store, namespace=old.ref.namespace, embedder=FakeEmbedder())
        assert memories.get(old.ref.group).origin is None
        assert memories.list(trust="agent").memories == ()
