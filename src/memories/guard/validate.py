"""Validates content, queries, tags, namespaces and other input; each error is one sentence."""

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memories.errors import InvalidInput
from memories.languages import make_visible

MAX_CONTENT_BYTES = 1_048_576
# maximum size of the indexed normal form (NFKC), in which a character may become a phrase
MAX_NORMAL_BYTES = 4 * MAX_CONTENT_BYTES
MAX_QUERY_CHARACTERS = 4_096
MAX_LIMIT = 1_000
KEEP_RULE = "keep must be a whole number from 1 to 10000"  # see `transfer.backup`
MAX_TAGS = 100
MAX_TAG_KEY = 64
MAX_TAG_VALUE = 256
MAX_KEY = 256
MAX_NAMESPACE = 63
ROLES = ("user", "assistant", "system", "tool")
_MAX_QUOTED = 4_096  # maximum number of characters of a text that are read in order to quote it

_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9._-]*")
# A namespace's folder is in the home, so it can't have the name of one of the program's own files
# or folders. `tests/cli/test_own_names.py` fails if a name is missing here.
OWN_FOLDERS = frozenset({"backups", "hooks", "inbox", "serve", "sessions"})
_OWN_FILE = re.compile(
    r"off|requests-[0-9a-f]{8}(?:[.-].*)?"
    r"|.+[.](?:db|json|jsonl|key|lock|log|sqlite|token|toml)(?:[.-].*)?"
)
_TAG_KEY = re.compile(r"[^\s=,\x00-\x1f\x7f]+")
_SECOND_TAG = re.compile(r",\s*[\w.-]+=")


def content(text: str, max_bytes: int | None = MAX_CONTENT_BYTES) -> str:
    """Return content in its stored form: NFC, without a byte order mark.

    Args:
        text: The content.
        max_bytes: The maximum size; None if another limit applies.

    Raises:
        InvalidInput: The content is not text, or is empty, invisible or too large. Its normal form
            may be too large even if the content is not.
    """
    text = _require_visible(text_of(text, "content").removeprefix("\ufeff"), "content")
    size = len(text.encode())
    if max_bytes is not None and size > max_bytes:
        raise InvalidInput(f"content is {size} bytes; the limit is {max_bytes}; store it in parts")
    if text.isascii():
        return text
    max_normal = max(MAX_NORMAL_BYTES, 4 * size)
    normal_size = len(unicodedata.normalize("NFKC", text).encode())
    if normal_size > max_normal:
        raise InvalidInput(
            f"content is {normal_size} bytes in its normal form (NFKC); the limit is {max_normal}"
        )
    return text


def data(text: str) -> str:
    """Return the JSON object stored with content, as text; "" for none.

    Raises:
        InvalidInput: The data is not a JSON object, or is too large.
    """
    if not text:
        return ""
    size = len(text_of(text, "data").encode("utf-8", "replace"))
    if size > MAX_CONTENT_BYTES:
        raise InvalidInput(
            f"data is {size} bytes; the limit is {MAX_CONTENT_BYTES}; store it in parts"
        )
    require_storable(text, "data")
    try:
        value = read_json(text)
    except InvalidInput as exc:
        raise InvalidInput(f"data {exc}") from exc
    if not isinstance(value, dict):
        raise InvalidInput("data is not a JSON object")
    return text


def query(text: str) -> str:
    """Return a query if it is valid.

    Raises:
        InvalidInput: The query is not text, or is empty, invisible or too long.
    """
    if len(text_of(text, "query")) > MAX_QUERY_CHARACTERS:
        raise InvalidInput(
            f"query is {len(text)} characters; the limit is {MAX_QUERY_CHARACTERS}; shorten it"
        )
    return _require_visible(text, "query")


def tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags, validated and without spaces around their keys and values.

    Raises:
        InvalidInput: There are too many tags, or a tag is invalid.
    """
    if not isinstance(tags, Mapping):
        raise InvalidInput(
            f"tags are of type {type(tags).__name__}; pass a mapping of strings to strings"
        )
    if len(tags) > MAX_TAGS:
        raise InvalidInput(f"{len(tags)} tags were given; the limit is {MAX_TAGS}")
    return dict(_check_tag(key, value) for key, value in tags.items())


def tag_key(key: str) -> str:
    """Return a tag key, validated and without surrounding spaces.

    Raises:
        InvalidInput: The key is invalid.
    """
    key = _check_line(text_of(key, "tag key").strip(), "tag key", MAX_TAG_KEY)
    if not _TAG_KEY.fullmatch(key):
        raise InvalidInput(
            f'tag key "{shown(key)}" is not usable; leave out spaces, commas and "="'
        )
    return key


def tag_keys(keys: Sequence[str]) -> list[str]:
    """Return tag keys as `tag_key` does; a single key may be passed as a string.

    Raises:
        InvalidInput: A key is invalid.
    """
    if isinstance(keys, str):
        return [tag_key(keys)]
    if not isinstance(keys, Iterable):
        raise InvalidInput(f"tag keys are of type {type(keys).__name__}; pass a list of strings")
    return list(map(tag_key, keys))


def _check_tag(key: str, value: object) -> tuple[str, str]:
    if not isinstance(key, str) or not isinstance(value, str):
        raise InvalidInput(
            f'tag "{shown(str(key))}" has a value of type {type(value).__name__}; pass a string'
        )
    text = value.strip()
    # Without this test, `shown` would take longer than all other checks.
    if not 0 < len(text) <= MAX_TAG_VALUE or not text.isprintable():
        text = _check_line(text, f'value of tag "{shown(key.strip())}"', MAX_TAG_VALUE)
    return tag_key(key), text


def parse_tag(text: str) -> tuple[str, str]:
    """Return the key and value of a tag written as `key=value`.

    Raises:
        InvalidInput: The tag does not have that form.
    """
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise InvalidInput(f'tag "{shown(text)}" is not of the form key=value')
    if _SECOND_TAG.search(value):
        raise InvalidInput(f'tag "{shown(text)}" contains a second tag; repeat --tag for each tag')
    return _check_tag(key, value)


def add_tags(tags: dict[str, str], texts: Iterable[str]) -> dict[str, str]:
    """Add tags written as `key=value` to a dict, and return the dict.

    Raises:
        InvalidInput: A tag does not have that form, or there are two values for a key.
    """
    for key, value in map(parse_tag, texts):
        if tags.setdefault(key, value) != value:
            raise InvalidInput(
                f'tag "{key}" is given twice, as "{tags[key]}" and "{value}"; give it once'
            )
    return tags


def is_own_name(name: str) -> bool:
    """Return whether a name is reserved for the program's own files and folders in the home."""
    return name in OWN_FOLDERS or _OWN_FILE.fullmatch(name) is not None


def refuse_own_name(name: str) -> None:
    """Raise InvalidInput for a namespace with the name of one of the program's own files."""
    raise InvalidInput(
        f'namespace "{shown(name)}" has the name of one of this program\'s files; '
        "choose a different name"
    )


def namespace(name: str) -> str:
    """Return the name of a namespace in its canonical form: NFKC, lower case.

    Raises:
        InvalidInput: The name is empty, too long or `all`, contains characters other than
            a-z 0-9 . _ -, or is the name of one of the program's own files.
    """
    folded = canonical_namespace(name)
    if is_own_name(folded):
        refuse_own_name(folded)
    return folded


def canonical_namespace(name: str) -> str:
    """Like `namespace`, but accept the names of our own files, which earlier versions allowed.

    Raises:
        InvalidInput: The name is empty, too long or `all`, or contains characters other than
            a-z 0-9 . _ -
    """
    folded = unicodedata.normalize("NFKC", text_of(name, "namespace")).casefold().strip(" ")
    if not folded:
        raise InvalidInput("namespace is empty; leave it out to use the shared one")
    if len(folded) > MAX_NAMESPACE:
        raise InvalidInput(f"namespace is {len(folded)} characters; the limit is {MAX_NAMESPACE}")
    if not _NAMESPACE.fullmatch(folded):
        raise InvalidInput(
            f'namespace "{shown(name)}" is not usable; use a-z 0-9 . _ - and begin with a letter '
            "or digit"
        )
    if folded == "all":
        raise InvalidInput(
            'namespace "all" would be mistaken for every namespace; choose another name'
        )
    return folded


def key(text: str) -> str:
    """Return a memory key, such as `user/editor`, if it is valid.

    Raises:
        InvalidInput: The key is empty, too long, or has several lines.
    """
    return one_line(text, "key")


def role(text: str) -> str:
    """Return the role of a turn's speaker, which is one of `ROLES`.

    Raises:
        InvalidInput: It is another text.
    """
    if text not in ROLES:
        raise InvalidInput(f'role "{shown(str(text))}" is not one of {", ".join(ROLES)}')
    return text


