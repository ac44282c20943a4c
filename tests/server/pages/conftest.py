"""A server with the pages on localhost, and a real browser (Debian's Chromium, if it is
installed).
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from live_server import without_mcp
from live_site import Site, serving

if TYPE_CHECKING:
    import httpx


@pytest.fixture(scope="module", autouse=True)
def mcp() -> Iterator[None]:
    """Serve no MCP, since no page needs it."""
    with without_mcp():
        yield


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A server with an empty memory that is searched only by words."""
    with serving(tmp_path) as started:
        yield started


@pytest.fixture
def asking(site: Site) -> Iterator["httpx.Client"]:
    """A client that sends the site's token."""
    import httpx

    headers = {"Authorization": f"Bearer {site.token}"}
    with httpx.Client(base_url=site.url, headers=headers, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start Chromium once for the tests of a file; its driver runs an event loop that others can't
    share.
    """
    found = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if found is None:
        pytest.skip("no Chromium is installed; Debian has it as the package chromium")
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="the package playwright is not installed"
    )
    with sync_api.sync_playwright() as started:
        yield started.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )


@pytest.fixture
def problems() -> list[str]:
    """The errors of the browser: failing scripts, and violations of the content security policy."""
    return []


@pytest.fixture
def opened(site: Site, browser: Any, problems: list[str]) -> Iterator[Callable[..., Any]]:
    """Return a function that opens a page as a signed-in reader; each call uses a new browser."""
    contexts = []

    def open_page(path: str = "/", **settings: Any) -> Any:
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss())
        )
        page.on(
            "console",
            lambda said: problems.append(said.text) if "Content Security" in said.text else None,
        )
        if settings.get("java_script_enabled", True):
            page.goto(f"{site.url}/login?next={path}#{site.token}")
            page.wait_for_url(site.url + path)
        else:
            page.set_extra_http_headers({"Authorization": f"Bearer {site.token}"})
            page.goto(site.url + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
