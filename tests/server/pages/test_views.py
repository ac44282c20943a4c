"""The pages' answers, without a browser."""

import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from live_site import Site
from memories import Memories, TurnDraft
from memories.identity.project import identify
from memories.server.pages.request import PageRequest, count_by_label, plot
from memories.server.pages.results import mark


def test_every_view_as_json_equals_the_api_response(site: Site, asking: httpx.Client) -> None:
    made = site.memories.create(
        "Deploys happen on Fridays", tags={"type": "fact"}, source="talk#0"
    ).memory
    assert made
    site.memories.create("The office is in Bergen", pending=True)
    with Memories(config=site.memories.config, namespace="ann", embedder="none") as ann:
        ann.create("Of another namespace")
    site.memories.add_turns("talk/1", [TurnDraft("When do we deploy?", speaker="Ann")])
    same = {
        "/?q=deploys&limit=30&kind=memory": "/api/memories?q=deploys&limit=30&in=memories",
        "/?limit=30": "/api/memories?limit=30",
        f"/memories/{made.id}?": f"/api/memories/{made.id}",
        "/conversations?": "/api/conversations",
        "/conversations/talk%2F1?start=0": "/api/conversations/talk%2F1/turns?start=0",
        "/review?": "/api/review",
        "/tags?key=type": "/api/tags/type",
        "/tags?": "/api/tags",
        "/status?": "/api/status",
        "/namespaces?": "/api/namespaces",
    }
    for page, api in same.items():
        shown, said = asking.get(f"{page}&format=json"), asking.get(api)
        assert shown.status_code == said.status_code == 200, (page, said.text)
        volatile = {
            "access_count": None,
            "score": None,
            "confidence": None,
            "size_bytes": None,
        }  # these differ, since the first request counts as a read
        one, other = shown.json(), said.json()
        for each in (one, other, *one.get("results", []), *other.get("results", [])):
            each |= {
                name: value
                for name, value in volatile.items()
                if name in each or name == "access_count"
            }
        assert one == other, page


def test_pages_run_only_their_own_scripts_and_cannot_be_framed(asking: httpx.Client) -> None:
    for path in (
        "/",
        "/login",
        "/status",
        "/nowhere-to-be-found",
        "/memories/01a2039c-5da3-7006-a22c-42bf2a5ea2e9",
    ):
        answer = asking.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "style=" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_first_view_is_small(site: Site, asking: httpx.Client) -> None:
    for number in range(60):
        site.memories.create(f"Memory {number}: " + "a sentence of some words. " * 12, force=True)
    loaded = [asking.get(path) for path in ("/", "/static/page.css", "/static/page.js")]
    assert sum(len(each.content) for each in loaded) < 150_000
    again = asking.get("/static/page.js", headers={"If-None-Match": loaded[2].headers["etag"]})
    assert again.status_code == 304


# addresses, each with the expected status and a part of the expected message
BAD = (
    ("/memories/nope", 400, "id"),
    ("/memories/01a2039c-5da3-7006-a22c-42bf2a5ea2e9", 404, "Memory not found"),
    ("/conversations/nope", 404, "conversation"),
    ("/?tag=nope", 400, "tag must be key=value"),
    ("/?limit=many", 400, "whole number"),
    ("/?as_of=someday", 400, "someday"),
    ("/?namespace=No%20Name", 400, "namespace"),
    ("/?" + "a=1&" * 150, 400, "at most 100 parameters"),
    ("/?q=%ff", 400, "UTF-8"),
)


def test_an_invalid_address_gets_a_one_line_error(asking: httpx.Client) -> None:
    failures = []
    for path, status, sentence in BAD:
        answer = asking.get(path)
        as_json = asking.get(f"{path}{'&' if '?' in path else '?'}format=json").json()
        if answer.status_code != status or sentence not in answer.text or not as_json["detail"]:
            failures.append(
                f"{path[:50]}: expected {status} {sentence!r}, found {answer.status_code} {as_json}"
            )
    assert failures == []


def test_a_token_sees_only_its_namespace(site: Site) -> None:
    from memories.identity import tokens

    home = site.memories.config.home
    secret, _ = tokens.create(home, "bob", tokens.parse_grants(["bob:r"]), None)
    site.memories.create("Only for the owner")
    with httpx.Client(base_url=site.url, headers={"Authorization": f"Bearer {secret}"}) as client:
        assert "Only for the owner" not in client.get("/").text
        refused = client.get("/?namespace=shared")
        assert (refused.status_code, "<h1>Forbidden</h1>" in refused.text) == (403, True)
        assert "store" not in client.get("/status?format=json").json()
        assert [
            row["name"] for row in client.get("/namespaces?format=json").json()["namespaces"]
        ] == []


