"""Output of one run: results on standard output, errors and notes on standard error.

Also asks questions and opens the user's editor.
"""

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from memories.answers.advice import complete_answer, complete_commands, running_config
from memories.errors import (
    ConfigError,
    InvalidInput,
    MemoriesError,
    RequestError,
    describe_after_writes,
)
from memories.languages import escape_code, make_visible

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from memories.settings import Config
    from memories.stores.damage import Damaged
    from memories.stores.records import Finding

FORMATS = ("json", "text", "compact")
INTERRUPTED = "Interrupted. Nothing was changed."
IN_DOUBT = "Interrupted. The change was not confirmed: it may or may not have been saved."
SCRATCHPAD_INSTEAD = "this answer is from the scratchpad, because the store can't be used: {}"
_EDITORS = ("sensible-editor", "nano", "vim", "vi")  # tried if neither VISUAL nor EDITOR is set
_TEXT_FILE = "memory.txt"
# Characters that join emoji, or Arabic or Indic letters, as standard spelling requires.
_EMOJI = "\u203c-\u3299\U0001f000-\U0001faff"
_LETTERS = "\u0600-\u06ff\u0900-\u0dff"
_JOINERS = re.compile(
    f"((?<=[{_EMOJI}0-9#*])\ufe0f|(?<=[{_EMOJI}])\u200d(?=[{_EMOJI}])|"
    f"(?<=[{_EMOJI}]\ufe0f)\u200d(?=[{_EMOJI}])|(?<=[{_LETTERS}])[\u200c\u200d](?=[{_LETTERS}]))"
)
MAX_WIDTH = 100  # maximum number of columns in a line
MARK = "│ "  # printed before each line of content
CUT_LINES = 3  # number of lines shown of a long text on a terminal
DIM, BOLD, GREEN, YELLOW, _PLAIN = "\033[2m", "\033[1m", "\033[32m", "\033[33m", "\033[0m"
DAMAGED = 4  # exit code of a command that succeeded but left out damaged records


class _Run:
    """A run's state. A server handles many concurrent runs, each in its own context.

    Attributes:
        format: One of `FORMATS`, set as soon as the options are read, so that errors are printed in
            the same format as responses; None before that.
        change: What this run changed, as part of a sentence; empty while unknown, None if the run
            has not begun to change anything.
        watched: The damage registers of the opened stores, each with its position when its store
            was opened.
        notes: The printed notes.
    """

    def __init__(self) -> None:
        self.format: str | None = None
        self.change: str | None = None
        self.watched: list[tuple[Damaged, int]] = []
        self.notes: set[str] = set()


_run: ContextVar[_Run] = ContextVar("run", default=_Run())  # noqa: B039 - `begin_run` replaces it


def begin_run() -> None:
    """Reset the state for a new run."""
    _run.set(_Run())
    running_config.set(None)


def set_format(name: str) -> str:
    """Choose the format: one of `FORMATS`, or `auto` for text on a terminal and JSON elsewhere."""
    _run.get().format = _format_for(sys.stdout) if name == "auto" else name
    return name


def configure(config: "Config") -> None:
    """Use the format that the settings name, and remember the namespace and the store."""
    set_format(config.format)
    running_config.set(config)


def shows_text() -> bool:
    """Return whether this run prints text for people."""
    return _run.get().format == "text"


def _format_for(stream: TextIO) -> str:
    name = os.environ.get("MEMORY_FORMAT", "auto")
    if name in FORMATS:
        return name
    return "text" if stream.isatty() else "json"


# --- changes ---


def begin_change() -> None:
    """Record that a change has begun, in case Ctrl-C or an error hides its result."""
    _run.get().change = ""


def record_change(description: str, again: str = "") -> None:
    """Note the changes so far, in case the response is lost.

    Args:
        description: The change, as part of a sentence; or an earlier value of `change()`.
        again: The effect of running the command again, as part of a sentence.
    """
    # Names and paths in a description may contain any character except NUL.
    _run.get().change = f"{description}\0{again}" if again else description


def change() -> str | None:
    """Return this run's changes, for `record_change`; empty if unknown, None if there are none."""
    return _run.get().change


