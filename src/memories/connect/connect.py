"""Connects and disconnects hosts: plans the changes, then writes all of them or none."""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from memories.connect import files
from memories.connect.entries import (
    PLUGIN_MARK,
    Entries,
    parse,
    put_hooks,
    put_server,
    put_table,
    remove_entries,
    remove_table,
)
from memories.connect.files import WrittenFile
from memories.connect.hosts import Files, Host, Where, load_hosts
from memories.connect.program import CAPTURING, Program, hook_command
from memories.core.disk import locked
from memories.errors import InvalidInput
from memories.hooks.hook import EVENTS

SCOPES = ("user", "project")


class Target(NamedTuple):
    """A host to connect or disconnect, and how.

    Attributes:
        name: The name of the host in `hosts.toml`.
        scope: `user` or `project`.
        root: The project's folder.
        capture: Whether to capture the conversation as well.
        namespace: The namespace to write into the commands; None to leave it to the settings.
    """

    name: str
    scope: str
    root: Path
    capture: bool = False
    namespace: str | None = None

    @property
    def host(self) -> Host:
        """The host."""
        return load_hosts()[self.name]

    @property
    def is_private(self) -> bool:
        """Whether the files are the user's own rather than a project's."""
        return self.scope == "user"

    @property
    def place(self) -> tuple[str, str, str]:
        """The host, scope and root, as in a receipt."""
        return self.name, self.scope, "" if self.is_private else str(self.root)

    def read(self, path: Path) -> bytes | None:
        """Return the content of a file that belongs to the host; see `files.read`."""
        return files.read(path, inside=None if self.is_private else self.root)

    def refuse_changed(self, change: "FileChange") -> None:
        """Raise an error if another program has changed a file since this program read it."""
        if self.read(change.path) != change.before:
            raise InvalidInput(
                f"{change.path} was changed by another program in the meantime; run this command "
                "again"
            )


class FileChange(NamedTuple):
    """A change to one file.

    Attributes:
        path: The file.
        before: The content before the change; None if the file does not exist.
        after: The content after the change; None if the file is removed.
    """

    path: Path
    before: bytes | None
    after: bytes | None


