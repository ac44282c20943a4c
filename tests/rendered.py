"""Reads a rendered context as a model would."""

import re
from typing import NamedTuple

from memories.context.rendering import GAP

_ITEM = re.compile(r'((?:- )?(?:"[^"]*"|[^\W_])(?:"[^"]*"|[^":])*): ?(.*)')  # a memory or a turn


class Shown(NamedTuple):
    """An item in a rendered context: the head of its line, and its text."""

    head: str
    text: str


def read(prompt: str, boundary: str) -> list[Shown]:
    """Return the memories and turns in a rendered context, distinguished as a model would.

    Raises:
        ValueError: A line is malformed, or the block has no end.
    """
    rows = prompt.split("\n")
    if not rows[0].startswith(f"=== stored data {boundary}: "):
        return []
    end = 1
    while end < len(rows) and not rows[end].startswith("==="):
        end += 1
    if end == len(rows) or not rows[end].startswith(f"=== end of {boundary}"):
        raise ValueError("the block has no end")
    items: list[Shown] = []
    for row in rows[1:end]:
        match = _ITEM.fullmatch(row)
        if row.startswith("| ") and items:
            items[-1] = items[-1]._replace(text=f"{items[-1].text}\n{row[2:]}")
        elif row.startswith(("# ", GAP)):
            continue
        elif match:
            items.append(Shown(match[1], match[2]))
        else:
            raise ValueError(f"no line can look like this: {row}")
    return items