def _describe_loss(reason: str) -> str:
    description, _, again = (change() or "").partition("\0")
    return "; ".join(filter(None, (f"{description}, but {reason}", again)))


# --- errors ---


def report_interrupt() -> int:
    """Report the changes that a run made before Ctrl-C ended it; return the exit code."""
    if change() is None:
        return print_error(INTERRUPTED, 1)
    if not change():
        return print_error(IN_DOUBT, 1)
    return print_error(_describe_loss("the command was interrupted before it answered"), 1)


def report_error(error: Exception) -> int:
    """Print a command's error as one sentence; return the exit code."""
    if isinstance(error, MemoryError):
        return print_error("out of memory; close other programs or raise the limit (ulimit -v)", 1)
    if isinstance(error, OSError) and not isinstance(error, MemoriesError):
        return _report_os_error(error)
    if change():
        return print_error(_describe_loss(describe_after_writes(error)), 1)
    code = 2 if isinstance(error, ConfigError | InvalidInput) else 1
    return print_error(str(error), code, matches=getattr(error, "matches", ()))


def _report_os_error(error: OSError) -> int:
    from memories.config import working_folder

    reason = error.strerror or str(error)
    if change():
        return print_error(_describe_loss(f"the output could not be printed: {reason}"), 1)
    if error.errno in (errno.EPIPE, errno.EBADF):
        return 0  # the reader closed the pipe, as `head` does, or there was no reader
    if error.errno in (errno.EMFILE, errno.ENFILE):
        message = "too many open files; close some programs or raise the limit (ulimit -n)"
    elif isinstance(error.filename, str):
        message = f"cannot use {error.filename}: {reason}"
    elif error.errno == errno.ENOSPC:
        message = f"the output could not be printed: {reason}"
    elif working_folder() is None:
        message = "the working folder no longer exists; change to another one, and try again"
    else:
        message = f"operating system error: {reason}"
    return print_error(message, 1)


def print_error(message: str, code: int, matches: Sequence[str] = ()) -> int:
    """Print an error to standard error, as one sentence; return the exit code.

    Args:
        message: The sentence.
        code: The exit code.
        matches: The ids that match an ambiguous prefix.
    """
    from memories.guard.redactor import redact

    # The error for a misplaced option may quote another option's secret.
    one_line = " ".join(redact(complete_commands(message)).text.split())
    output_format = _run.get().format or _format_for(sys.stderr)
    if output_format in ("text", "compact"):
        label = "\033[31merror:\033[0m" if colored(sys.stderr) else "error:"
        lines = [*wrap(safe(one_line), len("error: "), sys.stderr), *map(safe, matches)]
        say(f"{label} " + "\n  ".join(lines), sys.stderr)
    else:
        answer: dict[str, Any] = {"error": one_line}
        if matches:
            answer["matches"] = list(matches)
        say(_to_json(answer, indented=False), sys.stderr)
    return code


# --- damage ---


def unwatch() -> None:
    """Stop reporting damage in stores that were opened earlier."""
    _run.get().watched.clear()


def watch(damaged: "Damaged") -> None:
    """From now on, report the damaged records that a store leaves out."""
    _run.get().watched.append((damaged, damaged.mark()))


def report_damage(code: object) -> object:
    """Print a note on any damaged records that were left out; return the exit code.

    If there are any, exit code 0 becomes `DAMAGED`.
    """
    findings = _left_out()
    if not findings:
        return code
    from memories.answers.store_shapes import describe_damage

    note(describe_damage(findings))
    has_failed = isinstance(code, int) and code != 0
    return code if has_failed else DAMAGED


def _left_out() -> "list[Finding]":
    return [finding for damaged, mark in _run.get().watched for finding in damaged.since(mark)]


# --- responses ---


def emit(
    answer: Mapping[str, Any],
    text: str | Callable[[], str],
    *,
    compact: str | Callable[[], str] | None = None,
    stream: TextIO | None = None,
) -> None:
    """Print a response in the format of this run.

    Args:
        answer: The JSON.
        text: The text for people, or a function that returns it.
        compact: The same for a model; by default models get the JSON.
        stream: Where to print it; by default, standard output.
    """
    stream = stream or sys.stdout
    render = {"text": text, "compact": compact}.get(_run.get().format or "")
    if findings := _left_out():
        from memories.answers import store_shapes

        answer = {**answer, "damaged": store_shapes.damage_details(findings)}
    if callable(render):
        render = render()
    elif render is None:
        render = _to_json(complete_answer(answer), stream.isatty())
    if render:
        say(render, stream)


