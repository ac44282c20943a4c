"""The figures of a hook that `memory stats` counts, above all how many tokens it gave a model."""

import contextlib
from pathlib import Path
from typing import Any

from memories.config import load_config
from memories.context.tokens import estimate_tokens
from memories.core import events
from memories.errors import ConfigError
from memories.identity import project as projects
from memories.settings import Config


def figures_of(config: Config, folder: str, text: str = "") -> dict[str, Any]:
    """Return the figures of a hook, as arguments of `events.note`.

    Args:
        config: The settings.
        folder: Where the agent works.
        text: The text that it put before the model.
    """
    project = None
    if config.events != events.OFF and config.project_detection:
        with contextlib.suppress(
            ConfigError, OSError
        ):  # the names of projects can't be read; doctor reports it
            project = projects.identify(Path(folder), record=False)
    return {
        "home": str(config.home),
        "setting": config.events,
        "namespace": config.namespace,
        "project": None if project is None else project.name,
        "tokens": estimate_tokens(text) if text else 0,
    }


def figures_of_silence(folder: str, namespace: str | None) -> dict[str, Any]:
    """Return the figures of a hook that put nothing before a model.

    Args:
        folder: Where the agent works.
        namespace: A namespace, if one was named.
    """
    flags = {"namespace": namespace} if namespace else {}
    here = Path(folder) if Path(folder).is_dir() else None
    return figures_of(
        load_config(flags, folder=here, tell=lambda _: None), folder
    )  # the hook has reported it
