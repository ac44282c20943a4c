"""Packs the extensions for a release: .mcpb for Claude Desktop, archives for Gemini CLI.

python tools/bundles.py [FOLDER]          # dist by default

The same sources always give the same bytes.
"""

import gzip
import io
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXTENSIONS = ROOT / "extensions"
MOMENT = (1980, 1, 1, 0, 0, 0)  # the earliest time that a ZIP archive can store


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of an extension with their names in the archive; the manifest is at the root."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(folder).as_posix(), path


def mode(path: Path) -> int:
    """Return the permissions of a file in an archive; scripts are executable."""
    return 0o755 if path.suffix == ".sh" else 0o644


def zipped(folder: Path) -> bytes:
    """Return a ZIP archive of an extension."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in files(folder):
            entry = zipfile.ZipInfo(name, MOMENT)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = mode(path) << 16
            archive.writestr(entry, path.read_bytes())
    return data.getvalue()


def tarred(folder: Path) -> bytes:
    """Return a compressed tar archive of an extension."""
    data = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=data, mode="wb", mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w") as archive,
    ):
        for name, path in files(folder):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = path.stat().st_size, mode(path)
            archive.addfile(entry, io.BytesIO(path.read_bytes()))
    return data.getvalue()


def bundles() -> dict[str, bytes]:
    """Return the archives by name. Gemini CLI downloads the archive whose name begins with the
    system.
    """
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    gemini = EXTENSIONS / "gemini"
    return {
        f"memories-{version}.mcpb": zipped(EXTENSIONS / "claude-desktop"),
        "linux.memories.tar.gz": tarred(gemini),
        "darwin.memories.tar.gz": tarred(gemini),
        "win32.memories.zip": zipped(gemini),
    }


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    target.mkdir(parents=True, exist_ok=True)
    for name, data in bundles().items():
        (target / name).write_bytes(data)
        print(f"wrote {target / name}")
