"""Which characters show nothing, reorder others or command a terminal, and how they are shown: one
rule everywhere.
"""

import unicodedata
from collections.abc import Callable

# Letters and marks that show nothing: fillers, joiners, variation selectors. Their categories are
# those of plain text.
_BLANK = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0\u2800"
) | frozenset(
    chr(code) for block in (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0)) for code in block
)
_ACTING = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def is_unseen(sign: str) -> bool:
    """Return whether a character shows nothing by itself, reorders others, or commands a
    terminal.
    """
    return sign in _BLANK or unicodedata.category(sign) in _ACTING


def shown(text: str, escape: Callable[[str], str], keep: str = "") -> str:
    """Return a text in which every character can be seen.

    Args:
        text: The text.
        escape: Returns what is written in place of a character that can't be seen.
        keep: Characters that stay as they are, such as the end of a line.
    """
    if text.isascii() and text.isprintable():
        return text
    unseen = (
        sign for sign in set(text).difference(keep) if is_unseen(sign)
    )  # of the few that a text is made of
    escapes = {ord(sign): escape(sign) for sign in unseen}
    return text.translate(escapes) if escapes else text
