"""The redactor removes secrets from texts and leaves everything else."""

import base64
import itertools
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import benign_lines as benign
import planted_secrets as corpus
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import verdicts
from memories.errors import InvalidInput
from memories.guard import contexts, redactor, rules, scan
from memories.guard.redactor import Redactor, redact, without_private
from tables import failures_of

ALL = (*rules.tokens(), *contexts.CONTEXTS, *contexts.LONG, *contexts.NUMBERS, *contexts.PERSONAL)


# Contexts in which a value may be a secret, and values that are secrets if they are long enough.
PLACES = (
    "password = {}", "password: '{}'", 'DB_PASS="{}"', "export API_KEY={}", "Cookie: theme={}; sid=aB3eF7gH1x9Z2k4q",
    "Set-Cookie: id={}; Path=/", "https://user:{}@host.example/", "Authorization: Bearer {}", "Authorization: Basic {}",
    "tool --password {} --now", "the password is {}.", "{} is the secret token", "curl -u admin:{} http://host.example",
    "AccountKey={};", "the pin is {}", "mysql -p{}", "?token={}&x=1", "sk-{}", "ghp_{}", "login('admin', '{}')",
    "sha256:{}", "das Passwort lautet {}", "la contraseña es {}", "密码是{}", "{} (password)", "use {} to log in",
    "-----BEGIN PRIVATE KEY-----\n{}", "secret {}", "key_{}_id", "$password = {}", "my card {}", "token\t{}",
)  # fmt: skip
VALUES = ("aB3$eF7gH1", "k3y9zQ2mX7", "48151623", "hunter2x")
BETWEEN = "of the old account in the first office which we had until last year and nobody uses is "


def token(seed: int = 1) -> str:
    """Return a token that a redactor must remove."""
    return "ghp_" + corpus.text(random.Random(seed), 36)


def test_planted_secrets_are_removed() -> None:
    planted = list(corpus.planted())
    redacted = [(secret, text, redact(text).text) for _, secret, text in planted]
    missed = [text for secret, text, left in redacted if corpus.left(secret, left)]
    assert verdicts.changed("planted secrets", (each[1:] for each in redacted)) == []
    assert len(planted) == 120
    assert len({kind for kind, _, _ in planted}) == 30
    assert len(missed) <= 1, missed


def test_secrets_in_the_held_out_corpus_are_removed() -> None:
    held_out = list(corpus.held_out())
    redacted = [(secret, text, redact(text).text) for _, secret, text in held_out]
    missed = [text for secret, text, left in redacted if corpus.left(secret, left)]
    assert verdicts.changed("held out secrets", (each[1:] for each in redacted)) == []
    assert len(missed) * 100 <= len(held_out), missed


def test_redactions_at_every_length_and_distance_are_unchanged() -> None:
    texts = [
        place.format((value * 3)[:length])
        for place in PLACES
        for value in VALUES
        for length in range(3, 27)
    ]
    texts += [
        f"{word} {BETWEEN[:distance]}{VALUES[0]}{behind}"
        for word in ("password", "secret", "token", "pin", "Passwort", "api key")
        for behind in ("", ". It is new", " token")
        for distance in range(0, len(BETWEEN), 3)
    ]
    texts += [
        place.format((value * 20)[:length])
        for place in (
            "aws_secret_access_key = {}",
            "acme_live_{}",
            "Bearer {}",
            "BEGIN {}PRIVATE KEY-----\nMIIB",
        )
        for value in (*VALUES, "kLmN", "QRST9", "A ")
        for length in range(16, 45)
    ]
    redacted = [(text, redact(text).text) for text in texts]
    assert verdicts.changed("secrets of every length", redacted) == []


def test_lines_without_a_secret_are_not_changed() -> None:
    lines = list(benign.lines())
    changed = [line for line in lines if redact(line).text is not line]
    assert len(lines) >= 3_000
    assert len(changed) * 1_000 <= len(lines), changed


def test_few_literals_inside_a_harmless_value_are_tried() -> None:
    tried: list[int] = []

    def locate(match: re.Match[str]) -> None:
        tried.append(match.start())

    text = f"{'key' * 200} key"
    rule = rules.Rule("kind", ("key",), "[a-z]+", locate)
    assert list(scan._find_at_literal(text, text, rule, "key")) == []
    assert tried == [3 * number for number in range(scan._MAX_INSIDE + 1)] + [601]


