"""Whether anchors notice what changed: claims about the older release of a package, checked against
the newer one.

Each package in `PACKAGES` has a pair of releases, source archives from the package index; `pip`
downloads the missing ones. Rules derive claims from the older release: that a file exists, that a
file defines a symbol, that a name has a value. Each claim becomes a memory in the working tree of
the older release, and the program finds its anchors. Then the tree is replaced by the newer
release, and the verdicts are compared with the truth.

The truth doesn't come from the code that computes the verdicts, but from the file system, Python's
own parser, and a reader of `key = value` lines. Claims about files that the parser can't read are
left out. Half of the packages were used for development; the figures come from the other half.

The figures:

- precision: of the verdicts `changed`, the share whose claim is false in the newer release.
- recall: of the claims that are false in the newer release, the share with the verdict `changed`.
- alerts: verdicts `changed` for each claim that became false.
- anchored: the share of the claims for which an anchor was found.
"""

import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

from bench import report
from memories import Draft, Memories, load_config
from memories.guard.origin import Place

PACKAGES = {
    "dev": """requests 2.25.0 2.31.0, flask 1.1.4 2.3.3, click 7.1.2 8.1.7, jinja2 2.11.3 3.1.3,
        httpx 0.18.2 0.26.0, attrs 20.3.0 23.2.0, rich 9.13.0 13.7.0, tqdm 4.50.0 4.66.1,
        marshmallow 3.10.0 3.20.1""",
    "test": """werkzeug 1.0.1 3.0.1, itsdangerous 1.1.0 2.1.2, urllib3 1.26.5 2.1.0,
        starlette 0.14.2 0.35.1, uvicorn 0.13.4 0.26.0, packaging 20.9 23.2, pluggy 0.13.1 1.4.0,
        tomlkit 0.7.2 0.12.3, markdown 3.3.4 3.5.2, pygments 2.8.1 2.17.2, tenacity 7.0.0 8.2.3,
        structlog 21.1.0 23.3.0, arrow 1.0.3 1.3.0, redis 3.5.3 5.0.1,
        boltons 20.2.1 23.1.1""",
}
Item = TypeVar("Item")
CLAIMS = 120  # maximum number per kind and package
ANCHORED = 1_000  # memories under the hook
_CONFIGS = (".toml", ".cfg", ".ini")
_SETTING = re.compile(
    r"\s*([A-Za-z][\w.-]{2,})\s*=\s*[\"']?([^\"'#;\[\]{}\n]{1,40}?)[\"']?\s*,?\s*"
)
_SENTENCES = {
    "path": ("Read {path} first.", "{path} explains it.", "It is in `{path}`."),
    "symbol": (
        "`{name}` is defined in {path}.", "{path} has {name}().", "Call {name} from {path}.",
    ),
    "value": ("{name} is {value} in {path}.", "In {path} {name} = {value}.",
              "`{name}` has the value `{value}`, see {path}."),
}  # fmt: skip


# Does the work of `memory hook user-prompt` in a separate process, and prints the processor time.
_ANSWER = """
import json, sys, time
from memories.hooks.model_context import build_hook_context
from memories.hooks.recall_strategy import RecallRequest
place, prompt = json.loads(sys.argv[1])
context = build_hook_context(RecallRequest(tuple(place), prompt, time.monotonic() + 30))
print(json.dumps([time.process_time(), context.text]))
"""


class Claim(NamedTuple):
    """A claim about a release, and its sentence."""

    kind: str
    path: str
    name: str
    value: str
    text: str


def run(folder: Path) -> None:
    """Measure the verdicts on all packages, and the cost of anchors for a hook."""
    report.heading("Anchors and what changed")
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for half, packages in PACKAGES.items():
        for package in packages.split(","):
            name, old, new = package.split()
            trees = [_release(folder, name, version) for version in (old, new)]
            if None in trees:
                report.note(f"Left out: {name}, whose archives can't be downloaded.")
                continue
            for claim, is_anchored, is_changed, is_false in _judge(name, *trees):
                count = counts[half, claim.kind]
                count["claims"] += 1
                count["anchored"] += is_anchored
                count["false"] += is_false
                count["alerts"] += is_changed
                count["right"] += is_changed and is_false
    rows = []
    for half in PACKAGES:
        kinds = {kind: counts[half, kind] for kind in _SENTENCES}
        total = sum(kinds.values(), Counter[str]())
        rows += [_row(f"{half}, {kind}", count) for kind, count in kinds.items()]
        rows.append(_row(f"**{half}, all**", total))
    columns = ("claims", "anchored", "became false", "precision", "recall", "alerts")
    report.table(("packages", *columns), rows)
    _measure_hook()


