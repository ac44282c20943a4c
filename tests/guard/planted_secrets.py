# ruff: noqa: RUF100, E501, ISC004 - one line of a text stays on one line
"""Secrets that are built here, from a published prefix and seeded random text: the repository contains none.

`planted` yields 30 kinds in 4 surroundings each. `held_out` yields other formats, and the same formats in
other surroundings. `benign_lines.py` has lines without a secret.
"""

import base64
import json
import random
import string
import uuid
from collections.abc import Callable, Iterator

BOTH = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
WORD = f"{BOTH}_-"
Make = Callable[[random.Random], str]


def text(rng: random.Random, length: int, letters: str = BOTH) -> str:
    """Return random text."""
    return "".join(rng.choice(letters) for _ in range(length))


def after(prefix: str, length: int, letters: str = BOTH) -> Make:
    """Return a function that makes secrets with a prefix."""
    return lambda rng: prefix + text(rng, length, letters)


def password(rng: random.Random, length: int = 14) -> str:
    """Return a password with a character of each class; none ends a word in a shell or in JSON."""
    drawn = [
        rng.choice(part)
        for part in (string.ascii_lowercase, string.ascii_uppercase, string.digits, "!#%*+?@")
    ]
    drawn += [rng.choice(f"{BOTH}!#%*+?@_") for _ in range(length - len(drawn))]
    rng.shuffle(drawn)
    return "".join(drawn) if drawn[0].isalpha() else password(rng, length)


def based(given: str) -> str:
    """Encode a text in Base64."""
    return base64.b64encode(given.encode()).decode()


def jwt(rng: random.Random) -> str:
    """Return a JSON Web Token."""
    parts = [
        {"alg": "HS256", "typ": "JWT"},
        {"sub": text(rng, 12), "iat": rng.randrange(10**9, 2 * 10**9)},
    ]
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts
    )
    return f"{head}.{body}.{text(rng, 43, WORD)}"


def pem(rng: random.Random, name: str = "RSA ") -> str:
    """Return a private key in PEM."""
    lines = "\n".join(text(rng, 64, f"{BOTH}+/") for _ in range(12))
    return f"-----BEGIN {name}PRIVATE KEY-----\n{lines}\n{text(rng, 31)}=\n-----END {name}PRIVATE KEY-----"


def putty(rng: random.Random) -> str:
    """Return a private key in the format of PuTTY."""
    lines = "\n".join(text(rng, 64, f"{BOTH}+/") for _ in range(4))
    head = "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nComment: key\nPublic-Lines: 2\n"
    return f"{head}{lines}\nPrivate-Lines: 1\n{text(rng, 48)}\nPrivate-MAC: {text(rng, 64, HEX)}"


def card(rng: random.Random) -> str:
    """Return a card number with a correct check digit."""
    digits = [int(digit) for digit in "4539" + text(rng, 11, string.digits)]
    doubled = [digit * 2 if at % 2 == 0 else digit for at, digit in enumerate(digits)]
    check = -sum(digit - 9 if digit > 9 else digit for digit in doubled) % 10
    whole = "".join(map(str, [*digits, check]))
    return " ".join(whole[at : at + 4] for at in range(0, 16, 4)) if rng.random() < 0.5 else whole


def iban(rng: random.Random) -> str:
    """Return an IBAN with correct check digits."""
    account = text(rng, 18, string.digits)
    check = 98 - int(f"{account}131400") % 97
    whole = f"DE{check:02}{account}"
    return " ".join(whole[at : at + 4] for at in range(0, 22, 4)) if rng.random() < 0.5 else whole


