"""What a request asks a view for, and what the view answers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from memories.errors import InvalidInput

MOST = 200  # items on a page


class Asked(NamedTuple):
    """What a request asks for.

    Attributes:
        params: The pairs behind the `?`, in their order; a name may come several times.
        path: The parts of the path that have names.
        reads: Whether the reader may read a namespace.
        manages: Whether the reader may manage the whole store, and so see where it is.
    """

    params: Sequence[tuple[str, str]]
    path: Mapping[str, str] = {}
    reads: Callable[[str], bool] = lambda _: True
    manages: bool = False

    def text(self, name: str) -> str:
        """Return the first value of a name, or nothing."""
        return next((value.strip() for key, value in self.params if key == name), "")

    def number(self, name: str, default: int, most: int = MOST) -> int:
        """Return a value as a whole number from 0 to `most`.

        Raises:
            InvalidInput: It is none.
        """
        text = self.text(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise InvalidInput(f'{name} must be a whole number from 0 to {most}, not "{text[:40]}"')
        return min(int(text), most)

    def tags(self) -> dict[str, str]:
        """Return the tags that are wanted: each `tag` is `key=value`.

        Raises:
            InvalidInput: One of them is not.
        """
        found: dict[str, str] = {}
        for name, value in self.params:
            if name == "tag" and value:
                key, equals, wanted = value.partition("=")
                if not equals:
                    raise InvalidInput(f'tag must be key=value, not "{value[:40]}"')
                found[key.strip()] = wanted.strip()
        return found

    def filters(self) -> dict[str, Any]:
        """Return what narrows a search and a listing alike; what is not given is left out."""
        names = ("since", "until", "as_of", "trust", "written_by", "where", "project")
        given: dict[str, Any] = {name: self.text(name) for name in names if self.text(name)}
        return given | ({"tags": self.tags()} if self.tags() else {})

    def address(self, path: str, name: str = "", **query: str | int) -> str:
        """Return the address of another page in the same namespace: its path, the name at its end, its parameters."""
        space = {"namespace": self.text("namespace")} if self.text("namespace") else {}
        text = urlencode({**query, **space})
        return path + quote(name, safe="") + (f"?{text}" if text else "")

    def link(self, **changes: str | None) -> str:
        """Return the address of the same page with some parameters changed; None leaves one out, as does a new page."""
        kept = [(name, value) for name, value in self.params if value and name not in changes and name != "format"]
        query = urlencode([*kept, *((name, value) for name, value in changes.items() if value is not None)])
        return f"?{query}"

    def link_tag(self, key: str, value: str, *, wanted: bool) -> str:
        """Return the address of the same search with a tag wanted, or no longer wanted."""
        others = [(name, given) for name, given in self.params if given and name not in ("format", "cursor")]
        others = [pair for pair in others if pair[0] != "tag" or pair[1].partition("=")[0] != key]
        query = urlencode([*others, *([("tag", f"{key}={value}")] if wanted else [])])
        return f"?{query}"


class View(NamedTuple):
    """What a view answers.

    Attributes:
        template: The template that shows it.
        data: The JSON of the API for the same question.
        more: What the template needs beside it.
        status: The HTTP status.
    """

    template: str
    data: dict[str, Any]
    more: Mapping[str, Any] = {}
    status: int = 200
