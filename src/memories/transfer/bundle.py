"""Writes each memory as a Markdown file, and reads the files back.

The folder is a bundle in the Open Knowledge Format 0.2. Each file has frontmatter and, below it,
a memory's current text. The frontmatter contains a line of an export for each version;
the last line omits the text. So the folder can be turned back into the same export. A digest shows
whether someone edited the text.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from memories.core.disk import make_folder, replacing
from memories.errors import InvalidInput
from memories.guard.validate import shown
from memories.models import PENDING
from memories.transfer.lines import ExportTally, header_line

INDEX = "index.md"
_GENERATOR = "memoriae"
_LINKS = "\n\n<!-- links -->\nCorrects "
_MAX_FILE_BYTES = 67_108_864
_WITHOUT_PROJECT = "notes"
_MAX_FOLDER = 60  # maximum length of a folder's name; most file systems allow 255 bytes
_EXPONENT = re.compile(r"\A-?[0-9]{1,20}e[+-]?[0-9]{1,3}\Z")  # JSON writes 0.00001 as 1e-05
# Characters that YAML reads as a line break, or can't read.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


class Edit(NamedTuple):
    """A memory whose text someone edited in its file.

    Attributes:
        namespace: The namespace of the memory.
        memory_id: Its id.
        text: The edited text.
        digest: The digest of the text that was exported.
        lines: The lines of its versions; the last one has the edited text.
    """

    namespace: str
    memory_id: str
    text: str
    digest: str
    lines: Sequence[str]

    def applies_to(self, content: str) -> bool:
        """Return whether a memory still has the content that was exported."""
        return digest(content) == self.digest

    def difference(self, content: str) -> str:
        """Return the lines in which the edited text differs from a memory's content."""
        import difflib  # imported late, since it takes 4 ms

        before, after = content.splitlines(), self.text.splitlines()
        return "\n".join(list(difflib.unified_diff(before, after, lineterm=""))[2:])


class Bundle(NamedTuple):
    """The memories in a folder.

    Attributes:
        lines: The lines of all memories except the edited ones, in the order of an export.
        edits: The edited memories.
        last_line: The last line of the export that the folder was made from.
    """

    lines: Sequence[str]
    edits: Sequence[Edit]
    last_line: str

    def to_export(self, lines: Sequence[str]) -> Iterator[bytes]:
        """Yield the lines of the folder's export.

        If nothing was edited, this is the export that the folder was made from, and its last line
        proves who wrote it.

        Args:
            lines: Further lines to include: those of edited memories that are not in the store.
        """
        header, last_line = header_line(None), self.last_line
        if self.edits:
            tally = ExportTally(header)
            for line in (*self.lines, *lines):
                tally.add(line)
            last_line = tally.last_line()
        for line in (header, *self.lines, *lines, last_line):
            yield f"{line}\n".encode("utf-8", "surrogatepass")


