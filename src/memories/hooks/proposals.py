"""Proposals: sentences of a session that may be worth remembering, stored to wait for review.

A sentence needs a phrase from `phrases.txt`, such as "we decided to". The phrase is not enough:
questions, quotations, code, negations, suppositions and known facts are left out.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from memories.context.policy import MemoryPolicy, window_key
from memories.core.disk import open_file
from memories.errors import InvalidInput, NotFound
from memories.hooks.sentences import hash_sentences, repeats, split_sentences
from memories.hooks.session import Session
from memories.hooks.transcripts import ASSISTANT, TOOL, USER, Utterance
from memories.identity.project import Project
from memories.memories import Memories
from memories.models import SESSION

PREFERENCE, FACT = "preference", "fact"
MAX_CHARACTERS = 600  # of a sentence
# The shortest sentence in Latin letters; after "remember" it may be shorter.
_MIN_CHARACTERS, _MIN_WORDS = 12, 3
_MIN_REMEMBER_CHARACTERS, _MIN_REMEMBER_WORDS = 6, 2
_MIN_LETTERS = 0.6  # the part of a sentence that is letters or spaces
# Confidence that a sentence is worth keeping; see the setting `memory_confidence_min`.
_CONFIDENCE = {USER: 0.85, ASSISTANT: 0.75, TOOL: 0.7}
_REMEMBER_CONFIDENCE = 0.95
_REMEMBER = "remember"
_MARKED_BY_COLON = ("TODO:", "FIXME:")
_WITHOUT_PHRASE = ("preference:", "important")  # such a phrase does not become part of the memory
# Words that connect "remember" with a fact that needs no verb.
_CLEAR_LEADS = (" that ", ":", "—", "–", " dass ", " que ", " che ", " dat ", " что ")
_ASKS = re.compile(r"[?？]\W*$")

WINDOW = "window"  # the tag used to count the memories of a time window
_SIMILAR = 5  # memories compared with a sentence
_MAX_SEEN = 200  # memories shown to the session that are compared with a sentence
_MAX_QUERY = 1_000  # characters

_INSTRUCTION_FILES = (
    "CLAUDE.md", "CLAUDE.local.md", "AGENTS.md", "AGENTS.override.md", "GEMINI.md", "MEMORY.md",
    ".cursorrules",
)  # fmt: skip
_USER_INSTRUCTIONS = (
    ".claude/CLAUDE.md",
    ".codex/AGENTS.md",
    ".codex/AGENTS.override.md",
    ".gemini/GEMINI.md",
)
_RULE_FOLDERS = ((".cursor/rules", "*.mdc"), (".claude/rules", "*.md"), (".cursor/rules", "*.md"))
_MAX_FILES, _MAX_FILE_BYTES = 64, 262_144


class Candidate(NamedTuple):
    """A sentence that may be worth remembering.

    Attributes:
        content: The sentence.
        kind: The type of the memory.
        confidence: The confidence that it is worth keeping.
        phrase: The phrase in it, such as `remember` or `decided to`.
    """

    content: str
    kind: str
    confidence: float
    phrase: str


class Phrase(NamedTuple):
    """A phrase from `phrases.txt`.

    Attributes:
        name: Its name.
        kind: The type of the memory.
        roles: Who may use it: the first letters of the roles.
        pattern: Its pattern.
    """

    name: str
    kind: str
    roles: str
    pattern: re.Pattern[str]


class SessionSource(NamedTuple):
    """The session in which something was said.

    Attributes:
        name: Host and session, as used in file names.
        host: The host.
        folder: The working folder of the agent.
        project: The project of that folder, if it has one.
        session: The memories shown to the session.
    """

    name: str
    host: str
    folder: Path
    project: Project | None
    session: Session

    @property
    def conversation(self) -> str:
        """The name of the session's conversation."""
        return self.name.replace(".", ":", 1)

    @property
    def tags(self) -> dict[str, str]:
        """The tags on everything that comes from the session."""
        tags = {"agent": self.host}
        if self.project is not None:
            tags["project"] = self.project.name
            if self.project.branch is not None:
                tags["branch"] = self.project.branch
        return tags


@functools.cache
def _read_phrases() -> tuple[list[Phrase], dict[str, str]]:
    """Return the phrases in `phrases.txt`, and its other patterns by name."""
    phrases: list[Phrase] = []
    patterns: dict[str, str] = {}
    text = Path(__file__).with_name("phrases.txt").read_text("utf-8")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, *fields = line.split("\t")
        if name == "phrase":
            phrase, kind, roles, pattern = fields
            phrases.append(Phrase(phrase, kind, roles, re.compile(pattern)))
        else:
            patterns[name] = fields[0]
    return phrases, patterns


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(_read_phrases()[1][name])


