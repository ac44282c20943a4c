"""What says nothing new: what a session was given, what is remembered, and what stands in
instruction files.
"""

import functools
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from memories.context.recalling import stems
from memories.core.disk import open_file
from memories.hooks.extract import sentences
from memories.languages.text import normal_form

INSTRUCTIONS = (
    "CLAUDE.md", "CLAUDE.local.md", "AGENTS.md", "AGENTS.override.md", "GEMINI.md", "MEMORY.md", ".cursorrules",
)  # fmt: skip
_OF_USER = (
    ".claude/CLAUDE.md",
    ".codex/AGENTS.md",
    ".codex/AGENTS.override.md",
    ".gemini/GEMINI.md",
)
_RULES = ((".cursor/rules", "*.mdc"), (".claude/rules", "*.md"), (".cursor/rules", "*.md"))
_MOST_FILES, _MOST_BYTES = 64, 262_144
_ITEM = re.compile(
    r"^(?:- )?[0-9a-f]{8}-[0-9a-f]{4}\S* [^:]{0,120}: "
)  # how a context begins a memory
_WORD = re.compile(r"\w+")
_NEGATIONS = re.compile(
    r"\b(?:not|no|never|none|without|cannot|nicht|kein\w*|nie|ne|pas|jamais|nunca|non|não)\b|n't\b"
)


def marks(text: str) -> set[str]:
    """Return the hashes of the sentences of a text, by which they are known again."""
    said = (" ".join(_WORD.findall(normal_form(each))) for each in sentences(text))
    return {hashlib.blake2b(each.encode(), digest_size=8).hexdigest() for each in said if each}


def repeats(said: str, known: Iterable[str]) -> bool:
    """Return whether one of the known texts has every word of a sentence, but for words by which it
    is told again.

    What differs in a number or a negation says something else. A paraphrase is left for the store
    to compare.
    """
    said = _ITEM.sub("", said)
    words, form = set(stems(said)) - _telling(), normal_form(said)
    if not words:
        return True
    numbers, denies = set(re.findall(r"\d+", form)), bool(_NEGATIONS.search(form))
    for each in known:
        other = normal_form(each)
        same = numbers <= set(re.findall(r"\d+", other)) and denies == bool(
            _NEGATIONS.search(other)
        )
        if same and words <= set(_all_stems(other)):
            return True
    return False


@functools.cache
def _telling() -> frozenset[str]:
    """Return the stems of words by which something known is told again."""
    words = (
        "user told tells said says remember remembered mentioned earlier previously noted recall recalled memory "
        "memories stored saved important decided learned discovered solved preference todo according know known "
        "please also still team project currently always usually already really actually indeed yes right chose chosen"
    )
    return frozenset(_all_stems(words))


def _all_stems(text: str) -> Sequence[str]:
    """Return the stems of a text of any length; a question has so many words at most."""
    words = text.split()
    return [
        stem for at in range(0, len(words), 40) for stem in stems(" ".join(words[at : at + 40]))
    ]


def instructions(folder: Path, root: Path | None, user: Path) -> list[str]:
    """Return the sentences of the files that tell agents what to do, of a project and of the user.

    Args:
        folder: Where the agent works.
        root: The top folder of its project.
        user: The home folder of the user.
    """
    top = root or folder
    within = [each for each in (folder, *folder.parents) if each == top or top in each.parents]
    files = [each / name for each in within for name in INSTRUCTIONS]
    files += [top / ".claude" / "CLAUDE.md", *(user / name for name in _OF_USER)]
    for kind, pattern in _RULES:
        files += [file for base in (top, user) for file in sorted((base / kind).glob(pattern))]
    slug = re.sub(r"[^A-Za-z0-9]", "-", str(folder))
    files += sorted((user / ".claude" / "projects" / slug / "memory").glob("*.md"))
    found: list[str] = []
    for file in [each for each in dict.fromkeys(files) if each.is_file()][:_MOST_FILES]:
        try:
            with open_file(file) as stream:
                text = stream.read(_MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            continue  # what can't be read instructs nobody
        found += sentences(text)
    return found
