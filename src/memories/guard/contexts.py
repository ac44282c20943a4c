"""Secrets that only their surroundings tell: what is assigned to a password or a key, headers,
URLs, command lines.
"""

import re
from re import Match

from memories.guard import values
from memories.guard.rules import _A, _B, _W, _Z, Rule, Span

_Q = r"""\\{0,3}["'`]"""
# What may stand after the word of a name that still names the secret itself, as in SECRET_KEY_BASE
# or password2.
_MORE = (
    r"(?i:[_.-]?(?:access[_-]?key|key|base|value|text|string|data|prod|production|dev|staging|live|test|old|new|backup"
    r"|default|primary|secondary|admin|root|db|v?\d{1,2})){0,3}"
)
_NAME_END = r"""(?:\\{0,3}["'`]|[\])]){0,2}[*_]{0,2}"""
_SEPARATOR = (
    r"(?P<sep>[ \t]{0,8}(?::[ \t]{0,4}[A-Za-z_.]{1,24}(?:[ \t]{0,2}\|[ \t]{0,2}None)?[ \t]{0,4}=(?!=)|:=|=>|={1}"
    r"(?!=)|:(?!:)|\|)"
    r"[*_]{0,2}(?:[ \t]{0,8}\\?\r?\n[ \t]{1,16}|[ \t]{0,8})|[ \t]{1,4}(?:is|was|are|=|to)(?:[ \t]{0,2}:)?[ \t]{1,4}"
    r"(?:now[ \t]{1,2}|still[ \t]{1,2})?|,[ \t]{0,4}(?=[\"'])|>(?=[^<\s]{4,200}</))"
)
_VALUE = rf"(?:(?P<q>{_Q})(?P<v>(?:(?!(?P=q))\S){{4,600}})(?P=q)|(?P<u>[^\s\"'`<>]{{4,600}}))"
_PASSWORD_NAMES = "password passwd passphrase passcode passwort pwd secret credential psk".split()
_PASSWORD = (
    r"(?P<name>(?i:pass(?:word|wd|phrase|code|wort)|pwd|secrets?|credentials?|psk))"
    rf"{_MORE}{_NAME_END}{_SEPARATOR}(?i:pass:)?{_VALUE}"
)
_KEY_WORDS = (
    "api app access private encryption signing master service auth account license shared preshared subscription"
    " deploy "
    "webhook client consumer admin root jwt hmac aes cipher session ssh wallet bot project write read ingest pub"
    "lish sdk "
    "org server application storage primary secondary function host integration developer user team personal dsa rsa"
)
_KEY = (
    rf"(?P<name>(?i:(?:{'|'.join(_KEY_WORDS.split())})[_. -]?keys?|token|authorization|sess(?:ion)?[_-]?id|[._-]sid|dsn"
    r"|(?<=_)(?<!public_)key))"
    rf"{_MORE}{_NAME_END}{_SEPARATOR}(?i:(?:bearer|token|basic|apikey|key|bot)[ ]{{1,2}})?{_VALUE}"
)
CODE = r"[A-Za-z_$][\w$.?!]{0,200}[(\[{]|[A-Za-z_$][\w$]{0,60}(?:\.[A-Za-z_$][\w$]{0,60}){1,8}[(\[),;]?$|[&*!][A-Za-z]"
_NEXT = r"[;&,](?=[A-Za-z_][\w .-]{0,40}=)|(?:&(?:amp|quot|lt|gt);|\\[nrt\"']|%26|\\u0026)"
_SAID = (
    r"(?i:pass(?:word|wd|phrase|code)|pwd|pin code|secret|(?:api|access|secret|private) key|token|credentials?)"
    r"[ ](?:[A-Za-z0-9,'()@._/-]{1,30}[ ]){0,8}?(?:(?i:is|was|to|as|be|now|are|with|using|=|->)?:?[ ]{1,2})?"
    rf"(?P<q>{_Q})?(?P<s>[^\s\"'`<>(){{}}\[\]]{{8,300}})"
)


def _assigned(found: Match[str], *, password: bool) -> Span | None:
    """Return where the value of a password or of a key stands, if it is no code, example or plain
    word.
    """
    quoted = found["u"] is None
    start, end = found.span("v" if quoted else "u")
    value = found[0][start - found.start() : end - found.start()]
    if not quoted:
        cut = re.search(_NEXT, value)
        value = (value[: cut.start()] if cut else value).rstrip(".,;:!?)]}*|\\")
        if re.match(CODE, value) or (value[:1] in "([{" and found["sep"].strip() in ("=", ":")):
            return None
    elif value.endswith("\\"):
        value = value.rstrip("\\")
    name, before = found["name"], found.string[max(0, found.start() - 1) : found.start()]
    code = not quoted and not (name.isupper() or before in ("?", "&", ";"))
    if code and values.is_name(value):
        return None
    test = values.is_password if password else values.is_token
    return (start, start + len(value)) if test(value, code=code) else None


