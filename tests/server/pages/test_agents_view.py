"""The page shows exactly what the hooks give an agent, and shows each reader only what their token
allows.
"""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from live_site import Site
from memories import Memories
from memories.hooks.model_context import Situation
from memories.hooks.preview import preview
from memories.hooks.runs import record_run
from memories.identity import tokens
from memories.server.pages.picture import picture
from memories.server.pages.request import PageRequest

HOSTILE = '</pre><script>alert(1)</script>"><img src=x onerror=alert(2)>{{ 7*7 }}'


def client_with(site: Site, name: str, *grants: str) -> httpx.Client:
    """Return a client whose token has these grants only."""
    secret, _ = tokens.create(site.memories.config.home, name, tokens.parse_grants(grants), None)
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.Client(base_url=site.url, headers=headers, timeout=60)


def without_numbers(text: str) -> str:
    """Return a text without times and random numbers."""
    return re.sub(r"Now: .* UTC", "Now", re.sub(r"\b\d{9}\b", "N", text))


def test_the_page_shows_what_the_hooks_give(site: Site, asking: httpx.Client) -> None:
    then = datetime.now(UTC) - timedelta(days=9)
    site.memories.create(
        "Deploys of the harbour happen on Tuesdays", tags={"project": "harbour"}, created_at=then
    )
    for number in range(14):
        site.memories.create(f"Ticket {number} is closed", force=True)
    question = "when do deploys of the harbour happen?"
    answer = asking.get(
        "/agents", params={"format": "json", "project": "harbour", "message": question}
    ).json()
    config = site.memories.config
    situation = Situation(
        config,
        "harbour",
        "shell",
        open_in_server=lambda config, _: Memories(config=config, embedder="none"),
    )
    seen = preview(situation, "", question)
    assert seen.prompt
    assert without_numbers(answer["start"]["text"]) == without_numbers(seen.start.text)
    assert without_numbers(answer["prompt"]["text"]) == without_numbers(seen.prompt.text)
    (line,) = (each for each in answer["start"]["lines"] if "Deploys" in each["content"])
    assert (line["shown"], line["reason"], line["why"]) == (
        True,
        "project",
        ["It is about this project."],
    )
    (line,) = (each for each in answer["prompt"]["lines"] if "Deploys" in each["content"])
    assert (line["shown"], line["reason"]) == (False, "in_context")
    assert line["chance"] > line["threshold"]


def test_the_page_counts_no_read(site: Site, asking: httpx.Client) -> None:
    made = site.memories.create("Deploys happen on Fridays").memory
    assert made
    for _ in range(3):
        assert "Fridays" in asking.get("/agents?message=when+do+deploys+happen").text
    assert site.memories.get(made.id).access_count == 0
    assert not (site.memories.config.home / "sessions").exists()


def test_texts_are_escaped(site: Site, asking: httpx.Client) -> None:
    site.memories.create(HOSTILE, tags={"project": HOSTILE[:60]})
    for address in ("/agents", "/map"):
        page = asking.get(address, params={"message": HOSTILE, "project": HOSTILE[:60]}).text
        assert "<img" not in page
        assert "<script>" not in page
        assert "&lt;script&gt;" in page


def test_a_token_sees_what_an_agent_in_its_namespace_gets(site: Site) -> None:
    with Memories(config=site.memories.config, namespace="bob", embedder="none") as bob:
        bob.create("Bob likes the kettle")
    site.memories.create("The kettle of the owner is new")
    record_run(str(site.memories.config.home), "claude-code", "session-start")
    with client_with(site, "reader", "bob:r") as client:
        page = client.get("/agents?message=kettle").text
        assert "Bob likes the kettle" in page
        assert "of the owner" not in page
        assert "Agents and hooks" not in page
        assert "Not useful" not in page
        assert 'id="new"' not in page
        assert client.get("/agents?namespace=shared").status_code == 403
        refused = client.get("/agents", params={"project": "/"})
        assert (refused.status_code, "only the owner" in refused.text) == (400, True)
        assert "of the owner" not in client.get("/map").text
    with client_with(site, "admin", "*:admin") as client:
        page = client.get("/agents?message=kettle").text
        assert "of the owner" in page
        assert "Agents and hooks" not in page  # only the machine's user sees agents and hooks
    with client_with(site, "writer", "bob:rw", "shared:r") as client:
        page = client.get("/agents?namespace=bob&message=kettle").text
        assert "of the owner" in page
        assert '/pin?namespace=bob"' in page
        assert '/pin?namespace=shared"' not in page


