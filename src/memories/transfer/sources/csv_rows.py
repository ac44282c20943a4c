"""CSV files with one memory a row, under the column names that most programs use."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from memories.errors import InvalidInput
from memories.guard.validate import shown
from memories.transfer.sources.items import TEXT_NAMES, Item, to_draft
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("*.csv", "*.tsv")
_DELIMITERS = ",;\t|"
_MAX_FIELD = 1_048_576
_MAX_HEADER = 65_536  # characters of the first line
_OLD_LINE_END = re.compile(r"(?<=\r)(?=[^\n])")


def recognize(sample: Sample) -> bool:
    """Return whether the first line names a column for the text."""
    if sample.path.suffix.lower() in (".csv", ".tsv"):
        return True
    try:
        first = sample.start.partition(b"\n")[0].decode("utf-8-sig")
        return "," in first and _has_text(_split(first))
    except (UnicodeDecodeError, csv.Error):
        return False


def read(reader: Reader) -> Iterator[Item]:
    """Yield the draft of each row that has a text."""
    for file in reader.files(*FILES):
        lines = _decoded(reader, file)
        first = next(lines, "")
        names = _split(first[:_MAX_HEADER])
        if not _has_text(names):
            raise InvalidInput(
                f"{shown(file.name)} has no column for the text; "
                f"call one {', '.join(TEXT_NAMES[:-1])} or {TEXT_NAMES[-1]}"
            )
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
                f"{shown(file.name)} is not CSV at about line {rows.line_num + 1}: {exc}"
            ) from exc


def _decoded(reader: Reader, file: Path) -> Iterator[str]:
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
    """Return the names of the columns in the first line."""
    rows = list(csv.reader([first.rstrip("\r\n")], delimiter=_delimiter(first)))
    return [name.strip().lower() for name in rows[0]] if rows else []


def _has_text(names: list[str]) -> bool:
    return any(name in TEXT_NAMES for name in names)
