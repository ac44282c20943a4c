"""Bundles in the Open Knowledge Format: Markdown files with a type in their frontmatter."""

from collections.abc import Iterator
from itertools import islice

from memories.models import Draft
from memories.transfer.sources import markdown
from memories.transfer.sources.items import Item, clean, one_line
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("*.md",)
_RESERVED = ("index.md", "log.md")
_LOOKED_AT = 20  # files of a folder


def recognize(sample: Sample) -> bool:
    """Return whether the index names a version of the format, or all first files have a type."""
    if not sample.is_folder:
        return False
    if b"\nokf_version:" in Sample(sample.path / "index.md").frontmatter:
        return True
    files = [file for file in sample.path.rglob("*.md") if file.name not in _RESERVED]
    first = list(islice(files, _LOOKED_AT))
    return bool(first) and all(b"\ntype:" in Sample(file).frontmatter for file in first)


def read(reader: Reader) -> Iterator[Item]:
    """Yield each concept as one statement, with its type, tags and time."""
    for file in reader.files(*FILES):
        text = None if file.name in _RESERVED else reader.text(file)
        if text is None:
            continue
        fields, body = markdown.split_frontmatter(text)
        title = one_line(fields.get("title")) or one_line(fields.get("description"))
        content = clean(body)
        if not fields.get("type") or not (content or title):
            reader.skip("files without a type or a text")
            continue
        if title and title not in content:
            content = f"{title}\n\n{content}".rstrip()
        tags = markdown.page_tags(reader, fields, file)
        yield Draft(content, tags=tags, created_at=markdown.find_time(fields, file))
