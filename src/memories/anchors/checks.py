"""Checks whether the anchors of memories hold, and decides their verdicts.

A file is read only if its size, inode or times changed since the last check. The results are kept
in a file next to the scratchpad, under digests that reveal neither paths nor literals.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self

from memories.anchors import contents, grammar
from memories.anchors.grammar import CHECKED, PATH, SYMBOL, Anchor, RootOf
from memories.anchors.tree import Budget, Look, WorkingTree
from memories.core.times import from_millis, to_millis
from memories.errors import InvalidInput
from memories.guard.validate import amount
from memories.models import CHANGED, EXPIRED, UNVERIFIED, VERIFIED, Cited, Verdict

OUT_OF_TIME = "was not checked in time"
_RACY_NS = 2_000_000_000  # two edits within this time may leave the same modification time
_MAX_ENTRIES = 5_000  # maximum number of check results that are kept
_DAY_MS = 86_400_000


class AnchorCheck(NamedTuple):
    """The result of checking an anchor.

    Attributes:
        anchor: The anchor.
        holds: Whether it holds; None if that can't be checked.
        why: Why it doesn't hold or can't be checked, as a sentence without a full stop.
        since: When it stopped holding, or was last known to hold, in milliseconds since 1970.
    """

    anchor: Anchor
    holds: bool | None
    why: str = ""
    since: int = 0


class AnchorChecker:
    """Checks the anchors of several memories, reusing open working trees and the results of earlier
    checks.
    """

    def __init__(
        self, root_of: RootOf, cache: Path | None, seconds: float | None, now: datetime
    ) -> None:
        """Begin a session; nothing is read before the first check. See `judge.Judge`."""
        self._root_of, self._cache, self._now = root_of, cache, now
        self._budget = Budget.of(seconds)
        self._trees: dict[str, tuple[Path, WorkingTree] | None] = {}
        self._stack = contextlib.ExitStack()
        self._entries: dict[str, list[Any]] | None = None
        self._salt = b""
        self._is_changed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._save()

    def judge(self, cited: Cited) -> Verdict | None:
        """Return a verdict; None if nothing can be checked here."""
        if not cited.can_be_judged:
            return None
        checks: list[AnchorCheck] = []
        if cited.anchors:
            place = self._tree(cited.tags.get("project"))
            if place is not None:
                checks = self._check(cited, *place)
        return decide(cited, checks, self._now)

    def _tree(self, project: str | None) -> tuple[Path, WorkingTree] | None:
        if project is None:
            return None
        if project not in self._trees:
            self._trees[project] = None
            root = self._root_of(project)
            if root is not None:
                with contextlib.suppress(OSError):
                    tree = self._stack.enter_context(WorkingTree(root))
                    self._trees[project] = root, tree
        return self._trees[project]

    def _check(self, cited: Cited, root: Path, tree: WorkingTree) -> list[AnchorCheck]:
        checks: list[AnchorCheck] = []
        for written in cited.anchors:
            try:
                anchor = grammar.parse(written)
            except InvalidInput:  # another program stored an invalid anchor
                continue
            if anchor.kind not in CHECKED:
                continue
            if self._budget is not None and self._budget.is_spent:
                since = to_millis(cited.confirmed_at)
                checks.append(AnchorCheck(anchor, None, f"{anchor.target} {OUT_OF_TIME}", since))
                continue
            checks.append(self._check_anchor(anchor, cited, root, tree))
        return checks

    def _check_anchor(
        self, anchor: Anchor, cited: Cited, root: Path, tree: WorkingTree
    ) -> AnchorCheck:
        """Check one anchor, reading its file only if it changed since the last check."""
        entries, now = self._load(), to_millis(self._now)
        address = f"{root}\0{anchor}".encode("utf-8", "surrogateescape")
        key = hashlib.blake2b(address, digest_size=12, key=self._salt).hexdigest()
        stamp, held_before, held_at, changed_at = entries.get(key, ([], None, 0, 0))
        look = tree.look(anchor.parts)
        is_current = look.kind == "file" and stamp == list(look.stamp) and not look.why
        if is_current and anchor.kind != PATH:
            holds: bool | None = held_before
        else:
            try:
                look, holds = _read_and_check(anchor, look, tree, self._budget)
            except TimeoutError:
                look, holds = look._replace(why=OUT_OF_TIME), None
        confirmed_at = to_millis(cited.anchored_at) if cited.anchored_at else 0
        known_at = max(held_at, confirmed_at)
        if holds is None:
            since = known_at or to_millis(cited.stated_at)
            return AnchorCheck(anchor, None, f"{anchor.target} {look.why}", since)
        if holds:
            held_at, changed_at = (now if now - held_at >= _DAY_MS else held_at), 0
        elif not changed_at:
            changed_at = _when_changed(look, known_at, now)
        is_racy = bool(look.stamp) and time.time_ns() - look.modified_ns < _RACY_NS
        entry = [[] if is_racy else list(look.stamp), holds, held_at, changed_at]
        if entries.get(key) != entry:
            entries[key] = entry
            self._is_changed = True
        if holds:
            return AnchorCheck(anchor, True)
        reason = _describe_change(anchor, look, was_true=bool(known_at))
        return AnchorCheck(anchor, False, reason, changed_at)

    # --- results of earlier checks

    def _load(self) -> dict[str, list[Any]]:
        if self._entries is not None:
            return self._entries
        self._entries, self._salt = {}, os.urandom(16)
        if self._cache is None:
            return self._entries
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            content = json.loads(self._cache.read_bytes())
            salt, entries = bytes.fromhex(content["salt"]), dict(content["checks"])
            if all(_is_entry(entry) for entry in entries.values()):
                self._salt, self._entries = salt, entries
        return self._entries

    def _save(self) -> None:
        """Save the results of the checks, if they changed and the folder exists."""
        cache = self._cache
        if not self._is_changed or cache is None or self._entries is None:
            return
        latest = dict(list(self._entries.items())[-_MAX_ENTRIES:])
        content = json.dumps({"salt": self._salt.hex(), "checks": latest}, separators=(",", ":"))
        scratch = cache.with_name(f".{cache.name}.{os.getpid()}.{time.monotonic_ns()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        with contextlib.suppress(OSError):  # without the cache, the next check reads the files
            descriptor = os.open(scratch, flags, 0o600)
            try:
                os.write(descriptor, content.encode())
            finally:
                os.close(descriptor)
            scratch.replace(cache)


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, list) or len(entry) != 4:
        return False
    return isinstance(entry[0], list) and isinstance(entry[2], int) and isinstance(entry[3], int)


def settle(anchor: Anchor, tree: WorkingTree) -> Anchor:
    """Check that an explicit anchor holds now; return it in its stored form.

    Raises:
        InvalidInput: The anchor doesn't hold, or can't be checked.
    """
    if anchor.kind not in CHECKED:
        return anchor
    look, holds = _read_and_check(anchor, tree.look(anchor.parts), tree)
    if holds is False and anchor.kind == SYMBOL:
        anchor = anchor._replace(kind=grammar.LITERAL)
        look, holds = _read_and_check(anchor, look, tree)
    if holds is None:
        raise InvalidInput(f"the anchor {anchor} can't be checked: {anchor.target} {look.why}")
    if not holds:
        reason = _describe_change(anchor, look, was_true=False)
        raise InvalidInput(
            f"the anchor {anchor} doesn't hold: {reason}; correct it or leave it out"
        )
    return anchor


def _read_and_check(
    anchor: Anchor, look: Look, tree: WorkingTree, budget: Budget | None = None
) -> tuple[Look, bool | None]:
    """Return the state of an anchor's path, and whether the anchor holds; None if unknown.

    Raises:
        TimeoutError: The check took too long.
    """
    if anchor.kind == PATH:
        return look, _is_there(anchor, look)
    text = ""
    if look.kind == "file" and not look.why:
        look, text = tree.read(anchor.parts)
    if look.kind in ("absent", "folder"):
        return look, False
    if look.why:
        return look, None
    if anchor.kind == SYMBOL:
        return look, contents.defines_symbol(anchor.target, text, anchor.name, budget)
    return look, contents.contains_literal(text, anchor.name, budget)


def _is_there(anchor: Anchor, look: Look) -> bool | None:
    """Return whether an anchor's path exists and, if it ends with a slash, may be a folder."""
    if look.kind == "unreadable":
        return None
    if anchor.target.endswith("/"):
        return look.kind in ("folder", "other")
    return look.kind != "absent"


