"""The benchmark of retrieval: its figures, its readers of data sets, and its command, on small data
sets written here.
"""

import json
import math
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benchmarks are not installed

from bench.retrieval import __main__ as command
from bench.retrieval import datasets, measure, metrics, progress, reading, sources, systems, vectors
from bench.retrieval.datasets import DataError

from memories import Memories
from memories.embedders.fake import FakeEmbedder
from memories.models import MAX_TURN_CHARACTERS

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, in which the benchmark creates `.bench/`."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(file: Path, content: object) -> Path:
    """Write a data set as JSON; return its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


# --- metrics


def test_metrics_match_a_hand_calculation() -> None:
    got = metrics.score(["x", "a", "y", "z", "w", "v", "b"], frozenset("abc"))
    assert [got[f"any@{k}"] for k in (1, 5, 10)] == [0, 1, 1]
    assert [got[f"all@{k}"] for k in (1, 5, 10)] == [0, 0, 0]
    assert [got[f"frac@{k}"] for k in (1, 5, 10)] == pytest.approx([0, 1 / 3, 2 / 3])
    ideal = 1 + 1 / math.log2(3) + 1 / 2
    assert got["ndcg@10"] == pytest.approx((1 / math.log2(3) + 1 / 3) / ideal)
    assert got["mrr"] == 0.5


def test_a_perfect_ranking_scores_one_unless_k_is_too_small() -> None:
    got = metrics.score(["a", "b", "x"], frozenset("ab"))
    assert {name for name, value in got.items() if value != 1} == {"all@1", "frac@1"}
    assert set(metrics.score([], frozenset("a")).values()) == {0.0}
    assert set(got) == set(metrics.NAMES)


def test_mrr_counts_the_first_fifty_ranks() -> None:
    others = [f"x{n}" for n in range(60)]
    assert metrics.score([*others[:49], "a"], frozenset("a"))["mrr"] == 1 / 50
    assert metrics.score([*others[:50], "a"], frozenset("a"))["mrr"] == 0


def test_ndcg_at_ten_is_one_if_all_ten_are_gold() -> None:
    gold = [f"g{n}" for n in range(12)]
    assert metrics.score(gold, frozenset(gold))["ndcg@10"] == pytest.approx(1)


def test_evidence_is_scored_per_thousand_tokens() -> None:
    got = metrics.score_budget(frozenset("ax"), frozenset("abc"), 400)
    assert got == {"frac@1k": pytest.approx(1 / 3), "evidence/1k": 2.5}
    assert metrics.score_budget(frozenset(), frozenset("a"), 0)["evidence/1k"] == 0


def test_metrics_are_averaged() -> None:
    both = metrics.mean(
        [metrics.score(["a"], frozenset("a")), metrics.score(["x", "a"], frozenset("a"))]
    )
    assert (both["any@1"], both["any@5"], both["mrr"]) == (0.5, 1, 0.75)
    assert math.isnan(metrics.mean([])["mrr"])


def test_the_bootstrap_distinguishes_a_real_lead_from_chance() -> None:
    lead = metrics.bootstrap([1] * 60 + [0] * 40, [0] * 40 + [0] * 60, seed=1)
    assert lead.mean == pytest.approx(0.6)
    assert 0.45 < lead.low < 0.55
    assert 0.65 < lead.high < 0.75
    assert lead.p == pytest.approx(2 / 10_001)
    ours, theirs = [1, 0] * 50, [0, 1] * 50
    level = metrics.bootstrap(ours, theirs, seed=1)
    assert level.mean == 0
    assert level.low < -0.1 < 0.1 < level.high
    assert level.p > 0.8
    assert metrics.bootstrap(ours, ours, seed=1) == metrics.Difference(0, 0, 0, 1)


def test_the_bootstrap_interval_agrees_with_the_normal_distribution() -> None:
    gaps = np.random.default_rng(3).normal(0.2, 1, 400)
    got = metrics.bootstrap(gaps.tolist(), [0.0] * 400, seed=5)
    error = 1.96 * gaps.std() / 20
    assert (got.low, got.high) == pytest.approx(
        (gaps.mean() - error, gaps.mean() + error), abs=0.01
    )
    assert got == metrics.bootstrap(gaps.tolist(), [0.0] * 400, seed=5)
    assert got != metrics.bootstrap(gaps.tolist(), [0.0] * 400, seed=6)


# --- LoCoMo and REALTALK


@pytest.mark.parametrize(
    ("evidence", "ids"),
    [
        (["D1:3"], ["D1:3"]),
        (["D:3:07"], ["D3:7"]),
        (["D8:6; D9:17"], ["D8:6", "D9:17"]),
        (["D21:18 D21:22", "D11:15"], ["D21:18", "D21:22", "D11:15"]),
        (["D30:05"], ["D30:5"]),
        (["D"], []),
        ("D2:10", ["D2:10"]),
    ],
)
def test_evidence_is_cleaned(evidence: object, ids: list[str]) -> None:
    assert datasets.evidence_ids(evidence) == ids


def locomo_message(at: str, speaker: str, text: str, **more: str) -> dict[str, str]:
    """Return a message as LoCoMo writes it."""
    return {"dia_id": at, "speaker": speaker, "text": text, **more}


def locomo_question(question: str, *evidence: str, category: int = 4) -> dict[str, Any]:
    """Return a question as LoCoMo writes it."""
    return {"question": question, "evidence": list(evidence), "category": category, "answer": "?"}


LOCOMO = [
    {
        "sample_id": "conv-1",
        "conversation": {
            "speaker_a": "Ann",
            "speaker_b": "Bob",
            "session_10_date_time": "9:05 am on 1 June, 2023",
            "session_10": [locomo_message("D10:1", "Ann", "My violin lessons begin in autumn.")],
            "session_2_date_time": "1:56 pm on 8 May, 2023",
            "session_2": [
                locomo_message("D2:1", "Ann", "We adopted a dog called Pepper."),
                locomo_message("D2:2", "Bob", "Look at him!", blip_caption="a photo of a wet dog"),
            ],
        },
        "qa": [
            locomo_question("What is the dog of Ann called?", "D2:1"),
            locomo_question(
                "Which lessons does Ann take and which dog is wet?", "D10:1; D:2:02", category=1
            ),
            locomo_question("Did Bob play the violin?", "D10:1", category=5),
            locomo_question("Where is the evidence?", "D9:9"),
        ],
    },
    {
        "sample_id": "conv-2",
        "conversation": {
            "session_1_date_time": "12:00 am on 1 January, 2024",
            "session_1": [
                locomo_message("D1:1", "Cid", "My boat is red."),
                locomo_message("D1:2", "Dan", "Mine is a kayak."),
            ],
        },
        "qa": [locomo_question("What colour has the boat?", "D1:1", category=2)],
    },
]


def test_locomo_is_read(here: Path) -> None:
    data = datasets.load("locomo", write(here / "locomo.json", LOCOMO))
    first, second = data.pools
    assert [turn.id for turn in first.turns] == [
        "conv-1/D2:1",
        "conv-1/D2:2",
        "conv-1/D10:1",
    ]  # session 2 comes before 10
    assert first.turns[1].text == "Look at him! [shares a photo: a photo of a wet dog]"
    assert first.turns[1].said.startswith("Bob: Look at him!")
    assert first.turns[1].said_at == datetime(2023, 5, 8, 13, 56, 30, tzinfo=UTC)
    assert [question.counted for question in first.questions] == [
        True,
        True,
        False,
    ]  # questions without evidence are left out
    both = first.questions[1]
    assert both.turns == {"conv-1/D10:1", "conv-1/D2:2"}
    assert both.sessions == {"conv-1/S10", "conv-1/S2"}
    assert (both.category, both.asked_at) == ("1 multi-hop", None)
    assert second.questions[0].category == "2 temporal"


def test_conversations_can_be_pooled_and_questions_limited(here: Path) -> None:
    data = datasets.load("locomo", write(here / "locomo.json", LOCOMO))
    [pool] = data.joined().pools
    assert len(pool.turns) == 5
    assert pool.questions == tuple(data.questions)
    few = data.limited(2, seed=1)
    assert len(few.questions) == 2
    assert few.questions == [question for question in data.questions if question in few.questions]
    assert few == data.limited(2, seed=1)
    assert len(few.pools) == 2  # all conversations are kept, even without questions
    assert data.limited(None, seed=1) is data


def test_realtalk_is_read(here: Path) -> None:
    chat = {
        "name": {"speaker_1": "Emi", "speaker_2": "Kit"},
        "session_1": [
            {
                "clean_text": "Hi",
                "speaker": "Emi",
                "date_time": "29.12.2023, 10:00:00",
                "dia_id": "D1:1",
            },
            {
                "clean_text": "My sister bakes",
                "speaker": "Kit",
                "date_time": "29.12.2023, 09:00:00",
                "dia_id": "D1:2",
            },
            {"clean_text": "Bread?", "speaker": "Emi", "date_time": "at noon", "dia_id": "D1:3"},
        ],
        "session_2": [
            {"clean_text": "", "speaker": "Emi", "dia_id": "D2:1", "blip_caption": "a loaf"}
        ],
        "qa": [
            {"question": "Who bakes?", "answer": "!", "evidence": ["D1:2", "D2:1"], "category": 1}
        ],
    }
    for number in (10, 2):
        write(here / "chats" / f"Chat_{number}_Emi_Kit.json", chat)
    data = datasets.load("realtalk", here / "chats")
    assert [pool.name for pool in data.pools] == ["Chat_2_Emi_Kit", "Chat_10_Emi_Kit"]
    turns = data.pools[0].turns
    times = [turn.said_at for turn in turns]
    assert (
        times[0] == times[1] == datetime(2023, 12, 29, 10, tzinfo=UTC)
    )  # times never go backwards
    assert times[2] - times[1] == timedelta(seconds=30)
    assert times[3] - times[2] == timedelta(days=1)
    assert turns[3].text == "[shares a photo: a loaf]"
    [question] = data.pools[0].questions
    assert question.turns == {"Chat_2_Emi_Kit/D1:2", "Chat_2_Emi_Kit/D2:1"}
    assert question.category == "1 multi-hop"


# --- LongMemEval and BEAM


def longmemeval_message(role: str, content: str, **more: object) -> dict[str, object]:
    """Return a message as LongMemEval writes it."""
    return {"role": role, "content": content, **more}


def haystack(name: str, **more: object) -> dict[str, object]:
    """Return a question of LongMemEval with its sessions."""
    return {
        "question_id": name,
        "question_type": "single-session-user",
        "question": "What did I plant?",
        "question_date": "2023/05/30 (Tue) 23:40",
        "haystack_session_ids": ["s1", "answer_1"],
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 08:00"],
        "haystack_sessions": [
            [longmemeval_message("user", "Hello"), longmemeval_message("assistant", "Hi")],
            [
                longmemeval_message("assistant", "Welcome"),
                longmemeval_message("user", "I planted basil", has_answer=True),
                longmemeval_message("assistant", ""),
                longmemeval_message("assistant", "Lovely", has_answer=False),
            ],
        ],
        "answer_session_ids": ["answer_1"],
        **more,
    }


def test_longmemeval_is_read(here: Path) -> None:
    data = datasets.load(
        "longmemeval", write(here / "l.json", [haystack("q1"), haystack("q2_abs"), haystack("q3")])
    )
    assert data.apart
    assert [pool.name for pool in data.pools] == ["q1", "q3"]
    conversation = data.pools[0].conversations[1]
    assert conversation.id == "answer_1"
    assert [turn.text for turn in conversation.turns] == [
        "Welcome",
        "I planted basil",
        "Lovely",
    ]  # empty messages are left out
    assert [turn.target for turn in conversation.turns] == [
        "answer_1/0",
        "answer_1/1",
        "answer_1/1",
    ]
    assert conversation.turns[1].said_at == datetime(2023, 5, 21, 8, 0, 30, tzinfo=UTC)
    [question] = data.pools[0].questions
    assert (set(question.turns), set(question.sessions)) == ({"answer_1/1"}, {"answer_1"})
    assert question.asked_at == datetime(2023, 5, 30, 23, 40, tzinfo=UTC)
    assert [pool.name for pool in data.limited(1, seed=1).pools] in (["q1"], ["q3"])
    with pytest.raises(DataError, match="cannot be put in one store"):
        data.joined()


def test_longmemeval_without_marked_turns_counts_sessions_only(here: Path) -> None:
    item = haystack(
        "q1",
        haystack_sessions=[[longmemeval_message("user", "a")], [longmemeval_message("user", "b")]],
    )
    [question] = datasets.load("longmemeval", write(here / "l.json", [item])).questions
    assert (set(question.turns), set(question.sessions)) == (set(), {"answer_1"})


def beam(folder: Path) -> Path:
    """Write a conversation in the format of BEAM; return its folder."""
    first = [
        longmemeval_message("user", "Plan my week ->-> 1,1", id=0, time_anchor="March-15-2024"),
        longmemeval_message("assistant", "A plan ->-> 1,1", id=1),
        longmemeval_message("user", "Thanks", id=2),
        longmemeval_message("assistant", "Sure", id=3),
    ]
    second = [
        longmemeval_message("user", "The API takes 300 ms ->-> 1,N/A", id=4),
        longmemeval_message("assistant", "Noted: the API", id=5),
    ]
    third = [
        longmemeval_message("user", "Now it takes 250 ms", id=6, time_anchor="March-16-2024"),
        longmemeval_message("assistant", "Good", id=7),
    ]
    batches = [
        {"batch_number": 1, "turns": [first, second]},
        {"batch_number": 2, "turns": [third], "time_anchor": None},
    ]
    write(folder / "3" / "chat.json", batches)
    probing = {
        "abstention": [{"question": "Never said?"}],
        "knowledge_update": [
            {
                "question": "How fast is the API?",
                "source_chat_ids": {"original_info": [4], "updated_info": [7, [6]]},
            }
        ],
        "event_ordering": [{"question": "In which order?", "source_chat_ids": []}],
    }
    write(folder / "3" / "pq.json", probing)
    return folder


def test_beam_is_read(here: Path) -> None:
    data = datasets.load("beam", beam(here / "chats"))
    [pool] = data.pools
    texts = [turn.text for turn in pool.turns]
    assert texts[0] == "Plan my week"
    assert texts[1] == "A plan ->-> 1,1"  # in an assistant's message, the mark is part of the text
    assert texts[4] == "The API takes 300 ms"
    assert [turn.target for turn in pool.turns] == [f"3/{at}" for at in (0, 0, 2, 2, 4, 4, 6, 6)]
    assert [turn.session for turn in pool.turns] == ["3/1.1"] * 4 + ["3/1.2"] * 2 + ["3/2.1"] * 2
    times = [turn.said_at for turn in pool.turns]
    assert times == sorted(times)
    march = datetime(2024, 3, 15, tzinfo=UTC)
    assert [times[at] - march for at in (0, 1, 4, 6)] == [
        timedelta(0), timedelta(seconds=30), timedelta(hours=12), timedelta(days=1),
    ]  # fmt: skip
    [question] = pool.questions
    assert question.turns == {"3/4", "3/6"}
    assert question.sessions == {"3/1.2", "3/2.1"}
    assert question.category == "knowledge_update"


def test_characters_that_no_turn_can_contain_are_left_out(here: Path) -> None:
    folder = beam(here / "chats")
    file = folder / "3" / "chat.json"
    batches = json.loads(file.read_text())
    batches[0]["turns"][0][1]["content"] = "A \0plan, half \ud83d"
    batches[0]["turns"][0][3]["content"] = "\0\x01\u200b"
    write(file, batches)
    [pool] = datasets.load("beam", folder).pools
    assert [turn.text for turn in pool.turns][:3] == ["Plan my week", "A plan, half ?", "Thanks"]
    assert len(pool.turns) == 7


def test_beam_with_lists_of_messages_is_read_the_same_way(here: Path) -> None:
    folder = beam(here / "chats")
    [as_objects] = datasets.load("beam", folder).pools
    batches = json.loads((folder / "3" / "chat.json").read_text())
    write(folder / "3" / "chat.json", [group for batch in batches for group in batch["turns"]])
    [as_lists] = datasets.load("beam", folder).pools
    assert [turn.text for turn in as_lists.turns] == [turn.text for turn in as_objects.turns]
    assert [turn.said_at for turn in as_lists.turns] == [turn.said_at for turn in as_objects.turns]
    assert len({turn.session for turn in as_lists.turns}) == 3
    assert as_lists.questions[0].turns == as_objects.questions[0].turns


def test_beam_with_several_plans_is_read(here: Path) -> None:
    folder = beam(here / "chats")
    batches = json.loads((folder / "3" / "chat.json").read_text())
    again = [
        {
            "batch_number": 1,
            "turns": [
                [
                    longmemeval_message("user", "A new plan", id=4),
                    longmemeval_message("assistant", "Good", id=10),
                ]
            ],
        }
    ]
    plans = [{"plan-1": batches, "plan-2": None}, {"plan-1": None, "plan-2": again}]
    write(folder / "3" / "chat.json", plans)
    probing = {"summarization": [{"question": "What plan?", "source_chat_ids": [4, 10]}]}
    write(folder / "3" / "pq.json", probing)
    [pool] = datasets.load("beam", folder).pools
    assert len({turn.id for turn in pool.turns}) == len(pool.turns) == 10
    assert pool.turns[-1].session == "3/plan-2.1.1"
    assert pool.turns[-1].target == pool.turns[-2].id == "3/4~2"
    [question] = pool.questions
    assert question.turns == {"3/4~2"}  # the answer decides, since two messages have the number 4


def test_source_ids_are_flattened() -> None:
    assert datasets.source_ids([20, [70, "72"], {"a": [174], "b": None}, "chat 9"]) == [
        20,
        70,
        72,
        174,
    ]


def test_groups_without_dates_are_a_day_apart_and_in_order() -> None:
    one, day = datetime(2024, 5, 1, tzinfo=UTC), timedelta(days=1)
    starts = datasets.group_starts([None, one, None, one - 9 * day, None])
    assert starts == [one - day, one, one + day, one + 2 * day, one + 3 * day]
    plain = datasets.group_starts([None, None])
    assert plain[1] - plain[0] == day
    assert datasets.group_starts([]) == []


# --- missing or invalid data


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("locomo", {"a": 1}, "not in the format of LoCoMo"),
        ("locomo", [{"sample_id": "x", "qa": []}], "'conversation' is missing"),
        ("locomo", [{"sample_id": "x", "conversation": {}, "qa": []}], "x has no session_1"),
        ("locomo", [], "no question with a known answer"),
        ("longmemeval", LOCOMO, "'question_id' is missing"),
        ("longmemeval", [haystack("q", haystack_dates=["x", "y"])], '"x" is not a time'),
    ],
)
def test_invalid_data_is_refused_with_a_one_sentence_error(
    here: Path, name: str, content: object, said: str
) -> None:
    with pytest.raises(DataError, match=said) as caught:
        datasets.load(name, write(here / "data.json", content))
    assert "\n" not in str(caught.value)


def test_missing_data_is_refused(here: Path) -> None:
    file = write(here / "locomo.json", LOCOMO)
    (here / "broken.json").write_text("{")
    for name, path, said in [
        ("locomo", here / "nowhere.json", "there is no "),
        ("locomo", here, "is a folder"),
        ("beam", file, "is not a folder of chats"),
        ("beam", here, "has no N/chat.json"),
        ("realtalk", here, "no question with a known answer"),
        ("locomo", here / "broken.json", "cannot be read as JSON"),
    ]:
        with pytest.raises(DataError, match=said):
            datasets.load(name, path)
    (beam(here / "chats") / "3" / "pq.json").unlink()
    with pytest.raises(DataError, match=r"there is no pq\.json"):
        datasets.load("beam", here / "chats")


# --- vectors and fusion


def test_cached_vectors_equal_those_of_the_embedder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = vectors.KeptVectors("fake")
    made = first.embed("a red boat")
    assert np.array_equal(made, FakeEmbedder().embed("a red boat"))
    first.prepare(["a kayak"])
    first.close()
    assert (here / ".bench" / "vectors.db").is_file()

    def refuse(_: FakeEmbedder, text: str) -> None:
        raise AssertionError(f"{text} is embedded again")

    monkeypatch.setattr(FakeEmbedder, "embed", refuse)
    again = vectors.KeptVectors("fake")
    assert np.array_equal(again.embed("a red boat"), made)
    again.prepare(["a kayak", "a red boat"])
    with pytest.raises(AssertionError, match="never seen is embedded"):
        again.prepare(["never seen"])
    again.close()


def test_rankings_are_fused_by_reciprocal_ranks() -> None:
    assert systems.reciprocal_ranks([[1, 2, 3], [3, 4]]) == [
        3,
        1,
        2,
        4,
    ]  # 1/63 + 1/61, 1/61, 1/62, 1/62
    assert systems.reciprocal_ranks([[], [5]]) == [5]


# --- the command


def run_benchmark(file: Path, *options: str) -> list[dict[str, Any]]:
    """Run the benchmark on a LoCoMo file; return its rows."""
    command.main(["locomo", str(file), "--results", "results.jsonl", *options])
    return [
        json.loads(line) for line in Path("results.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def test_the_command_prints_the_figures_and_stores_the_results(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run_benchmark(write(here / "locomo.json", LOCOMO), "--systems", "fts5,rrf")
    assert [line["id"] for line in lines] == ["conv-1/q1", "conv-1/q2", "conv-1/q3", "conv-2/q1"]
    assert list(lines[0]["systems"]) == ["fts5", "rrf"]
    words = lines[0]["systems"]["fts5"]
    assert words["turns"][0] == "conv-1/D2:1"
    assert words["sessions"][0] == "conv-1/S2"
    assert words["turn"]["any@1"] == words["session"]["mrr"] == 1
    assert lines[2]["systems"]["fts5"]["turns"] == [
        "conv-1/D10:1",
        "conv-1/D2:2",
    ]  # the violin, then Bob's message
    assert lines[1]["gold_turns"] == ["conv-1/D10:1", "conv-1/D2:2"]
    assert lines[1]["systems"]["rrf"]["turn"]["all@5"] == 1
    printed = capsys.readouterr()
    assert "locomo: 2 conversations, digest" in printed.out
    [every] = [row for row in printed.out.splitlines() if row.startswith("| all | 3 | turn | fts5")]
    any1 = sum(
        line["systems"]["fts5"]["turn"]["any@1"]
        for line in lines
        if not line["category"].startswith("5")
    )
    assert every.split(" | ")[4] == f"{100 * any1 / 3:.1f}"
    assert "5 adversarial | 1 | session | rrf" in printed.out
    assert "bootstrap" not in printed.out  # Memories was not measured
    assert printed.err == ""  # no bar without a terminal


def turn(text: str, day: int = 1) -> datasets.Turn:
    """Return a message of Ann's."""
    said_at = datetime(2024, 1, day, tzinfo=UTC)
    return datasets.Turn(text[:9], "S1", text[:9], text, said_at, speaker="Ann")


