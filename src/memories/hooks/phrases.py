"""Finds the sentences of a message that may be worth remembering; all functions are pure.

A sentence is proposed for one of these reasons:

- The user asks the agent to remember it.
- It begins with a label such as `TODO:`.
- It has a phrase from `languages/phrases`: a standing instruction, a team habit, a decision,
  something about the user, a preference, a cause, a lesson. A user's English sentence must also
  have a sufficient rating (see `embedders.scores`).
- It is the user's, and its rating is so high that it needs no phrase. A German, French or Spanish
  sentence is rated by its English gloss.

Questions, quotations, reports, suppositions, denials, log lines, and instructions that concern only
the current task are never proposed. After a line such as "Summarize this email:", only requests to
remember are proposed, since someone else wrote the text. After a sentence such as "Act as a
pirate", no instructions are proposed, since they describe a role for this chat.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from memories import languages
from memories.embedders.scores import Rate
from memories.hooks.sentences import Sentence, read_sentences
from memories.hooks.transcripts import ASSISTANT, TOOL, USER
from memories.languages import gloss

PREFERENCE, FACT, DECISION = "preference", "fact", "decision"
MAX_CHARACTERS = 600  # maximum length of a sentence
_MAX_SENTENCES = 500  # maximum number of sentences read in a message; a longer message was pasted
# The minimum length of a sentence in the Latin alphabet. After "remember", a sentence may be
# shorter.
_MIN_CHARACTERS, _MIN_WORDS = 12, 3
_MIN_REMEMBER_CHARACTERS, _MIN_REMEMBER_WORDS = 6, 2
_MIN_LETTERS = 0.6  # minimum fraction of a sentence that must be letters or spaces
# Confidence that a sentence is worth keeping; see the setting `memory_confidence_min`.
_CONFIDENCE = {USER: 0.85, ASSISTANT: 0.75, TOOL: 0.7}
_REMEMBER_CONFIDENCE = 0.95
REMEMBER = "remember"
_OF_NOW = ("moment", "task")
_QUOTATION = '"x"'  # replaces each quotation
_STATEMENT = "statement"  # a sentence that needs no phrase because it is rated highly enough
# The minimum rating of a proposed English sentence, the rating that a phrase adds, and the minimum
# rating of the English gloss of a sentence in another language.
_MIN_WORTH, _WORTH_OF_PHRASE, _MIN_WORTH_OF_GLOSS = -0.6, 1.0, -0.7
_WITHOUT_LABEL = ("preference:", "important")  # labels that don't become part of the memory
# If one of these comes between "remember" and the fact, the fact needs no verb.
_CLEAR_LEADS = (
    " that ", ":", "—", "–", " dass ", " que ", " che ", " dat ", " что ", " że ", " що ",
    " ki ", " että ", " rằng ", " ότι ", " πως ",
)  # fmt: skip
# The start of a line of a log, of a listing, or of an error.
_LOG = re.compile(
    r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d|\d\d:\d\d:\d\d[.,]\d"
    r"|\[(?:DEBUG|INFO|WARN|WARNING|ERROR)\]|\d+→|[\w.]+(?:Error|Exception): "
)
_ASKS = re.compile(r"[?？؟]\W*$")
_GREEK_ASKS = re.compile(r";\W*$")  # folding turns the Greek question mark into this
_ENCLOSED = re.compile(r"\"[^\"]*\"|“[^“”]*”|'[^']*'|`[^`]*`")
_NAME = re.compile(r"<(\w+)>")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


class CandidateSentence(NamedTuple):
    """A sentence that may be worth remembering.

    Attributes:
        content: The sentence.
        kind: The type of the memory.
        confidence: The confidence that the sentence is worth keeping.
        phrase: The kind of phrase in it, such as `remember` or `decision`.
    """

    content: str
    kind: str
    confidence: float
    phrase: str


class Label(NamedTuple):
    """A label from `labels.txt` that begins a sentence.

    Attributes:
        name: The name of the label.
        kind: The type of the memory.
        roles: The first letters of the roles that may use the label.
        pattern: The pattern of the label.
    """

    name: str
    kind: str
    roles: str
    pattern: re.Pattern[str]


class PhraseKind(NamedTuple):
    """A kind of phrase.

    Attributes:
        kind: The type of the memory.
        roles: The first letters of the roles that may use such a phrase.
        may_be_momentary: Whether such a phrase may be meant only for this moment.
    """

    kind: str
    roles: str
    may_be_momentary: bool


# The kinds of phrases in the files of `languages/phrases`, in the order in which they are tried.
_KINDS = {
    "rule": PhraseKind(PREFERENCE, "u", may_be_momentary=True),
    "decision": PhraseKind(DECISION, "ua", may_be_momentary=True),
    "choice": PhraseKind(DECISION, "u", may_be_momentary=True),
    "taste": PhraseKind(PREFERENCE, "u", may_be_momentary=True),
    "self": PhraseKind(FACT, "u", may_be_momentary=False),
    "cause": PhraseKind(FACT, "uat", may_be_momentary=False),
    "lesson": PhraseKind(FACT, "uat", may_be_momentary=False),
    "habit": PhraseKind(FACT, "u", may_be_momentary=True),
}
_NEVER = re.compile(r"(?!)")


class Language(NamedTuple):
    """A language's patterns, for text normalized by `languages.fold`.

    Attributes:
        patterns: The patterns, keyed by name. There is one for each kind of phrase, and one for
            each context in which a phrase doesn't count.
    """

    patterns: dict[str, re.Pattern[str]]

    def pattern(self, name: str) -> re.Pattern[str]:
        """Return the pattern with a name, or one that never matches if the language has none."""
        return self.patterns.get(name, _NEVER)

    def denies(self, text: str) -> bool:
        """Return whether a sentence is a question, a supposition or a report."""
        return self.supposes(text) or self.pattern("question").search(text) is not None

    def supposes(self, text: str) -> bool:
        """Return whether a sentence is a supposition or a report."""
        asserted = self.pattern("certain").sub(" ", text)
        return (
            self.pattern("doubt").search(asserted) is not None
            or self.pattern("reported").search(text) is not None
        )

    def find(self, text: str, role: str) -> str | None:
        """Return the kind of phrase in a sentence; None if there is none, or if it is negated."""
        if self.denies(text):
            return None
        is_momentary = self.pattern("moment").search(text) is not None
        for name, (_, roles, may_be_momentary) in _KINDS.items():
            if role[0] not in roles or (may_be_momentary and is_momentary):
                continue
            match = self.pattern(name).search(text)
            if match and not self.pattern("denied").search(text[: match.start()]):
                return name
        return None


def candidates(text: str, role: str, rate: Rate | None = None) -> list[CandidateSentence]:
    """Return the sentences in a message that may be worth remembering, in order, each only once.

    Args:
        text: The message.
        role: Its author: `user`, `assistant` or `tool`.
        rate: Rates whether an English sentence is worth remembering; see `embedders.scores`. If
            None, phrases alone decide.
    """
    by_content: dict[str, CandidateSentence] = {}
    sentences = read_sentences(text)
    refused, previous = _pattern("refused"), ""
    is_handed_over = is_role = False
    for number, (said, lead) in enumerate(sentences[:_MAX_SENTENCES]):
        following = sentences[number + 1] if number + 1 < len(sentences) else Sentence("")
        sentence = _pattern("ok").sub(".", said)
        whole = f"{lead} {sentence}".lstrip()
        is_refused = refused.search(whole) or (
            previous.endswith((":", "：")) and refused.search(previous)
        )
        previous = sentence
        is_log = _is_log(sentence, following.text, text, role)
        if is_log or len(whole) > MAX_CHARACTERS or following.lead.endswith(f"{said}:"):
            continue
        candidate = None
        if role == USER:
            if is_refused:
                continue
            candidate = _find_request(whole, following.text)
            is_handed_over = is_handed_over or _hands_over(sentence, text)
            is_role = is_role or _gives_role(sentence)
        if not is_handed_over and not (lead and _is_denied_by(lead)):
            candidate = candidate or _find_label(whole, role)
            candidate = candidate or _find_phrase(whole, role, text, rate)
            if candidate is None and lead:
                candidate = _find_phrase(sentence, role, text, rate)
                candidate = candidate and candidate._replace(content=_capitalize(whole))
        is_of_role = is_role and candidate and candidate.phrase in ("rule", _STATEMENT)
        if candidate is not None and not is_of_role and _is_sound(candidate):
            by_content.setdefault(candidate.content.casefold(), candidate)
    return list(by_content.values())


def _is_denied_by(lead: str) -> bool:
    """Return whether a lead makes the items of its list a question, a supposition or a report, or
    limits them to this moment.

    Headings such as "How we work" and requests such as "Could you follow these rules" don't.
    """
    if _pattern("asks").search(lead):
        return True
    text = languages.fold(_pattern("requests").sub(" ", lead))
    if _pattern("momentary").search(text):
        return True
    return any(read_language(code).supposes(text) for code in (*languages.detect(lead), "en"))


def _is_log(sentence: str, following: str, message: str, role: str) -> bool:
    """Return whether a sentence is a line of a log, or of a file that an agent or a tool shows.

    An ordinary sentence may begin like a line of a log. It isn't one if another sentence follows it
    on the same line of the message.
    """
    if role != USER and re.match(r"\d+\t", sentence):
        return True
    if not _LOG.match(sentence):
        return False
    return not following or f"{sentence} {following}" not in message


def _hands_over(sentence: str, message: str) -> bool:
    """Return whether a line introduces a text by someone else, such as an email to summarize.

    A line before a quotation or a URL doesn't count, because the user's own sentences follow these.
    """
    rest = message.partition(sentence)[2] if sentence.endswith((":", "：", "?", "？")) else ""
    following = rest.lstrip()
    gap = rest[: len(rest) - len(following)]
    # Right after a question, the user's own sentences may follow.
    breaks = 1 if sentence.endswith((":", "：")) else 2
    if gap.count("\n") < breaks or following.startswith((">", "```", "~~~", "http")):
        return False
    text = _pattern("quoted").sub(_QUOTATION, languages.fold(f"{sentence[:-1]}:".lstrip("¿ ")))
    for code in (*languages.detect(sentence), *languages.detect(message), "en"):
        language = read_language(code)
        if language.pattern("handover").search(text) and language.find(text, USER) is None:
            return True
    return False


def _gives_role(sentence: str) -> bool:
    """Return whether a sentence gives the agent a role for this chat, as in "Act as a pirate"."""
    text = languages.fold(sentence)
    codes = ("en", *languages.LATIN)
    return any(read_language(code).pattern("persona").search(text) for code in codes)


def _find_request(sentence: str, following: str) -> CandidateSentence | None:
    """Return the fact that a user wants remembered, which may be the sentence after a colon."""
    if _pattern("remembered").search(sentence):
        return CandidateSentence(sentence, FACT, _REMEMBER_CONFIDENCE, REMEMBER)
    match = _pattern("remember_that").match(sentence)
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
    is_action = re.match(r"(?i)to\b", fact) is not None
    moment = read_language("en").pattern("moment")
    is_momentary = is_action and moment.search(languages.fold(fact)) is not None
    if not fact or is_momentary or _pattern("recalls").match(fact):
        return None
    if not any(words in f" {lead} " for words in _CLEAR_LEADS):
        is_statement = is_action or _pattern("states").search(fact) is not None
        if not is_statement or _pattern("stores").match(verb):
            return None
    likes = re.search(r"(?i)\b(?:prefer\w*|favou?rite|like|love|hate)\b", fact)
    content = re.sub(r"[?？]\s*$", ".", sentence if is_action else fact)
    kind = PREFERENCE if likes else FACT
    return CandidateSentence(_capitalize(content), kind, _REMEMBER_CONFIDENCE, REMEMBER)


def _find_label(sentence: str, role: str) -> CandidateSentence | None:
    """Return a sentence that begins with a label, unless it is a question."""
    if _ASKS.search(sentence):
        return None
    for label in _read_labels()[0]:
        match = label.pattern.match(sentence) if role[0] in label.roles else None
        if match is not None:
            content = sentence[match.end() :] if label.name in _WITHOUT_LABEL else sentence
            return CandidateSentence(
                _capitalize(content), label.kind, _CONFIDENCE[role], label.name
            )
    return None


def _find_phrase(
    sentence: str, role: str, message: str, rate: Rate | None
) -> CandidateSentence | None:
    """Return the sentence if it has a phrase or a high rating; see the module's docstring."""
    if role != USER and _pattern("small_talk").match(sentence):
        return None
    text = _pattern("quoted").sub(_QUOTATION, languages.fold(sentence))
    codes = (*languages.detect(sentence), "en")
    asks = _GREEK_ASKS if "el" in codes else _ASKS
    if asks.search(text):
        polite = read_language("en").pattern("polite").match(text)
        if polite is None:
            return None
        text = text[polite.end() :].rstrip("? ")
        sentence = re.sub(r"[?]\W*$", ".", sentence)
    name = _find_in_languages(text, role, codes)
    english = read_language("en").pattern("english")
    if codes == ("en",) and role == USER and rate is not None and english.search(text):
        name = _weigh(text, sentence, name, rate)
    elif name is None:
        detected = (*codes[:-1], *languages.detect(message), "en")
        guesses = (*codes, *detected, *languages.LATIN)
        if not any(read_language(code).denies(text) for code in guesses):
            name = _find_in_languages(text, role, guesses)
        if name is None and role == USER and rate is not None:
            name = _weigh_gloss(text, sentence, detected, rate)
    if name is None:
        return None
    kind = FACT if name == _STATEMENT else _KINDS[name].kind
    return CandidateSentence(_capitalize(sentence), kind, _CONFIDENCE[role], name)


