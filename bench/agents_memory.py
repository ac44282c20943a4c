"""Facts that the prompt hook gives an agent, from one store with the facts of nine people and their
projects.

`bench/histories/NAME.jsonl` has the facts that one person told their agents over months, and the
prompts that they typed afterwards. The first line describes the history: its half, `dev` or `test`,
and its projects with their remotes. Then come the facts, each with its project (`*`: valid in all
projects) and its day; a correction names the fact that it `corrects`, and whether it has the same
wording or a different one. Then come the prompts, each with its day, the project in whose folder it
is typed and the ids of the facts that a careful colleague would need for it; a third of the prompts
need none. Tune only on `dev`.

The library stores all facts in one namespace, each on its day and in the folder of its project.
Then `memory hook user-prompt` runs for each prompt, in a new process and a new session, at noon of
the prompt's day. Reads are not counted, so each prompt sees the same store. The hook is compared
with plain searches, which return their best five facts: by the cosine of the same embedder, over
all facts or over those of the project and of all projects, and by BM25.

The figures:

- A fact is given if the hook's output contains its whole text.
- any, all: the share of the prompts with needs that got at least one of the facts that they need,
  and the share that got all of them.
- false positives: how many of the prompts that need no facts got one.
- facts of other projects: facts given whose project is neither that of the prompt nor `*`, per
  prompt.
- outdated facts: how often a fact was given without the last fact that corrects it.
- useless facts: facts given that the prompt does not need, per prompt; this includes outdated ones.
- characters: of the facts given, and of the hook's whole output for the model, per prompt.

A second table compares the methods at equal cost: each uses the lowest threshold of its score that
keeps the useless facts per prompt below a limit. Here the library rates the facts that the hook
would rate, and the plain searches consider only facts of the project and of all projects.
"""

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import apsw
import numpy as np

from bench import corpus, report
from memories import Memories, load_config
from memories.embedders import open_embedder
from memories.guard.origin import Place
from memories.hooks import gate
from memories.hooks.prompt_recall import RecallTrace, TextLimits, recall_for_prompt
from memories.hooks.recall_strategy import RecallRequest
from memories.identity.place import names_of
from memories.identity.project import identify

DATA = Path(__file__).with_name("histories")
EVERYWHERE = "*"
HALVES = ("dev", "test")
_HOOK = "`memory hook user-prompt`"
_ARGUMENTS = "hook user-prompt --host claude-code --seconds 30".split()
_BEST = 5  # number of facts that a plain search returns
COLUMNS = (
    "any %",
    "all %",
    "false positives",
    "facts of other projects",
    "outdated facts",
    "useless facts",
)
CHARACTERS = ("characters of facts", "characters sent")
_DEADLINE_SECONDS = 60
_USELESS = (0.5, 1.0, 1.5, 2.0, 3.0)  # limits of useless facts per prompt
_NO_LIMITS = TextLimits(1_000_000, 1_000_000)
_QUIET = {"COUNT_ACCESSES": "false", "REINFORCE_ON_RETRIEVAL": "false", "MEMORY_EVENTS": "off"}
_ESCAPE = re.compile(r"\\u([0-9a-f]{4})")  # how the hook writes `<` and other characters
_MOVED = """
import datetime, runpy, sys
class Moved(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + by
by = Moved.fromisoformat(sys.argv.pop(1)) - datetime.datetime.now(datetime.UTC)
datetime.datetime = Moved
runpy.run_module("memories", run_name="__main__", alter_sys=True)
"""  # `python -m memories` at a different time


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact that a person told an agent."""

    id: str
    project: str
    at: str
    text: str
    corrects: str = ""
    wording: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that a person types in a project, and the ids of the facts that it needs."""

    id: str
    project: str
    at: str
    text: str
    needs: list[str]


@dataclass(frozen=True, slots=True)
class History:
    """One person: the half that they belong to, the remote of each project, the facts and the
    prompts.
    """

    id: str
    half: str
    language: str
    about: str
    projects: dict[str, str]
    facts: list[Fact]
    prompts: list[Prompt]


class Answer(NamedTuple):
    """The facts that were given for a prompt, and the number of characters that were sent with
    them.
    """

    prompt: Prompt
    facts: Sequence[Fact]
    sent: int = 0


Scored = tuple[Prompt, Sequence[tuple[float, Fact]]]  # facts with their scores, best first


def load(folder: Path = DATA) -> list[History]:
    """Return the histories."""
    histories = []
    for file in sorted(folder.glob("*.jsonl")):
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        by_kind: dict[str, list[dict[str, Any]]] = {"history": [], "fact": [], "prompt": []}
        for row in rows:
            by_kind[row.pop("kind")].append(row)
        facts = [Fact(**row) for row in by_kind["fact"]]
        prompts = [Prompt(**row) for row in by_kind["prompt"]]
        histories.append(History(**by_kind["history"][0], facts=facts, prompts=prompts))
    return histories


