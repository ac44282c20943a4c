"""Adding entries to JSON texts and removing them; everything else keeps its bytes."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memories.connect.jsonc import Document, MalformedJSON

ENTRY = {"command": "/a b/memory", "args": ["mcp"], "env": {"X": "ä\n"}}
LAYOUTS = [
    '{"a": 1}',
    '{"a":1,"b":[]}',
    '{\n  "a": 1\n}\n',
    '{\n\t"a": {"b": 1},\n\t"z": [1, 2]\n}',
    '{\r\n    "a": 1\r\n}\r\n',
    '{\n  "servers": {\n    "other": {"command": "x"}\n  },\n  "z": 1\n}\n',
    '{\n  "servers": {\n    "other": {"command": "x"}\n  }\n}\n',
]
COMMENTED = [
    "{\n  // all mine\n}\n",
    '{\n  "a": 1 // about a, with a "," and a }\n}\n',
    '{\n  "a": 1, // about a\n  // about nothing\n}\n',
    '{\n  "a": 1, /* b */\n  /* "servers": {} */\n  "b": 2, // end\n}\n',
    (
        '// head\n{\n  "a": [1,], // list\n  "servers": {\n    "o": {"command": "x"}, // o\n'
        "    // last\n  },\n}\n// tail"
    ),
    '{ "a": 1 /* x */ }',
]


def parse(text: str) -> Any:
    """Parse a JSON text with comments."""
    return Document(text, comments=True).get(())


@pytest.mark.parametrize("text", [*LAYOUTS, *COMMENTED])
def test_adding_and_removing_an_entry_restores_every_byte(text: str) -> None:
    document = Document(text, comments=True)
    there = document.get(("servers",))
    document.set(("servers", "memories"), ENTRY)
    document.append(("hooks", "Start"), {"command": "x"})
    document.append(("hooks", "Start"), {"command": "y"})
    expected = {**parse(text), "hooks": {"Start": [{"command": "x"}, {"command": "y"}]}}
    expected["servers"] = {**(there or {}), "memories": ENTRY}
    assert document.get(()) == expected
    for comment in ("// about a", "/* b */", "// last", "// tail", "// all mine"):
        assert (comment in document.text) == (comment in text)
    document.remove(("hooks", "Start", 0))
    assert document.get(("hooks", "Start")) == [{"command": "y"}]
    document.remove(("hooks",))
    document.remove(("servers", "memories"))
    if there is None:
        document.remove(("servers",))
    assert document.text == text


@pytest.mark.parametrize("text", ["", "\n", " \r\n", "{}", "{ }", "{\n}\n"])
def test_an_empty_file_is_an_object_without_members(text: str) -> None:
    document = Document(text, comments=False)
    document.set(("servers", "memories"), ENTRY)
    assert json.loads(document.text) == {"servers": {"memories": ENTRY}}


@pytest.mark.parametrize("text", LAYOUTS)
def test_a_document_without_comments_stays_valid_json(text: str) -> None:
    document = Document(text, comments=False)
    document.set(("servers", "memories"), ENTRY)
    assert json.loads(document.text)["servers"]["memories"] == ENTRY
    document.set(("servers", "memories", "command"), "other")
    assert json.loads(document.text)["servers"]["memories"] == {**ENTRY, "command": "other"}


def test_a_comment_stays_with_the_member_before_it() -> None:
    document = Document('{\n  "a": 1, // one\n  "b": 2 // two\n}', comments=True)
    document.set(("c",), 3)
    assert document.text == '{\n  "a": 1, // one\n  "b": 2, // two\n  "c": 3\n}'
    document.remove(("a",))
    assert document.text == '{\n  "b": 2, // two\n  "c": 3\n}'


def test_setting_an_equal_value_changes_nothing() -> None:
    text = '{"servers": {"memories":   {"args":["mcp"],   "command":"x"}}}'
    document = Document(text, comments=False)
    document.set(("servers", "memories"), {"command": "x", "args": ["mcp"]})
    assert document.text == text


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ('{\n  "a": 1\n  "b": 2\n}', 3, '","'),
        ('{"a": 1,}', 1, '","'),
        ('{\n"a" 1}', 2, '":"'),
        ('{\n"a": tru}', 2, '"t"'),
        ('{"a": "x', 1, "string"),
        ('{"a": 1', 1, '"}"'),
        ("{\n\n// no\n}", 3, "name"),
        ("[]", 1, "object"),
        ('"a"', 1, "object"),
        ("{} {}", 1, "follows"),
        ("{a: 1}", 1, "name"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", 1, "nested"),
        ('{"a": \n', 2, "early"),
    ],
)
def test_errors_name_the_line_of_the_problem(text: str, line: int, why: str) -> None:
    with pytest.raises(MalformedJSON, match=why) as caught:
        Document(text, comments=False)
    assert caught.value.line == line


@pytest.mark.parametrize("text", ['{"servers": []}', '{"servers": null}', '{"servers": "x"}'])
def test_a_value_that_is_not_an_object_is_not_replaced(text: str) -> None:
    document = Document(text, comments=False)
    with pytest.raises(TypeError, match="line 1: servers is not an object"):
        document.set(("servers", "memories"), ENTRY)
    assert document.text == text


relaxed = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
keys = st.text(max_size=5)
trees = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@relaxed
@given(
    st.dictionaries(keys, trees, max_size=5),
    st.sampled_from([None, 0, 2, "\t"]),
    st.lists(keys, min_size=1, max_size=3),
    trees,
    st.booleans(),
)
def test_any_member_can_be_set_in_any_object_and_removed_again(
    tree: dict[str, Any], indent: int | str | None, path: list[str], value: Any, ascii_only: bool
) -> None:
    text = json.dumps(tree, indent=indent, ensure_ascii=ascii_only)
    expected = json.loads(text)
    document = Document(text, comments=False)
    assert document.get(()) == expected
    here = expected
    for step in path[:-1]:
        here = here.setdefault(step, {})
        if not isinstance(here, dict):
            with pytest.raises(TypeError):
                document.set(path, value)
            assert document.text == text
            return
    before = dict(here)
    here[path[-1]] = value
    document.set(path, value)
    assert json.loads(document.text) == expected
    document.remove(path)
    assert document.get(path[:-1]) == {key: each for key, each in before.items() if key != path[-1]}


@relaxed
@given(st.text(alphabet='{}[],:"/*\\ \n1atrue', max_size=30))
def test_arbitrary_text_is_read_or_refused(text: str) -> None:
    for comments in (False, True):
        try:
            document = Document(text, comments=comments)
        except MalformedJSON:
            continue
        if not comments and text.strip():
            assert document.get(()) == json.loads(text, strict=False)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('{ // mine\n  "m": 1, "a": 2,\n  "b": 3\n}\n', {"a": 2, "b": 3}),
        ('{ // mine\n  "m": 1 }\n', {}),
        ('{\n  "a": 2, // about a\n  "m": 1 }\n', {"a": 2}),
    ],
)
def test_text_after_a_removed_entry_does_not_join_the_comment_before_it(
    text: str, kept: Any
) -> None:
    document = Document(text, comments=True)
    document.remove(("m",))
    assert parse(document.text) == kept
    assert "// mine" in document.text or "// about a" in document.text


@pytest.mark.parametrize("text", ['{ "a": 1 // about a\n}\n', '{ "a": 1, // about a\n}\n'])
def test_an_entry_is_not_added_inside_a_comment(text: str) -> None:
    document = Document(text, comments=True)
    document.set(("m",), 2)
    assert parse(document.text) == {"a": 1, "m": 2}
    document.remove(("m",))
    assert document.text == text


def test_comments_at_both_ends_are_two_comments() -> None:
    assert parse('/* mine */\n{"a": 1}\n/* end */\n') == {"a": 1}
