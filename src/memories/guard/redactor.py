"""Taking secrets out of what is written: the one place where a text, its tags and its names pass
before anything else.

Also `<private>…</private>`, which a writer marks by hand. A net, not a wall: see docs/redaction.md.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from memories.errors import InvalidInput
from memories.guard import scan, values
from memories.guard.rules import Rule

# until nothing is found; a marker may leave something beside it that looks like a secret
MAX_PASSES = 8
MAX_NAMED = 100  # replaced secrets whose kinds are told
_SHORT, _MOST_CLEAN = 64, 4_096  # tags: the same keys and values come with thousands of texts
MAX_CHARACTERS = 4_194_304  # of a text; longer ones are refused unread
PRIVATE = "private"
_PRIVATE_TAG = r"(?i)(?:<|\\u003c|&lt;)\s{0,4}(?P<end>/?)\s{0,4}private(?:\s[^<>]{0,200})?\s{0,4}/?\s{0,4}(?:>|\\u003e|&gt;)"


class Redacted(NamedTuple):
    """A text without its secrets.

    Attributes:
        text: The text; the same object if nothing was found in it.
        kinds: The kind of each secret that was replaced in it, now or before, in order; at most
            `MAX_NAMED`.
    """

    text: str
    kinds: tuple[str, ...]


def redact(text: str, *, personal: bool = False, own: tuple[Rule, ...] = ()) -> Redacted:
    """Return a text with `[redacted:kind]` in place of each secret; doing it again changes nothing.

    Args:
        text: The text.
        personal: Also replace e-mail addresses, international phone numbers and IPv4 addresses.
        own: Rules of the user.
    """
    known = scan.rules_of(personal=personal, own=own)
    short = len(text) <= _SHORT
    if short and text in known.clean:
        return Redacted(text, ())
    given = text
    for _ in range(MAX_PASSES):
        if not (found := scan.find(text, known)):
            break
        parts, at = [], 0
        for each in found:
            parts += [text[at : each.start], f"[redacted:{each.kind}]"]
            at = each.end
        text = "".join([*parts, text[at:]])
    kinds = re.findall(values.MARK, text) if "[redacted:" in text else []
    if short and text is given and not kinds and len(known.clean) < _MOST_CLEAN:
        known.clean.add(text)
    return Redacted(text, tuple(kinds[:MAX_NAMED]))


def without_private(text: str) -> Redacted:
    """Return a text without what stands in `<private>` tags, which may be nested; one that is not
    closed has no end.
    """
    if PRIVATE not in text.lower():
        return Redacted(text, ())
    parts, kinds, at, depth = [], [], 0, 0
    for tag in re.finditer(_PRIVATE_TAG, text):
        if not depth and not tag["end"]:
            parts.append(text[at : tag.start()])
            kinds.append(PRIVATE)
        depth = max(0, depth - 1) if tag["end"] else depth + 1
        if not depth and kinds:
            at = tag.end()
    if not kinds:
        return Redacted(text, ())
    return Redacted("".join([*parts, "" if depth else text[at:]]), tuple(kinds[:MAX_NAMED]))


class Redactor(NamedTuple):
    """What is taken out of what one caller writes.

    Attributes:
        mode: `secrets`; `pii`, also personal data; `off`, only what is marked as private.
        own: Rules of the user.
    """

    mode: str = "secrets"
    own: tuple[Rule, ...] = ()

    def text(self, given: str, name: str = "content") -> Redacted:
        """Return a text as it may be kept; what is no text is left for others to refuse.

        Args:
            given: The text.
            name: What it is, for the message.

        Raises:
            InvalidInput: Nothing of it may be kept.
        """
        if not isinstance(given, str) or len(given) > MAX_CHARACTERS:
            return Redacted(given, ())
        public = without_private(given)
        if public.kinds and not public.text.strip():
            raise InvalidInput(f"{name} is private as a whole; there is nothing to store")
        if self.mode == "off":
            return public
        done = self.secrets(public.text)
        return Redacted(done.text, (public.kinds + done.kinds)[:MAX_NAMED])

    def secrets(self, given: str) -> Redacted:
        """Return a text without what is taken out as a secret; what is marked as private is
        left.
        """
        return redact(given, personal=self.mode == "pii", own=self.own)

    def pairs(self, given: Mapping[str, str]) -> tuple[Mapping[str, str], tuple[str, ...]]:
        """Return tags as they may be kept, and the kinds of what was replaced in them."""
        if not isinstance(given, Mapping):
            return given, ()
        kinds: list[str] = []
        kept: dict[str, str] = {}
        for name, value in given.items():
            (key, in_key), (text, in_value) = (
                self.text(name, "tag key"),
                self.text(value, "value of a tag"),
            )
            kept[key] = text
            kinds += [*in_key, *in_value]
        return (given if kept == given else kept), tuple(kinds)

    def data(self, given: str) -> Redacted:
        """Return a JSON object, as text, as it may be kept; what is none is left for others to
        refuse.
        """
        try:
            whole = json.loads(given)
        except (ValueError, TypeError, RecursionError):
            return Redacted(given, ())
        kinds: list[str] = []
        kept = self._value(whole, kinds)
        return Redacted(
            json.dumps(kept, ensure_ascii=False) if kinds else given, tuple(kinds[:MAX_NAMED])
        )

    def _value(self, value: Any, kinds: list[str], called: str = "") -> Any:
        """Return a value of JSON without secrets; `called`, the name before it, may be what tells
        that it is one.
        """
        if isinstance(value, dict):
            names = {name: self._value(name, kinds) for name in value}
            return {
                names[name]: self._value(each, kinds, f"{name}: ") for name, each in value.items()
            }
        if isinstance(value, list):
            return [self._value(each, kinds, called) for each in value]
        if not isinstance(value, str) or not value:
            return value
        done = self.text(called + value, "data")
        if not done.text.startswith(
            called
        ):  # the secret is in the name, which is looked at on its own
            done = self.text(value, "data")
            called = ""
        kinds += done.kinds
        return done.text[len(called) :]

    def name(self, given: str, what: str) -> Redacted:
        """Return a key or an id as it may be kept: two that differ stay different, and one is
        always the same.

        Beside the marker it has a hash that is made slowly, as those of passwords are, so that
        guessing takes long.
        """
        done = self.text(given, what)
        if done.text is given:
            return done
        salt = f"memories {what}".encode()
        digest = hashlib.pbkdf2_hmac(
            "sha256", given.strip().encode("utf-8", "replace"), salt, 20_000, 8
        ).hex()
        return done._replace(text=f"{done.text[:200]}#{digest}")

    def refuse(self, given: str, what: str) -> None:
        """Refuse the name of a conversation that holds a secret: it is how the conversation is
        found again.

        Raises:
            InvalidInput: It does.
        """
        text, kinds = self.text(given, what)
        if text is not given:
            raise InvalidInput(
                f"{what} holds what looks like a secret ({', '.join(dict.fromkeys(kinds))}); use another name"
            )
