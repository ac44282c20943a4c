"""Client for `server.warm`: runs a command in the server of its store, over a Unix socket. The
server is *warm*: it has already opened the store and loaded the model.

Importing this module loads nothing slow.

The request is one JSON line, followed by the bytes of standard input. The response is one line of
numbers, followed by the bytes for standard output and standard error. The server first sends a
greeting with its version. While it works, it sends a dot every second.
"""

import os
import sys
from binascii import crc32
from time import monotonic

TYPE_CHECKING = False

if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Sequence

GREETING = "memories 2"  # name and version of this protocol
HOOK = "hook"  # in a hook's request, replaces the command
DIRECT = b"direct"  # response: nothing was done; run the command in its own process
LOST = (
    "the server of this store stopped before it answered; the command may or may not have run: "
    "memory log shows the last changes"
)
IDLE_MINUTES = 15
_HELLO_SECONDS = 0.1
_SILENCE_SECONDS = 15.0  # without a dot for this long, the server is considered hung
_RETRY_SECONDS = 60  # how long to wait after starting a server before starting another one
_MAX_INPUT_BYTES = 8 << 20  # maximum size of standard input, which is sent in one piece
_MAX_PATH_BYTES = 100  # maximum length of a Unix socket's path; systems allow 103 to 107
_HOME = "home"  # name of the default store's socket

_READING = frozenset(
    "search get list history tags duplicates status namespaces stats log context verify".split()
)
_WRITING = frozenset(
    "create update reinforce delete restore review move rollback forget turns confirm".split()
)
_READING_TURNS = ("tail", "show", "list")

# The only environment variables that are sent to the server, besides those with `_PREFIXES`.
_NAMES = frozenset(
    """AI_AGENT CLAUDECODE CODEX COPILOT_CLI CURSOR_AGENT GEMINI_CLI OPENCODE QWEN_CODE NO_COLOR
    TERM COLUMNS LINES TZ HOME USERNAME LANG LANGUAGE LOG_LEVEL DEFAULT_LIMIT MIN_CONFIDENCE
    DECAY_HALF_LIFE_HOURS REINFORCE_ON_RETRIEVAL COUNT_ACCESSES COLLECTION_NAME HISTORY_TAIL_N
    MCP_ENDPOINT REDACT OPENAI_API_KEY VOYAGE_API_KEY COHERE_API_KEY DECAY_REINFORCEABLE_HOURS
    HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy SERVE
    PROJECT_DETECTION NAMESPACE_QUOTA SCRATCHPAD_SIZE PROMPT_TOKENS CAPTURE_PROJECTS
    TIDY_COMMAND""".split()
)
# Variables whose names begin like this are sent too. The clients of stores read some of them; for
# example, PostgreSQL's libpq reads the variables that begin with PG.
_PREFIXES = (
    "MEMORY_", "EMBEDDER", "CONTEXT_", "CHROMA", "FILE_MIGRATE_", "QDRANT_", "CODEX_", "CLINE_",
    "XDG_", "LC_", "SSL_", "PG",
    "FRESHNESS_", "ACCESS_BOOST_", "RELEVANCE_THRESHOLD_",
)  # fmt: skip


def is_carried(name: str) -> bool:
    """Return whether an environment variable is sent to the server."""
    return name in _NAMES or name.startswith(_PREFIXES)


class AnswerLost(Exception):
    """The server may have run a command, but did not respond.

    Attributes:
        create_id: The id that prevents a second run from storing the memory twice; empty if there
            is none.
    """

    def __init__(self, create_id: str) -> None:
        super().__init__()
        self.create_id = create_id


class AnswerUnprinted(Exception):
    """The server's response could not be printed.

    Attributes:
        error: The error that printing raised.
        change: What the command changed, as a clause; empty for no change.
    """

    def __init__(self, error: OSError, change: str) -> None:
        super().__init__()
        self.error, self.change = error, change


class ChangeInterrupted(KeyboardInterrupt):
    """The user pressed Ctrl-C while the server ran a command that changes something."""


# --- commands ---