@functools.cache
def _request_pattern() -> re.Pattern[str]:
    """Return the pattern of a request to remember something, up to the fact itself."""
    parts = _read_phrases()[1]
    polite = parts["polite"]
    return re.compile(
        rf"(?i)^{polite}(?:(?P<asking>{parts['asking']}){polite})?"
        rf"(?P<verb>{parts['remember']})(?P<lead>{parts['lead']})"
    )


def candidates(text: str, role: str) -> list[Candidate]:
    """Return the sentences of a message that may be worth remembering, in order, each once.

    Args:
        text: The message.
        role: Its author: `user`, `assistant` or `tool`.
    """
    by_content: dict[str, Candidate] = {}
    sentences = split_sentences(text)
    for number, sentence in enumerate(sentences):
        candidate = None
        if role == USER:
            following = sentences[number + 1] if number + 1 < len(sentences) else ""
            candidate = _find_request(sentence, following)
        candidate = candidate or _find_phrase(sentence, role)
        if candidate is not None and _is_sound(candidate):
            by_content.setdefault(candidate.content.casefold(), candidate)
    return list(by_content.values())


def _find_request(sentence: str, following: str) -> Candidate | None:
    """Return the fact that a user asks to remember, perhaps in the sentence after a colon."""
    match = _pattern("remember_cjk").match(sentence)
    asking, verb, lead = "", "", ":"
    if match is None:
        match = _request_pattern().match(sentence)
        if match is None:
            return None
        asking, verb, lead = match["asking"] or "", match["verb"], match["lead"] or ":"
    if _ASKS.search(sentence) and not re.match(r"(?i)(?:can|could|would|will) you", asking):
        return None
    fact = sentence[match.end() :].strip()
    if not fact and lead.rstrip().endswith((":", "—", "–")):
        fact = following
    if not fact or _pattern("recalls").match(fact):
        return None
    is_action = re.match(r"(?i)to\b", fact) is not None
    if not any(words in f" {lead} " for words in _CLEAR_LEADS):
        is_statement = is_action or _pattern("states").search(fact) is not None
        if not is_statement or _pattern("stores").match(verb):
            return None
    likes = re.search(r"(?i)\b(?:prefer\w*|favou?rite|like|love|hate)\b", fact)
    content = re.sub(r"[?？]\s*$", ".", sentence if is_action else fact)
    kind = PREFERENCE if likes else FACT
    return Candidate(_capitalize(content), kind, _REMEMBER_CONFIDENCE, _REMEMBER)


def _find_phrase(sentence: str, role: str) -> Candidate | None:
    """Return a sentence with a phrase, unless it is a question, supposition, negation or
    quotation."""
    if _ASKS.search(sentence) or (role != USER and _pattern("small_talk").match(sentence)):
        return None
    for phrase in _read_phrases()[0]:
        match = phrase.pattern.search(sentence) if role[0] in phrase.roles else None
        if match is None:
            continue
        start, end = match.span()
        before = sentence[:start]
        if _is_quoted(sentence, start):
            return None
        if _pattern("denied").search(before) or _pattern("reported").search(before):
            return None
        is_label = start == 0 and sentence[end - 1 : end] in ": "
        asserted = before if is_label or phrase.name in _MARKED_BY_COLON else sentence
        if _pattern("supposed").search(asserted):
            return None
        content = sentence[end:] if is_label and phrase.name in _WITHOUT_PHRASE else sentence
        return Candidate(_capitalize(content), phrase.kind, _CONFIDENCE[role], phrase.name)
    return None


def _is_quoted(sentence: str, position: int) -> bool:
    quotations = _pattern("quoted").finditer(sentence)
    return any(quotation.start() <= position < quotation.end() for quotation in quotations)


def _is_sound(candidate: Candidate) -> bool:
    """Return whether a text looks like a whole sentence."""
    content = candidate.content
    characters, words = _MIN_CHARACTERS, _MIN_WORDS
    if candidate.phrase == _REMEMBER:
        characters, words = _MIN_REMEMBER_CHARACTERS, _MIN_REMEMBER_WORDS
    is_short = len(content) < characters or len(re.findall(r"\w+", content)) < words
    if content.isascii() and is_short:
        return False
    letters = sum(character.isalpha() or character.isspace() for character in content)
    is_prose = letters >= _MIN_LETTERS * len(content)
    return is_prose and len(content) <= MAX_CHARACTERS and content[-1] not in ":,;({["


