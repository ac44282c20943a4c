"""How the command asks the server of its store: over a Unix socket, with nothing imported that
costs a millisecond.

What is asked is one JSON line, then what was on standard input. The answer is one line of numbers,
then the bytes for standard output and standard error. Before either, the server tells its version;
while it works, it sends a dot each second.
"""

import os
import sys
from binascii import crc32

TYPE_CHECKING = False

if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Sequence

GREETING = "memories 2"  # and the version of this protocol
HOOK = "hook"  # in place of a command: what a hook asks for
DIRECT = b"direct"  # what a server answers that did nothing: the command needs a process of its own
LOST = (
    "the server of this store stopped before it answered; what was asked may or may not have been done: "
    "memory log shows the last changes"
)
_HELLO_SECONDS = 0.1
_SILENT_SECONDS = 15.0  # without a dot it hangs
_MOST_INPUT = 8 << 20  # bytes; no command that reads them all takes more

_READING = frozenset(
    "search get list history tags duplicates status namespaces stats log context".split()
)
_WRITING = frozenset("create update reinforce delete restore review rollback forget turns".split())
_READING_TURNS = ("tail", "show", "list")

# The variables that a command may look at, beside those of its settings; no other one leaves this
# process.
_NAMES = frozenset(
    """AI_AGENT CLAUDECODE CODEX COPILOT_CLI CURSOR_AGENT GEMINI_CLI OPENCODE QWEN_CODE NO_COLOR TERM COLUMNS LINES TZ
    HOME USERNAME LANG LANGUAGE LOG_LEVEL DEFAULT_LIMIT MIN_CONFIDENCE DECAY_HALF_LIFE_HOURS REINFORCE_ON_RETRIEVAL
    COUNT_ACCESSES COLLECTION_NAME HISTORY_TAIL_N MCP_ENDPOINT REDACT OPENAI_API_KEY VOYAGE_API_KEY COHERE_API_KEY
    DECAY_REINFORCEABLE_HOURS HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy SERVE
    PROJECT_DETECTION NAMESPACE_QUOTA SCRATCHPAD_SIZE PROMPT_TOKENS CAPTURE_PROJECTS""".split()
)
_BEGIN = (
    "MEMORY_", "EMBEDDER", "CONTEXT_", "CHROMA", "FILE_MIGRATE_", "QDRANT_", "CODEX_", "CLINE_", "XDG_", "LC_", "SSL_",
    "FRESHNESS_", "ACCESS_BOOST_", "RELEVANCE_THRESHOLD_",
)  # fmt: skip


def is_carried(name: str) -> bool:
    """Return whether a variable of the environment is sent to the server."""
    return name in _NAMES or name.startswith(_BEGIN)


class Lost(Exception):
    """The server did not answer what it was sent.

    Attributes:
        once: The id that makes sure that the same memory is not stored twice; empty if nothing
            does.
    """

    def __init__(self, once: str) -> None:
        super().__init__()
        self.once = once


def ask(arguments: "Sequence[str]", version: str) -> int | None:
    """Have the server of the store run a command, and print its answer.

    Args:
        arguments: Of the command.
        version: Of this program; a server of another one is not asked.

    Returns:
        The exit code; None if this process has to run the command itself, of which nothing was done
        yet.

    Raises:
        Lost: It may have been done.
    """
    if not is_warm(arguments):
        return None
    path = socket_of(store_of(arguments), os.environ)
    if not os.path.exists(path):  # noqa: PTH110
        return None
    connection = _connected(path, version)
    if connection is None:
        return None
    try:
        return _asked(connection, arguments)
    finally:
        connection.close()


def _asked(connection: "socket", arguments: "Sequence[str]") -> int | None:
    once = _new_once() if arguments[0] == "create" else ""
    try:
        request = _request(arguments, once, _input() if "-" in arguments[1:] else None)
    except OSError:  # the working folder is gone
        return None
    reads = arguments[0] in _READING or (
        arguments[0] == "turns" and arguments[1:2] and arguments[1] in _READING_TURNS
    )
    answer = _sent(connection, request, in_doubt=not reads)
    if answer is None and not reads:
        raise Lost(once)
    return None if answer is None else _printed(answer)


def recalled(asked: bytes, version: str) -> bytes | None:
    """Have the server of the store recall something; return its answer, or None if it gives none.

    A hook has no time to wait for one that hangs: a server that does not begin at once is not
    waited for.

    Args:
        asked: What a hook asks for; `hooks` reads and answers it.
        version: Of this program; a server of another one is not asked.
    """
    path = socket_of(store_of(()), os.environ)
    connection = _connected(path, version) if os.path.exists(path) else None  # noqa: PTH110
    if connection is None:
        return None
    try:
        connection.sendall(_request([HOOK], "", asked))
        if connection.recv(1) != b".":  # before `_HELLO_SECONDS` are over
            return None
        connection.settimeout(_SILENT_SECONDS)
        answer = _received(connection)
    except OSError:
        return None
    finally:
        connection.close()
    if answer is None or not answer.startswith(b"0 done 1:"):
        return None
    return answer.partition(b"\n")[2]


