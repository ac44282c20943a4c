"""Jumps of the clock neither reorder versions, nor expire memories, nor make a confidence
invalid.
"""

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memories import Memories

NOW = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)  # half an hour before the clocks in Europe change
JUMPS = {
    "400 days back": -400,
    "5 years ahead": 5 * 365,
    "to 1969": -57 * 365,
    "to 9990": 7964 * 365,
}


@pytest.mark.thorough
@pytest.mark.torture
@pytest.mark.parametrize("zone", [pytest.param("UTC", marks=pytest.mark.thorough), "Europe/Berlin"])
def test_jumps_of_the_clock_reorder_and_expire_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str, figures: dict[str, Any]
) -> None:
    monkeypatch.setenv("TZ", zone)
    figures |= {"jumps": 0}
    for first, second in itertools.permutations(JUMPS.values(), 2):
        moment = [NOW]
        folder = tmp_path / f"{first} {second}"
        with Memories(
            f"sqlite:///{folder}/m.db", embedder="fake", clock=lambda moment=moment: moment[0]
        ) as memories:
            stable = memories.create("the editor is vim").memory
            decays = memories.create("works on Saturdays", decay="reinforceable").memory
            assert stable is not None
            assert decays is not None
            for days in (first, second, 0):
                moment[0] = NOW + timedelta(days=days)
                memories.update(stable.id, f"the editor is vim at {moment[0]}")
                memories.delete(decays.id)
                memories.restore(decays.id)
                memories.reinforce(decays.id)
                listed = memories.list(limit=1000).memories
                assert {memory.id for memory in listed} == {stable.id, decays.id}
                assert all(0.0 <= memory.confidence <= 1.0 for memory in listed)
                assert next(memory for memory in listed if memory.id == stable.id).confidence == 1.0
                assert memories.search("which editor?")[0].id == stable.id
                for memory in listed:
                    times = [version.created_at for version in memories.history(memory.id).versions]
                    assert times == sorted(times)
                figures["jumps"] += 1
            content = memories.get(stable.id).content
            assert content == f"the editor is vim at {NOW}"
