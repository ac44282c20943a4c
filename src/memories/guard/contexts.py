"""Rules for secrets that are recognized by their context: assignments to passwords and keys,
headers, URLs, command lines.
"""

from memories.guard.locators import (
    locate_all,
    locate_aws_secret,
    locate_bearer,
    locate_card,
    locate_cookies,
    locate_flag,
    locate_iban,
    locate_key,
    locate_literal,
    locate_login,
    locate_password,
    locate_plain,
    locate_random,
    locate_said,
    locate_unknown_token,
    locate_varied,
)
from memories.guard.rules import ALNUM, END, START, WORD, Rule

# --- pieces of patterns

_QUOTE = r"""\\{0,3}["'`]"""
# Endings after which a name still refers to the secret itself, as in SECRET_KEY_BASE or password2.
_SUFFIX = (
    r"(?i:[_.-]?(?:access[_-]?key|key|base|value|text|string|data|prod|production|dev|staging|live"
    r"|test|old|new|backup|default|primary|secondary|admin|root|db|v?\d{1,2})){0,3}"
)
_NAME_END = r"""(?:\\{0,3}["'`]|[\])]){0,2}[*_]{0,2}"""
_SEPARATOR = (
    r"(?P<sep>[ \t]{0,8}"
    r"(?::[ \t]{0,4}[A-Za-z_.]{1,24}(?:[ \t]{0,2}\|[ \t]{0,2}None)?[ \t]{0,4}=(?!=)"
    r"|:=|=>|={1}(?!=)|:(?!:)|\|)[*_]{0,2}(?:[ \t]{0,8}\\?\r?\n[ \t]{1,16}|[ \t]{0,8})"
    r"|[ \t]{1,4}(?:is|was|are|=|to)(?:[ \t]{0,2}:)?[ \t]{1,4}"
    r"(?:now[ \t]{1,2}|still[ \t]{1,2})?"
    r"|,[ \t]{0,4}(?=[\"'])|>(?=[^<\s]{4,200}</))"
)
_VALUE = rf"(?:(?P<q>{_QUOTE})(?P<v>(?:(?!(?P=q))\S){{4,600}})(?P=q)|(?P<u>[^\s\"'`<>]{{4,600}}))"
_ASSIGNED_PASSWORD = (
    r"(?P<name>(?i:pass(?:word|wd|phrase|code|wort)|pwd|secrets?|credentials?|psk))"
    rf"{_SUFFIX}{_NAME_END}{_SEPARATOR}(?i:pass:)?{_VALUE}"
)
_KEY_WORDS = (
    "api app access private encryption signing master service auth account license shared preshared"
    " subscription deploy webhook client consumer admin root jwt hmac aes cipher session ssh wallet"
    " bot project write read ingest publish sdk org server application storage primary secondary"
    " function host integration developer user team personal dsa rsa"
)
_ASSIGNED_KEY = (
    rf"(?P<name>(?i:(?:{'|'.join(_KEY_WORDS.split())})[_. -]?keys?|token|authorization"
    r"|sess(?:ion)?[_-]?id|[._-]sid|dsn|(?<=_)(?<!public_)key))"
    rf"{_SUFFIX}{_NAME_END}{_SEPARATOR}"
    rf"(?i:(?:bearer|token|basic|apikey|key|bot)[ ]{{1,2}})?{_VALUE}"
)
_SAID = (
    r"(?i:pass(?:word|wd|phrase|code)|pwd|pin code|secret|(?:api|access|secret|private) key|token"
    r"|credentials?)[ ](?:[A-Za-z0-9,'()@._/-]{1,30}[ ]){0,8}?"
    r"(?:(?i:is|was|to|as|be|now|are|with|using|=|->)?:?[ ]{1,2})?"
    rf"(?P<q>{_QUOTE})?(?P<s>[^\s\"'`<>(){{}}\[\]]{{8,300}})"
)

# --- the rules

