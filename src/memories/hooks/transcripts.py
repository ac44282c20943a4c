"""A session's utterances, from its host's transcript and from captured events.

A transcript is read only if it is in the host's transcript folder, and only lines of known kinds
are used. The position reached in each session's transcript is stored in a folder of the inbox.
"""

import hashlib
import json
import os
import stat
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from memories.core.disk import read_file, replacing
from memories.core.prompts import clean_prompt, remove_frames, typed_part
from memories.hooks import files, runs
from memories.hooks.handler import SWITCHED_ON
from memories.hooks.host_events import remove_private
from memories.transfer.sources.items import dicts, mapping, moment
from memories.transfer.sources.sessions import is_by_person
from memories.write.captured import FORGOTTEN

USER, ASSISTANT, TOOL = "user", "assistant", "tool"
HOST = "host"  # the role of prompts that a host sends by itself, such as scheduled ones
MAX_LINE_BYTES = 16 * 1_048_576
MAX_TEXT = 200_000  # maximum number of characters in a line's text
MAX_TOOL = 20_000  # maximum number of characters in a tool's output
# The variable that names a host's folder, the default folder in the user's home, and the folder of
# the transcripts in it.
_FOLDERS = {
    "claude-code": ("CLAUDE_CONFIG_DIR", ".claude", "projects"),
    "codex": ("CODEX_HOME", ".codex", "sessions"),
    "gemini": ("GEMINI_CLI_HOME", "", ".gemini/tmp"),
}
# Lines of Claude Code's transcripts with one of these fields are left out.
_HIDDEN = ("isMeta", "isSidechain", "isCompactSummary", "isApiErrorMessage")
_PROGRESS = "state"  # the folder in which the positions are stored
_KEEP_SECONDS = 180 * 86_400
_RECENT = 20  # number of earlier prompts and answers that a new one is compared with
_SAME_MS = 3_000  # without turn ids, identical texts this close together are the same utterance
_EPOCH = datetime.fromtimestamp(0, UTC)

Event = dict[str, Any]


class Utterance(NamedTuple):
    """A text by the user, the agent or a tool in a session.

    Attributes:
        role: `user`, `assistant` or `tool`.
        text: The text.
        at: When it was said.
        number: How many times that role has said the same text so far, this time included.
        typed: The part of a prompt that the user typed, if another part was pasted; else empty.
    """

    role: str
    text: str
    at: datetime
    number: int = 1
    typed: str = ""

    @property
    def digest(self) -> str:
        """The text's hash."""
        return hashlib.blake2b(self.text.encode("utf-8", "replace"), digest_size=12).hexdigest()

    @property
    def message_id(self) -> str:
        """The message id of the turn. Storing this utterance again doesn't add a turn, because the
        id stays the same.
        """
        return f"{self.role}:{self.digest}:{self.number}"


class TranscriptText(NamedTuple):
    """A text in a transcript.

    Attributes:
        role: `user`, `assistant`, `tool` or `host`.
        text: The text.
        at: When it was said; None if the line has no time.
        end: Where the line ends in the file.
        typed: See `Utterance`; empty if the user typed all of it.
    """

    role: str
    text: str
    at: datetime | None
    end: int
    typed: str


class UnknownTranscript(Exception):
    """A path does not name a transcript of this host."""