def _password(found: Match[str]) -> Span | None:
    return _assigned(found, password=True)


def _key(found: Match[str]) -> Span | None:
    return _assigned(found, password=False)


def _said(found: Match[str]) -> Span | None:
    """Return where a secret stands in a sentence: only what looks drawn at random counts there."""
    value = found["s"].rstrip(".,;:!?*")
    if (
        re.match(CODE, value)
        or not any(map(str.isdigit, value))
        or not values.is_random(f"{value}{value}"[: max(10, len(value))])
    ):
        return None
    mixed = sum((any(map(str.islower, value)), any(map(str.isupper, value)), not value.isalnum()))
    if values.is_placeholder(value) or (mixed < 2 and len(value) < 20):
        return None
    return found.start("s"), found.start("s") + len(value)


def _given(found: Match[str]) -> Span | None:
    """Return where a secret stands whose place alone tells it; a plain word there is part of a
    sentence.
    """
    value = found["s"].rstrip(",;)")
    if not values.is_given(value) or re.match(CODE, value):
        return None
    return found.start("s"), found.start("s") + len(value)


def _literal(found: Match[str]) -> Span | None:
    """Return where a literal that is passed on as a password stands; names and messages are
    literals too.
    """
    value = found["s"]
    return found.span("s") if values.is_password(value) and not values.is_name(value) else None


def _flag(found: Match[str]) -> Span | None:
    word = found["s"]
    plain = (
        word.isalpha()
        and not values.is_random(word)
        and not (len(word) >= 8 and found["sep"] == "=")
    )
    return None if plain or word.startswith("-") else _given(found)


def _random(found: Match[str]) -> Span | None:
    value = found["s"]
    return found.span("s") if values.is_random(value) and not values.is_placeholder(value) else None


def _bearer(found: Match[str]) -> Span | None:
    value = found["s"]
    known = values.is_random(value) or (len(value) >= 20 and any(map(str.isdigit, value)))
    return found.span("s") if known and not values.is_placeholder(value) else None


def _login(found: Match[str]) -> Span | None:
    return found.span("s") if values.holds_login(found["s"]) else None


def _aws_secret(found: Match[str]) -> Span | None:
    value = found["s"]
    kinds = (
        any(map(str.islower, value)) + any(map(str.isupper, value)) + any(map(str.isdigit, value))
    )
    return found.span("s") if kinds == 3 and values.varied(value) and len(set(value)) > 12 else None


def _varied(found: Match[str]) -> Span | None:
    return found.span("s") if values.varied(found["s"]) else None


def _unknown(found: Match[str]) -> Span | None:
    """Return where a token with a prefix that no rule knows stands; ids of other kinds are made the
    same way.
    """
    start, end = found.span("s")
    before = re.search(_PREFIX, found.string[max(0, start - 60) : start])
    counts = [sum(map(test, found["s"])) for test in (str.isdigit, str.isupper, str.islower)]
    if before is None or min(counts) < 3 or _NO_TOKENS & set(re.split(r"[_-]", before[1])):
        return None
    return (start - len(before[1]), end) if values.is_random(found["s"]) else None


_PREFIX = r"(?:^|[^A-Za-z0-9_+/]|\\[nrt]|[0-9;]m)((?:[a-z][a-z0-9]{1,15})(?:[_-][a-z0-9]{1,12}){0,3}[_-])$"
_NO_TOKENS = frozenset(
    "sha sha1 sha256 sha384 sha512 md5 h1 nonce chatcmpl call msg req run thread asst file resp toolu pi evt ch "
    "cs seti in "
    "sub price prod cus chunk hash id uid uuid image img static asset build dist bundle etag trace span session "
    "module css "
    "js data gateway turn batch step vs ft org proj user node kwdo pr mi".split()
)


def _card(found: Match[str]) -> Span | None:
    return found.span("s") if values.is_card(found["s"]) else None


def _iban(found: Match[str]) -> Span | None:
    """Return where an account number stands; words in capitals may follow it."""
    text = found["s"]
    for end in range(len(text), 14, -1):
        if values.is_iban(text[:end]) and not text[end - 1].isspace():
            return found.start("s"), found.start("s") + end
    return None


