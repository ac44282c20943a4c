"""Whose memory a server on standard input uses: that of the host's session that it belongs to.

A prompt such as "start as bob" switches a session; its hooks note that in the session's file. The
server reads the same file before each call, so that hooks and tools agree. It finds the file by the
session's id, where the host passes it in a variable of the environment. Otherwise, or if that
session has ended (a host may clear the conversation and keep the server), it takes the session that
was last active in the server's folder since the server started.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from memories.hooks import files, session

# The variables in which hosts pass a session's id, and the host as hooks call it.
VARIABLES = {
    "CLAUDE_CODE_SESSION_ID": "claude-code",
    "CODEX_THREAD_ID": "codex",
    "GEMINI_SESSION_ID": "gemini",
}
EARLIER_SECONDS = 60.0  # a session's first hook may run before its server starts


class ServerSession(NamedTuple):
    """The place and the time at which a server started.

    Attributes:
        home: The home with the session files.
        folder: The server's working folder, without links.
        environment: Its environment variables.
        since: When it started, less `EARLIER_SECONDS`, in seconds since 1970.
    """

    home: str
    folder: str
    environment: Mapping[str, str]
    since: float

    @classmethod
    def begin(cls, home: str) -> "ServerSession":
        """Return the session of a server that starts now."""
        folder = str(Path.cwd().resolve())
        return cls(home, folder, os.environ, time.time() - EARLIER_SECONDS)

    def namespace(self) -> str | None:
        """Return the namespace that the session switched to; None if it switched to none."""
        for variable, host in VARIABLES.items():
            session_id = self.environment.get(variable)
            if session_id:
                state = session.read(self.home, files.session_name(host, session_id))
                if state.folder is not None and not state.ended:
                    return state.namespace
        name = session.find_latest(self.home, self.folder, since=self.since)
        return None if name is None else session.read(self.home, name).namespace