def test_redacting_again_changes_nothing() -> None:
    for _, _, text in itertools.chain(corpus.planted(), corpus.held_out()):
        once = redact(text)
        assert redact(once.text).text is once.text
        assert redact(once.text).kinds == once.kinds


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from([*corpus.PIECES, "\n", " ", "\\n", "%3D", "\u200b", "é"]), max_size=14)
)
def test_redacting_any_text_again_changes_nothing(pieces: list[str]) -> None:
    once = redact("".join(pieces)).text
    assert redact(once).text is once


def test_a_text_without_a_secret_is_the_same_object() -> None:
    text = "The password policy asks for 12 characters; the token of a word is not a secret."
    assert redact(text).text is text


def test_a_text_at_the_length_limit_is_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer text is refused later, unread."""
    text = f"a token: {token()}"
    monkeypatch.setattr(redactor, "MAX_CHARACTERS", len(text))
    assert Redactor().text(text).text == "a token: [redacted:github_token]"
    assert Redactor().text(f"{text} ").text == f"{text} "


def test_the_text_around_a_secret_is_kept() -> None:
    assert redact(f"before {token()} after").text == "before [redacted:github_token] after"
    assert (
        redact("postgresql://ann:Xk4mzQ9v@db.example/app").text
        == "postgresql://ann:[redacted:url_password]@db.example/app"
    )


def test_base64_that_contains_a_token_pattern_is_not_a_token() -> None:
    rng = random.Random(5)
    sizes = [600] * 400 + [3_000] * 80
    blobs = [base64.urlsafe_b64encode(rng.randbytes(n)).decode().rstrip("=") for n in sizes]
    assert [blob for blob in blobs if "token" in redact(blob).kinds] == []
    part = corpus.text(rng, 30)
    assert redact(f"x Yh7-acme_{part}").kinds == ()
    assert redact(f"the token acme_{part}-prod.").text == "the token [redacted:token]."


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ("curl -uacme_live_", "curl -"),
        ("mycli -kacme_", "mycli -"),
        ("mycli -Pacme_", "mycli -P"),
        ("mycli --acme_", "mycli --"),
        ("--acme_", "--"),
        ("Bearer-acme_", "Bearer-"),
        ("sent as X-acme_", "sent as X-"),
        ("sent as X-API-Key-acme_", "sent as X-API-Key-"),
    ],
)
def test_a_token_after_a_hyphen_is_redacted(before: str, kept: str) -> None:
    part = corpus.text(random.Random(5), 36)
    assert redact(f"{before}{part}: done").text == f"{kept}[redacted:token]: done"


@pytest.mark.parametrize(
    "text",
    ["License keys are Ed25519-signed", "the api key is X25519-wrapped", "API keys: ed25519"],
)
def test_the_name_of_an_algorithm_is_not_a_key(text: str) -> None:
    assert redact(text).text == text


@pytest.mark.parametrize(
    "text",
    [
        "password: http48213",
        "DB_PASSWORD=ed12345-hunter2",
        "secret: es20481-abc",
        "password: utf12345",
    ],
)
def test_a_password_that_begins_like_the_name_of_an_algorithm_is_redacted(text: str) -> None:
    assert redact(text).text.endswith(("[redacted:password]", "[redacted:secret]"))


DISGUISES = {
    "zero width": lambda secret: secret[:9] + "\u200b" + secret[9:],
    "variation selector": lambda secret: secret[:9] + "\ufe0f" + secret[9:],
    "full width": lambda secret: "".join(chr(ord(sign) + 0xFEE0) for sign in secret),
    "percent": lambda secret: "".join(f"%{ord(sign):02X}" for sign in secret),
    "one percent": lambda secret: f"{secret[:6]}%{ord(secret[6]):02x}{secret[7:]}",
    "json escape": lambda secret: f"{secret[:6]}\\u{ord(secret[6]):04x}{secret[7:]}",
    "base64": lambda secret: corpus.based(f"the token is {secret}, keep it"),
    "base64 alone": corpus.based,
    "new line": lambda secret: f"{secret[:20]}\n{secret[20:]}",
    "backslash": lambda secret: f"{secret[:20]}\\\n    {secret[20:]}",
    "escaped new line": lambda secret: f"{secret[:20]}\\n{secret[20:]}",
}


def test_disguised_secrets_are_removed() -> None:
    wanted = ("before [redacted:github_token] after", ("github_token",))
    failures = []
    for name, hide in DISGUISES.items():
        for seed in range(8):
            done = redact(f"before {hide(token(seed))} after")
            if (done.text, done.kinds) != wanted:
                failures.append((name, seed, done))
    assert failures == []


def test_personal_data_stays_unless_its_removal_is_requested() -> None:
    text = "Ann, ann@example.org, +49 30 1234567, 192.168.1.20"
    assert redact(text).text is text
    assert (
        redact(text, personal=True).text
        == "Ann, [redacted:email], [redacted:phone], [redacted:ip_address]"
    )


PRIVATE = [
    ("a <private>b</private> c", "a  c"),
    ("a <PRIVATE>b <private>c</private> d</Private> e", "a  e"),
    ("a <private>b", "a "),
    ("a < private >b</ private > c", "a  c"),
    ("a \\u003cprivate\\u003eb\\u003c/private\\u003e c", "a  c"),
    ("</private> a", "</private> a"),
    ("a private matter", "a private matter"),
]


def test_text_marked_as_private_is_removed() -> None:
    found = [
        (text, without_private(text).text, Redactor("off").text(text).text) for text, _ in PRIVATE
    ]
    assert found == [(text, left, left) for text, left in PRIVATE]


def test_an_entirely_private_text_is_refused() -> None:
    with pytest.raises(InvalidInput, match="content is entirely private"):
        Redactor().text(" <private>b</private>\n")


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("aB3" * 8, ""),  # the minimum of a key is 24 characters
        ("aB3" * 7 + "aB", None),
        ("aB3" * 5 + "\n" + "aB3" * 8, None),  # 16 of its first line
        ("aB3" * 5 + "a\n" + "aB3" * 8, ""),
        ("aB3" * 8 + "\n" + "a" * 16, ""),  # and in each line that is only a word
        ("aB3" * 8 + "\n" + "a" * 15, "\n" + "a" * 15),
        ("aB3" * 8 + "\nabc=", ""),
        ("aB3" * 8 + "\na1c", ""),
    ],
)
def test_a_private_key_ends_with_its_last_line_of_key_characters(
    body: str, left: str | None
) -> None:
    text = f"-----BEGIN RSA PRIVATE KEY-----\n{body}"
    assert redact(text).text == (text if left is None else f"[redacted:private_key]{left}")


def test_different_keys_stay_different_and_equal_keys_stay_equal() -> None:
    one, other = (Redactor().name(f"key/{token(seed)}", "key").text for seed in (1, 2))
    assert one.startswith("key/[redacted:github_token]#")
    assert one != other
    assert Redactor().name(f"key/{token(1)}", "key").text == one
    assert Redactor().name(one, "key").text == one


# --- time

HOSTILE = (
    *("a", "A", "0", " ", "aB3", "-", "_", ".", "=", "/", "\\", "\n", "%41", "\u200b", '"', ":", "a.", "a-", "a_", "é"),
    *("-----BEGIN PRIVATE KEY-----\n", "PuTTY-User-Key-File-3: ", "cookie: session=", "Cookie: sessionid=aB3dE6gH9; "),
    *("aws secret ", "password: ", "password=", "password is ", "pass", "token", "token: ", "api_key = ", "secret ", "key="),
    *("eyJ", "eyJ.", "eyJhbGci.eyJ", "bearer ", "Basic ", "sk-", "sk_live_", "ghp_", "xoxb-", "http://", "http://a:", "://u:p"),
    *("curl -u ", "curl ", "mysql -p", "docker login ", "--password ", "--a-b-c-password", '"kty"', "seed phrase: abcd ", "abcd "),
    *("DE89 ", "4539 ", "4539148803436467", "<private>", "</private>", "ssh://a@", "login a password ", "echo a | ", ":5432:a:b"),
    *("sig=", "?key=a", "JQQJ99", "Q~", "ab12-us", "AKIA", "auth: ", "aaaaaaaaaaaaaaaaaaaaaaaa\n", "YWJjZGVmZ2hpamtsbW5v", "+1 ", "1."),
    *("passwort ", "passwort a1b2 ", "passwort server22 ", "senha: ab12cd ", "пароль 1a ", "密码", "密码a1", "pin 4821 a ", "token Aa1-Aa1 "),
    *("a' + 'b1 ", "a1B2 ", "1 a ", "e\u0301"),
)  # fmt: skip


def cost(text: str) -> float:
    """Return the shorter of two processor times for a text."""
    taken = []
    for _ in range(2):
        began = time.thread_time()
        without_private(text)
        redact(text, personal=True)
        taken.append(time.thread_time() - began)
    return min(taken)


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.thorough
def test_the_time_for_a_hostile_text_grows_roughly_linearly(piece: str) -> None:
    short, long = ((piece * 32_000)[:length] for length in (4_000, 32_000))
    redact(short)  # compiles the rules
    growth = cost(long) / max(cost(short), 0.001)
    assert growth < 28, (
        f"eight times the length took {growth:.0f} times as long"
    )  # quadratic time would be 64


def test_every_repetition_in_a_pattern_is_bounded() -> None:
    assert [rule.kind for rule in ALL if rules.count_steps(rule.pattern) is None] == []


# --- rules of the user


def test_user_rules_are_applied() -> None:
    mine = rules.parse_user_rule(
        1, {"name": "shop_key", "pattern": "SHOP-[0-9]{6}", "keywords": ["SHOP-"]}
    )
    assert redact("it is SHOP-123456.", user_rules=(mine,)).text == "it is [redacted:shop_key]."


HARMFUL: list[tuple[dict[str, object], str]] = [
    ({"pattern": "a*"}, "repeats without a limit"),
    ({"pattern": "(a+)+$"}, "repeats without a limit"),
    ({"pattern": "(a{1,30}){1,30}b"}, "steps at one place"),
    ({"pattern": "[a-z]{1,200}[a-z]{1,200}[a-z]{1,200}x"}, "steps at one place"),
    ({"pattern": "a{0,5}"}, "matches an empty or blank text"),
    ({"pattern": "("}, "not a regular expression"),
    ({"pattern": ""}, "at most 500 characters"),
    ({"name": "Shop Key"}, "name must be"),
    ({"keywords": []}, "keywords must be"),
    ({"keywords": ["ab"]}, "at least 3 characters"),
    ({"more": 1}, "nothing else"),
]


def test_harmful_user_rules_are_refused() -> None:
    for changes, complaint in HARMFUL:
        with pytest.raises(InvalidInput, match=complaint):
            rules.parse_user_rule(
                1,
                {"name": "shop_key", "pattern": "SHOP-[0-9]{6}", "keywords": ["SHOP-"], **changes},
            )


def secret_like(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the file and the kind of each secret that the redactor sees in sources."""
    for file in sorted(folder.rglob("*.py")):
        for line in file.read_text(encoding="utf-8").splitlines():
            done = redact(line)
            yield from (
                (file.name, kind)
                for kind in done.kinds
                if done.text is not line and "[redacted" not in line
            )