class Connector:
    """Connects hosts, and keeps receipts of the files it wrote.

    Attributes:
        where: The user, environment and system, which determine where hosts' files are.
        folder: The register's folder.
    """

    def __init__(self, where: Where, folder: Path) -> None:
        self.where, self.folder = where, folder

    def files(self, target: Target) -> Files:
        """Return a host's files.

        Raises:
            InvalidInput: The host has no files in projects, or the project is the home folder.
        """
        host = target.host
        if target.is_private:
            return host.user_files(self.where)
        if not host.project:
            raise InvalidInput(
                f"{host.title} has no per-project configuration files; omit --scope project"
            )
        if os.path.realpath(target.root) == os.path.realpath(self.where.home):
            raise InvalidInput(
                "the working folder is your home folder, not a project; omit --scope project"
            )
        return host.project_files(target.root)

    def plan_connect(self, target: Target, entries: Entries) -> list[FileChange]:
        """Return the changes that connect a host; empty if it is already connected in this way.

        Raises:
            InvalidInput: A file is malformed or must not be changed; the message says which and
                why.
        """
        host, host_files = target.host, self.files(target)
        changes = []
        for path in host_files.paths:
            before = target.read(path)
            if path == host_files.plugin:
                if before is not None and not before.startswith(PLUGIN_MARK.encode()):
                    raise InvalidInput(
                        f"{path} is not our plugin; rename the file first; nothing was changed"
                    )
                after: bytes | None = entries.plugin.encode()
            elif path.suffix == ".toml":
                text, mark = files.decode(before, path)
                after = (mark + put_table(text, host, entries.server, str(path))).encode()
            else:
                after = _edit(path, before, host, host_files, entries)
            if after != before and not (_is_empty(before) and _is_empty(after)):
                files.refuse_read_only(path)
                changes.append(FileChange(path, before, after))
        return changes

    def plan_disconnect(self, target: Target) -> list[FileChange]:
        """Return the changes that disconnect a host.

        Raises:
            InvalidInput: A file is malformed or must not be changed; the message says which and
                why.
        """
        host_files = self.files(target)
        written = self._written_files(target)
        changes = []
        for path in host_files.paths:
            before = target.read(path)
            if before is None:
                continue
            record = written.get(str(path))
            if record is not None and _can_restore(record, before):
                after = _earlier_content(record)
            elif path == host_files.plugin:
                after = None if before.startswith(PLUGIN_MARK.encode()) else before
            else:
                after = _without_entries(path, before, target.host, record)
            if after != before:
                files.refuse_read_only(path)
                changes.append(FileChange(path, before, after))
        return changes

    def _written_files(self, target: Target) -> dict[str, WrittenFile]:
        receipt = files.find_receipt(self.folder, target.place)
        return {file.path: file for file in receipt.files} if receipt else {}

    def connect(self, target: Target, changes: Sequence[FileChange]) -> list[WrittenFile]:
        """Write the changes that connect a host; return a record of each file.

        Raises:
            InvalidInput: A file has changed in the meantime.
            SystemFault: A file can't be written.
        """
        with locked(self.folder / "connect.lock"), _all_or_none(target) as applied:
            records = self._written_files(target)
            written = self._apply(target, changes, records, applied, keep_copies=True)
            records.update((file.path, file) for file in written)
            try:
                files.keep_receipt(self.folder, target.place, list(records.values()))
            except OSError as exc:
                raise files.write_error(self.folder / files.REGISTER, exc) from exc
        return written

    def disconnect(self, target: Target, changes: Sequence[FileChange]) -> None:
        """Write the changes that disconnect a host, and remove these files from its receipt.

        Files in another folder stay in the receipt: a variable such as `CLAUDE_CONFIG_DIR` may
        have named a different folder when the host was connected.

        Raises:
            InvalidInput: A file has changed in the meantime.
            SystemFault: A file can't be written.
        """
        with locked(self.folder / "connect.lock"):
            paths = set(map(str, self.files(target).paths))
            written_files = self._written_files(target)
            records = {path: file for path, file in written_files.items() if path in paths}
            with _all_or_none(target) as applied:
                self._apply(target, changes, records, applied, keep_copies=False)
            folders: list[str] = []
            for written in records.values():
                folders += written.folders
            files.remove_empty(folders)
            for change in changes:
                record = records.get(str(change.path))
                if record is None or not record.before:
                    continue
                before = change.before or b""
                if _can_restore(record, before) and _earlier_content(record) == change.after:
                    Path(record.before).unlink(missing_ok=True)  # restored, so no longer needed
            others = [file for path, file in written_files.items() if path not in paths]
            files.keep_receipt(self.folder, target.place, others)

    def _apply(
        self,
        target: Target,
        changes: Sequence[FileChange],
        records: dict[str, WrittenFile],
        applied: list[tuple[FileChange, list[str]]],
        *,
        keep_copies: bool,
    ) -> list[WrittenFile]:
        """Write all changes, and add each written one to `applied` with the folders created for it.

        Returns:
            A record of each file that was written and not removed.
        """
        written = []
        for change in changes:
            check = partial(target.refuse_changed, change)
            folders: list[str] = []
            try:
                check()
                if change.after is None:
                    files.remove(change.path)
                else:
                    record = records.get(str(change.path))
                    copy = self._copy(target, change, record) if keep_copies else None
                    folders = files.write(
                        change.path, change.after, private=target.is_private, check=check
                    )
                    written.append(_record(change, change.after, copy, folders, record))
                applied.append((change, folders))
            except OSError as exc:
                raise files.write_error(change.path, exc) from exc
        return written

    def _copy(self, target: Target, change: FileChange, record: WrittenFile | None) -> Path | None:
        """Keep a copy of the earlier content, unless we wrote that content ourselves."""
        if change.before is None:
            return None
        if record is not None and record.after == files.digest(change.before):
            return None
        folder = Path(os.path.abspath(change.path)).parent  # noqa: PTH100 - next to a link, not to its target
        if not target.is_private:
            folder = self.folder / "copies"
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return files.copy(change.path, change.before, folder, datetime.now(UTC))


