"""JSON lines with one memory each, under the field names that most programs use."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memories.transfer.sources.items import TEXT_NAMES, Item, mapping, to_draft
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("*.jsonl", "*.ndjson", "*.json")


def recognize(sample: Sample) -> bool:
    """Return whether the first object has a text under one of the usual names."""
    return any(isinstance(sample.first.get(name), str) for name in TEXT_NAMES)


def read(reader: Reader) -> Iterator[Item]:
    """Yield the draft of each line, or of each element of an array."""
    for file in reader.files(*FILES):
        for fields in _objects(reader, file):
            draft = to_draft(fields)
            if draft is None:
                reader.skip("lines without text")
            else:
                yield draft


def _objects(reader: Reader, file: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a file of lines, or of one JSON array."""
    with reader.open(file) as stream:
        start = stream.read(4_096).removeprefix(b"\xef\xbb\xbf").lstrip()
        if start[:1] == b"[":
            stream.seek(0)
            yield from map(mapping, reader.objects(stream, file.name))
            return
    yield from reader.json_lines(file)
