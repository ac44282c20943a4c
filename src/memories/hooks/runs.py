"""Records of hook runs: each hook's last run, failures and their reasons, and a log.

There is a small file for each hook of each host, and a log of limited size. Neither contains text
from a session. This module also provides the report for `memory doctor` and the figures for `memory
stats`. These functions import what they need only when called, so that hooks start quickly.
"""

import json
import os
import time

from memories.hooks import files, inbox

TYPE_CHECKING = False  # importing `typing` for this takes 3 ms
if TYPE_CHECKING:
    from typing import Any

    from memories.stores.records import Finding

_MAX_REASON = 300  # maximum length of a failure's reason, in characters
_MAX_RUN_BYTES = 4_096
_LONG_WAIT_SECONDS = 3_600  # doctor reports events that have waited longer than this


class Run:
    """The last run of a host's hook.

    Attributes:
        host: The host.
        event: The event.
        ran_ms: When the hook last ran, in milliseconds since 1970; 0 if never.
        runs: How many times the hook has run.
        failures: How many times the hook has failed.
        failed_ms: When the hook last failed, in milliseconds since 1970; 0 if never.
        error: The reason for the last failure; empty if the hook has never failed.
    """

    def __init__(self, host: str, event: str, data: bytes) -> None:
        """Read a hook's file; a damaged file is treated as empty."""
        self.host, self.event = host, event
        try:
            fields = json.loads(data)
        except ValueError:
            fields = {}
        if not isinstance(fields, dict):
            fields = {}
        self.ran_ms = _integer(fields.get("ran"))
        self.runs = _integer(fields.get("runs"))
        self.failures = _integer(fields.get("failures"))
        self.failed_ms = _integer(fields.get("failed"))
        self.error = str(fields.get("why", ""))

    def encode(self) -> bytes:
        """Return the content of the run's file, with the key names that earlier versions used."""
        fields = {
            "ran": self.ran_ms,
            "runs": self.runs,
            "failures": self.failures,
            "failed": self.failed_ms,
            "why": self.error,
        }
        return json.dumps(fields).encode()


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0


def record_run(home: str, host: str, event: str, error: str = "") -> None:
    """Record that a hook ran.

    Args:
        home: The home folder.
        host: The host.
        event: The event.
        error: Why it failed; empty if it succeeded.
    """
    try:
        _update_run(home, host, event, error)
    except OSError:  # the run can't be recorded, but the agent still gets its response
        return
    if error:
        log(home, f"{host} {event}: {error}")


def _update_run(home: str, host: str, event: str, error: str) -> None:
    path = os.path.join(files.private_folder(home, files.HOOKS), f"{host}.{event}")
    fd = files.open_private(path, os.O_RDWR)
    try:
        files.lock(fd)
        run = Run(host, event, os.read(fd, _MAX_RUN_BYTES))
        run.ran_ms = int(time.time() * 1000)
        run.runs += 1
        if error:
            run.failures += 1
            run.failed_ms, run.error = run.ran_ms, error[:_MAX_REASON]
        os.lseek(fd, 0, os.SEEK_SET)
        os.ftruncate(fd, os.write(fd, run.encode()))
    finally:
        os.close(fd)


def log(home: str, message: str) -> None:
    """Append a line to the log, unless it can't be written.

    A full log is renamed, and replaces the previously renamed one.
    """
    try:
        _append_to_log(home, message)
    except OSError:
        return  # nothing else can be done: `memory doctor` reports a full or read-only disk


def _append_to_log(home: str, message: str) -> None:
    path = os.path.join(files.private_folder(home), files.LOG)
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = f"{moment} {' '.join(message.split())[:_MAX_REASON]}\n"
    fd = files.open_private(path, os.O_WRONLY | os.O_APPEND)
    try:
        if os.fstat(fd).st_size > files.MAX_LOG_BYTES:
            os.replace(path, f"{path}.1")
            os.close(fd)
            fd = files.open_private(path, os.O_WRONLY | os.O_APPEND)
        os.write(fd, line.encode("utf-8", "backslashreplace"))
    finally:
        os.close(fd)


