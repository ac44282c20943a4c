"""Locators: functions that find the secret in a rule's match, or return None if there is none."""

import re
from re import Match

from memories.guard import values

Span = tuple[int, int]

# The beginning of an expression in code: it computes a value instead of revealing one.
CODE = (
    r"[A-Za-z_$][\w$.?!]{0,200}[(\[{]"
    r"|[A-Za-z_$][\w$]{0,60}(?:\.[A-Za-z_$][\w$]{0,60}){1,8}[(\[),;]?$|[&*!][A-Za-z]"
)
_NEXT_PARAMETER = (
    r"[;&,](?=[A-Za-z_][\w .-]{0,40}=)|(?:&(?:amp|quot|lt|gt);|\\[nrt\"']|%26|\\u0026)"
)
_ID_PREFIX = (
    r"(?:^|[^A-Za-z0-9_+/-]|\\[nrt]|[0-9;]m)"
    r"(?:-{1,2}[A-Z]?|(?:[A-Z]{1,9}[a-z]{0,15}-){1,3})?"  # such as `--`, `-D` or `Bearer-`
    r"((?:[a-z][a-z0-9]{1,15})(?:[_-][a-z0-9]{1,12}){0,3}[_-])$"
)
# Prefixes of ids that look like tokens but are public.
_PUBLIC_PREFIXES = frozenset(
    "sha sha1 sha256 sha384 sha512 md5 h1 nonce chatcmpl call msg req run thread asst file resp"
    " toolu pi evt ch cs seti in sub price prod cus chunk hash id uid uuid image img static asset"
    " build dist bundle etag trace span session module css js data gateway turn batch step vs ft"
    " org proj user node kwdo pr mi".split()
)
_SESSION_NAME = r"(?i)sess|sid|auth|token|jwt|csrf|login|remember"
_COOKIE = r"(?P<n>[\w.-]{1,64})=(?P<v>[^;\s\"',\\]{8,4000})"


def locate_varied(match: Match[str]) -> Span | None:
    """Locate a token, unless it is a placeholder such as `xxxxxxxx`."""
    if values.is_varied(match["s"]):
        return match.span("s")
    return None


def _locate_value(match: Match[str], *, is_password: bool) -> Span | None:
    """Locate the value of a password or a key, unless it is code, an example or a plain word."""
    is_quoted = match["u"] is None
    start, end = match.span("v" if is_quoted else "u")
    value = match.string[start:end]
    if is_quoted:
        value = value.rstrip("\\")
    else:
        following = re.search(_NEXT_PARAMETER, value)
        if following:
            value = value[: following.start()]
        value = value.rstrip(".,;:!?)]}*|\\")
        is_literal = value[:1] in "([{" and match["sep"].strip() in ("=", ":")
        if is_literal or re.match(CODE, value):
            return None
    before = match.string[max(0, match.start() - 1) : match.start()]
    name = match["name"]
    # "PASS: name" is a test result, not a setting.
    is_constant = name.isupper() and not (name == "PASS" and ":" in match["sep"])
    may_be_code = not is_quoted and not is_constant and before not in ("?", "&", ";")
    end = start + len(value)
    is_setting = is_constant or before in ("_", ".") or "_" in name or name == "passwd"
    if name.endswith("pass"):  # `first_pass: layer12` isn't a setting
        is_setting = is_setting and match["sep"] == "="
    names_password = re.search(r"(?i)pass|pw", name) is not None
    is_noted = is_setting and names_password and values.is_noted(match.string, start, end)
    if is_noted and values.is_simple(value):
        return start, end
    if may_be_code and values.is_name(value):
        return None
    is_secret = values.is_password if is_password else values.is_token
    if not is_secret(value, may_be_code=may_be_code):
        return None
    return start, end


def locate_password(match: Match[str]) -> Span | None:
    """Locate the value of a password, as in "password = …"."""
    return _locate_value(match, is_password=True)


def locate_key(match: Match[str]) -> Span | None:
    """Locate the value of a key or a token, as in "token = …"."""
    return _locate_value(match, is_password=False)


def locate_said(match: Match[str]) -> Span | None:
    """Locate a secret in a sentence, if it looks random."""
    value = match["s"].rstrip(".,;:!?*")
    if re.match(CODE, value) or not any(map(str.isdigit, value)):
        return None
    if not values.is_random_enough(value) or values.is_placeholder(value):
        return None
    has_lower, has_upper = any(map(str.islower, value)), any(map(str.isupper, value))
    is_mixed = has_lower and has_upper
    if not value.isalnum():
        is_mixed = has_lower or has_upper
    if not is_mixed and len(value) < 20:
        return None
    return match.start("s"), match.start("s") + len(value)


