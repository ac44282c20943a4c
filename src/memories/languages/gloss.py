"""Translates the words of German, French and Spanish sentences into English, one by one.

The result isn't an English sentence, but a model trained on English texts reads it better than the
original. The folder `glosses` has a file for each language; words that aren't in the file are
kept.
"""

import functools
import re
from pathlib import Path

from memories.languages import fold

LANGUAGES = ("de", "fr", "es")
_LONGEST_PHRASE = 5  # maximum number of words in a phrase of a gloss
_SHORTEST_STEM = 2  # minimum number of letters
_TOKEN = re.compile(r"\w+['’](?=\w)|\w+(?:[-./_]\w+)*|[^\w\s]")
_FOLDER = Path(__file__).parent / "glosses"


def gloss(sentence: str, code: str) -> str:
    """Return a sentence with each word in the language's file replaced with English."""
    table = _read_table(code)
    tokens = _TOKEN.findall(sentence)
    keys = [_key(token) for token in tokens]
    glosses: list[str] = []
    at = 0
    while at < len(tokens):
        for length in range(min(_LONGEST_PHRASE, len(tokens) - at), 0, -1):
            english = table.get(" ".join(keys[at : at + length]))
            if english is not None:
                break
        else:
            length = 1
            english = _translate_stem(keys[at], table) or tokens[at]
        glosses.append(english)
        at += length
    return re.sub(r" (?=[.,;:!?])", "", " ".join(glosses))


def _translate_stem(key: str, table: dict[str, str]) -> str:
    """Return the gloss for a word's longest stem in the file; empty if there is none."""
    for length in range(len(key), _SHORTEST_STEM - 1, -1):
        english = table.get(f"{key[:length]}*")
        if english is not None:
            return english
    return ""


def _key(token: str) -> str:
    return fold(token).replace("’", "'")


@functools.cache
def _read_table(code: str) -> dict[str, str]:
    """Return the glosses of words, phrases and stems; stems end with a `*`."""
    table: dict[str, str] = {}
    for line in (_FOLDER / f"{code}.txt").read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        english, _, entries = line.partition(": ")
        for entry in entries.split():
            words = _TOKEN.findall(entry.replace("_", " ").rstrip("*"))
            ending = "*" if entry.endswith("*") else ""
            table.setdefault(" ".join(map(_key, words)) + ending, english)
    return table
