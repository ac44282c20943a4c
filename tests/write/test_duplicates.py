"""The words that differ determine whether a text repeats or corrects another."""

import functools
import itertools
import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memories import Draft, Memories
from memories.embedders.minilm import MiniLM
from memories.write.compare import duplicates, grammar
from memories.write.compare.corrections import is_correction
from memories.write.compare.duplicates import (
    Relation,
    TextComparison,
    compare_texts,
    compare_words,
    have_same_lines,
)
from memories.write.compare.quick_checks import may_be_related
from memories.write.compare.reading import parse_text
from tables import failures_of
from verdicts import changed

DATA = Path(__file__).parents[1] / "data"
PAIRS, KINDS = DATA / "duplicate_pairs.jsonl", DATA / "duplicate_kinds.jsonl"
CONSTRUCTIONS = DATA / "construction_pairs.jsonl"
LANGUAGES, PROSE = DATA / "language_pairs.jsonl", DATA / "prose_pairs.jsonl"
NOT_STORED = {Relation.SAME, Relation.DUPLICATE}


@functools.cache
def compare_as_near(new: str, old: str) -> TextComparison:
    """Compare two texts as if their vectors were equal."""
    return compare_texts(new, old, 0.99, threshold=0.8)


def misjudged(rows: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str, TextComparison]]:
    """Return the rows (new, old, reason) that are not judged as corrections for that reason, with
    the result.
    """
    judged = [(*row, compare_as_near(row[0], row[1])) for row in rows]
    return [row for row in judged if row[3] != TextComparison(Relation.DIFFERS, row[2])]


def no_corrections(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str, TextComparison]]:
    """Return the pairs (new, old) that are not judged as corrections, with the result."""
    judged = [(new, old, compare_as_near(new, old)) for new, old in pairs]
    return [row for row in judged if row[2].relation is not Relation.DIFFERS]


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file of pairs."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


SAME = [
    ("The user prefers tabs", "the user  prefers tabs."),
    ("DEPLOYS ARE FROZEN!", "deploys are frozen"),
    ("Deploys are frozen. Ask Bob.", "deploys are frozen. ask Bob"),
    ("He reads it in The Times.", "He reads it in the Times."),
    ("Do NOT push on red.", "Do not push on red."),
    ('He said "no".', 'He said "no"'),
    ("a:\n  b  \n", "a:\n  b"),
    ("用户住在柏林", "用户住在柏林。"),
    ("“Quoted” text", '"quoted" text'),
]


@pytest.mark.parametrize(
    ("word", "bases"),
    [
        ("sing", []), ("used", ["use"]), ("toed", ["toe"]), ("based", ["bas", "base"]),
        ("bobbing", ["bobb", "bobbe", "bob"]), ("skies", ["sky"]), ("boxes", ["boxe", "box"]),
        ("cats", ["cat"]),
        ("gas", []), ("glass", []), ("this", []),
    ],
)  # fmt: skip
def test_words_have_the_expected_base_form(word: str, bases: list[str]) -> None:
    assert grammar.base_of(word) == bases


def test_initial_capitals_spaces_quotes_and_final_stops_make_no_difference() -> None:
    judged = [
        (new, old, compare_as_near(new, old), compare_texts(new, old, None, threshold=0.8).relation)
        for new, old in SAME
    ]
    assert [
        row for row in judged if row[2:] != (TextComparison(Relation.SAME), Relation.SAME)
    ] == []


def test_case_matters_in_paths() -> None:
    assert compare_as_near("See src/Cart.tsx", "See src/cart.tsx").relation is Relation.DIFFERS


MARKS = [
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
]


def test_case_separate_symbols_layout_and_number_make_a_difference() -> None:
    assert misjudged(MARKS) == []
    assert [
        row
        for row in MARKS
        if compare_texts(*row[:2], None, threshold=0.8) != TextComparison(Relation.UNRELATED)
    ] == []


def test_superscript_digits_differ_from_digits() -> None:
    assert compare_as_near("The factor is 10²", "The factor is 102").relation is Relation.DIFFERS