class Progress:
    """How far a session has been read and stored.

    Attributes:
        offset: Where the next line of the transcript starts.
        stopped: The size of the transcript when the agent last stopped; None if it never stopped.
        counts: How many times each role said each text, counted separately in `events` and in
            transcript `lines`.
        recent: The turn, hash and time of each of the last prompts and answers in events.
        last_event: The id of the last event that was stored; all earlier events were stored too.
        failures: How many attempts to store the session have failed.
        forgotten_at: A time in milliseconds since 1970; 0 for none. Earlier texts in the transcript
            are left out, because they were erased or repeat the session that this one was forked
            from.
    """

    def __init__(self, home: str, name: str) -> None:
        """Read the file.

        If there is no file, the whole transcript is read again, and texts that are already stored
        are recognized.
        """
        self._file = Path(home, files.INBOX, _PROGRESS, f"{name}.json")
        try:
            fields = json.loads(read_file(self._file))
        except (FileNotFoundError, ValueError):
            fields = {}
        self.offset: int = fields.get("offset", 0)
        self.stopped: int | None = fields.get("stopped")
        self.counts = {kind: Counter(fields.get(kind, {})) for kind in ("events", "lines")}
        self.recent: list[list[Any]] = fields.get("last", [])
        self.last_event: str = fields.get("done", "")
        self.failures: int = fields.get("failures", 0)
        self.forgotten_at: int = fields.get(FORGOTTEN, 0)

    def save(self) -> None:
        """Replace the file, using the key names from earlier versions."""
        files.private_folder(str(self._file.parent.parent))
        files.private_folder(str(self._file.parent))
        fields = {
            "offset": self.offset,
            "stopped": self.stopped,
            "last": self.recent,
            "done": self.last_event,
            "failures": self.failures,
            FORGOTTEN: self.forgotten_at,
            **self.counts,
        }
        with replacing(self._file) as stream:
            stream.write(json.dumps(fields).encode())

    def count(self, kind: str, utterance: Utterance) -> Utterance:
        """Count an utterance from an event or a line; return it with its number."""
        counts = self.counts[kind]
        key = f"{utterance.role}:{utterance.digest}"
        counts[key] += 1
        return utterance._replace(number=counts[key])

    def is_new(self, event: Event, utterance: Utterance, key: str) -> bool:
        """Return whether this event is the first to report an utterance, and remember the event.

        An event can occur twice, since both a plugin and the user may have installed the hooks.
        """
        if not utterance.text:
            return False
        turn, at = str(event.get("turn", "")), int(event.get("at", 0))
        times = [recent[2] for recent in self.recent if recent[:2] == [turn, key]]
        self.recent = [*self.recent, [turn, key, at]][-_RECENT:]
        if turn:
            return not times
        return all(abs(at - int(recent_at)) >= _SAME_MS for recent_at in times)


def prune_progress(home: str) -> None:
    """Remove the positions of sessions that have been inactive for half a year."""
    for file in Path(home, files.INBOX, _PROGRESS).glob("*.json"):
        if time.time() - file.stat().st_mtime > _KEEP_SECONDS:
            file.unlink()


def read_utterances(run: Sequence[Event], progress: Progress, *, is_last: bool) -> list[Utterance]:
    """Return the new utterances from a run of events and the transcript that they name, in order.

    Args:
        run: Consecutive events.
        progress: The position reached in the session; it is updated.
        is_last: Whether no events follow, so that the transcript is read to its end.
    """
    utterances: list[Utterance] = []
    prompts: set[str] = set()
    for event in run:
        if event.get("event") == "user-prompt" and isinstance(event.get("prompt"), str):
            typed = str(event.get("typed") or "").strip()
            prompt = Utterance(USER, event["prompt"].strip(), _time_of(event), typed=typed)
            prompts.add(prompt.digest)
            if progress.is_new(event, prompt, prompt.digest):
                utterances.append(progress.count("events", prompt))
        elif event.get("event") == "tool" and isinstance(event.get("output"), str):
            utterances.append(Utterance(TOOL, event["output"].strip(), _time_of(event)))
    lines = _read_new_lines(run, progress, prompts, is_last=is_last)
    # Claude Code's events don't say that a prompt was scheduled.
    from_host = {line.digest for line in lines if line.role == HOST}
    utterances = [said for said in utterances if said.digest not in from_host]
    lines = [line for line in lines if line.role != HOST]
    utterances += lines
    if not any(line.role == ASSISTANT for line in lines):
        for event in run:
            text = str(event.get("answer") or "").strip()
            answer = Utterance(ASSISTANT, text, _time_of(event))
            if progress.is_new(event, answer, f"{ASSISTANT}:{answer.digest}"):
                utterances.append(progress.count("events", answer))
    utterances.sort(key=attrgetter("at"))
    return utterances


