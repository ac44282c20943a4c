"""How long and how varied a value must be to count as a secret, on both sides of each limit."""

import base64
from collections.abc import Callable

import pytest

from memories.guard import spoken, values
from verdicts import changed

# Repeated and cut to every length, they cross each limit on length, variety and form.
PATTERNS = (
    "hunter", "correctHorse", "HUNTER", "a1", "ab1", "abc1", "aB3$eF7gH1", "48151623", "11", "1a2b3c", "deadbeef09",
    "ab-", "key-9", "some.name", "CamelCase7", "x", "xY", "abcde_", "word_2", "aa1!", "hunter2", "Zx1", "a$", "Tr0ub4dor&",
)  # fmt: skip


def test_the_verdicts_on_values_of_every_length_are_unchanged() -> None:
    judged = []
    for value in [(pattern * 36)[:length] for pattern in PATTERNS for length in range(1, 37)]:
        decisions = (
            values.is_placeholder(value),
            values.is_varied(value),
            values.is_random(value),
            values.is_random_enough(value),
            values.is_password(value),
            values.is_password(value, may_be_code=True),
            values.is_token(value),
            values.is_token(value, may_be_code=True),
            values.is_name(value),
            values.count_changes(value),
            [spoken._is_random(value, changes) for changes in (2, 3, 5, 9)],
        )
        judged.append((value, decisions))
    assert changed("values of every length", judged) == []


@pytest.mark.parametrize(
    ("decide", "too_little", "enough"),
    [
        pytest.param(values.is_random, "aB3$eF7gH", "aB3$eF7gH1", id="random: 10 characters"),
        pytest.param(
            values.is_random,
            "qwertyuiopasdfghjklzxcv",
            "qwertyuiopasdfghjklzxcvb",
            id="random: a word of 24 letters",
        ),
        pytest.param(
            values.is_random, "abcdefghi1$", "abcdefgh1$", id="random: a change in 5 characters"
        ),
        pytest.param(
            values.is_random,
            "Zx1Zx1Zx1Zx1",
            "Zx1Zy1Zx1Zx1",
            id="random: a third of the characters differ",
        ),
        pytest.param(
            lambda value: spoken._is_random(value, 3),
            "aB3eF7g",
            "aB3eF7g1",
            id="random: 8 in a sentence",
        ),
        pytest.param(
            lambda value: spoken._is_random(value, 9),
            "aB3eF7gX1",
            "aB3eF7gX1y2",
            id="random: so many changes",
        ),
        pytest.param(values.is_password, "7f#q2", "7f#q2x", id="password: 6 characters"),
        pytest.param(values.is_password, "48151", "481516", id="password: 6 digits"),
        pytest.param(
            values.is_password, "hunter!", "hunter!x", id="password: 8 characters with an odd one"
        ),
        pytest.param(
            values.is_password, "hunte42", "hunter42", id="password: 8 letters and digits"
        ),
        pytest.param(
            values.is_password,
            "correcthorsebatters",
            "correcthorsebattersy",
            id="password: 20 letters",
        ),
        pytest.param(values.is_token, "k3y-abc-49x", "k3y-abc-49xz", id="token: 12 characters"),
        pytest.param(values.is_token, "zebra-1-2-mango", "zebra-1-2-3-mango", id="token: 3 digits"),
        pytest.param(values.is_plausible, "hun", "hunt", id="plausible: 4 characters"),
    ],
)
def test_a_value_at_the_limit_is_a_secret_and_one_below_it_is_not(
    decide: Callable[[str], bool], too_little: str, enough: str
) -> None:
    assert not decide(too_little)
    assert decide(enough)


def test_a_login_in_base64_has_at_least_four_characters_besides_its_colon() -> None:
    assert not values.holds_login(base64.b64encode(b":xyz").decode())
    assert values.holds_login(base64.b64encode(b"a:xyz").decode())


@pytest.mark.parametrize(
    ("byte", "is_text"),
    [(8, False), (9, True), (13, True), (31, False), (32, True), (126, True), (127, False)],
)
def test_at_least_nine_tenths_of_text_are_printable(byte: int, is_text: bool) -> None:
    assert values._is_printable(b"a" * 18 + bytes([byte]) * 3) is is_text
    assert values._is_printable(b"a" * 9 + bytes([byte]))
    assert not values._is_printable(b"")
