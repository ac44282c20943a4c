"""Characters that show nothing, reorder others or command a terminal, and how they are escaped."""

import unicodedata
from collections.abc import Callable

# Letters and marks that show nothing, though their categories are those of plain text: fillers,
# joiners, variation selectors.
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0\u2800")
_SELECTORS = frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
_BLANK = _FILLERS | _SELECTORS
_UNSEEN_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def is_unseen(sign: str) -> bool:
    """Return whether a character shows nothing, reorders others, or commands a terminal."""
    return sign in _BLANK or unicodedata.category(sign) in _UNSEEN_CATEGORIES


def escape_code(sign: str) -> str:
    """Return the code of a character in braces, such as `\\u{200b}`."""
    return f"\\u{{{ord(sign):x}}}"


def make_visible(text: str, escape: Callable[[str], str], keep: str = "") -> str:
    """Return a text in which every character can be seen.

    Args:
        text: The text.
        escape: Returns the replacement of a character that can't be seen.
        keep: Characters that stay as they are, such as the end of a line.
    """
    if text.isascii() and text.isprintable():
        return text
    signs = set(text).difference(keep)  # fast, since a text has few different characters
    escapes = {ord(sign): escape(sign) for sign in signs if is_unseen(sign)}
    return text.translate(escapes) if escapes else text