def ask(arguments: "Sequence[str]", version: str) -> int | None:
    """Ask the store's server to run a command, and print its response.

    Args:
        arguments: The arguments of the command.
        version: The version of this program; servers of other versions are not asked.

    Returns:
        The exit code; None if nothing was done and this process has to run the command.

    Raises:
        AnswerLost: The server may have run the command.
        AnswerUnprinted: The server has run the command, but its response could not be printed.
        ChangeInterrupted: The user pressed Ctrl-C, and the server may have run the command.
    """
    if not can_be_served(arguments):
        return None
    connection = _connect(socket_of(store_of(arguments), os.environ), version)
    if connection is None:
        return None
    try:
        return _ask(connection, arguments)
    finally:
        connection.close()


def _ask(connection: "socket", arguments: "Sequence[str]") -> int | None:
    create_id = _new_id() if arguments[0] == "create" else ""
    try:
        stdin = _read_input() if "-" in arguments[1:] else None
        request = _encode_request(arguments, create_id, stdin)
    except OSError:  # the working folder was removed
        return None
    reads = arguments[0] in _READING
    if arguments[0] == "turns":
        reads = len(arguments) > 1 and arguments[1] in _READING_TURNS
    answer = _exchange(connection, request, changes=not reads)
    if answer is not None:
        return _print_answer(answer)
    if not reads:
        raise AnswerLost(create_id)
    return None


def ask_for_hook(
    request: bytes, version: str, begin_seconds: float, seconds: float
) -> bytes | None:
    """Ask the store's server to answer a hook; return None if the server does not respond.

    Args:
        request: The request; `hooks` reads and answers it.
        version: The version of this program; servers of other versions are not asked.
        begin_seconds: How long to wait for the response to begin, since a server may hang.
        seconds: How long to wait after that.
    """
    connection = _connect(socket_of(store_of(()), os.environ), version, begin_seconds)
    if connection is None:
        return None
    try:
        connection.sendall(_encode_request([HOOK], "", request))
        if connection.recv(1) != b".":  # within `begin_seconds`
            return None
        answer = _receive(connection, seconds)
    except OSError:
        return None
    finally:
        connection.close()
    if answer is None or not answer.startswith(b"0 done 1:"):
        return None
    return answer.partition(b"\n")[2]


def can_be_served(arguments: "Sequence[str]") -> bool:
    """Return whether a server may run a command.

    Commands that need other files, a terminal or endless input must run in their own process.
    """
    verb = arguments[0] if arguments else ""
    if verb not in _READING and verb not in _WRITING:
        return False
    if verb == "create":
        return not any(word.startswith(("--lines", "--jsonl")) for word in arguments)
    if verb == "turns":
        return not ("add" in arguments[1:2] and "-" in arguments)
    if verb == "review":  # an editor or single-key decisions need the terminal
        return bool(arguments[1:2]) and arguments[1][:1] != "-" and arguments[1] != "edit"
    if verb == "restore":  # a word that isn't hexadecimal is a file, not an id
        return not any(word.strip("0123456789abcdefABCDEF-") for word in arguments[1:])
    return "_MEMORY_COMPLETE" not in os.environ


def store_of(arguments: "Sequence[str]") -> str:
    """Return the URL of the store given in a command's arguments; empty for the default store."""
    url = os.environ.get("MEMORY_STORE", "")
    for position, word in enumerate(arguments):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name == "--store":
            url = value if equals else "".join(arguments[position + 1 : position + 2])
    return url.strip(" ")


def _connect(path: str, version: str, seconds: float = _HELLO_SECONDS) -> "socket | None":
    """Return a connection to a server with this version; None if it does not greet in time."""
    if not os.path.exists(path):  # noqa: PTH110
        return None
    try:
        # Importing the module `socket` would take as long as the response.
        from _socket import AF_UNIX, SOCK_STREAM, socket

        if not is_ours(path):
            return None
    except (ImportError, OSError):
        return None
    connection = socket(AF_UNIX, SOCK_STREAM)
    connection.settimeout(seconds)
    try:
        connection.connect(path)
        greeting = b""  # stays empty if the server can't accept another client
        while not greeting.endswith(b"\n") and (piece := connection.recv(256)):
            greeting += piece
        if greeting == f"{GREETING} {version}\n".encode():
            return connection
        if greeting:  # the server has another version; if it is older, this line makes it stop
            connection.sendall(f"newer {version}\n".encode())
    except OSError:
        pass
    connection.close()
    return None


