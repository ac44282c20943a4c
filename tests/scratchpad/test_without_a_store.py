"""A scratchpad answers if the store fails; without a scratchpad, the store's error is raised."""

import threading

import pytest

from memories import Memories, StoreError
from memories.context.gateway import WithScratchpad
from memories.context.memories_backend import MemoriesBackend

pytestmark = pytest.mark.usefixtures("home")


def fail() -> str:
    """Raise the error of a store whose disk is gone."""
    raise StoreError("the disk is gone")


def test_without_a_scratchpad_the_store_answers_in_this_thread_or_raises() -> None:
    with Memories(namespace="bob", embedder="none") as bob:
        assert bob.ask_store(threading.get_ident, lambda: None) == (threading.get_ident(), None)
        with pytest.raises(StoreError, match="the disk is gone"):
            bob.ask_store(fail, lambda: "what the file says")


def test_a_scratchpad_answers_for_a_failing_store_with_the_reason() -> None:
    with Memories(namespace="bob", embedder="none") as bob:
        bob.create("Deploys happen on Tuesdays")
        assert bob.ask_store(lambda: "what the store says", fail) == ("what the store says", None)
        assert bob.ask_store(fail, lambda: "what the file says") == (
            "what the file says",
            "the disk is gone",
        )
        with pytest.raises(StoreError, match="the disk is gone"):
            bob.ask_store(fail, lambda: None)


def test_recalled_entries_show_whether_they_are_shared() -> None:
    for namespace, content in (
        ("shared", "Deploys happen on Tuesdays"),
        ("ann", "Deploys need two reviews"),
    ):
        with Memories(namespace=namespace, embedder="none") as memories:
            memories.create(content)
            memories.scratchpad()
    with Memories(namespace="ann", embedder="none") as ann:
        gateway = WithScratchpad(ann, backend=MemoriesBackend(ann))
        entries = gateway.recall_offline("deploys", 5, 0.0)
    whose = {entry["text"]: (entry["shared"], entry["own"]) for entry in entries}
    assert whose == {
        "Deploys happen on Tuesdays": (True, False),
        "Deploys need two reviews": (False, True),
    }