REWORDED = [
    (
        "User wants dark mode in all applications.",
        "The user wishes dark mode in every application.",
    ),
    ("Deploys happen on Tuesdays at 09:30", "Deploys happen on Tuesdays at 9:30."),
    ("The payments team is managed by Alice.", "Alice manages the payments team."),
    ("On Fridays, we deploy.", "We deploy on Fridays."),
    ("Priya is the release manager.", "The release manager is Priya."),
    ("The user speaks German and English.", "The user speaks English and German."),
    ("German and English", "English and German"),
    ("The user does not eat meat.", "The user doesn't eat meat."),
    ("The token expires after one hour.", "The token expires after 1 hour."),
    ("The repo uses the postgres db.", "The repository is using the PostgreSQL database."),
    ("User's timezone is UTC.", "The user's time zone is UTC."),
    ("We report errors to Sentry.", "Errors are reported to Sentry."),
    ("The worker needs 4GB of RAM.", "The worker requires 4 GB of memory."),
    ("The user used an old laptop in 2020.", "In 2020 the user used an old laptop."),
]


def test_a_rewording_of_the_same_fact_is_a_duplicate() -> None:
    both_ways = [*REWORDED, *((old, new) for new, old in REWORDED)]
    assert [
        (new, old, compare_as_near(new, old))
        for new, old in both_ways
        if compare_as_near(new, old) != (Relation.DUPLICATE, "")
    ] == []


CORRECTIONS = [
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
]


def test_a_correction_names_what_differs() -> None:
    assert misjudged(CORRECTIONS) == []


def test_equivalent_constructions_are_duplicates_and_corrections_in_them_are_not() -> None:
    rows = rows_of(CONSTRUCTIONS)
    both_ways = [
        (row["kind"], *pair)
        for row in rows
        for pair in ((row["new"], row["old"]), (row["old"], row["new"]))
    ]
    not_stored = [row for row in both_ways if compare_as_near(*row[1:]).relation in NOT_STORED]
    assert [row for row in not_stored if row[0] == "correction"] == []
    assert len(not_stored) >= 2 * 459  # of 614 repetitions; most of the others aren't worth a rule


def test_numbers_times_and_days_are_compared_by_their_value() -> None:
    same = [
        ("The limit is one hundred and fifty users", "The limit is 150 users"),
        ("The fee is twenty-five euros", "The fee is 25 euros"),
        ("El plazo es de treinta y cinco días", "El plazo es de 35 días"),
        ("The job starts at 2 am", "The job starts at 02:00"),
        ("The shop closes at noon", "The shop closes at 12:00"),
        ("The demo is on the 3rd of March", "The demo is on March 3"),
    ]
    assert [pair for pair in same if compare_as_near(*pair).relation not in NOT_STORED] == []
    assert (
        no_corrections(
            [
                ("The limit is one hundred and five users", "The limit is 150 users"),
                ("The job starts at 2 pm", "The job starts at 02:00"),
                ("The shop closes at 12 am", "The shop closes at 12:00"),
                ("The demo is on the 13th of March", "The demo is on March 3"),
            ]
        )
        == []
    )


def test_a_singular_equals_a_plural_only_in_a_general_statement() -> None:
    general = compare_as_near("A migration needs a review", "Migrations need a review")
    assert general.relation is Relation.DUPLICATE
    events = [("A user left the channel", "Users left the channel")]
    events += [("A server will crash", "Servers will crash")]
    assert no_corrections(events) == []


@pytest.mark.parametrize(
    "file", [PAIRS, KINDS, CONSTRUCTIONS, LANGUAGES, PROSE], ids=lambda file: file.stem
)
def test_the_verdict_on_each_pair_is_unchanged(file: Path) -> None:
    pairs = [
        pair
        for row in rows_of(file)
        for pair in ((row["new"], row["old"]), (row["old"], row["new"]))
    ]
    judged = [(pair, tuple(map(str, compare_as_near(*pair)))) for pair in pairs]
    assert changed(f"duplicates in {file.stem}", judged) == []


