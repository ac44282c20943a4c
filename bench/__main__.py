"""`python -m bench`: run one benchmark or all of them, and print tables in markdown; see
`bench/README.md`.
"""

import argparse
import os
import sys
from pathlib import Path
from types import ModuleType

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # set before numpy is imported: as in the command, and comparable across machines

from bench import (
    agents_memory,
    agents_stores,
    calibration,
    capture,
    cold,
    context,
    conversation,
    corrections,
    duplicates,
    floor,
    hooks,
    hot,
    identities,
    languages,
    long,
    relevance,
    report,
    reworded,
    rot,
    scale,
    search,
    serve,
    sessions,
    stores,
    suspicion,
    tidy,
    turns,
)
from bench.retrieval import measure, systems
from bench.retrieval.datasets import SETS, DataError
from bench.retrieval.vectors import EMBEDDERS

_WHAT = {
    "cold": ("cold commands",),
    "hot": ("hot tier",),
    "hooks": ("hooks",),
    "agents": ("agents",),
    "agents-memory": ("agents' memory",),
    "agents-stores": ("agents' stores",),
    "capture": ("capture",),
    "search": ("warm search",),
    "disk": ("disk",),
    "turns": ("turns",),
    "conversation": ("conversation",),
    "long": ("long texts",),
    "stores": ("stores",),
    "serve": ("server",),
    "scale": ("growth",),
    "identities": ("identities",),
    "speed": ("cold commands", "warm search", "turns", "conversation", "long texts"),
    "locomo": ("LoCoMo",),
    "context": ("contexts",),
    "floor": ("noise floor",),
    "calibration": ("calibration",),
    "relevance": ("relevance",),
    "duplicates": ("duplicates",),
    "suspicion": ("suspicious texts",),
    "languages": ("languages",),
    "corrections": ("corrections",),
    "reworded": ("reworded pairs",),
    "rot": ("what changed",),
    "tidy": ("proposals",),
    "all": (
        "cold commands",
        "warm search",
        "turns",
        "conversation",
        "long texts",
        "LoCoMo",
        "noise floor",
        "calibration",
        "duplicates",
        "suspicious texts",
    ),
}
_OF_LOCOMO = ("LoCoMo", "noise floor", "calibration", "relevance")  # what needs its conversations
_LOCOMO = Path("../shared/data/locomo-dev.json")
_CLIENTS = Path(os.environ.get("MEMORY_TEST_CLIENTS", ".bench/clients/node_modules"))
_BEAM = Path("../shared/data/beam-100k-dev")


def main() -> None:
    """Parse the options and run the requested benchmarks."""
    given = _parser().parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # a long run prints each table when it is finished
    print(f"Measured {report.environment()}.")
    for part in _WHAT[given.what]:
        data = {
            "duplicates": None,
            "corrections": None,
            "reworded pairs": None,
            "long texts": None,
            "suspicious texts": None,
            "languages": None,
            "contexts": None,
            "hot tier": None,
            "agents": None,
            "agents' memory": None,
            "agents' stores": None,
            "capture": None,
            "what changed": None,
            "proposals": None,
            **dict.fromkeys(_OF_LOCOMO, given.locomo),
        }.get(part, given.texts)
        if data is None or _present(data, part):
            _measure(part, given)


def _measure(part: str, given: argparse.Namespace) -> None:
    match part:
        case "cold commands" | "hooks" | "hot tier" | "agents" | "what changed":
            _processes(part, given)
        case "warm search" | "disk":
            queries, timed = given.queries or search.QUERIES, given.timed or search.TIMED
            run = search.run if part == "warm search" else search.run_disk
            run(search.Options(given.texts, given.sizes, queries, timed, given.peers))
        case "turns":
            turns.run(given.texts, max(given.sizes), given.timed or search.TIMED)
        case "conversation":
            conversation.run(given.texts, max(given.sizes), given.endpoint)
        case "growth" | "identities":
            _growth(given, scale if part == "growth" else identities)
        case "stores" | "server":
            _stores(part, given)
        case "contexts" | "LoCoMo":
            _contexts(given) if part == "contexts" else _locomo(
                given.locomo, given.embedder, chroma=given.peers
            )
        case "noise floor" | "calibration" | "relevance":
            _constants(part, given)
        case (
            "duplicates"
            | "corrections"
            | "reworded pairs"
            | "languages"
            | "long texts"
            | "suspicious texts"
            | "agents' memory"
            | "agents' stores"
            | "capture"
            | "proposals"
        ):
            _without_data(part)


def _processes(part: str, given: argparse.Namespace) -> None:
    """Measure whole processes relative to `python -c pass`."""
    if part == "hot tier":
        hot.run(given.rounds)
        return
    if part == "what changed":
        rot.run(given.releases)
        return
    if part == "agents":
        sessions.run(sessions.Options(given.clients, given.agent, given.rounds))
        return
    module = cold if part == "cold commands" else hooks
    module.run(module.Options(given.texts, given.cold_memories, given.rounds))


def _growth(given: argparse.Namespace, of: ModuleType) -> None:
    """Measure what grows: at the sizes that are given, or at its own."""
    sizes = of.SIZES if given.sizes == search.SIZES else given.sizes
    of.run(given.texts.read_text().splitlines(), sizes, given.timed or of.TIMED)