def new_uuid(rng: random.Random) -> str:
    """Return a random UUID."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


# Tokens recognized by their form; each is put into four of these texts.
TOKENS: dict[str, Make] = {
    "aws key": after("AKIA", 16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
    "github": after("ghp_", 36),
    "github fine-grained": lambda rng: f"github_pat_{text(rng, 22)}_{text(rng, 59)}",
    "gitlab": after("glpat-", 20, WORD),
    "slack": lambda rng: (
        f"xoxb-{text(rng, 12, string.digits)}-{text(rng, 13, string.digits)}-{text(rng, 24)}"
    ),
    "slack webhook": lambda rng: (
        f"https://hooks.slack.com/services/T{text(rng, 8)}/B{text(rng, 8)}/{text(rng, 24)}"
    ),
    "stripe": after("sk_" + "live_", 24),
    "openai": after("sk-proj-", 64, WORD),
    "anthropic": after("sk-ant-api03-", 93, WORD),
    "google": after("AIza", 35, WORD),
    "jwt": jwt,
    "npm": after("npm_", 36),
    "pypi": after("pypi-AgEIcHlwaS5vcmc", 120, WORD),
    "discord": lambda rng: f"MT{text(rng, 22)}.{text(rng, 6)}.{text(rng, 38)}",
    "telegram": lambda rng: f"{rng.randrange(10**9, 10**10 - 1)}:AA{text(rng, 33, WORD)}",
    "twilio": after("SK", 32, HEX),
    "sendgrid": lambda rng: f"SG.{text(rng, 22)}.{text(rng, 43)}",
    "huggingface": after("hf_", 34),
    "age": after("AGE-SECRET-KEY-1", 58, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L"),
    "private key": pem,
    "putty": putty,
    "card": card,
    "iban": iban,
}
AROUND = (
    "export TOKEN={}",
    '{{"note": "{}", "n": 1}}',
    "Use {} for the staging system.",
    "X-Api-Key: {}",
)

# Secrets recognized by their context: the secret, and four lines with it.
PLACED: dict[str, tuple[Make, tuple[str, ...]]] = {
    "aws secret": (
        lambda rng: text(rng, 40, f"{BOTH}+/"),
        ("aws_secret_access_key = {}", '"SecretAccessKey": "{}"', "AWS_SECRET_ACCESS_KEY={}", "the aws secret ke"
             "y is {}"),
    ),
    "password": (
        password,
        ("DB_PASSWORD={}", '{{"user": "ann", "password": "{}"}}', "  password: {}", "the password of the test bo"
             "x is {}"),
    ),
    "database url": (
        lambda rng: password(rng).replace("@", "x").replace("#", "y").replace("?", "z"),
        ("postgresql://ann:{}@db.example/app", "DATABASE_URL=mysql://root:{}@10.0.0.5:3306/x",
         'url = "redis://:{}@cache:6379/0"', "it is at mongodb+srv://ann:{}@cluster0.example/db now"),
    ),
    "basic auth": (
        lambda rng: based(f"ann:{password(rng)}"),
        ("Authorization: Basic {}", "curl -H 'Authorization: Basic {}' http://x", '{{"auths": {{"r.io": {{"auth": "{}"}}}}}}',
         "proxy-authorization: basic {}"),
    ),
    "bearer": (
        lambda rng: text(rng, 40),
        ("Authorization: Bearer {}", "curl -H 'authorization: bearer {}' http://x", '"Authorization": "Bearer {}"',
         "send it as Bearer {} in the header"),
    ),
    "cookie": (
        lambda rng: text(rng, 32),
        ("Cookie: lang=en; sessionid={}", "Set-Cookie: connect.sid={}; Path=/; HttpOnly", "curl -b 'auth_token={"
             "}' http://x",
         "cookie: JSESSIONID={}; theme=dark"),
    ),
    "azure": (
        lambda rng: base64.b64encode(rng.randbytes(64)).decode(),
        ("AccountName=shop;AccountKey={};EndpointSuffix=core.windows.net", "AZURE_STORAGE_KEY={}",
         "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={}", '"storageKey": "{}"'),
    ),
}  # fmt: skip


def planted(seed: int = 11) -> Iterator[tuple[str, str, str]]:
    """Yield a kind, a secret and a text with the secret, 120 times."""
    rng = random.Random(seed)
    for kind, make in TOKENS.items():
        for around in AROUND:
            secret = make(rng)
            yield kind, secret, around.format(secret)
    for kind, (make, lines) in PLACED.items():
        for line in lines:
            secret = make(rng)
            yield kind, secret, line.format(secret)


# --- held out

HELD_AROUND = (
    "the key is `{}`", "  - {}", "$ deploy --verbose {} && echo done", "It is {}.", "https://x.example/?token={}&n=1",
    '{{\\"text\\": \\"{}\\"}}', "line\\n{}\\nnext", "({})", "| key | {} |", "\x1b[32m{}\x1b[0m",
)  # fmt: skip
HELD_TOKENS: dict[str, Make] = {
    "digitalocean": after("dop_v1_", 64, HEX),
    "databricks": after("dapi", 32, HEX),
    "vault": after("hvs.", 92, WORD),
    "doppler": after("dp.st.prd.", 42),
    "shopify": after("shpat_", 32, HEX),
    "square": after("sq0atp-", 22, WORD),
    "groq": after("gsk_", 52),
    "xai": after("xai-", 80),
    "perplexity": after("pplx-", 48),
    "replicate": after("r8_", 37),
    "rubygems": after("rubygems_", 48, HEX),
    "docker": after("dckr_pat_", 27, WORD),
    "circleci": lambda rng: f"CCIPAT_{text(rng, 22)}_{text(rng, 40, HEX)}",
    "sonar": after("squ_", 40, HEX),
    "postman": lambda rng: f"PMAK-{text(rng, 24, HEX)}-{text(rng, 34, HEX)}",
    "figma": after("figd_", 40, WORD),
    "notion": after("ntn_", 46),
    "linear": after("lin_api_", 40),
    "newrelic": after("NRAK-", 27, string.ascii_uppercase + string.digits),
    "grafana": lambda rng: f"glsa_{text(rng, 32)}_{text(rng, 8, HEX)}",
    "sentry": after("sntryu_", 64, HEX),
    "dynatrace": lambda rng: (
        f"dt0c01.{text(rng, 24, string.ascii_uppercase)}.{text(rng, 64, string.ascii_uppercase)}"
    ),
    "mailgun": after("key-", 32, HEX),
    "mailchimp": lambda rng: f"{text(rng, 32, HEX)}-us{rng.randrange(1, 21)}",
    "airtable": lambda rng: f"pat{text(rng, 14)}.{text(rng, 64, HEX)}",
    "tailscale": lambda rng: f"tskey-auth-{text(rng, 17)}-{text(rng, 32)}",
    "pulumi": after("pul-", 40, HEX),
    "unknown maker": after("acme_live_", 40),
    "openssh key": lambda rng: pem(rng, "OPENSSH "),
    "amex": lambda _: "378282246310005",
}
HELD_PLACED: dict[str, tuple[Make, tuple[str, ...]]] = {
    "flag": (password, ("deploy --password {}", "tool --db-password={} run", "x --api-key '{}'", "sshpass -p {} "
    "ssh ann@h",
                        "curl -u ann:{} https://x.example", "mysql -u root -p{} shop", "redis-cli -h c -a {} ping")),
    "file": (password, ("machine x.example login ann password {}", "password={}", "spring.datasource.password={}",
                        "<password>{}</password>", "define('DB_PASSWORD', '{}');", "'password' => '{}',",
                        "Server=db;User Id=sa;Password={};Encrypt=true", "requirepass_password: \"{}\"")),
    "sentence": (password, ("Her password is {}", "log in with password {}", "The database password for staging is: {}",
                            "We changed the root password to {} yesterday", "password: `{}`", "**Password:** {}",
                            "passphrase = {}")),
    "key": (lambda rng: text(rng, 32), ("STRIPE_KEY={}", "api_key: {}", "apiKey: '{}',", "x-api-key: {}", "client_secret={}",
                                        "SECRET_KEY = \"{}\"", "access_token={}&expires=3600", "the API key is {}",
                                        "PRIVATE-TOKEN: {}", "\"clientSecret\":\"{}\"", "encryption_key = \"{}\"")),
    "hex key": (lambda rng: text(rng, 64, HEX), ("private_key=0x{}", "wallet private key: {}", "secret: {}")),
    "uuid key": (new_uuid, ("//registry.npmjs.org/:_authToken={}", "HEROKU_API_KEY={}", "api_key = \"{}\"")),
}  # fmt: skip


def held_out(seed: int = 23) -> Iterator[tuple[str, str, str]]:
    """Yield a kind, a secret and a text that `planted` does not yield."""
    rng = random.Random(seed)
    for kind, make in (HELD_TOKENS | TOKENS).items():
        for around in HELD_AROUND:
            secret = make(rng)
            inside = secret.replace("\n", "\\n") if "\\n" in around or '\\"' in around else secret
            yield kind, inside, around.format(inside)
    for kind, (make, lines) in HELD_PLACED.items():
        for line in lines:
            for _ in range(3):
                secret = make(rng)
                yield kind, secret, line.format(secret)


def left(secret: str, redacted: str) -> bool:
    """Return whether twelve consecutive characters of a secret are left, or a whole shorter one."""
    plain = secret.replace(" ", "") if secret[:4].isdigit() or secret[:2] == "DE" else secret
    spread = redacted.replace(" ", "") if plain != secret else redacted
    most = min(12, len(plain))
    pieces = (plain[at : at + most] for at in range(len(plain) - most + 1))
    return any(piece in spread for piece in pieces if "BEGIN" not in piece and "END" not in piece)


_RNG = random.Random(5)
PIECES = [
    *(make(_RNG) for make in TOKENS.values()),
    *(line.format(make(_RNG)) for make, lines in PLACED.values() for line in lines),
    *(
        "password",
        "token",
        "[redacted:",
        "]",
        "[redacted:password]",
        "is",
        ":",
        "=",
        '"',
        "'",
        "@",
        "://",
        "api_key",
        "\\",
    ),
]