def _weigh(text: str, sentence: str, name: str | None, rate: Rate) -> str | None:
    """Return the kind of an English sentence if it is worth keeping; a phrase raises its rating.

    Args:
        text: The sentence, normalized by `languages.fold` and without quotations.
        sentence: The sentence.
        name: The kind of phrase in it, if it has one.
        rate: See `candidates`.
    """
    if name is not None:
        return name if rate(sentence) + _WORTH_OF_PHRASE >= _MIN_WORTH else None
    english = read_language("en")
    if english.denies(text) or any(english.pattern(kind).search(text) for kind in _OF_NOW):
        return None
    return _STATEMENT if rate(sentence) >= _MIN_WORTH else None


def _weigh_gloss(text: str, sentence: str, codes: Sequence[str], rate: Rate) -> str | None:
    """Return the kind of a sentence in another language if its English gloss is worth keeping.

    Args:
        text: The sentence, normalized by `languages.fold` and without quotations.
        sentence: The sentence.
        codes: The languages that it may be in, the likeliest first.
        rate: See `candidates`.
    """
    if codes[0] not in gloss.LANGUAGES or _QUOTATION in text:
        return None
    for code in codes:
        language = read_language(code)
        if language.denies(text) or any(language.pattern(kind).search(text) for kind in _OF_NOW):
            return None
    return _STATEMENT if rate(gloss.gloss(sentence, codes[0])) >= _MIN_WORTH_OF_GLOSS else None


