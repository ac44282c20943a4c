"""Metrics and logs contain numbers and routes, never the content of requests."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from memories import load_config
from memories.identity import tokens
from memories.server.api.middleware import Gauge, Logged, Metrics
from memories.server.app import Options, build


@pytest.fixture
def lines() -> list[str]:
    """The log of the server."""
    return []


@pytest.fixture
def metrics() -> Metrics:
    """The metrics of the server."""
    return Metrics(list, lambda: [Gauge("memories_ready", "gauge", "Whether it is.", 1.0)])


@pytest.fixture
def asked(tmp_path: Path, lines: list[str], metrics: Metrics) -> Iterator[TestClient]:
    """A client of a server that counts and logs."""
    config = load_config({"store": f"sqlite:///{tmp_path}/m.db", "embedder": "fake"})
    with TestClient(
        Logged(build(config, Options()), metrics, lines.append), "http://localhost"
    ) as client:
        yield client


def test_a_request_is_logged_in_one_line_without_content(
    asked: TestClient, lines: list[str]
) -> None:
    asked.get(
        "/api/memories",
        params={"q": "my secret question"},
        headers={"authorization": "Bearer mem_secret"},
    )
    asked.get("/secret-path")
    told: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [(each["method"], each["route"], each["status"]) for each in told] == [
        ("GET", "/api/memories", 401),
        ("GET", "other", 404),
    ]
    assert "secret" not in "".join(lines)
    assert set(told[0]) == {"at", "method", "route", "status", "ms", "token"}


def test_each_route_is_named_by_its_template_and_each_token_by_its_id(
    asked: TestClient, lines: list[str], home: Path
) -> None:
    secret, token = tokens.create(home, "ann", {"ann": "admin"}, None)
    headers = {"authorization": f"Bearer {secret}"}
    for path in ("/health", "/openapi.json", "/api/me", "/nowhere"):
        asked.get(path, headers=headers)
    for path in ("/login", "/store/v1/secret", "/mcp"):
        asked.post(path, json={}, headers=headers)
    told = [json.loads(line) for line in lines]
    assert [(each["route"], each["token"]) for each in told] == [
        ("/health", None), ("/openapi.json", None), ("/api/me", token.id), ("other", None),
        ("/login", None),
        ("/store/v1/{method}", token.id), ("/mcp", token.id),
    ]  # fmt: skip
    assert "secret" not in "".join(lines)


def test_metrics_have_the_prometheus_text_format(asked: TestClient, metrics: Metrics) -> None:
    asked.get("/health")
    asked.get("/api/memories")
    asked.request("EVIL\x22", "/health")
    text = metrics.text()
    assert 'memories_requests_total{method="GET",route="/api/memories",status="401"} 1' in text
    assert 'memories_request_seconds_bucket{route="/api/memories",le="+Inf"} 1' in text
    assert 'memories_request_seconds_count{route="/api/memories"} 1' in text
    assert text.endswith(
        "# HELP memories_ready Whether it is.\n# TYPE memories_ready gauge\nmemories_ready 1\n"
    )
    assert "EVIL" not in text
    named = [
        line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")
    ]
    typed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {
        name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in named
    } == typed


def test_labels_are_escaped_and_buckets_are_cumulative() -> None:
    metrics = Metrics(list, list)
    for seconds in (0.001, 0.02, 0.3, 20.0):
        metrics.note("GET", 'a"b\\c\nd', 200, seconds)
    text = metrics.text()
    assert r'route="a\"b\\c\nd"' in text
    counts = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if "_bucket" in line]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 4)