def _encode_request(arguments: "Sequence[str]", create_id: str, stdin: bytes | None) -> bytes:
    """Return a request: a JSON line, followed by standard input if the command reads it."""
    from _json import encode_basestring_ascii as quoted

    folder = os.stat(".")  # noqa: PTH116
    terminals = [os.isatty(stream) for stream in range(3)]
    environment = {name: value for name, value in os.environ.items() if is_carried(name)}
    if "COLUMNS" not in environment:
        environment["COLUMNS"] = "80"
        if terminals[1]:
            environment["COLUMNS"] = str(os.get_terminal_size(1).columns or 80)
    mask = os.umask(0o077)
    os.umask(mask)
    variables = [f"{quoted(name)}:{quoted(value)}" for name, value in environment.items()]
    fields = {
        "argv": f"[{','.join(map(quoted, arguments))}]",
        "cwd": quoted(os.getcwd()),  # noqa: PTH109
        "folder": f"[{folder.st_dev},{folder.st_ino}]",
        "env": f"{{{','.join(variables)}}}",
        "terminals": str(terminals).lower(),
        "once": quoted(create_id),
        "umask": str(mask),
        "input": str(-1 if stdin is None else len(stdin)),
    }
    line = ",".join(f'"{name}":{value}' for name, value in fields.items())
    return f"{{{line}}}\n".encode() + (stdin or b"")


def _read_input() -> bytes:
    """Return standard input, and keep it in case this process has to run the command."""
    import io

    is_terminal = sys.stdin.isatty()

    class Input(io.BytesIO):
        def isatty(self) -> bool:
            return is_terminal

    data = sys.stdin.buffer.read(_MAX_INPUT_BYTES)
    sys.stdin = io.TextIOWrapper(Input(data), encoding="utf-8")
    return data


def _new_id() -> str:
    """Return a UUIDv7. Importing `memories.core.ids` to make one would take 10 ms."""
    import time

    value = int.from_bytes(os.urandom(10)) & ((1 << 74) - 1)
    number = time.time_ns() // 1_000_000 << 80
    number |= 0x7 << 76 | value >> 62 << 64
    number |= 0b10 << 62 | value & ((1 << 62) - 1)
    digits = f"{number:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _exchange(connection: "socket", request: bytes, *, changes: bool) -> bytes | None:
    """Send a request; return the response, or None if the connection broke or timed out.

    Args:
        connection: The connection to the server.
        request: The request.
        changes: Whether the command changes something.
    """
    connection.settimeout(_SILENCE_SECONDS)
    try:
        connection.sendall(request)
    except OSError:
        return DIRECT  # the server runs nothing until it has the entire request
    try:
        return _receive(connection)
    except OSError:
        return None
    except KeyboardInterrupt as interrupt:
        if changes:
            raise ChangeInterrupted from interrupt
        raise


def _receive(connection: "socket", seconds: float | None = None) -> bytes | None:
    """Return a response without the leading dots; None if it is incomplete.

    Args:
        connection: The connection to the server.
        seconds: How long the response may take; None for as long as the server sends dots.

    Raises:
        OSError: The connection broke or timed out, or the response took too long.
    """
    pieces: list[bytes] = []
    end = None if seconds is None else monotonic() + seconds
    while piece := connection.recv(1 << 16):
        pieces.append(piece)
        if end is not None:
            connection.settimeout(max(0.001, end - monotonic()))
    answer = b"".join(pieces).lstrip(b".")
    head, newline, body = answer.partition(b"\n")
    if head == DIRECT:
        return head
    if not newline:
        return None
    lengths = [int(part.partition(b":")[2]) for part in head.split()[2:]]
    return answer if sum(lengths) == len(body) else None


