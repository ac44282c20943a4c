"""The request of a hook for context, and the context that answers it; a server gets and gives them
as JSON.
"""

import json
import time

TYPE_CHECKING = False  # as in `typing`, whose import costs 3 ms
if TYPE_CHECKING:
    from typing import Any

NOT_ASKED = "the store did not answer an earlier hook of this session"
_LEAST_SECONDS = 0.05
# `MAX_QUERY_CHARACTERS` of `memories.guard.validate`, whose import would cost too much
_MOST_CHARACTERS = 4_096


def query_of(prompt: str) -> str:
    """Return the query for a prompt: as much as a search takes, without characters that it
    refuses.
    """
    return prompt[:_MOST_CHARACTERS].replace("\0", " ").encode("utf-8", "replace").decode()


class RecallRequest:
    """What to recall, for which session, and until when.

    Attributes:
        home: The home.
        folder: The working folder of the agent.
        session: The session, as `place.name_of` writes it.
        namespace: The namespace that was named, if any.
        prompt: The prompt of the user; None at the start of a session.
        ends: When the store must have answered, on the clock of `time.monotonic`; None to leave the
            store alone and answer from the scratchpad.
        counts: Whether a memory that is shown counts as read.
    """

    __slots__ = ("counts", "ends", "folder", "home", "namespace", "prompt", "session")

    def __init__(
        self,
        place: tuple[str, str, str, str | None],
        prompt: str | None,
        ends: float | None,
        *,
        counts: bool = True,
    ) -> None:
        """Set all; `place` is home, folder, session and namespace."""
        self.home, self.folder, self.session, self.namespace = place
        self.prompt, self.ends, self.counts = prompt, ends, counts

    @property
    def place(self) -> tuple[str, str, str, str | None]:
        """Home, folder, session and namespace."""
        return self.home, self.folder, self.session, self.namespace

    def seconds(self) -> float:
        """Return how long the store may take; 0 if it is left alone."""
        if self.ends is None:
            return 0.0
        return max(_LEAST_SECONDS, self.ends - time.monotonic())

    def encode(self) -> bytes:
        """Return the request as JSON, with the seconds that are left in place of a time of this
        process's clock.
        """
        return json.dumps([self.place, self.prompt, self.seconds(), self.counts]).encode()

    @classmethod
    def decode(cls, data: bytes) -> "RecallRequest":
        """Read what `encode` wrote."""
        place, prompt, seconds, counts = json.loads(data)
        ends = time.monotonic() + seconds if seconds else None
        return cls(tuple(place), prompt, ends, counts=counts)


class HookContext:
    """The text that a hook puts before a model, and where it is from.

    Attributes:
        text: The text; may be empty.
        namespace: The namespace whose memories it shows.
        shown: The ids of the memories and turns in it.
        marks: The hashes of its sentences; see `echo`.
        error: Why the store did not answer, so that this is from the scratchpad; empty if it did.
        figures: What `memory stats` counts of it; see `figures`.
        wanted_store: The URL of the store for which a setting wants a server; empty for none.
    """

    __slots__ = ("error", "figures", "marks", "namespace", "shown", "text", "wanted_store")

    def __init__(self, text: str, namespace: str) -> None:
        """Hold a text that shows no memory."""
        self.text, self.namespace, self.error, self.wanted_store = text, namespace, "", ""
        self.shown: list[str] = []
        self.marks: list[str] = []
        self.figures: dict[str, Any] = {}

    def encode(self) -> str:
        """Return the context as JSON."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def decode(cls, data: bytes) -> "HookContext":
        """Read what `encode` wrote."""
        fields: dict[str, Any] = json.loads(data)
        context = cls(fields["text"], fields["namespace"])
        for name in cls.__slots__:
            setattr(context, name, fields[name])
        return context
