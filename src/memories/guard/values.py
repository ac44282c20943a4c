"""Whether a value is a secret: checksums, what decodes to a user and a password, and what only
stands for a secret.
"""

import base64
import binascii
import itertools
import re

MARK = r"\[redacted:([a-z0-9_]{1,40})\]"
_PLACEHOLDER = r"""(?isx) your[_-]?[\w-]*
    | my[_-][\w-]* | <[\w .:/|-]*>? | \[[\w .:|-]*\]? | \$[({].* | \{[\w{ .$%].* | \#\{.*
    | \$(?-i:[A-Z_][A-Z0-9_]*|[a-z_][a-z0-9_]*) | %\w+% | %[sdrv(].* | @\w+@
    | (?:x+|\*+|\.+|-+|_+|0+|\#+|\?+|…+) | x{3,}.* | .*(?:xxxx|\*\*\*\*|\.\.\.|…).* | change[_-]?(?:me|it|this).*
    | (?:an? [_-])? (?:example|sample|dummy|fake|placeholder|redacted|masked|hidden|insert|replace|todo|fixme|secret
    | password|passwd|passphrase|pass|pwd?|pw|token
    | test|foo|bar|baz|none|null|nil|true|false|undefined|empty|default|required
    | optional|string|str|int|bool|bytes|env|enabled|disabled|yes|no|on|off|user|admin|root|guest|postgres|mysql
    | redis|mongo)
    (?: [_.-]? (?:me|here|value|key|string|example|password|passwd|secret|token|user|test|name|id|data|\d{1,4}) ){0,4}
    | .*example (?:key|secret|token|only)? | process\.env.* | os\.(?:environ|getenv).* | (?:env|vars?|secrets|config
    | settings|local|data|params?|self|this|props|options|opts|args|request|req|ctx|context|module|values)
    [.:\[(].* | (?:ref|file|env|vault|op|ssm|arn|secretsmanager|sops|data):.*"""
_IDENTIFIER = r"[A-Za-z_$][A-Za-z_$]*\d{0,2}(?:[.:/_-]+[A-Za-z_$]+\d{0,2}){0,20}[.:/_-]{0,2}"
_CAMEL = (
    r"[a-z]+(?:[A-Z][a-z]+){0,12}\d{0,2}|(?:[A-Z][a-z]+){1,12}\d{0,2}|[A-Z_]+\d{0,2}|[A-Z]?[a-z]+"
)
FORMAT = r"""(?ix) v?\d++(?:\.\d++){1,3}[\w.+-]*
    | \d{4}-\d\d-\d\d[\dtz:.+-]* | \d+(?:\.\d+)?(?:ms|s|m|h|d|kb|mb|gb|px|em|%)?
    | [~./].* | [a-z]:[\\/].* | [a-z][a-z0-9+.-]{1,12}://.* | [\w.-]+\.(?:py|js|ts|go|rs|java|json|ya?ml|toml|txt|md|
    html?|css|sh|env|pem|key|crt|cer|p12|jks|conf|cfg|ini|xml|sql|com|org|net|io|dev|app) | [\w.+-]+@[\w-]+\.[\w.-]+
    | (?:sha|md|utf|aes|rs|hs|es|ps|base|int|uint|float|ed|x|http|oauth|argon|bcrypt|pbkdf|blake)[-_]?\d{1,4}
    (?:[-_./][a-z0-9]{1,12}){0,4}"""
_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_HEX = r"(?:0x)?[0-9a-fA-F]{32,128}"
_IBAN_LENGTHS = (
    "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BR29BY28CH21CR22CY28CZ24DE22DK18DO28EE20EG29ES24FI18FO18FR27GB22GE22GI23GL18"
    "GR27GT28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20LB28LC32LI21LT20LU20LV21LY25MC27MD24ME22MK19MR27MT31MU30NL18NO15"
    "PK24PL28PS29PT25QA29RO24RS22SA24SC31SE24SI19SK24SM27ST25SV28TL23TN24TR26UA29VA22VG24XK20"
)
_LENGTH_OF = {
    _IBAN_LENGTHS[at : at + 2]: int(_IBAN_LENGTHS[at + 2 : at + 4])
    for at in range(0, len(_IBAN_LENGTHS), 4)
}
_CARDS = (
    r"4\d{15}(?:\d{3})?|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}"
    r"|3[47]\d{13}|6(?:011|5\d\d|4[4-9]\d)\d{12}"
    r"|35(?:2[89]|[3-8]\d)\d{12}|3(?:0[0-5]|[68]\d)\d{11}|62\d{14,17}|(?:50|5[6-8]|6[37])\d{14}"
)


def is_placeholder(value: str) -> bool:
    """Return whether a value only shows where a secret would stand, or is a marker of ours."""
    return "[redacted:" in value or len(set(value)) < 3 or bool(re.fullmatch(_PLACEHOLDER, value))


