"""The conversation at the terminal or through a pipe: each line is a command or a message.

The prompt appears before the model's classes are loaded; they load while the user types.
"""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from memories.core import disk
from memories.core.logs import JsonLines
from memories.errors import ConfigError, MemoriesError
from memories.guard.redactor import Redactor
from memories.integrations.chat.memory import FILE, LongTerm, ShortTerm
from memories.integrations.chat.settings import Settings
from memories.languages import make_visible

if TYPE_CHECKING:
    from memories.integrations.chat.agent import Agent

COMMANDS = {
    "/help": "show the commands",
    "/memories": "show what is known about you",
    "/export": "print what is known about you as JSON lines, or write it to a file: /export PATH",
    "/session-clear": "forget this conversation",
    "/memory-clear": "forget what is known about you",
    "/reset": "forget both",
}
MAX_LOG_BYTES = 1_000_000
_PROMPT = "> "


class Chat:
    """One user's conversation, from the first line to the last."""

    def __init__(self, settings: Settings, redactor: Redactor) -> None:
        """Initialize; nothing is loaded or written yet.

        Args:
            settings: The settings of the chat.
            redactor: Removes secrets from facts.
        """
        self._settings = settings
        self._memory = LongTerm(settings.data / "memory", settings.user_id, redactor)
        self._is_interactive = sys.stdin.isatty()  # a person is typing; the input isn't a pipe
        self._failed = self._resumed = False
        self._agent: Agent | None = None
        self._session: ShortTerm | None = None
        self._loading_error: MemoriesError | None = None
        self._opening = threading.Lock()
        self._loading = threading.Thread(target=self._load, daemon=True)

    def run(self) -> int:
        """Talk until the input ends; return the exit code, which is 1 if a turn failed."""
        for name, value in self._settings.tracing.items():
            os.environ.setdefault(name, value)
        self._loading.start()
        with _logging(self._settings.data), _completing(self._is_interactive):
            for line in self._lines():
                self._handle(line.strip())
        if self._session is not None:
            self._session.close()
        return int(self._failed)

    def _lines(self) -> Iterator[str]:
        if not self._is_interactive:
            yield from sys.stdin
            return
        thread, user = self._settings.thread_id, self._settings.user_id
        _say(f"Kimi, thread {thread} of {user}. /help shows the commands.")
        while True:
            try:
                yield input(_PROMPT)
            except KeyboardInterrupt:
                _say("")
            except EOFError:
                _say("")
                return

    def _handle(self, line: str) -> None:
        if not line:
            return
        try:
            if line.startswith("/"):
                self._command(*line.split(maxsplit=1))
            else:
                self._finish()
                self._turn(line)
        except KeyboardInterrupt:
            _say("\nStopped; the turn was dropped.")
        except (MemoriesError, OSError) as exc:
            self._fail(str(exc))

    def _turn(self, text: str) -> None:
        from memories.integrations.chat.agent import TurnFailed

        try:
            self._ready().answer(text, _stream)
            _say("")
        except TurnFailed as exc:
            self._fail(f"the turn failed and was dropped: {exc}")

    def _finish(self) -> None:
        """Before the first message, finish the turn that was interrupted when the chat last
        ended.
        """
        if self._resumed:
            return
        agent = self._ready()
        self._resumed = True
        question = agent.find_unfinished()
        if question is None:
            return
        from memories.integrations.chat.agent import TurnFailed

        _to_stderr(f'finishing the interrupted turn: "{_escape(question[:80])}"')
        try:
            agent.finish(_stream)
            _say("")
        except TurnFailed as exc:
            self._fail(f"the turn failed and was dropped: {exc}")

    # --- commands

    def _command(self, name: str, argument: str = "") -> None:
        if name not in COMMANDS:
            self._fail(f"there is no command {_escape(name)}; use {', '.join(COMMANDS)}")
        elif argument and name != "/export":
            self._fail(f"{name} takes no argument; nothing was done")
        elif name == "/help":
            _say("\n".join(f"{command:<15}  {help_}" for command, help_ in COMMANDS.items()))
            _say("Ctrl-C stops an answer, Ctrl-D ends the chat.")
        elif name == "/memories":
            self._list_facts()
        elif name == "/export":
            self._export(argument)
        else:
            self._clear(session=name != "/memory-clear", memory=name != "/session-clear")

    def _list_facts(self) -> None:
        facts = self._memory.all()
        lines = [
            f"{fact.updated_at[:10]}  {fact.kind:<10}  {_escape(fact.content)}" for fact in facts
        ]
        _say("\n".join(lines))
        count = "1 fact is" if len(facts) == 1 else f"{len(facts)} facts are"
        _say(f"{count} known about {self._settings.user_id}.")

    def _clear(self, *, session: bool, memory: bool) -> None:
        if session:
            thread = self._settings.thread_id
            if self._agent is not None:
                self._agent.settle()
            is_cleared = self._open_session().clear()
            _say(f"The session {thread} {'was cleared' if is_cleared else 'was already empty'}.")
        if memory:
            user = self._settings.user_id
            if self._memory.clear():
                _say(f"Everything known about {user} was cleared.")
            else:
                _say(f"Nothing was known about {user}.")

    def _export(self, path: str) -> None:
        lines = "".join(f"{fact.line}\n" for fact in self._memory.all())
        if not path:
            sys.stdout.write(lines)
            return
        target = Path(path).expanduser()
        if os.path.lexists(target):
            self._fail(f"{_escape(path)} already exists; name a new file")
            return
        with disk.replacing(target) as stream:
            stream.write(lines.encode())
        _say(f"{lines.count(chr(10))} facts were written to {_escape(path)}.")

    # --- loading

    def _load(self) -> None:
        try:
            session = self._open_session()
            from memories.integrations.chat.agent import Agent
            from memories.integrations.chat.memory import recall_of

            self._agent = Agent(
                self._settings, session, self._memory, recall_of(self._settings, self._memory)
            )
        except Exception as exc:  # noqa: BLE001 - raised when an answer is needed
            self._loading_error = _load_error(exc)

    def _ready(self) -> "Agent":
        self._loading.join()
        if self._loading_error is not None:
            raise self._loading_error
        assert self._agent is not None
        return self._agent

    def _open_session(self) -> ShortTerm:
        with self._opening:
            if self._session is None:
                # two users never share a session
                thread = f"{self._settings.user_id}:{self._settings.thread_id}"
                self._session = ShortTerm(self._settings.data / FILE, thread)
            return self._session

    def _fail(self, why: str) -> None:
        self._failed = True
        _to_stderr(f"error: {why}")


