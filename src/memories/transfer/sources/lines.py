"""Plain text with one statement a line, such as memories copied from a settings page."""

from collections.abc import Iterator

from memories.models import Draft
from memories.transfer.sources.items import Item, clean
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("*.txt",)
_BULLETS = ("- ", "* ", "• ", "+ ")


def recognize(sample: Sample) -> bool:
    """Return whether a path is a text file by its name; its content can be anything."""
    return sample.path.suffix.lower() == ".txt" and b"\0" not in sample.start


def read(reader: Reader) -> Iterator[Item]:
    """Yield each line that is not blank, without its bullet."""
    for file in reader.files(*FILES):
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
