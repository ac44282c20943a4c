"""What a host wrote down of a session: only kinds of lines that are known, and only from where that
host keeps them.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from memories.hooks.prompts import SYSTEM_SOURCES, cleaned, public, unframed

USER, ASSISTANT, TOOL = "user", "assistant", "tool"
MAX_LINE_BYTES = 16 * 1_048_576
MAX_TEXT = 200_000  # characters of what one line says
MAX_TOOL = 20_000
# Where each host keeps its transcripts: a variable and what is below it, or what is below the home
# without it.
_FOLDERS = {
    "claude-code": ("CLAUDE_CONFIG_DIR", "projects", ".claude/projects"),
    "codex": ("CODEX_HOME", "sessions", ".codex/sessions"),
    "gemini": ("GEMINI_CLI_HOME", ".gemini/tmp", ".gemini/tmp"),
}
HOSTS = tuple(_FOLDERS)  # of which they are read


class Line(NamedTuple):
    """What somebody said.

    Attributes:
        role: `user`, `assistant` or `tool`.
        text: What was said.
        at: When; None if the line does not tell.
        end: Where the line ends in the file.
    """

    role: str
    text: str
    at: datetime | None
    end: int


class Elsewhere(Exception):
    """A path is not that of a transcript of this host."""


def lines(host: str, path: str, start: int, environment: Mapping[str, str]) -> Iterator[Line]:
    """Yield what was said from a place in a transcript on; a last line that is not whole yet is
    left for later.

    Args:
        host: Whose transcript it is.
        path: Its file, as an event named it.
        start: Where to begin; a file that is shorter was written anew, and is read from its
            beginning.
        environment: The variables that tell where the host keeps its files.

    Raises:
        Elsewhere: It is not a file of this user below the folder of this host.
        OSError: It can't be read.
    """
    read = {"claude-code": _claude, "codex": _codex, "gemini": _gemini}.get(host)
    if read is None:
        raise Elsewhere(f"{host} has no transcripts that are known")
    with open(_opened(host, path, environment), "rb") as stream:
        end = start if start <= os.fstat(stream.fileno()).st_size else 0
        stream.seek(end)
        while line := stream.readline(MAX_LINE_BYTES):
            while line[-1:] != b"\n":
                more = stream.readline(MAX_LINE_BYTES)
                if not more:
                    return  # it is being written
                end += len(line)
                line = more  # of a line this long nothing is read, but its end is looked for
            end += len(line)
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                for role, text in read(found):
                    said = public(cleaned(text) if role == USER else unframed(text))[
                        : MAX_TOOL if role == TOOL else MAX_TEXT
                    ]
                    if said.strip():
                        yield Line(role, said.strip(), _moment(found.get("timestamp")), end)


def _opened(host: str, path: str, environment: Mapping[str, str]) -> int:
    variable, below, usual = _FOLDERS[host]
    moved = environment.get(variable)
    folder = os.path.join(moved, below) if moved else os.path.join(os.path.expanduser("~"), usual)
    known, real = os.path.realpath(folder), os.path.realpath(path)
    if not real.startswith(known + os.sep) or not real.endswith(".jsonl"):
        raise Elsewhere(f"{path} is not below {known}, where {host} keeps its transcripts")
    fd = os.open(real, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or (os.name == "posix" and found.st_uid != os.geteuid()):
        os.close(fd)
        raise Elsewhere(f"{path} is not a file of this user")
    return fd


def _claude(line: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield who said what in a line of Claude Code; one content block a line, of many kinds of
    lines two count.
    """
    role, message = line.get("type"), line.get("message")
    hidden = any(
        line.get(name)
        for name in ("isMeta", "isSidechain", "isCompactSummary", "isApiErrorMessage")
    )
    if role not in (USER, ASSISTANT) or not isinstance(message, dict) or hidden:
        return
    sources = (line.get("promptSource"), line.get("turnOrigin"))
    if any(isinstance(source, str) and source in SYSTEM_SOURCES for source in sources):
        return
    content = message.get("content")
    for block in (
        [{"type": "text", "text": content}] if isinstance(content, str) else _dicts(content)
    ):
        if block.get("type") == "text":
            yield role, _text(block.get("text"))
        elif block.get("type") == "tool_result" and role == USER:
            yield TOOL, _joined(block.get("content"))


def _codex(line: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield who said what in a line of a rollout of Codex."""
    item = line.get("payload")
    if line.get("type") != "response_item" or not isinstance(item, dict):
        return
    if item.get("type") == "message" and item.get("role") in (USER, ASSISTANT):
        for block in _dicts(item.get("content")):
            if block.get("type") in ("input_text", "output_text", "text"):
                yield str(item["role"]), _text(block.get("text"))
    elif item.get("type") == "function_call_output":
        yield TOOL, _joined(item.get("output"))


def _gemini(line: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield who said what in a line of a chat of Gemini CLI."""
    role = {"user": USER, "gemini": ASSISTANT}.get(str(line.get("type")))
    if role is not None:
        yield role, _joined(line.get("content"))


def _dicts(found: object) -> list[dict[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _text(found: object) -> str:
    return found if isinstance(found, str) else ""


def _joined(found: object) -> str:
    """Return the text of a content that is a text, or a list of parts with texts."""
    if isinstance(found, dict):
        found = found.get("content", found.get("output"))
    return _text(found) or "\n".join(_text(part.get("text")) for part in _dicts(found))


def _moment(found: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(found) if isinstance(found, str) else None
    except ValueError:
        return None
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=UTC)