EDITS: tuple[Callable[[list[str], int], list[str]], ...] = (
    lambda words, at: words[:at] + words[at + 1 :],
    lambda words, at: [*words[:at], "not", *words[at:]],
    lambda words, at: words[at:] + words[:at],
    lambda words, at: [*words[:at], *reversed(words[at : at + 2]), *words[at + 2 :]],
    lambda words, at: [*words[:at], "7", *words[at + 1 :]],
    lambda words, at: [*words[:at], words[at].swapcase(), *words[at + 1 :]],
    lambda words, at: [*words[:at], "and", "Zoe", *words[at:]],
    lambda words, at: [*words, "instead", "of", *words[at : at + 2]],
    lambda words, at: [*words[:at], *words[at:] * 2],
    lambda words, at: [*words[:at], "from", words[at], "to", "Oslo"],
    lambda words, at: [*words[:at], "every", "Monday", *words[at:]],
)


def test_the_verdicts_on_edited_texts_are_unchanged() -> None:
    """Each text is compared, after one edit, with itself and with the other text of its pair."""
    files = (PAIRS, KINDS, CONSTRUCTIONS, LANGUAGES, PROSE, DATA / "correction_pairs.jsonl")
    rows = [row for file in files for row in rows_of(file) if len(row["new"] + row["old"]) < 120]
    judged = []
    for number, row in enumerate(rows[::4]):
        words = row["new"].split(" ")
        edited = " ".join(EDITS[number % len(EDITS)](words, number * 5 % len(words)))
        for old in (row["new"], row["old"])[number % 2 :]:
            verdict = (
                *map(str, compare_as_near(edited, old)),
                is_correction(edited, old, None, threshold=0.8),
            )
            judged.append(((edited, old), verdict))
    assert changed("edited texts", judged) == []


def test_a_role_that_passes_to_another_person_is_a_correction() -> None:
    assert no_corrections([("Dana is the boss of Max.", "Dana's boss is Max.")]) == []


def test_an_instruction_is_not_a_statement() -> None:
    assert no_corrections([("Code is formatted with Black.", "Format code with Black.")]) == []


ALIKE = [
    ("Jane leads the team.", "Jan leads the team."),
    ("The report was written by Hans.", "The report was written by Han."),
    ("Only the US customers pay.", "Only us customers pay."),
    ("Use just for tasks.", "Use make for tasks."),
    ("The default branch is primary.", "The default branch is main."),
    ("The orders table is locked.", "The order table is locked."),
    ("The user has cats.", "The user has a cat."),
    ("The app runs on Windows.", "The app runs on window."),
    ("Go is at version 1.22.", "Go is at version 1.21."),
]


def test_words_that_look_alike_are_not_the_same() -> None:
    assert no_corrections(ALIKE) == []


SWAPPED = [
    ("Alice is trained.", "Alice trains."),
    ("The worker is called by the API.", "The worker calls the API."),
    ("Ben is managed by Dana.", "Dana is managed by Ben."),
    ("Use spaces instead of tabs.", "Use tabs instead of spaces."),
    ("Migrate from MySQL to Redis.", "Migrate from Redis to MySQL."),
    ("Alice works with Acme for Bob.", "Alice works for Acme with Bob."),
    (
        "Alice reviews in Munich and Bob reviews in Berlin.",
        "Alice reviews in Berlin and Bob reviews in Munich.",
    ),
    ("Restart and migrate the host.", "Migrate and restart the host."),
    (
        "Alice and Bob own billing and search respectively.",
        "Bob and Alice own billing and search respectively.",
    ),
]


def test_swapped_roles_are_corrections() -> None:
    assert no_corrections(SWAPPED) == []


SMALL_SIGNS = [
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
]


def test_small_symbols_and_words_change_a_fact() -> None:
    assert no_corrections(SMALL_SIGNS) == []