def _print_answer(answer: bytes) -> int | None:
    """Print a response; return the exit code, or None if this process has to run the command.

    Raises:
        AnswerUnprinted: The response can't be printed.
    """
    if answer == DIRECT:
        return None
    head, _, body = answer.partition(b"\n")
    code, _, *parts = head.split()
    start = 0
    change = ""
    for part in parts:
        stream, length = map(int, part.split(b":"))
        piece = body[start : start + length]
        start += length
        if stream == 3:  # describes the change, in case the response can't be printed
            change = piece.decode("utf-8", "surrogateescape")
            continue
        try:
            output = sys.stdout if stream == 1 else sys.stderr
            output.buffer.write(piece)
            output.flush()
        except OSError as exc:
            if stream == 1:  # as `cli.output.say` does
                raise AnswerUnprinted(exc, change) from exc
    return int(code)


# --- sockets ---


def socket_of(store: str, environment: "os._Environ[str] | dict[str, str]") -> str:
    """Return the path of the Unix socket on which a store's server listens.

    Args:
        store: The URL as it was written; empty for the default store.
        environment: The environment variables, which determine the home folder.
    """
    name = f"{crc32(absolute(store).encode('utf-8', 'surrogateescape')):08x}" if store else _HOME
    home = environment.get("MEMORY_HOME", "").strip(" ")
    folder = os.path.join(_real_path(home) if home else _data_folder(environment), "serve")  # noqa: PTH118
    if _is_long(folder):
        short = f"memories-{os.getuid()}-{crc32(os.fsencode(folder)):08x}"
        folder = os.path.join(environment.get("XDG_RUNTIME_DIR") or "/tmp", short)  # noqa: PTH118, S108 - see `is_ours`
        if _is_long(folder):
            folder = f"/tmp/{short}"  # noqa: S108
    return f"{folder}/{name}.sock"


def _is_long(folder: str) -> bool:
    """Return whether paths of sockets in a folder, including temporary ones, are too long."""
    if sys.platform == "win32":  # no Unix sockets, and no user ids to make a shorter name from
        return False
    return len(os.fsencode(folder)) + len("/12345678.http.4194304") > _MAX_PATH_BYTES


def is_ours(path: str) -> bool:
    """Return whether a socket is in a folder that only this user can enter.

    If so, no other user can listen on the socket.
    """
    folder = os.lstat(os.path.dirname(path))  # noqa: PTH120
    return folder.st_uid == os.geteuid() and folder.st_mode & 0o170077 == 0o040000


def absolute(url: str) -> str:
    """Return the URL of a store, with its real absolute path if it is on this machine."""
    scheme, _, path = url.partition("://")
    if scheme in ("sqlite", "files", "qdrant") and path.startswith("/") and path != "/":
        return f"{scheme}:///{_real_path(path[1:])}"
    return url


def _real_path(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))  # noqa: PTH111 - importing pathlib takes as long as the whole response


def _data_folder(environment: "os._Environ[str] | dict[str, str]") -> str:
    """Return the platform's data folder, as `config` defines it."""
    home = os.path.expanduser("~")  # noqa: PTH111
    if sys.platform == "darwin":
        return f"{home}/Library/Application Support/memories"
    data = environment.get("XDG_DATA_HOME", "").strip() or f"{home}/.local/share"
    return f"{data}/memories"


# --- start ---


def start(store: str) -> None:
    """Start a store's server in the background, unless one is running or was just started.

    The server listens only on a Unix socket, so nothing is started on Windows.

    Args:
        store: The URL of the store, with an absolute path.
    """
    if sys.platform == "win32":
        return
    import time

    path = socket_of(store, os.environ)
    if _is_listening(path):  # a server is running, but was too busy to answer
        return
    try:
        mark = f"{path}.start"
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
        if os.path.exists(mark) and time.time() - os.stat(mark).st_mtime < _RETRY_SECONDS:  # noqa: PTH110, PTH116
            return
        os.close(os.open(mark, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        os.utime(mark)
        nothing = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in range(3)]
        options = ["--no-http", "--idle", str(IDLE_MINUTES), "--store", store]
        command = [sys.executable, "-P", "-m", "memories", "serve", *options]
        os.posix_spawn(sys.executable, command, dict(os.environ), file_actions=nothing, setsid=True)
    except OSError:
        return  # the command was run without a server


def _is_listening(path: str) -> bool:
    """Return whether a server listens on a socket; a killed server leaves its socket behind."""
    import socket

    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.1)
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
    return True
