"""The folder of Anthropic's memory tool: text files that a model writes for itself."""

from collections.abc import Iterator

from memories.transfer.sources import markdown
from memories.transfer.sources.items import Item
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample

FILES = ("*.md", "*.txt", "*.xml", "*.json", "*.yaml")


def recognize(sample: Sample) -> bool:
    """Return whether a path is a folder called `memories` with text files, as the tool sees it."""
    if not sample.is_folder or sample.path.name != "memories" or ".obsidian" in sample.names:
        return False
    is_other = sample.path.parent.name in (".serena", ".codex")
    return not is_other and any(name.endswith((".md", ".txt", ".xml")) for name in sample.names)


def read(reader: Reader) -> Iterator[Item]:
    """Yield the statements of each file, split as Markdown."""
    for file in reader.files(*FILES):
        yield from markdown.read_file(reader, file)