def test_the_tests_contain_no_token_that_would_block_a_push() -> None:
    known = {rule.kind for rule in rules.tokens()}
    assert [found for found in secret_like(Path(__file__).parent) if found[1] in known] == []


def test_a_secret_in_a_json_list_is_recognized_by_its_key() -> None:
    secret = "swordfish7Kx9Qa2"
    for told in (
        f'"{secret}"',
        f'["{secret}"]',
        f'[["{secret}"], 1]',
        f'[{{"api_key": "{secret}"}}]',
    ):
        found = Redactor().data(f'{{"api_key": {told}}}')
        assert (secret in found.text, found.kinds) == (False, ("api_key",)), told
    plain = f'{{"note": ["{secret}"]}}'
    assert Redactor().data(plain) == (plain, ())


def test_the_steps_of_a_pattern_are_counted_from_its_parts() -> None:
    rows = [
        ("", 1), ("ab", 2), ("a?", 1), ("a{2,4}", 4), ("a{0,3}b", 7), ("(a|b)c", 2), ("a{1,3}+b", 4),
        ("(a{0,9}|b{0,9})c", 28), ("(?:a{0,3}){0,3}", 576), ("a*", None), ("(?:ab*)c", None), ("(a|b+)c", None),
        ("(?=a{1,5})b", 6), ("(?>a{0,5})b", 6), ("(?<!x)a", 2), (r"(a)\1", 101), ("(a)?(?(1)b|c)", 5),
        ("a{0,9}b{0,9}c", 199), ("(?:a|bc){2}", 6), ("(?:a{0,60}){0,60}x", 10**12),
    ]  # fmt: skip
    assert failures_of(rows, rules.count_steps) == []


def test_an_option_value_is_a_secret_if_it_is_random_or_long_and_assigned() -> None:
    rows = [
        ("mysql --password=abcdefgh", "mysql --password=[redacted:password]"),
        ("mysql --password=abcdefg", "mysql --password=abcdefg"),
        ("mysql --password abcdefgh", "mysql --password abcdefgh"),
        ("mysql --password -abcdefgh", "mysql --password -abcdefgh"),
        ("mysql --token=kiwi8", "mysql --token=[redacted:password]"),
        ("mysql --api-key kiwi8#q2", "mysql --api-key [redacted:password]"),
    ]
    assert failures_of(rows, lambda text: redact(text).text) == []


def test_a_putty_key_ends_with_its_last_line() -> None:
    key = corpus.putty(random.Random(1))
    assert redact(f"before {key}\nThe gate is open.").text.startswith(
        "before [redacted:private_key]"
    )
    assert redact(f"before {key}\nThe gate is open.").text.endswith("\nThe gate is open.")
