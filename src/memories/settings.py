"""The table of settings: name, environment variable, default, accepted values and purpose."""

import math
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from memories.guard import validate
from memories.models import SHARED

if TYPE_CHECKING:
    from memories.guard.redactor import Redactor
    from memories.guard.rules import Rule


RANKS = ("relevance", "similarity", "formula")
LOCAL_EMBEDDERS = ("minilm", "e5", "fake", "none")  # embedders that send no text to a service


class HalfLife(float):
    """A half-life in hours, with a separate half-life for reinforceable memories."""

    __slots__ = ("reinforceable",)
    reinforceable: float

    def __new__(cls, hours: float, reinforceable: float) -> Self:
        """Create a half-life.

        Args:
            hours: The half-life of memories whose decay starts when they are written.
            reinforceable: The half-life of reinforceable memories.
        """
        half_life = super().__new__(cls, hours)
        half_life.reinforceable = reinforceable
        return half_life


class Setting(NamedTuple):
    """One setting.

    Attributes:
        name: The name in `Config` and `config.toml`.
        variable: The environment variable.
        default: The default value.
        parse: Converts a text to the value. Raises a ValueError with a message such as "must be
            true or false".
        purpose: The purpose, in a phrase.
        secret: Whether the value is never shown. An empty variable for a secret counts as unset,
            since other programs use it too.
        harmless: Whether any folder's `.env` may set it. Other settings may determine where texts
            are sent, or which files are read and written.
        trustable: Whether a `.env` that the user trusts may set it.
        is_common: Whether other programs use the same variable with other values, so that an
            invalid value in the environment is ignored.
    """

    name: str
    variable: str
    default: Any
    parse: Callable[[str], Any]
    purpose: str
    secret: bool = False
    harmless: bool = False
    trustable: bool = True
    is_common: bool = False


class Secret:
    """A key or a password; only `reveal` shows it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret text."""
        return self._text

    def __repr__(self) -> str:
        return "***"


class Config(NamedTuple):
    """All settings, and where each came from.

    Attributes:
        sources: The source of each setting: `flag`, `environment`, `.env`, the path of
            `config.toml`, or `default`.
        identity: The namespace that is set by the environment or a file, even if a flag overrides
            it. It identifies the writer in every namespace. None if unset.
        redact_rules: The user's own rules for `redact`, from `[[redact]]` in `config.toml`.
    """

    home: Path
    store: str
    namespace: str
    format: str
    embedder: str
    embedder_url: str | None
    embedder_api_key: Secret | None
    openai_api_key: Secret | None
    voyage_api_key: Secret | None
    cohere_api_key: Secret | None
    embedder_dimensions: int | None
    embedder_timeout: float
    embedder_fallback: str
    embedder_plain_http: bool
    embedder_cache_mb: int
    embedder_calibration: str | None
    default_limit: int
    min_confidence: float
    decay_half_life_hours: float
    decay_reinforceable_hours: float | None
    reinforce_on_retrieval: bool
    count_accesses: bool
    chromadb_host: str
    chromadb_port: int
    collection_name: str
    file_migrate_at: int
    file_migrate_to: str | None
    compact: bool
    history_tail_n: int
    memory_top_k: int
    memory_confidence_min: float
    memory_max_per_window: int
    context_token_budget: int | None
    context_max_per_writer: int | None
    context_memory_characters: int
    context_tool_turns: bool
    memory_timeout_seconds: float | None
    context_recall_n: int
    context_shares: str
    log_level: str
    mcp_endpoint: str
    redact: str
    project_detection: bool
    namespace_quota: str | None
    token: Secret | None
    token_file: Path | None
    plain_http: bool
    events: str
    rank: str
    freshness_decay_rate: float
    freshness_min: float
    freshness_fresh: float
    freshness_stale: float
    access_boost_rate: float
    access_boost_max: float
    relevance_threshold_fresh: float
    relevance_threshold_normal: float
    relevance_threshold_stale: float
    serve: str
    scratchpad_size: int
    prompt_tokens: int
    capture_projects: str
    tidy_command: str | None
    sources: Mapping[str, str]
    identity: str | None = None
    redact_rules: "tuple[Rule, ...]" = ()

    def redactor(self) -> "Redactor":
        """Return the redactor for these settings, which removes secrets from texts."""
        from memories.guard.redactor import Redactor  # imported late: for writing only

        return Redactor(self.redact, self.redact_rules)


