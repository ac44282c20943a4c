"""Word orders with the same meaning: the words that move, and those that stay."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from memories.write.compare import word_order
from memories.write.compare.duplicates import Relation, compare_texts
from memories.write.compare.vocabulary import Word
from tables import failures_of


def words_of(text: str) -> list[Word]:
    """Return the words between spaces; a word that ends in `/p` is a passive."""
    return [
        Word(word.removesuffix("/p").lower(), word.removesuffix("/p"), form=form)
        for word in text.split()
        for form in ["passive" if word.endswith("/p") else "plain"]
    ]


def apply_to_texts(change: Callable[..., Sequence[Word]]) -> Callable[..., str]:
    """Return a function that applies a change of words to texts."""

    def change_texts(*texts: str) -> str:
        marks = {"passive": "/p", "active": "/a"}
        words = change(*map(words_of, texts))
        return " ".join(f"{word.key}{marks.get(word.form, '')}" for word in words)

    return change_texts


def split_texts(decide: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes texts instead of sequences of keys."""
    return lambda *texts: decide(*map(str.split, texts))


def test_the_order_of_a_list_of_names_makes_no_difference() -> None:
    rows = [
        ("Invited: Zoe, Bob and Ann", "Invited: Ann, Zoe and Bob", Relation.DUPLICATE),
        ("Invited: Zoe, Bob, Ann and", "Invited: Ann, Zoe, Bob and", Relation.DIFFERS),
        ("Invited: Zoe, Bob, Ann or", "Invited: Zoe, Bob, Ann, or", Relation.DUPLICATE),
    ]
    near = functools.partial(compare_texts, similarity=0.9, threshold=0.8)
    assert failures_of(rows, lambda new, old: near(new, old).relation) == []


def test_a_possessive_is_written_as_in_the_other_text() -> None:
    rows = [
        ("the customer 's contract ends", "contract of the customer", "the contract customer ends"),
        ("big customer 's contract", "contract of big customer", "contract big customer"),
        (
            "the big old customer 's contract",
            "contract of big old customer",
            "the contract big old customer",
        ),
        (
            "red big old customer 's contract",
            "contract of red big old customer",
            "red big old customer 's contract",
        ),
        ("customer 's contract", "contract of vendor", "customer 's contract"),
        ("customer 's contract", "the customer 's contract of", "customer 's contract"),
        ("customer 's contract", "customer contract", "customer 's contract"),
        ("ann 's boss 's car", "car of ann", "ann 's boss 's car"),
        ("'s contract", "contract of x", "'s contract"),
        ("my customer 's", "contract of customer", "my customer"),
    ]
    assert failures_of(rows, apply_to_texts(word_order._resolve_owner)) == []


def test_nouns_are_joined_as_in_the_other_text() -> None:
    rows = [
        ("meeting with client", "client meeting", "client meeting"),
        ("meeting with the client", "client meeting", "client meeting"),
        (
            "the weekly meeting with the new client ends",
            "the new client weekly meeting ends",
            "the new client weekly meeting ends",
        ),
        ("meeting with client of ann", "client meeting with ann", "meeting with client of ann"),
        ("meeting with client", "client meeting with", "meeting with client"),
        ("with client meeting", "client meeting", "with client meeting"),
        ("meeting with", "with meeting", "meeting with"),
        ("list of big red old gates", "big red old gates list", "list of big red old gates"),
        (
            "list of big red old tall gates",
            "big red old tall gates list",
            "list of big red old tall gates",
        ),
        ("a b c with d", "d a b c", "a b c with d"),
    ]
    assert failures_of(rows, apply_to_texts(word_order.join_nouns)) == []


def test_three_names_or_more_are_sorted() -> None:
    rows = [
        ("we know Zoe , Bob and Ann .", "we know ann , bob and zoe ."),
        ("Zoe , Bob and Ann", "ann , bob and zoe"),
        ("Zoe and Ann", "zoe and ann"),
        ("use Zoe , bob or Ann", "use zoe , bob or ann"),
        ("Zoe , Bob and Ann respectively", "zoe , bob and ann respectively"),
        ("a Zoe , Bob , Carl and", "a zoe , bob , carl and"),
        ("Tom , Zoe , Bob or Ann and Carl", "ann , bob , tom or zoe and carl"),
        ("x , Zoe , Bob and Ann left", "x , zoe , bob and ann left"),
        ("Zoe , Bob and Ann met Tom , Sam and Dan", "ann , bob and zoe met dan , sam and tom"),
    ]
    assert failures_of(rows, apply_to_texts(word_order.sort_lists)) == []


