"""The environments of the systems: one for each, with pinned versions, under `.bench/operations`."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_LOADS_EXTENSIONS = "import sqlite3; sqlite3.connect(':memory:').enable_load_extension(True)"
_NAMES = ("python3.13", "python3.12", "python3.11", "python3")


class NotInstalled(Exception):
    """A system could not be installed; the message says why."""


def make(folder: Path, packages: Sequence[str], minimum: str = "3.11") -> Path:
    """Return the Python of a virtual environment with packages, which the first call installs.

    Args:
        folder: Where the environment lies.
        packages: Requirements of pip.
        minimum: The first version of Python that the packages accept.

    Raises:
        NotInstalled: No Python fits, or pip failed.
    """
    python = folder / "bin" / "python"
    complete = folder / ".complete"
    if complete.is_file() and complete.read_text() == json.dumps(packages):
        return python
    print(f"installing {', '.join(packages)} into {folder}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    _run([_find_python(minimum), "-m", "venv", str(folder)])
    _run([str(python), "-m", "pip", "install", "-q", *packages])
    complete.write_text(json.dumps(packages))
    return python


def make_node(folder: Path, packages: Sequence[str]) -> Path:
    """Return `node_modules` with packages, which the first call installs.

    Raises:
        NotInstalled: npm is missing or failed.
    """
    modules = folder / "node_modules"
    if not modules.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        _run(["npm", "install", "--silent", "--prefix", str(folder), *packages])
    return modules


def size(folder: Path) -> tuple[int, float]:
    """Return the number of packages in an environment, without pip and setuptools, and its size in
    megabytes.
    """
    metadata = [*folder.glob("lib/python*/site-packages/*.dist-info"), *_node_packages(folder)]
    own = [path for path in metadata if not path.name.startswith(("pip-", "setuptools-"))]
    total = sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())
    return len(own), total / 1e6


def _node_packages(folder: Path) -> Iterator[Path]:
    modules = folder / "node_modules"
    yield from modules.glob("[!.@]*/package.json")
    yield from modules.glob("@*/*/package.json")


def _find_python(minimum: str) -> str:
    """Return the first Python that is new enough and whose SQLite loads extensions, which one of
    the systems needs; else the first Python that is new enough.
    """
    candidates = [sys.executable if sys.prefix == sys.base_prefix else None]
    candidates += map(shutil.which, _NAMES)
    candidates += map(str, (Path.home() / ".pyenv" / "versions").glob("*/bin/python"))
    candidates += ["/usr/bin/python3"]
    is_new_enough = f"import sys, venv; assert sys.version_info >= ({minimum.replace('.', ', ')})"
    fitting = [path for path in candidates if path and _succeeds(path, is_new_enough)]
    if not fitting:
        raise NotInstalled(f"it needs Python {minimum} or later")
    return next((path for path in fitting if _succeeds(path, _LOADS_EXTENSIONS)), fitting[0])


def _succeeds(python: str, code: str) -> bool:
    return (
        Path(python).exists()
        and not subprocess.run([python, "-c", code], capture_output=True).returncode
    )


def _run(command: Sequence[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    except OSError as exc:
        raise NotInstalled(f"{command[0]}: {exc.strerror}") from exc
    if done.returncode:
        raise NotInstalled(f"{command[0]}: {done.stderr.strip()[-300:]}")