def last_corrections(facts: Sequence[Fact]) -> dict[str, str]:
    """Return the last correction of each corrected fact, by id."""
    newer = {fact.corrects: fact.id for fact in facts if fact.corrects}

    def last(fact: str) -> str:
        return last(newer[fact]) if fact in newer else fact

    return {old: last(old) for old in newer}


def score(answers: Sequence[Answer], corrected: Mapping[str, str]) -> tuple[str, ...]:
    """Return the figures that the module's docstring lists, in the same order, as text.

    Args:
        answers: Some with needs.
        corrected: The last correction of each corrected fact; see `last_corrections`.
    """
    hits, idle, of_others, outdated, useless, characters = [], [], 0, 0, 0, 0
    for prompt, facts, _ in answers:
        ids, needs = {fact.id for fact in facts}, set(prompt.needs)
        if needs:
            hits.append((bool(needs & ids), needs <= ids))
        else:
            idle.append(bool(ids))
        of_others += sum(fact.project not in (prompt.project, EVERYWHERE) for fact in facts)
        outdated += sum(corrected[old] not in ids for old in ids & corrected.keys())
        useless += len(ids - needs)
        characters += sum(len(fact.text) for fact in facts)
    count, sent = len(answers), sum(answer.sent for answer in answers)
    return (
        f"{100 * sum(some for some, _ in hits) / len(hits):.1f}",
        f"{100 * sum(whole for _, whole in hits) / len(hits):.1f}",
        f"{sum(idle)} of {len(idle)}",
        f"{of_others / count:.2f}",
        str(outdated),
        f"{useless / count:.2f}",
        f"{characters / count:.0f}",
        f"{sent / count:.0f}" if sent else "–",
    )


def run() -> None:
    """Run the hook and the plain searches, and print a table for each half and one for all."""
    histories = load()
    facts = [fact for history in histories for fact in history.facts]
    prompts = [prompt for history in histories for prompt in history.prompts]
    with tempfile.TemporaryDirectory(
        ignore_cleanup_errors=True
    ) as folder:  # a hook may still write its log
        home = Path(folder).resolve() / "home"
        folders = dict(_folders(histories, home.parent))
        stored = _fill(facts, folders, home)
        methods = {_HOOK: _hook(prompts, facts, folders, home), **_plain(prompts, facts)}
        scored = {_HOOK: _rate(prompts, facts, folders, home), **_score_plainly(prompts, facts)}
    corrected = last_corrections(facts)
    for half in (*HALVES, "all"):
        chosen = {
            prompt.id for each in histories if half in (each.half, "all") for prompt in each.prompts
        }
        report.heading(f"What agents are given, {half}, {len(chosen)} prompts")
        rows = [
            (
                method,
                *score([answer for answer in answers if answer.prompt.id in chosen], corrected),
            )
            for method, answers in methods.items()
        ]
        report.table(["method", *COLUMNS, *CHARACTERS], rows)
        of_half = {
            method: [entry for entry in entries if entry[0].id in chosen]
            for method, entries in scored.items()
        }
        _compare_thresholds(of_half, half, corrected)
        if half == HALVES[0]:
            _keep([answer for answer in methods[_HOOK] if answer.prompt.id in chosen])
    report.note(stored)


def answer_with_hook(histories: Sequence[History], home: Path) -> list[Answer]:
    """Store the facts of histories in a new home folder, and return the facts that the hook gives
    for each prompt.
    """
    facts = [fact for history in histories for fact in history.facts]
    prompts = [prompt for history in histories for prompt in history.prompts]
    folders = dict(_folders(histories, home.parent))
    _fill(facts, folders, home)
    return _hook(prompts, facts, folders, home)


def _compare_thresholds(
    scored: Mapping[str, Sequence[Scored]], half: str, corrected: Mapping[str, str]
) -> None:
    """Print the figures of each method at the threshold that keeps a limit of useless facts."""
    report.heading(f"Needed facts at so many useless facts per prompt, {half}")
    rows = []
    for method, prompts in scored.items():
        for limit in _USELESS:
            figures = best_figures(prompts, limit, corrected)
            rows.append((method, f"{limit:.1f}", *figures))
    report.table(["method", "limit on useless", "any %", "all %", "false positives"], rows)