def emit_lines(
    answers: Sequence[Mapping[str, Any]], text: Callable[[Mapping[str, Any]], str]
) -> None:
    """Print responses, one per line: as JSON, or as the text that `text` returns."""
    is_text = _run.get().format in ("text", "compact")
    render = text if is_text else partial(_to_json, indented=False)
    say("\n".join(map(render, map(complete_answer, answers))))


def with_note(head: str, note: str | None) -> str:
    """Return a line, followed by a note if there is one."""
    return head if note is None else f"{head}\n{safe(as_sentence(note))}"


def note(message: str) -> None:
    """Print a note for a human reader to standard error, once per run."""
    notes = _run.get().notes
    if message in notes:
        return
    notes.add(message)
    lines: list[str] = []
    for line in map(safe, complete_commands(message).split("\n")):
        # An indented line is a command, which must not be wrapped.
        lines += [line] if line.startswith("  ") else wrap(line, 0, sys.stderr)
    say("\n".join(lines), sys.stderr)


def say(printed: str, stream: TextIO | None = None) -> None:
    """Print a line of text in UTF-8, regardless of the locale; to standard output by default.

    A note or an error that can't be printed changes neither the result nor the exit code.
    """
    stream = stream or sys.stdout
    try:
        stream.flush()
        stream.buffer.write(f"{printed}\n".encode("utf-8", "backslashreplace"))
        stream.flush()
    except OSError:
        if stream is not sys.stderr:
            raise


def _to_json(answer: Mapping[str, Any], indented: bool) -> str:
    """Return JSON in which invisible and control characters are escaped."""
    printed = json.dumps(answer, ensure_ascii=False, indent=2 if indented else None)
    return make_visible(printed, lambda sign: json.dumps(sign)[1:-1], keep="\n")


def colored(stream: Any) -> bool:
    """Return whether to use colours: only on a terminal, and not if NO_COLOR is set."""
    if "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return False
    return bool(stream.isatty())


def as_sentence(clause: str) -> str:
    """Turn a clause into a sentence: capitalize it, and add a full stop."""
    return f"{clause[0].upper()}{clause[1:]}."


def safe(text: str) -> str:
    """Return text on one line, with invisible, reordering and control characters escaped, except
    those that join emoji and letters.
    """
    pieces = _JOINERS.split(text.replace("\t", "    "))
    pieces[::2] = [make_visible(piece, escape_code) for piece in pieces[::2]]
    return "".join(pieces)


# --- layout ---


def width_of(text: str) -> int:
    """Return how many columns a text takes up on a terminal."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def fold(line: str, taken: int, limit: int = MAX_WIDTH) -> list[str]:
    """Split a line into parts that fit on the terminal next to the columns already used."""
    width = max(8, _columns(limit) - taken)
    parts, part, part_width = [], "", 0
    for word in re.findall(r"\S+\s*|\s+", line):
        for piece in [word] if width_of(word) <= width else word:  # a long word may break anywhere
            if part and part_width + width_of(piece.rstrip()) > width:
                parts.append(part.rstrip())
                part = ""
            part += piece if part or not parts else piece.lstrip()
            part_width = width_of(part)
    return [*parts, part.rstrip()]


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Format names and values as two columns, and wrap long values on a terminal."""
    cells = [(name, value, width_of(name)) for name, value in rows]
    widest = max((width for _, _, width in cells), default=0)
    lines = []
    for name, value, width in cells:
        parts = [value]
        if is_terminal() and "\033" not in value:
            parts = fold(value, widest + 2)
        cell = f"\n{' ' * (widest + 2)}".join(parts)
        lines.append(f"{paint(DIM, name)}{' ' * (widest - width)}  {cell}")
    return "\n".join(lines)


