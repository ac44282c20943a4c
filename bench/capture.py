"""Which sentences of a conversation are proposed as memories, in twenty-one languages.

`bench/messages/CODE.txt` has messages as developers type them to agents, one per line, in two
halves, `# dev` and `# test`. `[[…]]` marks a sentence that is worth remembering in later sessions,
and `a: ` begins a message of the assistant. Tune on `dev` alone; the messages of `test` are by
different people with a different style.

A proposal is right if it has at least six in ten words of a marked sentence, and a marked sentence
counts as proposed if a right proposal belongs to it.

- recall: the share of the marked sentences that were proposed.
- precision: the share of the proposals that are right.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench import report
from memories.embedders import open_embedder
from memories.embedders.scores import Rate, worth_rater
from memories.hooks.phrases import candidates
from memories.hooks.transcripts import ASSISTANT, USER
from memories.languages.text import index_text

DATA = Path(__file__).with_name("messages")
HALVES = ("dev", "test")
_MARKED = re.compile(r"\[\[(.*?)\]\]")
_SHARED_WORDS = 0.6


class Message(NamedTuple):
    """A message, and the sentences in it that are worth remembering."""

    language: str
    half: str
    role: str
    text: str
    marked: tuple[str, ...]


class Result(NamedTuple):
    """The sentences of a message that were missed, and those that were wrongly proposed."""

    message: Message
    proposed: int
    missed: list[str]
    wrong: list[str]


def load(folder: Path = DATA) -> Iterator[Message]:
    """Yield the messages."""
    for file in sorted(folder.glob("*.txt")):
        half = ""
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith("# "):
                half = line.removeprefix("# ")
                continue
            text = line.removeprefix("a: ")
            role = USER if text == line else ASSISTANT
            marked = tuple(_MARKED.findall(text))
            yield Message(file.stem, half, role, _MARKED.sub(r"\1", text), marked)


def check(message: Message, rate: Rate | None) -> Result:
    """Propose sentences of a message, and compare them with the marked ones."""
    found = candidates(message.text, message.role, rate)
    proposals = [candidate.content for candidate in found]
    missed = [text for text in message.marked if not any(has(own, text) for own in proposals)]
    wrong = [own for own in proposals if not any(has(own, text) for text in message.marked)]
    return Result(message, len(proposals), missed, wrong)


def has(proposal: str, marked: str) -> bool:
    """Return whether a proposal has most words of a marked sentence."""
    words = set(index_text(marked).split())
    return len(words & set(index_text(proposal).split())) >= _SHARED_WORDS * len(words)


def run() -> None:
    """Print a table for each half, and the mistakes in `dev`."""
    rate = worth_rater(open_embedder("minilm"))
    results = [check(message, rate) for message in load()]
    for half in HALVES:
        of_half = [result for result in results if result.message.half == half]
        report.heading(f"What capture proposes, {half}, {len(of_half)} messages")
        languages = sorted({result.message.language for result in of_half} - {"en"})
        rows = [
            _row("English", (result for result in of_half if result.message.language == "en")),
            _row("others", (result for result in of_half if result.message.language != "en")),
            _row("all", of_half),
        ]
        rows += [
            _row(code, (result for result in of_half if result.message.language == code))
            for code in languages
        ]
        report.table(["language", "marked", "proposed", "recall %", "precision %"], rows)
    for result in results:
        if result.message.half == HALVES[0]:
            for text in result.missed:
                report.note(f"{result.message.language} missed: {text}")
            for text in result.wrong:
                report.note(f"{result.message.language} wrong: {text}")


def _row(name: str, results: Iterable[Result]) -> tuple[str, ...]:
    results = list(results)
    marked = sum(len(result.message.marked) for result in results)
    missed = sum(len(result.missed) for result in results)
    proposed = sum(result.proposed for result in results)
    right = proposed - sum(len(result.wrong) for result in results)
    recall = f"{100 * (marked - missed) / marked:.1f}"
    return name, str(marked), str(proposed), recall, f"{100 * right / max(1, proposed):.1f}"
