"""Other programs with our names, and older installations of this one, that get in the way."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from memories.connect.program import NAMES, find_beside, find_installed, is_ours, is_same_file
from memories.core.installation import install_command

_OLD_NAME = "memories"  # of the distribution, before it was published


class Conflict(NamedTuple):
    """Something that gets in the way, as a sentence, and what to do about it."""

    problem: str
    remedy: str


def find_conflicts(environment: Mapping[str, str]) -> list[Conflict]:
    """Return the programs and installations that may be started instead of this one."""
    return [*_other_programs(environment), *_old_distribution(), *_old_tools(environment)]


def _other_programs(environment: Mapping[str, str]) -> Iterator[Conflict]:
    for name in NAMES:
        first = shutil.which(name, path=environment.get("PATH"))
        if first is None or is_same_file(first, find_beside(name)) or is_ours(first):
            continue
        ours = Path(find_installed(name, environment) or find_beside(name))
        problem = f"{first}, the first {name} on PATH, is another program"
        remedy = f"put {ours.parent} before it in PATH"
        if name != NAMES[0]:
            remedy += f", or type {NAMES[0]} instead of {name}; agents call {NAMES[0]}"
        yield Conflict(problem, remedy)


def _old_distribution() -> Iterator[Conflict]:
    """Yield the distribution that has the name of our package, in this environment."""
    try:
        version = metadata.version(_OLD_NAME)
    except metadata.PackageNotFoundError:
        return
    yield Conflict(
        f"the distribution {_OLD_NAME} {version} is installed beside memoriae and has the same "
        "package",
        f"run: {sys.executable} -m pip uninstall {_OLD_NAME} && {install_command()}",
    )


def _old_tools(environment: Mapping[str, str]) -> Iterator[Conflict]:
    """Yield the environments in which uv and pipx installed this program under its old name."""
    for tool, folders in _tool_folders(environment).items():
        for folder in folders:
            prefix = folder / _OLD_NAME
            is_old = any((prefix / place).exists() for place in _SCRIPTS)
            if is_old and not prefix.samefile(sys.prefix):
                uninstall = f"{tool} uninstall {_OLD_NAME}"
                yield Conflict(
                    f"{prefix} is an older installation of this program",
                    f"run: {uninstall} && {install_command()}",
                )


_SCRIPTS = ("bin/memory", "Scripts/memory.exe")


def _tool_folders(environment: Mapping[str, str]) -> dict[str, list[Path]]:
    """Return the folders in which each tool keeps the environments of programs."""
    home = Path.home()
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share")
    if os.name == "nt":
        data = Path(environment.get("APPDATA") or home / "AppData" / "Roaming")
    uv, pipx = environment.get("UV_TOOL_DIR"), environment.get("PIPX_HOME")
    uv_folders = [data / "uv" / "tools", data / "uv" / "data" / "tools"]
    pipx_homes = [data / "pipx", home / ".local" / "pipx", home / "pipx"]
    if uv:
        uv_folders = [Path(uv)]
    if pipx:
        pipx_homes = [Path(pipx)]
    return {"uv tool": uv_folders, "pipx": [folder / "venvs" for folder in pipx_homes]}
