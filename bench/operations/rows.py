"""The rows of the comparison: each gives every system the same inputs and counts the results."""

import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench import agents_memory
from bench.operations import inputs
from bench.operations.server import Refused
from bench.operations.systems import System

AGENTS, WRITES_EACH = 8, 25
KILLS = 5
BEST = 5  # results asked for
CHARACTERS_PER_TOKEN = 4
_MARKED = re.compile(
    r"suspicious|untrusted|not instructions|injection|quarantine|flagged", re.IGNORECASE
)
_STALE = re.compile(r"\bchanged\b|no longer|\bstale\b|outdated|is gone|missing", re.IGNORECASE)


class Case(NamedTuple):
    """One case of a row.

    Attributes:
        name: The case.
        value: A count, or a measured value.
        out_of: The maximum of the count; 0 for a measurement.
        measure: The thing that is counted, in rows that count several things.
        detail: A remark.
    """

    name: str
    value: float
    out_of: int = 1
    measure: str = ""
    detail: str = ""


class Room:
    """Fresh homes and projects for a system; all are removed at the end."""

    def __init__(self, system: System, folder: Path) -> None:
        self.system = system
        self.folder = folder
        self._homes = 0

    def home(self) -> Path:
        """Return an empty home."""
        self._homes += 1
        home = self.folder / f"home-{self._homes}"
        home.mkdir()
        return home

    def project(self, name: str = "work") -> Path:
        """Return the folder of a project, a git repository."""
        project = self.folder / name
        git = project / ".git"
        for part in ("objects", "refs"):
            (git / part).mkdir(parents=True, exist_ok=True)
        (git / "HEAD").write_text("ref: refs/heads/main\n")
        (git / "config").write_text(f'[remote "origin"]\n\turl = https://example.org/{name}.git\n')
        return project

    @contextmanager
    def session(self, home: Path, project: str = "work") -> Iterator[Any]:
        """Open a session of the system and close it."""
        session = self.system.open(home, self.project(project))
        try:
            yield session
        finally:
            session.close()

    def contents(self, home: Path) -> Iterator[bytes]:
        """Yield the content of all files below a home; links are not followed."""
        for folder, _, names in os.walk(home):
            for name in names:
                file = Path(folder) / name
                if file.is_file() and not file.is_symlink():
                    yield file.read_bytes()

    def add(self, session: Any, text: str) -> str:
        """Store a text; return its id, or nothing if the system refused it."""
        try:
            return self.system.add(session, text)
        except Refused:
            return ""


