"""Writes the tables of the docs that the program itself knows: `python tools/tables.py` after a
change of them.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from memories.answers.fields import ALWAYS, CREATED, HIT, KIND, MEMORY, TURN, VERSION, Field
from memories.search.filters import FILTERS

DOCS = Path(__file__).parent.parent / "docs"
VALUES = {"text": "text", "time": "time", "share": "0 to 1", "whole": "whole number", "flag": "`true` or `false`",
          "tags": "`KEY=VALUE`, several"}  # fmt: skip


def options() -> Iterable[tuple[str, ...]]:
    """Yield the rows of the options of `memory search`."""
    yield "option", "meaning"
    for row in FILTERS.values():
        cell = f"`{row.flag} {row.placeholder}`" if row.placeholder else f"`{row.flag}`"
        if row.default == "true":
            cell += f", `--no-{row.flag[2:]}`"
        yield cell, row.meaning


def query() -> Iterable[tuple[str, ...]]:
    """Yield the rows of the parameters of `GET /api/memories`."""
    yield "parameter", "value", "meaning"
    for row in FILTERS.values():
        values = ", ".join(f"`{choice}`" for choice in row.choices) or VALUES[row.kind]
        yield f"`{row.public_name}`", values, row.meaning


def fields(*rows: Field) -> Iterable[tuple[str, ...]]:
    """Yield the rows of fields of an answer."""
    yield "field", "there", "meaning"
    for row in rows:
        yield (
            f"`{row.name}`",
            "always" if row.default is ALWAYS else "unless it says nothing",
            row.about,
        )


TABLES: Mapping[str, Iterable[tuple[str, ...]]] = {
    "options of search": options(),
    "query of search": query(),
    "fields of a memory": fields(*MEMORY),
    "fields of a create": fields(*CREATED),
    "fields of a turn": fields(*TURN),
    "fields of a version": fields(*VERSION),
    "fields of a result": fields(KIND, *HIT),
}


def filled(page: str, tables: Mapping[str, str]) -> str:
    """Return a page with its tables as they are to be."""

    def table(found: re.Match[str]) -> str:
        return f"<!-- table: {found[1]} -->\n{tables[found[1]]}\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w ]+) -->\n.*?<!-- end -->", table, page, flags=re.DOTALL)


def rendered(rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown; its first row is the head."""
    head, *body = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
    ]
    return "\n".join([head, "|" + "---|" * (head.count(" | ") + 1), *body])


def pages() -> dict[Path, str]:
    """Return each page that has such a table, as it is to be."""
    tables = {name: rendered(rows) for name, rows in TABLES.items()}
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
    return {path: filled(text, tables) for path, text in texts.items() if "<!-- table: " in text}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
