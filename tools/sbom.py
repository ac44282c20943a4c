"""List the program's components as CycloneDX JSON: the pinned packages that it needs with all
extras.

    python tools/sbom.py [FILE]

Versions and digests come from `requirements.lock`; licences and dependencies come from the
installed packages. The same lock gives the same bytes, and `tests/test_supply.py` compares them
with the file in the repository.
"""

import hashlib
import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
WEIGHTS = ROOT / "src/memories/embedders/weights"
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")
_DIGEST = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def pinned(lock: str) -> dict[str, tuple[str, list[str]]]:
    """Return the version of each package in a lock file, and the digests of the package's files."""
    found: dict[str, tuple[str, list[str]]] = {}
    for entry in re.split(r"\n(?=\S)", lock):
        if named := _PINNED.match(entry):
            found[_normal(named[1])] = named[2], sorted(_DIGEST.findall(entry))
    return found


def needed(root: str, extras: tuple[str, ...]) -> dict[str, set[str]]:
    """Return what a program and all that it needs directly need, each by its normal name."""
    found: dict[str, set[str]] = {}
    waiting = [(root, extras)]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        for written in metadata.requires(name) or ():
            need = Requirement(written)
            if need.marker is None or any(
                need.marker.evaluate({"extra": extra}) for extra in ("", *wanted)
            ):
                other = _normal(need.name)
                if other != _normal(root):
                    found.setdefault(_normal(name), set()).add(other)
                waiting.append((other, tuple(sorted(need.extras))))
        found.setdefault(_normal(name), set())
    return found


def bill() -> dict[str, Any]:
    """Return the bill of materials."""
    lock = pinned((ROOT / "requirements.lock").read_text())
    needs = needed("memoriae", ("all",))
    own = metadata.version("memoriae")
    names = sorted(needs.keys() - {"memoriae"})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**_component("application", "memoriae", own), "licenses": _licence("memoriae")}},
        "components": [
            *({**_component("library", name, lock[name][0]), **_of(name, lock[name][1])} for name in names),
            *map(_weights, sorted(WEIGHTS.glob("*MiniLM*"))),
        ],
        "dependencies": [
            {"ref": _ref(name, own if name == "memoriae" else lock[name][0]), "dependsOn": [
                _ref(other, lock[other][0]) for other in sorted(needs[name])
            ]}
            for name in ["memoriae", *names]
        ],
    }  # fmt: skip


def _component(kind: str, name: str, version: str) -> dict[str, Any]:
    return {
        "type": kind,
        "bom-ref": _ref(name, version),
        "name": name,
        "version": version,
        "purl": _ref(name, version),
    }


def _of(name: str, digests: list[str]) -> dict[str, Any]:
    """Return a package's licence, and the digests of its files for all systems."""
    hashes = [{"alg": "SHA-256", "content": digest} for digest in digests]
    return {"licenses": _licence(name), "hashes": hashes}


def _licence(name: str) -> list[dict[str, Any]]:
    said = metadata.metadata(name)
    expression = said.get("License-Expression")
    if expression:
        return [{"expression": expression}]
    kinds = [
        kind.rpartition(" :: ")[2]
        for kind in said.get_all("Classifier") or ()
        if kind.startswith("License ::")
    ]
    text = " / ".join(kinds) or (said.get("License") or "unknown").strip().splitlines()[0]
    return [{"license": {"name": text[:80]}}]


def _weights(file: Path) -> dict[str, Any]:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    kind = "machine-learning-model" if file.suffix == ".onnx" else "data"
    return {
        "type": kind, "bom-ref": f"memoriae/{file.name}", "name": file.name,
        "licenses": [{"license": {"id": "Apache-2.0"}}], "hashes": [{"alg": "SHA-256", "content": digest}],
    }  # fmt: skip


def _ref(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def written() -> str:
    """Return the text of the file with the bill of materials."""
    return json.dumps(bill(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(written(), encoding="utf-8")
    else:
        sys.stdout.write(written())
