"""A folder of the files store's first format keeps its vectors and counts of reads.
`files_format1.tar.gz` is one.
"""

import tarfile
from pathlib import Path

import pytest

from memories.memories import Memories
from memories.stores.files import local

ARCHIVE = Path(__file__).parent.parent / "data" / "files_format1.tar.gz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that an earlier version wrote."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "notes"


def memories(folder: Path, **given: str) -> Memories:
    """Open the memories in the folder."""
    return Memories(f"files:///{folder}", **{"embedder": "fake", **given})


def test_vectors_and_counts_of_reads_are_taken_over(folder: Path) -> None:
    with memories(folder) as shared:
        assert shared.status().without_vector_count == 0
        [tea, *_] = shared.search("Dora likes tea")
        assert (tea.memory.content, tea.similarity) == (
            "Dora likes tea",
            pytest.approx(1.0, abs=0.01),
        )
        assert tea.memory.access_count >= 4
    with memories(folder, namespace="bob") as bob:
        assert bob.status().without_vector_count == 0
        assert {
            hit.similarity is not None
            for hit in bob.search("when does the ferry leave", scope="all")
        } == {True}
    assert not [
        file
        for file in (folder / ".memories").iterdir()
        if file.suffix in (".vectors", ".accesses", ".json")
    ]


def test_what_another_namespace_forgets_takes_nothing_from_this_one(folder: Path) -> None:
    with memories(folder, namespace="bob") as bob:
        bob.forget(bob.list().memories[0].id)
    with memories(folder) as shared:
        assert shared.status().without_vector_count == 0


def test_a_crash_before_the_old_files_are_removed_counts_nothing_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as crashing, memories(folder) as shared:
        crashing.setattr(
            local.Folder, "discard", lambda *_: (_ for _ in ()).throw(OSError("killed"))
        )
        with pytest.raises(OSError, match="killed"):
            shared.list()
    with memories(folder) as shared:
        assert {memory.content: memory.access_count for memory in shared.list().memories}[
            "Dora likes tea"
        ] == 4


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"used": ["fake/1", 0]}', b'{"used": ["fake/1", 7]}', b'{"used": null}']
)
def test_what_names_the_vectors_and_is_damaged_costs_the_vectors_alone(
    folder: Path, data: bytes
) -> None:
    (folder / ".memories" / "spaces.json").write_bytes(data)
    with memories(folder) as shared:
        assert len(shared.list().memories) == shared.status().without_vector_count == 3


def test_vectors_cut_short_are_taken_over_as_far_as_they_go(folder: Path) -> None:
    [vectors] = (folder / ".memories").glob("shared.jsonl.*.vectors")
    vectors.write_bytes(vectors.read_bytes()[:-10])
    with memories(folder) as shared:
        assert shared.status().without_vector_count == 1


def test_a_text_that_was_edited_meanwhile_has_no_vector(folder: Path) -> None:
    lines = folder / "shared.jsonl"
    lines.write_text(lines.read_text().replace("Cologne", "Bonn"))
    with memories(folder) as shared:
        assert shared.status().without_vector_count == 1
