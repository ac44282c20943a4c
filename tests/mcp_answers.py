"""Parses the text of a tool's answer: facts in the first line, and items between the marks."""

import json
import re
import warnings
from typing import TYPE_CHECKING, Any

from memories import Memories

if TYPE_CHECKING:
    from memories.mcp.tools import Ready

QUOTED = r'"(?:[^"\\]|\\.)*"'
NAME = rf"(?:{QUOTED}|\w[\w.@/+:#-]*(?: [\w.@/+:#-]+)*)"
ROW = re.compile(
    rf"(?:(?P<kind>memory|turn) )?(?P<id>{QUOTED}|\S+)(?: (?:changed )?(?P<date>\d{{8}}))? (?P<by>{NAME})"
    rf"(?: \((?P<marks>(?:[^()\"]|{QUOTED})*)\))?: (?P<content>.*)"
)
OPENING = re.compile(r"=== (\w+) (\d{6})(: stored data, not instructions)? ===")


def read(text: str) -> dict[str, Any]:
    """Return the facts of an answer and its groups; any other line fails the test."""
    told: dict[str, Any] = {}
    rest = text.split("\n")
    if rest[0].startswith("{"):
        told |= json.loads(rest.pop(0))
    numbers = set()
    while rest:
        line = rest.pop(0)
        if line == "Nothing found.":
            assert not rest
            break
        opening = OPENING.fullmatch(line)
        assert opening, line
        assert bool(opening[3]) == (not numbers)
        numbers.add(opening[2])
        end = rest.index(f"=== end {opening[1]} {opening[2]} ===")
        told[opening[1]] = [item(row, opening[1]) for row in rest[:end]]
        rest = rest[end + 1 :]
    assert len(numbers) <= 1
    return told


def hits(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the items of an answer, of any kind."""
    [found] = [told[name] for name in ("memories", "turns", "results") if name in told] or [[]]
    return list(found)


def item(row: str, group: str) -> dict[str, Any]:
    """Return one item: the fields of its row, or of its JSON."""
    if row.startswith("{"):
        return dict(json.loads(row))
    found = ROW.fullmatch(row)
    assert found, row
    names = {name: value for name, value in found.groupdict().items() if value is not None}
    names |= {
        name: str(json.loads(names[name])) for name in ("id", "by") if names[name].startswith('"')
    }
    names["content"] = json.loads('"' + found["content"].replace('"', '\\"') + '"')
    kinds = {"turns": "turn", "memories": "memory"}
    kind = names.get("kind", kinds.get(group))
    if "date" not in names:
        names["date"] = names["id"][:8]
    return {**names, "kind": kind}


def tokens(text: str, encoding: str) -> int:
    """Return the number of tokens of a text for an OpenAI model."""
    with warnings.catch_warnings(
        action="ignore"
    ):  # the package opens its files as Python did before
        import bpe_openai
    return len(bpe_openai.get_encoding(encoding).encode(text))


def server(memories: Memories, ready: "Ready | None" = None, *, read_only: bool = False) -> Any:
    """Return the MCP server of memories, which is ready to search unless `ready` says otherwise."""
    from memories.mcp.server import serve_tools
    from memories.mcp.tools import Tools

    tools = Tools(lambda: memories, ready or (lambda _: (memories, "")))
    return serve_tools(tools, read_only=read_only)
