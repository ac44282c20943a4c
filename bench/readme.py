"""`python -m bench.readme`: write the figures in README.md, from the results and pages that contain
them.

The figures of Memories and of systems that ran come from `bench/operations/results.jsonl`, and the
figures of longer measurements come from the tables in docs/. Statements about systems that did not
run come from their documentation and released packages.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.operations import page

ROOT = Path(__file__).parents[1]
_NOT_MEASURED = "–"

SYSTEMS = ("memories", "mem0", "claude-mem", "basic-memory", "mcp-memory-service")
_HEAD = ("", "Memories", *SYSTEMS[1:])
_DOCUMENTED_FIRST = (
    ("works without an LLM or key", "yes", "partly", "no", "yes", "yes"),
    ("who decides what to keep", "your agent, or you in a review", "an LLM", "an LLM",
     "your agent, or you", "your agent; hooks"),
    ("records sessions", "with `--capture`", "no", "always", "by plugins", "by hooks"),
    ("history", "every version, `--as-of`, undo", "partly", "no", "by git", "partly"),
    ("storage", "SQLite; PostgreSQL, Qdrant, Chroma, files", "about 25 vector stores",
     "SQLite, Chroma", "Markdown files", "SQLite, Cloudflare, Milvus"),
)  # fmt: skip
_MEASURED = {
    ("writes", "kept"): "acknowledged texts that are kept, when 8 agents write 200 at once",
    ("told-again", ""): "a fact is stored with a new value, and the new value ranks first",
    ("secrets", ""): "secrets removed before a text is written",
    ("erased", ""): "erased texts (`forget`) gone from every file",
    ("needed", "any"): "prompts whose top 5 results contain a needed fact",
    ("tools", "tokens"): "tokens in the tool list",
}
_DOCUMENTED_LAST = (
    ("main strength", "facts are not lost or mixed up", "SDKs, hosted platform",
     "summaries without set-up", "notes for you and Obsidian", "OAuth for claude.ai, ChatGPT"),
    ("licence", "Apache-2.0", "Apache-2.0", "Apache-2.0", "AGPL-3.0", "Apache-2.0"),
)  # fmt: skip


def main() -> None:
    """Write the tables into README.md."""
    file = ROOT / "README.md"
    file.write_text(update(file.read_text(encoding="utf-8")), encoding="utf-8")


def update(text: str) -> str:
    """Return the text of README.md with up-to-date tables."""
    for name, render in _TABLES.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}{render()}{end}{after}"
    return text


def render_figures() -> str:
    """Return the table of figures, each with the command that prints it."""
    kills = _find(
        "docs/reliability.md", r"kills, all .*? ([\d,]+) kills, ([\d,]+) writes .*? 0 lost"
    )
    cuts = _find("docs/reliability.md", r"power cuts \| (\d+) cuts, .*? ([\d,]+) writes .*? 0 lost")
    turns = _find(
        "docs/benchmarks.md",
        r"(?s)\nTurn level.*? any@1 \| any@5 .*?\n\| LoCoMo \| \*\*Memories\*\* \| [\d.]+ \| ([\d.]+) ",
    )
    search = _find(
        "docs/benchmarks.md",
        r"(?s)\| where the time goes, ms \|.*?\n\| search \| [\d.]+ \| [\d.]+ \| ([\d.]+) ",
    )
    lost = f"0 of {kills[1]} writes in {kills[0]} kills, 0 of {cuts[1]} in {cuts[0]} power cuts"
    right = (
        "in the LoCoMo benchmark, the right message is among the first five for "
        f"{float(turns[0]):.0f}% of the questions, without an LLM"
    )
    tokens = f"{_count('needed', 'tokens')} tokens on average over MCP, and the tool list {_count('tools', 'tokens')}"
    newer = f"the newer of two contradictory facts ranks first: {_count('told-again', '')}"
    milliseconds = f"{float(search[0]):.0f} ms"
    return f"""\
| | figure | measured in | printed by |
|---|---|---|---|
| No acknowledged write is lost | {lost} | [reliability](docs/reliability.md#figures) | `make torture` |
| It finds what was said | {right} | [benchmarks](docs/benchmarks.md#retrieval) | `python -m bench.retrieval locomo FILE` |
| It costs few tokens | a search response has {tokens} | [operations](bench/RESULTS.md) | `make bench-operations` |
| It notices corrections | {newer}; `--as-of` shows the past, and `rollback` undoes changes | [operations](bench/RESULTS.md) | `make bench-operations` |
| It is fast | a search of 100,000 memories takes {milliseconds} once the program is running | [benchmarks](docs/benchmarks.md#warm-search) | `python -m bench search --texts FILE` |
"""


def render_comparison() -> str:
    """Return the comparison with other memories."""
    measured = [
        (title, *(_count(row, measure, system) for system in SYSTEMS))
        for (row, measure), title in _MEASURED.items()
    ]
    return _render((_HEAD, *_DOCUMENTED_FIRST, *measured, *_DOCUMENTED_LAST))


_TABLES: dict[str, Callable[[], str]] = {
    "figures": render_figures,
    "comparison": render_comparison,
}


def _count(row: str, measure: str, system: str = page.OURS) -> str:
    """Return a system's result in a line of the operations benchmark."""
    _, cases = page.read()
    line = next(line for line in page.LINES if (line.row, line.measure) == (row, measure))
    return str(page.sum_up(cases, line, system) or _NOT_MEASURED)


def _find(file: str, pattern: str) -> tuple[str, ...]:
    """Return the groups of a pattern's match in a page.

    Raises:
        ValueError: The page has no such row.
    """
    match = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"))
    if match is None:
        raise ValueError(f"{file} has no row like {pattern}")
    return match.groups()


def _render(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body, ""])


if __name__ == "__main__":
    main()
