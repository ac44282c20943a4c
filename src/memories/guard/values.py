"""Tests whether a value is random, a password, a card number, or a placeholder."""

import base64
import binascii
import itertools
import re

MARK = r"\[redacted:([a-z0-9_]{1,40})\]"
_PLACEHOLDER = r"""(?isx) your[_-]?[\w-]*
    | my[_-][\w-]* | <[\w .:/|-]*>? | \[[\w .:|-]*\]? | \$[({].* | \{[\w{ .$%].* | \#\{.*
    | \$(?-i:[A-Z_][A-Z0-9_]*|[a-z_][a-z0-9_]*) | %\w+% | %[sdrv(].* | @\w+@
    | (?:x+|\*+|\.+|-+|_+|0+|\#+|\?+|…+) | x{3,}.* | .*(?:xxxx|\*\*\*\*|\.\.\.|…).*
    | change[_-]?(?:me|it|this).*
    | (?:an? [_-])? (?:example|sample|dummy|fake|placeholder|redacted|masked|hidden|insert|replace
    | todo|fixme|secret|password|passwd|passphrase|pass|pwd?|pw|token
    | test|foo|bar|baz|none|null|nil|true|false|undefined|empty|default|required
    | optional|string|str|int|bool|bytes|env|enabled|disabled|yes|no|on|off|user|admin|root|guest
    | postgres|mysql|redis|mongo)
    (?: [_.-]? (?:me|here|value|key|string|example|password|passwd|secret|token|user|test|name|id
    | data|\d{1,4}) ){0,4}
    | .*example (?:key|secret|token|only)? | process\.env.* | os\.(?:environ|getenv).*
    | (?:env|vars?|secrets|config|settings|local|data|params?|self|this|props|options|opts|args
    | request|req|ctx|context|module|values)[.:\[(].*
    | (?:ref|file|env|vault|op|ssm|arn|secretsmanager|sops|data):.* | 1password\w{0,9}"""
_IDENTIFIER = r"[A-Za-z_$][A-Za-z_$]*\d{0,2}(?:[.:/_-]+[A-Za-z_$]+\d{0,2}){0,20}[.:/_-]{0,2}"
_CAMEL = (
    r"[a-z]+(?:[A-Z][a-z]+){0,12}\d{0,2}|(?:[A-Z][a-z]+){1,12}\d{0,2}|[A-Z_]+\d{0,2}|[A-Z]?[a-z]+"
)
FORMAT = r"""(?ix) v?\d++(?:\.\d++){1,3}[\w.+-]*
    | \d{4}-\d\d-\d\d[\dtz:.+-]* | \d+(?:\.\d+)?(?:ms|s|m|h|d|kb|mb|gb|px|em|%)?
    | [~./].* | [a-z]:[\\/].* | [a-z][a-z0-9+.-]{1,12}://.*
    | [\w.-]+\.(?:py|js|ts|go|rs|java|json|ya?ml|toml|txt|md|html?|css|sh|env|pem|key|crt|cer|p12
    | jks|conf|cfg|ini|xml|sql|com|org|net|io|dev|app) | [\w.+-]+@[\w-]+\.[\w.-]+
    | (?:sha|md|utf|aes|rs|hs|es|ps|base|int|uint|float|ed|x|http|oauth|argon|bcrypt|pbkdf|blake
    |bytes|char|varchar|ipv|kerberos|krb|ntlmv|pkcs|python)
    [-_]?\d{1,4}(?:[-_./][a-z0-9]{1,12}){0,4} | argon2i?d?
    | (?:ed|x)[-_]?25519(?:[-_./][a-z0-9]{1,12}){0,4}
    | (?:field|step|level|page|section|chapter|line|part|phase|input|param|arg|option|value|user
    |server|host|node|site|staging|vault|file|form|group|table|row|column|slot|tier|type|mode
    |ticket|issue|item|entry|note)[-_]?\d{1,3}(?:-[a-z]+)?
    | (?-i:[A-Z]{2,6}-\d{1,8}) | (?:ssha|iso|din|rfc|cve|nist)[\d:-]{1,20}"""
