"""The hot tier reports the store's confidence."""

import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from memories import Memories

pytestmark = pytest.mark.usefixtures("home")

if TYPE_CHECKING:
    from memories.search.results import Hit

NOW = datetime(2026, 6, 1, tzinfo=UTC)
POLICIES = ("stable", "contextual", "reinforceable")
FIGURES = (
    "confidence",
    "base_confidence",
    "decay_policy",
    "created_at",
    "updated_at",
    "last_reinforced_at",
    "version",
)


class Clock:
    """A clock that tests set."""

    now = NOW

    def __call__(self) -> datetime:
        return self.now


def figures(hits: "tuple[Hit, ...] | list[Hit]") -> dict[str, dict[str, Any]]:
    """Return the figures of each hit, by id."""
    return {hit.id: {name: getattr(hit.memory, name) for name in FIGURES} for hit in hits}


@pytest.mark.first(3)
@pytest.mark.parametrize(
    "seed", [*range(7), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(7, 20))]
)
def test_the_hot_tier_and_the_store_report_equal_figures_for_any_settings(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("EMBEDDER", "none")
    draw, clock = random.Random(seed), Clock()

    def draw_settings() -> None:
        monkeypatch.setenv(
            "MIN_CONFIDENCE", str(draw.choice([0, 0.05, 0.3, round(draw.random(), 2)]))
        )
        monkeypatch.setenv("DECAY_HALF_LIFE_HOURS", str(draw.choice([0.5, 24, 720, 5_000])))

    draw_settings()
    with Memories(namespace="bob", clock=clock) as memories:
        for number in range(8):
            age = timedelta(hours=draw.choice([0, 1, 100, 1_000]) * draw.random())
            decay, sure = draw.choice(POLICIES), draw.choice([1.0, 0.5, round(draw.random(), 2)])
            created = memories.create(
                f"ocelot sighting {number}",
                decay=decay,
                confidence=sure,
                created_at=NOW - age,
                force=True,
            )
            clock.now += timedelta(hours=draw.random())
            if decay == "reinforceable" and draw.random() < 0.5:
                memories.reinforce(str(created.id))
            if draw.random() < 0.2:
                memories.update(str(created.id), confidence=round(draw.random(), 2))
    draw_settings()
    clock.now += timedelta(hours=draw.choice([0, 0.1, 50, 700]))
    least = draw.choice([None, 0.0, 0.3, 0.7, round(draw.random(), 2)])
    with Memories(namespace="bob", clock=clock) as memories:
        offline = memories.search_scratchpad(
            "ocelot sighting", offline=True, limit=50, min_confidence=least
        )
        hot = memories.search_scratchpad("ocelot sighting", limit=50, min_confidence=least)
        deep = figures(memories.search("ocelot sighting", limit=50, min_confidence=least))
    assert figures(hot.explanation.hits) == deep
    assert figures(offline.explanation.hits) == deep


def test_a_decayed_memory_is_hidden_until_the_setting_is_lower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EMBEDDER", "none")
    clock = Clock()
    with Memories(clock=clock) as memories:
        memories.create("ocelot news", decay="contextual")
        clock.now += timedelta(hours=23)
        assert len(memories.scratchpad().entries) == 1
    monkeypatch.setenv("DECAY_HALF_LIFE_HOURS", "24")
    with Memories(clock=clock) as memories:
        for result in (memories.scratchpad(), memories.scratchpad_at_hand(), memories.offline()):
            assert result is not None
            assert result.entries == ()
        [hit] = memories.search_scratchpad("ocelot news", min_confidence=0).explanation.hits
        assert hit.memory.confidence == 0.0417


@pytest.mark.parametrize("invalid", ["soon", "2026-13-01", "2026-01-01"])
def test_a_memory_with_an_invalid_time_ages_from_its_last_change(
    home: Path, monkeypatch: pytest.MonkeyPatch, invalid: str
) -> None:
    monkeypatch.setenv("EMBEDDER", "none")
    clock = Clock()
    with Memories(namespace="bob", clock=clock) as memories:
        memories.create("ocelot sighting", decay="contextual")
        clock.now += timedelta(hours=360)
        file = home / "bob" / "scratchpad.yaml"
        file.write_text(re.sub(r"aging_from: .*", f'aging_from: "{invalid}"', file.read_text()))
        result = memories.search_scratchpad(
            "ocelot sighting", offline=True, min_confidence=0
        ).explanation
        assert [hit.memory.confidence for hit in result.hits] == [0.5]
        file.write_text(re.sub(r"decay: .*", 'decay: "weekly"', file.read_text()))
        assert memories.offline() is None
        [note] = memories.scratchpad().notes
        assert "has a decay that is not" in note
