"""Judges whether memories are still true, given the working trees on this machine. Begin here."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memories.models import Cited, Memory, Verdict, cited_by

if TYPE_CHECKING:
    from memories.anchors.grammar import Anchor, RootOf

CACHE = "scratchpad.verdicts.json"  # the results of earlier checks, in a namespace's folder
HOOK_SECONDS = 0.02


def cache_of(home: Path, namespace: str) -> Path:
    """Return the file that keeps the results of earlier checks in a namespace."""
    return home / namespace / CACHE


class Judge(NamedTuple):
    """Checks the anchors of memories against the working trees on this machine.

    Attributes:
        root_of: Returns the top folder of a project's working tree; None if there is none here.
        cache: The file with the results of earlier checks; None to save no results.
        seconds: The time limit of the checks for one response. Anchors not checked in time are
            unverified. None for no limit.
    """

    root_of: "RootOf"
    cache: Path | None = None
    seconds: float | None = None

    def discover(self, text: str, tags: Mapping[str, str]) -> "list[Anchor]":
        """Return the anchors that a text names; see `discover.find_anchors`."""
        root = self._root(tags)
        if root is None:
            return []
        from memories.anchors.grammar import find_paths

        if not any(find_paths(text)):
            return []
        from memories.anchors.discover import find_anchors  # imported late: few texts name a file
        from memories.anchors.tree import WorkingTree

        with contextlib.suppress(OSError), WorkingTree(root) as tree:
            return find_anchors(text, tree)
        return []

    def settle(self, anchors: Iterable[str], tags: Mapping[str, str]) -> "list[Anchor]":
        """Return explicit anchors in their stored form.

        If the project's working tree is available, each anchor must hold now. A symbol that a file
        only mentions becomes a literal.

        Raises:
            InvalidInput: An anchor is malformed, or doesn't hold.
        """
        from memories.anchors.grammar import parse_all

        parsed = parse_all(anchors)
        root = self._root(tags)
        if root is None:
            return parsed
        from memories.anchors.checks import settle
        from memories.anchors.tree import WorkingTree

        try:
            with WorkingTree(root) as tree:
                return [settle(anchor, tree) for anchor in parsed]
        except OSError:
            return parsed

    def is_at_hand(self, tags: Mapping[str, str]) -> bool:
        """Return whether the working tree of a memory's project is available."""
        return self._root(tags) is not None

    def _root(self, tags: Mapping[str, str]) -> Path | None:
        project = tags.get("project")
        return None if project is None else self.root_of(project)

    def judge(self, memories: Sequence[Memory], now: datetime) -> list[Memory]:
        """Return memories with their verdicts, in the same order."""
        verdicts = self.verdicts(list(map(cited_by, memories)), now)
        return [
            memory if verdict is None else replace(memory, verdict=verdict)
            for memory, verdict in zip(memories, verdicts, strict=True)
        ]

    def verdicts(self, cited: Sequence[Cited], now: datetime) -> list[Verdict | None]:
        """Return the verdict on each memory; None if nothing about it can be checked here."""
        if not any(source.can_be_judged for source in cited):
            return [None] * len(cited)
        from memories.anchors.checks import (
            AnchorChecker,
        )  # imported here, since few memories have an anchor

        with AnchorChecker(self.root_of, self.cache, self.seconds, now) as checker:
            return [checker.judge(source) for source in cited]
