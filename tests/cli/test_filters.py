"""The table of filters: the library, the command, HTTP, MCP and the docs offer the same ones, and
find the same.
"""

import asyncio
import importlib.util
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from cli.conftest import Command
from live_server import without_mcp
from mcp_answers import hits, read
from memories import Draft, Memories, TurnDraft, load_config
from memories.cli.app import app
from memories.cli.search import list_, search
from memories.errors import InvalidInput
from memories.guard.origin import TRUSTS
from memories.guard.validate import ROLES
from memories.identity import tokens
from memories.mcp.answers import short_id
from memories.search.filters import FILTERS, SCOPES, TIERS, Scope, SearchFilters, Tier
from memories.server.api.memory_routes import LISTING, SEARCH
from memories.settings import RANKS, SETTINGS
from tables import failed_cases

ROOT = Path(__file__).parents[2]
SPRING = datetime(2024, 4, 1, tzinfo=UTC)
AUTUMN = datetime(2024, 10, 1, tzinfo=UTC)
# A value of each filter, with the options that it needs: each changes the result of the search.
CASES: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "scope": ("history", {}),
    "conversation": ("standup", {"scope": "history"}),
    "role": ("assistant", {"scope": "history"}),
    "speaker": ("Ann", {"scope": "history"}),
    "tags": ({"team": "red"}, {}),
    "project": ("shop", {}),
    "written_by": ("somebody", {}),
    "trust": ("imported", {}),
    "where": ("type = decision", {}),
    "pending": (True, {}),
    "since": ("2024-06-01", {}),
    "until": ("2024-06-01", {}),
    "as_of": ("2024-06-01", {}),
    "now": ("2024-10-01", {}),
    "min_confidence": (0.9, {}),
    "min_similarity": (0.5, {}),
    "rank": ("similarity", {}),
    "include_corrected": (False, {}),
    "tier": ("hot", {}),
    "limit": (1, {}),
}


def test_the_table_has_every_filter_of_the_library() -> None:
    assert list(FILTERS) == list(SearchFilters.__annotations__)
    assert get_args(Scope) == SCOPES
    assert get_args(Tier) == TIERS
    assert (FILTERS["trust"].choices, FILTERS["rank"].choices) == (TRUSTS, RANKS)
    assert FILTERS["role"].choices == ROLES
    usual = {setting.name: str(setting.default) for setting in SETTINGS}
    rows = {"limit": "default_limit", "min_confidence": "min_confidence", "rank": "rank"}
    assert {name: FILTERS[name].default for name in rows} == {
        name: usual[rows[name]] for name in rows
    }
    described = [
        line.split(":")[0].strip()
        for line in (SearchFilters.__doc__ or "").splitlines()
        if ":" in line
    ]
    assert [name for name in FILTERS if name not in described] == []


def test_each_surface_offers_every_filter(tmp_path: Path) -> None:
    options = {parameter.name for parameter in search.params}
    assert {row.public_name for row in FILTERS.values()} <= SEARCH.keys()
    assert set(FILTERS) - {"tags"} | {"tag"} <= options
    listed = {row for row in FILTERS.values() if row.in_lists}
    assert {row.public_name for row in listed} <= LISTING.keys()
    assert {row.name for row in listed} - {"tags"} <= {parameter.name for parameter in list_.params}
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="fake") as memories:
        [tool] = [tool for tool in asyncio.run(_tools(memories)) if tool.name == "search_memories"]
    assert set(tool.input_schema["properties"]) == {"query", *FILTERS}


def test_the_help_of_each_filter_matches_the_table() -> None:
    page = " ".join(CliRunner().invoke(app, ["search", "--help"]).output.split())
    assert [row.name for row in FILTERS.values() if row.about not in page] == []


