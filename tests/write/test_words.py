"""Different spellings of numbers, dates and times get one form."""

from collections.abc import Callable, Sequence

from memories.write.compare.vocabulary import (
    Word,
    join_numbers,
    keys_of,
    order_dates,
    write_clock,
)
from tables import failures_of

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    " seventeen eighteen nineteen"
).split()  # fmt: skip
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
NUMBERS = {word: number for number, word in enumerate(ONES)}
NUMBERS |= {word: 10 * number for number, word in enumerate(TENS) if word != "-"}
NUMBERS |= {"hundred": 100, "thousand": 1_000, "million": 1_000_000}


def form(rewrite: Callable[[Sequence[Word]], list[Word]]) -> Callable[[str], str]:
    """Return a function that applies a rewrite to the words between the spaces of a text."""

    def written(text: str) -> str:
        words = [Word(str(NUMBERS.get(word, word)), word) for word in text.split()]
        return " ".join(keys_of(rewrite(words)))

    return written


def spelled(number: int, joint: str) -> str:
    """Write a number below a million in words."""
    if number < 20:
        return ONES[number]
    if number < 100:
        return f"{TENS[number // 10]} {ONES[number % 10]}".removesuffix(" zero")
    power, name = (100, "hundred") if number < 1_000 else (1_000, "thousand")
    rest = f"{joint} {spelled(number % power, joint)}" if number % power else ""
    return f"{spelled(number // power, joint)} {name} {rest}".strip()


def test_a_number_in_several_words_becomes_one_number() -> None:
    numbers = [*range(1_000), *range(1_000, 100_000, 1_000), 1_001, 1_099, 2_050, 30_000]
    rows = [
        (spelled(number, joint), str(number)) for number in numbers for joint in ("", "and", "y")
    ]
    assert failures_of(rows, form(join_numbers)) == []


def test_consecutive_numbers_stay_separate() -> None:
    rows = [
        ("five twenty", "5 20"),
        ("fifteen five", "15 5"),
        ("ten five", "10 5"),
        ("twenty ten", "20 10"),
        ("twenty one five", "21 5"),
        ("hundred hundred", "100 100"),
        ("thousand hundred", "1000 100"),
        ("zero five", "0 5"),
        ("five and six", "5 and 6"),
        ("twenty 5", "20 5"),
        ("20 five", "20 5"),
        ("and five", "and 5"),
        ("two million", "2000000"),
        ("gates and five", "gates and 5"),
    ]
    assert failures_of(rows, form(join_numbers)) == []


def test_a_day_is_placed_after_its_month() -> None:
    rows = [
        ("31 december 2026", "december 31 2026"),
        ("on 31 of december", "on december 31"),
        ("31 of december", "december 31"),
        ("the 3rd of march", "march 3"),
        ("by the 22nd of may .", "by may 22 ."),
        ("march 3rd", "march 3"),
        ("may 1st , 2026", "may 1 2026"),
        ("1 may , 2026 .", "may 1 2026 ."),
        ("may 1 , 99", "may 1 , 99"),
        ("may 1 , 2026 or june 2 , 2027", "may 1 2026 or june 2 2027"),
        ("gate 1 , 2026", "gate 1 , 2026"),
        ("41 may", "41 may"),
        ("five may", "5 may"),
        ("of may", "of may"),
        ("may", "may"),
    ]
    assert failures_of(rows, form(order_dates)) == []


def test_a_time_is_converted_to_24_hour_form() -> None:
    rows = [
        (f"at {hour}{minutes} {half}", f"at {hour % 12 + more}{minutes or ':00'}")
        for hour in range(1, 13)
        for minutes in ("", ":30", ":05")
        for half, more in (("a.m.", 0), ("pm", 12), ("p.m.", 12))
    ]
    rows += [(f"{hour} o'clock", f"{hour}:00") for hour in range(1, 13)]
    rows += [("13 pm", "13 pm"), ("0 pm", "0 pm"), ("pm", "pm"), ("9:60 pm", "9:60 pm")]
    assert failures_of(rows, form(write_clock)) == []
