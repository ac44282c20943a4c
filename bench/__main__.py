"""`python -m bench`: run one benchmark or all of them, and print tables in markdown; see `bench/README.md`."""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: as in the command, and comparable between machines

from bench import calibration, cold, conversation, duplicates, floor, report, search, turns
from bench.retrieval import measure, systems
from bench.retrieval.datasets import DataError

_WHAT = {
    "cold": ("cold commands",),
    "search": ("warm search",),
    "turns": ("turns",),
    "conversation": ("conversation",),
    "speed": ("cold commands", "warm search", "turns", "conversation"),
    "locomo": ("LoCoMo",),
    "floor": ("noise floor",),
    "calibration": ("calibration",),
    "duplicates": ("duplicates",),
    "all": (
        "cold commands",
        "warm search",
        "turns",
        "conversation",
        "LoCoMo",
        "noise floor",
        "calibration",
        "duplicates",
    ),
}
_LOCOMO = Path("../shared/data/locomo-dev.json")
_BEAM = Path("../shared/data/beam-100k-dev")


def main() -> None:
    """Read the options and run what is asked for."""
    given = _parser().parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # a long run shows its tables as they come
    print(f"Measured {report.environment()}.")
    for part in _WHAT[given.what]:
        match part:
            case "cold commands" if _present(given.texts, part):
                cold.run(cold.Options(given.texts, given.cold_memories, given.rounds))
            case "warm search" if _present(given.texts, part):
                search.run(search.Options(given.texts, given.sizes, given.queries, given.timed, given.peers))
            case "turns" if _present(given.texts, part):
                turns.run(given.texts, max(given.sizes), given.timed)
            case "conversation" if _present(given.texts, part):
                conversation.run(given.texts, max(given.sizes))
            case "LoCoMo" if _present(given.locomo, part):
                _locomo(given.locomo, chroma=given.peers)
            case "noise floor" if _present(given.locomo, part):
                report.heading("Noise floor")
                floor.run(given.locomo)
            case "calibration" if _present(given.locomo, part):
                files = {"locomo": given.locomo} | ({"beam": given.beam} if given.beam.is_dir() else {})
                calibration.run(files)
            case "duplicates":
                report.heading("Duplicates and corrections")
                print("```")  # plain text, in columns
                duplicates.main()
                print("```")


def _locomo(file: Path, *, chroma: bool) -> None:
    """Measure retrieval with each conversation in a namespace of its own, and with all in one."""
    chosen = tuple(name for name in systems.NAMES if chroma or name != "chroma")
    for one_store in (False, True):
        try:
            measure.run(measure.Options("locomo", file, chosen, one_store=one_store))
        except DataError as exc:
            _parser().exit(2, f"python -m bench: {exc}\n")


def _present(file: Path, part: str) -> bool:
    if not file.is_file():
        report.note(f"Left out: {part}, for there is no {file} (bench/README.md says where to get it).")
    return file.is_file()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="?", default="all", choices=_WHAT)
    parser.add_argument("--texts", type=Path, default=Path("../shared/data/texts.txt"), help="real texts, one a line")
    parser.add_argument("--locomo", type=Path, default=_LOCOMO, help="LoCoMo conversations as published, JSON")
    parser.add_argument("--beam", type=Path, default=_BEAM, help="chats of BEAM, a folder")
    parser.add_argument("--sizes", type=_sizes, default=search.SIZES, help="memories in warm search: 10000,100000")
    parser.add_argument("--queries", type=int, default=search.QUERIES, help="held-out texts that recall is measured by")
    parser.add_argument("--timed", type=int, default=search.TIMED, help="how many of them time is measured by")
    parser.add_argument("--cold-memories", type=int, default=cold.MEMORIES, help="memories under the cold commands")
    parser.add_argument("--rounds", type=int, default=20, help="how often each cold command runs")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave out Chroma and sqlite-vec")
    return parser


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


if __name__ == "__main__":
    main()
