"""`python -m bench.retrieval.sources [SET PATH]`: where to get each data set, and whether a copy is
the one that was measured.

A digest is computed for each conversation with its questions, from their values and not from the
bytes of a file. So half of a data set can be recognized in the whole.
"""

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.retrieval import datasets
from bench.retrieval.datasets import SETS, DataError, Pool


class Source(NamedTuple):
    """The source of a data set, its licence, and the conversations in our figures."""

    place: str
    licence: str
    measured: tuple[str, ...] = ()


SOURCES = {
    "locomo": Source(
        "github.com/snap-research/locomo, data/locomo10.json",
        "CC BY-NC 4.0",
        (
            "16661cc91de310f3",
            "daaf3461e405f76f",
            "2b00c7e2f72a16fd",
            "b6f31b874b02d507",
            "f78ec6e9398055b4",
        ),
    ),
    "longmemeval": Source(
        "github.com/xiaowu0162/LongMemEval links to it: longmemeval_s_cleaned.json", "MIT"
    ),
    "beam": Source(
        "github.com/mohammadtavakoli78/BEAM, or the authors' data set BEAM on Hugging Face: "
        "chats of 100K tokens",
        "CC BY-SA 4.0",
        (
            "8ef35a25dab2bfd9",
            "dc0c3ee1a1db7a98",
            "f2b6ed258daff5d4",
            "fd30ab774c56ac53",
            "9a8ea678a6d5e45f",
            "196e24d414175968",
            "5a779a744640465f",
            "68d871059c13ec2b",
            "6912b1b06f64fe48",
            "97e6eb7029df3a73",
        ),
    ),
    "realtalk": Source("github.com/danny911kr/REALTALK, data/Chat_*.json", "see there"),
}


def digest(pool: Pool) -> str:
    """Return a digest of a conversation and its questions, 16 hexadecimal digits."""
    lines = [
        repr((turn.id, turn.session, turn.said, turn.said_at.isoformat())) for turn in pool.turns
    ]
    for question in pool.questions:
        evidence = (sorted(question.turns), sorted(question.sessions))
        lines.append(repr((question.id, question.text, question.category, evidence)))
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def describe(name: str, pools: Sequence[Pool]) -> str:
    """Return a sentence that says which of the measured conversations a copy has."""
    measured = SOURCES[name].measured
    digests = [digest(pool) for pool in pools]
    combined = hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()[:16]
    text = f"{name}: {len(pools)} conversations, digest {combined}"
    if not measured:
        return f"{text}; docs/benchmarks.md has no figures of this set to compare with"
    count = len(set(digests) & set(measured))
    return f"{text}; {count} of the {len(measured)} in docs/benchmarks.md are in it, unchanged"


def main(arguments: list[str] | None = None) -> None:
    """Print where to get the data sets, or describe a copy; status 2 if it is unreadable."""
    parser = argparse.ArgumentParser(prog="python -m bench.retrieval.sources", description=__doc__)
    parser.add_argument("set", nargs="?", choices=SETS)
    parser.add_argument("path", nargs="?", type=Path, help="your copy")
    options = parser.parse_args(arguments)
    if options.path is None:
        for name in [options.set] if options.set else SETS:
            print(f"{name}: {SOURCES[name].place} ({SOURCES[name].licence})")
        return
    try:
        print(describe(options.set, datasets.load(options.set, options.path).pools))
    except DataError as exc:
        parser.exit(2, f"{parser.prog}: {exc}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
