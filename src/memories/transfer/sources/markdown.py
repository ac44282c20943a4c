"""Splits Markdown files into statements.

The files are agents' instructions and memory banks, vaults of notes, notes of basic-memory, bundles
in the Open Knowledge Format, and folders of Anthropic's memory tool.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.models import Draft
from memories.transfer.sources.items import (
    TIME_NAMES,
    Item,
    add_tag,
    clean,
    make_tags,
    moment,
    one_line,
    to_tags,
)
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample, Source

if TYPE_CHECKING:
    from markdown_it.token import Token

FILES = ("*.md", "*.mdc", "*.markdown", ".windsurfrules", ".cursorrules")
# In a repository, where most Markdown is documentation, only these files are read.
INSTRUCTIONS = (
    "CLAUDE.md", "CLAUDE.local.md", "AGENTS.md", "AGENTS.override.md", "GEMINI.md", "MEMORY.md",
    "USER.md", ".windsurfrules", ".cursorrules", ".claude/rules/*.md", ".cursor/rules/*.mdc",
    ".github/copilot-instructions.md", "memory-bank/*.md", ".serena/memories/*.md",
)  # fmt: skip
_IN_HOME = (
    ".claude/CLAUDE.md", ".claude/projects/*/memory", ".codex/AGENTS.md", ".codex/memories",
    ".gemini/GEMINI.md", ".serena/memories", ".letta/agents/*/memory", ".hermes/MEMORY.md",
    ".hermes/USER.md",
)  # fmt: skip
_LEFT_OUT = (".obsidian/*", ".trash/*", "*.excalidraw.md", "Templates/*", "templates/*")
_SHORT = 60  # a statement with fewer characters is stored with its headings before it
_MAX_FRONTMATTER_LINES = 64
_MAX_FRONTMATTER = 65_536  # maximum number of characters; longer YAML takes seconds to parse
_MAX_BRACKETS = 1_000  # parsing nested brackets takes quadratic time
_BULLET = re.compile(r"^\s*(?:[-*+]|\d{1,9}[.)])\s+(?:\[(?P<box>[ xX])\]\s+)?")
_QUOTE = re.compile(r"^ {0,3}> ?(?:\[![\w-]+\][+-]? ?)?", re.MULTILINE)  # also Obsidian's callouts
_BOLD_LINE = re.compile(r"(\*\*|__)[^*_\n]+\1:?")
_LINK = re.compile(r"!?\[[^\[\]]*\]\([^()]*\)|!?\[\[[^\[\]]*\]\]|<?https?://\S+")
_LOCAL_LINK = re.compile(r"\[[^\]]*\]\((?!\w+:)[^)]*\.md\)")
_EMBED = re.compile(r"!\[\[[^\[\]]*\]\]|%%.*?%%", re.DOTALL)
_NOTE_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]+)\]\]")
_BLOCK_ID = re.compile(r"\s\^[\w-]+$", re.MULTILINE)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


class Passage(NamedTuple):
    """A statement on a page, and the headings above it."""

    text: str
    headings: tuple[str, ...]


class MarkdownPage(NamedTuple):
    """A page: its frontmatter and its passages."""

    fields: Mapping[str, Any]
    passages: Sequence[Passage]


def locate(home: Path) -> Iterable[Path]:
    """Yield agents' instruction and memory files in the home folder and the current folder."""
    for pattern in _IN_HOME:
        yield from sorted(home.glob(pattern))
    for pattern in INSTRUCTIONS:
        yield from sorted(Path.cwd().glob(pattern))


def recognize(sample: Sample) -> bool:
    """Return whether a path is a Markdown file, or a folder that contains one."""
    if not sample.is_folder:
        return any(fnmatch(sample.path.name, pattern) for pattern in FILES)
    has_page = any(fnmatch(name, pattern) for name in sample.names for pattern in FILES)
    folders = {".obsidian", "memory-bank", ".serena", ".cursor", ".claude"}
    return has_page or bool(sample.names & folders)