def _capitalize(content: str) -> str:
    content = content.strip().strip("\"“”'` ")
    return content[:1].upper() + content[1:] if content[:2].islower() else content


def propose(
    memories: Memories,
    source: SessionSource,
    utterances: Sequence[Utterance],
    turn_ids: dict[Utterance, str],
    known: "KnownTexts",
) -> int:
    """Store the candidates that the policy accepts, to wait for review; return how many are new.

    Args:
        memories: The memories of the session's namespace.
        source: The session.
        utterances: The new utterances of the session.
        turn_ids: The ids of the turns made from them.
        known: Texts that are not news.
    """
    config = memories.config
    policy = MemoryPolicy(
        config.memory_confidence_min,
        config.memory_max_per_window,
        functools.partial(_count, memories),
    )
    stored = 0
    for utterance in utterances:
        window = window_key(source.conversation, utterance.at)
        for candidate in candidates(utterance.text, utterance.role):
            if not policy.should_store(candidate.kind, candidate.confidence):
                continue
            if known.has(candidate.content) or not policy.enforce_rate_limit(window):
                continue
            tags = source.tags
            tags["type"] = candidate.kind
            tags[WINDOW] = window
            tags["phrase"] = candidate.phrase.rstrip(":")
            result = memories.create(
                candidate.content,
                tags=tags,
                confidence=candidate.confidence,
                pending=True,
                source=turn_ids.get(utterance) or source.conversation,
            )
            stored += result.stored
    return stored


def _count(memories: Memories, window: str) -> int:
    """Return the number of memories in a window, including those that await review."""
    count = 0
    for pending in (True, False):
        page = memories.list(tags={WINDOW: window}, pending=pending, limit=1_000).memories
        count += sum(memory.namespace == memories.namespace for memory in page)
    return count


class KnownTexts:
    """Texts that are not news: shown to the session, remembered, or in instruction files."""

    def __init__(self, memories: Memories, source: SessionSource) -> None:
        """Create it for a session; files and memories are read when needed."""
        self._memories, self._source = memories, source

    def has(self, sentence: str) -> bool:
        """Return whether a sentence says nothing new."""
        if self.was_shown(sentence) or repeats(sentence, self._instructions):
            return True
        hits = self._memories.search(sentence[:_MAX_QUERY], limit=_SIMILAR, min_confidence=0.0)
        return repeats(
            sentence, [hit.memory.content for hit in hits if hit.memory.tags.get("type") != SESSION]
        )

    def was_shown(self, sentence: str) -> bool:
        """Return whether a sentence repeats text that a hook put into the session."""
        if hash_sentences(sentence) & self._source.session.sentences:
            return True
        return bool(self._shown) and repeats(sentence, self._shown)

    @functools.cached_property
    def _shown(self) -> list[str]:
        texts = []
        for memory_id in sorted(self._source.session.seen)[-_MAX_SEEN:]:
            if "#" in memory_id:
                continue  # a turn
            try:
                texts.append(self._memories.get(memory_id).content)
            except (NotFound, InvalidInput):
                continue  # it has been forgotten
        return texts

    @functools.cached_property
    def _instructions(self) -> list[str]:
        project = self._source.project
        root = None if project is None else project.root
        return read_instructions(self._source.folder, root, Path.home())


def read_instructions(folder: Path, root: Path | None, user: Path) -> list[str]:
    """Return the sentences of the instruction files of a project and of the user.

    Args:
        folder: The working folder of the agent.
        root: The top folder of its project.
        user: The home folder of the user.
    """
    sentences: list[str] = []
    paths = dict.fromkeys(_instruction_files(folder, root, user))
    for file in [path for path in paths if path.is_file()][:_MAX_FILES]:
        try:
            with open_file(file) as stream:
                text = stream.read(_MAX_FILE_BYTES).decode("utf-8", "replace")
        except OSError:
            continue  # agents can't read it either
        sentences += split_sentences(text)
    return sentences


def _instruction_files(folder: Path, root: Path | None, user: Path) -> Iterable[Path]:
    """Yield the paths of instruction files, whether they exist or not."""
    top = root or folder
    for place in (folder, *folder.parents):
        if place == top or top in place.parents:
            for name in _INSTRUCTION_FILES:
                yield place / name
    yield top / ".claude" / "CLAUDE.md"
    for name in _USER_INSTRUCTIONS:
        yield user / name
    for rules, pattern in _RULE_FOLDERS:
        for base in (top, user):
            yield from sorted((base / rules).glob(pattern))
    slug = re.sub(r"[^A-Za-z0-9]", "-", str(folder))
    yield from sorted((user / ".claude" / "projects" / slug / "memory").glob("*.md"))