def test_a_token_sees_only_the_controls_that_it_may_use(site: Site) -> None:
    from memories.identity import tokens

    made = site.memories.create("The kettle is red", tags={"room": "hall"}).memory
    assert made
    site.memories.create("The lamp is blue", pending=True)
    controls = {
        f"/memories/{made.id}": [">Edit<", ">Pin<", ">Delete<"],
        "/tags": [">Rename<"],
        "/namespaces": [">Import<"],
    }
    manage = {
        f"/memories/{made.id}": [">Forget for good …<"],
        "/review": [">Accept<", 'name="choose"'],
    }
    for level, shown, hidden in (
        ("r", {}, (controls, manage)),
        ("rw", controls, (manage,)),
        ("admin", controls | manage, ()),
    ):
        grants = tokens.parse_grants([f"shared:{level}"])
        secret, _ = tokens.create(site.memories.config.home, level, grants, None)
        headers = {"Authorization": f"Bearer {secret}"}
        with httpx.Client(base_url=site.url, headers=headers) as client:
            for path, names in shown.items():
                page = client.get(path).text
                assert [name for name in names if name not in page] == []
            for path, names in [pair for group in hidden for pair in group.items()]:
                page = client.get(path).text
                assert [name for name in names if name in page] == []


def test_an_internal_error_page_reveals_nothing(
    asking: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret is 1234")

    monkeypatch.setattr(Memories, "list", broken)
    answer = asking.get("/")
    assert (
        answer.status_code,
        "1234" in answer.text,
        "<h1>Internal error</h1>" in answer.text,
    ) == (500, False, True)


def test_a_conversation_is_shown_as_it_was_on_a_day(site: Site, asking: httpx.Client) -> None:
    days = [datetime(2026, 5, day, 12, tzinfo=UTC) for day in (1, 2, 20)]
    site.memories.add_turns(
        "talk", [TurnDraft(f"said on {day:%d}", created_at=day) for day in days]
    )
    site.memories.add_turns("later", [TurnDraft("much later", created_at=days[2])])
    then, now = (asking.get(path).text for path in ("/?as_of=2026-05-03", "/"))
    assert ("2 turns" in then, "3 turns" in then, "2026-05-02" in then, "later" in then) == (
        True,
        False,
        True,
        False,
    )
    assert ("3 turns" in now, "later" in now) == (True, True)


def test_conversations_that_do_not_fit_the_timeline_become_a_link(
    site: Site, asking: httpx.Client
) -> None:
    for number in range(40):
        site.memories.add_turns(f"talk {number}", [TurnDraft("hello")])
    shown = asking.get("/").text
    assert shown.count('aria-label="conversation') == 30
    assert ">More conversations from these days</a>" in shown


@pytest.mark.parametrize("narrowed", ["written_by=ann", "project=shop", "trust=agent", "tag=a%3Db"])
def test_a_timeline_that_is_narrowed_to_some_memories_lists_no_conversations(
    site: Site, asking: httpx.Client, narrowed: str
) -> None:
    site.memories.add_turns("talk", [TurnDraft("hello")])
    assert 'aria-label="conversation' in asking.get("/").text
    assert 'aria-label="conversation' not in asking.get(f"/?{narrowed}").text


def test_matched_words_are_marked() -> None:
    assert mark("Deploys, deployed <b>!", ["deploy*"]) == [
        ("Deploys", True), (", ", False), ("deployed", True), (" <b>!", False)
    ]  # fmt: skip
    assert mark("nothing", []) == [("nothing", False)]
    assert mark("", ["x"]) == []


def test_a_link_changes_one_parameter_and_keeps_the_rest() -> None:
    asked = PageRequest([("q", "a b"), ("tag", "x=1"), ("tag", "y=2"), ("format", "json")])
    assert asked.link(q=None) == "?tag=x%3D1&tag=y%3D2"
    assert asked.link_tag("x", "3", is_added=True) == "?q=a+b&tag=y%3D2&tag=x%3D3"
    assert (
        PageRequest([("namespace", "bob")]).address("/memories/", "a/b", start=3)
        == "/memories/a%2Fb?start=3&namespace=bob"
    )


def test_the_highest_bar_fills_its_plot_and_zero_has_no_height() -> None:
    found = plot("Written", [("a", 0), ("b", 5), ("c", 10)], "memories")
    assert [bar.height for bar in found.bars] == [0, 20, 40]
    assert plot("Nothing", [], "memories").bars == []


@pytest.mark.thorough
def test_a_long_text_is_cut_in_lists_and_complete_where_it_is_reviewed(
    site: Site, asking: httpx.Client
) -> None:
    long = (
        "Deploys happen on Fridays. "
        + "and so on " * 9_000
        + "the harbour is closed. "
        + "and more " * 900
    )
    made = site.memories.create(long).memory
    assert made
    for number in range(4):
        site.memories.create(f"{number} {long}", force=True)
    site.memories.create(f"waits {long}", pending=True)
    site.memories.add_turns("talk", [long])
    for path in ("/", "/?q=harbour", "/?q=deploys"):
        page = asking.get(path).text
        assert len(page) < 100_000, path
        assert " …</a></p>" in page
    assert "<mark>harbour</mark>" in asking.get("/?q=harbour").text
    for path in (f"/memories/{made.id}", "/review", "/conversations/talk"):
        assert "and more and more" in asking.get(path).text
    shown = asking.get("/?q=harbour&format=json").json()["results"]
    assert len(shown[0]["content"]) > 90_000


def test_the_review_shows_current_memories_that_agree_or_differ(
    site: Site, asking: httpx.Client
) -> None:
    site.memories.create("The port is 8080 <b>", pending=True)
    site.memories.create("Deploys happen on Fridays", pending=True)
    port = site.memories.create("The port is 9090 <b>")
    site.memories.create("Deploys happen on Fridays.")
    page = asking.get("/review").text
    same, differs = page.index(">says the same thing</span>"), page.index(">differs: numbers: ")
    assert "Deploys happen on Fridays.</a>" in page[same:differs]
    assert f'/memories/{port.id}">The port is 9090 &lt;b&gt;</a>' in page[differs:]


def test_a_conversation_without_a_title_is_named_once(site: Site, asking: httpx.Client) -> None:
    site.memories.add_turns("stand-up", ["hello"])
    site.memories.add_turns("other", ["hello"])
    site.memories.update_conversation("other", title="Monday")
    page = asking.get("/conversations").text
    assert page.count("stand-up</") == 1
    assert ("Monday</a>" in page, "other</span>" in page) == (True, True)


def test_an_unfinished_day_is_marked(site: Site, asking: httpx.Client) -> None:
    site.memories.create("One thing")
    assert (
        "<b>2099-01-01</b> is not over yet: this is how it is so far."
        in asking.get("/?as_of=2099-01-01").text
    )


def test_an_unknown_address_returns_a_page_to_browsers_and_json_to_programs(
    asking: httpx.Client,
) -> None:
    for path in ("/nowhere", "/tags/", "/memories/", "/conversations/a/b"):
        page = asking.get(path, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
        assert (page.status_code, page.headers["content-type"]) == (
            404,
            "text/html; charset=utf-8",
        ), path
        assert "<h1>Not found</h1>" in page.text, path
        assert 'href="/"' in page.text, path
        for answer in (
            asking.get(path),
            asking.post(path),
            asking.get(path.replace("/", "/api/", 1)),
        ):
            found = answer.status_code, answer.headers["content-type"]
            assert found == (404, "application/problem+json"), answer.text


def test_the_page_shows_that_a_memory_is_no_longer_true(
    site: Site, asking: httpx.Client, tmp_path: Path
) -> None:
    top = tmp_path / "shop"
    top.mkdir()
    (top / "compose.yml").write_text("port: 5433\n")
    subprocess.run(["git", "init", "-q", str(top)], check=True, timeout=60)
    project = identify(top)
    assert project is not None
    draft = {"content": "Postgres is on 5433, see compose.yml", "tags": {"project": project.name}}
    stale = asking.post("/api/memories", json=draft).json()["id"]
    (top / "compose.yml").write_text("port: 5434\n")
    page = asking.get(f"/memories/{stale}").text
    assert "compose.yml no longer contains 5433" in page and "Still true" in page
    assert stale in asking.get("/", params={"where": "verdict = changed"}).text


def test_the_plot_of_a_search_counts_its_results(site: Site, asking: httpx.Client) -> None:
    for day, text in ((1, "The kettle is red"), (3, "The violin is old"), (8, "A kettle is blue")):
        site.memories.create(text, created_at=datetime(2026, 5, day, 12, tzinfo=UTC), force=True)
    assert re.findall(r"(2026-05-\d\d: \d) results", asking.get("/?q=kettle").text) == [
        f"2026-05-0{day}: {int(day in (1, 8))}" for day in range(1, 9)
    ]
    assert count_by_label(["2026-05-04T10:00:00Z"], ["2026-05-03", "2026-05-06"]) == [
        ("2026-05-03", 0), ("2026-05-06", 1)
    ]  # fmt: skip


def test_a_search_says_that_the_question_names_the_speaker(
    site: Site, asking: httpx.Client
) -> None:
    for speaker in ("Ann", "Tom"):
        site.memories.add_turns("talk", [TurnDraft(f"The kettle is {speaker}", speaker=speaker)])
    page = asking.get("/?q=what+did+Ann+say+about+the+kettle").text
    assert page.count("Your question names the speaker.") == 1


def test_the_page_of_a_missing_memory_says_so_and_does_not_update(asking: httpx.Client) -> None:
    page = asking.get("/memories/01a2039c-5da3-7006-a22c-42bf2a5ea2e9").text
    assert "<h1>No such memory</h1>" in page
    assert "data-changes" not in page  # an error page doesn't update itself
    page = asking.get("/memories/01a2039c-5da3-7006-a22c-42bf2a5ea2e9?as_of=garbage").text
    assert "<h1>Bad request</h1>" in page
    assert "data-changes" in asking.get("/").text


def test_a_memory_shows_when_to_confirm_it_again(site: Site, asking: httpx.Client) -> None:
    made = site.memories.create("Tea is at four", recheck="90d").id
    assert "recheck days 90" in asking.get(f"/memories/{made}").text
