"""What a person wrote of what a host calls a prompt, and what they wish of their memory by it.
Pure.
"""

import re

SYSTEM_SOURCES = ("system", "loop_wakeup", "schedule_wakeup", "poll_event")  # nobody typed these
_MOST_WISH = 120  # characters
# What hosts and hooks put around or into a prompt, this program's own frames among it.
_BOUNDARY = re.compile(r"\b[0-9a-f]{9,16}\b")
_BEGINS, _ENDS = "=== ", "=== end of "
_BEHIND_END = re.compile(r"(?: ===|; the message:)?")
_TAGS = "hook_context|system-reminder|environment_context|user_instructions|memory-context|task-notification"
_WRAPPED = rf"<({_TAGS})\b[^<>]*>(?:.*?</\1\s*>|.*)"
_WRAPPERS = r"\s*<(?:command-(?:name|message|args)|local-command-\w+|bash-(?:input|stdout|stderr)|INSTRUCTIONS)\b"
_FILE_OF_HOST = r"\s*# (?:AGENTS|CLAUDE|GEMINI)(?:\.override)?\.md instructions\b"
_COMMAND = r"/[A-Za-z][\w:.-]*(?:\s|$)"
_NAME = r"[`\"'“]?(?P<name>[a-z0-9][a-z0-9._-]{0,62})[`\"'”]?"
_ON, _OFF = (
    r"with (?:your |the |my )?memory(?: (?:enabled|on|turned on|switched on))?",
    (
        r"with(?: your| the| my)? memory (?:disabled|off|turned off|switched off)|without(?: a| any| your)? memory"
    ),
)
_SWITCH = r"(?:please )?(?:(?:turn |switch )?{its}memory {to}|(?:turn|switch) {to} {its}memory|{verb} {its}memory){end}"
_ITS, _END = r"(?:the |your |my )?", r"(?: (?:for|in) this (?:session|chat))?(?: please)?"
_TURN_ON = _SWITCH.format(its=_ITS, end=_END, to="on", verb="enable")
_TURN_OFF = _SWITCH.format(its=_ITS, end=_END, to="off", verb="disable")
_START = r"(?:please )?(?:(?:start|begin|continue|resume)(?: (?:a|the|this|new|my))*(?: (?:session|chat))?)"
_AS = rf"(?:{_START} as|as) {_NAME}"
# Words that stand where a name would, in sentences that name nobody.
_NOBODY = frozenset(
    "a an the usual always before expected planned is was well soon possible needed follows above below discussed "
    "agreed described requested root admin administrator daemon service server normal default background job user "
    "guest instructed directed suggested stated said shown written such it that this you me i we they them him her us "
    "many much far long opposed promised ever if though then draft text plain markdown json yaml toml csv html pdf xml "
    "code main master intended proposed appropriate required necessary usually specified mentioned here "
    "there now one two superuser sudo anonymous process subprocess thread module script function class "
    "list table string number boolean array object".split()
)


class Wish:
    """What a prompt wishes of the session: memory on or off, and another namespace, if it names
    one.
    """

    __slots__ = ("namespace", "on")

    def __init__(self, on: bool, namespace: str | None) -> None:
        """Set both."""
        self.on, self.namespace = on, namespace


def cleaned(text: str, source: str = "") -> str:
    """Return what a person wrote of a prompt: empty if nobody did.

    Args:
        text: The prompt as the host tells it.
        source: Who sent it, if the host tells that.
    """
    if source in SYSTEM_SOURCES:
        return ""
    text = unframed(text)
    if re.match(_WRAPPERS, text) or re.match(_FILE_OF_HOST, text):
        return ""
    return text.strip()


def unframed(text: str) -> str:
    """Return a text without what hosts and hooks put in, whoever repeats it."""
    kept, start, at = [], 0, 0
    while (begins := text.find(_BEGINS, at)) >= 0 and (ends := text.find("\n", begins)) >= 0:
        at = ends
        if boundary := _BOUNDARY.search(text, begins + len(_BEGINS), ends):
            kept.append(text[start:begins])
            start = at = _behind_frame(text, boundary[0], ends)
    text = "".join([*kept, text[start:]])
    return re.sub(_WRAPPED, "", text, flags=re.S) if "<" in text else text


def _behind_frame(text: str, boundary: str, at: int) -> int:
    """Return where a frame ends that began before a place; that of the text if nothing ends it."""
    while (begins := text.find(_ENDS, at)) >= 0:
        line_ends = text.find("\n", begins)
        line_ends = len(text) if line_ends < 0 else line_ends
        if (found := text.find(boundary, begins, line_ends)) >= 0:
            behind = _BEHIND_END.match(text, found + len(boundary))
            return behind.end() if behind else found + len(boundary)
        at = line_ends
    return len(text)


def is_command(text: str) -> bool:
    """Return whether a prompt is a command of the host, such as /compact; a path is none."""
    return re.match(_COMMAND, text) is not None


def public(text: str) -> str:
    """Return a text without what stands in `<private>` tags."""
    if "private" not in text.lower():
        return text
    from memories.guard.redactor import without_private

    return without_private(text).text


def wish(text: str) -> Wish | None:
    """Return what a prompt wishes of the session's memory; None if it is about something else.

    Only a prompt that says this and nothing else counts: "start as bob with memory enabled", "as
    alice", "memory off".
    """
    if not text or len(text) > _MOST_WISH or "\n" in text:
        return None
    said = " ".join(text.lower().rstrip(".! ").replace(",", " ").split())
    if re.fullmatch(rf"(?:{_TURN_OFF}|{_START} (?:{_OFF}))", said):
        return Wish(False, None)
    if re.fullmatch(rf"(?:{_TURN_ON}|{_START} {_ON})", said):
        return Wish(True, None)
    for pattern, on in ((rf"{_AS} (?:{_OFF})", False), (rf"{_AS} {_ON}", True), (_AS, True)):
        found = re.fullmatch(pattern, said)
        if found and (pattern is not _AS or found["name"] not in _NOBODY):
            from memories.guard.validate import is_own_name  # which other prompts do without

            return None if is_own_name(found["name"]) else Wish(on, found["name"])
    return None
