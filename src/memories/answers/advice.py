"""Adds the namespace and the store to the commands that messages suggest."""

import re
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
    r"scratchpad (?:pin|rebuild|show)|turns (?:forget|list|show))\b"
)
running_config: "ContextVar[Config | None]" = ContextVar("running_config", default=None)


def options_for(namespace: str, config: "Config | None" = None) -> str:
    """Return the options that a suggested command needs for a namespace in the current store.

    Args:
        namespace: The namespace.
        config: The settings; by default, those of the running command.
    """
    from memories.core.urls import store_option  # imported late: `--help` doesn't need it
    from memories.models import SHARED

    config = config or running_config.get()
    # Without the option, the command would use the namespace in the user's settings.
    is_default = config is None or config.sources["namespace"] == "default"
    option = "" if namespace == SHARED and is_default else f" -n {namespace}"
    return option if config is None else f"{option}{store_option(config)}"


def complete_commands(advice: str, config: "Config | None" = None) -> str:
    """Add a namespace and a store to the commands in a piece of advice.

    Advice that names a store stays unchanged; if it names a namespace, only the store is added.

    Args:
        advice: The advice.
        config: The settings with both; by default, those of the running command.
    """
    config = config or running_config.get()
    if config is None or " --store " in advice:
        return advice
    from memories.core.urls import store_option

    store = store_option(config)
    options = store if " -n " in advice else options_for(config.namespace, config)
    if not options:
        return advice

    def complete(found: re.Match[str]) -> str:
        if found[0].startswith('"'):
            return found[0]
        return f"{found[0]}{store if found['of_a_store'] else options}"

    return _COMMANDS.sub(complete, advice)


def complete_answer(answer: Mapping[str, Any], config: "Config | None" = None) -> dict[str, Any]:
    """Complete the commands in a response, and in the objects in its lists; see
    `complete_commands`.
    """
    completed: dict[str, Any] = {}
    for name, value in answer.items():
        if name in _FIELDS and isinstance(value, str):
            completed[name] = complete_commands(value, config)
        elif isinstance(value, list):
            completed[name] = [
                complete_answer(part, config) if isinstance(part, dict) else part for part in value
            ]
        else:
            completed[name] = value
    return completed