def _find_in_languages(text: str, role: str, codes: Sequence[str]) -> str | None:
    """Return the kind of phrase found in a sentence, trying the languages in order."""
    for code in dict.fromkeys(codes):
        name = read_language(code).find(text, role)
        if name is not None:
            return name
    return None


def _is_sound(candidate: CandidateSentence) -> bool:
    """Return whether a text looks like a whole sentence."""
    content = candidate.content
    characters, words = _MIN_CHARACTERS, _MIN_WORDS
    if candidate.phrase == REMEMBER:
        characters, words = _MIN_REMEMBER_CHARACTERS, _MIN_REMEMBER_WORDS
    is_short = len(content) < characters or len(re.findall(r"\w+", content)) < words
    if content.isascii() and is_short:
        return False
    letters = sum(character.isalnum() or character.isspace() for character in content)
    is_prose = letters >= _MIN_LETTERS * len(content)
    return is_prose and len(content) <= MAX_CHARACTERS and content[-1] not in ":：,;({["


def _capitalize(content: str) -> str:
    content = content.strip()
    enclosed = _ENCLOSED.fullmatch(content)
    content = content[1:-1] if enclosed else content
    return content[:1].upper() + content[1:] if content[:2].islower() else content


# --- files


@functools.cache
def read_language(code: str) -> Language:
    """Return a language's patterns from `languages/phrases`."""
    file = Path(languages.__file__).parent / "phrases" / f"{code}.txt"
    parts: dict[str, list[str]] = {}
    for name, pattern in _read_lines(file):
        whole = _NAME.sub(lambda match: parts[match[1]][0], pattern)
        folded = _NOT_ASCII.sub(lambda match: languages.fold(match[0]), whole)
        parts.setdefault(name, []).append(folded)
    return Language({name: re.compile("|".join(lines)) for name, lines in parts.items()})


def _read_lines(file: Path) -> Iterator[list[str]]:
    for line in file.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            yield line.split("\t")


@functools.cache
def _read_labels() -> tuple[list[Label], dict[str, str]]:
    """Return the labels in `labels.txt`, and its other patterns, keyed by name."""
    labels: list[Label] = []
    patterns: dict[str, str] = {}
    for name, *fields in _read_lines(Path(__file__).with_name("labels.txt")):
        if name == "label":
            label, kind, roles, pattern = fields
            labels.append(Label(label, kind, roles, re.compile(pattern)))
        else:
            patterns[name] = fields[0]
    return labels, patterns


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(_read_labels()[1][name])


@functools.cache
def _request_pattern() -> re.Pattern[str]:
    """Return the pattern of a request to remember something, up to the fact itself."""
    parts = _read_labels()[1]
    polite = parts["polite"]
    return re.compile(
        rf"(?i)^{polite}(?:(?P<asking>{parts['asking']}){polite})?"
        rf"(?P<verb>{parts['remember']})(?P<lead>{parts['lead']})"
    )
