# ruff: noqa: RUF100, E501 - one line of a text stays on one line
"""Lines without a secret, of kinds that are common in memories and transcripts; drawn from a fixed
seed.
"""

import ast
import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path

from planted_secrets import HEX, new_uuid, text

WORDS = (
    "password token secret key session cookie login user the a of for is was with and we they deploy reset change rotate "
    "store policy minimum length header request response server client test stage review must never should every week "
    "when expires after before into from each new old long short value field form page team Ann Bob billing project"
).split()
CODE = (
    "def login(username: str, password: str) -> Session:",
    'password = input("Password: ")',
    'parser.add_argument("--password", help="the password to use")',
    "if not check_password(user.password_hash, password):",
    "token = secrets.token_urlsafe({n})",
    'api_key = os.environ["OPENAI_API_KEY"]',
    "api_key = os.getenv('API_KEY', '')",
    "const token = localStorage.getItem('access_token');",
    "headers = {{'Authorization': f'Bearer {{token}}'}}",
    "Authorization: Bearer <token>",
    "Authorization: Bearer $TOKEN",
    "self.client_secret = client_secret",
    "password_min_length = {n}",
    "max_tokens: {n}",
    '"max_tokens": {n}, "prompt_tokens": {n}',
    "SECRET_KEY = config('SECRET_KEY')",
    "password: ${{{{ secrets.DB_PASSWORD }}}}",
    "DB_PASSWORD=${{DB_PASSWORD}}",
    "DB_PASSWORD=changeme",
    "export GITHUB_TOKEN=$(gh auth token)",
    "POSTGRES_PASSWORD_FILE=/run/secrets/db_password",
    "PWD=/home/ann/project{n}",
    'assert response.json()["detail"] == "Invalid password"',
    "token: str | None = None,",
    "password=self.password, token=self.token",
    "access_token = response.json()['access_token']",
    "raise ValueError('secret must be a string of at least {n} characters')",
    "cookie = SimpleCookie(request.headers.get('Cookie'))",
    "session_id = request.cookies.get('session_id')",
    "csrf_token = generate_csrf_token(session)",
    'kubectl get secret db-credentials -o jsonpath="{{.data}}"',
    "tokenizer = AutoTokenizer.from_pretrained('bert-base-uncased')",
    "private_key = load_pem_private_key(data, password=None)",
    'if "-----BEGIN PRIVATE KEY-----" in text:',
    "public_key: X25519PublicKey,",
    "refresh_token: RefreshToken | None",
    "basic authentication_required for realm {n}",
    "git commit -m 'Rotate the token of stage {n}'",
    "curl -u $USER:$PASS https://x.example/{n}",
    "docker login -u ann --password-stdin",
    "postgresql://user:password@localhost:5432/db{n}",
    "redis://localhost:6379/{n}",
    "the password field takes {n} characters",
    "task-{n}-risk-assessment disk-usage-{n}",
    "sk-learn {n}.0, hf_hub {n}.1, key-value store",
)


def lines(seed: int = 3) -> Iterator[str]:
    """Yield at least 3,000 lines."""
    rng = random.Random(seed)
    for number in range(300):
        yield f"commit {text(rng, 40, HEX)}"
        yield f"{text(rng, 7, HEX)} Fix {rng.choice(WORDS)} of {rng.choice(WORDS)}"
        yield f"id: {new_uuid(rng)}"
        yield f"sha256:{text(rng, 64, HEX)}  file-{number}.tar.gz"
        yield f'"integrity": "sha512-{base64.b64encode(rng.randbytes(64)).decode()}",'
        yield f'    {{file = "package_{number}-1.{number}.0-py3-none-any.whl", hash = "sha256:{text(rng, 64, HEX)}"}},'
        yield " ".join(rng.choice(WORDS) for _ in range(rng.randrange(6, 20))).capitalize() + "."
    for _ in range(100):
        yield f"<img src='data:image/png;base64,{base64.b64encode(rng.randbytes(rng.randrange(60, 900))).decode()}'>"
        yield f"https://x.example/{text(rng, 11)}/{rng.randrange(10**6)}?page={rng.randrange(99)}&ref={text(rng, 8)}"
        yield f"{rng.randrange(10**9, 2 * 10**9)} {rng.random()} {rng.randrange(10**15, 2 * 10**15)} {rng.random() * 1e9}"
        yield json.dumps(
            {"id": text(rng, 12), "n": rng.randrange(10**6), "at": "2026-01-02T03:04:05Z"}
        )
        yield f"resolved chatcmpl-{text(rng, 29)} in {rng.randrange(900)} ms"
    for at in range(450):
        yield CODE[at % len(CODE)].format(n=rng.randrange(1, 99))
    yield from _of_the_library()


def _of_the_library() -> Iterator[str]:
    """Yield lines of the standard library that mention passwords and the like."""
    folder = Path(ast.__file__).parent
    spoken = ("password", "token", "secret", "cookie", "auth", "key")
    for name in (
        "ftplib",
        "getpass",
        "netrc",
        "secrets",
        "smtplib",
        "imaplib",
        "ssl",
        "tokenize",
        "shlex",
        "nntplib",
    ):
        file = folder / f"{name}.py"
        if file.exists():
            yield from (
                line
                for line in file.read_text(encoding="utf-8").splitlines()
                if any(word in line for word in spoken)
            )
