"""Notes of basic-memory: Markdown with observations and relations."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from memories.models import Draft
from memories.transfer.sources import markdown
from memories.transfer.sources.items import Item, add_tag, one_line
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("*.md",)
_LOOKED_AT = 20  # notes of a folder
_OBSERVATION = re.compile(r"\[(?P<category>[^\]\[()]{1,60})\]\s+(?P<text>\S.*)", re.DOTALL)
_RELATION = re.compile(r"(?P<verb>[^\[\]]{1,120}?)\s+\[\[(?P<target>[^\]]+)\]\]")
_HASHTAG = re.compile(r"(?:^|\s)#([\w/-]+)")


def locate(home: Path) -> Iterable[Path]:
    """Return the folders of its projects."""
    try:
        projects = json.loads((home / ".basic-memory" / "config.json").read_text())["projects"]
        values = [each["path"] if isinstance(each, dict) else each for each in projects.values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        values = []
    folders = [Path(value) for value in values if isinstance(value, str)]
    return folders or [home / "basic-memory"]


def recognize(sample: Sample) -> bool:
    """Return whether a note, or one of the first notes in a folder, has a permalink."""
    if not sample.is_folder:
        return sample.path.suffix == ".md" and b"\npermalink:" in sample.frontmatter
    notes = islice(sample.path.rglob("*.md"), _LOOKED_AT)
    return any(b"\npermalink:" in Sample(note).frontmatter for note in notes)


def read(reader: Reader) -> Iterator[Item]:
    """Yield each observation with the title of its note, each relation as a sentence, and the
    other passages.
    """
    for file in reader.files(*FILES):
        text = reader.text(file)
        if text is None:
            continue
        page = markdown.parse(text)
        title = one_line(page.fields.get("title")) or file.stem
        time = markdown.find_time(page.fields, file)
        tags = markdown.page_tags(reader, page.fields, file)
        for passage in page.passages:
            content, own = _read_passage(passage, title, tags)
            yield Draft(content, tags=own, created_at=time)


def _read_passage(
    passage: markdown.Passage, title: str, tags: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    own: dict[str, Any] = {}
    if relation := _RELATION.fullmatch(passage.text):
        add_tag(own, "type", "relation")
        content = f"{title} {relation['verb']} {relation['target']}"
    elif observation := _OBSERVATION.fullmatch(passage.text):
        add_tag(own, "type", observation["category"])
        for word in _HASHTAG.findall(observation["text"]):
            add_tag(own, word, "true")
        content = f"{title}: {observation['text']}"
    else:
        content = markdown.with_headings(passage)
    return content, dict(tags) | own
