"""Connecting a host and disconnecting it: what changes in which file, and doing it, all of it or
nothing.
"""

import json
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from memories.connect import files, receipts
from memories.connect.entries import (
    PLUGIN_MARK,
    Wanted,
    containers,
    opened,
    put_hooks,
    put_server,
    put_table,
    take_entries,
    take_table,
)
from memories.connect.hosts import HOSTS, Files, Host, Where
from memories.connect.program import CAPTURING, EVENTS, Program, hook
from memories.connect.receipts import Receipt, Written
from memories.core.disk import locked
from memories.errors import InvalidInput

SCOPES = ("user", "project")


class Asked(NamedTuple):
    """What is asked of a host.

    Attributes:
        host: The host, a key of `HOSTS`.
        scope: `user` or `project`.
        root: The folder of the project.
        capture: Also keep what is said.
        namespace: The namespace to write into the commands; None for that of the settings.
    """

    host: str
    scope: str
    root: Path
    capture: bool = False
    namespace: str | None = None


class Change(NamedTuple):
    """A file that changes: what it holds, and what it shall hold; None where there is none."""

    path: Path
    before: bytes | None
    after: bytes | None
    made: tuple[tuple[str, ...], ...] = ()


class Connector:
    """Knows where hosts' files are and what was written there.

    Attributes:
        where: Where hosts' files are.
        folder: The folder of the register.
    """

    def __init__(self, where: Where, folder: Path) -> None:
        self.where, self.folder = where, folder

    def files(self, asked: Asked) -> Files:
        """Return the files of a host.

        Raises:
            InvalidInput: It has none in this scope.
        """
        host = HOSTS[asked.host]
        if asked.scope == "user":
            return host.user(self.where)
        if host.project is None:
            raise InvalidInput(
                f"{host.title} has no configuration of its own in a project; leave --scope project out"
            )
        if os.path.realpath(asked.root) == os.path.realpath(self.where.home):
            raise InvalidInput(
                "the working folder is your home, not a project; leave --scope project out"
            )
        return host.project(asked.root)

    # --- what would change ---

    def plan(self, asked: Asked, wanted: Wanted) -> list[Change]:
        """Return what connecting a host changes; nothing, if it is connected as it is asked.

        Raises:
            InvalidInput: A file is broken, or not to be changed; the sentence says which and why.
        """
        host, found = HOSTS[asked.host], self.files(asked)

        def server(document: Any, name: str) -> None:
            put_server(document, host, wanted.server, name)

        def hooks(document: Any, name: str) -> None:
            put_hooks(document, host, wanted.hooks, name)

        changes = []
        for path in dict.fromkeys(path for path in found if path is not None):
            data = self.read(path, asked)
            if path == found.plugin:
                self._refuse_foreign_plugin(path, data)
                after: bytes | None = wanted.plugin.encode()
                made: tuple[tuple[str, ...], ...] = ()
            elif path.suffix == ".toml":
                text, mark = files.decoded(data, path)
                after, made = (mark + put_table(text, host, wanted.server, str(path))).encode(), ()
            else:
                edits = [
                    edit
                    for edit, place in ((server, found.server), (hooks, found.hooks))
                    if place == path
                ]
                after, made = self._edited(path, data, host, edits)
            if after != data and not (_is_empty(data) and _is_empty(after)):
                files.refuse_read_only(path)
                changes.append(Change(path, data, after, made))
        return changes

    def _edited(
        self,
        path: Path,
        data: bytes | None,
        host: Host,
        edits: Sequence[Callable[[Any, str], None]],
    ) -> tuple[bytes | None, tuple[tuple[str, ...], ...]]:
        text, mark = files.decoded(data, path)
        document = opened(host, text, str(path))
        untouched = document.text
        there = containers(document, host)
        for edit in edits:
            edit(document, str(path))
        made = [each for each in containers(document, host) if each not in there]
        if document.text == untouched:
            return data, ()
        return (mark + document.text).encode(), tuple(tuple(map(str, each)) for each in made)

    def plan_undo(self, asked: Asked) -> list[Change]:
        """Return what disconnecting a host changes.

        Raises:
            InvalidInput: A file is broken, or not to be changed; the sentence says which and why.
        """
        host, found = HOSTS[asked.host], self.files(asked)
        receipt = self._receipt(asked)
        written = {each.path: each for each in receipt.files} if receipt else {}
        changes = []
        for path in dict.fromkeys(path for path in found if path is not None):
            data = self.read(path, asked)
            if data is None:
                continue
            known = written.get(str(path))
            after = self._as_before(data, known)
            if after is NotImplemented:
                after = self._without(path, data, host, known, plugin=path == found.plugin)
            if after != data:
                files.refuse_read_only(path)
                changes.append(Change(path, data, after))
        return changes

    def _as_before(self, data: bytes, known: Written | None) -> Any:
        """Return what was there before, if nothing else has changed since; NotImplemented
        otherwise.
        """
        if known is None or not known.exact or known.after != files.digest(data):
            return NotImplemented
        if not known.existed:
            return None
        copy = Path(known.before) if known.before else None
        return copy.read_bytes() if copy is not None and copy.is_file() else NotImplemented

    def _without(
        self, path: Path, data: bytes, host: Host, known: Written | None, *, plugin: bool
    ) -> bytes | None:
        text, mark = files.decoded(data, path)
        if _is_empty(data):
            return data
        if plugin:
            return None if text.startswith(PLUGIN_MARK) else data
        if path.suffix == ".toml":
            rest = take_table(text, host, str(path))
        else:
            document = opened(host, text, str(path))
            take_entries(document, host, None if known is None else known.made)
            rest = document.text if document.text.strip() != text.strip() else text
        if rest != text and known is not None and not known.existed and rest.strip() in ("", "{}"):
            return None
        return (mark + rest).encode()

    def read(self, path: Path, asked: Asked) -> bytes | None:
        """Return what a file holds; see `files.read`."""
        return files.read(path, inside=asked.root if asked.scope == "project" else None)

    def _refuse_foreign_plugin(self, path: Path, data: bytes | None) -> None:
        if data is not None and not data.startswith(PLUGIN_MARK.encode()):
            raise InvalidInput(f"{path} is another plugin; rename it first; nothing was changed")

    def _receipt(self, asked: Asked) -> Receipt | None:
        return receipts.find(receipts.load(self.folder), asked.host, asked.scope, _root(asked))

    # --- doing it ---

    def connect(self, asked: Asked, changes: Sequence[Change]) -> list[Written]:
        """Write what connecting a host changes; return what was written, with the copies of what
        was there.

        Raises:
            InvalidInput: A file has changed meanwhile.
            SystemFault: A file can't be written.
        """
        with locked(self.folder / "connect.lock"):
            before = self._receipt(asked)
            known = {each.path: each for each in before.files} if before else {}
            written = self._apply(asked, changes, known)
            done = {**known, **{each.path: each for each in written}}
            receipts.keep(self.folder, asked.host, asked.scope, _root(asked), list(done.values()))
        return written

    def disconnect(self, asked: Asked, changes: Sequence[Change]) -> None:
        """Write what disconnecting a host changes, and forget that it was connected.

        Raises:
            InvalidInput: A file has changed meanwhile.
            SystemFault: A file can't be written.
        """
        with locked(self.folder / "connect.lock"):
            receipt = self._receipt(asked)
            known = {each.path: each for each in receipt.files} if receipt else {}
            self._apply(asked, changes, known, undoing=True)
            files.remove_empty([folder for each in known.values() for folder in each.folders])
            for change in changes:
                each = known.get(str(change.path))
                if (
                    each is not None
                    and each.before
                    and self._as_before(change.before or b"", each) == change.after
                ):
                    Path(each.before).unlink(missing_ok=True)  # it is what is there again
            receipts.keep(self.folder, asked.host, asked.scope, _root(asked), [])

    def _apply(
        self,
        asked: Asked,
        changes: Sequence[Change],
        known: dict[str, Written],
        *,
        undoing: bool = False,
    ) -> list[Written]:
        done: list[tuple[Change, list[str]]] = []
        written = []
        for change in changes:
            still = partial(self._refuse_changed, change, asked)
            try:
                still()
                earlier = known.get(str(change.path))
                folders: list[str] = []
                if change.after is None:
                    files.remove(change.path)
                else:
                    copy = None if undoing else self._copied(asked, change, earlier)
                    folders = files.write(
                        change.path, change.after, private=asked.scope == "user", agreed=still
                    )
                    written.append(_written(change, copy, folders, earlier))
                done.append((change, folders))
            except BaseException as exc:
                _put_back(done, private=asked.scope == "user")
                if isinstance(exc, OSError):
                    raise files.unwritable(change.path, exc) from exc
                raise
        return written

    def _refuse_changed(self, change: Change, asked: Asked) -> None:
        if self.read(change.path, asked) != change.before:
            raise InvalidInput(
                f"{change.path} was changed by another program meanwhile; run this again"
            )

    def _copied(self, asked: Asked, change: Change, earlier: Written | None) -> Path | None:
        """Keep a copy of what was there, unless that is only what we wrote ourselves."""
        if change.before is None or (
            earlier is not None and earlier.after == files.digest(change.before)
        ):
            return None
        beside = Path(os.path.abspath(change.path)).parent  # noqa: PTH100 - beside a link, not beside its target
        folder = beside if asked.scope == "user" else self.folder / "copies"
        if asked.scope != "user":
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return files.copy(change.path, change.before, folder, datetime.now(UTC))


