"""The hot tier reports the store's confidence, or none if an older version wrote the file."""

import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from memories import Memories
from memories.scratchpad.file import load
from memories.scratchpad.hot_tier import needs_refresh

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


def make_older(file: Path) -> None:
    """Turn a file into one from an older version: it has a time of expiry, and lacks the
    times from which confidence is computed.
    """
    from memories.scratchpad.text import seal

    text = re.sub(
        r"  aging_from: .*\n", '  expires: "2999-01-01T00:00:00.000Z"\n', file.read_text()
    )
    file.write_text(seal(re.sub(r"  reinforced: .*\n", "", text)))


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


def test_an_older_file_has_no_confidence_until_it_is_refreshed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDDER", "none")
    clock = Clock()
    with Memories(namespace="bob", clock=clock) as memories:
        memories.create("ocelot sighting in the park", decay="contextual", confidence=0.9)
        memories.create("ocelot sighting at the pier")
    file = home / "bob" / "scratchpad.yaml"
    make_older(file)
    assert "aging_from" not in file.read_text()
    clock.now += timedelta(hours=360)
    with Memories(namespace="bob", clock=clock) as memories:
        result = memories.search_scratchpad("ocelot sighting", offline=True).explanation
        assert [(hit.content, hit.memory.confidence) for hit in result.hits] == [
            ("ocelot sighting at the pier", 1.0)
        ]
        assert result.note.startswith("a memory is left out: an older version wrote the scratchpad")
        shown = memories.offline()
        assert shown is not None
        assert ([entry.content for entry in shown.entries], len(shown.notes)) == (
            ["ocelot sighting at the pier"],
            1,
        )
        deep = figures(memories.search("ocelot sighting"))
        hot = memories.search_scratchpad("ocelot sighting").explanation
        assert (figures(hot.hits), hot.note) == (deep, "")
        assert {round(values["confidence"], 2) for values in deep.values()} == {1.0, 0.45}
        pad = load(home, "bob")
        assert pad is not None
        assert not needs_refresh(memories._scratchpads.pad_file("bob"), pad, clock())
    assert "aging_from" in file.read_text()
    assert "expires" not in file.read_text()


@pytest.mark.parametrize("invalid", ["soon", "2026-13-01", "2026-01-01"])
def test_a_memory_with_an_invalid_time_is_left_out(
    home: Path, monkeypatch: pytest.MonkeyPatch, invalid: str
) -> None:
    monkeypatch.setenv("EMBEDDER", "none")
    with Memories(namespace="bob") as memories:
        memories.create("ocelot sighting", decay="contextual")
        file = home / "bob" / "scratchpad.yaml"
        file.write_text(re.sub(r"aging_from: .*", f'aging_from: "{invalid}"', file.read_text()))
        result = memories.search_scratchpad(
            "ocelot sighting", offline=True, min_confidence=0
        ).explanation
        assert result.hits == ()
        file.write_text(re.sub(r"decay: .*", 'decay: "weekly"', file.read_text()))
        assert memories.offline() is None
        [note] = memories.scratchpad().notes
        assert "has a decay that is not" in note