def test_a_text_with_an_added_or_dropped_fact_is_stored() -> None:
    facts = (
        "only for sessions",
        "until June",
        "unless Carol approves",
        "in Berlin",
        "8080",
        "too often",
    )
    added = [(f"We use Redis {more}.", "We use Redis.") for more in facts]
    assert no_corrections([*added, *((old, new) for new, old in added)]) == []


OTHER_SCRIPTS = [
    ("会议在三月六日举行。", "会议在三月五日举行。"),
    ("Сервер слушает порт 9090.", "Сервер слушает порт 8080."),
    ("Боб подчиняется Алисе.", "Алиса подчиняется Бобу."),
    ("الخادم يستمع على المنفذ ٩٠٩٠", "الخادم يستمع على المنفذ ٨٠٨٠"),
    ("사용자는 부산에 산다.", "사용자는 서울에 산다."),
]


def test_in_other_scripts_a_single_different_character_is_a_correction() -> None:
    assert no_corrections(OTHER_SCRIPTS) == []


def test_unrelated_texts_in_other_scripts_differ_despite_similar_vectors() -> None:
    assert compare_as_near("用户喜欢深色模式", "会议在三月举行").relation is Relation.UNRELATED


def test_a_difference_is_a_correction_at_or_above_the_threshold() -> None:
    texts = "The API listens on port 9090", "The API listens on port 8080"
    for similarity, relation in ((0.8, Relation.DIFFERS), (0.799, Relation.UNRELATED)):
        assert compare_texts(*texts, similarity, threshold=0.8).relation is relation


def test_below_the_threshold_only_equal_texts_are_repetitions() -> None:
    assert compare_texts(
        "User wants tea.", "The user wishes tea.", 0.5, threshold=0.8
    ) == TextComparison(Relation.UNRELATED)
    assert compare_texts("user likes tea", "User likes tea.", 0.5, threshold=0.8) == TextComparison(
        Relation.SAME
    )


def test_without_vectors_texts_are_duplicates_or_different() -> None:
    assert compare_texts(
        "User wants tea.", "The user wishes tea.", None, threshold=0.8
    ) == TextComparison(Relation.DUPLICATE)
    assert compare_texts(
        "User wants tea.", "The user wishes coffee.", None, threshold=0.8
    ) == TextComparison(Relation.UNRELATED)


def test_fragments_of_text_can_be_compared() -> None:
    for text in ("", " ", "?", "...", "-", "()", "`", "'", "'s", "\u0300", "👍", "on", "by", "is"):
        assert compare_as_near(text, text).relation is Relation.SAME, text
        assert compare_as_near(f"{text} 8080", text).relation not in NOT_STORED, text


def test_a_long_text_is_judged_word_by_word() -> None:
    old = " ".join(f"Step {number} copies the file to host {number}." for number in range(500))
    assert (
        compare_words(old.replace("host 250", "host 251"), old, 0.99, threshold=0.8).relation
        is Relation.DIFFERS
    )


@pytest.mark.parametrize(
    ("words", "relation"), [(300, Relation.DUPLICATE), (301, Relation.DIFFERS)]
)
def test_a_moved_part_is_noticed_in_texts_of_up_to_300_words(
    words: int, relation: Relation
) -> None:
    """Comparing the word orders of longer texts would take seconds."""
    endings = ("abao", "eben", "irus", "olum", "umak", "anil", "iloz", "eros", "atax", "uded", "osat",
               "imir", "orab", "enug", "abor", "upis", "alin", "ozek")  # fmt: skip
    names = map("".join, itertools.product("bcdfghjklmnprstvwz", endings))
    text = " ".join(itertools.islice(names, words - 2))
    assert compare_as_near(f"On Monday {text}", f"{text} on Monday").relation is relation


@pytest.mark.parametrize("file", [PAIRS, KINDS], ids=lambda file: file.stem)
def test_no_correction_is_refused_in_either_direction_despite_similar_vectors(file: Path) -> None:
    stored = [row for row in rows_of(file) if row["expected"] == "stored"]
    assert len(stored) > 150
    assert [
        row for row in stored if compare_as_near(row["new"], row["old"]).relation in NOT_STORED
    ] == []
    assert [
        row for row in stored if compare_as_near(row["old"], row["new"]).relation in NOT_STORED
    ] == []


