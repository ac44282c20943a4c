"""Asks every system every question, scores the answers, stores them in a file, and prints the
tables.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bench import corpus, report
from bench.retrieval import datasets, metrics, progress, reading, sources, systems
from bench.retrieval.datasets import DataError, DataSet, Pool, Question, Turn
from bench.retrieval.metrics import DEPTH, Scores
from bench.retrieval.vectors import KeptVectors

KEPT = 10  # number of ids of each ranking in the file of results
COMPARED = (("turn", "any@5"), ("turn", "any@10"), ("session", "any@5"))
LEVELS = ("turn", "session")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the benchmark.

    Attributes:
        name: One of `datasets.SETS`.
        path: The user's copy of the data.
        systems: Which of `systems.NAMES`.
        limit: The number of random questions; None for all.
        results: The file for the results of each question; None for one under `.bench/`.
        seed: The seed of the draw and of the bootstrap.
        one_store: Whether all conversations are in one namespace and searched together.
        embedder: The name of an included embedder.
        reader: A command that answers questions from messages; see `reading`.
    """

    name: str
    path: Path
    systems: tuple[str, ...] = systems.NAMES
    limit: int | None = None
    results: Path | None = None
    seed: int = 7
    one_store: bool = False
    embedder: str = "minilm"
    reader: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The results of a system for a question.

    Attributes:
        turns: Targets, best first; None for a system that ranks only sessions.
        sessions: Sessions, in the order of their best turns.
        turn: The scores of `turns`; None if there are none, or if the data set does not say which
            messages answer.
        session: The scores of `sessions`.
        text: The reader's answer, if it was asked.
    """

    turns: list[str] | None
    sessions: list[str]
    turn: Scores | None
    session: Scores
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a run.

    Attributes:
        answers: For each system, an answer to each question, in the order of the questions.
        times: Milliseconds of each search by Memories, with precomputed vectors.
    """

    questions: list[Question]
    answers: Mapping[str, list[Answer]]
    times: list[float]


def run(options: Options) -> None:
    """Measure, write the file of results, and print the tables.

    Raises:
        DataError: The data are missing or in a different format, or the results can't be written.
    """
    data = datasets.load(options.name, options.path)
    if options.one_store:
        data = data.joined()
    report.note(f"{sources.describe(options.name, data.pools)}.")
    data = data.limited(options.limit, options.seed)
    kept = options.results or corpus.CACHE / _results_name(options)
    _make_room(kept)
    embedder = KeptVectors(options.embedder)
    try:
        embedder.fill(systems.texts(options.systems, data.pools))
        measured = _measure(data, options, embedder)
    finally:
        embedder.close()
    _write(measured, kept)
    _print(measured, options)
    report.note(f"The result of each question is in {kept}.")


def _results_name(options: Options) -> str:
    together = "-one-store" if options.one_store else ""
    return f"results-{options.name}-{options.embedder}{together}-{datetime.now(UTC):%Y-%m-%d}.jsonl"


def _measure(data: DataSet, options: Options, embedder: KeptVectors) -> Measured:
    names = options.systems
    answers: dict[str, list[Answer]] = {name: [] for name in names}
    times: list[float] = []
    with progress.shown("questions", len(data.questions)) as advance:
        for pools in [[pool] for pool in data.pools] if data.apart else [list(data.pools)]:
            with _folder() as folder, systems.opened(names, pools, embedder, folder) as finders:
                for pool, question, turns in _asked(pools):
                    for name, find in finders.items():
                        found = [turns[at] for at in find(pool.name, question)]
                        answers[name].append(_answer(question, found, options.reader))
                    if "memories" in finders:  # a second time, now that the vectors are known
                        search = partial(finders["memories"], pool.name, question, KEPT)
                        times.append(report.milliseconds(search))
                    advance(1)
    if "chroma" in names and (ranked := systems.chroma(data.pools, embedder)):
        answers["chroma"] = [
            _sessions_alone(question, ranked[question.id]) for question in data.questions
        ]
    return Measured(
        data.questions, {name: given for name, given in answers.items() if given}, times
    )


@contextmanager
def _folder() -> Iterator[Path]:
    corpus.CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=corpus.CACHE) as name:
        yield Path(name)


def _asked(pools: Sequence[Pool]) -> Iterator[tuple[Pool, Question, Mapping[str, Turn]]]:
    for pool in pools:
        turns = {turn.id: turn for turn in pool.turns}
        for question in pool.questions:
            yield pool, question, turns


def _answer(question: Question, found: Sequence[Turn], reader: str = "") -> Answer:
    targets = metrics.first_seen(turn.target for turn in found[:DEPTH])
    sessions = metrics.first_seen(turn.session for turn in found[:DEPTH])
    held = reading.fill(found[:DEPTH])
    scores: Scores | None = None
    if question.turns:
        held_targets = frozenset(turn.target for turn in held)
        tokens = sum(map(reading.count_tokens, held))
        budget = metrics.score_budget(held_targets, question.turns, tokens)
        scores = {**metrics.score(targets, question.turns), **budget}
    text = None
    if reader and question.counted and question.answer:
        text = reading.ask(reader, reading.make_prompt(question, held))
    return Answer(targets, sessions, scores, metrics.score(sessions, question.sessions), text)


