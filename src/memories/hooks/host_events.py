"""What a host tells of an event, and how it reads an answer: the same things by other names."""

import json
import os
import time

from memories.hooks import place

CURSOR = "cursor"
_LONGEST_NAME = 256  # characters of an id
# The host's own name of an event, for those that tell no name.
_NAMES = {
    "session-start": {"gemini": "SessionStart", "": "SessionStart"},
    "user-prompt": {"gemini": "BeforeAgent", "": "UserPromptSubmit"},
}
_ONLY_CURSOR = ("cursor_version", "workspace_roots")  # tells these


class Told:
    """What a host told of an event.

    Attributes:
        host: The host. Cursor runs the hooks of Claude Code, too, and tells them what it tells its
            own.
        session: The id of its session; empty if it has none.
        turn: The id of the turn of that session; empty if it has none.
        folder: Where the agent works.
        name: Host and session, as files are named.
        raw: All that it told.
    """

    __slots__ = ("folder", "host", "name", "raw", "session", "turn")

    def __init__(self, host: str, raw: "dict[str, object]") -> None:
        """Take in what was told.

        Raises:
            OSError: The working folder is gone.
        """
        self.raw = raw
        self.host = CURSOR if any(name in raw for name in _ONLY_CURSOR) else host
        self.session = self.first("conversation_id", "session_id", "sessionId")[:_LONGEST_NAME]
        self.turn = self.first("prompt_id", "turn_id", "generation_id")[:_LONGEST_NAME]
        self.folder = self._root() or self.text("cwd") or working_folder()
        if not os.path.isabs(self.folder):
            self.folder = os.path.abspath(self.folder)
        # What belongs to no session is kept by the day and the folder.
        named = self.session or f"{time.strftime('%Y-%m-%d', time.gmtime())} {self.folder}"
        self.name = place.name_of(self.host, named)

    def _root(self) -> str:
        """Return the first folder of a workspace: a hook of Cursor runs where its configuration
        lies.
        """
        roots = self.raw.get("workspace_roots")
        return roots[0] if isinstance(roots, list) and roots and isinstance(roots[0], str) else ""

    def text(self, name: str) -> str:
        """Return a text of this name; empty if there is none."""
        found = self.raw.get(name)
        return found if isinstance(found, str) else ""

    def first(self, *names: str) -> str:
        """Return the first text of these names that says something; empty if none does."""
        return next((found for found in map(self.text, names) if found), "")

    @property
    def answer(self) -> str:
        """What the agent said."""
        return self.first("last_assistant_message", "prompt_response", "text")

    @property
    def source(self) -> str:
        """Who or what the event comes from."""
        return self.first("source", "reason", "trigger")


def working_folder() -> str:
    """Return where the agent works, as far as a hook knows before it was told anything.

    Raises:
        OSError: The working folder is gone.
    """
    return os.environ.get("CURSOR_PROJECT_DIR") or os.getcwd()


def rendered(told: Told, event: str, said: str) -> bytes:
    """Return the answer as the host reads it; Codex refuses an answer that has any other field.

    Args:
        told: What the host told.
        event: The event.
        said: What is put before the model; empty for nothing.
    """
    if told.host == CURSOR:  # counts a hook that says nothing at all among those that failed
        answer: dict[str, object] = {"continue": True} if event == "user-prompt" else {}
        answer |= {"additional_context": said} if said else {}
    elif said:
        names = _NAMES[event]
        name = told.text("hook_event_name") or names.get(told.host, names[""])
        answer = {"hookSpecificOutput": {"hookEventName": name[:64], "additionalContext": said}}
    else:
        return b""
    return json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
