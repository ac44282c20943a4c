"""What a session leaves: its first request and its last answer, shortened. No model writes it.
Pure.
"""

from collections.abc import Callable, Iterable

from memories.context.tokens import estimate_tokens
from memories.hooks.extract import ASSISTANT, USER, sentences

REQUEST_TOKENS, ANSWER_TOKENS = (
    30,
    50,
)  # together no more than 80: every session of the project begins with them
# no text of so few tokens has more, and to estimate long ones takes seconds
MOST_CHARACTERS = 1_000
SHORTEST = 12  # characters of a sentence that says something: no greeting, no thanks


def write_note(turns: Iterable[tuple[str, str]], is_fit: Callable[[str], bool]) -> str:
    """Return the note of a session, a line for the request and one for the answer, if any; empty
    without a request.

    Args:
        turns: Who said what, in order: a role and a text.
        is_fit: Whether a sentence may stand in it.
    """
    said = list(turns)
    requests = (shorten(text, REQUEST_TOKENS, is_fit) for role, text in said if role == USER)
    answers = (
        shorten(text, ANSWER_TOKENS, is_fit) for role, text in reversed(said) if role == ASSISTANT
    )
    request = next(filter(None, requests), "")
    return f"{request}\n{next(filter(None, answers), '')}".rstrip() if request else ""


def shorten(text: str, most_tokens: int, is_fit: Callable[[str], bool]) -> str:
    """Return the first sentences of a text that fit, on one line; of a first one that is too long,
    the first words.
    """
    shown = ""
    for sentence in sentences(text):
        if len(sentence) < SHORTEST or not is_fit(sentence):
            continue
        longer = f"{shown} {sentence}".strip()
        if len(longer) > MOST_CHARACTERS or estimate_tokens(longer) > most_tokens:
            return shown or _cut(sentence, most_tokens)
        shown = longer
    return shown


def _cut(sentence: str, most_tokens: int) -> str:
    """Return the beginning of a sentence, up to the end of a word where it has words."""
    low, high = 0, min(len(sentence), MOST_CHARACTERS)
    while low < high:  # the longest beginning that is short enough
        middle = (low + high + 1) // 2
        if estimate_tokens(f"{sentence[:middle]}…") <= most_tokens:
            low = middle
        else:
            high = middle - 1
    return f"{sentence[:low].rpartition(' ')[0] or sentence[:low]}…"