def _sessions_alone(question: Question, found: list[str]) -> Answer:
    return Answer(None, found, None, metrics.score(found, question.sessions))


# --- results


def _make_room(file: Path) -> None:
    """Create the file of results first, so that a long run isn't wasted if the file can't be
    written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("a").close()
    except OSError as exc:
        raise DataError(f"{file} cannot be written: {exc}") from exc


def _write(measured: Measured, file: Path) -> None:
    with file.open("w", encoding="utf-8") as out:
        for at, question in enumerate(measured.questions):
            line = {
                "id": question.id,
                "question": question.text,
                "category": question.category,
                "gold_turns": sorted(question.turns),
                "gold_sessions": sorted(question.sessions),
                "systems": {name: _kept(answers[at]) for name, answers in measured.answers.items()},
            }
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


def _kept(answer: Answer) -> dict[str, object]:
    return {
        "turns": None if answer.turns is None else answer.turns[:KEPT],
        "sessions": answer.sessions[:KEPT],
        "turn": answer.turn,
        "session": answer.session,
        **({} if answer.text is None else {"reader": answer.text}),
    }


# --- tables


def _print(measured: Measured, options: Options) -> None:
    where = (
        "all conversations in one store"
        if options.one_store
        else "each asked about its own conversations"
    )
    report.heading(f"{options.name}, {where}, in %; evidence/1k is a number")
    columns = ["category", "questions", "level", "system", *metrics.NAMES, *metrics.OF_BUDGET]
    report.table(columns, list(_rows(measured)))
    if options.reader:
        report.heading(f"{options.name}, answers of {options.reader}, F1 of words in %")
        report.table(["category", "questions", "system", "F1"], list(_read_rows(measured)))
    if any(not question.counted for question in measured.questions):
        report.note("`all` is without the adversarial questions.")
    if rows := list(_comparisons(measured, options.seed)):
        report.heading(
            f"memories beside others, paired bootstrap, {metrics.RESAMPLES:,} resamples, in points"
        )
        report.table(["metric", "against", "questions", "difference", "95 % interval", "p"], rows)
    if measured.times:
        half, most = report.p50_p95(measured.times)
        report.note(
            f"A search, {KEPT} hits, takes {half} ms at the median, {most} ms at p95; embedding not included."
        )


def _groups(questions: Sequence[Question]) -> Iterator[tuple[str, list[int]]]:
    """Yield `all` and each category with the positions of its questions."""
    yield "all", [at for at, question in enumerate(questions) if question.counted]
    for category in sorted({question.category for question in questions}):
        yield (
            category,
            [at for at, question in enumerate(questions) if question.category == category],
        )


def _rows(measured: Measured) -> Iterator[tuple[object, ...]]:
    for category, places in _groups(measured.questions):
        for level in LEVELS:
            for name, answers in measured.answers.items():
                scores = [scores for at in places if (scores := _scores(answers[at], level))]
                if scores:
                    yield category, len(scores), level, name, *_cells(metrics.mean(scores))


def _cells(means: Scores) -> Iterator[str]:
    for metric in metrics.NAMES:
        yield f"{100 * means[metric]:.1f}"
    if "evidence/1k" not in means:  # whole sessions are longer
        yield from ("–", "–")
        return
    yield f"{100 * means['frac@1k']:.1f}"
    yield f"{means['evidence/1k']:.2f}"


def _read_rows(measured: Measured) -> Iterator[tuple[object, ...]]:
    for category, places in _groups(measured.questions):
        for name, answers in measured.answers.items():
            scores = [
                reading.score_answer(text, measured.questions[at].answer)
                for at in places
                if (text := answers[at].text) is not None
            ]
            if scores:
                yield category, len(scores), name, f"{100 * sum(scores) / len(scores):.1f}"


def _scores(answer: Answer, level: str) -> Scores | None:
    return answer.turn if level == "turn" else answer.session


def _comparisons(measured: Measured, seed: int) -> Iterator[tuple[object, ...]]:
    ours = measured.answers.get("memories", [])
    for level, metric in COMPARED if ours else ():
        for name in ("fts5", "dense", "rrf"):
            pairs = [
                (mine[metric], other[metric])
                for at, theirs in enumerate(measured.answers.get(name, []))
                if measured.questions[at].counted
                and (mine := _scores(ours[at], level)) is not None
                and (other := _scores(theirs, level)) is not None
            ]
            if pairs:
                gap = metrics.bootstrap([a for a, _ in pairs], [b for _, b in pairs], seed=seed)
                interval = f"{100 * gap.low:+.1f} to {100 * gap.high:+.1f}"
                yield (
                    f"{level} {metric}",
                    name,
                    len(pairs),
                    f"{100 * gap.mean:+.1f}",
                    interval,
                    f"{gap.p:.4f}",
                )
