"""Pages of an earlier day: every view, every link, and the JSON of each view."""

import html
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from live_site import Site, serving
from memories import Memories, TurnDraft
from memories.server.pages.request import Past, end_of

DAY = timedelta(days=1)
T0 = datetime(2026, 5, 1, 12, tzinfo=UTC)
THEN = "as_of=2026-05-04"  # the day after the second version
_LINK = re.compile(r'<a [^>]*href="([^"]*)"[^>]*>(.*?)</a>', re.DOTALL)


def client_of(site: Site) -> httpx.Client:
    """Return a client with a site's token."""
    return httpx.Client(
        base_url=site.url, headers={"Authorization": f"Bearer {site.token}"}, timeout=60
    )


def fill_site(site: Site) -> str:
    """Store a memory from a conversation, with versions of 1, 3 and 9 May; return its id."""
    clock = T0
    with Memories(config=site.memories.config, embedder="none", clock=lambda: clock) as memories:
        memories.add_turns(
            "talk", [TurnDraft(f"said {day}", created_at=T0 + day * DAY) for day in (0, 1, 20)]
        )
        made = memories.create(
            "Deploys happen on Mondays", tags={"type": "fact"}, source="talk#1"
        ).memory
        assert made
        memories.create("The harbour opens at six", pending=True)
        clock = T0 + 2 * DAY
        memories.update(made.id, "Deploys happen on Tuesdays")
        clock = T0 + 8 * DAY
        memories.update(made.id, "Deploys happen on Fridays", tags={"type": "decision"})
        clock = T0 + 9 * DAY
        memories.create("The kettle is old", tags={"type": "note"})
        memories.add_turns("later", ["much later"])
    return made.id


@pytest.fixture(scope="module")
def past(mcp: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, str]]:
    """A client of a filled site, and the id of its memory; no test changes them."""
    with serving(tmp_path_factory.mktemp("past")) as site, client_of(site) as client:
        yield client, fill_site(site)


@pytest.fixture
def asking(past: tuple[httpx.Client, str]) -> httpx.Client:
    """A client of the filled site."""
    return past[0]


@pytest.fixture
def memory_id(past: tuple[httpx.Client, str]) -> str:
    """The id of the filled site's memory."""
    return past[1]


@pytest.fixture
def own_client(site: Site) -> Iterator[httpx.Client]:
    """A client of a site that a test may change."""
    with client_of(site) as client:
        yield client


def text_of(answer: httpx.Response) -> str:
    """Return a page's text, without markup."""
    main = answer.text.partition("<main")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", main)).split())


def test_a_memory_is_shown_as_it_was_and_as_it_is_today(
    asking: httpx.Client, memory_id: str
) -> None:
    said = text_of(asking.get(f"/memories/{memory_id}?{THEN}"))
    assert "As it was on 2026-05-04 . Today it says: Deploys happen on Fridays" in said
    assert "type fact" in said
    assert "type decision" not in said
    assert "version 2" in said
    assert "Mondays Tuesdays" in said  # the history, word by word
    assert "until 9 May" not in said
    assert "until 3 May" in said
    assert "read" not in said.partition("namespace")[2].partition(memory_id)[0]


def test_pages_of_the_past_offer_no_changes(asking: httpx.Client, memory_id: str) -> None:
    failures = []
    for path in (
        f"/memories/{memory_id}?",
        "/tags?",
        "/tags?key=type&",
        "/namespaces?",
        "/review?",
        "/?",
    ):
        page = asking.get(f"{path}{THEN}").text.partition("<main")[2]
        if "Nothing can be changed here" not in page:
            failures.append(f"{path} does not say that it can't be changed")
        ways = ("data-do", "data-batch", 'id="edit"', 'type="file"', "/api/")
        failures += [f"{path} has {way}" for way in ways if way in page]
    assert failures == []
    assert "data-do" in asking.get(f"/memories/{memory_id}").text.partition("<main")[2]


@pytest.mark.thorough
def test_every_link_on_the_pages_of_a_past_day_keeps_the_day(
    asking: httpx.Client, memory_id: str
) -> None:
    seen: set[str] = set()
    ways = [f"/?{THEN}", f"/?q=deploys&{THEN}", f"/memories/{memory_id}?{THEN}"]
    while ways:
        path = ways.pop()
        if path in seen or len(seen) > 80:
            continue
        seen.add(path)
        answer = asking.get(path)
        assert answer.status_code == 200, path
        assert "much later" not in answer.text
        assert "kettle" not in answer.text, path
        for address, name in _LINK.findall(answer.text):
            target = html.unescape(address)
            if target.startswith("#") or "now" in name:
                continue
            at = str(httpx.URL(path).join(target))
            assert "as_of=" in target, (path, target)
            if THEN in target:
                ways.append(at.partition("#")[0])
    assert {path.partition("?")[0].split("/")[1] for path in seen} == {
        "", "agents", "map", "memories", "conversations", "review", "tags", "namespaces", "status"
    }  # fmt: skip


