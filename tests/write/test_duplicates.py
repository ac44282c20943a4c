"""Duplicates are told from corrections by the words that differ."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memories import Draft, Memories
from memories.embedders import open_embedder
from memories.embedders.minilm import MiniLM
from memories.write import duplicates
from memories.write.duplicates import Judgement, Verdict, judge, same_lines

DATA = Path(__file__).parents[1] / "data"
PAIRS, KINDS = DATA / "duplicate_pairs.jsonl", DATA / "duplicate_kinds.jsonl"
LANGUAGES, PROSE = DATA / "language_pairs.jsonl", DATA / "prose_pairs.jsonl"
NOT_STORED = {Verdict.SAME, Verdict.DUPLICATE}


def near(new: str, old: str) -> Judgement:
    """Judge as if the vectors saw no difference at all."""
    return judge(new, old, 0.99, threshold=0.8)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("The user prefers tabs", "the user  prefers tabs."),
        ("DEPLOYS ARE FROZEN!", "deploys are frozen"),
        ("Deploys are frozen. Ask Bob.", "deploys are frozen. ask Bob"),
        ("He reads it in The Times.", "He reads it in the Times."),
        ("Do NOT push on red.", "Do not push on red."),
        ('He said "no".', 'He said "no"'),
        ("a:\n  b  \n", "a:\n  b"),
        ("用户住在柏林", "用户住在柏林。"),
        ("“Quoted” text", '"quoted" text'),
    ],
)
def test_first_letters_spaces_quotes_and_final_stops_make_no_difference(new: str, old: str) -> None:
    assert near(new, old) == Judgement(Verdict.SAME)
    assert judge(new, old, None, threshold=0.8).verdict is Verdict.SAME


def test_case_counts_in_paths() -> None:
    assert near("See src/Cart.tsx", "See src/cart.tsx").verdict is Verdict.CORRECTION


@pytest.mark.parametrize(
    ("new", "old", "reason"),
    [
        ("Push to main first.", "Push to Main first.", "case: Main -> main"),
        ("userid", "userId", "case: userId -> userid"),
        ("Print it with -V.", "Print it with -v.", "case: -v -> -V"),
        ("The level is DEBUG.", "The level is Debug.", "case: Debug -> DEBUG"),
        ("We polish shoes, e.g. Main ones.", "We polish shoes, e.g. main ones.", "case: main -> Main"),
        ("Move Main to main.", "Move main to Main.", "case: main -> Main"),
        ("Contact US", "Contact us", "name: us -> US"),
        ("Drink it in Massen.", "Drink it in Maßen.", "name: Maßen -> Massen"),
        ("git add", "git add .", "words: - ."),
        ("The separator is !", "The separator is .", "words: . -> !"),
        ("a:\n  b: 1", "a:\n b: 1", "layout"),
        ("a:\n  b: 1", "a: b: 1", "layout"),
        ("stop\napi db", "stop api\ndb", "layout"),
        ("Bring the laptops.", "Bring the laptop.", "number: laptop -> laptops"),
        ("Bring the laptop.", "Bring the laptops.", "number: laptops -> laptop"),
    ],
)
def test_case_lone_signs_layout_and_number_count(new: str, old: str, reason: str) -> None:
    assert near(new, old) == Judgement(Verdict.CORRECTION, reason)
    assert judge(new, old, None, threshold=0.8) == Judgement(Verdict.DIFFERENT)


def test_raised_digits_are_not_digits() -> None:
    assert near("The factor is 10²", "The factor is 102").verdict is Verdict.CORRECTION


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("User wants dark mode in all applications.", "The user wishes dark mode in every application."),
        ("Deploys happen on Tuesdays at 09:30", "Deploys happen on Tuesdays at 9:30."),
        ("The payments team is managed by Alice.", "Alice manages the payments team."),
        ("On Fridays, we deploy.", "We deploy on Fridays."),
        ("Priya is the release manager.", "The release manager is Priya."),
        ("The user speaks German and English.", "The user speaks English and German."),
        ("The user does not eat meat.", "The user doesn't eat meat."),
        ("The token expires after one hour.", "The token expires after 1 hour."),
        ("The repo uses the postgres db.", "The repository is using the PostgreSQL database."),
        ("User's timezone is UTC.", "The user's time zone is UTC."),
        ("We report errors to Sentry.", "Errors are reported to Sentry."),
        ("The worker needs 4GB of RAM.", "The worker requires 4 GB of memory."),
        ("The user used an old laptop in 2020.", "In 2020 the user used an old laptop."),
    ],
)
def test_another_wording_of_the_same_fact_is_a_duplicate(new: str, old: str) -> None:
    assert near(new, old) == Judgement(Verdict.DUPLICATE)
    assert near(old, new) == Judgement(Verdict.DUPLICATE)


@pytest.mark.parametrize(
    ("new", "old", "reason"),
    [
        ("The API listens on port 9090.", "The API listens on port 8080.", "numbers: 8080 -> 9090"),
        ("It retries five times.", "It retries three times.", "numbers: three -> five"),
        ("We meet on Tuesday.", "We meet on Monday.", "date: Monday -> Tuesday"),
        ("It ends on 2026-03-01.", "It ends on 2025-03-01.", "date: 2025-03-01 -> 2026-03-01"),
        ("It needs Python 3.12 now.", "It needs Python 3.11 now.", "version: 3.11 -> 3.12"),
        ("Read /etc/b.conf first.", "Read /etc/a.conf first.", "path: /etc/a.conf -> /etc/b.conf"),
        ("The lead is Melanie.", "The lead is Caroline.", "name: Caroline -> Melanie"),
        ("The editor is emacs.", "The editor is vim.", "words: vim -> emacs"),
        ("The flag is not set.", "The flag is set.", "negation: + not"),
        ("Never push on red.", "Always push on red.", "negation: Always -> Never"),
        ("We no longer use Jenkins.", "We use Jenkins.", "negation: + no longer"),
        ("The flag is disabled.", "The flag is enabled.", "words: enabled -> disabled"),
        ("Bob reports to Alice.", "Alice reports to Bob.", "word order"),
        ("The team used Jenkins.", "The team uses Jenkins.", "tense"),
    ],
)
def test_a_correction_names_what_differs(new: str, old: str, reason: str) -> None:
    assert near(new, old) == Judgement(Verdict.CORRECTION, reason)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("Jane leads the team.", "Jan leads the team."),
        ("The report was written by Hans.", "The report was written by Han."),
        ("Only the US customers pay.", "Only us customers pay."),
        ("Use just for tasks.", "Use make for tasks."),
        ("The default branch is primary.", "The default branch is main."),
        ("The orders table is locked.", "The order table is locked."),
        ("The user has cats.", "The user has a cat."),
        ("The app runs on Windows.", "The app runs on window."),
        ("Go is at version 1.22.", "Go is at version 1.21."),
    ],
)
def test_words_that_look_alike_are_not_the_same(new: str, old: str) -> None:
    assert near(new, old).verdict is Verdict.CORRECTION


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("Alice is trained.", "Alice trains."),
        ("The worker is called by the API.", "The worker calls the API."),
        ("Ben is managed by Dana.", "Dana is managed by Ben."),
        ("Use spaces instead of tabs.", "Use tabs instead of spaces."),
        ("Migrate from MySQL to Redis.", "Migrate from Redis to MySQL."),
        ("Alice works with Acme for Bob.", "Alice works for Acme with Bob."),
        ("Alice reviews in Munich and Bob reviews in Berlin.", "Alice reviews in Berlin and Bob reviews in Munich."),
        ("Restart and migrate the host.", "Migrate and restart the host."),
        ("Alice and Bob own billing and search respectively.", "Bob and Alice own billing and search respectively."),
    ],
)
def test_swapped_roles_are_corrections(new: str, old: str) -> None:
    assert near(new, old).verdict is Verdict.CORRECTION


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("The meeting is every Monday.", "The meeting is on Monday."),
        ("The meeting is at 3 pm.", "The meeting is at 3 am."),
        ("The meeting is at 3 am.", "The meeting is at 3."),
        ("Alice used to live in Prague.", "Alice lives in Prague."),
        ("Alice will move to Prague.", "Alice moves to Prague."),
        ("He reviews the code.", "She reviews the code."),
        ("My wife likes tea.", "Your wife likes tea."),
        ("Some of the tests pass.", "All of the tests pass."),
        ("The alert fires at < 80%.", "The alert fires at > 80%."),
        ("The offset is -5 mm.", "The offset is 5 mm."),
        ("The budget is €400.", "The budget is $400."),
        ("Start it with --cache.", "Start it with cache."),
        ("We deploy on Friday?", "We deploy on Friday and test."),
        ("The build is ❌ today.", "The build is ✅ today."),
        ("We use C++.", "We use C."),
        ("Turn the flag on in staging.", "Turn the flag in staging."),
        ("Alice told Carol and Bob left.", "Alice told Bob and Carol left."),
    ],
)
def test_small_signs_carry_facts(new: str, old: str) -> None:
    assert near(new, old).verdict is Verdict.CORRECTION


@pytest.mark.parametrize(
    "more", ["only for sessions", "until June", "unless Carol approves", "in Berlin", "8080", "too often"]
)
def test_an_added_or_dropped_fact_is_stored(more: str) -> None:
    assert near(f"We use Redis {more}.", "We use Redis.").verdict is Verdict.CORRECTION
    assert near("We use Redis.", f"We use Redis {more}.").verdict is Verdict.CORRECTION


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("会议在三月六日举行。", "会议在三月五日举行。"),
        ("Сервер слушает порт 9090.", "Сервер слушает порт 8080."),
        ("Боб подчиняется Алисе.", "Алиса подчиняется Бобу."),
        ("الخادم يستمع على المنفذ ٩٠٩٠", "الخادم يستمع على المنفذ ٨٠٨٠"),
        ("사용자는 부산에 산다.", "사용자는 서울에 산다."),
    ],
)
def test_other_scripts_differ_when_a_character_does(new: str, old: str) -> None:
    assert near(new, old).verdict is Verdict.CORRECTION


def test_unlike_texts_in_other_scripts_are_different_however_near_their_vectors() -> None:
    assert near("用户喜欢深色模式", "会议在三月举行").verdict is Verdict.DIFFERENT


def test_below_the_threshold_all_but_the_same_is_different() -> None:
    assert judge("User wants tea.", "The user wishes tea.", 0.5, threshold=0.8) == Judgement(Verdict.DIFFERENT)
    assert judge("user likes tea", "User likes tea.", 0.5, threshold=0.8) == Judgement(Verdict.SAME)


def test_without_vectors_a_difference_is_different_and_none_a_duplicate() -> None:
    assert judge("User wants tea.", "The user wishes tea.", None, threshold=0.8) == Judgement(Verdict.DUPLICATE)
    assert judge("User wants tea.", "The user wishes coffee.", None, threshold=0.8) == Judgement(Verdict.DIFFERENT)


@pytest.mark.parametrize("text", ["", " ", "?", "...", "-", "()", "`", "'", "'s", "\u0300", "👍", "on", "by", "is"])
def test_scraps_are_judged_without_a_failure(text: str) -> None:
    assert near(text, text).verdict is Verdict.SAME
    assert near(f"{text} 8080", text).verdict not in NOT_STORED


def test_a_long_text_is_judged_word_by_word() -> None:
    old = " ".join(f"Step {number} copies the file to host {number}." for number in range(500))
    assert near(old.replace("host 250", "host 251"), old).verdict is Verdict.CORRECTION


@pytest.fixture(scope="module")
def judged() -> list[tuple[dict[str, str], Verdict]]:
    embedder = open_embedder("minilm")
    assert embedder is not None
    rows = [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    threshold = MiniLM.space.duplicate
    verdicts = []
    for row in rows:
        cosine = float(embedder.embed(row["old"])[0] @ embedder.embed(row["new"])[0])
        verdicts.append((row, judge(row["new"], row["old"], cosine, threshold=threshold).verdict))
    return verdicts


def test_no_pair_that_must_be_stored_is_dropped(judged: list[tuple[dict[str, str], Verdict]]) -> None:
    dropped = [row for row, verdict in judged if row["expected"] == "stored" and verdict in NOT_STORED]
    assert sum(row["expected"] == "stored" for row, _ in judged) > 250
    assert dropped == []


@pytest.mark.parametrize("file", [PAIRS, KINDS], ids=lambda file: file.stem)
def test_no_correction_is_dropped_in_either_direction_however_near(file: Path) -> None:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    stored = [row for row in rows if row["expected"] == "stored"]
    assert [row for row in stored if near(row["new"], row["old"]).verdict in NOT_STORED] == []
    assert [row for row in stored if near(row["old"], row["new"]).verdict in NOT_STORED] == []


@pytest.mark.parametrize(("split", "recall"), [("dev", 0.63), ("held", 0.58)])
def test_repetitions_are_caught(judged: list[tuple[dict[str, str], Verdict]], split: str, recall: float) -> None:
    caught = [v in NOT_STORED for row, v in judged if row["expected"] == "duplicate" and row["split"] == split]
    assert sum(caught) / len(caught) >= recall


def test_repetitions_of_every_kind_are_caught() -> None:
    rows = [json.loads(line) for line in KINDS.read_text(encoding="utf-8").splitlines()]
    repetitions = [row for row in rows if row["expected"] == "duplicate"]
    missed = [row for row in repetitions if near(row["new"], row["old"]).verdict not in NOT_STORED]
    assert len(repetitions) > 100
    assert len(missed) / len(repetitions) <= 0.02


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("We use asymmetric key for tokens", "We use a symmetric key for tokens"),
        ("Ann will resign the contract", "Ann will re-sign the contract"),
        ("Remove packages with: yarn remove lodash", "Remove packages with: yarn delete lodash"),
        ("the kubectl verb is remove", "the kubectl verb is delete"),
        ("The lights are on the car", "The lights are in the car"),
        ("We test production.", "We test in production."),
        ("An employee is a manager", "A manager is an employee"),
        ("The new host is the old host", "The old host is the new host"),
        ("Is Ann in charge", "Ann is in charge"),
        ("The index table is user", "The index table is users"),
        ("He sells apple.", "He sells apples."),
        ("Stop the release goes out", "Stop, the release goes out"),
        ("Only trusting clients connect.", "Only trusted clients connect."),
        ('Print it with echo "a b".', 'Print it with echo "a  b".'),
        ("Remove the tool by uv remove ruff.", "Remove the tool by uv delete ruff."),
        ("The worker locks.", "The worker has locks."),
    ],
)
def test_what_looks_like_another_wording_and_is_none_is_stored(new: str, old: str) -> None:
    assert near(new, old).verdict is Verdict.CORRECTION
    assert near(old, new).verdict is Verdict.CORRECTION


@pytest.mark.parametrize(
    ("new", "old", "same"),
    [
        ("a:\n  b: 1\nc: 2", "a:\n  b: 1\n  c: 2", False),
        ("all:\n\tmake", "all:\n    make", False),
        ("one\n\ntwo", "one\ntwo", False),
        ("a:\n  b: 1  ", "\na:\n  b: 1", True),
        ("all  in one line", "all in one line", True),
    ],
)
def test_long_texts_are_the_same_if_their_lines_and_indents_are(new: str, old: str, same: bool) -> None:
    filler = "\n" + "x = 1\n" * 400 if "\n" in old else " and so on" * 300
    assert same_lines(new + filler, old + filler) is same


def _rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("path", [LANGUAGES, PROSE])
def test_no_correction_in_any_language_is_refused(path: Path) -> None:
    for row in _rows(path):
        for new, old in ((row["new"], row["old"]), (row["old"], row["new"])):
            if not row["kind"].startswith("repetition"):
                assert near(new, old).verdict not in NOT_STORED, row


@pytest.mark.parametrize(("path", "least"), [(LANGUAGES, 0.97), (PROSE, 0.94)])
def test_repetitions_in_every_language_are_known(path: Path, least: float) -> None:
    pairs = [row for row in _rows(path) if row["kind"].startswith("repetition")]
    assert sum(near(row["new"], row["old"]).verdict in NOT_STORED for row in pairs) >= least * len(pairs)


@pytest.mark.parametrize(
    ("new", "old", "reason"),
    [
        ("Der Server ist nicht da.", "Der Server ist da.", "negation: + nicht"),
        ("Le serveur n'est pas là.", "Le serveur est là.", "negation: + n pas"),
        ("Мы встречаемся во вторник.", "Мы встречаемся в понедельник.", "date: понедельник -> вторник"),
        ("La feria es en junio.", "La feria es en mayo.", "date: mayo -> junio"),
        ("Ela tem quatro gatos.", "Ela tem três gatos.", "numbers: três -> quatro"),
    ],
)
def test_what_differs_is_named_in_other_languages(new: str, old: str, reason: str) -> None:
    assert near(new, old) == Judgement(Verdict.CORRECTION, reason)


def test_words_that_look_like_english_ones_without_weight_have_weight_elsewhere() -> None:
    assert near("Viajo do Porto para casa.", "Viajo a Porto para casa.").verdict is Verdict.CORRECTION
    assert near("Das Licht ist an.", "Das Licht ist.").verdict is Verdict.CORRECTION
    assert near("Cierra a las once.", "Cierra a las 11.").verdict is Verdict.DUPLICATE
    assert near("Er wiegt 3,5 Kilo.", "Er wiegt 3.5 Kilo.").verdict is Verdict.DUPLICATE
    assert near("Er wiegt 3,5 Kilo.", "Er wiegt 35 Kilo.").verdict is Verdict.CORRECTION


# --- a look at the words before they are aligned ---------------------------------------------------------------------


def _all_pairs() -> list[tuple[str, str]]:
    rows = [row for path in (PAIRS, KINDS, LANGUAGES, PROSE) for row in _rows(path)]
    return [(row["new"], row["old"]) for row in rows]


@pytest.mark.parametrize("similarity", [0.99, None])
def test_where_no_reason_is_asked_for_repetitions_are_the_same(similarity: float | None) -> None:
    """Also of texts that have nothing to do with each other: each with the old text of the next pair."""
    pairs = _all_pairs()
    pairs += [(new, old) for (new, _), (_, old) in pairwise(pairs)]
    known = 0
    for new, old in [*pairs, *((old, new) for new, old in pairs)]:
        whole = judge(new, old, similarity, threshold=0.8).verdict
        quick = judge(new, old, similarity, threshold=0.8, told=False).verdict
        assert (quick in NOT_STORED and quick) == (whole in NOT_STORED and whole), (new, old)
        known += quick in NOT_STORED
    assert known > 500


WORDS = (
    "time zone timezone time-zone timezones data base database databases uses use used using backups backup back up "
    "the a is are was by of in on at every day daily Monday Mondays not no never red Red US us port ports 8080 9090 "
    "delete deletes deleted remove removed drop erase likes like prefers prefer . , apples pears apple's box boxes"
).split(" ")


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=9), st.data())
def test_words_that_surely_differ_do(words: list[str], data: st.DataObject) -> None:
    """Whatever means the same: what is told to differ without a look at all of it differs."""
    other = data.draw(st.permutations(words)) if data.draw(st.booleans()) else list(words)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(other)))
        other[at : at + data.draw(st.integers(0, 1))] = [data.draw(st.sampled_from(WORDS))]
    new, old = " ".join(words), " ".join(other)
    if duplicates._surely_differ(duplicates._weighed(new, ()), duplicates._weighed(old, ())):
        assert duplicates._told(*duplicates.aligned(new, old))
    if judge(new, old, 0.99, threshold=0.8).verdict in NOT_STORED:
        assert judge(new, old, 0.99, threshold=0.8, told=False) == judge(new, old, 0.99, threshold=0.8)


@pytest.mark.parametrize("kind", ["minilm", "none"])
def test_texts_that_are_nearly_equal_are_aligned_a_few_times_only(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with each that is there: each is compared with up to 128, and to align two of them takes milliseconds."""
    text = "The cluster in the old hall runs the proxy of {0} on Mondays, and its owner asked that box {0} stays. " * 4
    count = 0
    align = duplicates.align

    def counting(new: Any, old: Any) -> Any:
        nonlocal count
        count += 1
        return align(new, old)

    monkeypatch.setattr(duplicates, "align", counting)
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder=kind, namespace="ann") as memories:
        made = memories.create_many([Draft(text.format(n)) for n in range(60)])
        assert all(each.stored for each in made)
        if kind == "minilm":
            assert {len(each.similar_to) for each in made[10:]} == {5}
        again = memories.create_many([Draft(text.format(n)) for n in range(0, 60, 7)])
    assert not any(each.stored for each in again)
    assert count <= 12 * (len(made) + len(again))
