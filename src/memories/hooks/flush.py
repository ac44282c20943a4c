"""The flusher: what waits in the inbox becomes turns of a conversation, memories that wait for
review, and summaries.

A line leaves the inbox only when the store has all that it says. Whatever was stored by a flusher
that was killed is known by the next one: a turn by its text and how often it was said, a memory by
its text.
"""

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from memories.config import load_config
from memories.core.disk import read_file, replacing, tried
from memories.core.events import note
from memories.embedders import open_embedder
from memories.errors import ConfigError, SystemFault
from memories.hooks import inbox, place, session, stamps
from memories.hooks.events import RESUMED, store_mark
from memories.hooks.writing import Said, Source, write
from memories.identity import project as projects
from memories.identity.captured import FLUSH_LOCK
from memories.memories import Memories

_STATE = "state"
_ATTEMPTS = 3  # after so many, what can't be stored is put aside
_ROUNDS = 20
_KEPT_SECONDS = 180 * 86_400
_REMEMBERED = 20  # prompts and answers
_TWICE_MILLIS = 3_000  # two hooks that tell of the same one do so within this time
_EPOCH = datetime.fromtimestamp(0, UTC)

Event = dict[str, Any]


class Flushed(NamedTuple):
    """What a flush did.

    Attributes:
        sessions: Of how many sessions something was stored.
        turns: How many turns are new.
        proposed: How many memories now wait for review.
        summaries: How many sessions left a summary, or a new version of it.
        waiting: How many bytes still wait.
        reasons: Why they do, or why something was put aside.
    """

    sessions: int = 0
    turns: int = 0
    proposed: int = 0
    summaries: int = 0
    waiting: int = 0
    reasons: tuple[str, ...] = ()


class State:
    """How far a session was read; a file of its own keeps it.

    Attributes:
        offset: Where the next line of the transcript begins.
        stopped: How long the transcript was when the agent last stopped; None if it never did.
        told: How often each text was said, by role, as events tell it, and as the transcript does.
        last: The last prompts and answers that events told of: the turn, the mark and the time of
            each.
        done: The last event that was stored; up to it, all were.
        failures: How often it could not be stored.
    """

    def __init__(self, home: str, name: str) -> None:
        """Read it; what can't be read counts as nothing, and is found again in the store."""
        self._file = Path(home, place.INBOX, _STATE, f"{name}.json")
        try:
            known = json.loads(read_file(self._file))
        except (FileNotFoundError, ValueError):
            known = {}
        self.offset: int = known.get("offset", 0)
        self.stopped: int | None = known.get("stopped")
        self.told = {kind: Counter(known.get(kind, {})) for kind in ("events", "lines")}
        self.last: list[list[Any]] = known.get("last", [])
        self.done: str = known.get("done", "")
        self.failures: int = known.get("failures", 0)

    def save(self) -> None:
        """Write it in one step."""
        place.private(str(self._file.parent.parent))
        place.private(str(self._file.parent))
        known = {
            "offset": self.offset,
            "stopped": self.stopped,
            "last": self.last,
            "done": self.done,
            "failures": self.failures,
            **self.told,
        }
        with replacing(self._file) as stream:
            stream.write(json.dumps(known).encode())


def flush(home: str) -> Flushed:
    """Store what waits; one process at a time does, and it goes on until nothing comes any more.

    Args:
        home: The home.
    """
    done = Flushed()
    if not os.path.isdir(os.path.join(home, place.INBOX)):
        return done
    passed: set[str] = set()
    for _ in range(_ROUNDS):
        with tried(Path(home, place.INBOX, FLUSH_LOCK), 0) as held:
            if not held:
                return done._replace(waiting=inbox.size(home))
            for name in [each for each in inbox.names(home) if each not in passed]:
                done, stored = _flushed(home, name, done)
                if not stored:
                    passed.add(name)
            session.prune(home)
            _prune(home)
        if (
            not set(inbox.names(home)) - passed
        ):  # looked at after the lock is free: who came meanwhile did not get it
            break
    return done._replace(waiting=inbox.size(home))


