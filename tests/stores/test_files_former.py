"""A folder in the files store's first format, which had separate files for vectors and read counts
(`files_format1.tar.gz`).
"""

import tarfile
from pathlib import Path

import pytest

from memories.memories import Memories

ARCHIVE = Path(__file__).parent.parent / "data" / "files_format1.tar.gz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that an earlier version wrote."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "notes"


def test_lines_in_the_first_format_are_found_by_words(folder: Path) -> None:
    with Memories(f"files:///{folder}", embedder="fake") as memories:
        assert len(memories.list().memories) == memories.status().without_vector_count == 3
        [tea, *_] = memories.search("Dora likes tea")
        assert tea.memory.content == "Dora likes tea"


def test_forgetting_erases_vectors_in_the_first_format(folder: Path) -> None:
    assert list((folder / ".memories").glob("*.vectors"))
    with Memories(f"files:///{folder}", embedder="fake") as memories:
        memories.forget(memories.list().memories[0].id)
    assert not list((folder / ".memories").glob("*.vectors"))
    assert not list((folder / ".memories").glob("*.accesses"))
