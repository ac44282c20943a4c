"""What a session says about memory: who the agent is, whether memory is on, and how it is used."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from memories.errors import ConfigError
from memories.guard import validate

_log = logging.getLogger(__name__)
AUTONOMOUS, EXPLICIT = MODES = ("autonomous", "explicit")


class Settings(NamedTuple):
    """The settings of one module in one session.

    Attributes:
        enabled: Whether memory is on; None, which counts as no, if nobody said it, so that the user still may.
        capture: Whether what is said is captured; off unless someone says otherwise, and off if memory is.
        agent_identity: The namespace of the agent; None for that of the settings of Memories.
        mode: `autonomous`: the agent decides when it uses its memory, and its prompt has the prompt block.
            `explicit`: only when the user asks for it, and the prompt has nothing.
        delay_seconds: How long a session waits at most for what was not asked for: the prompt block, an event.
        block_tokens: How many tokens the prompt block may have.
        max_tokens: How many tokens a request may have; None for as many as the provider takes.
    """

    enabled: bool | None = None
    capture: bool = False
    agent_identity: str | None = None
    mode: str = AUTONOMOUS
    delay_seconds: float = 1.0
    block_tokens: int = 1_000
    max_tokens: int | None = None


def read(plan: Mapping[str, Any] | None, config: Mapping[str, Any] | None) -> Settings:
    """Return the settings of a module: what the session says, or else the module's configuration, or else the default.

    Args:
        plan: The whole mount plan, with `session.agent_identity` and `session.capabilities.memory` if it has them.
        config: The configuration of the module.

    Raises:
        ConfigError: A value is not acceptable.
    """
    session = _mapping((plan or {}).get("session"), "session")
    memory = _mapping(_mapping(session.get("capabilities"), "session.capabilities").get("memory"), _MEMORY)
    identity = {"agent_identity": session["agent_identity"]} if session.get("agent_identity") is not None else {}
    given: dict[str, Any] = {}
    for where, values in (("config", config or {}), (_MEMORY, memory), ("session", identity)):
        for name, value in values.items():
            if (
                name not in _CHECKS
            ):  # bundles are merged: what is left of another module's configuration stands here too
                _log.warning("%s.%s is no setting of memory; there are %s", where, name, ", ".join(_CHECKS))
                continue
            given[name] = _CHECKS[name](value, f"{where}.{name}")
    found = Settings(**given)
    return found._replace(capture=found.capture and found.enabled is not False)


_MEMORY = "session.capabilities.memory"


def _mapping(value: object, name: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a mapping, not {value!r}")
    return value


def _switch(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, not {value!r}")
    return value


def _identity(value: object, name: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a name such as bob, not {value!r}")
    try:
        return validate.namespace(value)
    except ValueError as exc:
        raise ConfigError(f"{name}: {exc}") from exc


def _mode(value: object, name: str) -> str:
    if value not in MODES:
        raise ConfigError(f"{name} must be {' or '.join(MODES)}, not {value!r}")
    return str(value)


def _seconds(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 60:
        raise ConfigError(f"{name} must be a number of seconds above 0, up to 60, not {value!r}")
    return float(value)


def _tokens(value: object, name: str) -> int | None:
    if value is None and name.endswith("max_tokens"):
        return None
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name} must be a whole number of tokens, 1 or more, not {value!r}")
    return value


_CHECKS: dict[str, Callable[[object, str], Any]] = {
    "enabled": _switch,
    "capture": _switch,
    "agent_identity": _identity,
    "mode": _mode,
    "delay_seconds": _seconds,
    "block_tokens": _tokens,
    "max_tokens": _tokens,
}
