"""The chat's settings, from a `.env` file and from the environment, which takes precedence."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from memories.config import registers
from memories.core import trust
from memories.core.urls import is_loopback
from memories.errors import ConfigError
from memories.guard.validate import shown
from memories.settings import Secret

DEFAULT_MODEL = "kimi-k3"
KEY, BASE = "MOONSHOT_API_KEY", "MOONSHOT_API_BASE"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HARMLESS = ("MEMCLI_USER_ID", "MEMCLI_THREAD_ID")
_FOR_TRACING = ("LANGSMITH_", "LANGCHAIN_")  # prefixes of the names of LangSmith's variables
_RECALLS = ("recency", "search")
_DEFAULT_SECONDS = "60"


class Settings(NamedTuple):
    """The chat's settings.

    Attributes:
        root: The folder in which `data` is written.
        user_id: The user.
        thread_id: The user's session.
        key: The key for Moonshot's API.
        base: The API's URL, if it is not Moonshot's.
        model: The model's name.
        seconds: The time limit for a request.
        recall: `recency` to recall the latest facts, or `search` to recall those that match the
            message.
        tracing: The LangSmith variables that the `.env` file sets.
    """

    root: Path
    user_id: str
    thread_id: str
    key: Secret
    base: str | None
    model: str
    seconds: float
    recall: str
    tracing: Mapping[str, str]

    @property
    def data(self) -> Path:
        """The folder of the chat's files."""
        return self.root / "data"


def read(
    root: Path, env_file: Path | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Read the settings.

    Args:
        root: The folder in which `data` is written and `.env` is read. The `.env` of a parent
            folder is never read.
        env_file: A file to read instead.
        environment: Used instead of the process environment.

    Raises:
        ConfigError: A setting is missing or invalid; the message says how to fix it.
    """
    environment = os.environ if environment is None else environment
    file, ignored = _dotenv(root, env_file)
    variables = {**file, **{name: value for name, value in environment.items() if value}}
    if not variables.get(KEY):
        raise ConfigError(_no_key(root, ignored))
    recall = variables.get("MEMCLI_RECALL", _RECALLS[0])
    if recall not in _RECALLS:
        raise ConfigError(f'MEMCLI_RECALL must be {" or ".join(_RECALLS)}, not "{shown(recall)}"')
    user = _id(variables, "MEMCLI_USER_ID", "default-user")
    if recall == "search" and user != user.lower():
        raise ConfigError(f'MEMCLI_RECALL=search requires a lower-case user id, not "{user}"')
    return Settings(
        root=root,
        user_id=user,
        thread_id=_id(variables, "MEMCLI_THREAD_ID", "default-thread"),
        key=Secret(variables[KEY]),
        base=_base(variables.get(BASE)),
        model=variables.get("MEMCLI_MODEL", DEFAULT_MODEL),
        seconds=_seconds(variables.get("MEMCLI_TIMEOUT", _DEFAULT_SECONDS)),
        recall=recall,
        tracing={name: value for name, value in file.items() if name.startswith(_FOR_TRACING)},
    )


def _dotenv(root: Path, env_file: Path | None) -> tuple[Mapping[str, str], list[str]]:
    """Return the settings in a `.env`, and the names that are ignored because the user has not
    approved the file.
    """
    if env_file is not None:
        if not env_file.is_file():
            raise ConfigError(f"there is no file {env_file}; name the .env that contains {KEY}")
        return trust.read(env_file, registers()).values, []
    file = trust.read(root / ".env", registers())
    if file.approved:
        return file.values, []
    accepted, ignored = {}, []
    for name, value in file.values.items():
        if name in _HARMLESS and not file.doubt:
            accepted[name] = value
        elif name in (KEY, BASE) or name.startswith(("MEMCLI_", *_FOR_TRACING)):
            ignored.append(name)
    return accepted, ignored


def _no_key(root: Path, ignored: list[str]) -> str:
    if KEY in ignored:
        return (
            f"{KEY} is in {root / '.env'}, which you have not approved; run memory trust there, "
            "or name the file with --env-file"
        )
    return f"{KEY} is not set; get a key from Moonshot's console and run: export {KEY}=…"


def _id(variables: Mapping[str, str], name: str, default: str) -> str:
    value = variables.get(name, default)
    if not _ID.fullmatch(value):
        raise ConfigError(
            f"{name} must have 1 to 63 letters, digits, . _ or -, and begin with a letter or "
            f'digit, not "{shown(value)}"'
        )
    return value


def _base(url: str | None) -> str | None:
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return url
    if parts.scheme == "http" and is_loopback(parts.hostname or ""):
        return url
    raise ConfigError(f'{BASE} must be an https URL, or http on localhost, not "{shown(url)}"')


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 600:
        raise ConfigError(
            f'MEMCLI_TIMEOUT must be a number of seconds from 1 to 600, not "{shown(text)}"'
        )
    return seconds