def _prune(home: str) -> None:
    """Forget how far sessions were read of which nothing was heard for half a year."""
    for file in Path(home, place.INBOX, _STATE).glob("*.json"):
        if time.time() - file.stat().st_mtime > _KEPT_SECONDS:
            file.unlink()


def _flushed(home: str, name: str, done: Flushed) -> tuple[Flushed, bool]:
    """Store what waits of one session; return whether it no longer waits."""
    state = State(home, name)
    try:
        events, length, unread = inbox.read(home, name, store_mark(os.environ))
        if not length and inbox.read(home, name)[1]:
            return _told(
                done,
                home,
                f"{name} is for another MEMORY_STORE; run memory capture flush with that",
            ), False
        if unread:
            done = _told(done, home, f"{unread} lines of {name} can't be read and were left out")
        runs = list(_runs(_behind(events, state.done)))
        for number, run in enumerate(runs, 1):
            written = _written(home, name, run, state, last=number == len(runs))
            done = done._replace(
                turns=done.turns + written[0],
                proposed=done.proposed + written[1],
                summaries=done.summaries + written[2],
            )
        state.failures = 0
        state.done = next(
            (str(event["id"]) for event in reversed(events) if event.get("id")), state.done
        )
        state.save()
        inbox.remove(home, name, length)
    except (
        SystemFault,
        ConfigError,
        OSError,
    ) as exc:  # the inbox waits until the system is well again
        return _told(done, home, f"{name} waits: {exc}"), False
    except Exception as exc:  # noqa: BLE001 - one session that can't be stored must not keep the others
        state = State(home, name)  # how far it was read this time counts for nothing
        state.failures += 1
        state.save()
        why = f"{name} could not be stored: {type(exc).__name__}: {exc}"
        if state.failures >= _ATTEMPTS:
            why += f"; it was put aside in {inbox.put_aside(home, name)}"
        return _told(done, home, why), False
    return done._replace(sessions=done.sessions + 1), True


def _behind(events: Sequence[Event], done: str) -> Sequence[Event]:
    """Return the events behind one; all, unless that is among them: a flusher was killed before it
    removed them.
    """
    at = next((at for at, event in enumerate(events) if done and event.get("id") == done), -1)
    return events[at + 1 :]


def _told(done: Flushed, home: str, why: str) -> Flushed:
    with contextlib.suppress(OSError):  # a disk that is full; the answer says it too
        stamps.log(home, f"flush: {why}")
    return done._replace(reasons=(*done.reasons, why))