def shorten(text: str, taken: int) -> str:
    """Shorten a text to fit on a line where `taken` columns are already used."""
    beginning = fold(safe(" ".join(text[:400].split())), taken + 1, limit=80)[0]
    is_whole = len(beginning) == len(safe(" ".join(text.split())))
    return beginning if is_whole else f"{beginning}…"


def mark_lines(text: str, indent: str = "") -> str:
    """Put a mark before each line of content, and indent all lines except the first.

    Lines are wrapped here, since a terminal would continue a long line at the left edge, where our
    own lines begin.
    """
    taken = len(indent) + len(MARK)
    lines = []
    for line in text.removesuffix("\n").split("\n"):
        lines += [f"{MARK}{part}".rstrip() for part in fold(safe(line), taken)]
    return f"\n{indent}".join(lines)


def cut_around(lines: list[str], words: frozenset[str], command: str, indent: str) -> str:
    """Return the part of a long text with the most search words, and the number of other lines.

    Args:
        lines: The lines, each with its mark.
        words: The search words; if no line contains one, the beginning is shown.
        command: The command that shows the entire text.
        indent: The indentation of each line except the first.
    """
    from memories.languages.text import query_terms

    counts = [len(words & set(query_terms(line))) for line in lines]
    start = 0
    if max(counts):
        middle = max(range(len(lines)), key=counts.__getitem__)
        start = min(max(middle - 1, 0), len(lines) - CUT_LINES)
    kept = lines[start : start + CUT_LINES]
    kept[0] = kept[0].removeprefix(indent)
    left = f"… {len(lines) - CUT_LINES} more lines ({command})"
    return f"{paint(BOLD, chr(10).join(kept))}\n{indent}{paint(DIM, left)}"


def format_time(moment: "datetime | str") -> str:
    """Format a time with its zone and age, in local time unless the writer gave a zone.

    Args:
        moment: An aware time, or its ISO 8601 form.
    """
    from datetime import UTC, datetime

    from memories.core.times import describe_age

    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    if not moment.utcoffset():
        moment = moment.astimezone()
    offset = moment.strftime("%z")
    zone = f"{offset[:3]}:{offset[3:5]}" if moment.utcoffset() else "UTC"
    time = moment.isoformat()[:16].replace("T", " ")
    return f"{time} {zone} ({describe_age(moment, datetime.now(UTC))})"


def count_kinds(kinds: Sequence[str]) -> str:
    """Return the kinds of secrets, each with its count if there are several."""
    from collections import Counter

    parts = []
    for kind, count in Counter(kinds).items():
        parts.append(kind if count == 1 else f"{kind} × {count}")
    return ", ".join(parts)


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def wrap(sentence: str, taken: int = 0, stream: TextIO | None = None) -> list[str]:
    """Return a sentence as lines that fit on the terminal; elsewhere, as one line.

    A command at the end of the sentence gets its own line, so that users can copy it.
    """
    stream = stream or sys.stdout
    if not stream.isatty() or width_of(sentence) <= _columns(MAX_WIDTH) - taken:
        return [sentence] if sentence else []
    for mark, verb in (("run: ", ""), (": memory ", "memory ")):
        text, separator, command = sentence.rpartition(mark)
        if separator and ";" not in command:
            text += mark.removesuffix(verb)
            return [*fold(text.rstrip(), taken), f"  {verb}{command}"]
    return fold(sentence, taken)


def _columns(limit: int) -> int:
    import shutil

    return min(limit, shutil.get_terminal_size().columns)


def paint(code: str, text: str) -> str:
    """Return a text with codes for a colour or bold, if standard output shows colours."""
    if not text or not colored(sys.stdout):
        return text
    return f"{code}{text}{_PLAIN}"


# --- questions ---


def require_person(decision: str, *, yes: bool) -> None:
    """Require a person to make a decision: at a terminal, or with `--yes` in their own script.

    Args:
        decision: The decision, as the subject of a sentence.
        yes: Whether the script confirms the decision. An agent can't confirm it.

    Raises:
        InvalidInput: An agent runs the command, or there is no terminal.
    """
    from memories.guard.origin import is_person, refuse_agent

    refuse_agent(decision)
    if not yes and not is_person():
        raise InvalidInput(
            f"{decision} is for a person to decide, but there is no terminal to ask on; add --yes "
            "to confirm"
        )