def test_back_to_now_leads_to_the_same_view(asking: httpx.Client, memory_id: str) -> None:
    for path in (
        f"/memories/{memory_id}?",
        "/tags?key=type&",
        "/conversations/talk?start=0&",
        "/review?",
        "/status?",
    ):
        page = asking.get(f"{path}{THEN}").text
        (back,) = [target for target, name in _LINK.findall(page) if name == "Back to now"]
        now = asking.get(str(httpx.URL(path).join(html.unescape(back))))
        assert (now.status_code, "Nothing can be changed here" in now.text) == (200, False)
        assert "as_of" not in str(now.url)


SAME = {
    "/?limit=30": "/api/memories?limit=30",
    "/?q=deploys&kind=memory": "/api/memories?q=deploys&limit=30",
    "/memories/{one}?": "/api/memories/{one}?",
    "/conversations?": "/api/conversations?",
    "/conversations/talk?start=0": "/api/conversations/talk/turns?start=0",
    "/tags?": "/api/tags?",
    "/tags?key=type": "/api/tags/type?",
    "/namespaces?": "/api/namespaces?",
    "/review?": "/api/review?",
    "/status?": "/api/status?",
}


@pytest.mark.parametrize("then", [THEN, "as_of=2026-04-01"])
def test_a_past_view_as_json_equals_the_api_response(
    asking: httpx.Client, memory_id: str, then: str
) -> None:
    for path, api in SAME.items():
        shown = asking.get(f"{path}&format=json&{then}".format(one=memory_id))
        said = asking.get(f"{api}&{then}".format(one=memory_id))
        if path.startswith("/conversations/") and then != THEN:
            assert (shown.status_code, said.json()["count"]) == (404, 0)
            continue
        assert shown.status_code == said.status_code, path
        if said.status_code == 400:
            assert "as_of" in shown.json()["detail"], path
        else:
            assert shown.json() == said.json(), path


def test_a_memory_not_yet_stored_on_that_day_links_to_its_first_version(
    asking: httpx.Client, memory_id: str
) -> None:
    answer = asking.get(f"/memories/{memory_id}?as_of=2026-04-30")
    assert answer.status_code == 404
    assert (
        "Not stored yet on 2026-04-30 This memory did not exist until 1 May 2026 12:00 UTC."
        in text_of(answer)
    )
    links = {name: html.unescape(target) for target, name in _LINK.findall(answer.text)}
    first = asking.get(links["See its first version"])
    assert "Deploys happen on Mondays" in text_of(first)
    assert "As it was on 2026-05-01 12:00:00 UTC" in text_of(first)
    assert "Fridays" in text_of(asking.get(links["See it as it is now"]))


def test_a_memory_that_was_waiting_on_that_day_is_not_found(
    site: Site, own_client: httpx.Client
) -> None:
    memory_id = fill_site(site)
    (waits,) = site.memories.review.page().memories
    answer = own_client.get(f"/memories/{waits.id}?{THEN}")
    assert (
        answer.status_code,
        "It was held for review, and was not accepted" in answer.text,
    ) == (404, True)
    assert "See its first version" not in answer.text
    site.memories.review.reject([waits.id])
    assert own_client.get(f"/memories/{waits.id}?{THEN}").status_code == 404
    assert own_client.get(f"/memories/{memory_id}?as_of=2099-01-01").status_code == 200


def test_a_conversation_that_had_not_begun_says_when_it_began(
    asking: httpx.Client, memory_id: str
) -> None:
    assert memory_id
    answer = asking.get("/conversations/talk?as_of=2026-04-30")
    assert (answer.status_code, "is from 1 May 2026 12:00 UTC" in text_of(answer)) == (404, True)
    then = text_of(asking.get(f"/conversations/talk?{THEN}"))
    assert "2 turns" in then
    assert "said 20" not in then


def test_a_forgotten_memory_is_gone_from_all_days(site: Site, own_client: httpx.Client) -> None:
    memory_id = fill_site(site)
    site.memories.forget(memory_id)
    answer = own_client.get(f"/memories/{memory_id}?{THEN}")
    assert (answer.status_code, "Memory not found" in answer.text) == (404, True)
    for path in (f"/?{THEN}", f"/tags?{THEN}", f"/?q=deploys&{THEN}"):
        assert "Tuesdays" not in own_client.get(path).text