@contextmanager
def room(system: System, scratch: Path) -> Iterator[Room]:
    """Make a room and remove it."""
    folder = Path(tempfile.mkdtemp(dir=scratch)).absolute()
    try:
        yield Room(system, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_at_once(room: Room) -> Iterator[Case]:
    """8 agents store 25 texts each at the same time. Each agent has its own server, which is
    started before the first write.
    """
    home = room.home()
    texts = inputs.statements(AGENTS * WRITES_EACH)

    with ExitStack() as stack, ThreadPoolExecutor(AGENTS) as pool:
        sessions = [stack.enter_context(room.session(home)) for _ in range(AGENTS)]

        def write(agent: int) -> list[str]:
            return [text for text in texts[agent::AGENTS] if room.add(sessions[agent], text)]

        acknowledged = [text for part in pool.map(write, range(AGENTS)) for text in part]
    stored = set(room.system.stored(home))
    yield Case("8 agents", len(acknowledged), len(texts), "acknowledged")
    kept = sum(text in stored for text in acknowledged)
    yield Case("8 agents", kept, len(acknowledged), "kept")


def kill(room: Room) -> Iterator[Case]:
    """The server is killed with SIGKILL while it writes, five times: is each acknowledged text
    kept?
    """
    for number in range(1, KILLS + 1):
        home = room.home()
        session = room.system.open(home, room.project())
        if not hasattr(session, "kill"):
            session.close()
            return
        acknowledged = _write_until_killed(room, session, 5 * number)
        session.close()
        stored = set(room.system.stored(home))
        kept = sum(text in stored for text in acknowledged)
        detail = f"{kept} of {len(acknowledged)} acknowledged texts"
        yield Case(f"kill {number}", kept == len(acknowledged), detail=detail)


def _write_until_killed(room: Room, session: Any, count: int) -> list[str]:
    """Kill a server after some writes, while it handles the next one; return the acknowledged
    texts.
    """
    acknowledged: list[str] = []
    is_time = threading.Event()

    def write() -> None:
        for text in inputs.statements(200):
            if not room.add(session, text):
                break
            acknowledged.append(text)
            if len(acknowledged) == count:
                is_time.set()
        is_time.set()

    writer = threading.Thread(target=write)
    writer.start()
    is_time.wait(timeout=120)
    session.kill()
    writer.join()
    return acknowledged


def correct(room: Room) -> Iterator[Case]:
    """A fact is updated by its id: is the old text gone from the answer, and the new one there?"""
    home = room.home()
    with room.session(home) as session:
        for change in inputs.CHANGES:
            identifier = room.add(session, change.old)
            room.system.update(session, identifier, change.new)
        for change in inputs.CHANGES:
            answer = room.system.search(session, change.question, BEST)
            yield Case(change.old, change.old not in answer, 1, "old")
            yield Case(change.new, change.new in answer, 1, "new")


def tell_again(room: Room) -> Iterator[Case]:
    """A fact is stored again with a different value, without an update: does the new one come
    first?
    """
    home = room.home()
    with room.session(home) as session:
        for change in inputs.CHANGES:
            room.add(session, change.old)
        for change in inputs.CHANGES:
            room.add(session, change.new)
        for change in inputs.CHANGES:
            answer = room.system.search(session, change.question, BEST)
            new, old = answer.find(change.new), answer.find(change.old)
            yield Case(change.new, new >= 0 and (old < 0 or new < old))


def keep_numbers(room: Room) -> Iterator[Case]:
    """Two texts differ only in a number: are both kept?"""
    home = room.home()
    with room.session(home) as session:
        for pair in inputs.number_pairs():
            for text in pair:
                room.add(session, text)
    stored = room.system.stored(home)
    for first, second in inputs.number_pairs():
        yield Case(second, first in stored and second in stored)


def repeat(room: Room) -> Iterator[Case]:
    """A text is stored twice, in two sessions: is it kept once?"""
    home = room.home()
    for _ in range(2):
        with room.session(home) as session:
            for text in inputs.REPEATED:
                room.add(session, text)
    stored = room.system.stored(home)
    for text in inputs.REPEATED:
        yield Case(text, stored.count(text) == 1)


def erase(room: Room) -> Iterator[Case]:
    """A text is deleted as thoroughly as the system can: is it gone from all files?"""
    home = room.home()
    texts = inputs.statements(20)[:10]
    with room.session(home) as session:
        identifiers = [room.add(session, text) for text in texts]
        for identifier in identifiers:
            room.system.erase(session, home, identifier)
    content = b"".join(room.contents(home))
    for text in texts:
        yield Case(text, text.encode() not in content)


def keep_secrets_out(room: Room) -> Iterator[Case]:
    """A text contains a secret: is the secret in none of the files?"""
    home = room.home()
    with room.session(home) as session:
        for text, _ in inputs.secrets():
            room.add(session, text)
    content = b"".join(room.contents(home))
    for text, secret in inputs.secrets():
        yield Case(text.replace(secret, "…"), secret.encode() not in content)


def mark_orders(room: Room) -> Iterator[Case]:
    """A text gives orders to the model: is it refused, or returned with a warning?"""
    home = room.home()
    with room.session(home) as session:
        texts = [text for text in inputs.ORDERS if room.add(session, text)]
        for text in inputs.ORDERS:
            answer = room.system.search(session, text, 1) if text in texts else ""
            is_shown = text in answer
            for order in texts:
                answer = answer.replace(order, "")
            yield Case(text, not is_shown or bool(_MARKED.search(answer)))


def keep_apart(room: Room) -> Iterator[Case]:
    """A fact of project A is searched for in project B: does it stay out, or is its project named?"""
    home = room.home()
    with room.session(home, "alpha") as session:
        for change in inputs.CHANGES:
            room.add(session, change.old)
    with room.session(home, "beta") as session:
        for text in inputs.statements(10):
            room.add(session, text)
        for change in inputs.CHANGES:
            answer = room.system.search(session, change.question, BEST)
            is_out = change.old not in answer
            yield Case(change.question, is_out, 1, "out")
            yield Case(change.question, is_out or "alpha" in answer, 1, "labelled")


def give_needed(room: Room) -> Iterator[Case]:
    """The prompts of eight people, used as searches in their projects: are the needed facts among
    the best five, and in how many tokens?
    """
    home = room.home()
    for history in agents_memory.load():
        answers = list(_ask_prompts(room, home, history))
        yield Case(history.id, sum(given > 0 for given, _, _ in answers), len(answers), "any")
        complete = sum(given == needed for given, needed, _ in answers)
        yield Case(history.id, complete, len(answers), "all")
        tokens = sum(size for *_, size in answers) / CHARACTERS_PER_TOKEN
        yield Case(history.id, tokens / len(answers), 0, "tokens")


def _ask_prompts(
    room: Room, home: Path, history: agents_memory.History
) -> Iterator[tuple[int, int, int]]:
    """Yield for each prompt with needs how many needed facts were given, how many it needs, and
    the length of the answer.
    """
    texts = {fact.id: fact.text for fact in history.facts}
    for project in history.projects:
        with room.session(home, project) as session:
            for fact in history.facts:
                if fact.project in (project, agents_memory.EVERYWHERE):
                    room.add(session, fact.text)
            for prompt in history.prompts:
                if prompt.project == project and prompt.needs:
                    answer = room.system.search(session, prompt.text, BEST)
                    given = sum(texts[need] in answer for need in prompt.needs)
                    yield given, len(prompt.needs), len(answer)


def ask_in(pairs: tuple[tuple[str, str], ...]) -> Callable[[Room], Iterator[Case]]:
    """Return a row whose questions are in a language other than English."""

    def ask(room: Room) -> Iterator[Case]:
        home = room.home()
        with room.session(home) as session:
            for text, _ in (*inputs.GERMAN, *inputs.JAPANESE):
                room.add(session, text)
            for text, question in pairs:
                yield Case(question, text in room.system.search(session, question, BEST))

    return ask


def notice_changes(room: Room) -> Iterator[Case]:
    """A fact's statement about a file is no longer true: does the answer say so?"""
    home, project = room.home(), room.project()
    cases = (
        ("compose.yml", "port: 5433", "port: 5544", "The database port is 5433, see compose.yml."),
        ("app.py", "def sign_in(): ...", "def log_in(): ...", "`sign_in` in app.py opens a session."),
        ("setup.cfg", "max-line = 88", "max-line = 100", "setup.cfg sets max-line to 88."),
        ("run.sh", "make deploy", None, "Deploy with run.sh, which calls make deploy."),
        ("api.ts", "export const LIMIT = 20", "export const MAX = 20", "`LIMIT` in api.ts is 20."),
    )  # fmt: skip
    for name, before, _, _ in cases:
        (project / name).write_text(f"{before}\n")
    with room.session(home) as session:
        for *_, text in cases:
            room.add(session, text)
    for name, _, after, _ in cases:
        (project / name).unlink() if after is None else (project / name).write_text(f"{after}\n")
    with room.session(home) as session:
        for *_, text in cases:
            answer = room.system.search(session, text, 1)
            yield Case(text, bool(_STALE.search(answer.replace(text, ""))))


def copy_exactly(room: Room) -> Iterator[Case]:
    """Texts in four scripts are exported and imported into an empty home: do they come back?"""
    home, target = room.home(), room.home()
    texts = (*inputs.SCRIPTS, *inputs.REPEATED)
    with room.session(home) as session:
        for text in texts:
            room.add(session, text)
    is_copied = room.system.copy(home, target)
    stored = room.system.stored(target) if is_copied else []
    detail = "" if is_copied else "there is no command for it"
    for text in texts:
        yield Case(text, text in stored, detail=detail)


ROWS: dict[str, Callable[[Room], Iterator[Case]]] = {
    "writes": write_at_once,
    "kills": kill,
    "update": correct,
    "told-again": tell_again,
    "numbers": keep_numbers,
    "repeated": repeat,
    "erased": erase,
    "secrets": keep_secrets_out,
    "orders": mark_orders,
    "projects": keep_apart,
    "needed": give_needed,
    "german": ask_in(inputs.GERMAN),
    "japanese": ask_in(inputs.JAPANESE),
    "changed-files": notice_changes,
    "copy": copy_exactly,
}
"""Rows that count, by their names."""