def best_figures(
    scored: Sequence[Scored], useless: float, corrected: Mapping[str, str]
) -> tuple[str, ...]:
    """Return `any`, `all` and `false positives` at the lowest threshold that keeps the limit.

    Args:
        scored: Prompts with facts and their scores.
        useless: The limit of useless facts per prompt.
        corrected: See `last_corrections`.
    """
    thresholds = sorted({relevance for _, facts in scored for relevance, _ in facts}, reverse=True)
    low, high = 0, len(thresholds) - 1
    figures = ("0.0", "0.0", "–")
    while low <= high:
        middle = (low + high) // 2
        answers = [
            Answer(prompt, [fact for own, fact in facts if own >= thresholds[middle]][:_BEST])
            for prompt, facts in scored
        ]
        row = score(answers, corrected)
        if float(row[5]) <= useless:
            figures, low = row[:3], middle + 1
        else:
            high = middle - 1
    return figures


def _rate(
    prompts: Sequence[Prompt], facts: Sequence[Fact], folders: Mapping[str, Path], home: Path
) -> list[Scored]:
    """Return the facts that the hook's gate would pass without a threshold."""
    now = SimpleNamespace(time=datetime.now(UTC))
    config = load_config({"home": str(home)}, environment=_QUIET)
    by_text = {fact.text: fact for fact in facts}
    scored: list[Scored] = []
    with (
        patch.object(gate, "THRESHOLD", -math.inf),
        Memories(config=config, clock=lambda: now.time) as memories,
    ):
        for prompt in prompts:
            now.time = datetime.fromisoformat(f"{prompt.at}T12:00:00+00:00")
            project = identify(folders[prompt.project], home)
            assert project is not None
            place = (str(home), str(folders[prompt.project]), "claude-code.curve", None)
            request = RecallRequest(place, prompt.text, time.monotonic() + _DEADLINE_SECONDS)
            trace, names = RecallTrace(), names_of(project.name)
            recall_for_prompt(
                memories, request, config, projects=names, limits=_NO_LIMITS, trace=trace
            )
            rated = [trace.rated[memory_id] for memory_id in trace.current]
            own = [(entry.rating, by_text[entry.memory.content]) for entry in rated]
            near = [
                (relevance, fact)
                for relevance, fact in own
                if fact.project in (prompt.project, EVERYWHERE) and relevance > -math.inf
            ]
            scored.append((prompt, near))
    return scored


def _folders(histories: Sequence[History], base: Path) -> Iterator[tuple[str, Path]]:
    """Make a git repository for each project, like a clone of it, and yield the folders by project."""
    for history in histories:
        for name, remote in history.projects.items():
            git = base / history.id / name / ".git"
            for part in ("objects", "refs"):
                (git / part).mkdir(parents=True)
            (git / "HEAD").write_text("ref: refs/heads/main\n")
            (git / "config").write_text(f'[remote "origin"]\n\turl = https://{remote}.git\n')
            yield name, git.parent


def _fill(facts: Sequence[Fact], folders: Mapping[str, Path], home: Path) -> str:
    """Store the facts in the order of their days; return a sentence about the results.

    Raises:
        RuntimeError: A fact is stored with a different text, so it can't be recognized in a hook's
            output.
    """
    home.mkdir()
    places: dict[str, Place] = {}
    for name, folder in folders.items():
        project = identify(folder, home)
        assert project is not None
        places[name] = Place(project.name, project.branch)
    ids: dict[str, str] = {}
    links, now = 0, SimpleNamespace(time=datetime.now(UTC), place=None)
    config = load_config({"home": str(home)}, environment={})
    with Memories(config=config, clock=lambda: now.time, place=lambda: now.place) as memories:
        for number, fact in enumerate(sorted(facts, key=lambda fact: fact.at)):
            now.time = datetime.fromisoformat(f"{fact.at}T09:00:00+00:00") + timedelta(
                seconds=number
            )
            now.place = places.get(fact.project)
            created = memories.create(
                fact.text, tags={"global": "true"} if fact.project == EVERYWHERE else {}
            )
            if created.memory is None:
                continue
            if created.memory.content != fact.text:
                raise RuntimeError(f"{fact.id} is stored as {created.memory.content!r}")
            ids[fact.id] = created.memory.id
            links += bool(fact.corrects) and created.corrects == ids.get(fact.corrects)
    corrections = sum(bool(fact.corrects) for fact in facts)
    return f"{len(ids)} of {len(facts)} facts were stored, and {links} of {corrections} corrections were linked."