def test_a_reader_gets_the_best_fitting_messages_in_chronological_order() -> None:
    short, long, other = turn("We sail.", 9), turn("word " * 900), turn("I ski.", 2)
    held = reading.fill([short, long, other], 200)
    assert held == [short, other]
    question = datasets.Question("q", "What?", "1", frozenset(), frozenset(), short.said_at)
    prompt = reading.make_prompt(question, held)
    assert "[2024-01-02] Ann: I ski.\n[2024-01-09] Ann: We sail.\n" in prompt
    assert prompt.endswith("Question (asked on 2024-01-09): What?\nAnswer:")


@pytest.mark.parametrize(
    ("answer", "expected", "f1"),
    [
        ("The 7th of May.", "7th May", 0.8),
        ("unknown", "7th May", 0),
        ("A dog", "dog!", 1),
        ("", "", 0),
    ],
)
def test_an_answer_is_scored_by_its_words(answer: str, expected: str, f1: float) -> None:
    assert reading.score_answer(answer, expected) == pytest.approx(f1)


def test_a_user_command_can_answer_the_questions(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talks = json.loads(json.dumps(LOCOMO))
    talks[0]["qa"][0]["answer"] = "Pepper"
    reader = here / "reader.py"
    reader.write_text(
        "import sys\nprint('Pepper' if 'Pepper' in sys.stdin.read() else 'unknown')\n"
    )
    command_line = f"{sys.executable} {reader}"
    lines = run_benchmark(
        write(here / "locomo.json", talks), "--systems", "fts5", "--reader", command_line
    )
    assert lines[0]["systems"]["fts5"]["reader"] == "Pepper"
    [adversarial] = [line for line in lines if line["category"].startswith("5")]
    assert "reader" not in adversarial["systems"]["fts5"]
    assert "| all | 3 | fts5 | 33.3 |" in capsys.readouterr().out


@pytest.mark.parametrize("reader", ["no-such-reader", f"{sys.executable} -c 'raise SystemExit(3)'"])
def test_a_failing_reader_ends_the_run_with_a_one_sentence_error(
    here: Path, reader: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_benchmark(write(here / "locomo.json", LOCOMO), "--systems", "fts5", "--reader", reader)
    assert ended.value.code == 2
    assert "the reader" in capsys.readouterr().err


def test_a_copy_of_a_data_set_is_recognized_by_its_content(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(here / "locomo.json", LOCOMO)
    pools = datasets.load("locomo", file).pools
    known = sources.SOURCES["locomo"]._replace(measured=tuple(map(sources.digest, pools)))
    monkeypatch.setitem(sources.SOURCES, "locomo", known)
    file.write_text(json.dumps(LOCOMO[::-1], indent=1))
    sources.main(["locomo", str(file)])
    assert "2 of the 2 in docs/benchmarks.md" in capsys.readouterr().out
    file.write_text(file.read_text().replace("violin", "piano"))
    sources.main(["locomo", str(file)])
    assert "1 of the 2 in docs/benchmarks.md" in capsys.readouterr().out
    sources.main([])
    assert len(capsys.readouterr().out.splitlines()) == len(datasets.SETS)
    with pytest.raises(SystemExit):
        sources.main(["locomo", "nowhere.json"])


def test_with_one_store_other_conversations_are_searched_too(here: Path) -> None:
    file = write(here / "locomo.json", LOCOMO)
    apart = run_benchmark(file, "--systems", "dense")
    together = run_benchmark(file, "--systems", "dense", "--one-store")
    assert {turn.split("/")[0] for turn in apart[0]["systems"]["dense"]["turns"]} == {"conv-1"}
    assert {turn.split("/")[0] for turn in together[0]["systems"]["dense"]["turns"]} == {
        "conv-1",
        "conv-2",
    }


@pytest.mark.thorough
def test_memories_is_measured_alongside_other_systems(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(here / "locomo.json", LOCOMO)
    for options in ([], ["--one-store"]):
        lines = run_benchmark(file, "--systems", "memories,fts5,dense,rrf", *options)
        found = lines[0]["systems"]["memories"]
        assert found["turns"][0] == "conv-1/D2:1"
        assert found["turn"]["any@1"] == 1
        assert {turn.split("/")[0] for turn in found["turns"]} <= (
            {"conv-1", "conv-2"} if options else {"conv-1"}
        )
        printed = capsys.readouterr().out
        assert "paired bootstrap" in printed
        assert "| turn any@5 | fts5 | 3 | " in printed
        assert "A search, 10 hits, takes" in printed
    assert {
        part.name for part in (here / ".bench").iterdir() if part.is_dir()
    } == set()  # no store is left


def test_each_haystack_is_searched_by_itself(here: Path) -> None:
    other = haystack(
        "q2",
        haystack_sessions=[
            [longmemeval_message("user", "I planted thyme", has_answer=True)],
            [longmemeval_message("user", "Bye")],
        ],
    )
    file = write(
        here / "longmemeval.json", [haystack("q1"), {**other, "answer_session_ids": ["s1"]}]
    )
    command.main(["longmemeval", str(file), "--systems", "memories,fts5", "--results", "out.jsonl"])
    first, second = [json.loads(line) for line in (here / "out.jsonl").read_text().splitlines()]
    assert first["systems"]["memories"]["turns"][0] == "answer_1/1"
    assert first["systems"]["memories"]["session"]["any@1"] == 1
    assert second["systems"]["memories"]["turns"][0] == "s1/0"


def test_questions_are_asked_at_their_own_time(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_at: list[object] = []

    def search(_: Memories, query: str, **filters: object) -> tuple[()]:
        asked_at.append((query, filters["now"], filters["scope"], filters["limit"]))
        return ()

    monkeypatch.setattr(Memories, "search", search)
    file = write(here / "longmemeval.json", [haystack("q1")])
    command.main(["longmemeval", str(file), "--systems", "memories"])
    moment = datetime(2023, 5, 30, 23, 40, tzinfo=UTC)
    assert set(asked_at) == {("What did I plant?", moment, "history", limit) for limit in (50, 10)}


def test_the_text_of_a_session_joins_its_messages(here: Path) -> None:
    [pool] = datasets.load("beam", beam(here / "chats")).pools
    texts = systems._session_texts(pool)
    assert texts["3/1.2"] == "The API takes 300 ms Noted: the API"
    assert list(texts) == ["3/1.1", "3/1.2", "3/2.1"]


def test_an_exchange_is_found_once_and_a_session_by_its_best_turn(here: Path) -> None:
    options = measure.Options("beam", beam(here / "chats"), ("fts5",), results=here / "out.jsonl")
    measure.run(options)
    [line] = [json.loads(line) for line in (here / "out.jsonl").read_text().splitlines()]
    found = line["systems"]["fts5"]
    assert found["turns"] == ["3/4"]  # both messages of the exchange name the API
    assert found["turn"]["any@1"] == 1
    assert found["turn"]["frac@10"] == 0.5
    assert found["sessions"] == ["3/1.2"]


def test_results_are_stored_in_the_cache_folder_by_default(here: Path) -> None:
    command.main(
        ["locomo", str(write(here / "locomo.json", LOCOMO)), "--systems", "fts5", "--limit", "1"]
    )
    [file] = (here / ".bench").glob("results-locomo-minilm-20*.jsonl")
    assert len(file.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["locomo", "nowhere.json"], "there is no nowhere.json"),
        (["locomo", "nowhere.json", "--systems", "elastic"], 'there is no system "elastic"'),
        (["locomo", "nowhere.json", "--limit", "0"], '"0" is not a number of questions'),
        (["locomo", "nowhere.json", "--systems", "chroma", "--no-chroma"], "no system is left"),
        (["squad", "nowhere.json"], "invalid choice"),
    ],
)
def test_invalid_options_exit_with_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert said in error.splitlines()[-1]
    assert "Traceback" not in error


@pytest.mark.thorough
def test_the_benchmark_command_runs_by_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.retrieval", "locomo", "nowhere.json"],
        capture_output=True, text=True, cwd=ROOT, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "there is no nowhere.json" in done.stderr


def test_an_unwritable_results_file_is_refused_before_the_work_starts(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(measure, "_measure")
    with pytest.raises(SystemExit) as ended:
        command.main(["locomo", str(write(here / "locomo.json", LOCOMO)), "--results", str(here)])
    assert ended.value.code == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_message_longer_than_a_turn_is_found_as_one_message(here: Path) -> None:
    folder = beam(here / "chats")
    log = "\n".join(f"line {number}: all is well" for number in range(4_500))
    hidden = f"{log}\nThe orchid costs nine euros\n{log[:50_000]}"
    assert len(hidden) > MAX_TURN_CHARACTERS
    group = [
        longmemeval_message("user", hidden, id=8),
        longmemeval_message("assistant", "Read", id=9),
    ]
    chat = json.loads((folder / "3" / "chat.json").read_text())
    write(folder / "3" / "chat.json", [*chat, {"batch_number": 3, "turns": [group]}])
    asked = {"question": "What does the orchid cost?", "source_chat_ids": [8]}
    write(folder / "3" / "pq.json", {"information_extraction": [asked]})
    systems_ = ("memories", "fts5", "rrf")
    measure.run(
        measure.Options("beam", folder, systems_, results=here / "out.jsonl", embedder="fake")
    )
    [line] = [json.loads(line) for line in (here / "out.jsonl").read_text().splitlines()]
    found = line["systems"]["memories"]["turns"]
    assert found[0] == "3/8"
    assert found.count("3/8") == 1


def test_a_bar_is_drawn_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.shown("storing", 2) as advance:
        advance(1)
        advance(1)
    drawn = capsys.readouterr().err
    assert "storing [##############################] 2 of 2" in drawn
    assert drawn.endswith("\r\033[K")