def _when_changed(look: Look, known: int, now: int) -> int:
    """Return when an anchor stopped holding: when its file was modified, if the anchor is known to
    have held before, else now.
    """
    if not look.stamp:
        return now
    modified = look.modified_ns // 1_000_000
    return modified if known < modified < now else now


def _describe_change(anchor: Anchor, look: Look, was_true: bool) -> str:
    path = anchor.target
    if look.kind == "absent":
        if was_true:
            return f"{path} is gone"
        return f"{path} does not exist"
    if look.kind == "folder" or anchor.kind == PATH:
        kind = "folder" if anchor.kind == PATH else "file"
        if was_true:
            return f"{path} is no longer a {kind}"
        return f"{path} is not a {kind}"
    verb = "define" if anchor.kind == SYMBOL else "contain"
    if was_true:
        return f"{path} no longer {verb}s {anchor.name}"
    return f"{path} does not {verb} {anchor.name}"


def decide(cited: Cited, checks: Sequence[AnchorCheck], now: datetime) -> Verdict | None:
    """Return the verdict on a memory; None if nothing about it can be checked here.

    Args:
        cited: The evidence that the memory cites.
        checks: The results of checking its anchors, if its working tree is available.
        now: The current time.
    """
    if cited.valid_until is not None and now > cited.valid_until:
        day = cited.valid_until.astimezone().date().isoformat()
        return Verdict(EXPIRED, f"it was valid until {day}", cited.valid_until)
    failed = [check for check in checks if check.holds is False]
    if failed:
        more = ""
        if len(failed) > 1:
            more = f", and {len(failed) - 1} more"
        since = min(check.since for check in failed)
        return Verdict(CHANGED, failed[0].why + more, from_millis(since))
    unknown = [check for check in checks if check.holds is None]
    if unknown:
        return Verdict(UNVERIFIED, unknown[0].why, from_millis(unknown[0].since))
    if checks:
        return Verdict(VERIFIED)
    if cited.recheck_days and now > cited.confirmed_at + timedelta(days=cited.recheck_days):
        why = f"it should be confirmed every {amount(cited.recheck_days, 'day', 'days')}"
        return Verdict(UNVERIFIED, why, cited.confirmed_at)
    return None
