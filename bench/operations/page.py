"""Write `bench/RESULTS.md` from the results of `python -m bench.operations`."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.operations.measures import SIZES
from bench.operations.systems import MODULES, NOT_RUN, load

RESULTS = Path(__file__).with_name("results.jsonl")
PAGE = Path(__file__).parents[1] / "RESULTS.md"
OURS = "memories"


class Line(NamedTuple):
    """A line of the table.

    Attributes:
        row: The row of the cases.
        measure: The measure of the cases.
        title: What readers see.
        remedy: The changes needed to match a system that is better than ours.
        is_less_better: Whether a lower value is better.
    """

    row: str
    measure: str
    title: str
    remedy: str = ""
    is_less_better: bool = False


def _less(row: str, measure: str, title: str, remedy: str = "") -> Line:
    return Line(row, measure, title, remedy, is_less_better=True)


_CREATE = (
    "A create embeds the text, compares it with all texts that resemble it, and waits for the disk; "
    "the texts of this row resemble each other. Fewer comparisons would be faster, but miss "
    "repetitions."
)
_SEARCH = (
    "A search embeds the question, ranks by words and vectors, and puts corrections first. A faster "
    "ranking in Python, or a ranking of fewer texts, would help."
)
_START = (
    "The MCP SDK, numpy and the model have to be loaded. A smaller client, or a server that keeps "
    "running, would help."
)
_SMALLER_MODEL = (
    "numpy, ONNX Runtime and the model take up most of it; a store that searches only by words needs "
    "none of them."
)
LINES = (
    Line("writes", "acknowledged", "8 agents × 25 writes at once: acknowledged"),
    Line("writes", "kept", "8 agents × 25 writes at once: kept, of those acknowledged"),
    Line("kills", "", "`kill -9` while writing: all acknowledged texts are kept"),
    Line("update", "old", "after an update: the old text is not answered"),
    Line("update", "new", "after an update: the new text is answered"),
    Line("told-again", "", "stored again with another value: the new text comes first"),
    Line("numbers", "", "texts that differ in a number: both are kept"),
    Line("speed", "stored", "1,000 different texts of one form: kept"),
    Line("repeated", "", "a text stored twice, in two sessions: kept once"),
    Line("erased", "", "after the most thorough deletion: the text is in no file"),
    Line("secrets", "", "secrets that are in no file"),
    Line("orders", "", "orders to the model: refused, or marked in the answer"),
    Line("projects", "out", "facts of another project: not among the best 5"),
    Line("projects", "labelled", "facts of another project: not among the best 5, or with its name"),
    Line(
        "needed", "any", "prompts with a needed fact among the best 5",
        "Vectors alone find as much here, in longer answers. A file contains all facts of the "
        "project, which works while there are few: these projects have about ten each.",
    ),
    Line(
        "needed", "all", "prompts with all needed facts among the best 5",
        "As above. We have not yet examined which prompts miss a fact because other facts share "
        "more words with them.",
    ),
    _less(
        "needed", "tokens", "tokens of an answer to a prompt (characters / 4)",
        "Each of our results begins with its id, its day and its writer, and marks around them say "
        "that they are data. OMEGA also answers with fewer results.",
    ),
    Line("german", "", "German questions answered among the best 5",
         "The packaged model reads English; `memory reembed --model e5` reads German."),
    Line("japanese", "", "Japanese questions answered among the best 5",
         "The packaged model reads English; `memory reembed --model e5` reads Japanese."),
    Line("changed-files", "", "a file changed: the answer says that the fact may no longer hold"),
    Line("copy", "", "export, and import into an empty home: texts that come back"),
    _less("tools", "tools", "tools",
          "Fewer tools with more arguments would leave a model just as many decisions."),
    _less("tools", "tokens", "tokens of names, descriptions, schemas of tools (characters / 4)",
          "Shorter descriptions or fewer tools would help."),
    *(
        _less("speed", f"{measure}, {size}", title.format(f"{size:,}"), remedy)
        for size in SIZES
        for measure, title, remedy in (
            ("create ms", "create among {}: median ms", _CREATE),
            ("create CPU", "create among {}: CPU", _CREATE),
            ("search ms", "search among {}: median ms", _SEARCH),
            ("search CPU", "search among {}: CPU", _SEARCH),
            ("start ms", "start and first search of {}: ms", _START),
            ("start CPU", "start and first search of {}: CPU", _START),
            ("memory", "memory with {}: MB", _SMALLER_MODEL),
            ("disk", "disk with {}: MB", "Vectors, a word index and a log take space too."),
        )
    ),
    _less("installed", "packages", "packages installed",
          "Most are those of the MCP SDK and of the server's page."),
    _less("installed", "megabytes", "MB installed", _SMALLER_MODEL),
)  # fmt: skip
_NOISE = 1.1  # a measurement counts as better if it is at least this many times better


class Sum(NamedTuple):
    """The cases of a line for one system, summed up; the mean of measurements."""

    value: float
    out_of: int

    @property
    def rate(self) -> float:
        """The share of a count, or the measured value."""
        return self.value / self.out_of if self.out_of else self.value

    def __str__(self) -> str:
        if self.out_of:
            return f"{self.value:.0f} of {self.out_of}"
        if self.value >= 10 or self.value == int(self.value):
            return f"{self.value:,.0f}"
        return f"{self.value:.1f}" if self.value >= 1 else f"{self.value:.2f}"


def read(file: Path = RESULTS) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the description of a run and its cases."""
    first, *cases = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return first, cases