def _cookies(found: Match[str]) -> Span | None:
    """Return where the first to the last secret value of a line of cookies stands."""
    spans = [
        each.span("v")
        for each in re.finditer(r"(?P<n>[\w.-]{1,64})=(?P<v>[^;\s\"',\\]{8,4000})", found["s"])
        if not values.is_placeholder(each["v"])
        and (
            values.is_random(each["v"])
            if len(each["v"]) >= 16
            else False or re.search(_SESSION, each["n"])
        )
        and any(map(str.isdigit, each["v"]))
    ]
    at = found.start("s")
    return (at + spans[0][0], at + spans[-1][1]) if spans else None


_SESSION = r"(?i)sess|sid|auth|token|jwt|csrf|login|remember"

# fmt: off
CONTEXTS: tuple[Rule, ...] = (
    Rule("aws_secret_key", ("aws", "secret_access_key", "secretaccesskey", "secret access key", "secret-access-key"),
         r"(?is:aws.{0,30}?(?:secret|key)|secret[ _-]?access[ _-]?key)[^A-Za-z0-9/+](?s:.{0,24}?)(?<![A-Za-z0-9/+=])"
         r"(?P<s>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])", _aws_secret),
    Rule("aws_secret_key", ("akia", "asia"),
         r"A[KS]IA[A-Z2-7]{16}[\"'`]{0,1}[\s,:;|/]{1,4}[\"'`]{0,1}(?P<s>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
         _aws_secret),
    Rule("jwt", ("eyj",), rf"(?P<s>{_A}eyJ{_W}{{8,8000}}\.eyJ{_W}{{4,8000}}\.{_W}{{8,2000}})", _varied),
    Rule("jwt", ("eyj",), rf"(?P<s>{_A}eyJ{_W}{{8,2000}}\.{_W}{{0,1000}}\.{_W}{{8,100}}\.{_W}{{4,8000}}\.{_W}{{8"
         rf",200}})",
         _varied),
    Rule("url_password", ("://",),
         r"://(?P<user>[^\s:/@\"'<>`]{0,128}):(?P<s>[^\s\"'<>`/]{3,256})@(?=[\w\[.*-])", _given),
    Rule("url_password", ("http://", "https://"), r"https?://(?P<s>[A-Za-z0-9_-]{20,128})@(?=[\w\[.-])", _random),
    Rule("basic_auth", ("basic",), r"(?i:basic)[\s:]{1,3}[\"'`]?(?P<s>[A-Za-z0-9+/_-]{8,600}={0,2})", _login),
    Rule("basic_auth", ("auth",),
         rf"(?i:_?auth){_NAME_END}[ \t]{{0,4}}[:=][ \t]{{0,4}}(?:{_Q})?(?P<s>[A-Za-z0-9+/]{{8,600}}={{0,2}})", _login),
    Rule("bearer_token", ("bearer",), r"(?i:bearer)[\"']?[\s:=,]{1,3}[\"'`]?(?P<s>[A-Za-z0-9._~+/=-]{16,4000"
         r"})", _bearer),
    Rule("cookie", ("cookie",),
         rf"(?i:cookies?){_NAME_END}[ \t]{{0,4}}[:=][ \t]{{0,4}}(?:{_Q})?(?P<s>[^\n\r]{{8,4000}})", _cookies),
    Rule("cookie", (" -b ", "--cookie ", "--cookie="), r"(?i: -b |--cookie[ =])(?P<s>[^\n\r]{8,4000"
         r"})", _cookies, line=True),
    Rule("password", ("pass", "pwd", "secret", "credential", "psk"), _PASSWORD, _password),
    Rule("api_key", ("key",), _KEY, _key, 13),
    Rule("api_key", ("token", "authorization", "session", "sess_id", "sessid", ".sid", "_sid", "dsn"), _KEY, _key),
    Rule("password", ("pass", "pwd", "pin code", "secret", "credential"), _SAID, _said),
    Rule("api_key", ("token", "api key", "access key", "private key"), _SAID, _said),
    Rule("password", ("--",),
         r"(?<![\w-])--(?:[a-z]{1,20}-){0,3}(?i:pass(?:word|wd|phrase)?|pwd|secret(?:-?key)?|token|(?:api|access"
         r"|auth|secret)"
         rf"-?key|key-secret)(?P<sep>=|[ ]{{1,2}})(?P<q>{_Q})?(?P<s>[^\s\"'`]{{4,300}})", _flag),
    Rule("password", ("curl", "wget", "http", "xh "),
         rf"(?i:curl|wget|https?|xh)[ ](?:[^\n]{{0,400}}?[ ])?(?:-u|--user|-U|--proxy-user|-a|--auth)(?:[ ]{{1,"
         rf"2}}|=)?(?:{_Q})?"
         r"[^\s:\"'`]{1,100}:(?P<s>[^\s\"'`]{3,200})", _given),
    Rule("password", ("sshpass", "mysql", "mariadb", "mongo", "docker login", "podman login", "helm ", "sqlcmd",
                      "az login",
                      "zip ", "7z ", "htpasswd", "lftp", "xfreerdp", "rar "),
         r"(?i:sshpass|mysql\w{0,9}|mariadb\w{0,9}|mongo\w{0,9}|(?:docker|podman|az)[ ]login|helm|sqlcmd|zip|7z|"
         r"rar|xfreerdp)"
         rf"[ ](?:[^\n]{{0,300}}?[ ])?[-/][pP][:=]?[ ]?(?:{_Q})?(?P<s>[^\s\"'`-][^\s\"'`]{{3,200}})", _given),
    Rule("password", ("redis-cli", "ldapsearch", "ldapmodify", "smbclient", "snmp"),
         rf"(?i:redis-cli|ldap\w{{3,9}}|smbclient|snmp\w{{2,9}})[ ](?:[^\n]{{0,300}}?[ ])?(?:-[awA][ ]|-U[ ][^\s"
         rf"%]{{1,80}}%)"
         rf"(?:{_Q})?(?P<s>[^\s\"'`-][^\s\"'`]{{3,200}})", _given),
    # A name and a value that stand apart, as in lists of variables and in XML.
    Rule("password", ("name", "key", "id"),
         r"(?i:name|key|id)(?:[\"']?[ \t]{0,3}[:=][ \t]{0,3}[\"']?)[\w.-]{0,40}?(?i:pass(?:word|wd)?|pwd|secret|"
         r"token|key)[\"']?"
         r"[\s,]{1,40}[\"']?(?i:value|val)[\"']?[ \t]{0,3}[:=][ \t]{0,3}[\"'](?P<s>[^\s\"']{6,300})[\"']", _given),
    Rule("password", ("password(", "passwd(", "secret(", "token(", "apikey(", "passphrase(", "key("),
         rf"(?i:password|passwd|secret|token|key|passphrase)\([ ]{{0,2}}(?:{_Q})(?P<s>[^\s\"'`]{{6,300}})(?"
         rf":{_Q})[ ]{{0,2}}\)",
         _literal),
    Rule("password", ("auth", "credential"),
         rf"(?i:auth|credentials?)[ ]?[=(:][ ]?[\[(]?[ ]?(?:{_Q})[^\s\"'`]{{1,60}}(?:{_Q}),[ ]{{0,2}}(?:{_Q})(?P"
         rf"<s>[^\s\"'`]{{6,300}})",
         _literal),
    Rule("password", ("pass:", "pass ", "pass=", "pass\"", "pass'", "pw is", "pw: ", "pw = "),
         r"(?<![A-Za-z])(?P<name>(?:[A-Za-z][\w.-]{0,30}[_.-])?(?i:pass|pw))"
         rf"{_NAME_END}{_SEPARATOR}{_VALUE}", _password, 33),
    Rule("password", ("as the password", "as password", "as passphrase", "as the token", "as token", "as the api key",
                      "as my password", "as a password", "as the passphrase"),
         r"(?P<s>[^\s\"'`<>(){}\[\]]{8,100})[\"'`]?[ ]as[ ](?:the |my |a )?(?i:pass|token|api key)", _said, 104),
    Rule("password", ("vault login", "login --with-token"),
         r"(?i:vault login|--with-token)[ ](?:-\S{1,30}[ ])?(?P<s>[^\s\"'`-][^\s\"'`]{15,200})", _random),
    Rule("password", ("pass:",), rf"{_A}pass:(?P<s>[^\s\"'`]{{4,200}})", _given),
    Rule("password", ("echo ", "printf "),
         rf"(?:echo|printf)[ ](?:-n[ ])?(?:{_Q})?(?:[\w.-]{{1,40}}:)?(?P<s>[^\s\"'`|]{{4,200}})(?:{_Q})?[ ]?\|[ "
         rf"]?[^\n|]{{0,80}}?"
         r"(?:sudo[ ]-\w{0,3}S|--?password-stdin|passwd|--passphrase-fd|--with-token)", _given),
    Rule("password", ("login ",),
         r"(?i:login)[ ]{1,8}\S{1,100}\s{1,20}(?i:password|passwd)\s{1,20}(?P<s>\S{3,200})", _given),
    Rule("password", (":5432:", ":*:", ":5433:", ":6432:"), r":(?:\d{2,5}|\*):[\w*-]{1,63}:[\w*.-]{1,63}:(?P<s>["
         r"^\s:]{4,200})",
         _given),
    Rule("azure_key", ("+ast", "azse", "azfu", "azca", "+aba", "+amc", "+aeh", "+arm", "+aio", "acdb", "+acr", "jqqj99",
                       "azdo"),
         r"(?P<s>(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{31,76}(?:\+ASt|AzSe|AzFu|AzCa|\+ABa|\+AMC|\+AEh|\+ARm|\+AIo|ACD"
         r"b|\+ACR|JQQJ99"
         r"|AZDO)[A-Za-z0-9+/]{4,44}={0,2})", _varied, 80),
    Rule("azure_client_secret", ("q~",), rf"(?P<s>{_A}[A-Za-z0-9_~.-]{{3}}\dQ~[A-Za-z0-9_~.-]{{31,34}})", _varied, 4),
    Rule("url_key", ("sig=", "key=", "signature=", "code=", "auth=", "token="),
         r"(?<=[?&;.])(?i:key|sig|signature|x-amz-signature|x-goog-signature|code|auth|subscription-key|apikey|["
         r"a-z_]{0,20}token)="
         r"(?P<s>[A-Za-z0-9%._~+/=-]{16,1000})", _random, 20),
    Rule("okta_token", ("ssws",), rf"(?i:ssws)[ ]{{1,2}}(?P<s>00{_W}{{38,44}})", _varied),
    Rule("mailchimp_key", ("-us",), rf"(?P<s>{_A}[0-9a-f]{{32}}-us\d{{1,2}}{_Z})", _varied, 33),
    Rule("private_key", ('"kty"',), r"(?s:\"kty\".{0,3000}?)\"(?:d|k)\"\s{0,4}:\s{0,4}\"(?P<s>[A-Za-z0-9_-]{20,1"
         r"500})\"", _varied),
    Rule("seed_phrase", ("mnemonic", "seed phrase", "recovery phrase", "seed_phrase", "seed words"),
         rf"(?i:mnemonic|seed[ _](?:phrase|words)|recovery phrase){_NAME_END}{_SEPARATOR}(?:{_Q})?"
         r"(?P<s>(?:[a-z]{3,8}[ ]){11,23}[a-z]{3,8})(?![a-z])", _varied),
)
# fmt: on