def _stores(part: str, given: argparse.Namespace) -> None:
    if part == "server":
        serve.run(given.texts, given.sizes, given.rounds)
        return
    queries, timed = given.queries or stores.QUERIES, given.timed or stores.TIMED
    stores.run(stores.Options(given.texts, given.sizes, given.stores, queries, timed))


def _without_data(part: str) -> None:
    if part == "long texts":
        long.run(long.ROUNDS)
        return
    if part in ("agents' memory", "agents' stores"):
        (agents_memory if part == "agents' memory" else agents_stores).run()
        return
    if part in ("capture", "proposals"):
        (capture if part == "capture" else tidy).run()
        return
    if part == "languages":
        languages.run()
        return
    if part == "suspicious texts":
        suspicion.run()
        return
    heading, module = {
        "duplicates": ("Duplicates and corrections", duplicates),
        "corrections": ("Corrections in a search", corrections),
        "reworded pairs": ("Reworded pairs", reworded),
    }[part]
    report.heading(heading)
    print("```")  # plain text, in columns
    module.main()
    print("```")


def _locomo(file: Path, embedder: str, *, chroma: bool) -> None:
    """Measure retrieval with one namespace per conversation, and with all conversations in one
    namespace.
    """
    chosen = tuple(name for name in systems.NAMES if chroma or name != "chroma")
    for one_store in (False, True):
        try:
            measure.run(
                measure.Options("locomo", file, chosen, one_store=one_store, embedder=embedder)
            )
        except DataError as exc:
            _parser().exit(2, f"python -m bench: {exc}\n")


def _contexts(given: argparse.Namespace) -> None:
    """Measure every available data set."""
    paths = {name: getattr(given, name) for name in SETS}
    for name, path in paths.items():
        if path is None or not path.exists():
            report.note(f"Left out: {name}, because there is no {path or 'path'}.")
            continue
        try:
            context.run(context.Options(name, path, chroma=given.peers))
        except DataError as exc:
            _parser().exit(2, f"python -m bench: {exc}\n")


def _constants(part: str, given: argparse.Namespace) -> None:
    """Fit the constants of an embedder, or measure the order by relevance."""
    if part == "relevance":
        report.heading("Relevance")
        relevance.run(given.locomo, given.embedder)
    elif part == "noise floor":
        report.heading("Noise floor")
        floor.run(given.locomo, given.embedder)
    else:
        data = {"locomo": given.locomo} | ({"beam": given.beam} if given.beam.is_dir() else {})
        calibration.run(data, given.embedder)


def _present(file: Path, part: str) -> bool:
    if not file.is_file():
        report.note(
            f"Left out: {part}, because there is no {file} (bench/README.md says where to get it)."
        )
    return file.is_file()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="?", default="all", choices=_WHAT)
    parser.add_argument(
        "--texts",
        type=Path,
        default=Path("../shared/data/texts.txt"),
        help="file of real texts, one per line",
    )
    parser.add_argument(
        "--locomo",
        type=Path,
        default=_LOCOMO,
        help="JSON file of LoCoMo conversations, as published",
    )
    parser.add_argument("--beam", type=Path, default=_BEAM, help="folder of BEAM chats")
    parser.add_argument("--realtalk", type=Path, help="folder of REALTALK chats, for contexts")
    parser.add_argument(
        "--longmemeval", type=Path, help="JSON file of LongMemEval, as published; for contexts"
    )
    parser.add_argument(
        "--embedder",
        choices=EMBEDDERS,
        default="minilm",
        help="embedder for LoCoMo, the noise floor and the calibration",
    )
    parser.add_argument(
        "--sizes",
        type=_sizes,
        default=search.SIZES,
        help="numbers of memories for warm search and stores, such as 10000,100000",
    )
    parser.add_argument(
        "--queries", type=int, help="number of held-out texts for recall; default 1500, stores: 500"
    )
    parser.add_argument(
        "--timed", type=int, help="number of those texts that are timed; default 500, stores: 100"
    )
    parser.add_argument(
        "--cold-memories",
        type=int,
        default=cold.MEMORIES,
        help="number of memories for cold commands",
    )
    parser.add_argument(
        "--releases",
        type=Path,
        default=Path(".bench/releases"),
        help="folder of source archives, for rot",
    )
    parser.add_argument(
        "--clients", type=Path, default=_CLIENTS, help="folder node_modules with the agents"
    )
    parser.add_argument(
        "--agent",
        default="claude-code",
        help="the agent to run: claude-code, codex, gemini or opencode",
    )
    parser.add_argument(
        "--rounds", type=int, default=20, help="how often each cold command or session runs"
    )
    parser.add_argument(
        "--endpoint",
        default="",
        help="different memory for conversation, such as chroma-mcp://127.0.0.1:8000",
    )
    parser.add_argument(
        "--stores", type=_kinds, help="stores to measure, such as sqlite,chroma; by default all"
    )
    parser.add_argument(
        "--no-peers", dest="peers", action="store_false", help="leave out Chroma and sqlite-vec"
    )
    return parser


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(","))
    if not set(kinds) <= set(stores.KINDS):
        raise argparse.ArgumentTypeError(f"choose from {', '.join(stores.KINDS)}")
    return kinds


if __name__ == "__main__":
    main()