def _row(name: str, count: Mapping[str, int]) -> tuple[str, ...]:
    def share(part: str, whole: str) -> str:
        return f"{count[part] / count[whole]:.3f}" if count[whole] else "-"

    return (
        name, f"{count['claims']:,}", share("anchored", "claims"), f"{count['false']:,}",
        share("right", "alerts"), share("right", "false"), share("alerts", "false"),
    )  # fmt: skip


# --- releases


def _release(folder: Path, name: str, version: str) -> Path | None:
    """Return the folder of a release, which is downloaded if necessary; None if that fails."""
    tree = folder / f"{name}-{version}"
    if tree.is_dir():
        return tree
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            ":all:",
        ]
        subprocess.run([*command, "-d", scratch, f"{name}=={version}"], check=False, timeout=600)
        for archive in Path(scratch).glob("*.tar.gz"):
            with tarfile.open(archive) as packed:
                packed.extractall(f"{scratch}/tree", filter="data")
            [top] = Path(scratch, "tree").iterdir()
            shutil.copytree(top, tree)
            return tree
    return None


# --- claims


def _claims(tree: Path, chance: random.Random) -> Iterator[Claim]:
    """Yield claims about a release, up to `CLAIMS` of each kind."""
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    names = [path.relative_to(tree).as_posix() for path in files]
    usable = [name for name in names if re.fullmatch(r"[\w./+-]+", name)]
    symbols: list[tuple[str, str]] = []
    values: list[tuple[str, str, str]] = []
    for name in usable:
        if name.endswith(".py"):
            parsed = _parse(tree / name)
            symbols += [(name, symbol) for symbol in sorted(_symbols(parsed))] if parsed else []
            values += [(name, *pair) for pair in sorted(_constants(parsed))] if parsed else []
        elif name.endswith(_CONFIGS):
            values += [(name, *pair) for pair in sorted(_settings(tree / name))]
    for path in _sample(usable, chance):
        yield _claim("path", chance, path)
    for path, symbol in _sample(symbols, chance):
        yield _claim("symbol", chance, path, symbol)
    for path, symbol, value in _sample(values, chance):
        yield _claim("value", chance, path, symbol, value)


def _claim(kind: str, chance: random.Random, path: str, name: str = "", value: str = "") -> Claim:
    sentence = chance.choice(_SENTENCES[kind])
    return Claim(kind, path, name, value, sentence.format(path=path, name=name, value=value))


def _sample(items: Sequence[Item], chance: random.Random) -> Sequence[Item]:
    return chance.sample(items, min(CLAIMS, len(items)))


def _parse(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_text("utf-8", "replace"))
    except (SyntaxError, ValueError, OSError):
        return None


def _symbols(module: ast.Module) -> set[str]:
    """Return the functions, classes and assigned names of a module, methods included."""
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                names |= {
                    part.id if isinstance(part, ast.Name) else part.attr
                    for part in ast.walk(target)
                    if isinstance(part, ast.Name | ast.Attribute)
                    and isinstance(part.ctx, ast.Store)
                }
    return {name for name in names if len(name) > 3 and not name.startswith("__")}


def _constants(module: ast.Module) -> set[tuple[str, str]]:
    """Return the names that are given a number, a version or a word, with the value."""
    pairs: set[tuple[str, str]] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = node.value.value
            is_plain = isinstance(value, int | float) or (
                isinstance(value, str) and re.fullmatch(r"[\w.+-]{2,30}", value)
            )
            if is_plain and isinstance(targets[0], ast.Name):
                pairs.add((targets[0].id, str(value)))
    return {pair for pair in pairs if len(pair[0]) > 3}


def _settings(file: Path) -> set[tuple[str, str]]:
    """Return the settings of a configuration file, with the value."""
    lines = file.read_text("utf-8", "replace").splitlines()
    matches = [match for match in map(_SETTING.fullmatch, lines) if match]
    return {(match[1], match[2].strip()) for match in matches if match[2].strip()}


