"""Redaction: removes secrets from texts, tags and names before other code sees them.

It also removes the parts that a writer has marked with `<private>…</private>`. Redaction is a
safety net, not a guarantee: see docs/redaction.md.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from memories.errors import InvalidInput
from memories.guard import scan, values
from memories.guard.rules import Rule, SecretSpan

# maximum number of passes; text beside a new marker may look like a secret in the next pass
MAX_PASSES = 8
MAX_NAMED = 100  # maximum number of replaced secrets whose kinds are reported
# maximum length and number of cached clean texts; the cache helps because many memories share tags
_SHORT, _MAX_CLEAN = 64, 4_096
MAX_CHARACTERS = 4_194_304  # maximum length of a text; longer ones are refused unread
PRIVATE = "private"
_PRIVATE_TAG = (
    r"(?i)(?:<|\\u003c|&lt;)\s{0,4}(?P<end>/?)\s{0,4}private(?:\s[^<>]{0,200})?"
    r"\s{0,4}/?\s{0,4}(?:>|\\u003e|&gt;)"
)


class Redacted(NamedTuple):
    """A text without its secrets.

    Attributes:
        text: The text; the original object if it contained no secret.
        kinds: The kinds of secrets replaced now or earlier, in order; at most `MAX_NAMED`.
    """

    text: str
    kinds: tuple[str, ...]


def redact(text: str, *, personal: bool = False, user_rules: tuple[Rule, ...] = ()) -> Redacted:
    """Return a text with `[redacted:kind]` in place of each secret; idempotent.

    Args:
        text: The text.
        personal: Also replace e-mail addresses, international phone numbers and IPv4 addresses.
        user_rules: The user's own rules.
    """
    rule_set = scan.build_rules(personal=personal, user_rules=user_rules)
    is_short = len(text) <= _SHORT
    if is_short and text in rule_set.clean:
        return Redacted(text, ())
    original = text
    for _ in range(MAX_PASSES):
        secrets = scan.find(text, rule_set)
        if not secrets:
            break
        text = _replace(text, secrets)
    kinds = re.findall(values.MARK, text) if "[redacted:" in text else []
    is_clean = text is original and not kinds
    if is_clean and is_short and len(rule_set.clean) < _MAX_CLEAN:
        rule_set.clean.add(text)
    return Redacted(text, tuple(kinds[:MAX_NAMED]))


def _replace(text: str, secrets: list[SecretSpan]) -> str:
    parts, position = [], 0
    for secret in secrets:
        parts += [text[position : secret.start], f"[redacted:{secret.kind}]"]
        position = secret.end
    return "".join([*parts, text[position:]])


def without_private(text: str) -> Redacted:
    """Return a text without the parts in `<private>` tags. Tags may be nested, and an unclosed one
    extends to the end of the text.
    """
    if PRIVATE not in text.lower():
        return Redacted(text, ())
    parts: list[str] = []
    position = depth = count = 0
    for tag in re.finditer(_PRIVATE_TAG, text):
        if tag["end"]:
            depth = max(0, depth - 1)
        else:
            if not depth:
                parts.append(text[position : tag.start()])
                count += 1
            depth += 1
        if not depth and count:
            position = tag.end()
    if not count:
        return Redacted(text, ())
    if not depth:
        parts.append(text[position:])
    return Redacted("".join(parts), (PRIVATE,) * min(count, MAX_NAMED))


class Redactor(NamedTuple):
    """Redacts one caller's writes.

    Attributes:
        mode: `secrets`; `pii` to remove personal data too; `off` to remove only private parts.
        user_rules: The user's own rules.
    """

    mode: str = "secrets"
    user_rules: tuple[Rule, ...] = ()

    def text(self, text: str, name: str = "content") -> Redacted:
        """Return a text to store without secrets and private parts; values of other types are
        unchanged.

        Args:
            text: The text.
            name: Its name, for the message.

        Raises:
            InvalidInput: The entire text is private.
        """
        if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
            return Redacted(text, ())
        public = without_private(text)
        if public.kinds and not public.text.strip():
            raise InvalidInput(f"{name} is entirely private; there is nothing to store")
        redacted = self.secrets(public.text)
        return Redacted(redacted.text, (public.kinds + redacted.kinds)[:MAX_NAMED])

    def secrets(self, text: str) -> Redacted:
        """Return a text without secrets; parts marked as private are kept."""
        if self.mode == "off":
            return Redacted(text, ())
        return redact(text, personal=self.mode == "pii", user_rules=self.user_rules)

    def pairs(self, tags: Mapping[str, str]) -> tuple[Mapping[str, str], tuple[str, ...]]:
        """Return tags without secrets, and the kinds of secrets that were removed."""
        if not isinstance(tags, Mapping):
            return tags, ()
        kinds: list[str] = []
        redacted: dict[str, str] = {}
        for key, value in tags.items():
            new_key, new_value = self.text(key, "tag key"), self.text(value, "value of a tag")
            redacted[new_key.text] = new_value.text
            kinds += [*new_key.kinds, *new_value.kinds]
        return (tags if redacted == tags else redacted), tuple(kinds)

    def data(self, text: str) -> Redacted:
        """Return a JSON text without secrets in its names and values; text that is not JSON is
        unchanged.
        """
        try:
            value = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            return Redacted(text, ())
        kinds: list[str] = []
        redacted = self._redact_json(value, kinds)
        if not kinds:
            return Redacted(text, ())
        return Redacted(json.dumps(redacted, ensure_ascii=False), tuple(kinds[:MAX_NAMED]))

    def _redact_json(self, value: Any, kinds: list[str], label: str = "") -> Any:
        """Return a JSON value without secrets.

        Args:
            value: The value.
            kinds: The list to which the kinds of secrets found are added.
            label: The name before the value, such as `password: `, which may show that it is a
                secret.
        """
        if isinstance(value, dict):
            names = {name: self._redact_json(name, kinds) for name in value}
            return {
                names[name]: self._redact_json(member, kinds, f"{name}: ")
                for name, member in value.items()
            }
        if isinstance(value, list):
            return [self._redact_json(element, kinds, label) for element in value]
        if not isinstance(value, str) or not value:
            return value
        redacted = self.text(label + value, "data")
        if redacted.text.startswith(label):
            text = redacted.text[len(label) :]
        else:  # the secret is in the name, which is redacted separately
            redacted = self.text(value, "data")
            text = redacted.text
        kinds += redacted.kinds
        return text

    def name(self, name: str, kind: str) -> Redacted:
        """Return a key or an id without secrets; different names stay different.

        A hash follows the marker. Like a password hash, it is slow to compute, so that guessing is
        expensive.
        """
        redacted = self.text(name, kind)
        if redacted.text is name:
            return redacted
        secret, salt = name.strip().encode("utf-8", "replace"), f"memories {kind}".encode()
        digest = hashlib.pbkdf2_hmac("sha256", secret, salt, 20_000, 8).hex()
        return redacted._replace(text=f"{redacted.text[:200]}#{digest}")

    def refuse(self, name: str, kind: str) -> None:
        """Refuse a conversation name that contains a secret: the name is needed to find the
        conversation, so it can't be redacted.

        Raises:
            InvalidInput: The name contains a secret.
        """
        text, kinds = self.text(name, kind)
        if text is not name:
            secrets = ", ".join(dict.fromkeys(kinds))
            raise InvalidInput(
                f"{kind} contains what looks like a secret ({secrets}); use another name"
            )
