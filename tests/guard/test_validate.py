"""Accepted values, their stored forms, and the limits; for error messages see
cli/test_bad_input.
"""

import pytest

from memories.errors import InvalidInput
from memories.guard import validate


def test_content_is_kept_in_nfc_without_a_byte_order_mark() -> None:
    assert validate.content("\ufeffe\u0301") == "é"
    assert validate.content("  spaces\tand\nlines  ") == "  spaces\tand\nlines  "


def test_limits_are_inclusive() -> None:
    assert validate.content("a" * validate.MAX_CONTENT_BYTES)
    assert validate.query("q" * validate.MAX_QUERY_CHARACTERS)
    assert validate.key("k" * validate.MAX_KEY)
    assert validate.namespace("n" * validate.MAX_NAMESPACE)
    assert validate.tags({"k" * validate.MAX_TAG_KEY: "v" * validate.MAX_TAG_VALUE})
    assert len(validate.tags({f"k{n}": "v" for n in range(validate.MAX_TAGS)})) == validate.MAX_TAGS
    data = '{"a": "%s"}'
    largest = data % ("x" * (validate.MAX_CONTENT_BYTES - len(data) + 2))
    assert validate.data(largest) == largest
    with pytest.raises(InvalidInput, match="the limit is 1048576"):
        validate.data(f"{largest} ")
    assert [validate.limit(number) for number in (1, validate.MAX_LIMIT)] == [1, validate.MAX_LIMIT]
    assert [validate.unit(number, "it") for number in (0, 1, 0.5)] == [0.0, 1.0, 0.5]


@pytest.mark.parametrize(
    "check", [validate.content, validate.query, validate.namespace, validate.key]
)
@pytest.mark.parametrize("text", ["", "a\0b", "a\ud800", None, 5, b"bytes"])
def test_empty_or_invalid_text_is_refused(check, text) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput):
        check(text)


@pytest.mark.parametrize("text", ["!", "🎉", "语", "ß", "+", "…", "\u0301"])
def test_one_visible_character_is_enough_for_a_text(text: str) -> None:
    assert validate.content(text)
    assert validate.query(text)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("Bob", "bob"),
        (" bob ", "bob"),
        ("Ａ", "a"),
        ("a.b_c-9", "a.b_c-9"),
        ("9", "9"),
        ("allan", "allan"),
    ],
)
def test_namespaces_are_normalized(given: str, kept: str) -> None:
    assert validate.namespace(given) == kept


@pytest.mark.parametrize(
    ("written", "pair"),
    [
        ("a=b", ("a", "b")),
        (" a = b ", ("a", "b")),
        ("a=b=c", ("a", "b=c")),
        ("a=x, y", ("a", "x, y")),
        ("ключ=日本", ("ключ", "日本")),
    ],
)
def test_tags_are_parsed(written: str, pair: tuple[str, str]) -> None:
    assert validate.parse_tag(written) == pair


@pytest.mark.parametrize("number", [True, False, 1.0, "5", None, 0, 1001])
def test_only_whole_numbers_in_range_are_accepted_as_limits(number: object) -> None:
    with pytest.raises(InvalidInput):
        validate.limit(number)  # type: ignore[arg-type]


def test_the_error_about_a_limit_does_not_repeat_a_long_value() -> None:
    for value in (10**5000, "9" * 5000):
        with pytest.raises(InvalidInput, match=r"1000$"):
            validate.limit(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [True, "1", None, -0.001, 1.001, float("nan"), float("inf")])
def test_only_numbers_from_0_to_1_are_accepted_as_shares(number: object) -> None:
    with pytest.raises(InvalidInput, match="it must be a number from 0 to 1"):
        validate.unit(number, "it")  # type: ignore[arg-type]


def test_quoted_texts_in_messages_are_short_and_harmless() -> None:
    assert validate.shown("plain text") == "plain text"
    assert validate.shown("a\x1b[31m\n\u202e\ud800") == "a\\x1b[31m\\n\\u202e\\ud800"
    assert validate.shown("x" * 60) == "x" * 60
    assert validate.shown("x" * 61) == validate.shown("x" * 100) == "x" * 60 + "…"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "a": 1}', 'contains the key "a" twice; keep one of them'),
        ('[{"b": {"a": 1, "\\u0061": 2}}]', 'contains the key "a" twice; keep one of them'),
        ("[NaN]", "is not JSON (NaN is not a number)"),
        ("-Infinity", "is not JSON (-Infinity is not a number)"),
        ('{"a": 1e999}', "is not JSON (1e999 is not a number)"),
        ("[" * 100_000, "is not JSON (it is nested too deeply)"),
        ('{"a": }', "is not JSON (Expecting value: line 1 column 7 (char 6))"),
        ("{} {}", "is not JSON (Extra data: line 1 column 4 (char 3))"),
        ("", "is not JSON (Expecting value: line 1 column 1 (char 0))"),
    ],
)
def test_ambiguous_or_invalid_json_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        validate.read_json(text)
    assert str(caught.value) == said


def test_json_with_thousands_of_digits_in_a_number_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^contains a number with too many digits$"):
        validate.read_json("9" * 5_000)


def test_json_is_parsed() -> None:
    assert validate.read_json(' {"a": [1, 1.5, null, true, "é"], "b": {"a": 0}} ') == {
        "a": [1, 1.5, None, True, "é"],
        "b": {"a": 0},
    }