def _edit(
    path: Path, before: bytes | None, host: Host, host_files: Files, entries: Entries
) -> bytes | None:
    """Return a JSON file's content with our entries."""
    text, mark = files.decode(before, path)
    document = parse(host, text, str(path))
    original = document.text
    if path == host_files.server:
        put_server(document, host, entries.server, str(path))
    if path == host_files.hooks:
        put_hooks(document, host, entries.hooks, str(path))
    if document.text == original:
        return before
    return (mark + document.text).encode()


def _can_restore(record: WrittenFile, data: bytes) -> bool:
    """Return whether a file's earlier content can be restored.

    That content must be known, and no other program may have changed the file since our change.
    """
    if not record.exact or record.after != files.digest(data):
        return False
    return not record.existed or (record.before is not None and Path(record.before).is_file())


def _earlier_content(record: WrittenFile) -> bytes | None:
    """Return the earlier content of a file; None if it did not exist or is unknown."""
    if not record.existed or record.before is None or not Path(record.before).is_file():
        return None
    return Path(record.before).read_bytes()


def _without_entries(
    path: Path, data: bytes, host: Host, record: WrittenFile | None
) -> bytes | None:
    """Return a file's content without our entries; None if we created it and nothing remains."""
    text, mark = files.decode(data, path)
    if _is_empty(data):
        return data
    if path.suffix == ".toml":
        remainder = remove_table(text, host, str(path))
    else:
        document = parse(host, text, str(path))
        earlier = None if record is None else _earlier_content(record)
        remove_entries(document, host, parse(host, files.decode(earlier, path)[0], str(path)))
        is_changed = document.text.strip() != text.strip()
        remainder = document.text if is_changed else text
    is_created = record is not None and not record.existed
    if remainder != text and is_created and remainder.strip() in ("", "{}"):
        return None
    return (mark + remainder).encode()


def _is_empty(data: bytes | None) -> bool:
    return data is None or not data.removeprefix(b"\xef\xbb\xbf").strip(b"{}\r\n ")


def _record(
    change: FileChange,
    after: bytes,
    copy: Path | None,
    folders: list[str],
    earlier: WrittenFile | None,
) -> WrittenFile:
    """Return the record of a changed file.

    If no other program has changed the file since the host was first connected, the content from
    before our first change can still be restored.
    """
    before = None if copy is None else str(copy)
    existed, exact = change.before is not None, True
    if earlier is not None and change.before is not None:
        folders = [*folders, *earlier.folders]
        existed, exact = earlier.existed, earlier.exact and copy is None
        if exact:
            before = earlier.before
    return WrittenFile(str(change.path), before, existed, exact, files.digest(after), folders)


@contextlib.contextmanager
def _all_or_none(target: Target) -> Iterator[list[tuple[FileChange, list[str]]]]:
    """Yield a list for the applied changes; if the block fails, restore their files."""
    applied: list[tuple[FileChange, list[str]]] = []
    try:
        yield applied
    except BaseException:
        for change, folders in reversed(applied):
            if change.before is None:
                files.remove(change.path)
                files.remove_empty(folders)
            else:
                files.write(change.path, change.before, private=target.is_private)
        raise


def make_entries(target: Target, program: Program, environment: dict[str, str]) -> Entries:
    """Return the entries that a host needs.

    Args:
        target: The host.
        program: The command that starts this program.
        environment: The environment of the MCP server.
    """
    host = target.host
    namespace = [] if target.namespace is None else ["-n", target.namespace]
    command, *arguments = program.command
    server = host.server_entry(command, [*arguments, "mcp", *namespace], environment)
    options = ["--capture", *namespace] if target.capture else namespace
    hooks = {}
    for event in EVENTS:
        if event in host.hooks and (target.capture or event not in CAPTURING):
            name = host.hooks[event].name
            hooks[name] = hook_command(program.command, event, target.name, options)
    return Entries(server, hooks, render_plugin(program.command, target.capture, options))


def render_plugin(command: Sequence[str], capture: bool, options: Sequence[str]) -> str:
    """Return the text of the plugin for opencode."""
    head = [
        PLUGIN_MARK,
        f"const COMMAND = {json.dumps(list(command))}",
        f"const OPTIONS = {json.dumps(list(options))}",
        f"const CAPTURE = {json.dumps(capture)}",
    ]
    body = Path(__file__).with_name("opencode.js").read_text("utf-8")
    return "\n".join([*head, "", body])