def digest(text: str) -> str:
    """Return a digest that later shows whether a text was edited."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def is_bundle(folder: Path) -> bool:
    """Return whether a folder was written by `write`."""
    try:
        start = (folder / INDEX).read_bytes()[:4_096].replace(b"\r\n", b"\n")
    except (OSError, ValueError):
        return False
    return f"\ngenerator: {_GENERATOR}\n".encode() in start.partition(b"\n---\n")[0] + b"\n"


# --- writing


def write(folder: Path, lines: Iterable[str]) -> int:
    """Write an export's memories into a folder; return how many.

    Files from an earlier export into the same folder are replaced, or removed if their memory is no
    longer exported.

    Args:
        folder: A folder that is missing, written by this function, or empty except for hidden
            files.
        lines: The lines of an export of memories, with the header and the last line.

    Raises:
        InvalidInput: The folder has other files, or edits that have not been imported.
    """
    last_line = ""
    versions: list[dict[str, Any]] = []
    for line in lines:
        shape = json.loads(line)
        if "end" in shape:
            last_line = line.strip()
        elif "format" not in shape:
            versions.append(shape)
    memories = [list(rows) for _, rows in groupby(versions, key=_owner)]
    former = _refuse_loss(folder, {_owner(rows[-1]): rows[-1]["text"] for rows in memories})
    paths = {_owner(rows[-1]): path for rows, path in zip(memories, _paths(memories), strict=True)}
    # Write the index first: the next export needs it to recognize the files, even if this one
    # fails halfway.
    _write_file(folder / INDEX, _render_index(memories, paths, last_line))
    for rows in memories:
        path = paths[_owner(rows[-1])]
        _write_file(folder / path, _render(rows, path, paths))
        former.discard(folder / path)
    for file in former:
        file.unlink(missing_ok=True)
    return len(memories)


def _owner(shape: Mapping[str, Any]) -> tuple[str, str]:
    return shape["namespace"], shape["group"]


def _refuse_loss(folder: Path, texts: Mapping[tuple[str, str], str]) -> set[Path]:
    """Check that the folder may be replaced, and return the files of its earlier export.

    Args:
        folder: The folder.
        texts: The current texts of the memories to write.

    Raises:
        InvalidInput: The folder has edits or other files that would be lost, or isn't a folder.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        raise InvalidInput(
            f"{shown(str(folder))} is not a folder; name an empty or new folder, in which each "
            "memory becomes a file"
        )
    files = folder.iterdir() if folder.exists() else ()
    if all(file.name.startswith(".") for file in files):
        return set()
    if not is_bundle(folder):
        raise InvalidInput(
            f"{shown(str(folder))} has files from another program; name an empty or new folder"
        )
    for edit in read(folder).edits:
        if texts.get((edit.namespace, edit.memory_id)) != edit.text:
            raise InvalidInput(
                f"the text of {edit.memory_id} was edited in {shown(str(folder))}; import the "
                f"edits first: memory import {shown(str(folder))}"
            )
    return set(_files(folder))


