"""The machine's owner gets verdicts over HTTP and on the page; tokens get none."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from memories.identity.project import identify

Token = Callable[..., dict[str, str]]


@pytest.fixture
def project(tmp_path: Path) -> tuple[str, Path]:
    """The name and folder of a repository in the user's register."""
    top = tmp_path / "shop"
    top.mkdir()
    (top / "compose.yml").write_text("port: 5433\n")
    subprocess.run(["git", "init", "-q", str(top)], check=True, timeout=60)
    identified = identify(top)
    assert identified is not None
    return identified.name, top


@pytest.fixture
def stale(owner: TestClient, project: tuple[str, Path]) -> str:
    """Store a memory about a file that is changed afterwards; return its id."""
    name, top = project
    answer = owner.post(
        "/api/memories",
        json={"content": "Postgres is on 5433, see compose.yml", "tags": {"project": name}},
    ).json()
    assert answer["anchors"] == ["compose.yml::5433"]
    (top / "compose.yml").write_text("port: 5434\n")
    return str(answer["id"])


def test_only_the_owner_gets_verdicts(owner: TestClient, token: Token, stale: str) -> None:
    verdict = owner.get(f"/api/memories/{stale}").json()
    assert verdict["verdict"] == "changed"
    assert verdict["verdict_reason"] == "compose.yml no longer contains 5433"
    [hit] = owner.get("/api/memories", params={"q": "postgres port"}).json()["results"]
    assert hit["verdict"] == "changed"
    [listed] = owner.get("/api/memories", params={"where": "verdict = changed"}).json()["results"]
    assert listed["id"] == stale

    headers = token("*:admin")
    for path in (f"/api/memories/{stale}", "/api/memories?q=postgres", "/api/memories"):
        answer = owner.get(path, headers=headers)
        assert answer.status_code == 200
        assert "verdict" not in answer.text and "no longer" not in answer.text
    refused = owner.get("/api/memories", params={"where": "verdict = changed"}, headers=headers)
    assert refused.status_code == 400
    refused = owner.post("/api/forget", json={"where": "verdict = changed"})
    assert refused.status_code == 400


def test_confirming_a_memory_verifies_it_again(owner: TestClient, stale: str) -> None:
    confirmed = owner.post(f"/api/memories/{stale}/confirm", json={}).json()
    assert (confirmed["version"], confirmed["verdict"]) == (2, "verified")
    assert owner.get("/api/memories", params={"where": "verdict = changed"}).json()["count"] == 0


def test_a_corrected_memory_that_is_confirmed_is_current(owner: TestClient) -> None:
    older, newer = (
        owner.post("/api/memories", json={"content": f"The API listens on port {port}"}).json()[
            "id"
        ]
        for port in (6379, 6380)
    )
    confirmed = owner.post(f"/api/memories/{older}/confirm", json={}).json()
    assert (confirmed["corrects"], confirmed.get("corrected_by")) == (newer, None)
    current = (
        "it is current again and corrects {0}; if that one is still true, run: memory confirm {0}"
    )
    assert confirmed["hint"] == current.format(newer)
    updated = owner.patch(
        f"/api/memories/{newer}", json={"content": "The API listens on port 6390"}
    ).json()
    assert (updated["corrects"], updated.get("corrected_by")) == (older, None)
    assert updated["hint"] == current.format(older)
    unchanged = owner.patch(f"/api/memories/{newer}", json={"content": updated["content"]}).json()
    assert unchanged["hint"] == "nothing was changed: the memory already says this"


def test_a_repeated_confirmation_does_not_claim_that_nothing_changed(
    owner: TestClient,
) -> None:
    created = owner.post("/api/memories", json={"content": "The office is in Rome"}).json()["id"]
    headers = {"Idempotency-Key": "confirm-1"}
    for _ in range(2):
        path = f"/api/memories/{created}/confirm"
        confirmed = owner.post(path, json={}, headers=headers).json()
        assert (confirmed["version"], "hint" in confirmed) == (2, False)