def read(reader: Reader) -> Iterator[Item]:
    """Yield the statements of each page."""
    is_repository = (reader.path / ".git").exists()
    for file in reader.files(*(INSTRUCTIONS if is_repository else FILES)):
        below = reader.below(file)
        if any(fnmatch(below, pattern) or fnmatch(below, f"*/{pattern}") for pattern in _LEFT_OUT):
            reader.skip("templates, drawings and settings of the vault")
        else:
            yield from read_file(reader, file)


def read_file(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield the statements of one page, with its headings, tags and time."""
    text = reader.text(file)
    if text is None:
        return
    is_vault = (reader.path / ".obsidian").is_dir()
    if is_vault:  # remove Obsidian's notation, which means nothing elsewhere
        text = _BLOCK_ID.sub("", _NOTE_LINK.sub(r"\1", _EMBED.sub("", text)))
    page = parse(text)
    time = find_time(page.fields, file)
    tags = page_tags(reader, page.fields, file)
    cited = find_cited(page.fields)
    for passage in page.passages:
        if reason := _find_reason_to_skip(passage.text):
            reader.skip(reason)
            continue
        own = dict(tags)
        add_tag(own, "heading", " > ".join(passage.headings))
        yield Draft(with_headings(passage), tags=own, created_at=time, **cited)


def find_cited(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a page's frontmatter that limit how long its statements are true:
    `anchors`, `valid_until` and `recheck`.
    """
    anchors = fields.get("anchors")
    cited: dict[str, Any] = {
        name: str(fields[name]) for name in ("valid_until", "recheck") if fields.get(name)
    }
    if isinstance(anchors, str):
        anchors = [anchors]
    if isinstance(anchors, list) and anchors:
        cited["anchors"] = tuple(map(str, anchors))
    return cited


def page_tags(reader: Reader, fields: Mapping[str, Any], file: Path) -> dict[str, str]:
    """Return the tags that all statements on a page share."""
    tags = to_tags(fields)
    add_tag(tags, "project", reader.project(str(file.parent)))
    add_tag(tags, "file", reader.below(file))
    return tags


def find_time(fields: Mapping[str, Any], file: Path) -> datetime | None:
    """Return the time of a page, from its frontmatter or from a file name that is a date."""
    names = ("modified", "updated", *TIME_NAMES)
    day = file.stem if _DAY.fullmatch(file.stem) else None
    return moment(*(str(fields[name]) for name in names if name in fields), day)


def with_headings(passage: Passage) -> str:
    """Return the text of a passage, preceded by its headings if it is short."""
    if len(passage.text) >= _SHORT or not passage.headings:
        return passage.text
    return f"{' > '.join(passage.headings)}: {passage.text}"


def parse(text: str) -> MarkdownPage:
    """Split a page into its frontmatter and passages.

    A passage is a paragraph, a quote, or a list item with all its nested items. Code and tables
    are added to the passage before them, since they rarely make sense on their own.

    Args:
        text: The page in CommonMark.
    """
    from markdown_it import MarkdownIt

    fields, body = split_frontmatter(text)
    lines = body.split("\n")
    headings: list[str] = []  # the current heading of each level; may be empty
    above: tuple[str, ...] = ()
    passages: list[Passage] = []
    introduction = previous = ""
    parser = MarkdownIt("commonmark").enable("table").disable("inline")  # only blocks are needed
    for token in _blocks(parser.parse(body)):
        start, end = token.map or (0, 0)
        source = "\n".join(lines[start:end]).strip("\n")
        if level := _find_level(token, source):
            padded = [*headings, *[""] * 7]
            headings = [*padded[: level - 1], one_line(source.strip("#=-*_: \n"))]
            above = tuple(filter(None, headings))
        elif token.type == "blockquote_open":
            passages.append(Passage(clean(_QUOTE.sub("", source)), above))
        elif token.type == "paragraph_open":
            passages.append(Passage(clean(source), above))
        elif token.type == "list_item_open":
            # A short paragraph that ends with a colon introduces the list after it.
            before = passages[-1].text if previous == "paragraph_open" else ""
            if before.endswith(":") and len(before) <= _SHORT:
                introduction = one_line(passages.pop().text.removesuffix(":"))
            own = (*above, introduction) if introduction else above
            passages.append(Passage(_dedent(source), own))
        elif token.type != "html_block":
            if previous in ("", "heading"):
                passages.append(Passage(source, above))
            else:
                last = passages[-1]
                passages[-1] = last._replace(text=f"{last.text}\n\n{source}")
        introduction = introduction if token.type == "list_item_open" else ""
        if token.type != "html_block":
            previous = "heading" if level else token.type
    return MarkdownPage(fields, [passage for passage in passages if clean(passage.text)])


def _find_level(token: "Token", source: str) -> int:
    """Return the level of a heading; 7 for a line in bold type, 0 for any other block."""
    if token.type == "heading_open":
        return int(token.tag[1])
    is_bold = token.type == "paragraph_open" and _BOLD_LINE.fullmatch(source.strip())
    return 7 if is_bold else 0


def _blocks(tokens: "Sequence[Token]") -> "Iterator[Token]":
    """Yield the outermost blocks; for a list, yield its items instead."""
    lists = ("bullet_list_open", "ordered_list_open")
    for token in tokens:
        is_item = token.level == 1 and token.type == "list_item_open"
        is_block = token.level == 0 and token.nesting >= 0 and token.type not in (*lists, "hr")
        if is_item or (is_block and token.type != "inline"):
            yield token


def split_frontmatter(text: str) -> tuple[Mapping[str, Any], str]:
    """Split a page into the fields of its YAML frontmatter, if it has one, and the text below it.

    YAML with aliases is ignored, since a few lines can expand to gigabytes of text.
    """
    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        return {}, text
    for number, line in enumerate(lines[1 : _MAX_FRONTMATTER_LINES + 1], 1):
        if line.rstrip() == "---":
            fields = _parse_yaml("\n".join(lines[1:number]))
            return fields, "\n".join(lines[number + 1 :])
    return {}, text


def _parse_yaml(text: str) -> Mapping[str, Any]:
    """Return the fields of YAML, keyed by lower-case name; empty if it can't be read safely."""
    import yaml

    if len(text) > _MAX_FRONTMATTER or text.count("[") + text.count("{") > _MAX_BRACKETS:
        return {}
    try:
        for event in yaml.parse(text):
            if isinstance(event, yaml.AliasEvent):
                return {}
        fields = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return {}  # the library raises most of these errors for values such as `!!bool x`
    if not isinstance(fields, dict):
        return {}
    return {str(name).lower(): value for name, value in fields.items()}


def _dedent(source: str) -> str:
    """Return a paragraph or list item without its bullet, checkbox and indentation."""
    first, _, rest = source.partition("\n")
    match = _BULLET.match(first)
    if match is None:
        return clean(source)
    done = "[x] " if (match["box"] or "").lower() == "x" else ""
    indent = len(match[0]) - len(f"[{match['box']}] " if match["box"] else "")
    nested = [line[indent:] if line[:indent].isspace() else line for line in rest.split("\n")]
    return clean("\n".join([done + first[match.end() :], *nested]))


def _find_reason_to_skip(text: str) -> str:
    """Return the reason a passage is left out, as a plural noun; empty if it is worth keeping."""
    if text.startswith("[x] "):
        return "finished tasks"
    if _LOCAL_LINK.match(text):
        return "links to other pages"
    if not re.search(r"\w", _LINK.sub("", text)):
        return "links, pictures and rules"
    return ""


# --- the folder of Anthropic's memory tool: text files that a model writes for itself ---


def recognize_anthropic(sample: Sample) -> bool:
    """Return whether a path is a folder called `memories` that contains text files."""
    if not sample.is_folder or sample.path.name != "memories" or ".obsidian" in sample.names:
        return False
    is_other = sample.path.parent.name in (".serena", ".codex")
    return not is_other and any(name.endswith((".md", ".txt", ".xml")) for name in sample.names)


# --- notes of basic-memory: Markdown with observations and relations ---

_LOOKED_AT = 20  # maximum number of files examined in a folder
_OBSERVATION = re.compile(r"\[(?P<category>[^\]\[()]{1,60})\]\s+(?P<text>\S.*)", re.DOTALL)
_RELATION = re.compile(r"(?P<verb>[^\[\]]{1,120}?)\s+\[\[(?P<target>[^\]]+)\]\]")
_HASHTAG = re.compile(r"(?:^|\s)#([\w/-]+)")


def locate_basic_memory(home: Path) -> Iterable[Path]:
    """Return the folders of basic-memory's projects."""
    try:
        projects = json.loads((home / ".basic-memory" / "config.json").read_text())["projects"]
        values = [each["path"] if isinstance(each, dict) else each for each in projects.values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        values = []
    folders = [Path(value) for value in values if isinstance(value, str)]
    return folders or [home / "basic-memory"]


def recognize_basic_memory(sample: Sample) -> bool:
    """Return whether a note, or one of the first notes in a folder, has a permalink."""
    if not sample.is_folder:
        return sample.path.suffix == ".md" and b"\npermalink:" in sample.frontmatter
    notes = islice(sample.path.rglob("*.md"), _LOOKED_AT)
    return any(b"\npermalink:" in Sample(note).frontmatter for note in notes)


def read_basic_memory(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield each observation with the title of its note, each relation as a sentence, and the
    other passages.
    """
    text = reader.text(file)
    if text is None:
        return
    page = parse(text)
    title = one_line(page.fields.get("title")) or file.stem
    time, tags = find_time(page.fields, file), page_tags(reader, page.fields, file)
    for passage in page.passages:
        content, own = with_headings(passage), {}
        if relation := _RELATION.fullmatch(passage.text):
            own = {"type": "relation"}
            content = f"{title} {relation['verb']} {relation['target']}"
        elif observation := _OBSERVATION.fullmatch(passage.text):
            own = make_tags(_HASHTAG.findall(observation["text"]), type=observation["category"])
            content = f"{title}: {observation['text']}"
        yield Draft(content, tags=tags | own, created_at=time)


# --- bundles in the Open Knowledge Format: files with a type in their frontmatter ---

_RESERVED = ("index.md", "log.md")


def recognize_okf(sample: Sample) -> bool:
    """Return whether a folder is a bundle in the Open Knowledge Format.

    Either its index names a version of the format, or each of its first files has a type.
    """
    if not sample.is_folder:
        return False
    if b"\nokf_version:" in Sample(sample.path / "index.md").frontmatter:
        return True
    files = [file for file in sample.path.rglob("*.md") if file.name not in _RESERVED]
    first = list(islice(files, _LOOKED_AT))
    return bool(first) and all(b"\ntype:" in Sample(file).frontmatter for file in first)


def read_okf(reader: Reader, file: Path) -> Iterator[Item]:
    """Yield each concept as one statement, with its type, tags and time."""
    text = None if file.name in _RESERVED else reader.text(file)
    if text is None:
        return
    fields, body = split_frontmatter(text)
    title = one_line(fields.get("title")) or one_line(fields.get("description"))
    content = clean(body)
    if not fields.get("type") or not (content or title):
        reader.skip("files without a type or text")
        return
    if title and title not in content:
        content = f"{title}\n\n{content}".rstrip()
    tags = page_tags(reader, fields, file)
    yield Draft(content, tags=tags, created_at=find_time(fields, file))


SOURCES = {
    "basic-memory": Source.of_files(
        ("*.md",), recognize_basic_memory, read_basic_memory, locate_basic_memory
    ),
    "okf": Source.of_files(("*.md",), recognize_okf, read_okf),
    "anthropic": Source.of_files(
        ("*.md", "*.txt", "*.xml", "*.json", "*.yaml"), recognize_anthropic, read_file
    ),
    "markdown": Source(FILES, recognize, read, locate),
}