def test_a_folder_sets_the_project_the_namespace_and_whether_memory_is_on(
    site: Site, asking: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_HOME", str(site.memories.config.home))
    monkeypatch.setenv("EMBEDDER", "none")
    site.memories.create("The kettle is new")
    folder = tmp_path / "work"
    (folder / ".git").mkdir(parents=True)
    (folder / ".memories-off").touch()
    (folder / ".env").write_text("MEMORY_STORE=sqlite:////elsewhere.db\n")
    page = asking.get("/agents", params={"project": str(folder)}).text
    assert "Memory is off here" in page
    assert "The kettle is new" in page  # an untrusted folder can't choose a store
    missing = asking.get("/agents", params={"project": str(folder / "nowhere")})
    assert (missing.status_code, "there is no folder" in missing.text) == (400, True)


@pytest.mark.parametrize(
    ("query", "status", "sentence"),
    [
        ("host=emacs", 400, "there is no agent"),
        ("message=%2Fcompact", 200, "This message is a command"),
        ("message=memory+off", 200, "switches memory on or off"),
        ("as_of=2026-01-01", 200, "is not recorded"),
    ],
)
def test_a_message_that_recalls_nothing_says_why(
    asking: httpx.Client, query: str, status: int, sentence: str
) -> None:
    answer = asking.get(f"/agents?{query}")
    assert (answer.status_code, sentence in answer.text) == (status, True)


def test_the_owner_sees_agents_and_their_hooks(site: Site, asking: httpx.Client) -> None:
    home = str(site.memories.config.home)
    record_run(home, "codex", "user-prompt")
    record_run(home, "codex", "stop", "the disk is full")
    site.memories.add_turns("talk", ["Please water the plants"])
    page = asking.get("/agents").text
    assert "Codex" in page
    assert "memory connect codex" in page
    assert "the disk is full" in page
    assert ">Please water the plants</a>" in page


def test_a_host_with_our_plugin_is_called_connected(
    asking: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "memory search" in asking.get("/agents?format=json").json()["start"]["text"]
    settings = tmp_path / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"enabledPlugins": {"memories@memories": true}}')
    page = asking.get("/agents").text
    assert "connected by its plugin" in page
    assert "memory connect claude-code" not in page
    block = asking.get("/agents?format=json").json()["start"]["text"]
    assert ("search_memories" in block, "memory search" in block) == (True, False)


def test_a_host_whose_file_is_malformed_is_not_called_connected(
    asking: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "mcp.json").write_text("{")
    page = asking.get("/agents").text
    assert "its configuration can&#39;t be read: " in page
    assert "repair the file" in page
    assert "Connect it: <code>memory connect cursor" not in page
    assert ">connected" not in page


def test_the_map_draws_projects_over_time_and_corrections(site: Site) -> None:
    then = datetime.now(UTC) - timedelta(days=40)
    older = site.memories.create(
        "Deploys happen on Mondays", tags={"project": "shop"}, created_at=then
    ).memory
    newer = site.memories.create("Deploys happen on Tuesdays", tags={"project": "shop"}).memory
    for number in range(12):
        site.memories.create(f"Ticket {number}", tags={"project": f"p{number}"}, force=True)
    site.memories.create("It belongs to none")
    assert older
    assert newer
    assert newer.corrects == older.id
    view = picture(site.memories, PageRequest(()))
    rows = {row.name: row.number for row in view.more["rows"]}
    assert len(rows) == 11
    assert (rows["shop"], rows["other projects"], rows["no project"]) == (2, 4, 1)
    assert sum(rows.values()) == sum(dot.number for dot in view.more["dots"]) == 15
    (arrow,) = view.more["arrows"]
    assert arrow.label == "Deploys happen on Mondays → Deploys happen on Tuesdays"
    assert view.data["corrections"][0]["from"] == older.id


def test_the_map_draws_every_memory_corrected_by_a_correction(site: Site) -> None:
    then = datetime.now(UTC) - timedelta(days=40)
    older = [
        site.memories.create(text, created_at=then, force=True).id
        for text in ("Deploys happen on Mondays", "deploys happen on mondays")
    ]
    newer = site.memories.create("Deploys happen on Tuesdays").id
    view = picture(site.memories, PageRequest(()))
    assert len(view.more["arrows"]) == 2
    links = {(pair["from"], pair["to"]) for pair in view.data["corrections"]}
    assert links == {(name, newer) for name in older}


def test_a_correction_on_the_same_day_is_drawn_as_a_ring(site: Site) -> None:
    for day in ("Mondays", "Tuesdays"):
        site.memories.create(f"Deploys happen on {day}", tags={"project": "shop"})
    view = picture(site.memories, PageRequest(()))
    assert (view.more["arrows"], view.more["dots"][0].has_corrections) == ([], True)


def test_the_pages_of_an_empty_memory_name_the_next_step(asking: httpx.Client) -> None:
    pages = ("/", "/agents", "/map", "/review", "/conversations", "/tags")
    for path in pages:
        answer = asking.get(path)
        assert answer.status_code == 200, path
    assert "memory connect claude-code" in asking.get("/").text
    assert "Nothing to draw yet" in asking.get("/map").text
    assert "memory import FILE" in asking.get("/").text
    of_bob = asking.get("/?namespace=bob").text
    assert "memory import -n bob FILE" in of_bob and "memory create -n bob " in of_bob
    assert "memory create -n bob " in asking.get("/tags?namespace=bob").text


def test_a_conversation_without_a_title_is_named_by_its_first_user_turn(
    site: Site, asking: httpx.Client
) -> None:
    from memories import TurnDraft

    long = "Can you find out " + "why the test is flaky " * 9
    site.memories.add_turns(
        "claude-code:1", [TurnDraft("Hello, I am your agent", role="assistant"), TurnDraft(long)]
    )
    site.memories.add_turns("claude-code:2", ["<b>first"])
    page = asking.get("/conversations").text
    assert re.search(r">Can you find out why .{60,80} …</a>", page)
    assert ">&lt;b&gt;first</a>" in page
    assert "title" not in asking.get("/conversations?format=json").text.replace('"title": null', "")
