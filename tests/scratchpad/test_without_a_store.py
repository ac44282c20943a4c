"""A scratchpad answers where the store can't; without one the store is asked as if there were no such thing."""

import threading

import pytest

from memories import Memories, StoreError

pytestmark = pytest.mark.usefixtures("home")


def fail() -> str:
    raise StoreError("the disk is gone")


def test_without_a_scratchpad_the_store_is_asked_in_this_thread_and_its_error_is_raised() -> None:
    with Memories(namespace="bob", embedder="none") as bob:
        assert bob.ask_store(threading.get_ident, lambda: None) == (threading.get_ident(), None)
        with pytest.raises(StoreError, match="the disk is gone"):
            bob.ask_store(fail, lambda: "what the file says")


def test_a_scratchpad_answers_for_a_store_that_fails_and_says_why() -> None:
    with Memories(namespace="bob", embedder="none") as bob:
        bob.create("Deploys happen on Tuesdays")
        assert bob.ask_store(lambda: "what the store says", fail) == ("what the store says", None)
        assert bob.ask_store(fail, lambda: "what the file says") == ("what the file says", "the disk is gone")
        with pytest.raises(StoreError, match="the disk is gone"):
            bob.ask_store(fail, lambda: None)