def varied(value: str) -> bool:
    """Return whether a token is more than a pattern such as `xxxxxxxx` or `1234…`; its prefix is
    not looked at.
    """
    body = max(re.split(r"[_.-]", value), key=len)
    return (
        len(set(body)) >= min(6, max(2, len(body) // 2))
        and "EXAMPLE" not in value
        and "xxxx" not in value.lower()
    )


def is_random(value: str) -> bool:
    """Return whether a value looks like drawn at random: its classes of characters change often."""
    if len(value) < 10 or re.fullmatch(FORMAT, value):
        return False
    if re.fullmatch(_UUID, value) or re.fullmatch(_HEX, value):
        return True
    words = [word for word in re.split(r"[^A-Za-z0-9]+", value) if word]
    if len(words) > 1 and all(re.fullmatch(_CAMEL, word) or word.isdigit() for word in words):
        return False
    if re.fullmatch(_CAMEL, value):
        return len(value) >= 24 and value.islower()
    return changes(value) * 5 >= len(value) and len(set(value)) * 3 >= min(len(value), 30)


def changes(value: str) -> int:
    """Return how often the class of characters changes in a value."""
    return sum(one != other for one, other in itertools.pairwise(map(_kind, value)))


def is_password(value: str, *, code: bool = False) -> bool:
    """Return whether the value of something called a password is one.

    Args:
        value: The value.
        code: It stands unquoted where code could: there an identifier is no password.
    """
    if (
        len(value) < 6
        or is_placeholder(value)
        or (re.fullmatch(FORMAT, value) and not value.isdigit())
    ):
        return False
    if is_random(value):
        return True
    has_digit = any(sign.isdigit() for sign in value)
    has_letter = any(sign.isalpha() for sign in value)
    odd = any(sign in "!@#$%^&*+?~|=<>;\\" for sign in value)
    if code and re.fullmatch(_IDENTIFIER, value):
        return False
    if has_letter and odd:
        return has_digit or len(value) >= 8
    if has_letter and has_digit:
        return len(value) >= 8
    return len(value) >= 20 and value.isalpha() if has_letter else len(value) >= 6 and not code


def is_token(value: str, *, code: bool = False) -> bool:
    """Return whether the value of something called a token or a key is one; see `is_password`."""
    if len(value) < 12 or is_placeholder(value) or re.fullmatch(FORMAT, value) or value.isdigit():
        return False
    if is_random(value):
        return True
    if code and re.fullmatch(_IDENTIFIER, value):
        return False
    return (
        any(sign.isdigit() for sign in value)
        and sum(map(str.isdigit, value)) >= 3
        and not re.fullmatch(_IDENTIFIER, value)
    )


def is_name(value: str) -> bool:
    """Return whether a value is rather the name of a type or a variable: most of it are words."""
    words = re.findall(r"[A-Z]?[a-z]{2,}", value)
    plain = value.replace("_", "a").isalnum() and len(re.findall(r"\d+", value)) <= 1
    return plain and sum(map(len, words)) * 5 >= len(value) * 3


def is_given(value: str) -> bool:
    """Return whether a value is a secret where its place alone says so, as after `--password`."""
    return len(value) >= 4 and not is_placeholder(value)


def is_card(number: str) -> bool:
    """Return whether digits are the number of a payment card (ISO/IEC 7812: an issuer's prefix, the
    Luhn digit).
    """
    digits = re.sub(r"\D", "", number)
    if not re.fullmatch(_CARDS, digits) or len(set(digits)) < 3:
        return False
    doubled = [int(digit) * (1 + at % 2) for at, digit in enumerate(reversed(digits))]
    return sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


def is_iban(text: str) -> bool:
    """Return whether a text is an account number (ISO 13616: the length of its country, ISO 7064
    mod 97).
    """
    plain = re.sub(r"[ -]", "", text).upper()
    if _LENGTH_OF.get(plain[:2]) != len(plain):
        return False
    return int("".join(str(int(sign, 36)) for sign in plain[4:] + plain[:4])) % 97 == 1


def holds_login(text: str) -> bool:
    """Return whether base64 decodes to `user:password`."""
    found = decoded(text)
    name, colon, word = (found or "").partition(":")
    return bool(colon) and len(name) + len(word) >= 4 and not is_placeholder(word or name)


def decoded(text: str) -> str | None:
    """Return what base64 decodes to, if that is printable ASCII; its beginning is looked at
    first.
    """
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    if not _printable(_bytes(plain[:32])):
        return None
    found = _bytes(plain)
    return found.decode("ascii", "replace") if _printable(found) else None


def _bytes(plain: str) -> bytes:
    usable = plain[: len(plain) - (len(plain) % 4 == 1)]
    try:
        return base64.b64decode(usable + "=" * (-len(usable) % 4))
    except (ValueError, binascii.Error):
        return b""


def _printable(found: bytes) -> bool:
    good = sum(32 <= byte < 127 or byte in (9, 10, 13) for byte in found)
    return bool(found) and good * 10 >= len(found) * 9


def _kind(sign: str) -> int:
    return 0 if sign.islower() else 1 if sign.isupper() else 2 if sign.isdigit() else 3