CONTEXTS: tuple[Rule, ...] = (
    Rule(
        "aws_secret_key",
        ("aws", "secret_access_key", "secretaccesskey", "secret access key", "secret-access-key"),
        r"(?is:aws.{0,30}?(?:secret|key)|secret[ _-]?access[ _-]?key)[^A-Za-z0-9/+]"
        r"(?s:.{0,24}?)(?<![A-Za-z0-9/+=])(?P<s>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        locate_aws_secret,
    ),
    Rule(
        "aws_secret_key",
        ("akia", "asia"),
        r"A[KS]IA[A-Z2-7]{16}[\"'`]{0,1}[\s,:;|/]{1,4}[\"'`]{0,1}(?P<s>[A-Za-z0-9/+]{40})"
        r"(?![A-Za-z0-9/+=])",
        locate_aws_secret,
    ),
    Rule(
        "jwt",
        ("eyj",),
        rf"(?P<s>{START}eyJ{WORD}{{8,8000}}\.eyJ{WORD}{{4,8000}}\.{WORD}{{8,2000}})",
        locate_varied,
    ),
    Rule(
        "jwt",
        ("eyj",),
        rf"(?P<s>{START}eyJ{WORD}{{8,2000}}\.{WORD}{{0,1000}}\.{WORD}{{8,100}}\."
        rf"{WORD}{{4,8000}}\.{WORD}{{8,200}})",
        locate_varied,
    ),
    Rule(
        "url_password",
        ("://",),
        r"://(?P<user>[^\s:/@\"'<>`]{0,128}):(?P<s>[^\s\"'<>`/]{3,256})@(?=[\w\[.*-])",
        locate_plain,
    ),
    Rule(
        "url_password",
        ("http://", "https://"),
        r"https?://(?P<s>[A-Za-z0-9_-]{20,128})@(?=[\w\[.-])",
        locate_random,
    ),
    Rule(
        "basic_auth",
        ("basic",),
        r"(?i:basic)[\s:]{1,3}[\"'`]?(?P<s>[A-Za-z0-9+/_-]{8,600}={0,2})",
        locate_login,
    ),
    Rule(
        "basic_auth",
        ("auth",),
        rf"(?i:_?auth){_NAME_END}[ \t]{{0,4}}[:=][ \t]{{0,4}}(?:{_QUOTE})?"
        r"(?P<s>[A-Za-z0-9+/]{8,600}={0,2})",
        locate_login,
    ),
    Rule(
        "bearer_token",
        ("bearer",),
        r"(?i:bearer)[\"']?[\s:=,]{1,3}[\"'`]?(?P<s>[A-Za-z0-9._~+/=-]{16,4000})",
        locate_bearer,
    ),
    Rule(
        "cookie",
        ("cookie",),
        rf"(?i:cookies?){_NAME_END}[ \t]{{0,4}}[:=][ \t]{{0,4}}(?:{_QUOTE})?"
        r"(?P<s>[^\n\r]{8,4000})",
        locate_cookies,
    ),
    Rule(
        "cookie",
        (" -b ", "--cookie ", "--cookie="),
        r"(?i: -b |--cookie[ =])(?P<s>[^\n\r]{8,4000})",
        locate_cookies,
        line=True,
    ),
    Rule(
        "password",
        ("pass", "pwd", "secret", "credential", "psk"),
        _ASSIGNED_PASSWORD,
        locate_password,
    ),
    Rule("api_key", ("key",), _ASSIGNED_KEY, locate_key, before=13),
    Rule(
        "api_key",
        ("token", "authorization", "session", "sess_id", "sessid", ".sid", "_sid", "dsn"),
        _ASSIGNED_KEY,
        locate_key,
    ),
    Rule("password", ("pass", "pwd", "pin code", "secret", "credential"), _SAID, locate_said),
    Rule("api_key", ("token", "api key", "access key", "private key"), _SAID, locate_said),
    Rule(
        "password",
        ("--",),
        r"(?<![\w-])--(?:[a-z]{1,20}-){0,3}(?i:pass(?:word|wd|phrase)?|pwd|secret"
        r"(?:-?key)?|token|(?:api|access|auth|secret)-?key|key-secret)(?P<sep>=|[ ]{1,2})"
        rf"(?P<q>{_QUOTE})?(?P<s>[^\s\"'`]{{4,300}})",
        locate_flag,
    ),
    Rule(
        "password",
        ("curl", "wget", "http", "xh "),
        r"(?i:curl|wget|https?|xh)[ ](?:[^\n]{0,400}?[ ])?"
        rf"(?:-u|--user|-U|--proxy-user|-a|--auth)(?:[ ]{{1,2}}|=)?(?:{_QUOTE})?"
        r"[^\s:\"'`]{1,100}:(?P<s>[^\s\"'`]{3,200})",
        locate_plain,
    ),
    Rule(
        "password",
        (
            "sshpass",
            "mysql",
            "mariadb",
            "mongo",
            "docker login",
            "podman login",
            "helm ",
            "sqlcmd",
            "az login",
            "zip ",
            "7z ",
            "htpasswd",
            "lftp",
            "xfreerdp",
            "rar ",
        ),
        r"(?i:sshpass|mysql\w{0,9}|mariadb\w{0,9}|mongo\w{0,9}|(?:docker|podman|az)"
        r"[ ]login|helm|sqlcmd|zip|7z|rar|xfreerdp)[ ](?:[^\n]{0,300}?[ ])?"
        rf"[-/][pP][:=]?[ ]?(?:{_QUOTE})?(?P<s>[^\s\"'`-][^\s\"'`]{{3,200}})",
        locate_plain,
    ),
    Rule(
        "password",
        ("redis-cli", "ldapsearch", "ldapmodify", "smbclient", "snmp"),
        r"(?i:redis-cli|ldap\w{3,9}|smbclient|snmp\w{2,9})[ ](?:[^\n]{0,300}?[ ])?"
        rf"(?:-[awA][ ]|-U[ ][^\s%]{{1,80}}%)(?:{_QUOTE})?"
        r"(?P<s>[^\s\"'`-][^\s\"'`]{3,200})",
        locate_plain,
    ),
    # A name that is separate from its value, as in lists of variables and in XML.
    Rule(
        "password",
        ("name", "key", "id"),
        r"(?i:name|key|id)(?:[\"']?[ \t]{0,3}[:=][ \t]{0,3}[\"']?)[\w.-]{0,40}?(?i:pass"
        r"(?:word|wd)?|pwd|secret|token|key)[\"']?[\s,]{1,40}[\"']?(?i:value|val)"
        r"[\"']?[ \t]{0,3}[:=][ \t]{0,3}[\"'](?P<s>[^\s\"']{6,300})[\"']",
        locate_plain,
    ),
    Rule(
        "password",
        ("password(", "passwd(", "secret(", "token(", "apikey(", "passphrase(", "key("),
        rf"(?i:password|passwd|secret|token|key|passphrase)\([ ]{{0,2}}(?:{_QUOTE})"
        rf"(?P<s>[^\s\"'`]{{6,300}})(?:{_QUOTE})[ ]{{0,2}}\)",
        locate_literal,
    ),
    Rule(
        "password",
        ("auth", "credential"),
        rf"(?i:auth|credentials?)[ ]?[=(:][ ]?[\[(]?[ ]?(?:{_QUOTE})[^\s\"'`]{{1,60}}"
        rf"(?:{_QUOTE}),[ ]{{0,2}}(?:{_QUOTE})(?P<s>[^\s\"'`]{{6,300}})",
        locate_literal,
    ),
    Rule(
        "password",
        ("pass:", "pass ", "pass=", 'pass"', "pass'", "pw is", "pw: ", "pw = "),
        rf"(?<![A-Za-z])(?P<name>(?:[A-Za-z][\w.-]{{0,30}}[_.-])?(?i:pass|pw)){_NAME_END}"
        rf"{_SEPARATOR}{_VALUE}",
        locate_password,
        before=33,
    ),
    Rule(
        "password",
        (
            "as the password",
            "as password",
            "as passphrase",
            "as the token",
            "as token",
            "as the api key",
            "as my password",
            "as a password",
            "as the passphrase",
        ),
        r"(?P<s>[^\s\"'`<>(){}\[\]]{8,100})[\"'`]?[ ]as[ ](?:the |my |a )?"
        r"(?i:pass|token|api key)",
        locate_said,
        before=104,
    ),
    Rule(
        "password",
        ("vault login", "login --with-token"),
        r"(?i:vault login|--with-token)[ ](?:-\S{1,30}[ ])?"
        r"(?P<s>[^\s\"'`-][^\s\"'`]{15,200})",
        locate_random,
    ),
    Rule("password", ("pass:",), rf"{START}pass:(?P<s>[^\s\"'`]{{4,200}})", locate_plain),
    Rule(
        "password",
        ("echo ", "printf "),
        rf"(?:echo|printf)[ ](?:-n[ ])?(?:{_QUOTE})?(?:[\w.-]{{1,40}}:)?"
        rf"(?P<s>[^\s\"'`|]{{4,200}})(?:{_QUOTE})?[ ]?\|[ ]?[^\n|]{{0,80}}?"
        r"(?:sudo[ ]-\w{0,3}S|--?password-stdin|passwd|--passphrase-fd|--with-token)",
        locate_plain,
    ),
    Rule(
        "password",
        ("login ",),
        r"(?i:login)[ ]{1,8}\S{1,100}\s{1,20}(?i:password|passwd)\s{1,20}(?P<s>\S{3,200})",
        locate_plain,
    ),
    Rule(
        "password",
        (":5432:", ":*:", ":5433:", ":6432:"),
        r":(?:\d{2,5}|\*):[\w*-]{1,63}:[\w*.-]{1,63}:(?P<s>[^\s:]{4,200})",
        locate_plain,
    ),
    Rule(
        "azure_key",
        (
            "+ast",
            "azse",
            "azfu",
            "azca",
            "+aba",
            "+amc",
            "+aeh",
            "+arm",
            "+aio",
            "acdb",
            "+acr",
            "jqqj99",
            "azdo",
        ),
        r"(?P<s>(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{31,76}"
        r"(?:\+ASt|AzSe|AzFu|AzCa|\+ABa|\+AMC|\+AEh|\+ARm|\+AIo|ACDb|\+ACR|JQQJ99|AZDO)"
        r"[A-Za-z0-9+/]{4,44}={0,2})",
        locate_varied,
        before=80,
    ),
    Rule(
        "azure_client_secret",
        ("q~",),
        rf"(?P<s>{START}[A-Za-z0-9_~.-]{{3}}\dQ~[A-Za-z0-9_~.-]{{31,34}})",
        locate_varied,
        before=4,
    ),
    Rule(
        "url_key",
        ("sig=", "key=", "signature=", "code=", "auth=", "token="),
        r"(?<=[?&;.])"
        r"(?i:key|sig|signature|x-amz-signature|x-goog-signature|code|auth|subscription-key"
        r"|apikey|[a-z_]{0,20}token)=(?P<s>[A-Za-z0-9%._~+/=-]{16,1000})",
        locate_random,
        before=20,
    ),
    Rule("okta_token", ("ssws",), rf"(?i:ssws)[ ]{{1,2}}(?P<s>00{WORD}{{38,44}})", locate_varied),
    Rule(
        "mailchimp_key",
        ("-us",),
        rf"(?P<s>{START}[0-9a-f]{{32}}-us\d{{1,2}}{END})",
        locate_varied,
        before=33,
    ),
    Rule(
        "private_key",
        ('"kty"',),
        r"(?s:\"kty\".{0,3000}?)\"(?:d|k)\"\s{0,4}:\s{0,4}\"(?P<s>[A-Za-z0-9_-]{20,1500})\"",
        locate_varied,
    ),
    Rule(
        "seed_phrase",
        ("mnemonic", "seed phrase", "recovery phrase", "seed_phrase", "seed words"),
        rf"(?i:mnemonic|seed[ _](?:phrase|words)|recovery phrase){_NAME_END}{_SEPARATOR}"
        rf"(?:{_QUOTE})?(?P<s>(?:[a-z]{{3,8}}[ ]){{11,23}}[a-z]{{3,8}})(?![a-z])",
        locate_varied,
    ),
)

