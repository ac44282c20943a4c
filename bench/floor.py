"""Calibrate the noise floor: how similar the best memory is to a nonsense query, by the number of
memories.

The best of N meaningless cosines grows as mean + spread × sqrt(2 ln N), like the largest of N
normal deviates. This fits the two constants to the 98th percentile of nonsense queries and shows
the cost of the floor: the share of real questions whose best similarity is below the floor although
the answer is among the N texts.
"""

import json
import random
import re
import string
from pathlib import Path

import numpy as np

from bench.retrieval.vectors import KeptVectors

SIZES = (10, 30, 100, 300, 1000, 2500)
QUERIES = 150
ROUNDS = 4


def nonsense(rng: random.Random) -> str:
    """Return random keystrokes, or syllables that form no word."""

    def mashed() -> str:
        return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(4, 9)))

    def spoken() -> str:
        return "".join(
            rng.choice("bcdfghklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randint(2, 4))
        )

    word = mashed if rng.random() < 0.5 else spoken
    return " ".join(word() for _ in range(rng.randint(1, 5)))


def load(path: Path) -> tuple[list[str], list[tuple[str, list[int]]]]:
    """Return all turns, and each question with the positions of the turns that answer it."""
    texts: list[str] = []
    questions: list[tuple[str, list[int]]] = []
    for item in json.loads(path.read_text(encoding="utf-8")):
        places: dict[str, int] = {}
        for name, turns in item["conversation"].items():
            if re.fullmatch(r"session_\d+", name):
                for turn in turns:
                    places[turn["dia_id"]] = len(texts)
                    texts.append(f"{turn['speaker']}: {turn.get('text', '')}")
        for question in item["qa"]:
            found = {
                places[ref]
                for text in question["evidence"]
                for ref in re.findall(r"D\d+:\d+", text)
                if ref in places
            }
            if found and question["category"] != 5:
                questions.append((question["question"], sorted(found)))
    return texts, questions


def measure(
    texts: list[str], questions: list[tuple[str, list[int]]], embedder: KeptVectors, seed: int = 7
) -> None:
    rng = random.Random(seed)
    embedder.fill(texts)
    vectors = np.stack([embedder.embed(text)[0] for text in texts])
    noise = np.stack([embedder.embed_query(nonsense(rng))[0] for _ in range(QUERIES)])
    asked = rng.sample(questions, QUERIES)
    real = np.stack([embedder.embed_query(question)[0] for question, _ in asked])
    rows = []
    for size in SIZES:
        drawn = [rng.sample(range(len(texts)), size) for _ in range(ROUNDS)]
        worst = np.concatenate([(noise @ vectors[sample].T).max(axis=1) for sample in drawn])
        best = []
        for number, (_, gold) in enumerate(asked):
            sample = [*drawn[number % ROUNDS][: size - 1], rng.choice(gold)]
            best.append(float((vectors[sample] @ real[number]).max()))
        rows.append((size, np.percentile(worst, 50), np.percentile(worst, 98), np.array(best)))
    steps = np.array([np.sqrt(2 * np.log(size)) for size, *_ in rows])
    spread, mean = np.polyfit(steps, [row[2] for row in rows], 1)
    print(f"fitted: noise_mean={mean:.3f} noise_spread={spread:.3f}\n")
    print(
        "| memories | best similarity to nonsense: median | 98th percentile | floor | real questions below the floor |"
    )
    print("|--:|--:|--:|--:|--:|")
    for (size, median, high, best_real), step in zip(rows, steps, strict=True):
        floor = mean + spread * step
        print(
            f"| {size} | {median:.3f} | {high:.3f} | {floor:.3f} | {(best_real < floor).mean():.1%} |"
        )


def run(data: Path, embedder: str = "minilm") -> None:
    """Measure an embedder with the LoCoMo conversations in that file, and print the table."""
    kept = KeptVectors(embedder)
    try:
        measure(*load(data), kept)
    finally:
        kept.close()
