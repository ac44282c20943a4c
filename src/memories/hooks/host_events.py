"""Host-specific formats of events and responses.

Hosts use different names for the same things, and add their own text to the user's prompts: see
`core.prompts`.
"""

import json
import os
import re
import time
from functools import cached_property

from memories.core.prompts import clean_prompt, typed_part
from memories.hooks import files

CURSOR = "cursor"
CHECK = "memory_connect_check"  # a field of the test events that `memory connect` sends
_MAX_ID = 256  # maximum length of an id, in characters
# Each event's name in a host, for events that don't state it; "" means all other hosts.
_EVENT_NAMES = {
    "session-start": {"": "SessionStart"},
    "user-prompt": {"gemini": "BeforeAgent", "": "UserPromptSubmit"},
}
_CURSOR_FIELDS = ("cursor_version", "workspace_roots")  # no other host sends these

_COMMAND = r"/[A-Za-z][\w:.-]*(?:\s|$)"


class HostEvent:
    """An event from a host.

    Attributes:
        host: The host that ran the hook: `cursor` if the event has fields that only Cursor sends,
            since Cursor also runs the hooks of Claude Code.
        session_id: The id of the host's session; empty if the event names none.
        turn_id: The id of the turn in that session; empty if the event names none.
        folder: The agent's working folder.
        session_name: The name of the session's files, made from the host and the session's id.
        fields: All fields of the event.
    """

    def __init__(self, host: str, fields: "dict[str, object]") -> None:
        """Read the fields that all hosts have.

        Raises:
            OSError: The working folder no longer exists.
        """
        self.fields = fields
        self.host = CURSOR if any(name in fields for name in _CURSOR_FIELDS) else host
        self.session_id = self.first_text("conversation_id", "session_id", "sessionId")[:_MAX_ID]
        # Gemini CLI has no id, but gives all hooks of an event the same time.
        turn_id = self.first_text("prompt_id", "turn_id", "generation_id", "timestamp")
        self.turn_id = turn_id[:_MAX_ID]
        # Cursor runs a hook in the folder of the hook's config file.
        roots = fields.get("workspace_roots")
        root = roots[0] if isinstance(roots, list) and roots else ""
        self.folder = root if isinstance(root, str) else ""
        self.folder = self.folder or self.text("cwd") or working_folder()
        if "\ufffd" in self.folder and not os.path.isdir(self.folder):
            self.folder = working_folder()  # the path isn't UTF-8, so the host can't write it
        if not os.path.isabs(self.folder):
            self.folder = os.path.abspath(self.folder)
        session = self.session_id
        if not session:  # events without a session are grouped by day and folder
            session = f"{time.strftime('%Y-%m-%d', time.gmtime())} {self.folder}"
        self.session_name = files.session_name(self.host, session)

    def text(self, name: str) -> str:
        """Return a text field; empty if there is no text field with this name."""
        value = self.fields.get(name)
        return value if isinstance(value, str) else ""

    def first_text(self, *names: str) -> str:
        """Return the first non-empty text field with one of these names; empty if there is none."""
        for name in names:
            if text := self.text(name):
                return text
        return ""

    @cached_property
    def prompt(self) -> str:
        """The prompt, as the user wrote it."""
        return clean_prompt(self.text("prompt"), self.text("source"))

    @cached_property
    def typed_text(self) -> str:
        """The part of the prompt that the user typed, if not all of it; see `typed_part`."""
        return typed_part(self.text("prompt"), self.text("source"))

    @property
    def is_of_subagent(self) -> bool:
        """Whether a subagent caused the event: Codex runs a session's hooks for subagents too.

        The events of Codex's reviewer have no agent id. They are recognized by the transcript that
        they name: its name doesn't contain this session's id.
        """
        transcript = self.text("transcript_path")
        is_rollout = self.host == "codex" and "rollout-" in transcript
        return bool(self.text("agent_id")) or (is_rollout and self.session_id not in transcript)

    @property
    def answer(self) -> str:
        """The agent's answer."""
        return self.first_text("last_assistant_message", "prompt_response", "text")

    @property
    def source(self) -> str:
        """The cause of the event, in the host's words."""
        return self.first_text("source", "reason", "trigger")


def working_folder() -> str:
    """Return the agent's working folder according to the environment; an event may name another.

    Raises:
        OSError: The working folder no longer exists.
    """
    return os.environ.get("CURSOR_PROJECT_DIR") or os.getcwd()


def render_response(event: HostEvent, name: str, text: str) -> bytes:
    """Return a response in the host's format. Codex refuses responses with unknown fields.

    Args:
        event: The event.
        name: Our name for the event.
        text: The text for the model; may be empty.
    """
    answer: dict[str, object] = {}
    if event.host == CURSOR:  # Cursor counts a hook without output as failed
        if name == "user-prompt":
            answer["continue"] = True
        if text:
            answer["additional_context"] = text
    elif text:
        names = _EVENT_NAMES[name]
        host_name = event.text("hook_event_name") or names.get(event.host, names[""])
        answer["hookSpecificOutput"] = {
            "hookEventName": host_name[:64],
            "additionalContext": text,
        }
    else:
        return b""
    return json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")


def is_command(text: str) -> bool:
    """Return whether a prompt is a host command such as /compact, and not a path."""
    return re.match(_COMMAND, text) is not None


def remove_private(text: str) -> str:
    """Remove `<private>` elements."""
    if "private" not in text.lower():
        return text
    from memories.guard.redactor import without_private

    return without_private(text).text