def test_a_past_version_says_what_happened_to_the_memory_later(
    site: Site, own_client: httpx.Client
) -> None:
    memory_id, memories = fill_site(site), site.memories

    def replace() -> None:
        memories.restore(memory_id)
        memories.create("None at all", supersedes=memory_id)

    changes: dict[str, Callable[[], object]] = {
        "It says the same thing today.": lambda: memories.restore(memory_id, version=2),
        "Today it has different tags.": lambda: memories.update(
            memory_id, tags={"type": "decision"}
        ),
        "Today it is deleted.": lambda: memories.delete(memory_id),
        "Today another memory has replaced it.": replace,
    }
    for sentence, change in changes.items():
        change()
        assert sentence in text_of(own_client.get(f"/memories/{memory_id}?{THEN}"))


def test_a_memory_that_was_deleted_on_that_day_says_so(
    site: Site, own_client: httpx.Client
) -> None:
    memory_id = fill_site(site)
    moment = T0 + 20 * DAY
    with Memories(config=site.memories.config, embedder="none", clock=lambda: moment) as memories:
        memories.delete(memory_id)
        moment += DAY
        memories.restore(memory_id)
    then = text_of(own_client.get(f"/memories/{memory_id}?as_of=2026-05-21"))
    assert "This memory was deleted at that time." in then
    assert "Fridays" in then
    assert "was deleted" not in text_of(own_client.get(f"/memories/{memory_id}?as_of=2026-05-22"))


def test_a_correction_is_shown_from_its_day_onwards(site: Site, own_client: httpx.Client) -> None:
    moment = T0
    with Memories(config=site.memories.config, embedder="none", clock=lambda: moment) as memories:
        older = memories.create("The office is at 12 Main Street", key="office").memory
        moment += 4 * DAY
        newer = memories.create("The office is at 40 Harbour Road").memory
        moment += 4 * DAY
        assert newer
        assert older
        memories.update(newer.id, "The office is at 41 Harbour Road")
    assert "corrects it" not in text_of(own_client.get(f"/memories/{older.id}?{THEN}"))
    then = text_of(own_client.get(f"/memories/{older.id}?as_of=2026-05-06"))
    assert "Another memory corrects it" in then
    assert "40 Harbour Road" in then
    assert "41 Harbour Road" not in then


def test_health_and_review_say_that_they_show_the_present(
    asking: httpx.Client, memory_id: str
) -> None:
    assert memory_id
    health, review = (text_of(asking.get(f"{path}?{THEN}")) for path in ("/status", "/review"))
    assert "1 memories 2 conversation turns" in health
    assert "Earlier states of the store" in health
    assert "Health as it is now" in health
    assert "only the present is shown" in review
    assert "harbour" not in review
    assert "Review (" not in asking.get(f"/?{THEN}").text
    assert "(1)" in asking.get("/").text.partition("<main")[0]


def test_invalid_parameters_are_not_copied_into_links(asking: httpx.Client) -> None:
    page = asking.get("/tags?as_of=someday&namespace=No%20Name").text
    assert "someday" not in page.partition("<header")[2].partition("</header")[0]
    assert "No+Name" not in page
    kept = asking.get("/tags?as_of=someday&namespace=ann").text
    assert '/tags?namespace=ann"' in kept


def test_an_empty_day_says_that_nothing_had_been_stored(
    asking: httpx.Client, memory_id: str
) -> None:
    assert memory_id
    said = text_of(asking.get("/?as_of=2026-04-01"))
    assert "Nothing had been stored by then." in said
    assert "memory create" not in said


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that sets the time zone of this machine."""

    def choose(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield choose
    monkeypatch.undo()
    time.tzset()


def test_a_past_day_is_shown_as_a_date_and_a_past_time_in_utc(zone: Callable[[str], None]) -> None:
    assert Past.of("2026-05-01T23:59:59.999Z").name == "2026-05-01"
    assert Past.of("2026-05-01T10:00Z").name == "2026-05-01 10:00:00 UTC"
    assert (Past.of("2099-05-01").name, Past.of("2099-05-01").is_over) == ("2099-05-01", False)
    zone("America/New_York")
    assert Past.of("2026-05-01").name == "2026-05-01"
    assert end_of("2026-05-01") == "2026-05-01T23:59:59.999Z"
    zone("UTC")
    assert end_of("2026-05-01") == "2026-05-01"


def test_filters_are_shown_and_can_be_removed(asking: httpx.Client, memory_id: str) -> None:
    assert memory_id
    page = asking.get(f"/?tag=type%3Dfact&trust=agent&{THEN}")
    links = [
        html.unescape(target)
        for target, name in _LINK.findall(page.text)
        if "Remove the filter" in name
    ]
    assert links == [f"?trust=agent&{THEN}", f"?tag=type%3Dfact&{THEN}"]
    assert "Only" in text_of(page)
    nothing = text_of(asking.get("/?tag=type%3Dnever"))
    assert "Nothing matches. Without type=never" in nothing
    assert "memory create" not in nothing