def _paths(memories: Sequence[Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield a path for each memory: namespace, project, and the beginning of its first text.

    The path survives updates of the memory, because its first text never changes. Memories that
    are deleted or await review have folders of their own.
    """
    taken: set[str] = set()
    for rows in memories:
        first, last = rows[0], rows[-1]
        project = last.get("labels", {}).get("project") or _WITHOUT_PROJECT
        if "ended_at" in last:
            project = "pending" if last.get("ended_by") == PENDING else "deleted"
        folder = _slug(project)[:_MAX_FOLDER].strip("-") or _WITHOUT_PROJECT
        name = _slug(first["text"])[:48].strip("-") or "memory"
        stem = f"{_slug(last['namespace'])}/{folder}/{name}-{_slug(last['group'])[-12:]}"
        path, number = f"{stem}.md", 1
        while path in taken:  # the namespaces a.b and a-b, for example, may have the same id
            number += 1
            path = f"{stem}-{number}.md"
        taken.add(path)
        yield path


def _slug(text: str) -> str:
    return re.sub(r"[\W_]+", "-", text[:200].lower()).strip("-")


def _render(
    rows: Sequence[Mapping[str, Any]], path: str, paths: Mapping[tuple[str, str], str]
) -> str:
    last = dict(rows[-1])
    text = last["text"]
    last["text"] = None
    labels = last.get("labels", {})
    tags = [f"{key}={value}" for key, value in labels.items() if not key.startswith("=")]
    head = {
        "type": labels.get("type") or "memory",
        "title": _title(text),
        "timestamp": last["created_at"],
        "tags": tags,
        "id": last["group"],
        "digest": digest(text),
    }
    lines = [f"{name}: {_dump(value)}" for name, value in head.items()]
    lines += ["versions:", *(f"- {_dump(row)}" for row in (*rows[:-1], last))]
    links = ""
    corrected = _find_corrected(last)
    target = paths.get((last["namespace"], corrected))
    if target:
        relative = os.path.relpath(target, Path(path).parent)
        links = f"{_LINKS}[{corrected}]({relative})"
    return "\n".join(["---", *lines, "---", "", f"{text}{links}", ""])


def _find_corrected(row: Mapping[str, Any]) -> str:
    """Return the id of the memory that a version corrects; empty if there is none."""
    fields = row.get("fields")
    corrects = fields.get("corrects") if isinstance(fields, dict) else None
    return str(corrects or "").partition(" ")[0]


def _title(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first if len(first) <= 80 else f"{first[:79]}…"


def _render_index(
    memories: Sequence[Sequence[Mapping[str, Any]]],
    paths: Mapping[tuple[str, str], str],
    last_line: str,
) -> str:
    """Return the index: the export's last line in the frontmatter, then links to all files."""
    lines = [
        "---",
        'okf_version: "0.2"',
        f"generator: {_GENERATOR}",
        f"end: {last_line}",
        "---",
        "# Memories",
    ]
    entries = sorted((paths[_owner(rows[-1])], _title(rows[-1]["text"])) for rows in memories)
    for folder, group in groupby(entries, key=lambda entry: entry[0].rpartition("/")[0]):
        lines += ["", f"## {folder}", ""]
        for path, title in group:
            label = re.sub(r"([\\\[\]])", r"\\\1", title)
            lines.append(f"- [{label}]({path})")
    return "\n".join([*lines, ""])


def _dump(value: object) -> str:
    """Return JSON that YAML reads as the same value."""
    text = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _write_file(file: Path, content: str) -> None:
    make_folder(file.parent)
    with replacing(file) as stream:
        stream.write(content.encode("utf-8", "surrogatepass"))


# --- reading


def read(folder: Path) -> Bundle:
    """Read a folder that `write` produced and people may have edited.

    Raises:
        InvalidInput: A file isn't in the format of `write`. The message names the file and the
            problem.
    """
    memories: list[tuple[tuple[str, str], list[str]]] = []
    edits: list[Edit] = []
    for file in _files(folder):
        head, text = _parse(file)
        versions = head.get("versions")
        is_list = isinstance(versions, list) and all(isinstance(row, dict) for row in versions)
        if not versions or not is_list:
            raise InvalidInput(
                f"{shown(file.name)} has no list of versions; restore its frontmatter"
            )
        corrected = _find_corrected(versions[-1])
        if corrected:
            link = re.escape(f"{_LINKS}[{corrected}](")
            text = re.sub(rf"{link}[^)\n]*\)\n?\Z", "", text)
        versions[-1]["text"] = text
        lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in versions]
        namespace, memory_id = str(versions[-1].get("namespace")), str(versions[-1].get("group"))
        if head.get("digest") == digest(text):
            memories.append(((namespace, memory_id), lines))
        else:
            edits.append(Edit(namespace, memory_id, text, str(head.get("digest")), lines))
    memories.sort()
    index, _ = _parse(folder / INDEX)
    last_line = json.dumps(index.get("end"), separators=(",", ":"))
    return Bundle([line for _, lines in memories for line in lines], edits, last_line)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the memory files in a folder; links are not followed."""
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(base, name)
            is_page = name.endswith(".md") and file != folder / INDEX
            if is_page and file.is_file() and not file.is_symlink():
                yield file


@functools.cache
def _loader() -> Any:
    """Return a safe YAML loader that also reads JSON numbers such as 1e-05, which YAML 1.1
    treats as text.
    """
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        pass

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-0123456789"))
    return Loader


def _parse(file: Path) -> tuple[dict[str, Any], str]:
    """Return a file's frontmatter, and the text below it."""
    import yaml

    if file.stat().st_size > _MAX_FILE_BYTES:
        raise InvalidInput(f"{shown(file.name)} is larger than any memory can be")
    try:
        content = file.read_bytes().decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise InvalidInput(f"{shown(file.name)} is not UTF-8; save it as UTF-8") from None
    if content.startswith("---\r\n"):  # git on Windows converts line ends
        content = content.replace("\r\n", "\n")
    head, separator, body = content.removeprefix("---\n").partition("\n---\n")
    try:
        is_complete = separator and content.startswith("---\n")
        fields = yaml.load(head, _loader()) if is_complete else None  # noqa: S506 - a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        reason = str(exc).splitlines()[0]
        raise InvalidInput(f"{shown(file.name)} has damaged frontmatter: {reason}") from exc
    if not isinstance(fields, dict):
        raise InvalidInput(
            f"{shown(file.name)} has no frontmatter; restore it, or move the file out of the "
            "folder if it is not an exported memory"
        )
    return fields, body.removeprefix("\n").removesuffix("\n")