def locate_plain(match: Match[str]) -> Span | None:
    """Locate a secret that is recognized only by the text before it."""
    value = match["s"].rstrip(",;)")
    if not values.is_plausible(value) or re.match(CODE, value):
        return None
    return match.start("s"), match.start("s") + len(value)


def locate_literal(match: Match[str]) -> Span | None:
    """Locate a literal passed as a password, unless it looks like a name or a message."""
    value = match["s"]
    if not values.is_password(value) or values.is_name(value):
        return None
    return match.span("s")


def locate_flag(match: Match[str]) -> Span | None:
    """Locate the value of an option such as `--password`, unless it is a plain word."""
    word = match["s"]
    if word.startswith("-"):
        return None
    is_assigned = match["sep"] == "=" and len(word) >= 8
    if word.isalpha() and not values.is_random(word) and not is_assigned:
        return None
    return locate_plain(match)


def locate_random(match: Match[str]) -> Span | None:
    """Locate a value that looks random."""
    value = match["s"]
    if not values.is_random(value) or values.is_placeholder(value):
        return None
    return match.span("s")


def locate_bearer(match: Match[str]) -> Span | None:
    """Locate a bearer token that looks random, or that is long and contains a digit."""
    value = match["s"]
    if values.is_placeholder(value):
        return None
    is_long = len(value) >= 20 and any(map(str.isdigit, value))
    if not is_long and not values.is_random(value):
        return None
    return match.span("s")


def locate_login(match: Match[str]) -> Span | None:
    """Locate base64 that decodes to `user:password`."""
    if values.holds_login(match["s"]):
        return match.span("s")
    return None


def locate_aws_secret(match: Match[str]) -> Span | None:
    """Locate an AWS secret key, which contains digits and both upper- and lowercase letters."""
    value = match["s"]
    for is_of_class in (str.islower, str.isupper, str.isdigit):
        if not any(map(is_of_class, value)):
            return None
    if len(set(value)) <= 12 or not values.is_varied(value):
        return None
    return match.span("s")


def locate_unknown_token(match: Match[str]) -> Span | None:
    """Locate a token with a prefix that no rule knows, unless it is part of a longer base64 text,
    or a public id of the same form.
    """
    start = match.start("s")
    prefix = re.search(_ID_PREFIX, match.string[max(0, start - 140) : start])
    if prefix is None:
        return None
    for is_of_class in (str.isdigit, str.isupper, str.islower):
        if sum(map(is_of_class, match["s"])) < 3:
            return None
    if _PUBLIC_PREFIXES & set(re.split(r"[_-]", prefix[1])) or not values.is_random(match["s"]):
        return None
    return start - len(prefix[1]), match.end()


def locate_card(match: Match[str]) -> Span | None:
    """Locate a payment card number."""
    if values.is_card(match["s"]):
        return match.span("s")
    return None


def locate_iban(match: Match[str]) -> Span | None:
    """Locate an account number (IBAN), even if words in capitals follow it."""
    text, start = match["s"], match.start("s")
    for length in range(len(text), 14, -1):
        if values.is_iban(text[:length]) and not text[length - 1].isspace():
            return start, start + length
    return None


def locate_cookies(match: Match[str]) -> Span | None:
    """Locate the part of a line of cookies from the first secret value to the last."""
    spans = [cookie.span("v") for cookie in re.finditer(_COOKIE, match["s"]) if _is_secret(cookie)]
    if not spans:
        return None
    start = match.start("s")
    return start + spans[0][0], start + spans[-1][1]


def _is_secret(cookie: Match[str]) -> bool:
    value = cookie["v"]
    if values.is_placeholder(value) or not any(map(str.isdigit, value)):
        return False
    if len(value) >= 16:
        return values.is_random(value)
    return re.search(_SESSION_NAME, cookie["n"]) is not None


def locate_all(match: Match[str]) -> Span | None:
    """Locate the group `s` of a match, which is always a secret."""
    return match.span("s")


def locate_nonempty(match: Match[str]) -> Span | None:
    """Locate the group `s` of a user's rule, unless it is empty."""
    return match.span("s") if match["s"] else None
