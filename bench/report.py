"""Summarizes and prints results: percentiles, and tables that go into `docs/benchmarks.md`
unchanged.
"""

import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any


def heading(title: str) -> None:
    """Print the title of a table."""
    print(f"\n### {title}\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a markdown table; the first column holds names, the others numbers."""
    print(f"| {' | '.join(columns)} |")
    print(f"|---|{'--:|' * (len(columns) - 1)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")


def note(text: str) -> None:
    """Print a sentence under a table."""
    print(f"\n{text}")


def environment() -> str:
    """Return the kind of machine and the time of the measurement, without the machine's name."""
    memory = (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
        if hasattr(os, "sysconf")
        else 0
    )
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"{memory:.0f} GB, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} when it began"
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values do not exceed, by the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def milliseconds(call: Callable[[], Any]) -> float:
    """Return the duration of a call."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def p50_p95(values: Sequence[float]) -> tuple[str, str]:
    """Return the median and the 95th percentile of milliseconds, as text."""
    return f"{percentile(values, 0.5):.2f}", f"{percentile(values, 0.95):.2f}"
