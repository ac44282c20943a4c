"""What a server counts: requests by route and status, how long they took, and what waits; no content, no names."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOG = "memories.log"  # in a scope: what routes tell for the log, their path and the id of the token
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)  # seconds
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})


class Gauge(NamedTuple):
    """A number that is read when it is asked for."""

    name: str
    kind: str
    help: str
    read: Callable[[], float]


class Metrics:
    """Counts requests; `text` is what Prometheus reads."""

    def __init__(self, noted: Callable[[], None] = lambda: None, gauges: tuple[Gauge, ...] = ()) -> None:
        """Begin at 0.

        Args:
            noted: Called for each request.
            gauges: What else is shown.
        """
        self._gauges, self._noted = gauges, noted
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str, int], int] = {}
        self._seconds: dict[str, list[float]] = {}  # of a route: how many took up to each bound, all, their sum

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._noted()
        with self._lock:
            key = method if method in _METHODS else "other", route, status
            self._counts[key] = self._counts.get(key, 0) + 1
            found = self._seconds.setdefault(route, [0.0] * (len(_BUCKETS) + 2))
            for at, bound in enumerate(_BUCKETS):
                found[at] += seconds <= bound
            found[-2] += 1
            found[-1] += seconds

    def text(self) -> str:
        """Return all numbers in the text format of Prometheus, version 0.0.4."""
        lines = ["# HELP memories_requests_total HTTP requests.", "# TYPE memories_requests_total counter"]
        with self._lock:
            for (method, route, status), count in sorted(self._counts.items()):
                labels = _labels({"method": method, "route": route, "status": str(status)})
                lines.append(f"memories_requests_total{labels} {count}")
            lines += ["# HELP memories_request_seconds Time to answer.", "# TYPE memories_request_seconds histogram"]
            for route, found in sorted(self._seconds.items()):
                for bound, took in zip((*map(str, _BUCKETS), "+Inf"), found, strict=False):
                    lines.append(f"memories_request_seconds_bucket{_labels({'route': route, 'le': bound})} {took:g}")
                lines.append(f"memories_request_seconds_count{_labels({'route': route})} {found[-2]:g}")
                lines.append(f"memories_request_seconds_sum{_labels({'route': route})} {found[-1]:.6f}")
        for gauge in self._gauges:
            lines += [f"# HELP {gauge.name} {gauge.help}", f"# TYPE {gauge.name} {gauge.kind}"]
            lines.append(f"{gauge.name} {gauge.read():g}")
        return "\n".join(lines) + "\n"


class _Lines:
    """Writes lines to standard error, those of one turn of the event loop at once: a write lets other threads go on."""

    def __init__(self) -> None:
        self._waiting: list[str] = []

    def __call__(self, line: str) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._write)
        self._waiting.append(line)

    def _write(self) -> None:
        lines, self._waiting = self._waiting, []
        sys.stderr.write("".join(f"{line}\n" for line in lines))


class Logged:
    """Counts each request to an application, and logs it as a line of JSON."""

    def __init__(self, app: ASGIApp, metrics: Metrics, write: Callable[[str], object] | None = None) -> None:
        self._app, self._metrics = app, metrics
        self._write = write or _Lines()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 499  # the client left
        told: dict[str, Any] = {}
        scope[LOG] = told

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            seconds = time.perf_counter() - began
            route = str(told.get("route", "other"))
            self._metrics.note(scope["method"], route, status, seconds)
            method = scope["method"] if scope["method"] in _METHODS else "other"
            line = {
                "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "method": method,
                "route": route,
                "status": status,
                "ms": round(seconds * 1000, 1),
                "token": told.get("token"),
            }
            self._write(json.dumps(line))


class Named(Route):
    """A route that the log and the counts name by its path."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        scope.get(LOG, {})["route"] = self.path
        await super().handle(scope, receive, send)


def _labels(values: Mapping[str, str]) -> str:
    told = (
        (name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for name, value in values.items()
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in told) + "}"
