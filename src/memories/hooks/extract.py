"""Which sentences of what was said may be worth remembering: those with a phrase that says so.
Pure.

A phrase alone is not enough: questions, quotations, code, what is denied, and what is only supposed
are left out. What is found is a proposal: it waits until a person accepts it.
"""

import functools
import re
from typing import NamedTuple

USER, ASSISTANT, TOOL = "user", "assistant", "tool"
MOST = 600  # characters of a sentence
_LEAST, _LEAST_TOLD = (
    (12, 3),
    (6, 2),
)  # characters and words of one in Latin letters; where a person said "remember"
PREFERENCE, FACT, PROJECT, DECISION = "preference", "fact", "project", "decision"
# How sure it is that a sentence is meant to last; see the setting `memory_confidence_min`.
_SURE = {USER: 0.85, ASSISTANT: 0.75, TOOL: 0.7}
_TOLD = 0.95  # a person said "remember"


class Candidate(NamedTuple):
    """A sentence that may be worth remembering.

    Attributes:
        content: The sentence.
        kind: The type of the memory.
        confidence: How sure it is that it is meant to last.
        by: The phrase that it has, such as `remember` or `decided to`.
    """

    content: str
    kind: str
    confidence: float
    by: str


class _Phrase(NamedTuple):
    by: str
    kind: str
    roles: str
    pattern: str