def _time_of(event: Event) -> datetime:
    at = event.get("at")
    return datetime.fromtimestamp(at / 1000, UTC) if isinstance(at, int) else _EPOCH


class _Sizes(NamedTuple):
    """How long the transcript was at the events of one run, in bytes.

    Attributes:
        largest: The largest size at any event.
        resumed: The size when memory was last switched on again; 0 if it never was.
        prompt: The size at the first prompt; None if there is no prompt.
        stopped: The size when the agent last stopped; None if it did not stop.
    """

    largest: int
    resumed: int
    prompt: int | None
    stopped: int | None

    @classmethod
    def of(cls, run: Sequence[Event]) -> "_Sizes":
        """Return the transcript's sizes at the events of a run."""
        sizes: dict[str, list[int]] = {}
        for event in run:
            name, size = str(event.get("event")), int(event.get("size") or 0)
            sizes.setdefault(name, []).append(size)
        largest = max(map(max, sizes.values()))
        resumed = max(sizes.get(SWITCHED_ON, [0]))
        prompts = sizes.get("user-prompt")
        prompt = prompts[0] if prompts else None
        stopped = max(sizes.get("stop", ()), default=None)
        return cls(largest, resumed, prompt, stopped)

    def is_off_at(self, end: int, stopped: int | None) -> bool:
        """Return whether a line was written while memory was off.

        Such a line ends after the position at which the agent last stopped (`stopped`) and no later
        than the run's first prompt.
        """
        if stopped is None or self.prompt is None:
            return False
        return stopped < end <= self.prompt


def _read_new_lines(
    run: Sequence[Event], progress: Progress, prompts: set[str], *, is_last: bool
) -> list[Utterance]:
    """Return the transcript's unread utterances.

    Text is left out if it was erased, or if it was written while memory was off: then it follows a
    prompt that no event reported, after the agent's last stop and before the run's first prompt.
    """
    event = run[-1]
    host, path = str(event.get("host")), str(event.get("transcript") or "")
    if not path or host not in _PARSERS:
        return []
    sizes = _Sizes.of(run)
    progress.offset = max(progress.offset, sizes.resumed)
    utterances: list[Utterance] = []
    is_off, before = False, _time_of(event)
    forgotten_at = datetime.fromtimestamp(progress.forgotten_at / 1000, UTC)
    try:
        for line in _read_lines(host, path, progress.offset):
            if not is_last and line.end > sizes.largest:
                break
            if line.end < progress.offset:  # the host has written a new file
                progress.counts["lines"].clear()
            progress.offset = line.end
            utterance = Utterance(line.role, line.text, line.at or before, typed=line.typed)
            before = utterance.at
            if line.role == USER:
                is_off = utterance.digest not in prompts and sizes.is_off_at(
                    line.end, progress.stopped
                )
            if not is_off and utterance.at > forgotten_at:
                utterances.append(progress.count("lines", utterance))
    except UnknownTranscript as exc:
        runs.log(files.home(), str(exc))
    except FileNotFoundError:
        return []  # a host that keeps no transcripts may still name one
    if sizes.stopped is not None:
        progress.stopped = max(sizes.stopped, progress.offset)
    return utterances


