"""Adds the options of the running command to the commands that messages suggest."""

import re
import shlex
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memories.settings import Config

_FIELDS = ("error", "hint", "note", "remedy")  # response fields whose text may suggest commands
# Text in quotes comes from the user, so it isn't changed.
_COMMANDS = re.compile(
    r'"[^"]*"|\bmemory (?:'
    "(?P<of_a_store>doctor|migrate|namespaces(?: merge| rename)?|reembed|restore(?= FILE))|"
    "confirm|create|delete|edit|export|forget|get|import|list|log|projects|restore|rollback|search|"
    "tags|tidy|update|verify|review(?: accept| edit| list| reject)?|"
    r"scratchpad (?:pin|rebuild|show)|turns (?:forget|list))\b"
)
running_config: "ContextVar[Config | None]" = ContextVar("running_config", default=None)


def options_for(namespace: str) -> str:
    """Return the options that a suggested command needs for a namespace in the current store."""
    from memories.core.urls import store_option  # imported late: `--help` doesn't need it
    from memories.models import SHARED

    config = running_config.get()
    option = "" if namespace == SHARED else f" -n {shlex.quote(namespace)}"
    return option if config is None else f"{option}{store_option(config)}"


def complete_commands(advice: str) -> str:
    """Add the running command's namespace and store to the commands in a piece of advice.

    Advice that names a store stays unchanged; if it names a namespace, only the store is added.
    """
    config = running_config.get()
    if config is None or " --store " in advice:
        return advice
    store = options_for("shared")
    options = store if " -n " in advice else options_for(config.namespace)
    if not options:
        return advice

    def complete(found: re.Match[str]) -> str:
        if found[0].startswith('"'):
            return found[0]
        return f"{found[0]}{store if found['of_a_store'] else options}"

    return _COMMANDS.sub(complete, advice)


def complete_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the commands in a response, and in the objects in its lists."""
    completed: dict[str, Any] = {}
    for name, value in answer.items():
        if name in _FIELDS and isinstance(value, str):
            completed[name] = complete_commands(value)
        elif isinstance(value, list):
            completed[name] = [
                complete_answer(part) if isinstance(part, dict) else part for part in value
            ]
        else:
            completed[name] = value
    return completed
