"""The values of items: the text in them that is searched, and whether they meet a filter. Pure."""

from collections.abc import Callable, Mapping, Sequence
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from langgraph.store.base.embed import get_text_at_path

_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "$eq": eq, "$ne": ne, "$gt": gt, "$gte": ge, "$lt": lt, "$lte": le,
}  # fmt: skip


def text(value: dict[str, Any], paths: Sequence[str] | None) -> str:
    """Return what is searched of a value; empty if it has no words there.

    Args:
        value: The value.
        paths: Where, such as `text` or `messages[*].content`; None for `content` or, without it, all of the value.
    """
    if paths is None:
        told = _told(value.get("content") or value)
    else:
        found = (each for path in paths for each in ([_told(value)] if path == "$" else get_text_at_path(value, path)))
        told = "\n".join(each for each in found if each)
    return told if any(map(str.isalnum, told)) else ""


def _told(value: Any) -> str:
    """Return a value as text: the pairs of an object one a line, the entries of a list in a row."""
    if isinstance(value, dict):
        return "\n".join(f"{name}: {told}" for name, each in value.items() if (told := _told(each)))
    if isinstance(value, list):
        return ", ".join(filter(None, map(_told, value)))
    return "" if value is None else str(value)


def fits(value: Any, wanted: Mapping[str, Any]) -> bool:
    """Return whether a value meets a filter: each name has what is wanted there, or meets its operators.

    What is missing is None. Numbers are compared as numbers and texts as texts; what can't be compared does not fit.

    Raises:
        ValueError: There is no such operator.
    """
    return all(_fits(value.get(name) if isinstance(value, dict) else None, each) for name, each in wanted.items())


def _fits(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, Mapping):
        return bool(value == (list(wanted) if isinstance(wanted, tuple) else wanted))
    if not any(str(name).startswith("$") for name in wanted):
        return isinstance(value, dict) and fits(value, wanted)
    for name in wanted:
        if name not in _OPERATORS:
            raise ValueError(f"Unsupported operator: {name}")
    return all(_compares(_OPERATORS[name], value, other) for name, other in wanted.items())


def _compares(operator: Callable[[Any, Any], Any], value: Any, other: Any) -> bool:
    try:
        return bool(operator(value, other))
    except TypeError:
        return False