def read_runs(home: str) -> list[Run]:
    """Return the last run of each hook that has ever run, ordered by host and event."""
    try:
        names = sorted(os.listdir(os.path.join(home, files.HOOKS)))
    except FileNotFoundError:
        return []
    runs = []
    for name in names:
        host, dot, event = name.partition(".")
        if dot:
            with open(os.path.join(home, files.HOOKS, name), "rb") as stream:
                runs.append(Run(host, event, stream.read(_MAX_RUN_BYTES)))
    return runs


def describe_runs(home: str) -> "list[dict[str, Any]]":
    """Describe the last run of each hook, in JSON form."""
    return [
        {
            "host": run.host,
            "event": run.event,
            "last_run_at": _iso(run.ran_ms),
            "run_count": run.runs,
            "failure_count": run.failures,
            "last_failed_at": _iso(run.failed_ms),
            "reason": run.error or None,
        }
        for run in read_runs(home)
    ]


def examine(home: str) -> "tuple[dict[str, Any], list[Finding]]":
    """Return the facts and findings of `memory doctor` about hooks.

    There are no facts if no hook has ever run and no event is waiting.
    """
    from memories.config import registers
    from memories.errors import ConfigError
    from memories.guard.validate import amount
    from memories.identity import registry
    from memories.stores.records import Finding

    facts: dict[str, Any] = {}
    findings: list[Finding] = []
    try:
        registry.aliases(registers())
    except ConfigError as exc:  # this can switch hooks off; see `switch`
        remedy = "until then, a project is known only by its current name"
        findings.append(Finding(str(exc), remedy))
    for run in describe_runs(home):
        failures = f", {run['failure_count']} failed" if run["failure_count"] else ""
        facts.setdefault("hooks", {})[f"{run['host']} {run['event']}"] = (
            f"last ran {run['last_run_at']}, {amount(run['run_count'], 'run', 'runs')}{failures}"
        )
        if run["last_failed_at"] is not None and run["last_failed_at"] == run["last_run_at"]:
            problem = (
                f"the {run['event']} hook of {run['host']} failed when it last ran: {run['reason']}"
            )
            log_file = os.path.join(home, files.LOG)
            remedy = f"read {log_file}; memory capture status shows all hooks"
            findings.append(Finding(problem, remedy))
    waiting_bytes = inbox.size(home)
    if facts or waiting_bytes:
        facts["inbox_bytes"] = waiting_bytes
    oldest = inbox.oldest(home)
    if oldest is not None and time.time() - oldest > _LONG_WAIT_SECONDS:
        problem = (
            f"{waiting_bytes} bytes that hooks captured are not stored yet, some of them since"
            f" {_iso(int(oldest * 1000))}"
        )
        findings.append(Finding(problem, "run: memory capture flush, which reports the reason"))
    for file in inbox.list_refused(home):
        problem = f"events that a hook captured could not be stored; they are in {file}"
        findings.append(Finding(problem, f"read it, then run: rm {file}"))
    return facts, findings


def _iso(millis: int) -> str | None:
    from memories.core.times import from_millis, to_iso

    return to_iso(from_millis(millis)) if millis else None


def record_for_stats(
    event: str, folder: str, namespace: str | None, text: str, **figures: "Any"
) -> None:
    """Record a run for `memory stats`.

    Args:
        event: The event.
        folder: The agent's working folder.
        namespace: The namespace of the run; None for the configured one.
        text: The text that the hook gave the model; may be empty.
        **figures: Further fields; see `core.events.note`.
    """
    from pathlib import Path

    from memories.config import load_config
    from memories.context.tokens import estimate_tokens
    from memories.core import events
    from memories.errors import ConfigError
    from memories.identity.project import identify

    flags = {"namespace": namespace or None}
    config = load_config(flags, folder=Path(folder), tell=lambda _: None)  # already reported
    project = None
    if config.events != events.OFF and config.project_detection:
        try:
            project = identify(Path(folder), record=False)
        except (ConfigError, OSError):
            project = None  # doctor reports this
    events.note(
        config.home,
        f"hook.{event}",
        setting=config.events,
        namespace=config.namespace,
        project=None if project is None else project.name,
        channel="hook",
        tokens=estimate_tokens(text),
        **figures,
    )
