"""Notes what a hook did among the operations that `memory stats` counts, above all how many tokens it gave a model."""

import contextlib
from pathlib import Path

from memories import events
from memories.agent.tokens import estimate_tokens
from memories.config import load_config
from memories.errors import ConfigError
from memories.identity import project as projects


def note(
    event: str, host: str, where: tuple[str, str | None], said: str, *, outcome: str = "ok", seconds: float
) -> None:
    """Append what a hook did.

    Args:
        event: Its event.
        host: The host that ran it.
        where: The working folder, and a namespace if one was named.
        said: What it put before the model.
        outcome: How it ended: `ok`, or the name of an error.
        seconds: How long it took.
    """
    folder, namespace = Path(where[0]), where[1]
    flags = {"namespace": namespace} if namespace else {}
    config = load_config(flags, folder=folder if folder.is_dir() else None, tell=lambda _: None)  # the hook told it
    found = None
    if config.events != events.OFF and config.project_detection:
        with contextlib.suppress(ConfigError, OSError):  # the names of projects can't be read, which doctor tells
            found = projects.identify(folder, record=False)
    events.note(
        config.home,
        f"hook.{event}",
        setting=config.events,
        namespace=config.namespace,
        agent=host,
        channel="hook",
        project=None if found is None else found.name,
        outcome=outcome,
        ms=round(seconds * 1000, 2),
        tokens=estimate_tokens(said) if said else 0,
    )