def confirm(
    question: str, *, otherwise: str = "Nothing was forgotten.", why: str = "this can't be undone"
) -> bool:
    """Ask a person a yes-or-no question.

    Args:
        question: The question.
        otherwise: The note to print if the user answers no.
        why: Why the command asks.

    Raises:
        InvalidInput: There is no terminal.
    """
    agreed = ask_person(f"{question} [y/N] ", why).lower() in ("y", "yes")
    if not agreed:
        note(otherwise)
    return agreed


def ask_person(question: str, why: str = "this can't be undone") -> str:
    """Return the line that a person types in answer to a question.

    Raises:
        InvalidInput: There is no terminal.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidInput(f"{why}, but there is no terminal to ask on; add --yes to confirm")
    sys.stderr.write(safe(question))
    sys.stderr.flush()
    line = ""
    try:
        line = sys.stdin.readline()
    finally:
        if not line:  # Ctrl-C and Ctrl-D leave the cursor after the question
            sys.stderr.write("\n")
    return line.strip()


# --- editor ---


def edit_text(content: str, store: Callable[[str], None], *, instead: str) -> bool:
    """Let the user edit a text, and store the new text; return whether the user changed it.

    The file is in a folder that only the user can read. The folder is removed afterwards, unless
    the saved text could not be stored.

    Args:
        content: The text.
        store: Stores the new text.
        instead: The command to use without a terminal.

    Raises:
        InvalidInput: There is no terminal, or the saved file is empty or not text.
        ConfigError: There is no editor.
        MemoriesError: The text could not be stored; the message names the file that contains it.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput(
            f"there is no terminal to edit on; give the new text: {instead}, "
            "or - to read it from a pipe"
        )
    import shutil
    import tempfile
    from pathlib import Path  # imported late; only the editor needs it

    editor = _find_editor()
    folder = Path(tempfile.mkdtemp(prefix="memory-"))
    file = folder / _TEXT_FILE
    unsaved = False
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(f"{content}\n".encode())
        _run_editor([*editor, str(file)])
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
    raise ConfigError("found no editor; set VISUAL or EDITOR")


def _run_editor(argv: Sequence[str]) -> None:
    """Run an editor without a shell, and wait until it exits; Ctrl-C goes to the editor.

    Raises:
        ConfigError: The editor can't be started.
        RequestError: The editor failed.
    """
    import signal
    import subprocess

    def ignore(*_: object) -> None:  # not SIG_IGN, which the editor would inherit
        pass

    before = signal.signal(signal.SIGINT, ignore)
    try:
        code = subprocess.run(argv, check=False).returncode  # noqa: S603 - the user's own variable names it
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise ConfigError(
            f"cannot start the editor {argv[0]}: {reason}; set VISUAL or EDITOR to a different one"
        ) from exc
    finally:
        signal.signal(signal.SIGINT, before)
    if code:
        raise RequestError(f"the editor {argv[0]} ended with exit code {code}; nothing was changed")


def _read_saved(file: "Path", before: str) -> str | None:
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
            "the saved file is empty; nothing was changed; to delete a memory, use memory delete ID"
        )
    return None if text == before.rstrip("\r\n") else text


# --- what is left out ---

_LEFT_OUT = {
    "suspicious": "that look like instructions to a model (--include-suspicious)",
    "tool_turn": "turns of tools or the system (--include-tool-turns)",
    "captured": "captured by a hook and not accepted (memory search shows them)",
    "one_writer": "above the limit for each of the other writers (CONTEXT_MAX_PER_WRITER)",
    "no_room": "that did not fit (CONTEXT_MEMORY_CHARACTERS)",
}


def describe_left_out(reasons: "Mapping[str, Mapping[str, Any]]") -> str:
    """Describe the texts left out of a context, and how to include them; empty if none were."""
    parts = []
    for reason, description in _LEFT_OUT.items():
        if reason in reasons:
            parts.append(f"{reasons[reason]['count']} {description}")
    return f"left out: {'; '.join(parts)}" if parts else ""
