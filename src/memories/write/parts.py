"""Cutting a long message into parts that a search can find: at the ends of paragraphs, sentences,
words. Pure.
"""

import re
import unicodedata

from memories.errors import InvalidInput
from memories.models import MAX_TURN_CHARACTERS

# as much as a model is shown of it at once; a part that ends with its paragraph has less
PART_CHARACTERS = 4_000
_LEAST = PART_CHARACTERS // 2
_BORDERS = (
    re.compile(r"\n\s*\n"),
    re.compile(r"\n"),
    re.compile(r"[.!?…]{1,8}[\"')\]»”’]{0,8}\s|[。！？．｡]{1,8}[」』”’）]{0,8}|[।۔؟]\s?"),
    re.compile(r"[;:,、，；]\s?|[)\]}]\s"),
    re.compile(r"\s"),
)
# what belongs to the character before it, and what no text begins with
_JOINED = "\u200d\ufe0e\ufe0f\ufeff"


def split(text: str) -> list[str]:
    """Return the parts of a text, each of which has something visible; together they are the text.

    Raises:
        InvalidInput: So much of it in one piece is invisible that a part would have nothing else.
    """
    parts: list[str] = []
    at = 0
    while at < len(text):
        shown = next((place for place in range(at, len(text)) if _is_visible(text[place])), None)
        if shown is None and parts:
            parts[-1] += text[at:]
            break
        end = _end(text, at, shown or at) if len(text) - at > PART_CHARACTERS else len(text)
        parts.append(text[at:end])
        at = end
    if any(len(part) > MAX_TURN_CHARACTERS for part in parts):
        raise InvalidInput(
            f"content has more than {MAX_TURN_CHARACTERS} invisible characters in a row; cut them"
        )
    return parts


def _end(text: str, at: int, shown: int) -> int:
    """Return where a part ends: the last of the best borders in its second half.

    Args:
        text: The whole text.
        at: Where the part begins.
        shown: Where its first visible character is.
    """
    most = min(len(text), max(at, shown + 1 - _LEAST) + PART_CHARACTERS)
    for border in _BORDERS:
        found = [match.end() for match in border.finditer(text, most - _LEAST, most)]
        ends = [end for end in found if not _holds_on(text, end)]
        if ends:
            return ends[-1]
    end = most
    while end > most - _LEAST and _holds_on(text, end):
        end -= 1
    return end


def _holds_on(text: str, end: int) -> bool:
    """Return whether what stands at a place belongs to what stands before it."""
    if end >= len(text):
        return False
    after, before = text[end], text[end - 1]
    return (
        after in _JOINED
        or before == "\u200d"
        or bool(unicodedata.combining(after))
        or before + after == "\r\n"
    )


def _is_visible(sign: str) -> bool:
    return sign.isalnum() or unicodedata.category(sign)[0] in "LNPSM"