def is_warm(arguments: "Sequence[str]") -> bool:
    """Return whether a server may run a command: not what reads or writes other files, or input
    without an end.
    """
    verb = arguments[0] if arguments else ""
    if verb not in _READING and verb not in _WRITING:
        return False
    if verb == "create":
        return not any(each.startswith(("--lines", "--jsonl")) for each in arguments)
    if verb == "turns":
        return not ("add" in arguments[1:2] and "-" in arguments)
    if verb == "review":  # an editor needs the terminal
        return "edit" not in arguments[1:2]
    if verb == "restore":  # of a file; ids have no such letters
        return not any(each.strip("0123456789abcdefABCDEF-") for each in arguments[1:])
    return "_MEMORY_COMPLETE" not in os.environ


def store_of(arguments: "Sequence[str]") -> str:
    """Return the URL of the store that a command names, as it will be read; empty if it is the
    default one.
    """
    given = os.environ.get("MEMORY_STORE", "")
    for at, each in enumerate(arguments):
        if each == "--":
            break
        if each.startswith("--store"):
            name, equals, value = each.partition("=")
            if name == "--store":
                given = value if equals else "".join(arguments[at + 1 : at + 2])
    return given.strip(" ")


def _connected(path: str, version: str) -> "socket | None":
    """Return a connection to a server of this version; None if there is none that greets at
    once.
    """
    try:
        from _socket import (
            AF_UNIX,
            SOCK_STREAM,
            socket,
        )  # what `socket` adds costs as much as the answer

        if not is_ours(path):
            return None
    except (ImportError, OSError):
        return None
    connection = socket(AF_UNIX, SOCK_STREAM)
    connection.settimeout(_HELLO_SECONDS)
    try:
        connection.connect(path)
        greeting = _greeting(connection)
        if greeting == f"{GREETING} {version}\n".encode():
            return connection
        if greeting:
            connection.sendall(
                f"newer {version}\n".encode()
            )  # it decides whether that is so, and ends
    except OSError:
        pass
    connection.close()
    return None


def _greeting(connection: "socket") -> bytes:
    """Return the first line that a server sends; nothing if it has no room for another client."""
    greeting = b""
    while not greeting.endswith(b"\n") and (piece := connection.recv(256)):
        greeting += piece
    return greeting


def _request(arguments: "Sequence[str]", once: str, given: bytes | None) -> bytes:
    """Return what is sent: a JSON line, then standard input if the command reads it."""
    from _json import encode_basestring_ascii as quoted

    terminals = [os.isatty(stream) for stream in range(3)]
    here = os.stat(".")  # noqa: PTH116
    environment = {name: value for name, value in os.environ.items() if is_carried(name)}
    environment.setdefault("COLUMNS", _width())
    fields = {
        "argv": f"[{','.join(map(quoted, arguments))}]",
        "cwd": quoted(os.getcwd()),  # noqa: PTH109
        "folder": f"[{here.st_dev},{here.st_ino}]",
        "env": f"{{{','.join(f'{quoted(name)}:{quoted(value)}' for name, value in environment.items())}}}",
        "terminals": str(terminals).lower(),
        "once": quoted(once),
        "umask": str(_umask()),
        "input": str(-1 if given is None else len(given)),
    }
    line = ",".join(f'"{name}":{value}' for name, value in fields.items())
    return f"{{{line}}}\n".encode() + (given or b"")


def _input() -> bytes:
    """Return what is on standard input, and leave it there for this process, should it run the
    command itself.
    """
    import io

    terminal = sys.stdin.isatty()

    class Read(io.BytesIO):
        def isatty(self) -> bool:
            return terminal

    data = sys.stdin.buffer.read(_MOST_INPUT)
    sys.stdin = io.TextIOWrapper(Read(data), encoding="utf-8")
    return data


def _width() -> str:
    try:
        return str(os.get_terminal_size(1).columns or 80)
    except OSError:
        return "80"


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _new_once() -> str:
    """Return a UUIDv7 for the memory that is made; see `memories.core.ids`, which costs 10 ms."""
    import time

    value = int.from_bytes(os.urandom(10)) & ((1 << 74) - 1)
    whole = (
        time.time_ns() // 1_000_000 << 80
        | 0x7 << 76
        | value >> 62 << 64
        | 0b10 << 62
        | value & ((1 << 62) - 1)
    )
    digits = f"{whole:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _sent(connection: "socket", request: bytes, *, in_doubt: bool) -> bytes | None:
    """Send what is asked; return the answer without its dots, or None if the connection broke or
    fell silent.
    """
    connection.settimeout(_SILENT_SECONDS)
    try:
        connection.sendall(request)
    except OSError:
        return DIRECT  # without its end it is not begun
    try:
        return _received(connection)
    except OSError:
        return None
    except KeyboardInterrupt:
        if in_doubt:
            from memories.cli import output

            output.begin()
            output.so_far("")
        raise


