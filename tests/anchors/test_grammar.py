"""The forms of anchors, and the anchors that a memory keeps when its text changes."""

import pytest

from memories.anchors import grammar
from memories.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "kind", "stored"),
    [
        ("ops/grafana/", "path", "ops/grafana/"),
        ("./docs//adr.md", "path", "docs/adr.md"),
        ("src/refund_service.py::lock_order", "symbol", "src/refund_service.py::lock_order"),
        ("src/cart.py::Cart.total", "symbol", "src/cart.py::Cart.total"),
        ("docker-compose.yml::5433", "literal", "docker-compose.yml::5433"),
        ('src/cart.py::"total"', "literal", 'src/cart.py::"total"'),
        (
            "pyproject.toml::requires-python >=3.11",
            "literal",
            "pyproject.toml::requires-python >=3.11",
        ),
        ("9fceb02d0ae598e95dc970b74767f19372d61af8", "commit", None),
        ("commit:abcdefa", "commit", "commit:abcdefa"),
        ("https://example.org/a::b", "url", "https://example.org/a::b"),
        (".env.example::PORT", "literal", ".env.example::PORT"),
    ],
)
def test_each_kind_of_anchor_is_read_and_written_back(
    text: str, kind: str, stored: str | None
) -> None:
    anchor = grammar.parse(text)
    assert anchor.kind == kind
    assert str(anchor) == (stored or f"commit:{text}")
    assert grammar.parse(str(anchor)) == anchor


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "/etc/passwd", "../x", "a/../../x", "~/.ssh/id_rsa", "C:/x", "a\\b", "..", ".",
        "file:///etc/passwd", "ftp://host/x", "a.py::", "dir/::name", "a\nb", "a\x00b", "a\u202eb",
        ".env", "app/.env.production", "deploy.PEM", "keys/id_rsa", ".git/config", ".GIT/config",
        ".Env", "\uff0eenv", ".env.", "secrets.yml::token", "x" * 501, "commit:xyz",
    ],
)  # fmt: skip
def test_an_anchor_outside_the_project_or_to_a_secret_file_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        grammar.parse(text)
    assert "\n" not in str(caught.value)


def test_a_memory_has_at_most_twenty_anchors() -> None:
    with pytest.raises(InvalidInput, match="at most 20"):
        grammar.parse_all([f"a{number}" for number in range(21)])


def test_a_new_text_drops_anchors_that_only_the_old_text_named() -> None:
    anchors = ("compose.yml::5433", "docs/adr.md", "compose.yml::postgres")
    old, new = "postgres listens on 5433 (compose.yml)", "postgres listens on 5434 (compose.yml)"
    assert grammar.select_named(anchors, old, new) == ("docs/adr.md", "compose.yml::postgres")
