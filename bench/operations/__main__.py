"""`python -m bench.operations`: run the comparison and record each case; see `bench/RESULTS.md`."""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import corpus, report
from bench.operations import measures, model, page, rows, systems
from bench.operations.environments import NotInstalled
from bench.operations.server import Refused

_WITHOUT_PEERS = ("memories", "CLAUDE.md", "SQLite FTS5")
_ROWS = rows.ROWS | measures.MEASURES


def main() -> None:
    """Parse the options, run the rows and print the page's table."""
    options = _parser().parse_args()
    chosen = options.systems or (list(systems.MODULES) if options.peers else list(_WITHOUT_PEERS))
    cache = (corpus.CACHE / "operations").absolute()
    cache.mkdir(parents=True, exist_ok=True)
    run = {"date": time.strftime("%Y-%m-%d"), "machine": report.environment().partition(", ")[2]}
    other_cases = _read_others(options.results, chosen, options.rows) if options.add else []
    with options.results.open("w", encoding="utf-8") as stream:
        for line in (run, *other_cases):
            print(json.dumps(line, ensure_ascii=False), file=stream)
        for name in chosen:
            for line in _measure(name, options.rows, cache):
                print(json.dumps(line, ensure_ascii=False), file=stream, flush=True)
    print(page.render(*page.read(options.results)))


def _read_others(file: Path, names: list[str], chosen: list[str]) -> list[dict[str, Any]]:
    """Return the cases in a file of results that a run does not replace."""
    _, cases = page.read(file)
    return [case for case in cases if case["system"] not in names or case["row"] not in chosen]


def _measure(name: str, chosen: list[str], cache: Path) -> Iterator[dict[str, Any]]:
    """Yield the cases of a system."""
    try:
        is_peer = name not in _WITHOUT_PEERS
        system = systems.load(name)(cache, model.make(cache) if is_peer else None)
    except NotInstalled as exc:
        yield {"system": name, "version": "–", "row": "install", "failed": str(exc)}
        return
    for row in chosen:
        head = {"system": name, "version": system.version(), "row": row}
        start = time.monotonic()
        try:
            with rows.room(system, cache) as room:
                for case in _ROWS[row](room):
                    yield head | case._asdict()
        except Refused as exc:
            yield head | {"failed": str(exc)[:300]}
        seconds = time.monotonic() - start
        print(f"{name}: {row}, {seconds:.0f} s", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.operations", description=__doc__)
    parser.add_argument("--peers", action="store_true", help="run all systems, and install them")
    parser.add_argument("--systems", type=_systems, help=f"some of {', '.join(systems.MODULES)}")
    parser.add_argument(
        "--rows", type=_rows, default=list(_ROWS), help=f"some of {', '.join(_ROWS)}"
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(".bench/operations.jsonl"),
        help="file for the cases",
    )
    parser.add_argument(
        "--add", action="store_true", help="keep the cases of other systems and rows in the file"
    )
    return parser


def _systems(text: str) -> list[str]:
    try:
        return systems.names(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def _rows(text: str) -> list[str]:
    unknown = set(text.split(",")) - set(_ROWS)
    if unknown:
        raise argparse.ArgumentTypeError(f"no row is called {min(unknown)}")
    return text.split(",")


if __name__ == "__main__":
    main()
