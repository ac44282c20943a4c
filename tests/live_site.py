"""What tests of the pages share."""

from typing import NamedTuple

from memories import Memories


class Site(NamedTuple):
    """A running server: its address, the token that opens it, and its memory."""

    url: str
    token: str
    memories: Memories