def _is_true(claim: Claim, tree: Path) -> bool | None:
    """Return whether a claim is true of a release; None if its file can't be read."""
    file = tree / claim.path
    if claim.kind == "path" or not file.is_file():
        return file.is_file()
    if not claim.path.endswith(".py"):
        return (claim.name, claim.value) in _settings(file)
    parsed = _parse(file)
    if parsed is None:
        return None
    if claim.kind == "symbol":
        return claim.name in _symbols(parsed)
    return (claim.name, claim.value) in _constants(parsed)


# --- verdicts


def _judge(name: str, old: Path, new: Path) -> Iterator[tuple[Claim, bool, bool, bool]]:
    """Yield each claim, whether it has an anchor, whether its verdict is `changed`, and whether it
    became false.
    """
    claims = list(dict.fromkeys(_claims(old, random.Random(name))))
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch, "tree")
        place = Place(name, "main", tree)
        config = load_config({"store": f"sqlite:///{scratch}/m.db"})._replace(home=Path(scratch))
        with Memories(embedder="none", config=config, place=lambda: place) as memories:
            shutil.copytree(old, tree)
            drafts = [Draft(claim.text) for claim in claims]
            created = memories.create_many(drafts, force=True)
            shutil.rmtree(tree)
            shutil.copytree(new, tree)
            stored = [made.memory for made in created if made.memory is not None]
            for claim, memory in zip(claims, memories.judge(stored), strict=True):
                is_true = _is_true(claim, new)
                if is_true is None:
                    continue
                is_changed = memory.verdict is not None and memory.verdict.word == "changed"
                if os.environ.get("BENCH_ROT_SHOW") and is_changed is is_true:
                    print(json.dumps([claim, memory.anchors, is_changed]))
                yield claim, bool(memory.anchors), is_changed, not is_true


# --- the cost for a hook


def _measure_hook(rounds: int = 15) -> None:
    """Print the processor time of a prompt's hook with anchored memories, and with others."""
    with tempfile.TemporaryDirectory() as scratch:
        runs = {anchored: _hook(Path(scratch), anchored=anchored) for anchored in (False, True)}
        times: dict[bool, list[float]] = {False: [], True: []}
        for number in range(rounds + 1):
            for anchored, ask in runs.items():
                seconds = ask(number)
                if number:  # the first run fills the caches
                    times[anchored].append(seconds * 1000)
    plain, anchored_ms = median(times[False]), median(times[True])
    report.note(
        f"A prompt's hook over {ANCHORED:,} memories takes {plain:.0f} ms of processor time without "
        f"anchors and {anchored_ms:.0f} ms with them: {anchored_ms - plain:+.1f} ms (medians of "
        f"{rounds}). The tree changes before each."
    )


def _hook(scratch: Path, *, anchored: bool) -> Callable[[int], float]:
    """Return what changes the tree, runs the hook and returns its processor time."""
    name = "anchored" if anchored else "plain"
    top, home = scratch / name / "top", scratch / name / "home"
    (top / "services").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(top)], check=True, timeout=60)
    for number in range(100):
        ports = "".join(f"port_{number}_{port} = {port + 4000}\n" for port in range(10))
        (top / "services" / f"s{number}.toml").write_text(ports + "# filler\n" * 400)
    environment = {
        **os.environ,
        "MEMORY_HOME": str(home),
        "HOME": str(scratch),
        "MEMORY_SERVE": "off",
    }

    def memory(*arguments: str, stdin: str) -> str:
        command = [sys.executable, "-m", "memories", *arguments]
        done = subprocess.run(
            command, input=stdin, env=environment, cwd=top, text=True, capture_output=True,
            check=True, timeout=600,
        )  # fmt: skip
        return done.stdout

    lines = [
        f"The service s{number} listens on port_{number}_{port} = {port + 4000}, see "
        f"services/s{number}.toml"
        for number in range(100)
        for port in range(ANCHORED // 100)
    ]
    options = [] if anchored else ["--no-anchors"]
    memory("create", "--lines", "-", "--force", *options, stdin="\n".join(lines))

    def ask(number: int) -> float:
        (top / "services" / f"s{number}.toml").write_text("changed = 1\n")
        prompt = f"On which port does the service s{number} listen?"
        place = [str(home), str(top), f"claude-code.s{number}", None]
        command = [sys.executable, "-c", _ANSWER, json.dumps([place, prompt])]
        done = subprocess.run(
            command, env=environment, cwd=top, capture_output=True, check=True, timeout=600
        )
        seconds, shown = json.loads(done.stdout)
        assert ("no longer contains" in shown) is anchored, shown
        return float(seconds)

    return ask
