"""memory tokens: create, list, revoke."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


def test_a_token_is_shown_once_and_only_its_hash_is_kept(memory: Command, home: Path) -> None:
    made = memory("tokens", "create", "laptop", "--allow", "bob:rw", "--allow", "shared:r").json
    assert made["token"].startswith("mem_")
    assert made["namespaces"] == {"bob": "rw", "shared": "r"}
    file = home / "tokens.json"
    assert made["token"] not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    [row] = memory("tokens", "list").json["tokens"]
    assert (row["id"], row["name"], row["expires_at"], row["last_used_at"]) == (
        made["id"],
        "laptop",
        None,
        None,
    )
    assert "hash" not in row and "token" not in row
    # The server saves uses once a minute, so the token may have been used.
    assert memory("tokens", "list", "--format", "text").out.endswith("no recorded use\n")


def test_a_token_is_revoked_by_its_name_or_id(memory: Command) -> None:
    one, two = (memory("tokens", "create", name, "--allow", "bob").json for name in ("one", "two"))
    assert memory("tokens", "revoke", "one").json == {**_known(one), "revoked": True}
    assert memory("tokens", "revoke", two["id"]).json["revoked"]
    assert memory("tokens", "list").json == {"tokens": [], "count": 0}
    shown = memory("tokens", "revoke", "one")
    assert (shown.code, "there is no token" in shown.err) == (1, True)


def _known(made: dict[str, Any]) -> dict[str, Any]:
    """Return a created token as a list shows it: without the token itself."""
    return {name: value for name, value in made.items() if name != "token"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x"], "needs a namespace"),
        (["x", "--allow", "bob:all"], "write NAMESPACE:r"),
        (["x", "--allow", "bob", "--allow", "BOB:r"], "twice"),
        (["x", "--allow", "b/b"], "not usable"),
        (["", "--allow", "bob"], "empty"),
        (["x", "--allow", "bob", "--expires", "2020-01-01"], "is in the past"),
        (["x", "--allow", "bob", "--expires", "soon"], "soon"),
    ],
)
def test_wrong_input_creates_no_token(
    memory: Command, arguments: list[str], said: str, home: Path
) -> None:
    shown = memory("tokens", "create", *arguments)
    assert (shown.code, said in shown.err) == (2, True)
    assert not (home / "tokens.json").exists() or json.loads(
        (home / "tokens.json").read_text()
    ) == {"tokens": []}


def test_a_time_span_until_expiry_starts_now(memory: Command) -> None:
    made = memory("tokens", "create", "x", "--allow", "bob", "--expires", "90d").json
    assert made["expires_at"] > made["created_at"]


def test_an_expiry_may_be_written_in_words(memory: Command) -> None:
    for name, words in (("x", "tomorrow"), ("w", "friday"), ("z", "2 weeks")):
        made = memory("tokens", "create", name, "--allow", "bob", "--expires", words).json
        assert made["expires_at"] > made["created_at"]
    passed = memory("tokens", "create", "y", "--allow", "bob", "--expires", "yesterday")
    assert (passed.code, "is in the past" in passed.err) == (2, True)


def test_two_tokens_cannot_have_the_same_name(memory: Command) -> None:
    memory("tokens", "create", "x", "--allow", "bob")
    shown = memory("tokens", "create", "x", "--allow", "ann")
    assert (shown.code, "there is already a token" in shown.err) == (2, True)


def test_a_token_file_that_others_may_write_to_is_refused(memory: Command, home: Path) -> None:
    memory("tokens", "create", "x", "--allow", "bob")
    (home / "tokens.json").chmod(0o666)
    shown = memory("tokens", "list")
    assert (shown.code, "chmod" in shown.err) == (2, True)
