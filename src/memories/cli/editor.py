"""Lets a person edit text in an editor; saved text is never lost."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from memories.cli.output import note
from memories.errors import ConfigError, InvalidInput, MemoriesError, RequestError

_EDITORS = ("sensible-editor", "nano", "vim", "vi")  # tried if neither VISUAL nor EDITOR is set
_FILE = "memory.txt"


def edit_text(content: str, store: Callable[[str], None], *, instead: str) -> bool:
    """Let the user edit a text, and store the result; return whether it was changed.

    The file is in a folder that only the user can read. The folder is removed afterwards, unless
    the saved text could not be stored.

    Args:
        content: The text.
        store: Stores the new text.
        instead: The command to use without a terminal.

    Raises:
        InvalidInput: There is no terminal, or the saved file is empty or not text.
        ConfigError: There is no editor.
        MemoriesError: The text could not be stored; the message names the file that keeps it.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput(
            f"there is no terminal to edit on; give the new text: {instead}, "
            "or - to read it from a pipe"
        )
    import shutil
    import tempfile

    editor = _find_editor()
    folder = Path(tempfile.mkdtemp(prefix="memory-"))
    file = folder / _FILE
    unsaved = False
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(f"{content}\n".encode())
        _run([*editor, str(file)])
        unsaved = file.exists() and bool(file.read_bytes().strip())
        text = _read_saved(file, content)
        if text is not None:
            store(text)
        unsaved = False
    except MemoriesError as exc:
        if unsaved:
            raise type(exc)(f"{exc}; your text is kept in {file}") from exc
        raise
    except KeyboardInterrupt:
        if unsaved:
            note(f"Your text is kept in {file}")
        raise
    finally:
        if not unsaved:
            shutil.rmtree(folder, ignore_errors=True)
    return text is not None


def _find_editor() -> list[str]:
    """Return the editor and its arguments.

    Raises:
        ConfigError: There is no editor, or the variable that names it can't be parsed.
    """
    import shlex
    import shutil

    for variable in ("VISUAL", "EDITOR"):
        command = os.environ.get(variable, "").strip()
        if not command:
            continue
        try:
            return shlex.split(command)
        except ValueError as exc:
            raise ConfigError(f"{variable} can't be parsed ({exc}); balance its quotes") from exc
    for name in _EDITORS:
        if path := shutil.which(name):
            return [path]
    raise ConfigError("there is no editor; set VISUAL or EDITOR to one")


def _run(argv: Sequence[str]) -> None:
    """Run an editor without a shell and wait for it; Ctrl-C goes to the editor.

    Raises:
        ConfigError: The editor can't be started.
        RequestError: The editor failed.
    """
    import subprocess

    def ignore(*_: object) -> None:  # because the editor would inherit SIG_IGN
        pass

    before = signal.signal(signal.SIGINT, ignore)
    try:
        code = subprocess.run(argv, check=False).returncode  # noqa: S603 - the user's own variable names it
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise ConfigError(
            f"cannot start the editor {argv[0]}: {reason}; set VISUAL or EDITOR to another one"
        ) from exc
    finally:
        signal.signal(signal.SIGINT, before)
    if code:
        raise RequestError(f"the editor {argv[0]} ended with exit code {code}; nothing was changed")


def _read_saved(file: Path, before: str) -> str | None:
    """Return the saved text without the newline that editors add; None if nothing was changed.

    Raises:
        InvalidInput: The file is empty, missing or not text.
    """
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InvalidInput(
            "the file was removed, so there is no new text; nothing was changed"
        ) from None
    except UnicodeDecodeError as exc:
        raise InvalidInput(
            f"the saved file is not UTF-8 (byte {exc.start}); nothing was changed"
        ) from None
    if "\r\n" not in before:
        text = text.replace("\r\n", "\n")
    text = text.rstrip("\r\n")
    if not text.strip():
        raise InvalidInput(
            "the saved file is empty; nothing was changed; memory delete removes a memory"
        )
    return None if text == before.rstrip("\r\n") else text