_WE = r"(?:we|i|the team|they|user|you and i|it was|was|'ve|have|has|had|finally|then|also|just|so|and|,|\s)"
# Which role may say it: u a person, a an assistant, t a tool.
_PHRASES = (
    _Phrase("TODO:", PROJECT, "ua", r"^(?:TODO|To-?do)(?:\([^)]{1,40}\))?:\s*(?=\S)"),
    _Phrase("FIXME:", PROJECT, "ua", r"^(?:FIXME)(?:\([^)]{1,40}\))?:\s*(?=\S)"),
    _Phrase("preference:", PREFERENCE, "ua", r"^(?i:(?:my |user )?preferences?):\s*(?=\S)"),
    _Phrase("preference:", PREFERENCE, "u", r"(?i)^(?:and |also |btw |fyi |,|\s)*i (?:always |really |strongly |usually )?prefer\b"),
    _Phrase("important", FACT, "u", r"(?i)^(?:very |also )?important(?: note)?\s*[:!—–-]\s*(?=\S)"),
    _Phrase("important", FACT, "u", r"(?i)^(?:but |and |also )?it(?:'s| is) (?:very |really |super )?important (?:that|to|for)\b"),
    _Phrase("important", FACT, "u", r"(?i)^the (?:most )?important (?:thing|part|point|rule)\b.{0,80}\bis\b"),
    _Phrase("decided to", DECISION, "ua", r"(?i)\b(?:have |has |had )?(?:also |finally |now )?decided (?:to|that|on|against|not to)\b"),
    _Phrase("decided to", DECISION, "ua", r"(?i)^(?:the |our |final )*decision(?: is| was)?(?::|\s+(?:to|that))\s*(?=\S)"),
    _Phrase("learned that", FACT, "uat", r"(?i)\b(?:learned|learnt) that\b|^(?:lesson|lessons? learned|learnings?)\s*:\s*(?=\S)"),
    _Phrase("discovered", FACT, "uat", r"(?i)\b(?:discovered|found out) (?:that|the|a|an|why|how)\b"),
    _Phrase("solved by", FACT, "uat", r"(?i)\b(?:solved|fixed|resolved) (?:it |this |that )?by\b|\broot cause (?:was|is)\b|^root cause:\s*(?=\S)"),
    # The same in other languages; the first group of letters is theirs.
    _Phrase("decided to", DECISION, "ua", (
        r"(?i)\b(?:haben|hat|habe) (?:uns |mich |sich )?(?:\w+ ){0,4}?(?:entschieden|beschlossen)\b|\bbeschlossen, "
        r"|\b(?:avons|ai|a|ont) décidé (?:de|que|d')|\b(?:hemos|he|han|ha) decidido\b|\bdecidimos\b|\babbiamo deciso\b"
        r"|\b(?:hebben|heb) besloten\b|\bмы решили\b|\bрешено:|(?:决定|決定)(?:了|した|しました)?"
    )),
    _Phrase("learned that", FACT, "ua", (
        r"(?i)\bgelernt, dass\b|\bherausgefunden, dass\b|\b(?:appris|découvert) que\b|\b(?:aprendido|aprendimos|descubierto|"
        r"descubrimos) que\b|\b(?:imparato|scoperto) che\b|\b(?:aprendemos|descobrimos) que\b|\b(?:geleerd|ontdekt) dat\b"
    )),
    _Phrase("solved by", FACT, "ua", (
        r"(?i)\bgelöst (?:durch|mit|indem)\b|\brésolu (?:en|par)\b|\b(?:resuelto|solucionado) (?:con|por)\b|\brisolto con\b"
    )),
    _Phrase("important", FACT, "u", r"(?i)^(?:wichtig|important|importante|belangrijk|важно|重要)\s*[:：]\s*(?=\S)"),
    _Phrase("preference:", PREFERENCE, "u", (
        r"(?i)^(?:ich bevorzuge|je préfère|prefiero|preferisco|prefiro|ik heb liever|я предпочитаю)\b"
    )),
)  # fmt: skip
_POLITE = r"(?:(?:please|also|and|ok(?:ay)?|so|hey|btw|fyi|note|now|well|thanks|bitte|por favor|s'il te plaît)[,:;!.]?\s+)*"
_ASKED = r"(?:(?:can|could|would|will) you\s+(?:please\s+)?|i (?:want|need|would like|'d like) you to\s+|make sure (?:to|you)\s+|you (?:should|must|need to)\s+|always\s+)"
_REMEMBER = (
    r"(?:remember|memorize|memorise|keep in mind|bear in mind|note down|note|make a note|don['’]t forget|do not forget|never forget|"
    r"store|save|merke? dir|denk daran|vergiss nicht|souviens-toi|retiens|rappelle-toi|n'oublie pas|recuerda|no olvides|"
    r"ricorda(?:ti)?|non dimenticare|lembre-se|não esqueça|onthoud|vergeet niet|запомни|не забудь)"
)
_WHAT = (
    r"(?:(?:\s*(?:this|the following|das|ceci|esto|questo|isto|dit|это))?(?:\s+(?:for (?:later|me|future sessions|next time)|in (?:your )?memory|to (?:your )?memory))?"
    r"\s*[:—–]\s*|,?\s+(?:that|dass|que|che|dat|что|de que)\s+|,\s*|\s+)"
)
_CJK = r"^(?:请)?(?:记住|記住|覚えて(?:おいて)?(?:ください)?|忘れないで(?:ください)?)[:：,，、]?\s*(?=\S)"
# Behind "remember" alone, what makes the rest a statement rather than something that a program is
# to do.
_STATES = re.compile(
    r"(?i)\b(?:is|are|was|were|am|'s|'re|has|have|had|uses?|used|prefers?|likes?|loves?|wants?|needs?|must|should|will|can|"
    r"cannot|can't|don't|doesn't|never|always|runs?|lives?|works?|belongs?|means?|requires?|happens?|deploys?|listens?|"
    r"ist|sind|war|hat|haben|muss|müssen|soll|nutzt|benutzt|bevorzug\w+|est|sont|a|doit|es|son|está|è|sono|é|são|zijn|heeft)\b"
)
_NEEDS_NO_VERB = (" that ", ":", "—", "–", " dass ", " que ", " che ", " dat ", " что ")
_RECALLS = re.compile(
    r"(?i)^(?:when|how|what|who|where|why|the time|me\b(?! (?:that|to))|this\W*$|that\W*$|it\W*$|if)\b"
)
_STORES = re.compile(
    r"(?i)^(?:store|save|note)\b"
)  # words of programs too: only "save this: …", "note that …"
_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|„[^“”]*[“”]|«[^»]*»|`[^`]*`|(?<!\w)'[^']*'(?!\w)")
_REPORTED = re.compile(
    r"(?i)\b(?:says?|said|reads?|writes?|wrote|written|prints?|printed|outputs?|logs?|logged|string|message|comment|text|"
    r"called|named|titled|docs?|documentation|readme|error|translate|example|phrase|sentence|word|tweet|email)\b"
)
_DENIED = re.compile(
    r"(?i)(?:\b(?:not|never|no longer|nor|without|neither|nobody|hardly|yet to|nicht|nie|noch nicht|pas|jamais|nunca|non|"
    r"não|niet|не|no)\b|n['’]t\b)[^.;:]{0,25}$"
)
_SUPPOSED = re.compile(
    r"(?i)\b(?:if|unless|would|could|might|may|maybe|perhaps|possibly|suppose|supposing|imagine|hypothetical\w*|pretend|"
    r"assume|assuming|let's say|whether|until|once we|e\.g\.|for example|for instance|should (?:we|i)|wenn|falls|vielleicht|"
    r"würde\w*|könnte\w*|peut-être|si|quizás|tal vez|forse|se|talvez|misschien|als we|если|может)\b"
)
_BOILERPLATE = re.compile(
    r"(?i)^(?:sure|certainly|of course|great|got it|understood|noted|done|i(?:'ll| will| can|'d| would|'m going to)|let me|let's|"
    r"would you|do you|you (?:can|could|may|might)|feel free|here(?:'s| is| are)|to summarize|in summary)\b"
)
_ASKS = re.compile(r"[?？]\W*$")
_CODE = re.compile(r"(?:```|~~~).*?(?:```|~~~|\Z)", re.S)
# Quoted lines, tables, rules, commands and their output, traces, code by its indent.
_NOT_PROSE = re.compile(
    r"\s*(?:>|\||[-=_*]{3,}\s*$|\$ |>>> |\+\+\+|@@|at \w[\w.]*\()|(?: {4,}|\t)(?!\s*(?:[-*•]|\d+[.)])\s)"
)
_BULLET = re.compile(r"\s*(?:(?:[-*•+]|\d{1,3}[.)]|#{1,6})\s+)?(?:\[[ xX]\]\s+)?")
_SHORT = r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\betc)(?<!\bno)(?<!\bca)(?<!\bz\.B)(?<!\bMr)(?<!\bMs)(?<!\bDr)"
_END = re.compile(rf"(?<![.!?…]){_SHORT}[.!?…]+[\"'”’)\]*_]*(?=\s)|[。！？]+[」』”’）]*")
_EMPHASIS = re.compile(r"(?<![\w*])(\*\*|__|\*|_)(?=\S)(.{1,200}?)(?<=\S)\1(?![\w*])")
MAX_TEXT = 200_000
_WRAPPED = 60  # characters of a line that may have been broken for its length


def candidates(text: str, role: str) -> list[Candidate]:
    """Return the sentences of a message that may be worth remembering, in order, each once.

    Args:
        text: What was said.
        role: Who said it: `user`, `assistant` or `tool`.
    """
    found: dict[str, Candidate] = {}
    said = sentences(text)
    for at, sentence in enumerate(said):
        candidate = _told(sentence, said[at + 1 : at + 2]) if role == USER else None
        candidate = candidate or _phrased(sentence, role)
        if candidate is not None and _is_sound(candidate):
            found.setdefault(candidate.content.casefold(), candidate)
    return list(found.values())


def _told(sentence: str, after: list[str]) -> Candidate | None:
    """Return what a person asks to be remembered; what follows if the sentence ends with a
    colon.
    """
    begins = re.match(_CJK, sentence) or _asking().match(sentence)
    if begins is None:
        return None
    asks = begins.groupdict().get("asked") or ""
    if _ASKS.search(sentence) and not re.match(r"(?i)(?:can|could|would|will) you", asks):
        return None
    rest, between = sentence[begins.end() :].strip(), begins.groupdict().get("what") or ":"
    if not rest and between.rstrip().endswith((":", "—", "–")) and after:
        rest = after[0]
    verb = begins.groupdict().get("verb") or ""
    plain = not any(mark in f" {between} " for mark in _NEEDS_NO_VERB)
    if not rest or _RECALLS.match(rest) or (plain and (_STORES.match(verb) or not _states(rest))):
        return None
    content = sentence if re.match(r"(?i)to\b", rest) else rest
    content = re.sub(r"[?？]\s*$", ".", content)
    kind = (
        PREFERENCE if re.search(r"(?i)\b(?:prefer\w*|favou?rite|like|love|hate)\b", rest) else FACT
    )
    return Candidate(_begun(content), kind, _TOLD, "remember")


def _states(rest: str) -> bool:
    return re.match(r"(?i)to\b", rest) is not None or _STATES.search(rest) is not None


def _phrased(sentence: str, role: str) -> Candidate | None:
    """Return a sentence with a phrase that says that it matters, unless it asks, supposes, denies
    or quotes.
    """
    if _ASKS.search(sentence) or (role != USER and _BOILERPLATE.match(sentence)):
        return None
    for phrase, pattern in _phrases(role[0]):
        begins = pattern.search(sentence)
        if begins is None:
            continue
        before = sentence[: begins.start()]
        marked = begins.start() == 0 and sentence[begins.end() - 1 : begins.end()] in ": "
        quoted = any(
            each.start() <= begins.start() < each.end() for each in _QUOTED.finditer(sentence)
        )
        if quoted or _DENIED.search(before) or _REPORTED.search(before):
            return None
        if _SUPPOSED.search(before if marked or phrase.by in ("TODO:", "FIXME:") else sentence):
            return None
        content = (
            sentence[begins.end() :]
            if phrase.by in ("preference:", "important") and marked
            else sentence
        )
        return Candidate(_begun(content), phrase.kind, _SURE[role], phrase.by)
    return None


def _is_sound(candidate: Candidate) -> bool:
    """Return whether a text can be a sentence that tells something."""
    content = candidate.content
    characters, words = _LEAST_TOLD if candidate.by == "remember" else _LEAST
    if content.isascii() and (
        len(content) < characters or len(re.findall(r"\w+", content)) < words
    ):
        return False
    letters = sum(sign.isalpha() or sign.isspace() for sign in content)
    return len(content) <= MOST and letters >= 0.6 * len(content) and content[-1] not in ":,;({["


def _begun(content: str) -> str:
    content = content.strip().strip("\"“”'` ")
    return content[:1].upper() + content[1:] if content[:2].islower() else content


@functools.cache
def _asking() -> re.Pattern[str]:
    return re.compile(
        rf"(?i)^{_POLITE}(?:(?P<asked>{_ASKED}){_POLITE})?(?P<verb>{_REMEMBER})(?P<what>{_WHAT})"
    )


@functools.cache
def _phrases(role: str) -> tuple[tuple[_Phrase, re.Pattern[str]], ...]:
    return tuple((each, re.compile(each.pattern)) for each in _PHRASES if role in each.roles)


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, in order, without marks of emphasis and lists."""
    found: list[str] = []
    for paragraph in _paragraphs(_CODE.sub("\n\n", text[:MAX_TEXT])):
        start = 0
        for end in _END.finditer(paragraph):
            found.append(paragraph[start : end.end()].strip())
            start = end.end()
        found.append(paragraph[start:].strip())
    return [each for each in found if each]


def _paragraphs(text: str) -> list[str]:
    """Return lines, those of a wrapped sentence as one."""
    found: list[str] = []
    length = 0  # of the line before, if its sentence may go on
    for line in text.split("\n"):
        if not line.strip() or _NOT_PROSE.match(line):
            length = 0
            continue
        mark = _BULLET.match(line)
        said = _EMPHASIS.sub(r"\2", line[mark.end() if mark else 0 :]).strip()
        goes_on = length >= _WRAPPED and (not mark or not mark[0].strip()) and said[:1].islower()
        if goes_on:
            found[-1] = f"{found[-1]} {said}"
        elif said:
            found.append(said)
        length = len(line) if said and said[-1] not in ".!?:;。！？…" else 0
    return found