def sum_up(cases: Iterable[dict[str, Any]], line: Line, system: str) -> Sum | None:
    """Return a system's result in a line; None if it has no such case."""
    own = [
        case
        for case in cases
        if (case["system"], case["row"], case.get("measure", ""))
        == (system, line.row, line.measure)
        and "value" in case
    ]
    if not own:
        return None
    out_of = sum(case["out_of"] for case in own)
    total = sum(case["value"] for case in own)
    return Sum(total if out_of else total / len(own), out_of)


def better_peers(cases: Sequence[dict[str, Any]], line: Line, names: Sequence[str]) -> list[str]:
    """Return the systems that are better than ours in a line, best first."""
    ours = sum_up(cases, line, OURS)
    if ours is None:
        return []
    better = []
    for name in names:
        peer = sum_up(cases, line, name)
        if peer is None or name == OURS:
            continue
        low, high = sorted((peer.rate, ours.rate))
        is_clear = bool(peer.out_of) or high > _NOISE * low
        is_better = peer.rate < ours.rate if line.is_less_better else peer.rate > ours.rate
        if is_clear and is_better:
            better.append((peer.rate, f"{name} ({peer})"))
    return [text for _, text in sorted(better, reverse=not line.is_less_better)]


def find_differences(cases: Sequence[dict[str, Any]], again: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each count that differs between two runs."""
    differences = []
    for name in MODULES:
        for line in LINES:
            first, second = sum_up(cases, line, name), sum_up(again, line, name)
            if first and second and first.out_of and first != second:
                differences.append(f"{name}, {line.title}: {first}, then {second}")
    return differences


def render(run: dict[str, Any], cases: Sequence[dict[str, Any]]) -> str:
    """Return the page."""
    names = [name for name in MODULES if any(case["system"] == name for case in cases)]
    parts = [_HEAD.format(**run)]
    if "note" in run:
        parts.append(f"{run['note']}\n")
    if "differences" in run:
        parts.append(_render_differences(run["differences"]))
    parts.append("## Where others are better\n")
    for line in LINES:
        if better := better_peers(cases, line, names):
            ours = sum_up(cases, line, OURS)
            text = f"- **{line.title}**: we {ours}; {', '.join(better)}. {line.remedy}"
            parts.append(text.rstrip())
    parts.append("\n## All rows\n")
    parts.append(f"| | {' | '.join(names)} |\n|---|{'--:|' * len(names)}")
    for line in LINES:
        cells = [str(sum_up(cases, line, name) or "–") for name in names]
        parts.append(f"| {line.title} | {' | '.join(cells)} |")
    parts.append("\n## The systems\n\n| system | version | remark |\n|---|---|---|")
    for name in names:
        version = next(case["version"] for case in cases if case["system"] == name)
        parts.append(f"| {name} | {version} | {load(name).remark} |")
    parts.append("\nThese systems don't run without a key, an LLM or a download:\n")
    parts += [f"- {name}: {need}" for name, need in NOT_RUN.items()]
    failures = [case for case in cases if "failed" in case]
    if failures:
        parts.append("\nRows that a system did not finish:\n")
        parts += [f"- {case['system']}, {case['row']}: {case['failed']}" for case in failures]
    return "\n".join([*parts, _TAIL])


def _render_differences(differences: Sequence[str]) -> str:
    """Return sentences about the counts of a second run."""
    if not differences:
        return "A second run gave the same counts.\n"
    listed = "\n".join(f"- {difference}" for difference in differences)
    return f"A second run gave the same counts except these, which depend on timing:\n\n{listed}\n"


_HEAD = """# How memories behave in operation

Do memories lose writes, answer with stale texts, or store secrets, and what do they cost? One
program gave each system the same inputs in the same order. Each system ran as its users start it:
over MCP, with a separate server for each agent. Measured on {date}; {machine}.

- "8 of 10" counts cases. "–" means that a row does not apply, or that filling a store of 10,000
  texts would have taken longer than five minutes.
- The machine was shared with other work, so times vary from run to run. CPU is the CPU
  time of a call in the server's processes, as a multiple of `python -c pass` in the same run; it
  varies less.
- The two plain baselines, a file and a table, run inside the program and need no server.
- Systems with local embeddings get the same model, all-MiniLM-L6-v2.
"""
_TAIL = r"""
## How to repeat it

```sh
make bench-operations          # ours and the plain baselines; takes some minutes
make bench-operations-peers    # all systems; takes about an hour; installs each in .bench/operations
python -m bench.operations --systems OMEGA --rows writes,kills
python -m bench.operations --systems OMEGA --results FILE --add    # replace these results in a file
python -m bench.operations.page FILE AGAIN    # write this page from the results of two runs
```

Peers need `npm` and the package indexes of Python and npm. The result of each case is in
[operations/results.jsonl](operations/results.jsonl), and each row is a function in
[operations/rows.py](operations/rows.py) or [operations/measures.py](operations/measures.py).

## How to add a system

Write an adapter like those in [operations/systems](operations/systems), of at most 80 lines. It
gives the system's packages, how to start its server, four calls (add, search, update, delete), and
how to read the stored texts from the system's files. Add it to `MODULES` in
[operations/systems/\_\_init\_\_.py](operations/systems/__init__.py).
"""


def main() -> None:
    """Write the page from the results of one run, compared with a second run if there is one."""
    files = [Path(argument) for argument in sys.argv[1:]] or [RESULTS]
    run, cases = read(files[0])
    if len(files) > 1:
        run["differences"] = find_differences(cases, read(files[1])[1])
    lines = [json.dumps(line, ensure_ascii=False) for line in (run, *cases)]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    PAGE.write_text(render(run, cases), encoding="utf-8")


if __name__ == "__main__":
    main()