# --- rules without a literal

# These rules are tried everywhere in a text that has a long word or number. Each begins with a
# character class, which the engine finds quickly, and then looks back at the text before it.
_STARTED = (
    r"(?:(?<![A-Za-z0-9_].)|(?<=\\[nrtbf].)|(?<=%[0-9A-Fa-f]{2}.)"
    r"|(?<=\\u[0-9A-Fa-f]{4}.)|(?<=[0-9;]m.))"
)
LONG: tuple[Rule, ...] = (
    Rule(
        "discord_token",
        (),
        rf"(?P<s>[MNO]{_STARTED}{WORD}{{23,27}}\.{WORD}{{6}}\.{WORD}{{27,40}})",
        locate_varied,
    ),
    Rule(
        "token",
        (),
        rf"(?P<s>{ALNUM}(?<=[_-].){ALNUM}{{27,199}})(?:[_-]{WORD}{{0,99}})?(?!{WORD})",
        locate_unknown_token,
    ),
)
NUMBERS: tuple[Rule, ...] = (
    Rule(
        "card",
        (),
        rf"(?P<s>\d(?<![.].)(?<!\d[ -].){_STARTED}(?:[ -]?\d){{13,18}})(?![\w])(?!\.\d)",
        locate_card,
    ),
    Rule("iban", (), rf"(?P<s>[A-Z]{_STARTED}[A-Z]\d{{2}}(?:[ -]?[A-Z0-9]){{11,30}})", locate_iban),
)
PERSONAL: tuple[Rule, ...] = (
    Rule(
        "email",
        ("@",),
        r"(?P<s>(?<![\w.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8})",
        locate_all,
        before=65,
    ),
    Rule("phone", ("+",), r"(?P<s>(?<!\w)\+\d(?:[ ()./-]{0,2}\d){7,14})(?!\d)", locate_all),
    Rule(
        "ip_address",
        (".",),
        r"(?P<s>(?<![\w.])(?:\d{1,2}|1\d\d|2[0-4]\d|25[0-5])"
        r"(?:\.(?:\d{1,2}|1\d\d|2[0-4]\d|25[0-5])){3})(?![\w]|\.\d)",
        locate_all,
        before=3,
    ),
)