def one_line(text: str, name: str) -> str:
    """Return a name of at most `MAX_KEY` characters on one line, such as the id of a conversation.

    Args:
        text: The name.
        name: The kind of name, for the message.

    Raises:
        InvalidInput: The name is empty, too long, or has several lines.
    """
    text = unicodedata.normalize("NFC", text_of(text, name).strip())
    return _check_line(text, name, MAX_KEY)


def limit(number: int, name: str = "limit") -> int:
    """Return a maximum number of results if it is valid.

    Args:
        number: The number.
        name: Its name, for the message.

    Raises:
        InvalidInput: The number is not a whole number from 1 to `MAX_LIMIT`.
    """
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_LIMIT:
        raise InvalidInput(f"{name} must be a whole number from 1 to {MAX_LIMIT}")
    return number


def whole_number(number: int, name: str) -> int:
    """Return a whole number, such as a turn index or a version, if it is valid.

    Args:
        number: The number.
        name: Its name, for the message.

    Raises:
        InvalidInput: The number is not a whole number, or is negative.
    """
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**53:
        raise InvalidInput(f"{name} must be a whole number, 0 or more")
    return number


def unit(number: float, name: str) -> float:
    """Return a number if it is from 0 to 1.

    Raises:
        InvalidInput: The value is not a number from 0 to 1.
    """
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if not is_number or not 0 <= number <= 1:  # NaN fails both tests
        raise InvalidInput(f"{name} must be a number from 0 to 1")
    return float(number)


def read_json(text: str) -> Any:
    """Return the value of a JSON text; refuse deep nesting, long numbers and repeated keys.

    Raises:
        InvalidInput: The text is not JSON, an object repeats a key, a number is not finite, or the
            nesting is too deep. The caller must put a subject before the message.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_read_object,
            parse_constant=_read_number,
            parse_float=_read_number,
        )
    except InvalidInput:
        raise
    except RecursionError:
        raise InvalidInput("is not JSON (it is nested too deeply)") from None
    except json.JSONDecodeError as exc:
        raise InvalidInput(f"is not JSON ({exc})") from exc
    except ValueError:  # Python limits the length of whole numbers
        raise InvalidInput("contains a number with too many digits") from None


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f'contains the key "{shown(repeated)}" twice; keep one of them')
    return members


def _read_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise InvalidInput(f"is not JSON ({shown(text)} is not a number)")
    return number


def amount(count: int, singular: str, plural: str) -> str:
    """Return a number with its noun, such as `1 memory`."""
    return f"{count} {singular if count == 1 else plural}"


def shown(text: str) -> str:
    """Return text for a message: short, on one line, without secrets or characters that affect a
    terminal.
    """
    from memories.guard.redactor import redact  # it is slow, and only errors need it

    text = redact(text[:_MAX_QUOTED]).text
    if len(text) > 60:
        text = f"{text[:60]}…"
    return make_visible(text, lambda sign: sign.encode("unicode_escape", "replace").decode())


def text_of(value: object, name: str) -> str:
    """Return a value if it is text.

    Args:
        value: The value.
        name: Its name, for the message.

    Raises:
        InvalidInput: The value is not text.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is of type {type(value).__name__}; pass a string")
    return value


def _require_visible(text: str, name: str) -> str:
    if not text:
        raise InvalidInput(f"{name} is empty")
    require_storable(text, name)
    if not any(map(is_visible, text)):
        raise InvalidInput(f"{name} has no visible text")
    return unicodedata.normalize("NFC", text)


def _check_line(text: str, name: str, max_length: int) -> str:
    if not text:
        raise InvalidInput(f"{name} is empty")
    if len(text) > max_length:
        raise InvalidInput(f"{name} is {len(text)} characters; the limit is {max_length}")
    require_storable(text, name)
    if has_control(text):
        raise InvalidInput(f"{name} contains a line break or another control character")
    return text


def has_control(text: str) -> bool:
    """Return whether a text contains a control character, such as a line break."""
    return not text.isprintable() and "Cc" in map(unicodedata.category, text)


def require_storable(text: str, name: str) -> None:
    """Raise InvalidInput if a text contains NUL or can't be encoded as UTF-8."""
    if "\0" in text:
        raise InvalidInput(f"{name} contains a NUL character at position {text.index(chr(0))}")
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidInput(f"{name} is not valid Unicode at position {exc.start}") from None


def is_visible(character: str) -> bool:
    """Return whether a character is a letter, digit, mark, punctuation sign or symbol."""
    return character.isalnum() or unicodedata.category(character)[0] in "LNPSM"