def _load_error(exc: Exception) -> MemoriesError:
    """Return a `MemoriesError` that says why the chat can't start."""
    if isinstance(exc, MemoriesError):
        return exc
    if isinstance(exc, ImportError):
        from memories.core.installation import install_command

        return ConfigError(
            f"a package of the chat is missing ({exc}); run: {install_command('chat')}"
        )
    return ConfigError(f"the chat can't start ({type(exc).__name__}: {exc})")


def _escape(text: str) -> str:
    """Return a text without characters that control a terminal."""
    return make_visible(text, _escape_character)


def _escape_character(character: str) -> str:
    return f"\\u{{{ord(character):x}}}"


def _stream(piece: str) -> None:
    sys.stdout.write(make_visible(piece, _escape_character, keep="\n\t\u200c\u200d\ufe0f"))
    sys.stdout.flush()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _to_stderr(line: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class _Notes(logging.Handler):
    """Prints each warning as one line on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        _to_stderr(f"warning: {record.getMessage()}")


@contextlib.contextmanager
def _logging(folder: Path) -> Iterator[None]:
    """Log each step's duration, without content, to `chat.log`; also print warnings to standard
    error.
    """
    logger = logging.getLogger("memories.chat")
    disk.make_folder(folder)
    path = folder / "chat.log"
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    os.close(os.open(path, disk.CREATING | os.O_APPEND | os.O_WRONLY, 0o600))
    to_file, to_user = logging.FileHandler(path, encoding="utf-8"), _Notes(logging.WARNING)
    to_file.setFormatter(JsonLines())
    logger.setLevel(logging.INFO)
    logger.propagate = False
    for handler in (to_file, to_user):
        logger.addHandler(handler)
    try:
        yield
    finally:
        for handler in (to_file, to_user):
            logger.removeHandler(handler)
        to_file.close()


@contextlib.contextmanager
def _completing(is_interactive: bool) -> Iterator[None]:
    """Let the terminal complete commands and recall earlier lines, which are not saved to disk."""
    if not is_interactive:
        yield
        return
    import readline

    def complete(prefix: str, number: int) -> str | None:
        matches = [name for name in COMMANDS if prefix and name.startswith(prefix)]
        return matches[number] if number < len(matches) else None

    readline.set_completer_delims("")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    yield
    readline.set_completer(None)
