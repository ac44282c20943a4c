"""How this program was installed, and the commands that extend or replace its installation.

Only error messages, `memory connect` and `memory doctor` need this, so it is imported late.
"""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "memoriae"
_MODEL_EXTRA = "multilingual"
_MODEL_SOURCE = "packages/memoriae-e5"  # the multilingual model's package in a checkout
# Folders that uv, pipx and npm use for a single run.
_TEMPORARY = re.compile(
    r"/(archive|builds|environments)-v\d+/|/pipx/\.cache/|/\.cache/pipx/|/_npx/"
)


class Installation(NamedTuple):
    """An installation of this program.

    Attributes:
        installer: `uv tool`, `pipx`, `temporary` (`uvx`, `pipx run`), `checkout` (editable), or
            `pip` for any other environment.
        prefix: The folder of its Python environment.
        source: The URL that the program was installed from; empty for the package index.
    """

    installer: str
    prefix: Path
    source: str

    @property
    def folder(self) -> Path | None:
        """The local file or folder that the program was installed from, if it still exists."""
        parts = urlsplit(self.source)
        if parts.scheme != "file":
            return None
        text = unquote(parts.path)
        path = Path(text.lstrip("/") if os.name == "nt" else text)
        return path if path.exists() else None


def find_installation() -> Installation:
    """Return how the running program was installed."""
    prefix = Path(sys.prefix)
    origin = _read_origin()
    source = origin.get("url", "")
    if is_temporary(str(prefix)):
        return Installation("temporary", prefix, source)
    if (prefix / "uv-receipt.toml").is_file():
        return Installation("uv tool", prefix, source)
    if (prefix / "pipx_metadata.json").is_file():
        return Installation("pipx", prefix, source)
    is_editable = origin.get("dir_info", {}).get("editable", False)
    return Installation("checkout" if is_editable else "pip", prefix, source)


def _read_origin() -> dict[str, Any]:
    """Return the PEP 610 record of where the program was installed from.

    The record is empty for an installation from a package index.
    """
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # the program runs from its source
        return {}
    return dict(json.loads(text)) if text else {}


def is_temporary(path: str) -> bool:
    """Return whether a path is in a folder that a package manager or the system cleans up."""
    real = Path(os.path.realpath(path)).as_posix().lower()
    temporary = Path(os.path.realpath(tempfile.gettempdir())).as_posix().lower().rstrip("/") + "/"
    place = real + Path(path).as_posix().lower()
    return place.startswith(temporary) or _TEMPORARY.search(f"{place}/") is not None


def install_command(extra: str = "") -> str:
    """Return the shell command that adds an optional part; see `install_arguments`."""
    arguments = install_arguments(extra)
    if os.name == "nt":
        return subprocess.list2cmdline(arguments)
    return shlex.join(arguments)


def install_arguments(extra: str, installation: Installation | None = None) -> list[str]:
    """Return the command that adds an optional part of this program, in its own environment.

    Args:
        extra: The name of the part, as in `pyproject.toml`; empty to reinstall the program.
        installation: The installation; by default the running program's.
    """
    current = installation or find_installation()
    model = _find_model_source(current) if extra == _MODEL_EXTRA else None
    if model is not None:
        extra = ""
    if current.installer == "uv tool":
        return _reinstall_tool(current, extra, model)
    requirements = [model] if model is not None else [_requirement([extra], current.source)]
    if current.installer == "pipx":
        action = ["inject", DISTRIBUTION] if extra or model else ["install", "--force"]
        return ["pipx", *action, *requirements]
    if current.installer == "temporary":
        return ["uv", "tool", "install", *_tool_requirement([extra], current, model)]
    if current.installer == "checkout" and model is None:
        requirements = ["-e", f"{current.folder}{_brackets([extra])}"]
    force = [] if extra or model else ["--force-reinstall"]
    if importlib.util.find_spec("pip") is None:
        force = [] if extra or model else ["--reinstall"]
        return ["uv", "pip", "install", "--python", sys.executable, *force, *requirements]
    return [sys.executable, "-m", "pip", "install", *force, *requirements]


def _find_model_source(installation: Installation) -> str | None:
    """Return the multilingual model's folder in the checkout; None if it must be downloaded."""
    folder = installation.folder
    source = None if folder is None else folder / _MODEL_SOURCE
    if source is not None and source.is_dir():
        return str(source)
    return None


def _reinstall_tool(installation: Installation, extra: str, model: str | None) -> list[str]:
    """Return the command that rebuilds this program's `uv tool` environment with one more optional
    part.

    It includes the parts and packages that are already installed, since uv would otherwise remove
    them.
    """
    receipt = tomllib.loads((installation.prefix / "uv-receipt.toml").read_text("utf-8"))
    extras = [extra]
    others: list[str] = []
    for requirement in receipt.get("tool", {}).get("requirements", []):
        if requirement.get("name") == DISTRIBUTION:
            extras += requirement.get("extras", [])
        else:
            others += ["--with", _other_requirement(requirement)]
    own = _tool_requirement(extras, installation, model)
    return ["uv", "tool", "install", "--force", *own, *others]


def _other_requirement(requirement: dict[str, Any]) -> str:
    """Convert a requirement in a `uv tool` receipt to a command-line argument."""
    for place in ("path", "directory", "editable", "url", "git"):
        if place in requirement:
            return str(requirement[place])
    extras = _brackets(requirement.get("extras", []))
    return f"{requirement['name']}{extras}{requirement.get('specifier', '')}"


def _tool_requirement(
    extras: Sequence[str], installation: Installation, model: str | None
) -> list[str]:
    requirement = [_requirement(extras, installation.source)]
    if model is None:
        return requirement
    return [*requirement, "--with", model]


def _requirement(extras: Sequence[str], source: str) -> str:
    """Return the requirement for this program with optional parts."""
    name = f"{DISTRIBUTION}{_brackets(extras)}"
    return f"{name} @ {source}" if source else name


def _brackets(extras: Sequence[str]) -> str:
    names = sorted({extra for extra in extras if extra})
    if names:
        return f"[{','.join(names)}]"
    return ""
