"""Fit the weights of `embedders/scores.py`: the worth of sentences, the need of prompts, the relation
between prompts and facts, and the change that a text reports.

Run `python tools/linear_scores.py` after a change to the `dev` half of `bench/messages/en.txt`, of
`bench/histories`, of `bench/eighteen_projects` or of `tests/data/reworded_pairs.jsonl`, to
`bench/prompts.txt` or `bench/needs.txt`, or to a model. An argument, `minilm` or `e5`, fits the weights of that model alone.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `bench`

from bench import agents_memory, agents_stores, capture, reworded
from memories.embedders import Embedder, open_embedder, scores
from memories.embedders.protocol import embed_query
from memories.hooks.sentences import split_sentences
from memories.hooks.transcripts import USER

BENCH = Path(agents_memory.__file__).parent
PENALTY = 0.001  # factor for the squared weights
STEPS, RATE = 4_000, 2.0
WEIGHT_OF_OTHERS = 0.1
RELATION_PENALTY = 0.03
RELATION_STEPS, RELATION_RATE = 250, 0.02
RANK = 24  # number of dimensions of the relation
UNIT = 0.001  # unit of the relation's weights in the file
Array = np.ndarray[Any, np.dtype[np.float64]]


class Model(NamedTuple):
    """A model for whose vectors weights are fitted.

    Attributes:
        name: Its name as an embedder, and in the names of the files.
        average_need: The log-odds that an average prompt of the histories needs something, which
            are subtracted from the need. For e5 they also compensate for its larger relations. They
            were chosen on `dev`, so that one threshold fits both models.
        average_change: The log-odds that are subtracted from the change, so that its values for
            both models have the mean that the weights in `read.replacements` expect.
        scale: The factor that gives the cosines of all models the same spread.
        zero: The cosine of unrelated texts, which is high for e5.
        spread: The typical length of a vector after the average text's vector was subtracted.
    """

    name: str
    average_need: float
    average_change: float
    scale: float
    zero: float
    spread: float


MODELS = (Model("minilm", 1.2, 0.0, 10, 0, 1), Model("e5", 2.1, 0.5, 27, 0.8, 0.45))


def worthy_sentences() -> Iterator[tuple[str, bool]]:
    """Yield English sentences, and whether each is worth remembering."""
    for message in capture.load():
        if (message.language, message.half, message.role) == ("en", "dev", USER):
            for sentence in split_sentences(message.text):
                yield sentence, any(capture.has(sentence, text) for text in message.marked)
    for history in agents_memory.load():
        if (history.language, history.half) == ("en", "dev"):
            for prompt in history.prompts:
                for sentence in split_sentences(prompt.text):
                    yield sentence, False


def needy_prompts() -> Iterator[tuple[str, bool]]:
    """Yield prompts, and whether each needs something that an agent was told earlier."""
    for line in (BENCH / "prompts.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            yield line[2:], line.startswith("+")
    for group in read_groups():
        for prompt, needs in group.prompts:
            yield prompt, bool(needs)
    for history in [*agents_memory.load(), *agents_stores.load_all()]:
        if history.half == "dev":
            for prompt in history.prompts:
                yield prompt.text, bool(prompt.needs)


def changes() -> Iterator[tuple[str, bool]]:
    """Yield English texts, and whether each reports a change."""
    for pair in reworded.load_pairs():
        if (pair.language, pair.half) == ("en", "dev") and pair.kind != "repetition":
            yield pair.old, False
            yield pair.new, pair.kind == "correction"
    for history in agents_stores.load_all():
        for fact in history.facts:
            if history.half == "dev" and fact.wording != "same":
                yield fact.text, fact.wording == "different"


class Group(NamedTuple):
    """Facts that a user told their agents, and prompts with the letters of the facts that they
    need.

    Attributes:
        facts: The facts by letter. The letter is in upper case if the fact is valid in all
            projects.
        prompts: The prompts.
    """

    facts: dict[str, str]
    prompts: list[tuple[str, list[str]]]


def read_groups() -> list[Group]:
    """Read `bench/needs.txt`."""
    groups: list[Group] = []
    for line in (BENCH / "needs.txt").read_text(encoding="utf-8").splitlines():
        start, _, text = line.partition(" ")
        if start == "==":
            groups.append(Group({}, []))
        elif start == "-":
            letters, _, prompt = text.partition(" ")
            groups[-1].prompts.append((prompt, [] if letters == "." else letters.split(",")))
        elif start != "#":
            groups[-1].facts[start.rstrip(":")] = text
    return groups


class Example(NamedTuple):
    """A prompt, and the facts that are valid where it was typed and that it needs, as indexes."""

    prompt: str
    valid: list[int]
    needed: list[int]


class Examples:
    """Prompts with facts, from `bench/needs.txt` and the `dev` half of `bench/eighteen_projects`.

    Attributes:
        facts: The facts, each with whether it is valid in all of its user's projects.
        prompts: The prompts.
    """

    def __init__(self) -> None:
        """Read the files."""
        self.facts: list[tuple[str, bool]] = []
        self.prompts: list[Example] = []
        for group in read_groups():
            index = {letter: len(self.facts) + at for at, letter in enumerate(group.facts)}
            self.facts += [(text, letter.isupper()) for letter, text in group.facts.items()]
            for prompt, needs in group.prompts:
                needed = [index[letter] for letter in needs]
                self.prompts.append(Example(prompt, list(index.values()), needed))
        for history in agents_stores.load_all():
            if history.half == "dev":
                self._add(history)

    def _add(self, history: agents_memory.History) -> None:
        """Add the facts and prompts of one user."""
        index = {fact.id: len(self.facts) + at for at, fact in enumerate(history.facts)}
        self.facts += [
            (fact.text, fact.project == agents_memory.EVERYWHERE) for fact in history.facts
        ]
        for prompt in history.prompts:
            projects = (prompt.project, agents_memory.EVERYWHERE)
            valid = [index[fact.id] for fact in history.facts if fact.project in projects]
            needed = [index[fact] for fact in prompt.needs]
            self.prompts.append(Example(prompt.text, valid, needed))


class Pairs(NamedTuple):
    """All prompts and all facts of the `Examples`; arrays have a row for each prompt and a column
    for each fact.

    Attributes:
        prompts: The vectors of the prompts.
        facts: The vectors of the facts.
        is_needed: 1 where a prompt needs a fact, else 0.
        weights: How much a pair counts. A fact that isn't valid where the prompt was typed counts
            only if it is valid in all projects of a different user, and then only a little: agents
            of several users may share a namespace.
        is_global: 1 for the facts that are valid in all projects, else 0.
    """

    prompts: Array
    facts: Array
    is_needed: Array
    weights: Array
    is_global: Array


def make_pairs(embedder: Embedder) -> Pairs:
    """Return all pairs of prompts and facts."""
    examples = Examples()
    is_global = np.array([float(is_global) for _, is_global in examples.facts])
    is_needed = np.zeros((len(examples.prompts), len(examples.facts)))
    weights = np.tile(WEIGHT_OF_OTHERS * is_global, (len(examples.prompts), 1))
    for row, example in enumerate(examples.prompts):
        weights[row, example.valid] = 1
        is_needed[row, example.needed] = 1
    return Pairs(
        embed_prompts(embedder, [example.prompt for example in examples.prompts]),
        embed_texts(embedder, [text for text, _ in examples.facts]),
        is_needed,
        weights,
        is_global,
    )


def embed_prompts(embedder: Embedder, prompts: Iterable[str]) -> Array:
    """Return the vectors of short prompts, one per row."""
    return np.stack([embed_query(embedder, prompt)[0] for prompt in prompts]).astype(np.float64)


def embed_texts(embedder: Embedder, texts: Iterable[str]) -> Array:
    """Return the vectors of short texts, one per row."""
    return np.stack([embedder.embed(text)[0] for text in texts]).astype(np.float64)


def fit_relation(model: Model) -> None:
    """Fit the relation between prompts and facts with Adam, and write it to its file.

    The log-odds that a prompt needs a fact are a sum. Three terms are linear: in the similarity of
    the two, in its distance to that of the user's most similar fact, and in whether the fact is
    valid in all projects. The last term is the relation, a bilinear form of the centred vectors,
    whose largest dimensions are kept.
    """
    embedder = open_embedder(model.name)
    assert embedder is not None
    pairs = make_pairs(embedder)
    prompt_mean, fact_mean = pairs.prompts.mean(axis=0), pairs.facts.mean(axis=0)
    prompts = (pairs.prompts - prompt_mean) / model.spread
    facts = (pairs.facts - fact_mean) / model.spread
    similarity = model.scale * (pairs.prompts @ pairs.facts.T - model.zero)
    best = np.where(pairs.weights == 1, similarity, -np.inf).max(axis=1, keepdims=True)
    behind = np.minimum(0, similarity - best)
    features = (np.ones_like(similarity), similarity, behind, pairs.is_global + 0 * similarity)
    form, coefficients = Adam((prompts.shape[1], facts.shape[1])), Adam((len(features),))
    for _ in range(RELATION_STEPS):
        log_odds = prompts @ form.values @ facts.T
        for coefficient, feature in zip(coefficients.values, features, strict=True):
            log_odds = log_odds + coefficient * feature
        error = pairs.weights * (1 / (1 + np.exp(-log_odds)) - pairs.is_needed)
        error /= pairs.weights.sum()
        penalty = RELATION_PENALTY / len(prompts) * form.values
        form.step(prompts.T @ error @ facts + penalty)
        coefficients.step(np.array([(error * feature).sum() for feature in features]))
    left, sizes, right = np.linalg.svd(form.values)
    scale = np.sqrt(sizes[:RANK]) / model.spread
    of_prompts, of_facts = (left[:, :RANK] * scale).T, right[:RANK] * scale[:, np.newaxis]
    fields = {
        "unit": UNIT,
        "prompts": list_weights(of_prompts, prompt_mean),
        "texts": list_weights(of_facts, fact_mean),
    }
    text = json.dumps(fields, separators=(",", ":"))
    scores.file_of(scores.RELATION, model.name).write_text(text + "\n", encoding="utf-8")
    print(f"{scores.RELATION}, {model.name}: {len(prompts)} prompts, {len(facts)} facts")


class Adam:
    """Values that Adam optimizes."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        """Begin with zeros."""
        self.values, self._mean, self._square = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._count = 0

    def step(self, gradient: Array) -> None:
        """Move the values in the direction opposite to a gradient."""
        self._count += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.99 * self._square + 0.01 * gradient**2
        mean = self._mean / (1 - 0.9**self._count)
        root = np.sqrt(self._square / (1 - 0.99**self._count))
        self.values -= RELATION_RATE * mean / (root + 1e-8)


def list_weights(weights: Array, mean: Array) -> list[list[int]]:
    """Return a linear map of centred vectors in whole units: rows with the offset, then the
    weights.
    """
    rows = [-(weights @ mean), *weights]
    return [np.rint(row / UNIT).astype(int).tolist() for row in rows]


def fit(score: str, model: Model, examples: Iterable[tuple[str, bool]], average: float) -> None:
    """Fit a score by gradient descent, and write it to its file without `average`."""
    embedder = open_embedder(model.name)
    assert embedder is not None
    texts, labels = zip(*examples, strict=True)
    embed = embed_texts if score == scores.CHANGE else embed_prompts
    vectors = embed(embedder, texts)
    mean = np.zeros(vectors.shape[1])
    if model.zero:
        mean = vectors.mean(axis=0)
    vectors = (vectors - mean) / model.spread
    is_true = np.array(labels, dtype=np.float64)
    weights, intercept = np.zeros(vectors.shape[1]), 0.0
    for _ in range(STEPS):
        error = 1 / (1 + np.exp(-(vectors @ weights + intercept))) - is_true
        weights -= RATE * (vectors.T @ error / len(error) + PENALTY * weights)
        intercept -= RATE * error.mean()
    weights /= model.spread
    fields = {
        "intercept": round(float(intercept - mean @ weights) - average, 3),
        "weights": [round(float(weight), 3) for weight in weights],
    }
    scores.file_of(score, model.name).write_text(json.dumps(fields) + "\n", encoding="utf-8")
    print(f"{score}, {model.name}: {len(texts)} texts, {int(is_true.sum())} of them positive")


if __name__ == "__main__":
    for each in MODELS:
        if each.name not in (sys.argv[1:] or [each.name]):
            continue
        if each.name == "minilm":
            fit(scores.WORTH, each, worthy_sentences(), 0.0)
        fit(scores.CHANGE, each, changes(), each.average_change)
        fit(scores.NEED, each, needy_prompts(), each.average_need)
        fit_relation(each)
