"""Proposals: sentences from a session that may be worth remembering, stored for review.

`phrases` finds the sentences. This module leaves out sentences that say nothing new.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from memories.context.policy import MemoryPolicy, window_key
from memories.core.disk import open_file
from memories.embedders.scores import Rate, worth_rater
from memories.errors import InvalidInput, NotFound
from memories.hooks.phrases import REMEMBER, CandidateSentence, candidates
from memories.hooks.sentences import hash_sentences, repeats, split_sentences
from memories.hooks.session import Session
from memories.hooks.transcripts import USER, Utterance, folder_of
from memories.identity import git
from memories.identity.place import names_of
from memories.identity.project import Project
from memories.memories import Memories
from memories.models import SESSION, is_valid_in
from memories.write.suspicion import find_marks

WINDOW = "window"  # the tag that names the time window in which a memory was proposed
_SIMILAR = 20  # number of similar memories that a sentence is compared with
_MAX_SEEN = 200  # a sentence is compared with at most this many memories shown to the session
_MAX_QUERY = 1_000  # maximum length of a query made from a sentence, in characters

_INSTRUCTION_FILES = (
    "CLAUDE.md", "CLAUDE.local.md", "AGENTS.md", "AGENTS.override.md", "GEMINI.md", "MEMORY.md",
    ".cursorrules",
)  # fmt: skip
# The user's files, in the folder of each host.
_USER_INSTRUCTIONS = (
    ("claude-code", "CLAUDE.md"),
    ("codex", "AGENTS.md"),
    ("codex", "AGENTS.override.md"),
    ("gemini", ".gemini/GEMINI.md"),
)
_RULE_FOLDERS = ((".cursor/rules", "*.mdc"), (".claude/rules", "*.md"), (".cursor/rules", "*.md"))
_MAX_FILES, _MAX_FILE_BYTES = 64, 262_144


class SessionSource(NamedTuple):
    """The session in which something was said.

    Attributes:
        name: The host and the session, as used in file names.
        host: The host.
        folder: The agent's working folder.
        project: The project of that folder, if it has one.
        session: The session's state, which lists the memories shown to it.
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
        """The tags for all memories and turns from the session."""
        tags = {"agent": self.host}
        if self.project is not None:
            tags["project"] = self.project.name
            if self.project.branch is not None:
                tags["branch"] = self.project.branch
        return tags


def propose(
    memories: Memories,
    source: SessionSource,
    utterances: Sequence[Utterance],
    turn_ids: dict[Utterance, str],
    known: "KnownTexts",
) -> int:
    """Store the candidates that the policy accepts, pending review; return how many are new.

    Args:
        memories: The memories in the session's namespace.
        source: The session.
        utterances: The new utterances of the session.
        turn_ids: The id of the turn made from each utterance, if there is one.
        known: Texts that are already known.
    """
    config = memories.config
    policy = MemoryPolicy(
        config.memory_confidence_min,
        config.memory_max_per_window,
        functools.partial(_count, memories),
    )
    rate = worth_rater(memories.embedder)
    stored = 0
    for utterance in utterances:
        window = window_key(source.conversation, utterance.at)
        found = _find(utterance, rate)
        if found and utterance.role != USER and find_marks(utterance.text):
            continue  # the text may give instructions to a model
        for candidate in found:
            if not policy.should_store(candidate.kind, candidate.confidence):
                continue
            if find_marks(candidate.content):
                continue
            if known.has(candidate.content, utterance.role):
                continue
            if not policy.enforce_rate_limit(window):
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


def _find(utterance: Utterance, rate: Rate | None) -> list[CandidateSentence]:
    """Return the candidates in an utterance.

    Candidates in pasted text are left out, except a fact after a typed "Remember this:".
    """
    if not utterance.typed or utterance.typed == utterance.text:
        return candidates(utterance.text, utterance.role, rate)
    typed = candidates(utterance.typed, USER, rate)
    lines = utterance.typed.splitlines()
    if not any(line.rstrip().endswith((":", "：")) for line in lines):
        return typed
    found = candidates(utterance.text, USER, rate)
    requests = [each for each in found if each.phrase == REMEMBER]
    return [each for each in typed if each.phrase != REMEMBER] + requests


def _count(memories: Memories, window: str) -> int:
    """Return the number of memories proposed in a time window, including those not reviewed yet."""
    count = 0
    for pending in (True, False):
        page = memories.list(tags={WINDOW: window}, pending=pending, limit=1_000).memories
        count += sum(memory.namespace == memories.namespace for memory in page)
    return count


class KnownTexts:
    """Texts that are already known: shown to the session, remembered, or in instruction files."""

    def __init__(self, memories: Memories, source: SessionSource) -> None:
        """Initialize for a session; files and memories are read only when needed."""
        self._memories, self._source = memories, source
        # Memories of other projects don't count, since hooks don't recall them here.
        self._projects = names_of(None if source.project is None else source.project.name)

    def has(self, sentence: str, role: str) -> bool:
        """Return whether a sentence is already known.

        A sentence by an agent also counts as known if a hook showed it to the session, since
        agents repeat what they read. A sentence by the user does not, since it may have made the
        hook show the memory, perhaps one of another project.
        """
        if role != USER and self.was_shown(sentence):
            return True
        if repeats(sentence, self._instructions):
            return True
        hits = self._memories.search(sentence[:_MAX_QUERY], limit=_SIMILAR, min_confidence=0.0)
        texts = [
            hit.memory.content
            for hit in hits
            if hit.memory.tags.get("type") != SESSION
            and is_valid_in(hit.memory.tags, self._projects)
        ]
        return repeats(sentence, texts)

    def was_shown(self, sentence: str) -> bool:
        """Return whether a sentence repeats text that a hook showed to the session."""
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
                continue  # the memory has been forgotten
        return texts

    @functools.cached_property
    def _instructions(self) -> list[str]:
        project = self._source.project
        root = None if project is None else project.root
        return read_instructions(self._source.folder, root)


def read_instructions(folder: Path, root: Path | None) -> list[str]:
    """Return the sentences in a project's and the user's instruction files.

    Args:
        folder: The agent's working folder.
        root: The top folder of its project.
    """
    sentences: list[str] = []
    paths = dict.fromkeys(_instruction_files(folder, root))
    for file in [path for path in paths if path.is_file()][:_MAX_FILES]:
        try:
            with open_file(file) as stream:
                text = stream.read(_MAX_FILE_BYTES).decode("utf-8", "replace")
        except OSError:
            continue  # agents can't read the file either
        sentences += split_sentences(text)
    return sentences


def _instruction_files(folder: Path, root: Path | None) -> Iterable[Path]:
    """Yield the paths of instruction files, whether or not they exist."""
    top = root or folder
    for parent in (folder, *folder.parents):
        if parent == top or top in parent.parents:
            for name in _INSTRUCTION_FILES:
                yield parent / name
    yield top / ".claude" / "CLAUDE.md"
    for host, name in _USER_INSTRUCTIONS:
        yield Path(folder_of(host), name)
    for rules, pattern in _RULE_FOLDERS:
        for base in (top, Path.home()):
            yield from sorted((base / rules).glob(pattern))
    claude = Path(folder_of("claude-code"))
    yield from sorted((claude / "rules").glob("*.md"))
    checkout = None if root is None else git.find(root)
    # Claude Code keeps one folder for all working trees of a repository.
    main = folder if checkout is None else checkout.common.parent
    for place in dict.fromkeys((folder, top, main)):
        slug = re.sub(r"[^A-Za-z0-9]", "-", str(place))
        yield from sorted((claude / "projects" / slug / "memory").glob("*.md"))
