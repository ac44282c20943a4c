"""How the hooks are: when each last ran, what failed, and what waits in the inbox for too long."""

import os
import time
from typing import Any

from memories.config import registers
from memories.core.times import from_millis, to_iso
from memories.errors import ConfigError
from memories.hooks import inbox, place, stamps
from memories.identity import registry
from memories.stores.records import Finding

_LONG_SECONDS = 3_600  # that a line may wait until doctor tells


def hooks(home: str) -> list[dict[str, Any]]:
    """Return what is known of each hook that ever ran."""
    return [
        {
            "host": stamp.host,
            "event": stamp.event,
            "last_run_at": _when(stamp.ran),
            "run_count": stamp.runs,
            "failure_count": stamp.failures,
            "last_failed_at": _when(stamp.failed),
            "reason": stamp.why or None,
        }
        for stamp in stamps.known(home)
    ]


def examine(home: str) -> tuple[dict[str, Any], list[Finding]]:
    """Return how the hooks are, and what is wrong with them; nothing where none ever ran."""
    facts: dict[str, Any] = {}
    findings: list[Finding] = []
    try:
        registry.aliases(registers())
    except ConfigError as exc:  # nothing is stored until then, and hooks of a project may be off
        findings.append(Finding(str(exc), "without it, projects have their own names only"))
    for each in hooks(home):
        name = f"{each['host']} {each['event']}"
        failed = f", {each['failure_count']} failed" if each["failure_count"] else ""
        facts.setdefault("hooks", {})[name] = (
            f"last ran {each['last_run_at']}, {each['run_count']} times{failed}"
        )
        if each["last_failed_at"] is not None and each["last_failed_at"] == each["last_run_at"]:
            what = f"the hook {each['event']} of {each['host']} failed when it last ran: {each['reason']}"
            findings.append(
                Finding(
                    what,
                    f"read {os.path.join(home, place.LOG)}; memory capture status shows all hooks",
                )
            )
    if facts or inbox.size(home):
        facts["inbox_bytes"] = inbox.size(home)
    oldest = inbox.oldest(home)
    if oldest is not None and time.time() - oldest > _LONG_SECONDS:
        since = to_iso(from_millis(int(oldest * 1000)))
        what = (
            f"{facts['inbox_bytes']} bytes that hooks captured are not stored, some since {since}"
        )
        findings.append(Finding(what, "run: memory capture flush, which says why"))
    findings += [
        Finding(
            f"what a hook captured could not be stored and lies in {file}",
            f"read it, then run: rm {file}",
        )
        for file in inbox.refused(home)
    ]
    return facts, findings


def _when(millis: int) -> str | None:
    return to_iso(from_millis(millis)) if millis else None