def test_the_model_and_its_threshold_catch_most_repetitions() -> None:
    model = MiniLM()
    caught: dict[str, list[bool]] = {"dev": [], "held": []}
    for row in rows_of(PAIRS):
        if row["expected"] == "duplicate":
            cosine = float(model.embed(row["old"])[0] @ model.embed(row["new"])[0])
            relation = compare_texts(
                row["new"], row["old"], cosine, threshold=MiniLM.space.duplicate
            ).relation
            caught[row["split"]].append(relation in NOT_STORED)
    shares = {split: sum(each) / len(each) for split, each in caught.items()}
    assert shares["dev"] >= 0.63, shares
    assert shares["held"] >= 0.58, shares


def test_repetitions_of_every_kind_are_caught() -> None:
    repetitions = [row for row in rows_of(KINDS) if row["expected"] == "duplicate"]
    missed = [
        row
        for row in repetitions
        if compare_as_near(row["new"], row["old"]).relation not in NOT_STORED
    ]
    assert len(repetitions) > 100
    assert len(missed) / len(repetitions) <= 0.02


NO_REWORDING = [
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
]


def test_false_rewordings_are_stored_as_new_memories() -> None:
    assert no_corrections([*NO_REWORDING, *((old, new) for new, old in NO_REWORDING)]) == []


LINES = [
    ("a:\n  b: 1\nc: 2", "a:\n  b: 1\n  c: 2", False),
    ("all:\n\tmake", "all:\n    make", False),
    ("one\n\ntwo", "one\ntwo", False),
    ("a:\n  b: 1  ", "\na:\n  b: 1", True),
    ("all  in one line", "all in one line", True),
]


def test_long_texts_are_the_same_if_their_lines_and_indents_are_equal() -> None:
    fillers = ["\n" + "x = 1\n" * 400 if "\n" in old else " and so on" * 300 for _, old, _ in LINES]
    found = [
        have_same_lines(new + more, old + more)
        for (new, old, _), more in zip(LINES, fillers, strict=True)
    ]
    assert found == [same for *_, same in LINES]


def test_equal_lines_are_compared_even_if_their_vectors_are_dissimilar() -> None:
    related = [
        may_be_related(new, old, 0.0, threshold=0.8) for new, old, is_same in LINES if is_same
    ]
    assert all(related)
    assert not may_be_related("The port is 8080.", "Ann likes tea.", 0.0, threshold=0.8)


@pytest.mark.parametrize("path", [LANGUAGES, PROSE], ids=lambda path: path.stem)
def test_no_correction_in_any_language_is_refused(path: Path) -> None:
    corrections = [row for row in rows_of(path) if not row["kind"].startswith("repetition")]
    assert len(corrections) > 50
    assert [
        row for row in corrections if compare_as_near(row["new"], row["old"]).relation in NOT_STORED
    ] == []
    assert [
        row for row in corrections if compare_as_near(row["old"], row["new"]).relation in NOT_STORED
    ] == []


@pytest.mark.parametrize(
    ("path", "least"), [(LANGUAGES, 0.97), (PROSE, 0.94)], ids=["languages", "prose"]
)
def test_repetitions_in_every_language_are_caught(path: Path, least: float) -> None:
    pairs = [row for row in rows_of(path) if row["kind"].startswith("repetition")]
    assert sum(
        compare_as_near(row["new"], row["old"]).relation in NOT_STORED for row in pairs
    ) >= least * len(pairs)


CORRECTIONS_ELSEWHERE = [
    ("Der Server ist nicht da.", "Der Server ist da.", "negation: + nicht"),
    ("Le serveur n'est pas là.", "Le serveur est là.", "negation: + n pas"),
    ("Мы встречаемся во вторник.", "Мы встречаемся в понедельник.", "date: понедельник -> вторник"),
    ("La feria es en junio.", "La feria es en mayo.", "date: mayo -> junio"),
    ("Ela tem quatro gatos.", "Ela tem três gatos.", "numbers: três -> quatro"),
]


