"""Secrets named in sentences are removed in every language; sentences without a secret stay."""

import random
import string
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import planted_secrets as corpus
import pytest

from memories import languages
from memories.guard.redactor import redact
from verdicts import changed as changed_verdicts

DATA = Path(__file__).parents[1] / "data"
WORDS = ("tiger", "sommer", "banana", "falcon", "lola", "kaffee")


def rows(name: str) -> list[tuple[str, str]]:
    """Return the language and the text of each line of a file."""
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return [
        (code, text.replace("\\n", "\n")) for code, text in (line.split(": ", 1) for line in lines)
    ]


def secret(rng: random.Random, kind: str) -> str:
    """Return a PIN, a key, or a password as people choose them: most passwords are random, some
    are a word with a number.
    """
    if kind == "pin":
        return corpus.text(rng, rng.choice((4, 6)), string.digits)
    if kind == "key":
        return (
            corpus.text(rng, 32, corpus.HEX)
            if rng.random() < 0.5
            else corpus.text(rng, rng.randrange(24, 41))
        )
    if rng.random() < 0.25:
        return f"{rng.choice(WORDS).capitalize()}{rng.randrange(100, 9_999)}{rng.choice('!#*$')}"
    return (
        corpus.password(rng)
        if rng.random() < 0.5
        else f"{corpus.text(rng, rng.randrange(9, 13))}{rng.randrange(10, 99)}"
    )


def said() -> Iterator[tuple[str, str, str]]:
    """Yield a language, a secret and a sentence with it, several times with different secrets."""
    rng = random.Random(7)
    for code, line in rows("spoken_secrets.txt") * 3:
        kind = next(kind for kind in ("password", "pin", "key") if f"{{{kind}}}" in line)
        value = secret(rng, kind)
        yield code, value, line.replace(f"{{{kind}}}", value)


def test_secrets_in_sentences_are_removed_in_every_language() -> None:
    spoken = list(said())
    redacted = [(code, value, text, redact(text).text) for code, value, text in spoken]
    missed = [(code, text) for code, value, text, left in redacted if value[:6] in left]
    assert changed_verdicts("spoken secrets", ((text, left) for _, _, text, left in redacted)) == []
    total, left = (Counter(code for code, *_ in part) for part in (spoken, missed))
    assert len(total) == 22
    assert len(missed) <= 0.05 * len(spoken), missed
    assert {code for code in total if left[code] > 0.1 * total[code]} == set(), missed


def test_sentences_about_passwords_are_not_changed() -> None:
    lines = [text for _, text in rows("spoken_benign.txt")]
    changed = [text for text in lines if redact(text).text is not text]
    redacted = ((text, redact(text).text) for text in changed)
    assert changed_verdicts("benign sentences that are changed", redacted) == []
    assert len(lines) >= 250
    assert len(changed) <= 3, changed


NAMED = [
    ("Das Passwort ist OGI3ArcLG2bsYQ, ok?", "Das Passwort ist [redacted:password], ok?"),
    ("le mot de passe est « gPBx9rT2kL » ici", "le mot de passe est « [redacted:password] » ici"),
    ("パスワードは「x4Kz9qLmT2」です", "パスワードは「[redacted:password]」です"),
    ("密码是x4Kz9qLmT2。", "密码是[redacted:password]。"),
    ("비밀번호는 x4Kz9qLmT2입니다", "비밀번호는 [redacted:password]입니다"),
    ("wachtwoord: x4Kz9qLmT2", "wachtwoord: [redacted:password]"),
    ("x4Kz9qLmT2 est le mot de passe", "[redacted:password] est le mot de passe"),
    ("sudo pw x4Kz9qLmT2", "sudo pw [redacted:password]"),
    ("Die PIN ist 4821.", "Die PIN ist [redacted:pin]."),
    ("Die PIN ist 482.", "Die PIN ist 482."),
    ("Die PIN ist 48215937.", "Die PIN ist [redacted:pin]."),
    ("Die PIN ist 482159372.", "Die PIN ist 482159372."),
    ("ŞİFRE: x4Kz9qLmT2", "ŞİFRE: [redacted:password]"),
    ("Das Passwort:\nx4Kz9qLmT2\nund weiter", "Das Passwort:\n[redacted:password]\nund weiter"),
    ("The password is FluffyKaktus*8", "The password is [redacted:password]"),
    ("비밀번호는 ZorroHorse*1야", "비밀번호는 [redacted:password]야"),
    (
        "anna, wachtwoord SonneDragon+8, poort 5432",
        "anna, wachtwoord [redacted:password], poort 5432",
    ),
    ("Otter!459 — це пароль від сервера", "[redacted:password] — це пароль від сервера"),
    ("VerdeDragon*1 – это пароль", "[redacted:password] – это пароль"),
]


def test_the_value_is_removed_and_the_sentence_is_kept() -> None:
    assert [(text, redact(text).text) for text, _ in NAMED] == NAMED
    assert [left for _, left in NAMED if redact(left).text is not left] == []


