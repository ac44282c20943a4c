"""Asks every question of every system, scores the answers, keeps them in a file, and prints the
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
from bench.retrieval import datasets, metrics, progress, systems
from bench.retrieval.datasets import DataError, DataSet, Pool, Question, Turn
from bench.retrieval.metrics import DEPTH, Scores
from bench.retrieval.vectors import KeptVectors

KEPT = 10  # so many ids of each ranking are in the file of results
COMPARED = (("turn", "any@5"), ("turn", "any@10"), ("session", "any@5"))
LEVELS = ("turn", "session")


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked of the benchmark.

    Attributes:
        name: One of `datasets.SETS`.
        path: The user's copy of the data.
        systems: Which of `systems.NAMES`.
        limit: How many questions, drawn at random; None for all.
        results: The file for what each question gave; None for one under `.bench/`.
        seed: Of the draw and of the bootstrap.
        one_store: Whether all conversations are in one namespace and searched together.
        embedder: The name of an embedder that ships.
    """

    name: str
    path: Path
    systems: tuple[str, ...] = systems.NAMES
    limit: int | None = None
    results: Path | None = None
    seed: int = 7
    one_store: bool = False
    embedder: str = "minilm"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a system found for a question.

    Attributes:
        turns: Targets, best first; None from a system that ranks sessions alone.
        sessions: Sessions, by the best turn of each.
        turn: The scores of `turns`; None where there are none, or where the data set does not say
            which answer.
        session: The scores of `sessions`.
    """

    turns: list[str] | None
    sessions: list[str]
    turn: Scores | None
    session: Scores


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a run.

    Attributes:
        answers: For each system an answer for each question, in the order of the questions.
        times: Milliseconds of each search of ours, with vectors looked up.
    """

    questions: list[Question]
    answers: Mapping[str, list[Answer]]
    times: list[float]


def run(options: Options) -> None:
    """Measure, write the file of results, and print the tables.

    Raises:
        DataError: The data are not there, or of another format, or the results cannot be written.
    """
    data = datasets.load(options.name, options.path)
    if options.one_store:
        data = data.joined()
    data = data.limited(options.limit, options.seed)
    kept = options.results or corpus.CACHE / _results_name(options)
    _make_room(kept)
    embedder = KeptVectors(options.embedder)
    try:
        embedder.fill(systems.texts(options.systems, data.pools))
        measured = _measure(data, options.systems, embedder)
    finally:
        embedder.close()
    _write(measured, kept)
    _print(measured, options)
    report.note(f"What each question gave is in {kept}.")


def _results_name(options: Options) -> str:
    together = "-one-store" if options.one_store else ""
    return f"results-{options.name}-{options.embedder}{together}-{datetime.now(UTC):%Y-%m-%d}.jsonl"


def _measure(data: DataSet, names: Sequence[str], embedder: KeptVectors) -> Measured:
    answers: dict[str, list[Answer]] = {name: [] for name in names}
    times: list[float] = []
    with progress.shown("questions", len(data.questions)) as advance:
        for pools in [[pool] for pool in data.pools] if data.apart else [list(data.pools)]:
            with _folder() as folder, systems.opened(names, pools, embedder, folder) as finders:
                for pool, question, turns in _asked(pools):
                    for name, find in finders.items():
                        answers[name].append(_answer(question, find(pool.name, question), turns))
                    if "memories" in finders:  # once more, for now its vectors are known
                        search = partial(finders["memories"], pool.name, question, KEPT)
                        times.append(report.milliseconds(search))
                    advance(1)
    if "chroma" in names and (found := systems.chroma(data.pools, embedder)):
        answers["chroma"] = [
            _sessions_alone(question, found[question.id]) for question in data.questions
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


def _answer(question: Question, found: Sequence[str], turns: Mapping[str, Turn]) -> Answer:
    targets = metrics.first_seen(turns[at].target for at in found[:DEPTH])
    sessions = metrics.first_seen(turns[at].session for at in found[:DEPTH])
    return Answer(
        targets,
        sessions,
        metrics.score(targets, question.turns) if question.turns else None,
        metrics.score(sessions, question.sessions),
    )


def _sessions_alone(question: Question, found: list[str]) -> Answer:
    return Answer(None, found, None, metrics.score(found, question.sessions))


# --- results
# ---------------------------------------------------------------------------------------------------------


def _make_room(file: Path) -> None:
    """Make the file of results, so that a long run is not in vain."""
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
    }


# --- tables
# ----------------------------------------------------------------------------------------------------------


def _print(measured: Measured, options: Options) -> None:
    where = (
        "all conversations in one store"
        if options.one_store
        else "each asked about its own conversations"
    )
    for level in LEVELS:
        report.heading(f"{options.name}, {level} level, {where}, in %")
        report.table(
            ["category", "questions", "system", *metrics.NAMES], list(_rows(measured, level))
        )
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
    """Yield `all` and each category with the places of its questions."""
    yield "all", [at for at, question in enumerate(questions) if question.counted]
    for category in sorted({question.category for question in questions}):
        yield (
            category,
            [at for at, question in enumerate(questions) if question.category == category],
        )


def _rows(measured: Measured, level: str) -> Iterator[tuple[object, ...]]:
    for category, places in _groups(measured.questions):
        for name, answers in measured.answers.items():
            scores = [scores for at in places if (scores := _scores(answers[at], level))]
            if scores:
                means = metrics.mean(scores)
                yield (
                    category,
                    len(scores),
                    name,
                    *(f"{100 * means[metric]:.1f}" for metric in metrics.NAMES),
                )


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
