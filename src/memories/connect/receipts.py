"""What was written into hosts' files, kept so that it can be undone to the byte and found again.

The register lies beside the user's `config.toml`. Without it all can still be undone, entry by
entry.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memories.core.disk import make_folder, read_file, replacing
from memories.errors import InvalidInput

_REGISTER = "connected.json"


class Written(NamedTuple):
    """One file that was changed.

    Attributes:
        path: The file.
        before: A copy of what was there; None if there was no file.
        existed: Whether there was a file.
        exact: Whether putting back what was there undoes it. Not if others have changed the file
            between two changes of ours: then only our entries are taken out.
        after: The SHA-256 of what was written.
        made: The objects and lists in it that were made for our entries.
        folders: The folders that were made for it.
    """

    path: str
    before: str | None
    existed: bool
    exact: bool
    after: str
    made: tuple[tuple[str, ...], ...]
    folders: tuple[str, ...]


class Receipt(NamedTuple):
    """What connecting a host did.

    Attributes:
        host: The host.
        scope: `user` or `project`.
        root: The folder of the project; empty for a user.
        files: The files.
    """

    host: str
    scope: str
    root: str
    files: tuple[Written, ...]


def load(folder: Path) -> list[Receipt]:
    """Return all receipts.

    Raises:
        InvalidInput: The register can't be read.
    """
    file = folder / _REGISTER
    try:
        found = json.loads(read_file(file))
        return [_receipt(each) for each in found["connected"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise InvalidInput(
            f"{file} is damaged; remove it: hosts can be disconnected without it"
        ) from exc


def _receipt(found: Any) -> Receipt:
    files = [
        Written(
            **{**each, "made": tuple(map(tuple, each["made"])), "folders": tuple(each["folders"])}
        )
        for each in found["files"]
    ]
    return Receipt(found["host"], found["scope"], found["root"], tuple(files))


def find(receipts: Sequence[Receipt], host: str, scope: str, root: str) -> Receipt | None:
    """Return the receipt of a host in a scope; None if there is none."""
    return next((each for each in receipts if each[:3] == (host, scope, root)), None)


def keep(folder: Path, host: str, scope: str, root: str, files: Sequence[Written]) -> None:
    """Put a receipt in the place of an earlier one; one without files is removed."""
    others = [each for each in load(folder) if each[:3] != (host, scope, root)]
    kept = [*others, Receipt(host, scope, root, tuple(files))] if files else others
    shape = [{**each._asdict(), "files": [file._asdict() for file in each.files]} for each in kept]
    make_folder(folder)
    with replacing(folder / _REGISTER) as stream:
        stream.write(json.dumps({"connected": shape}, indent=1).encode() + b"\n")
