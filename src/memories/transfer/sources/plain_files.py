"""Reads files that any program can write: CSV, JSON lines, and text with a statement per line."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from memories.errors import InvalidInput
from memories.guard.validate import shown
from memories.models import Draft
from memories.transfer.sources.items import FIELD_NAMES, TEXT_NAMES, Item, clean, mapping, to_draft
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample, Source

# --- CSV ---

_DELIMITERS = ",;\t|"
_MAX_FIELD = 1_048_576
_MAX_HEADER = 65_536  # maximum number of characters read from the line of column names
_OLD_LINE_END = re.compile(r"(?<=\r)(?=[^\n])")


def recognize_csv(sample: Sample) -> bool:
    """Return whether a file's name ends in .csv or .tsv, or its first line names a text column."""
    if sample.path.suffix.lower() in (".csv", ".tsv"):
        return True
    try:
        first = sample.start.partition(b"\n")[0].decode("utf-8-sig")
        return "," in first and _has_text(_split(first))
    except (UnicodeDecodeError, csv.Error):
        return False


def read_csv(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield a draft for each row that contains text."""
    lines = _decode_lines(reader, file)
    first = next(lines, "")
    names = _split(first[:_MAX_HEADER])
    if not _has_text(names):
        raise InvalidInput(
            f"{shown(file.name)} has no column for the text; "
            f"name one of the columns {', '.join(TEXT_NAMES[:-1])} or {TEXT_NAMES[-1]}"
        )
    unknown = [name for name in names if name and name not in FIELD_NAMES]
    if unknown:
        reader.skip(f"columns with unknown names: {shown(', '.join(unknown))}", len(unknown))
    csv.field_size_limit(_MAX_FIELD)
    rows = csv.DictReader(lines, names, restkey="", delimiter=_delimiter(first))
    try:
        for row in rows:
            row.pop("", None)
            if draft := to_draft(row):
                yield draft
            else:
                reader.skip("rows without text")
    except csv.Error as exc:
        raise InvalidInput(
            f"{shown(file.name)} is not valid CSV near line {rows.line_num + 1}: {exc}"
        ) from exc


def _decode_lines(reader: Reader, file: Path) -> Iterator[str]:
    for number, line in enumerate(reader.lines(file), 1):
        try:
            yield from _OLD_LINE_END.split(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError:
            raise InvalidInput(
                f"line {number} of {shown(file.name)} is not UTF-8; save it as UTF-8"
            ) from None


def _delimiter(first: str) -> str:
    return max(_DELIMITERS, key=first.count)


def _split(first: str) -> list[str]:
    """Return the column names in the first line."""
    rows = list(csv.reader([first.rstrip("\r\n")], delimiter=_delimiter(first)))
    return [name.strip().lower() for name in rows[0]] if rows else []


def _has_text(names: list[str]) -> bool:
    return any(name in TEXT_NAMES for name in names)


# --- JSON lines ---


def recognize_jsonl(sample: Sample) -> bool:
    """Return whether the first object has text in a field with one of the usual names."""
    return any(isinstance(sample.first.get(name), str) for name in TEXT_NAMES)


def read_jsonl(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield a draft for each line, or for each element of an array."""
    with reader.open(file) as stream:
        start = stream.read(4_096).removeprefix(b"\xef\xbb\xbf").lstrip()
    is_array = start[:1] == b"["
    values = reader.values(file) if is_array else reader.json_lines(file)
    for fields in map(mapping, values):
        if draft := to_draft(fields):
            yield draft
        else:
            reader.skip("lines without text")


# --- Plain text ---

_BULLETS = ("- ", "* ", "• ", "+ ")


def recognize_lines(sample: Sample) -> bool:
    """Return whether a file has the suffix `.txt` and contains no NUL bytes."""
    return sample.path.suffix.lower() == ".txt" and b"\0" not in sample.start


def read_lines(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield each line that is not blank, without its bullet."""
    for line in reader.lines(file):
        try:
            text = clean(line.decode("utf-8-sig"))
        except UnicodeDecodeError:
            reader.skip("lines that are not UTF-8")
            continue
        for bullet in _BULLETS:
            text = text.removeprefix(bullet)
        if text.strip():
            yield Draft(text.strip())


SOURCES = {
    "csv": Source.of_files(("*.csv", "*.tsv"), recognize_csv, read_csv),
    "jsonl": Source.of_files(("*.jsonl", "*.ndjson", "*.json"), recognize_jsonl, read_jsonl),
    "lines": Source.of_files(("*.txt",), recognize_lines, read_lines),
}
