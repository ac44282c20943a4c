"""The stores with eighteen projects: each has the facts and prompts that its docstring promises."""

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benchmarks are not installed

from bench.agents_memory import EVERYWHERE, History

from bench import agents_stores

STORES = agents_stores.load()


def test_half_of_the_stores_are_for_development_and_half_for_tests() -> None:
    halves = {name: {history.half for history in store} for name, store in STORES.items()}
    assert all(halves[name] == {name.split("-")[0]} for name in STORES)
    assert Counter(name.split("-")[0] for name in STORES) == {"dev": 9, "test": 9}


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_a_store_has_six_people_with_three_projects_each(store: list[History]) -> None:
    assert len(store) == 6
    assert len({name for history in store for name in history.projects}) == 18
    assert sum(len(history.facts) for history in store) == 150
    prompts = [prompt for history in store for prompt in history.prompts]
    assert len(prompts) == 120
    assert sum(not prompt.needs for prompt in prompts) == 29


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_a_prompt_needs_current_facts_of_its_own_project(store: list[History]) -> None:
    for history in store:
        facts = {fact.id: fact for fact in history.facts}
        assert len(facts) == len(history.facts)
        outdated = {fact.corrects for fact in history.facts}
        for prompt in history.prompts:
            assert prompt.project in history.projects
            assert not outdated & set(prompt.needs)
            for fact in prompt.needs:
                assert facts[fact].project in (prompt.project, EVERYWHERE)
                assert facts[fact].at < prompt.at
