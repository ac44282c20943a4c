"""How plain the package reads: names, density and English, as counts.

The counts are signals for readers. Where a reader and a count disagree, the reader is right; then
raise the limit in the same commit, with the reason.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "memories"
FILES = sorted(SOURCE.rglob("*.py"))
# Words that say nothing about a value. A file may contain a few; `items` and `data` are often
# right.
VAGUE = frozenset(
    """found told said known given asked done kept shown made each one some here there most least own
    other rest others taken left gone come wanted both again thing things what info obj""".split()
)
MAX_VAGUE_NAMES = 12  # in a file
MAX_VAGUE_SHARE = 0.12  # of a file's values
PARTICIPLE = re.compile(
    r"_*(?:\w{2,}ed|told|said|known|given|done|kept|shown|made|written|chosen|sent|bound|found)"
)
VERBS_AND_NOUNS = {
    "embed",
    "feed",
    "need",
    "seed",
    "speed",
    "exceed",
    "proceed",
    "succeed",
    "shred",
}
MAX_PARTICIPLES = 0.04  # of all functions; predicates such as `is_signed` count too
TRANSLATED = re.compile(
    r"\b(?:tells?|told|telling|of which|of whom|anew|whatever|whoever|whichever|but for|somebody|"
    r"nobody|anybody|what (?:is|was|are|were|has|had|it|they|a|the|comes|can))\b",
    re.IGNORECASE,
)
MAX_TRANSLATED = 10  # per 10,000 words of docstrings
MAX_PER_THOUSAND = {ast.IfExp: 23, ast.Lambda: 3}  # per 1,000 statements
COMPREHENSIONS = (ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp)
MAX_COMPREHENSIONS = 36  # per 1,000 statements


@functools.cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """Return the nodes of a file's syntax tree."""
    return tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


@pytest.fixture(scope="module", autouse=True)
def not_kept() -> Iterator[None]:
    """Free the syntax trees after the tests: they take 140 MB."""
    yield
    nodes.cache_clear()


def value_names(file: Path) -> list[str]:
    """Return the name of each parameter and each assignment."""
    names = [node.arg for node in nodes(file) if isinstance(node, ast.arg)]
    stored = (node for node in nodes(file) if isinstance(node, ast.Name))
    return names + [node.id for node in stored if isinstance(node.ctx, ast.Store)]


def function_names() -> list[str]:
    """Return the name of each function of the package."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node.name for file in FILES for node in nodes(file) if isinstance(node, kinds)]


def docstrings() -> Iterator[str]:
    """Yield each docstring of the package on one line."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for file in FILES:
        for node in nodes(file):
            if isinstance(node, kinds):
                yield " ".join((ast.get_docstring(node) or "").split())


def test_a_file_has_few_vague_names() -> None:
    too_many = []
    for file in FILES:
        names = value_names(file)
        vague = [name for name in names if name in VAGUE]
        if len(vague) > MAX_VAGUE_NAMES or len(vague) > max(3, MAX_VAGUE_SHARE * len(names)):
            too_many.append(f"{file.relative_to(SOURCE)}: {', '.join(sorted(set(vague)))}")
    assert too_many == []


def test_functions_are_named_by_verbs() -> None:
    names = [name.lstrip("_") for name in function_names()]
    bare = [name for name in names if PARTICIPLE.fullmatch(name) and name not in VERBS_AND_NOUNS]
    assert len(bare) <= MAX_PARTICIPLES * len(names), sorted(bare)


def test_docstrings_avoid_phrases_that_read_as_translated() -> None:
    text = "\n".join(docstrings())
    marked = [line for line in text.splitlines() if TRANSLATED.search(line)]
    words = len(re.findall(r"[A-Za-z']+", text))
    assert len(marked) <= MAX_TRANSLATED * words / 10_000, marked


def test_expressions_are_rarely_nested() -> None:
    every = [node for file in FILES for node in nodes(file)]
    thousands = sum(isinstance(node, ast.stmt) for node in every) / 1_000
    for kind, most in MAX_PER_THOUSAND.items():
        assert sum(isinstance(node, kind) for node in every) <= most * thousands, kind
    comprehensions = sum(isinstance(node, COMPREHENSIONS) for node in every)
    assert comprehensions <= MAX_COMPREHENSIONS * thousands