def test_a_single_pair_is_sorted() -> None:
    rows = [
        ("Zoe and Ann", "ann and zoe"),
        ("Zoe and Ann left", "ann and zoe left"),
        ("we know Zoe and Ann", "we know ann and zoe"),
        ("we know Zoe and Ann .", "we know ann and zoe ."),
        ("the gates are red and blue", "the gates are blue and red"),
        ("the gates are red and blue .", "the gates are blue and red ."),
        ("red and blue", "red and blue"),
        ("zoe and ann left", "zoe and ann left"),
        ("gates in red and blue", "gates in blue and red"),
        ("gates like red and blue", "gates like red and blue"),
        ("order is red and blue", "order is red and blue"),
        ("gates are use and run", "gates are use and run"),
        ("Zoe and Ann respectively", "zoe and ann respectively"),
        ("a , Zoe and Ann", "a , zoe and ann"),
        ("Zoe and Ann and Tom", "zoe and ann and tom"),
        ("and Ann", "and ann"),
        ("Zoe and", "zoe and"),
        ("Zoe and Ann know Tom", "ann and zoe know tom"),
        ("we see Zoe and Ann often", "we see zoe and ann often"),
    ]
    assert failures_of(rows, apply_to_texts(word_order._sort_pair)) == []


def test_a_fronted_adjunct_moves_to_the_end() -> None:
    rows = [
        ("on fridays we deploy", "we deploy on fridays"),
        ("on fridays we deploy .", "we deploy on fridays"),
        ("on 5 gates open", "gates open on 5"),
        ("on may 5 gates open", "gates open on may 5"),
        ("on the big day , we deploy", ", we deploy on the big day"),
        ("we deploy", "we deploy"),
        ("", ""),
        ("on", "on"),
        (". on", ". on"),
        ("on friday . we deploy", "on friday . we deploy"),
        ("since spring all gates open", "all gates open since spring"),
        ("since a long spring gates open", "since a long spring gates open"),
        ("since spring gates every open", "gates every open since spring"),
    ]
    assert failures_of(rows, apply_to_texts(word_order._move_fronted)) == []


def test_an_adjunct_ends_before_the_subject() -> None:
    rows = [
        ("on fridays we deploy", 2),
        ("on 5 gates open", 2),
        ("on may 5 gates open", 3),
        ("on 1 2 3 gates", 3),
        ("on a b 4", 0),
        ("on a 4 b", 3),
        ("on x , we", 2),
        ("on we deploy", 0),
        ("on x the gate", 2),
        ("on the gate", 0),
        ("on x y user", 3),
        ("on x y z", 0),
        ("on all", 0),
        ("on x all", 2),
    ]
    assert failures_of(rows, split_texts(word_order._end_of_adjunct)) == []


def test_the_first_occurrence_is_removed() -> None:
    rows = [
        ("a b c", "a b", ["c"]),
        ("a b c", "b c", ["a"]),
        ("a b c", "x", []),
        ("a b a b", "a b", ["a", "b"]),
        ("a", "a b", []),
        ("a b", "a b", []),
    ]
    assert failures_of(rows, split_texts(word_order._without)) == []


def test_a_verb_may_precede_its_subject() -> None:
    rows = [
        ("v a b", "a v b", True),
        ("v a b", "a b v", True),
        ("v a", "v a", True),
        ("", "", False),
        ("se v a", "a se v", True),
        ("v a b c d e", "a b c d e v", True),
        ("v a b c d e f", "a b c d e f v", False),
        ("v", "v", True),
        ("v a", "a v", True),
        ("v a b", "b a v", False),
    ]
    assert failures_of(rows, split_texts(word_order._has_verb_first)) == []


def test_an_adverb_of_manner_has_more_than_five_letters() -> None:
    rows = [
        ("quickly", True),
        ("madly", False),
        ("oddly", False),
        ("only", False),
        ("slow", False),
    ]
    assert failures_of(rows, word_order._is_manner) == []