def _is_empty(data: bytes | None) -> bool:
    return data is None or not data.removeprefix(b"\xef\xbb\xbf").strip(b"{}\r\n ")


def _root(asked: Asked) -> str:
    return "" if asked.scope == "user" else str(asked.root)


def _written(
    change: Change, copy: Path | None, folders: list[str], earlier: Written | None
) -> Written:
    """Return what is noted of a file; if only we had changed it, it can still be as it was before
    that.
    """
    assert change.after is not None
    before, existed, exact = None if copy is None else str(copy), change.before is not None, True
    if earlier is not None and change.before is not None:
        made, all_folders = change.made + earlier.made, (*folders, *earlier.folders)
        existed, exact = earlier.existed, earlier.exact and copy is None
        before = earlier.before if exact else before
    else:
        made, all_folders = change.made, tuple(folders)
    return Written(
        str(change.path), before, existed, exact, files.digest(change.after), made, all_folders
    )


def _put_back(done: Sequence[tuple[Change, list[str]]], *, private: bool) -> None:
    for change, folders in reversed(done):
        if change.before is None:
            files.remove(change.path)
            files.remove_empty(folders)
        else:
            files.write(change.path, change.before, private=private)


# --- what is wanted
# ------------------------------------------------------------------------------------------------


def wanted(asked: Asked, program: Program, environment: dict[str, str]) -> Wanted:
    """Return what shall be in the files of a host.

    Args:
        asked: What is asked of it.
        program: What starts the command.
        environment: What its server is started with.
    """
    host = HOSTS[asked.host]
    named = [] if asked.namespace is None else ["-n", asked.namespace]
    command, *before = program.command
    entry = host.entry(command, [*before, "mcp", *named], environment)
    options = [*(["--capture"] if asked.capture else []), *named]
    events = [
        event
        for event in EVENTS
        if event in host.hooks and (asked.capture or event not in CAPTURING)
    ]
    hooks = {
        host.hooks[event].name: hook(program.command, event, asked.host, options)
        for event in events
    }
    return Wanted(entry, hooks, plugin(program.command, asked.capture, options))


def plugin(command: Sequence[str], capture: bool, options: Sequence[str]) -> str:
    """Return the text of the plugin for opencode."""
    head = [
        PLUGIN_MARK,
        f"const COMMAND = {json.dumps(list(command))}",
        f"const OPTIONS = {json.dumps(list(options))}",
        f"const CAPTURE = {json.dumps(capture)}",
    ]
    return "\n".join([*head, "", _body()])


@cache
def _body() -> str:
    return Path(__file__).with_name("opencode.js").read_text("utf-8")
