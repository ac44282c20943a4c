"""Speakers named in a question are found, and removed from the question."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memories.search.surroundings import find_speakers, remove_speakers

FOUND: list[tuple[str, list[str]]] = [
    ("What did Ann Lee buy?", ["Ann Lee"]),
    ("What did Ann buy?", ["Ann Lee"]),
    ("what did ANN buy?", ["Ann Lee"]),
    ("Is this Ann's bike?", ["Ann Lee"]),
    ("Is this ann lee\u2019s bike?", ["Ann Lee"]),
    ("Bob, or Ann?", ["Ann Lee", "Bob"]),
    ("What did Lee buy?", []),
    ("Where is Annabel?", []),
    ("The plan of Bobby", []),
    ("mann", []),
    ("What did they buy?", []),
    ("", []),
]


def test_whole_names_and_first_names_are_found() -> None:
    assert [(text, find_speakers(text, ["Ann Lee", "Bob"])) for text, _ in FOUND] == FOUND


REST: list[tuple[str, list[str], str]] = [
    ("What did Ann buy?", ["Ann Lee"], "What did buy?"),
    ("What did Ann Lee buy?", ["Ann Lee"], "What did buy?"),
    ("What colour is Ann Lee's bike?", ["Ann Lee"], "What colour is bike?"),
    ("What colour is ann\u2019s bike?", ["Ann"], "What colour is bike?"),
    ("Did Ann and Bob meet ANN?", ["Ann", "Bob"], "Did and meet ?"),
    ("Annabel and Ann", ["Ann"], "Annabel and"),
    ("What did Ann buy?", [], "What did Ann buy?"),
    ("What  did\nBob buy?", ["Ann"], "What did Bob buy?"),
]


def test_names_are_removed_from_a_question() -> None:
    assert [(text, speakers, remove_speakers(text, speakers)) for text, speakers, _ in REST] == REST


def test_a_question_of_only_names_is_not_changed() -> None:
    for text in ("Ann", "Ann?", "Ann's!", " Ann Lee ", "Ann, Ann …", "", "?"):
        assert remove_speakers(text, ["Ann Lee"]) == text


def test_names_that_are_also_words_need_a_capital() -> None:
    for name in ("Will", "May", "Mark", "Hope", "Bill", "Grace Lee"):
        first = name.split(maxsplit=1)[0]
        assert find_speakers(f"What did {first} say?", [name]) == [name]
        assert find_speakers(f"Is it {first}'s?", [name]) == [name]
        assert find_speakers(f"what {first.lower()} they say?", [name]) == []
        assert find_speakers(f"WHAT {first.upper()} THEY SAY?", [name]) == []
        assert remove_speakers(f"{first.lower()} {first} come?", [name]) == f"{first.lower()} come?"


def test_a_speaker_with_a_lower_case_name_needs_a_capital_in_the_question() -> None:
    for name in ("will", "may", "mark"):
        assert find_speakers(f"what {name} they say?", [name]) == []


def test_a_whole_name_that_begins_with_a_word_is_found_in_any_case() -> None:
    assert find_speakers("what did mark twain write?", ["Mark Twain"]) == ["Mark Twain"]
    assert remove_speakers("what did mark twain mark?", ["Mark Twain"]) == "what did mark?"


def test_stop_words_are_not_names() -> None:
    for name in ("The Doctor", "About", "Our Bot", "You"):
        text = f"tell us {name.split(maxsplit=1)[0]} it"
        assert find_speakers(text, [name]) == []
        assert remove_speakers(text, [name]) == text


SHORT = [
    ("What did Jo buy?", "Jo", True),
    ("what did jo buy?", "Jo", False),
    ("What did Al buy?", "Al Green", True),
    ("What did B buy?", "B", False),
    ("What did Al Green buy?", "Al Green", True),
    ("What did Joe buy?", "Joe", True),
]


def test_a_two_letter_name_needs_its_capital() -> None:
    assert [(text, name, find_speakers(text, [name]) == [name]) for text, name, _ in SHORT] == SHORT


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("A.B.C", "AxBxC"),
        ("bot[1]x", "bot1x"),
        ("a|b|c", "a"),
        ("a\\d+c", "a12c"),
        ("x{2}y", "xxy"),
        ("a^b$c", "abc"),
    ],
)
def test_symbols_in_names_are_literal(name: str, other: str) -> None:
    assert find_speakers(f"What did {name} buy?", [name]) == [name]
    assert remove_speakers(f"What did {name} buy?", [name]) == "What did buy?"
    assert find_speakers(f"What did {other} buy?", [name]) == []


def test_a_name_that_begins_or_ends_with_a_symbol_is_found() -> None:
    for name in ("C.J.", "@ann", "(ann)", "ann*", "Sam Jr.", "bot (test)"):
        assert find_speakers(f"What did {name} buy?", [name, "Bob"]) == [name]


@pytest.mark.parametrize(
    ("name", "text"),
    [("O'Brien", "What did O\u2019Brien buy?"), ("Zo\u00eb", "What did Zoe\u0308 buy?")],
)
def test_names_are_found_in_any_unicode_form(name: str, text: str) -> None:
    assert find_speakers(text, [name]) == [name]


SCRIPTS = [
    ("Что купила Анна?", "Анна", True),
    ("что купила анна?", "Анна", True),
    ("Что у Анны?", "Анна", False),  # only the exact name
    ("Τι αγόρασε η Ελένη;", "Ελένη", True),
    ("山田太郎 何を買った", "山田太郎", True),
    ("山田太郎は何を買った", "山田太郎", True),
    ("田中 何を買った", "田中", True),
    ("김철수 무엇", "김철수", True),
    ("ماذا اشترت ليلى؟", "ليلى", True),
]


def test_names_of_other_scripts_are_found() -> None:
    found = [(text, name, find_speakers(text, [name]) == [name]) for text, name, _ in SCRIPTS]
    assert found == SCRIPTS
    assert [
        (text, name, remove_speakers(text, [name]) != text) for text, name, _ in SCRIPTS
    ] == SCRIPTS


@pytest.mark.parametrize("speakers", [[""], ["   "], ["\n"], [".."], []])
def test_empty_names_match_no_text(speakers: list[str]) -> None:
    assert find_speakers("what is .. here?", speakers) == []
    assert remove_speakers("what is .. here?", speakers) == "what is .. here?"


def test_a_first_name_shared_by_two_speakers_names_both() -> None:
    speakers = ["Ann Kim", "Ann Lee"]
    assert find_speakers("What did Ann buy?", speakers) == speakers
    assert remove_speakers("What did Ann buy?", speakers) == "What did buy?"


def test_speakers_keep_their_order() -> None:
    assert find_speakers("Ann and Bob and Eve", ["Eve", "Ann", "Bob", "Joe"]) == [
        "Eve",
        "Ann",
        "Bob",
    ]


@given(st.text(), st.lists(st.text(max_size=8), max_size=3))
def test_any_text_and_any_names_are_accepted(text: str, speakers: list[str]) -> None:
    assert set(find_speakers(text, speakers)) <= set(speakers)
    left = remove_speakers(text, speakers)
    assert left == text or any(letter.isalnum() for letter in left)


@given(st.from_regex(r"[A-Z][a-z]{3,8}qx", fullmatch=True))
def test_a_name_is_found_and_removed_anywhere_in_a_question(name: str) -> None:
    for text in (
        f"{name} bought it",
        f"bought by {name}",
        f"is it {name}'s bike?",
        f"({name}), or who?",
    ):
        assert find_speakers(text, [name]) == [name]
        assert name not in remove_speakers(text, [name])


def test_a_full_name_takes_precedence_over_a_shared_first_name() -> None:
    speakers = ["Ann Kim", "Ann Lee", "Bob Ray"]
    assert find_speakers("What did Ann Lee and Bob buy?", speakers) == ["Ann Lee", "Bob Ray"]
    assert find_speakers("What did Ann Lee say to Ann?", speakers) == ["Ann Kim", "Ann Lee"]


def test_titles_are_not_names() -> None:
    assert find_speakers("What did Mrs Smith buy?", ["Mrs Dalloway"]) == []
    assert find_speakers("What did Dalloway buy?", ["Mrs. Dalloway"]) == ["Mrs. Dalloway"]


def test_a_full_name_does_not_match_a_shorter_name_inside_it() -> None:
    assert find_speakers("What did Ann Lee say?", ["Ann", "Ann Lee"]) == ["Ann Lee"]