def test_the_docs_contain_the_tables_of_the_program() -> None:
    spec = importlib.util.spec_from_file_location("tables_of_docs", ROOT / "tools" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = module.pages()
    assert {path.name for path in written} >= {"cli.md", "http.md"}
    assert [path.name for path, text in written.items() if path.read_text() != text] == [], (
        "run: python tools/tables.py"
    )


@pytest.fixture
def filled(home: Path) -> Iterator[Memories]:
    """The default store with memories and turns about deploys; each is excluded by some filter."""
    with Memories() as memories:
        memories.create_many(
            [
                Draft(
                    "the deploy of the shop is on Mondays",
                    {"project": "shop", "team": "red"},
                    created_at=SPRING,
                ),
                Draft(
                    "the deploy of the blog needs Ann",
                    {"project": "blog", "type": "decision"},
                    created_at=AUTUMN,
                ),
                Draft("the deploy of October 2024 failed", {"global": "true"}, created_at=AUTUMN),
                Draft("a deploy may wait for the weekend", decay="contextual", confidence=0.8),
                Draft(
                    "the deploy of alpha is by hand",
                    {"project": "example.org/ann/alpha"},
                    confidence=0.95,
                ),
                Draft("a deploy that nobody has looked at", pending=True),
            ],
            force=True,
        )
        memories.create("The deploy window of the site is 30 minutes")
        memories.create("The deploy window of the site is 45 minutes")
        turns = [
            TurnDraft("who starts the deploy?", "user", "Ann"),
            TurnDraft("I start the deploy", "assistant"),
        ]
        memories.add_turns("standup", turns)
        memories.add_turns("retro", [TurnDraft("the deploy was slow", "user", "Bob")])
    with Memories(channel="import", client=("somebody", "1.0")) as memories:
        memories.create("somebody has planned the deploy")
    with Memories() as memories:
        memories.scratchpad(refresh=True)
        yield memories


def test_each_filter_finds_the_same_results_on_every_surface(
    filled: Memories, memory: Command
) -> None:
    assert CASES.keys() == FILTERS.keys()
    config = load_config()
    from memories.server.app import Options, build

    with (
        without_mcp(),
        TestClient(build(config, Options(port=8765)), base_url="http://127.0.0.1:8765") as client,
    ):
        client.headers["authorization"] = f"Bearer {tokens.own(config.home)}"

        def check(name: str, value: Any, others: dict[str, Any]) -> None:
            given = {name: value, **others}
            expected = [hit.id for hit in filled.search("deploy", **given)]
            assert _by_command(memory, given) == expected
            assert _by_http(client, given) == expected
            assert _by_mcp(filled, {"scope": "memories", "limit": 10, **given}) == [
                short_id(name) for name in expected
            ]
            assert expected
            if name not in ("now", "rank"):  # filters that only change the order
                assert set(expected) != {hit.id for hit in filled.search("deploy", **others)}

        cases = [(name, value, others) for name, (value, others) in CASES.items()]
        ends_of_a_name = [("project", name, {}) for name in ("alpha", "ann/alpha")]
        assert failed_cases(check, cases + ends_of_a_name) == []
    assert "alpha" in str(filled.search("deploy", project="alpha"))


def test_a_filter_with_a_scope_selects_it_in_mcp_and_is_refused_in_other_scopes(
    filled: Memories,
) -> None:
    rows = [row for row in FILTERS.values() if row.scope != "all"]
    assert [row.name for row in rows] == ["conversation", "role", "speaker", "pending"]
    for row in rows:
        given: dict[str, Any] = {row.name: CASES[row.name][0]}
        expected = [short_id(hit.id) for hit in filled.search("deploy", scope=row.scope, **given)]
        assert _by_mcp(filled, given) == expected != []
        for scope in {*SCOPES} - {row.scope}:
            with pytest.raises(InvalidInput, match=f"set scope \\(--in\\) to {row.scope}"):
                filled.search("deploy", scope=scope, **given)


def _by_command(memory: Command, given: Mapping[str, Any]) -> list[str]:
    """Search with the command; return the ids of the hits."""
    options: list[str] = []
    for name, value in given.items():
        flag = FILTERS[name].flag
        if FILTERS[name].kind == "tags":
            options += [text for pair in value.items() for text in (flag, "=".join(pair))]
        elif FILTERS[name].kind == "flag":
            options.append(flag if value else f"--no-{flag[2:]}")
        else:
            options += [flag, str(value)]
    return [hit["id"] for hit in memory("search", "deploy", *options).json["results"]]


def _by_http(client: TestClient, given: Mapping[str, Any]) -> list[str]:
    """Search over HTTP; return the ids of the hits."""
    query: list[tuple[str, str]] = [("q", "deploy")]
    for name, value in given.items():
        values = map("=".join, value.items()) if FILTERS[name].kind == "tags" else [str(value)]
        query += [(FILTERS[name].public_name, text) for text in values]
    answer = client.get("/api/memories", params=query)
    assert answer.status_code == 200, answer.text
    return [hit["id"] for hit in answer.json()["results"]]


def _by_mcp(memories: Memories, given: Mapping[str, Any]) -> list[str]:
    """Return the ids in the tool's answer."""
    from mcp import Client
    from mcp_answers import server

    async def call() -> Any:
        async with Client(server(memories)) as client:
            return await client.call_tool("search_memories", {"query": "deploy", **given})

    result = asyncio.run(call())
    assert not result.is_error, result.content
    return [item["id"] for item in hits(read(result.content[0].text))]


async def _tools(memories: Memories) -> Any:
    """Return the tools of the MCP server."""

    from mcp import Client
    from mcp_answers import server

    async with Client(server(memories)) as client:
        return (await client.list_tools()).tools
