"""`python -m bench.retrieval SET PATH`: measure retrieval on a data set; see `bench/README.md`."""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # set before numpy is imported: as in the command, and comparable across machines

from bench import report
from bench.retrieval import measure, systems
from bench.retrieval.datasets import SETS, DataError
from bench.retrieval.vectors import EMBEDDERS
from memories import InvalidInput


def main(arguments: list[str] | None = None) -> None:
    """Parse the options, measure, and print tables in markdown; invalid options or data end with
    status 2.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    chosen = tuple(name for name in given.systems if given.chroma or name != "chroma")
    if not chosen:
        parser.error("no system is left to measure")
    print(f"Measured {report.environment()}.")
    options = measure.Options(
        name=given.set,
        path=given.path,
        systems=chosen,
        limit=given.limit,
        results=given.results,
        seed=given.seed,
        one_store=given.one_store,
        embedder=given.embedder,
        reader=given.reader,
    )
    try:
        measure.run(options)
    except (DataError, InvalidInput) as exc:
        parser.exit(2, f"{parser.prog}: {exc}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.retrieval", description=__doc__)
    parser.add_argument("set", choices=SETS)
    parser.add_argument(
        "path", type=Path, help="your copy: a JSON file, or for beam and realtalk a folder of chats"
    )
    parser.add_argument(
        "--limit", type=_count, metavar="N", help="at most N questions, drawn at random"
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="file for the result of each question, as JSON lines",
    )
    parser.add_argument(
        "--systems", type=_systems, default=systems.NAMES, help=f"some of {','.join(systems.NAMES)}"
    )
    parser.add_argument("--no-chroma", dest="chroma", action="store_false", help="leave out Chroma")
    parser.add_argument("--one-store", action="store_true", help="search all conversations at once")
    parser.add_argument(
        "--embedder", choices=EMBEDDERS, default="minilm", help="embedder for all systems"
    )
    parser.add_argument(
        "--reader",
        default="",
        metavar="COMMAND",
        help="program that answers questions from 1,000 tokens",
    )
    parser.add_argument("--seed", type=int, default=7, help="seed of the draw and of the bootstrap")
    return parser


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number of questions')
    return int(text)


def _systems(text: str) -> tuple[str, ...]:
    asked = text.split(",")
    unknown = [name for name in asked if name not in systems.NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(
            f'there is no system "{unknown[0]}"; there are {", ".join(systems.NAMES)}'
        )
    return tuple(name for name in systems.NAMES if name in asked)


if __name__ == "__main__":
    main(sys.argv[1:])