def _runs(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Yield events in a row that belong to one namespace and one folder."""
    run: list[Event] = []
    for event in events:
        if run and any(event.get(key) != run[-1].get(key) for key in ("namespace", "folder")):
            yield run
            run = []
        run.append(event)
    if run:
        yield run


def _written(
    home: str, name: str, run: list[Event], state: State, *, last: bool
) -> tuple[int, int, int]:
    """Store what a run of events tells; return how many turns, proposals and summaries are new."""
    event = run[-1]
    folder = Path(str(event.get("folder") or home))
    namespace = event.get("namespace")
    flags = {"namespace": namespace} if isinstance(namespace, str) and namespace else {}
    here = folder if folder.is_dir() else None
    config = load_config(flags, folder=here, tell=lambda said: stamps.log(home, said))
    project = projects.identify(folder) if here and config.project_detection else None
    said = _said(run, state, last=last)
    ends = any(each.get("event") in ("session-end", "pre-compact") for each in run)
    source = Source(name, str(event.get("host", "")), folder, project, session.read(home, name))
    quiet = config._replace(count_accesses=False, reinforce_on_retrieval=False)
    embedder = open_embedder(config.embedder, config)
    # A conversation is one's own, whatever others have; what others know is no news either.
    with (
        Memories(config=quiet, channel="hook", embedder=embedder, shared=False) as own,
        Memories(config=quiet, channel="hook", embedder=embedder) as all_that_is_read,
    ):
        done = write(own, all_that_is_read, source, said, ends=ends)
    for each in run:
        if isinstance(each.get("ms"), int | float):
            figures = {
                "namespace": config.namespace,
                "project": project.name if project else None,
                "ms": each["ms"],
            }
            figures |= {"agent": source.host, "channel": "hook", "outcome": "ok", "tokens": 0}
            note(config.home, f"hook.{each.get('event')}", setting=config.events, **figures)
    return done


def _said(run: Sequence[Event], state: State, *, last: bool) -> list[Said]:
    """Return what a run of events, and the transcript that they name, say that is new, in order of
    time.
    """
    found: list[Said] = []
    prompts: set[str] = set()
    for event in run:
        if event.get("event") == "user-prompt" and isinstance(event.get("prompt"), str):
            said = Said("user", event["prompt"].strip(), _at(event))
            prompts.add(said.mark)
            if _is_new(event, said, said.mark, state):
                found.append(state_counted(state, "events", said))
        elif event.get("event") == "tool" and isinstance(event.get("output"), str):
            found.append(Said("tool", event["output"].strip(), _at(event)))
    lines = _lines(run, state, prompts, last=last)
    found += lines
    if not any(each.role == "assistant" for each in lines):
        for event in run:
            said = Said("assistant", str(event.get("answer") or "").strip(), _at(event))
            if _is_new(event, said, f"{said.role}:{said.mark}", state):
                found.append(state_counted(state, "events", said))
    return sorted(found, key=lambda said: said.at)


def _is_new(event: Event, said: Said, mark: str, state: State) -> bool:
    """Return whether an event tells what no other told before, and remember that it did."""
    if not said.text:
        return False
    here = [str(event.get("turn", "")), mark, int(event.get("at", 0))]
    is_new = not any(_is_same(last, here) for last in state.last)
    state.last = [*state.last, here][-_REMEMBERED:]
    return is_new


def _is_same(last: Sequence[Any], here: Sequence[Any]) -> bool:
    """Return whether two hooks told of the same: a plugin and a user may both have installed
    them.
    """
    if last[:2] != here[:2]:
        return False
    return bool(here[0]) or abs(int(here[2]) - int(last[2])) < _TWICE_MILLIS


def state_counted(state: State, kind: str, said: Said) -> Said:
    """Return what was said with how often it was said before, as one of two witnesses tells it."""
    counts = state.told[kind]
    key = f"{said.role}:{said.mark}"
    counts[key] += 1
    return said._replace(number=counts[key])


def _lines(run: Sequence[Event], state: State, prompts: set[str], *, last: bool) -> list[Said]:
    """Return what the transcript says that was not read yet.

    What was said between two stretches of which events tell, while memory was off, is passed over:
    that is what begins with a prompt that no event told of.
    """
    from memories.hooks import transcripts

    event = run[-1]
    path = str(event.get("transcript") or "")
    if not path or event.get("host") not in transcripts.HOSTS:
        return []
    sizes = [int(each.get("size") or 0) for each in run]
    resumed = [size for each, size in zip(run, sizes, strict=True) if each.get("event") == RESUMED]
    state.offset = max([state.offset, *resumed])
    begun = next(
        (size for each, size in zip(run, sizes, strict=True) if each.get("event") == "user-prompt"),
        None,
    )
    found: list[Said] = []
    silent, before = False, _at(event)
    try:
        for line in transcripts.lines(str(event.get("host")), path, state.offset, os.environ):
            if not last and line.end > max(sizes):
                break
            if line.end < state.offset:  # the file was written anew
                state.told["lines"].clear()
            state.offset = line.end
            said = Said(line.role, line.text, line.at or before)
            before = said.at
            if line.role == "user":
                between = (
                    state.stopped is not None
                    and begun is not None
                    and state.stopped < line.end <= begun
                )
                silent = between and said.mark not in prompts
            if not silent:
                found.append(state_counted(state, "lines", said))
    except transcripts.Elsewhere as exc:
        stamps.log(place.home(os.environ), str(exc))
    except FileNotFoundError:
        return []  # a host that keeps no transcript names one all the same
    stops = [size for each, size in zip(run, sizes, strict=True) if each.get("event") == "stop"]
    state.stopped = max([*stops, state.offset if stops else 0]) if stops else state.stopped
    return found


def _at(event: Event) -> datetime:
    at = event.get("at")
    return datetime.fromtimestamp(at / 1000, UTC) if isinstance(at, int) else _EPOCH