_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_HEX = r"(?:0x)?[0-9a-fA-F]{32,128}"
_IBAN_LENGTHS = frozenset(  # the length of an account number in each country
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DK18 DO28 EE20"
    " EG29 ES24 FI18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27"
    " JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MR27 MT31 MU30 NL18"
    " NO15 PK24 PL28 PS29 PT25 QA29 RO24 RS22 SA24 SC31 SE24 SI19 SK24 SM27 ST25 SV28 TL23 TN24"
    " TR26 UA29 VA22 VG24 XK20".split()
)
_CARDS = (
    r"4\d{15}(?:\d{3})?|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}"
    r"|3[47]\d{13}|6(?:011|5\d\d|4[4-9]\d)\d{12}"
    r"|35(?:2[89]|[3-8]\d)\d{12}|3(?:0[0-5]|[68]\d)\d{11}|62\d{14,17}|(?:50|5[6-8]|6[37])\d{14}"
)
_MAX_LINE = 200
_CODE_LINE = r"[(){}\[\];<]|:=|[!=]=|(?<!\*)[*&]$"
_STATEMENT = r"^\s*(?:\w+ )?[\w.]+\s+=\s*$|^\s.*="
_NOTE_END = r"[\"'`*_]{0,2}(?:[.!?]{0,2}(?:\s|$)|[,;] ?\S)"
_SYMBOLS = "!@#$%^&*+?~|=<>;\\"


def is_placeholder(value: str) -> bool:
    """Return whether a value is a placeholder for a secret, or one of our markers."""
    if "[redacted:" in value or len(set(value)) < 3:
        return True
    return re.fullmatch(_PLACEHOLDER, value) is not None