def test_differences_are_named_in_other_languages() -> None:
    assert misjudged(CORRECTIONS_ELSEWHERE) == []


def test_words_that_look_like_english_function_words_count_in_other_languages() -> None:
    assert (
        compare_as_near("Viajo do Porto para casa.", "Viajo a Porto para casa.").relation
        is Relation.DIFFERS
    )
    assert compare_as_near("Das Licht ist an.", "Das Licht ist.").relation is Relation.DIFFERS
    assert compare_as_near("Cierra a las once.", "Cierra a las 11.").relation is Relation.DUPLICATE
    assert (
        compare_as_near("Er wiegt 3,5 Kilo.", "Er wiegt 3.5 Kilo.").relation is Relation.DUPLICATE
    )
    assert compare_as_near("Er wiegt 3,5 Kilo.", "Er wiegt 35 Kilo.").relation is Relation.DIFFERS


# --- the quick comparison of words before they are aligned


def all_pairs() -> list[tuple[str, str]]:
    """Return all pairs of the files: each new text with its old text, and with the old text of the
    next pair.
    """
    rows = [row for path in (PAIRS, KINDS, LANGUAGES, PROSE) for row in rows_of(path)]
    pairs = [(row["new"], row["old"]) for row in rows]
    return pairs + [(new, old) for (new, _), (_, old) in pairwise(pairs)]


def check_repetitions_are_the_same_without_a_reason(pairs: Sequence[tuple[str, str]]) -> int:
    """Compare pairs with and without an explanation, and without a similarity; return the number of
    repetitions.
    """
    failures, repetitions = [], 0
    for new, old in pairs:
        whole = compare_texts(new, old, 0.99, threshold=0.8).relation
        quick = compare_texts(new, old, 0.99, threshold=0.8, explain=False).relation
        blind = compare_texts(new, old, None, threshold=0.8).relation
        if {relation if relation in NOT_STORED else None for relation in (whole, quick, blind)} != {
            whole if whole in NOT_STORED else None
        }:
            failures.append((new, old, whole, quick, blind))
        repetitions += whole in NOT_STORED
    assert failures == []
    return repetitions


def test_the_quick_comparison_finds_the_same_repetitions() -> None:
    assert check_repetitions_are_the_same_without_a_reason(all_pairs()[::5]) > 40


@pytest.mark.thorough
def test_the_quick_comparison_finds_the_same_repetitions_in_all_pairs() -> None:
    pairs = all_pairs()
    assert (
        check_repetitions_are_the_same_without_a_reason(
            [*pairs, *((old, new) for new, old in pairs)]
        )
        > 500
    )


WORDS = (
    "time zone timezone time-zone timezones data base database databases uses use used using "
    "backups backup back up the a is are was by of in on at every day daily Monday Mondays not no "
    "never red Red US us port ports 8080 9090 delete deletes deleted remove removed drop erase "
    "likes like prefers prefer . , apples pears apple's box boxes"
).split(" ")


@settings(max_examples=120, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=9), st.data())
def test_the_shortcut_reports_only_real_differences(words: list[str], data: st.DataObject) -> None:
    """The shortcut never reports a difference that alignment would not find."""
    other = data.draw(st.permutations(words)) if data.draw(st.booleans()) else list(words)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(other)))
        other[at : at + data.draw(st.integers(0, 1))] = [data.draw(st.sampled_from(WORDS))]
    new, old = " ".join(words), " ".join(other)
    new_index = duplicates._index_words(new, (), False)
    old_index = duplicates._index_words(old, (), False)
    if duplicates._lacks_counterpart(new_index, old_index):
        assert duplicates._describe_difference(*duplicates.align_texts(new, old))
    if compare_texts(new, old, 0.99, threshold=0.8).relation in NOT_STORED:
        assert compare_texts(new, old, 0.99, threshold=0.8, explain=False) == compare_texts(
            new, old, 0.99, threshold=0.8
        )