# --- parsers of values ---


def _whole_number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        is_number = text.isascii() and text.isdigit() and len(text) < 10
        if not is_number or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(text)

    return parse


def _to_float(text: str) -> float:
    """Return a number, or NaN, which is outside any range."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _number(low: float, high: float, unit: str = "") -> Callable[[str], float]:
    def parse(text: str) -> float:
        number = _to_float(text)
        if not low <= number <= high:
            raise ValueError(f"must be a number{unit} from {low:g} to {high:g}")
        return number

    return parse


_share = _number(0, 1)
_seconds = _number(0.1, 600, " of seconds")


def _hours(text: str) -> float:
    hours = _to_float(text)
    if not 0 < hours < 1e9:
        raise ValueError("must be a number of hours greater than 0")
    return hours


def _yes_or_no(text: str) -> bool:
    word = text.lower()
    if word in ("true", "1", "yes", "on"):
        return True
    if word in ("false", "0", "no", "off"):
        return False
    raise ValueError("must be true or false")


def _choice(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"must be {', '.join(words[:-1])} or {words[-1]}")
        return text.lower()

    return parse


def _number_or_none(high: int) -> Callable[[str], int | None]:
    parse_number = _whole_number(1, high)

    def parse(text: str) -> int | None:
        if text.lower() in ("none", "null"):
            return None
        return parse_number(text)

    return parse


def _shares(text: str) -> str:
    parts = [part.strip() for part in text.split(",")]
    are_numbers = all(part.isascii() and part.isdigit() and len(part) <= 3 for part in parts)
    if len(parts) != 3 or not are_numbers:
        raise ValueError("must be three whole numbers, such as 20,55,25")
    if not any(map(int, parts)):
        raise ValueError("must not all be 0")
    return ",".join(str(int(part)) for part in parts)


def _quota(text: str) -> str | None:
    if text.lower() == "none":
        return None
    limits: dict[str, str] = {}
    for part in text.lower().split(","):
        name, _, number = (word.strip() for word in part.partition("="))
        owner, _, kind = name.rpartition(".")
        is_number = number.isascii() and number.isdigit() and len(number) <= 15
        is_limit = kind in ("memories", "turns") and (is_number or number == "none")
        is_namespace = not owner or not is_limit or namespace(owner) == owner
        if not is_limit or not is_namespace or name in limits:
            raise ValueError(
                "must be limits such as memories=10000,turns=50000,bob.memories=500,eve.turns=none"
            )
        limits[name] = number
    return ",".join(f"{name}={number}" for name, number in limits.items())


def _log_level(text: str) -> str:
    """Return a log level; names that other programs use for levels are accepted too."""
    level = text.upper()
    nearest = {"WARNING": "WARN", "CRITICAL": "ERROR", "FATAL": "ERROR", "TRACE": "DEBUG"}
    if level in ("DEBUG", "INFO", "WARN", "ERROR"):
        return level
    if level not in nearest:
        raise ValueError("must be DEBUG, INFO, WARN or ERROR")
    return nearest[level]


def namespace(text: str) -> str:
    """Return the canonical form of a namespace's name.

    `Memories` also refuses reserved names, unless the namespace is already in use.

    Raises:
        InvalidInput: The namespace is invalid.
    """
    return validate.canonical_namespace(text)


def _collection(text: str) -> str:
    letters = text.replace("-", "").replace("_", "")
    if not 3 <= len(text) <= 100 or not text[0].isalnum() or not letters.isalnum():
        raise ValueError("must be 3 to 100 letters, digits, - or _")
    return text


def _name(text: str) -> str:
    """Return a name that this program can't check completely, such as a host name."""
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        raise ValueError("must be Unicode text without control characters")
    return text