def _received(connection: "socket") -> bytes | None:
    """Return an answer without its dots; None if it is not whole.

    Raises:
        OSError: The connection broke or fell silent.
    """
    pieces: list[bytes] = []
    while piece := connection.recv(1 << 16):
        pieces.append(piece)
    answer = b"".join(pieces).lstrip(b".")
    head, newline, body = answer.partition(b"\n")
    if head == DIRECT:
        return head
    lengths = [int(part.partition(b":")[2]) for part in head.split()[2:]] if newline else [-1]
    return answer if sum(lengths) == len(body) else None


def _printed(answer: bytes) -> int | None:
    """Print an answer; return the exit code, or None if this process has to run the command
    itself.
    """
    if answer == DIRECT:
        return None
    head, _, body = answer.partition(b"\n")
    code, _, *parts = head.split()
    at = 0
    changed = ""
    for part in parts:
        stream, length = map(int, part.split(b":"))
        piece, at = body[at : at + length], at + length
        if stream == 3:  # what was changed, for when the answer is lost
            changed = piece.decode("utf-8", "surrogateescape")
            continue
        try:
            written = (sys.stdout, sys.stderr)[stream - 1]
            written.buffer.write(piece)
            written.flush()
        except OSError as exc:
            return _unprinted(exc, changed)
    return int(code)


def _unprinted(error: OSError, changed: str) -> int:
    """Say that the answer could not be printed, as the command itself would."""
    from memories.cli import output

    output.begin()
    if changed:
        output.so_far(changed)
    return output.failed(error)


_MOST_BYTES = 100  # of the path of a Unix socket; systems allow 103 to 107
_HOME = "home"  # the name of the default store, whatever file that is


def socket_of(store: str, environment: "os._Environ[str] | dict[str, str]") -> str:
    """Return the path of the Unix socket at which the server of a store listens.

    Args:
        store: Its URL, as it was given; empty for the default store.
        environment: Its MEMORY_HOME counts, or else where the system keeps data of programs.
    """
    name = f"{crc32(absolute(store).encode('utf-8', 'surrogateescape')):08x}" if store else _HOME
    given = environment.get("MEMORY_HOME", "").strip(" ")
    folder = os.path.join(_path(given) if given else _data_folder(environment), "serve")  # noqa: PTH118
    if _is_long(folder):
        short = f"memories-{os.getuid()}-{crc32(os.fsencode(folder)):08x}"
        folder = os.path.join(environment.get("XDG_RUNTIME_DIR") or "/tmp", short)  # noqa: PTH118, S108 - see `is_ours`
        folder = f"/tmp/{short}" if _is_long(folder) else folder  # noqa: S108
    return f"{folder}/{name}.sock"


def _is_long(folder: str) -> bool:
    """Return whether a socket in a folder, by the name under which it is bound at first, has too
    long a path.
    """
    return len(os.fsencode(folder)) + len("/12345678.http.4194304") > _MOST_BYTES


def is_ours(path: str) -> bool:
    """Return whether a socket is in a folder that only this user can enter, so that nobody else can
    listen there.
    """
    found = os.lstat(os.path.dirname(path))  # noqa: PTH120
    return found.st_uid == os.geteuid() and found.st_mode & 0o170077 == 0o040000


def absolute(url: str) -> str:
    """Return the URL of a store, with an absolute path without links if it is on this machine."""
    scheme, separator, rest = url.partition("://")
    if (
        separator
        and scheme in ("sqlite", "files", "qdrant")
        and rest.startswith("/")
        and rest != "/"
    ):
        return f"{scheme}:///{_path(rest[1:])}"
    return url


def _path(given: str) -> str:
    return os.path.realpath(os.path.expanduser(given))  # noqa: PTH111 - pathlib costs as much as the answer


def _data_folder(environment: "os._Environ[str] | dict[str, str]") -> str:
    """Return what `config` calls the platform's folder for data."""
    home = os.path.expanduser("~")  # noqa: PTH111
    if sys.platform == "darwin":
        return f"{home}/Library/Application Support/memories"
    return f"{environment.get('XDG_DATA_HOME', '').strip() or f'{home}/.local/share'}/memories"


IDLE_MINUTES = 15
_AGAIN_SECONDS = 60  # after a start that failed


def start(store: str) -> None:
    """Start a server of a store, apart from this process, unless one runs or was started just now.

    Args:
        store: Its URL, with an absolute path.
    """
    import time

    path = socket_of(store, os.environ)
    if _answers(path):  # it had no time for us
        return
    try:
        mark = f"{path}.start"
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
        if os.path.exists(mark) and time.time() - os.stat(mark).st_mtime < _AGAIN_SECONDS:  # noqa: PTH110, PTH116
            return
        os.close(os.open(mark, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        os.utime(mark)
        nothing = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in range(3)]
        options = ["--no-http", "--idle", str(IDLE_MINUTES), "--store", store]
        command = [sys.executable, "-P", "-m", "memories", "serve", *options]
        os.posix_spawn(sys.executable, command, dict(os.environ), file_actions=nothing, setsid=True)
    except OSError:
        return  # the command was done without one, and that is no reason to fail


def _answers(path: str) -> bool:
    """Return whether somebody listens at a path; a server that was killed leaves its socket
    behind.
    """
    import socket

    with socket.socket(socket.AF_UNIX) as tried:
        tried.settimeout(0.1)
        try:
            tried.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
    return True