def _hook(
    prompts: Sequence[Prompt], facts: Sequence[Fact], folders: Mapping[str, Path], home: Path
) -> list[Answer]:
    """Run the hook for each prompt, in one process each.

    Raises:
        RuntimeError: A hook failed, which it hides from its agent, or its output contains no whole
            fact.
    """
    kept = {
        name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "PYTHONPATH")
    }
    environment = {**kept, **_QUIET, "HOME": str(home), "MEMORY_HOME": str(home)}

    def answer(prompt: Prompt) -> Answer:
        folder = folders[prompt.project]
        command = [sys.executable, "-c", _MOVED, f"{prompt.at}T12:00:00+00:00", *_ARGUMENTS]
        event = json.dumps(
            {"session_id": prompt.id, "cwd": str(folder), "prompt": prompt.text}
        ).encode()
        done = subprocess.run(
            command, input=event, capture_output=True, check=True,
            cwd=folder, env=environment, timeout=_DEADLINE_SECONDS,
        )  # fmt: skip
        said = (
            json.loads(done.stdout)["hookSpecificOutput"]["additionalContext"]
            if done.stdout
            else ""
        )
        sent = len(said)
        said = _ESCAPE.sub(lambda code: chr(int(code[1], 16)), said)
        given = [fact for fact in facts if fact.text in said]
        if said and not given:
            raise RuntimeError(
                f"at {prompt.id} the hook printed something without a whole fact: {said[:500]}"
            )
        return Answer(prompt, given, sent)

    with ThreadPoolExecutor(corpus.PROCESSES) as pool:
        answers = list(pool.map(answer, prompts))
    log = home / "hooks.log"
    if log.exists():
        raise RuntimeError(f"hooks failed: {log.read_text()[:1000]}")
    return answers


def _plain(prompts: Sequence[Prompt], facts: Sequence[Fact]) -> dict[str, list[Answer]]:
    """Return what plain searches give."""
    search = _PlainSearch(facts)
    methods: dict[str, list[Answer]] = {"cosine": [], "cosine within the project": [], "BM25": []}
    for prompt in prompts:
        near = [fact for _, fact in search.by_vector(prompt)]
        within = [fact for fact in near if fact.project in (prompt.project, EVERYWHERE)]
        by_words = [fact for _, fact in search.by_words(prompt)]
        for answers, best in zip(methods.values(), (near, within, by_words), strict=True):
            answers.append(Answer(prompt, best[:_BEST]))
    return {f"{name}, best {_BEST}": answers for name, answers in methods.items()}


def _score_plainly(prompts: Sequence[Prompt], facts: Sequence[Fact]) -> dict[str, list[Scored]]:
    """Return the facts of the prompts' projects with the scores of plain searches."""
    search = _PlainSearch(facts)
    methods: dict[str, list[Scored]] = {"cosine": [], "BM25": []}
    for prompt in prompts:
        own = (prompt.project, EVERYWHERE)
        found = (search.by_vector(prompt), search.by_words(prompt))
        for scored, best in zip(methods.values(), found, strict=True):
            scored.append((prompt, [entry for entry in best if entry[1].project in own]))
    return methods


class _PlainSearch:
    """Scores all facts by one measure."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        embedder = open_embedder("minilm")
        assert embedder is not None
        self._facts, self._embedder = facts, embedder
        # no fact is longer than one window
        self._vectors = np.stack([embedder.embed(fact.text)[0] for fact in facts])
        self._db = apsw.Connection(":memory:")
        self._db.execute(
            'CREATE VIRTUAL TABLE facts USING fts5 (text, tokenize = "porter unicode61")'
        )
        self._db.executemany(
            "INSERT INTO facts (rowid, text) VALUES (?, ?)",
            ((at, fact.text) for at, fact in enumerate(facts)),
        )

    def by_vector(self, prompt: Prompt) -> list[tuple[float, Fact]]:
        """Return all facts with their cosines, best first."""
        cosines = self._vectors @ self._embedder.embed(prompt.text)[0]
        order = np.argsort(-cosines, kind="stable")
        return [(float(cosines[at]), self._facts[at]) for at in order]

    def by_words(self, prompt: Prompt) -> list[tuple[float, Fact]]:
        """Return the facts that share a word with their BM25, best first."""
        match = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", prompt.text))
        if not match:
            return []
        rows = self._db.execute(
            "SELECT rowid, rank FROM facts WHERE facts MATCH ? ORDER BY rank, rowid", (match,)
        )
        return [(-rank, self._facts[at]) for at, rank in rows]


def _keep(answers: Sequence[Answer]) -> None:
    """Write the facts given for each prompt of the half `dev` to a file; the other half stays
    unread.
    """
    corpus.CACHE.mkdir(exist_ok=True)
    file = corpus.CACHE / "agents-memory-dev.jsonl"
    with file.open("w", encoding="utf-8") as stream:
        for prompt, facts, sent in answers:
            row = {
                "id": prompt.id,
                "text": prompt.text,
                "needs": prompt.needs,
                "given": [fact.id for fact in facts],
            }
            stream.write(json.dumps(row | {"sent": sent}, ensure_ascii=False) + "\n")
    report.note(f"The facts given for each of these prompts are in `{file}`.")