def _host(text: str) -> str:
    import ipaddress

    if all(character.isalnum() or character in "._-" for character in text):
        return text
    is_bracketed = text.startswith("[") and text.endswith("]")
    try:
        ipaddress.ip_address(text[1:-1] if is_bracketed else text)
    except ValueError:
        raise ValueError("must be a host name or an IP address") from None
    return text


def _folder(text: str) -> Path:
    try:
        return Path(_name(text)).expanduser().absolute()
    except (OSError, RuntimeError) as exc:
        raise ValueError(f"must be a folder ({exc})") from None


def _patterns(text: str) -> str:
    """Return folder patterns. A pattern that allows folders must be a full path, since anyone could
    create a folder with a matching name.
    """
    for pattern in map(str.strip, _name(text).split(",")):
        is_path = pattern.startswith(("/", "~")) or Path(pattern).is_absolute()
        if pattern and not is_path and not pattern.startswith("!"):
            raise ValueError(
                "must be full paths such as ~/work/*, or !NAME to leave a folder out, separated by "
                "commas"
            )
    return text


def _command(text: str) -> str:
    """Return a command, after checking that its program is a name or a full path. A relative path
    would depend on the working folder.
    """
    import shlex  # imported late: few commands need it

    try:
        program = shlex.split(_name(text))[0]
    except (ValueError, IndexError):
        raise ValueError("must be a command with its options, as written in a shell") from None
    is_name = program and Path(program).name == program
    if not is_name and not Path(program).is_absolute():
        raise ValueError("must begin with the name of a program or its full path")
    return text


