"""What a hook asks to be recalled, and what is given: by the hook itself, or by a server, which is told it as JSON."""

import json
import time

TYPE_CHECKING = False  # as in `typing`, whose import costs 3 ms
if TYPE_CHECKING:
    from typing import Any

NOT_ASKED = "the store did not answer an earlier hook of this session"
_LEAST_SECONDS = 0.05
_MOST_ASKED = 4_096  # characters of a question that count: `MAX_QUERY_CHARACTERS` of `memories.guard.validate`


def question(text: str) -> str:
    """Return what is searched for of a prompt: as much as a search takes, without characters that none takes."""
    return text[:_MOST_ASKED].replace("\0", " ").encode("utf-8", "replace").decode()


class Asking:
    """What is to be recalled.

    Attributes:
        home: The home.
        folder: Where the agent works.
        session: Its session, as `place.name_of` writes it.
        namespace: A namespace, if one was named.
        prompt: What was said; None for what a session begins with.
        ends: Until when the store may take, on the clock of `time.monotonic`; None if it is not asked at all, and the
            scratchpad answers.
        counts: Whether what is found counts as read.
    """

    __slots__ = ("counts", "ends", "folder", "home", "namespace", "prompt", "session")

    def __init__(
        self, where: tuple[str, str, str, str | None], prompt: str | None, ends: float | None, *, counts: bool = True
    ) -> None:
        """Set all; where something is recalled is home, folder, session and namespace."""
        self.home, self.folder, self.session, self.namespace = where
        self.prompt, self.ends, self.counts = prompt, ends, counts

    @property
    def where(self) -> tuple[str, str, str, str | None]:
        """Where it is recalled."""
        return self.home, self.folder, self.session, self.namespace

    def seconds(self) -> float:
        """Return how long the store may take; 0 if it is not asked."""
        return 0.0 if self.ends is None else max(_LEAST_SECONDS, self.ends - time.monotonic())

    def encoded(self) -> bytes:
        """Return it as JSON, which a process with the same clock or another one can read."""
        return json.dumps([self.where, self.prompt, self.seconds(), self.counts]).encode()

    @classmethod
    def decoded(cls, data: bytes) -> "Asking":
        """Return what `encoded` wrote."""
        where, prompt, seconds, counts = json.loads(data)
        return cls(tuple(where), prompt, time.monotonic() + seconds if seconds else None, counts=counts)


class Given:
    """What is put before a model, and what is known of it.

    Attributes:
        said: The text; empty for nothing.
        namespace: Whose memory it is from.
        shown: The ids of what it shows.
        marks: The hashes of the sentences in it; see `echo`.
        why: Why the store did not answer, so that this is from the scratchpad; empty if it did.
        noted: What is noted of it among the operations; see `noting`.
        wanted: The URL of the store that a setting wants a server for; empty for none.
    """

    __slots__ = ("marks", "namespace", "noted", "said", "shown", "wanted", "why")

    def __init__(self, said: str, namespace: str) -> None:
        """Give a text that shows nothing."""
        self.said, self.namespace, self.why, self.wanted = said, namespace, "", ""
        self.shown: list[str] = []
        self.marks: list[str] = []
        self.noted: dict[str, Any] = {}

    def encoded(self) -> str:
        """Return it as JSON."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def decoded(cls, data: bytes) -> "Given":
        """Return what `encoded` wrote."""
        found: dict[str, Any] = json.loads(data)
        given = cls(found["said"], found["namespace"])
        for name in cls.__slots__:
            setattr(given, name, found[name])
        return given