@pytest.mark.parametrize("kind", ["fake", "none"])
def test_nearly_equal_texts_are_rarely_aligned(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new text is compared with up to 128 others, and aligning two of them takes milliseconds."""
    text = (
        "The cluster in the old hall runs the proxy on Mondays, and its owner asked that "
        "box {0} stays. "
    ) * 4
    count = 0
    align = duplicates.align_words

    def counting(new: Any, old: Any) -> Any:
        nonlocal count
        count += 1
        return align(new, old)

    monkeypatch.setattr(duplicates, "align_words", counting)
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder=kind, namespace="ann") as memories:
        made = memories.create_many([Draft(text.format(n)) for n in range(40)])
        assert all(each.stored for each in made)
        if kind == "fake":
            assert {len(each.similar_to) for each in made[10:]} == {3}
        again = memories.create_many([Draft(text.format(n)) for n in range(0, 40, 7)])
    assert not any(each.stored for each in again)
    assert count <= 12 * (len(made) + len(again))


def test_different_lines_or_indents_make_texts_different() -> None:
    rows = [
        ("a b", "a  b", True), ("a b", "a\nb", False), ("a\nb", "a b", False), ("a\nb", "a\nb", True),
        ("a\n  b", "a\nb", False), ("a b", "a c", False), ("a\n", "a", True), ("", "", True),
    ]  # fmt: skip
    assert failures_of(rows, have_same_lines) == []


def test_neighbouring_words_distinguish_verbs_from_names_and_passives() -> None:
    """In the expected texts, `!` marks a name or a value, and `:` precedes the form of a word."""
    rows = [
        ("Open every gate.", "open every gate ."),
        ("open gates daily", "open gates daily"),
        ("Run all tests", "run all! tests!"),
        ("the command is open now", "the! command is! open now"),
        ("Docs: deploy each service", "docs , deploy! each! service!"),
        ("Set NODE_ENV to prod", "set NODE_ENV! to prod!"),
        ("the verb is delete", "the! verb is! delete!"),
        ("it was opened", "it was opened:passive"),
        ("it was quickly opened", "it was quickly opened:past"),
        ("quickly opened it", "quickly opened:past it"),
        ("the opened gate", "the opened:adjective gate"),
        ("it got opened", "it got:past opened:passive"),
    ]
    assert failures_of(rows, mark_words) == []


def mark_words(text: str) -> str:
    """Return the words of a text as the grammar reads them, with marks."""
    forms = {"plain": ""}
    return " ".join(
        f"{word.key}{'!' if word.exact else ''}{forms.get(word.form, f':{word.form}')}"
        for word in parse_text(text).understood
    )


ABBREVIATED = [
    ("Wir nutzen Werkzeuge wie z. B. Vim", "Wir nutzen Werkzeuge wie zum Beispiel Vim"),
    ("Use small fonts, e. g. 9 point", "Use small fonts, for example 9 point"),
    ("Usamos editores, p. ej. Vim", "Usamos editores, por ejemplo Vim"),
    ("Das Lager ist offen, d. h. werktags", "Das Lager ist offen, das heißt werktags"),
    ("Ann spricht u. a. Deutsch", "Ann spricht unter anderem Deutsch"),
    ("Die Fahrt dauert ca. 2 Stunden", "Die Fahrt dauert circa 2 Stunden"),
    ("The dept. of art is closed", "The department of art is closed"),
    ("Ship to Germany, Austria, etc.", "Ship to Germany, Austria, and so on"),
    ("Use max. 5 workers", "Use a maximum of 5 workers"),
    ("The office opens at 8 a.m.", "The office opens at 8 am"),
    ("The ticket costs 5 €", "The ticket costs 5 euros"),
    ("The ticket costs 5€.", "The ticket costs €5."),
    ("The tax is 20 %", "The tax is 20%"),
    ("The tax is 20%", "The tax is 20 percent"),
    ("The logo is 40px high", "The logo is 40 pixels high"),
    ("The oven is set to 180 °C", "The oven is set to 180°C"),
]


NOTATIONS = [
    ("Ann works for Acme", "Ann works at Acme"),
    ("The hotline is 555 0134", "The hotline is 555-0134"),
    ("Call +49 30 1234567", "Call 0049 30 123 4567."),
    ("The lease ends on 2026-12-31", "The lease ends on 31 December 2026"),
    ("The lease ends on Dec 31, 2026", "The lease ends on 2026-12-31"),
    ("The plan costs 20 € a month", "The plan costs 20 € per month"),
    ("The limit is 100 requests a minute", "The limit is 100 requests/minute"),
    ("The docs are at https://docs.acme.io/", "The docs are at https://docs.acme.io"),
    ("The session ends after an hour", "The session ends after 60 minutes"),
    ("The box has 16GB RAM", "The box has 16 GB of RAM"),
    ("The limit is set to 30 s", "The limit is 30 seconds"),
    ("Use pnpm rather than npm", "Use pnpm instead of npm"),
    ("Please use tabs instead of spaces", "Use tabs, not spaces"),
    ("The job is run by cron", "Cron runs the job"),
    ("There are 12 nodes in the cluster", "The cluster has twelve nodes"),
    ("Make sure to run the tests before pushing", "Run the tests prior to pushing"),
    ("We no longer use Travis", "We don't use Travis anymore"),
    ("The API has a limit of 5 MB", "The API's limit is 5 MB"),
    ("The timeout for queries is 5 s", "Queries have a timeout of 5 seconds"),
    ("The gym opens at 6 in the morning", "The gym opens at 6 am"),
    ("You must not edit generated files", "Never edit generated files"),
    ("The repo contains 14 packages", "There are 14 packages in the repo"),
    ("Backups run each night at 1", "Backups run every night at 1"),
    ("Python 2 isn't supported any more", "Python 2 is no longer supported"),
]
OTHER_VALUES = [
    ("Call +49 30 1234567", "Call 0049 30 1234568"),
    ("The hotline is 555 0134", "The hotline is 555-0143"),
    ("The lease ends on 2026-12-03", "The lease ends on 12 March 2026"),
    ("The plan costs 20 € a month", "The plan costs 20 € a week"),
    ("The docs are at https://docs.acme.io/", "The docs are at http://docs.acme.io"),
    ("The folder is /var/log/", "The folder is /var/log"),
    ("The session ends after an hour", "The session ends after a day"),
    ("Ann works for Acme", "Ann worked at Acme"),
    ("Use tabs instead of spaces", "Use spaces, not tabs"),
    ("The job is run by cron", "The job runs cron"),
    ("The reports are read by Anna", "Anna read the reports"),
    ("The report is written by Anna", "Anna wrote the report"),
    ("There are 12 nodes in the cluster", "The node has 12 clusters"),
    ("The limit is set to 30 s", "The limit was 30 s"),
    ("The gym opens at 6 in the morning", "The gym opens at 6 in the evening"),
    ("The timeout for queries is 5 s", "The timeout for uploads is 5 s"),
    ("You can't delete a full project", "A full project can't be archived"),
]


def test_one_value_in_two_notations_is_a_duplicate_and_another_value_is_not() -> None:
    rows = [(*pair, True) for pair in NOTATIONS] + [(*pair, False) for pair in OTHER_VALUES]
    rows += [(new, old, is_same) for old, new, is_same in rows]

    def repeats(new: str, old: str) -> bool:
        return compare_texts(new, old, None, threshold=0.8).relation is Relation.DUPLICATE

    assert failures_of(rows, repeats) == []


@pytest.mark.parametrize(("short", "long"), ABBREVIATED)
def test_an_abbreviation_equals_its_words(short: str, long: str) -> None:
    assert compare_texts(short, long, None, threshold=0.8).relation is Relation.DUPLICATE
    assert compare_texts(long, short, None, threshold=0.8).relation is Relation.DUPLICATE