# fmt: off
SETTINGS = (
    Setting("home", "MEMORY_HOME", None, _folder,
            "folder of the default store and, if set, of config.toml"),
    Setting("store", "MEMORY_STORE", None, _name,
            "where memories are kept, a URL such as sqlite:///path"),
    Setting("namespace", "MEMORY_NAMESPACE", SHARED, namespace,
            "namespace to write to and to read from"),
    Setting("format", "MEMORY_FORMAT", "auto", _choice("auto", "json", "text", "compact"),
            "json, text, compact, or auto: text on a terminal, else JSON", harmless=True),
    Setting("embedder", "EMBEDDER", "minilm", str,
            "minilm, e5, none (words only), or a service such as openai:MODEL"),
    Setting("embedder_url", "EMBEDDER_URL", None, _name,
            "URL of the embedding service, if not the provider's own"),
    Setting("embedder_api_key", "EMBEDDER_API_KEY", None, Secret,
            "key for EMBEDDER_URL", secret=True),
    Setting("openai_api_key", "OPENAI_API_KEY", None, Secret, "key for openai", secret=True),
    Setting("voyage_api_key", "VOYAGE_API_KEY", None, Secret, "key for voyage", secret=True),
    Setting("cohere_api_key", "COHERE_API_KEY", None, Secret, "key for cohere", secret=True),
    Setting("embedder_dimensions", "EMBEDDER_DIMENSIONS", None, _whole_number(1, 65_536),
            "number of dimensions of the service's vectors"),
    Setting("embedder_timeout", "EMBEDDER_TIMEOUT", 10.0, _seconds,
            "seconds to wait for one embedding request"),
    Setting("embedder_fallback", "EMBEDDER_FALLBACK", "none", _choice("none", "local"),
            "local: search by words only while the service fails"),
    Setting("embedder_plain_http", "EMBEDDER_PLAIN_HTTP", False, _yes_or_no,
            "true: texts may cross a network unencrypted"),
    Setting("embedder_cache_mb", "EMBEDDER_CACHE_MB", 64, _whole_number(0, 100_000),
            "size of the vector cache in MB; 0 for none"),
    Setting("embedder_calibration", "EMBEDDER_CALIBRATION", None, _name,
            "calibration of the model's similarities, such as slope=20.6,middle=0.213"),
    Setting("default_limit", "DEFAULT_LIMIT", 10, _whole_number(1, validate.MAX_LIMIT),
            "maximum number of results", harmless=True),
    Setting("min_confidence", "MIN_CONFIDENCE", 0.3, _share,
            "confidence, 0 to 1, below which searches and session blocks hide a memory"),
    Setting("decay_half_life_hours", "DECAY_HALF_LIFE_HOURS", 720.0, _hours,
            "hours after which a decaying memory's confidence is 0 (not half, despite the name)"),
    Setting("decay_reinforceable_hours", "DECAY_REINFORCEABLE_HOURS", None, _hours,
            "the same for reinforceable memories, if they decay at a different rate"),
    Setting("reinforce_on_retrieval", "REINFORCE_ON_RETRIEVAL", False, _yes_or_no,
            "true: each retrieval resets a memory's decay"),
    Setting("count_accesses", "COUNT_ACCESSES", True, _yes_or_no,
            "count how often each memory is read"),
    Setting("chromadb_host", "CHROMADB_HOST", "localhost", _host,
            "host of a Chroma server; setting it selects Chroma"),
    Setting("chromadb_port", "CHROMADB_PORT", 8000, _whole_number(1, 65535),
            "port of a Chroma server; setting it also selects Chroma"),
    Setting("collection_name", "COLLECTION_NAME", "memories", _collection,
            "name of the store's file or collection"),
    Setting("file_migrate_at", "FILE_MIGRATE_AT", 5000, _whole_number(1, 999_999_999),
            "maximum number of records in a files:/// store, per namespace"),
    Setting("file_migrate_to", "FILE_MIGRATE_TO", None, _name,
            "URL of the store that larger namespaces move to; by default, SQLite beside the files"),
    Setting("compact", "MEMORY_COMPACT", False, _yes_or_no,
            "true: SQLite keeps vectors in 5 bits per number, not 8; memory reembed converts a "
            "store"),
    Setting("history_tail_n", "HISTORY_TAIL_N", 16, _whole_number(1, validate.MAX_LIMIT),
            "number of turns in a context", harmless=True),
    Setting("memory_top_k", "MEMORY_TOP_K", 8, _whole_number(1, validate.MAX_LIMIT),
            "number of memories in a context", harmless=True),
    Setting("memory_confidence_min", "MEMORY_CONFIDENCE_MIN", 0.7, _share,
            "confidence below which agents neither store nor recall a memory"),
    Setting("memory_max_per_window", "MEMORY_MAX_PER_WINDOW", 3, _whole_number(0, 1000),
            "maximum number of memories that an agent stores per conversation and hour"),
    Setting("context_token_budget", "CONTEXT_TOKEN_BUDGET", None, _number_or_none(100_000_000),
            "maximum number of tokens in a context, or none", harmless=True),
    Setting("context_max_per_writer", "CONTEXT_MAX_PER_WRITER", 3,
            _number_or_none(validate.MAX_LIMIT),
            "maximum number of memories, and of recalled turns, from each of the other writers in "
            "a context, or none"),
    Setting("context_memory_characters", "CONTEXT_MEMORY_CHARACTERS", 8000,
            _whole_number(1, 100_000_000),
            "maximum number of characters of all memories in a context", harmless=True),
    Setting("context_tool_turns", "CONTEXT_TOOL_TURNS", False, _yes_or_no,
            "true: a context also includes turns of the roles tool and system"),
    Setting("memory_timeout_seconds", "MEMORY_TIMEOUT_SECONDS", 10, _number_or_none(100_000_000),
            "maximum number of seconds that an agent waits for its memory, or none",
            harmless=True),
    Setting("context_recall_n", "CONTEXT_RECALL_N", 20, _whole_number(0, 200),
            "number of earlier turns that a context recalls without a budget; 0 "
            "for none", harmless=True),
    Setting("context_shares", "CONTEXT_SHARES", "20,55,25", _shares,
            "how a budget is divided: last turns, recalled turns, memories", harmless=True),
    Setting("log_level", "LOG_LEVEL", "INFO", _log_level,
            "what agents log: DEBUG (commands too), INFO, WARN or ERROR", harmless=True,
            is_common=True),
    Setting("mcp_endpoint", "MCP_ENDPOINT", "memories", _name,
            "where agents keep turns and memories; the value memories means the store above"),
    Setting("redact", "REDACT", "secrets", _choice("secrets", "pii", "off"),
            "what to remove from everything that is written: secrets; pii (personal data too); "
            "or off"),
    Setting("project_detection", "PROJECT_DETECTION", True, _yes_or_no,
            "true: memories get the project of the git repository in which they are written"),
    Setting("namespace_quota", "NAMESPACE_QUOTA", None, _quota,
            "how much a namespace may hold, such as memories=10000,turns=50000,bob.memories=500"),
    Setting("token", "MEMORY_TOKEN", None, Secret,
            "token for a store at http:// or https://", secret=True),
    Setting("token_file", "MEMORY_TOKEN_FILE", None, _folder,
            "file with that token, readable only by you"),
    Setting("plain_http", "MEMORY_PLAIN_HTTP", False, _yes_or_no,
            "true: memories and the token may cross a network unencrypted"),
    Setting("events", "MEMORY_EVENTS", "on", _choice("on", "off", "content"),
            "what events.jsonl records about each operation: on (figures), content (redacted texts "
            "too), or off"),
    Setting("rank", "MEMORY_RANK", "relevance", _choice(*RANKS),
            "order of memories: relevance considers similarity, age and use; similarity ignores "
            "age and use; formula multiplies similarity, freshness and use"),
    Setting("freshness_decay_rate", "FRESHNESS_DECAY_RATE", 0.02, _number(0, 1000),
            "freshness of a decaying memory is 1 / (1 + this * days); stable memories don't age"),
    Setting("freshness_min", "FRESHNESS_MIN", 0.95, _share,
            "lower bound of a score's factor for age (recency); 1 ignores age"),
    Setting("freshness_fresh", "FRESHNESS_FRESH", 0.8, _share,
            "minimum freshness at which a memory that was read counts as fresh"),
    Setting("freshness_stale", "FRESHNESS_STALE", 0.5, _share,
            "freshness below which a memory that was never read counts as stale"),
    Setting("access_boost_rate", "ACCESS_BOOST_RATE", 0.002, _number(0, 1000),
            "how much each read increases a score's factor for use"),
    Setting("access_boost_max", "ACCESS_BOOST_MAX", 1.02, _number(1, 1000),
            "upper bound of a score's factor for use; 1 ignores use"),
    Setting("relevance_threshold_fresh", "RELEVANCE_THRESHOLD_FRESH", 0.70, _share,
            "minimum calibrated similarity of a fresh memory that shares no word with the query"),
    Setting("relevance_threshold_normal", "RELEVANCE_THRESHOLD_NORMAL", 0.75, _share,
            "the same for a memory that is neither fresh nor stale"),
    Setting("relevance_threshold_stale", "RELEVANCE_THRESHOLD_STALE", 0.85, _share,
            "the same for a stale memory, even if it shares a few words"),
    Setting("serve", "MEMORY_SERVE", "hooks", _choice("off", "hooks", "auto"),
            "what starts a server that stops when idle: hooks, auto (commands too), off"),
    Setting("scratchpad_size", "SCRATCHPAD_SIZE", 30, _whole_number(10, 50),
            "number of memories in a scratchpad", harmless=True),
    Setting("prompt_tokens", "PROMPT_TOKENS", 1500, _whole_number(100, 100_000),
            "maximum number of tokens that memory prompt prints", harmless=True),
    Setting("capture_projects", "CAPTURE_PROJECTS", "", _patterns,
            "folders in which hooks capture, such as ~/work/*,!~/work/secret; all if none is "
            "given"),
    Setting("tidy_command", "TIDY_COMMAND", None, _command,
            "command that gives a second opinion on the proposals of memory tidy",
            trustable=False),
)
# fmt: on
