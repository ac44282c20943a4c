"""The benchmark of what agents get: its histories are consistent, and its score counts what the
module's docstring says.
"""

import re
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benchmarks are not installed

from bench.agents_memory import EVERYWHERE, HALVES, Answer, Fact, Prompt

from bench import agents_memory

HISTORIES = agents_memory.load()
FACTS = {fact.id: fact for history in HISTORIES for fact in history.facts}
PROMPTS = {prompt.id: prompt for history in HISTORIES for prompt in history.prompts}


def test_there_are_enough_histories_in_each_half() -> None:
    assert Counter(history.half for history in HISTORIES) == {"dev": 4, "test": 5}
    assert {"en", "de", "es", "ja"} == {history.language for history in HISTORIES}
    assert all(2 <= len(history.projects) <= 3 for history in HISTORIES)
    names = [name for history in HISTORIES for name in history.projects]
    assert len(names) == len(set(names))
    assert len(FACTS) >= 250
    assert len(PROMPTS) >= 250
    for half in HALVES:
        prompts = [
            prompt for history in HISTORIES if history.half == half for prompt in history.prompts
        ]
        assert 0.32 <= sum(not prompt.needs for prompt in prompts) / len(prompts) <= 0.36


def test_ids_and_texts_are_unique_and_belong_to_their_history() -> None:
    assert len(FACTS) + len(PROMPTS) == sum(
        len(history.facts) + len(history.prompts) for history in HISTORIES
    )
    texts = [fact.text for fact in FACTS.values()]
    assert not [one for one in texts for other in texts if one is not other and one in other]
    for history in HISTORIES:
        for fact in history.facts:
            assert fact.id.startswith(f"{history.id}.")
            assert fact.project in (*history.projects, EVERYWHERE)
        last = max(fact.at for fact in history.facts)
        for prompt in history.prompts:
            assert prompt.id.startswith(f"{history.id}.")
            assert prompt.project in history.projects
            assert prompt.at > last


def test_prompts_need_current_facts_of_their_own_project() -> None:
    corrected = agents_memory.last_corrections(list(FACTS.values()))
    for prompt in PROMPTS.values():
        assert len(prompt.needs) == len(set(prompt.needs))
        for needed in prompt.needs:
            assert needed not in corrected, prompt.id
            assert FACTS[needed].project in (prompt.project, EVERYWHERE), prompt.id


def test_corrections_name_an_older_fact_of_their_project_and_their_wording() -> None:
    corrections = [fact for fact in FACTS.values() if fact.corrects]
    assert len({fact.corrects for fact in corrections}) == len(corrections)
    for fact in corrections:
        old = FACTS[fact.corrects]
        assert (old.project, old.at < fact.at) == (fact.project, True), fact.id
    wordings = Counter(fact.wording for fact in FACTS.values())
    assert (wordings["same"] >= 20, wordings["other"] >= 20) == (True, True)
    assert wordings.keys() == {"same", "other", ""}


def test_many_needed_facts_share_few_words_with_their_prompt() -> None:
    def words(text: str) -> set[str]:
        return {word for word in re.findall(r"\w+", text.casefold()) if len(word) > 3}

    pairs = [
        (prompt.text, FACTS[needed].text) for prompt in PROMPTS.values() for needed in prompt.needs
    ]
    assert sum(not words(one) & words(other) for one, other in pairs) > len(pairs) / 2


def test_the_score_of_an_example_matches_a_hand_count() -> None:
    old, middle, new = (
        Fact("old", "a", "1", "x" * 10),
        Fact("mid", "a", "2", "", "old"),
        Fact("new", "a", "3", "", "mid"),
    )
    foreign, everywhere = Fact("foreign", "b", "1", ""), Fact("everywhere", EVERYWHERE, "1", "")
    corrected = agents_memory.last_corrections([old, middle, new, foreign, everywhere])
    assert corrected == {"old": "new", "mid": "new"}

    def prompt(*needs: str) -> Prompt:
        return Prompt("p", "a", "4", "", list(needs))

    answers = [
        Answer(
            prompt("new", "everywhere"), [old, middle, new], 100
        ),  # one of two needed facts; two useless; outdated facts next to the current one
        Answer(
            prompt("new"), [new, foreign], 0
        ),  # all needed facts; one useless, of another project
        Answer(
            prompt("new"), [old, middle], 0
        ),  # no needed fact; two useless, outdated, without the current one
        Answer(prompt(), [everywhere], 20),  # a fact although none is needed
        Answer(prompt(), [], 0),
    ]
    assert agents_memory.score(answers, corrected) == (
        "66.7",
        "33.3",
        "1 of 2",
        "0.20",
        "2",
        "1.20",
        "4",
        "24",
    )
    assert agents_memory.score(answers[1:2], corrected)[-1] == "–"