# Without a literal, and so tried everywhere, where a text has a long run of signs, or digits. Each
# begins with a class of characters, which the engine looks for quickly, and then looks back at what
# stands before it.
_A1 = r"(?:(?<![A-Za-z0-9_].)|(?<=\\[nrtbf].)|(?<=%[0-9A-Fa-f]{2}.)|(?<=\\u[0-9A-Fa-f]{4}.)|(?<=[0-9;]m.))"
LONG: tuple[Rule, ...] = (
    Rule(
        "discord_token", (), rf"(?P<s>[MNO]{_A1}{_W}{{23,27}}\.{_W}{{6}}\.{_W}{{27,40}})", _varied
    ),
    Rule("token", (), rf"(?P<s>{_B}(?<=[_-].){_B}{{27,199}}){_Z}", _unknown),
)
NUMBERS: tuple[Rule, ...] = (
    Rule(
        "card",
        (),
        rf"(?P<s>\d(?<![.].)(?<!\d[ -].){_A1}(?:[ -]?\d){{13,18}})(?![\w])(?!\.\d)",
        _card,
    ),
    Rule("iban", (), rf"(?P<s>[A-Z]{_A1}[A-Z]\d{{2}}(?:[ -]?[A-Z0-9]){{11,30}})", _iban),
)
PERSONAL: tuple[Rule, ...] = (
    Rule(
        "email",
        ("@",),
        r"(?P<s>(?<![\w.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8})",
        lambda found: found.span("s"),
        65,
    ),
    Rule(
        "phone",
        ("+",),
        r"(?P<s>(?<!\w)\+\d(?:[ ()./-]{0,2}\d){7,14})(?!\d)",
        lambda found: found.span("s"),
    ),
    Rule(
        "ip_address",
        (".",),
        r"(?P<s>(?<![\w.])(?:\d{1,2}|1\d\d|2[0-4]\d|25[0-5])(?:\.(?:\d{1,2}|1\d\d|2[0-4]\d|25[0-5])){3})(?![\w]|\.\d)",
        lambda found: found.span("s"),
        3,
    ),
)