NAMES = {
    "de": ("Passwort", "Datenbankpasswort", "WLAN-Passwort", "Kennwort"),
    "fr": ("mot de passe", "mdp"),
    "es": ("contraseña", "contrasena"),
    "pt": ("senha", "palavra-passe"),
    "it": ("parola d'ordine",),
    "nl": ("wachtwoord", "databasewachtwoord"),
    "pl": ("hasło", "haslo", "hasła"),
    "tr": ("şifre", "sifre", "parolası"),
    "fi": ("salasana", "salasanani"),
    "vi": ("mật khẩu", "mat khau"),
    "ru": ("пароль", "пароля", "паролем"),
    "uk": ("пароль",),
    "el": ("κωδικός", "κωδικού"),
    "he": ("סיסמה", "הסיסמה"),
    "ar": ("كلمة المرور", "كلمه السر"),
    "hi": ("पासवर्ड",),
    "th": ("รหัสผ่าน",),
    "ko": ("비밀번호",),
    "ja": ("パスワード", "ﾊﾟｽﾜｰﾄﾞ"),
    "zh": ("密码", "密碼"),
    "sv": ("lösenord",),
    "en": ("pw", "passphrase"),
}
BETWEEN = (
    *("{n}: {v}", "{n} : {v}", "{n}={v}", "{n} = {v}", "{n}:\n{v}", "{n}：{v}", "{n} -> {v}", "{n} ({v})", "{n}「{v}」", "{n} `{v}`"),
    *("**{n}**: {v}", "**{n}:** `{v}`", "| {n} | {v} |", '"{n}": "{v}"', "{n}\n{v}", "- {n}: '{v}'", "[{n}] {v}", "{n} «{v}»"),
    *("<{n}>{v}</{n}>", "{n}\t{v}", "{n} {v}"),
)  # fmt: skip
WRITTEN = {
    "plain": str,
    "upper": lambda text: text,
    "decomposed": lambda text: unicodedata.normalize("NFD", text),
    "full width": lambda text: "".join(
        chr(ord(sign) + 0xFEE0) if "!" <= sign <= "~" else sign for sign in text
    ),
}


@pytest.mark.parametrize("way", WRITTEN)
def test_a_secret_is_removed_after_any_separator(way: str) -> None:
    assert set(NAMES) == {name.split()[0] for name in languages.secret_words()}
    rng, missed = random.Random(3), []
    for name in (name for names in NAMES.values() for name in names):
        for form in BETWEEN:
            value = f"{corpus.text(rng, 9)}4k{corpus.text(rng, 2)}Z7"
            written = WRITTEN[way](form.format(n=name.upper() if way == "upper" else name, v=value))
            if (value[:6] if way != "full width" else WRITTEN[way](value)[:6]) in redact(
                written
            ).text:
                missed.append(written)
    assert missed == []


def test_a_split_token_is_removed() -> None:
    token = "ghp_" + corpus.text(random.Random(4), 36)
    pieces = " ".join(token[at : at + 10] for at in range(0, 40, 10))
    for text in (
        f'"{token[:4]}" + "{token[4:]}"',
        f"'{token[:20]}' '{token[20:]}'",
        f'"{token[:9]}" +\n    "{token[9:]}"',
        f"`{token[:12]}` . `{token[12:]}`",
        f"the token is {pieces} for CI",
        f"spelled: {' '.join(token)} ok",
    ):
        assert redact(text).kinds == ("github_token",), text
        assert token[20:26] not in redact(text).text.replace(" ", "")


NO_PASSWORDS = [
    "The key to the layout is width*2",
    "pass the flag to web-server-01",
    "Das Passwort auf Web-Server-01 ändern",
    "the password is checked with max_tries*10",
    "Das Passwort steht unter utf-8-sig in der Datei",
    "token limit is 8192 for gpt-4-turbo",
    "Сервер-12 — это пароль не хранит",
]


NOTED = (
    "password: {}", "Router password: {}", "guest wifi password = {}", "- password: {}", "passwd: {}", "pw: {}", "pw = {}",
    "user: root, password: {}", "password: {}, user: root", "Password: {}. It is new", "password for the VPN: {}",
    "DB_PASSWORD={}", 'POSTGRES_PASSWORD: "{}"', "export PGPASSWORD={}", "db_pass={}", "db.password={}",
    '{{"password": "{}"}}', "login(password='{}')", "| password | {} |",
)  # fmt: skip
CODE = (
    "password: required", "password: see 1Password", "password: str", "password: ********", "password: ${DB_PASSWORD}",
    "password: 12 to 64 characters", "password: argon2id", "password: bytes32", "password: see OPS-1234", "password: RFC2898",
    "password: page12", "password = width2", "    password=field2,", "    password: column12,", "password: String20;",
    "f(password=other12)", "const password = row12.password", "if password == other12:", "password: *alias1",
    "apt\tpasswd\t1:4.13+dfsg1-1+deb12u1", "PASS: TestLogin12", "PASS: test_parser2", "first_pass: layer12", 'password="field2"', "the password is in 1Password", "password: v1.2.3", "password: Windows11", "secrets_max=100000",
)  # fmt: skip


@pytest.mark.parametrize("text", NOTED)
def test_a_simple_password_in_a_note_is_removed(text: str) -> None:
    values = ("tiger88", "Sommer2024") if text == "pw = {}" else ("tiger88", "hunter2xyz")
    for value in values:
        assert redact(text.format(value)).text == text.format("[redacted:password]")


@pytest.mark.parametrize("text", CODE)
def test_code_and_descriptions_of_passwords_are_not_changed(text: str) -> None:
    assert redact(text).text is text


def test_names_with_numbers_are_not_passwords() -> None:
    assert [text for text in NO_PASSWORDS if redact(text).text is not text] == []