def _read_lines(host: str, path: str, start: int) -> Iterator[TranscriptText]:
    """Yield a transcript's texts from a position onward, up to the last finished line.

    Args:
        host: A host in `_PARSERS`.
        path: The path of the file, as given in an event.
        start: The position, in bytes. If the file is shorter than that, it must be new, and is read
            from its beginning.

    Raises:
        UnknownTranscript: The path is not a file of this user in this host's folder.
        OSError: The file can't be read.
    """
    with open(_open_transcript(host, path), "rb") as stream:
        end = start if start <= os.fstat(stream.fileno()).st_size else 0
        stream.seek(end)
        while line := stream.readline(MAX_LINE_BYTES):
            while line[-1:] != b"\n":
                more = stream.readline(MAX_LINE_BYTES)
                if not more:
                    return  # the host is still writing this line
                end += len(line)
                line = more  # skip a line that is too long
            end += len(line)
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(fields, dict):
                at = moment(fields.get("timestamp"))
                for role, raw in _PARSERS[host](fields):
                    typed = remove_private(typed_part(raw)).strip() if role == USER else ""
                    text = clean_prompt(raw) if role in (USER, HOST) else remove_frames(raw)
                    limit = MAX_TOOL if role == TOOL else MAX_TEXT
                    if text := remove_private(text)[:limit].strip():
                        yield TranscriptText(role, text, at, end, typed)


def folder_of(host: str) -> str:
    """Return the folder of a host's own files, which an environment variable may move elsewhere."""
    variable, default, _ = _FOLDERS[host]
    return os.environ.get(variable) or os.path.join(os.path.expanduser("~"), default)


def _open_transcript(host: str, path: str) -> int:
    folder = os.path.join(folder_of(host), _FOLDERS[host][2])
    real_folder, real = os.path.realpath(folder), os.path.realpath(path)
    if not real.startswith(real_folder + os.sep) or not real.endswith(".jsonl"):
        raise UnknownTranscript(
            f"{path} is not a .jsonl file in {real_folder}, where {host} keeps its transcripts"
        )
    fd = os.open(real, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    status = os.fstat(fd)
    is_own = os.name != "posix" or status.st_uid == os.geteuid()
    if not stat.S_ISREG(status.st_mode) or not is_own:
        os.close(fd)
        raise UnknownTranscript(f"{path} is not a file that belongs to this user")
    return fd


def _parse_claude(line: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the role and text of a line in a Claude Code transcript; most lines have neither."""
    role, message = line.get("type"), line.get("message")
    if role not in (USER, ASSISTANT) or not isinstance(message, dict):
        return
    if role == USER and not is_by_person(line):
        role = HOST
    elif any(line.get(name) for name in _HIDDEN):
        return
    content = message.get("content")
    if isinstance(content, str):
        yield role, content
    texts = []
    for block in dicts(content):
        if block.get("type") == "text":
            texts.append(_text(block.get("text")))
        elif block.get("type") == "tool_result" and role == USER:
            yield TOOL, _joined_text(block.get("content"))
    if role != ASSISTANT:
        texts = ["\n".join(texts)]  # the hooks' events contain a prompt in this form
    for text in texts:
        yield role, text


def _parse_codex(line: dict[str, Any]) -> Iterator[tuple[str, str]]:
    payload, metadata = mapping(line.get("payload")), mapping(line.get("metadata"))
    if line.get("type") != "response_item" or metadata.get("compaction_output"):
        return
    if payload.get("type") == "message" and payload.get("role") in (USER, ASSISTANT):
        for block in dicts(payload.get("content")):
            if block.get("type") in ("input_text", "output_text", "text"):
                yield str(payload["role"]), _text(block.get("text"))
    elif payload.get("type") == "function_call_output":
        yield TOOL, _joined_text(payload.get("output"))


def _parse_gemini(line: dict[str, Any]) -> Iterator[tuple[str, str]]:
    role = {"user": USER, "gemini": ASSISTANT}.get(str(line.get("type")))
    if role is not None:
        yield role, _joined_text(line.get("content"))


_PARSERS = {"claude-code": _parse_claude, "codex": _parse_codex, "gemini": _parse_gemini}


def _text(content: object) -> str:
    return content if isinstance(content, str) else ""


def _joined_text(content: object) -> str:
    """Return the text in content that is either a string or a list of parts with text."""
    if isinstance(content, dict):
        content = content.get("content", content.get("output"))
    return _text(content) or "\n".join(_text(part.get("text")) for part in dicts(content))
