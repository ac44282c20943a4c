"""Adding a table to TOML texts and removing it."""

import tomllib

import pytest

from memories.connect import toml

TABLE = ("mcp_servers", "memories")
ROWS = {
    "command": 'C:\\a "b"/memory',
    "args": ["mcp", "-n", "bob"],
    "env": {"MEMORY_HOME": "/x ä\x7f"},
    "timeout": 20,
}
LAYOUTS = [
    "",
    "# only a comment\n",
    'model = "m"\n',
    'model = "m"\r\n\r\n[a]\r\nb = 1\r\n',
    (
        '[mcp_servers.other]\ncommand = "x"\n\n# about p\n'
        '[projects."/a.b/[c]"]\ntrust_level = "trusted"\n'
    ),
    'a = [\n[1],\n["mcp_servers"],\n]\nb = """\n[mcp_servers.memories]\ncommand = "no"\n"""\n',
    'mcp_servers.other.command = "x"\n\n[[rules]]\na = 1\n\n[[rules]]\na = 2\n',
    # tomlkit moves or drops lines of these layouts; see docs/design.md.
    'mcp_servers.other.command = "x"\nprofile.name = "p"\n',
    "[[rules]]\na = 1\n[z.y]\nb = 1\n[[rules]]\na = 2\n[rules.sub]\nc = 1\n",
    (
        '[mcp_servers.a]\nenv = { A="1",B="2" } # e\n[[mcp_servers.a.l]]\nb = 1\n[y]\nq=1 \t\n'
        "  [mcp_servers.b]\n  c = 2\n"
    ),
    (
        "[ mcp_servers . a ]\nc = 1\n\n\n[mcp_servers]\n# nothing yet\n\n"
        "[mcp_servers.a.env]\nA = '1'\n# end\n"
    ),
]


@pytest.mark.parametrize("text", LAYOUTS)
def test_adding_and_removing_an_entry_restores_every_byte(text: str) -> None:
    put = toml.put(text, TABLE, ROWS)
    assert put.startswith(text)
    assert tomllib.loads(put)["mcp_servers"]["memories"] == ROWS
    assert toml.remove(put, TABLE) == text
    assert toml.put(put, TABLE, ROWS) == put


@pytest.mark.parametrize("text", LAYOUTS)
def test_text_added_after_the_table_is_kept(text: str) -> None:
    behind = "\n# about z\n[z]\na = 1\n"
    put = (
        toml.put(text, TABLE, ROWS)
        + '\n[mcp_servers.memories.tools.x]\napproval_mode = "prompt"\n'
        + behind
    )
    assert toml.remove(put, TABLE) == text + behind


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('mcp_servers = { other = { command = "x" } }\n', "layout"),
        ("mcp_servers = 1\n", "mcp_servers is not a table"),
        ("a = 1\nb = \n", "line 2"),
        ("a = 1\n[b\n", "line 2"),
        ('a = "x', "line 1"),
        ('mcp_servers.memories.command = "x"\n', "manually"),
        ("a = " + "[" * 5000, "line 1"),
    ],
)
def test_unusual_layouts_are_refused(text: str, why: str) -> None:
    with pytest.raises(toml.MalformedTOML, match=why):
        toml.put(text, TABLE, ROWS)


def test_a_file_without_other_tables_keeps_its_line_endings() -> None:
    put = toml.put('[mcp_servers.memories]\r\ncommand = "x"\r\n', TABLE, ROWS)
    assert put.count("\n") == put.count("\r\n") > 1