def is_varied(value: str) -> bool:
    """Return whether a token is more than a prefix and a pattern such as `xxxxxxxx`."""
    if "EXAMPLE" in value or "xxxx" in value.lower():
        return False
    body = max(re.split(r"[_.-]", value), key=len)
    return len(set(body)) >= min(6, max(2, len(body) // 2))


def is_random(value: str) -> bool:
    """Return whether a value looks random, because its class of characters changes often."""
    if len(value) < 10 or re.fullmatch(FORMAT, value):
        return False
    if re.fullmatch(_UUID, value) or re.fullmatch(_HEX, value):
        return True
    words = re.findall(r"[A-Za-z0-9]+", value)
    if len(words) > 1 and all(re.fullmatch(_CAMEL, word) or word.isdigit() for word in words):
        return False
    if re.fullmatch(_CAMEL, value):
        return len(value) >= 24 and value.islower()
    return count_changes(value) * 5 >= len(value) and len(set(value)) * 3 >= min(len(value), 30)


def is_random_enough(value: str) -> bool:
    """Return whether a value of 5 or more characters looks random. A short one is repeated, since
    the test requires at least 10.
    """
    return is_random(f"{value}{value}"[: max(10, len(value))])


def count_changes(value: str) -> int:
    """Return how many times the character class changes in a value."""
    return sum(left != right for left, right in itertools.pairwise(map(_class_of, value)))


def _class_of(character: str) -> int:
    if character.islower():
        return 0
    if character.isupper():
        return 1
    return 2 if character.isdigit() else 3


def is_password(value: str, *, may_be_code: bool = False) -> bool:
    """Return whether a value that the text calls a password really is one.

    Args:
        value: The value.
        may_be_code: Whether the value is unquoted and may be code. In code, an identifier is not a
            password.
    """
    is_format = not value.isdigit() and re.fullmatch(FORMAT, value)
    if len(value) < 6 or is_placeholder(value) or is_format:
        return False
    if is_random(value):
        return True
    if may_be_code and re.fullmatch(_IDENTIFIER, value):
        return False
    if not any(map(str.isalpha, value)):
        return not may_be_code
    has_digit = any(map(str.isdigit, value))
    has_symbol = any(character in _SYMBOLS for character in value)
    if has_digit or has_symbol:
        return len(value) >= 8 or (has_digit and has_symbol)
    return len(value) >= 20 and value.isalpha()


def is_simple(value: str) -> bool:
    """Return whether a value may be a password that a person chose, such as `tiger88`."""
    if is_placeholder(value) or (not value.isdigit() and re.fullmatch(FORMAT, value)):
        return False
    digits, letters = sum(map(str.isdigit, value)), sum(map(str.isalpha, value))
    return is_password(value) or (len(value) >= 6 and digits > 0 and letters >= 2)


def is_noted(text: str, start: int, stop: int) -> bool:
    """Return whether a value is part of a note, such as "wifi password: tiger88", or is quoted.

    A value is part of code if a bracket precedes it in its line, or if a comma or semicolon ends
    the line after it. A quoted value, or one assigned as in code, needs two digits, because
    `field2` and `width2` are names.
    """
    has_number = re.search(r"\d\d|\d.*\d", text[start:stop]) is not None
    quote = text[start - 1 : start]
    if quote in ("'", '"') and text.startswith(quote, stop):
        return has_number
    line = text[max(0, start - _MAX_LINE) : start].rpartition("\n")[2]
    if re.search(_CODE_LINE, line) or not re.match(_NOTE_END, text[stop : stop + 4]):
        return False
    return has_number or re.search(_STATEMENT, line) is None


def is_token(value: str, *, may_be_code: bool = False) -> bool:
    """Return whether a value that the text calls a token or key really is one; see
    `is_password`.
    """
    if len(value) < 12 or is_placeholder(value) or re.fullmatch(FORMAT, value) or value.isdigit():
        return False
    if is_random(value):
        return True
    if may_be_code and re.fullmatch(_IDENTIFIER, value):
        return False
    return sum(map(str.isdigit, value)) >= 3 and not re.fullmatch(_IDENTIFIER, value)


def is_name(value: str) -> bool:
    """Return whether a value looks like the name of a type or variable: mostly words."""
    if not value.replace("_", "a").isalnum() or len(re.findall(r"\d+", value)) > 1:
        return False
    words = re.findall(r"[A-Z]?[a-z]{2,}", value)
    return sum(map(len, words)) * 5 >= len(value) * 3


def is_plausible(value: str) -> bool:
    """Return whether a value can be a secret where one is expected, such as after `--password`."""
    return len(value) >= 4 and not is_placeholder(value)


def is_card(number: str) -> bool:
    """Return whether digits are a payment card number (ISO/IEC 7812: issuer prefix, Luhn digit)."""
    digits = re.sub(r"\D", "", number)
    if not re.fullmatch(_CARDS, digits) or len(set(digits)) < 3:
        return False
    total = 0
    for position, digit in enumerate(reversed(digits)):
        doubled = int(digit) * (1 + position % 2)
        total += doubled - 9 if doubled > 9 else doubled
    return total % 10 == 0


def is_iban(text: str) -> bool:
    """Return whether a text is an account number (ISO 13616: the country's length, ISO 7064 mod
    97).
    """
    plain = re.sub(r"[ -]", "", text).upper()
    if f"{plain[:2]}{len(plain)}" not in _IBAN_LENGTHS:
        return False
    digits = [str(int(sign, 36)) for sign in plain[4:] + plain[:4]]
    return int("".join(digits)) % 97 == 1


def holds_login(text: str) -> bool:
    """Return whether a base64 text decodes to `user:password`."""
    name, colon, password = (decode_base64(text) or "").partition(":")
    if not colon or len(name) + len(password) < 4:
        return False
    return not is_placeholder(password or name)


def decode_base64(text: str) -> str | None:
    """Return decoded base64; None if it is not printable ASCII."""
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    if not _is_printable(_decode(plain[:32])):  # the beginning is enough in most cases
        return None
    data = _decode(plain)
    if _is_printable(data):
        return data.decode("ascii", "replace")
    return None


def _decode(plain: str) -> bytes:
    if len(plain) % 4 == 1:
        plain = plain[:-1]
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4))
    except (ValueError, binascii.Error):
        return b""


def _is_printable(data: bytes) -> bool:
    count = sum(32 <= byte < 127 or byte in (9, 10, 13) for byte in data)
    return bool(data) and count * 10 >= len(data) * 9
