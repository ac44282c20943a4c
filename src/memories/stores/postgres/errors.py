"""Translates errors from PostgreSQL and psycopg into our exceptions, with short messages."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from memories.errors import (
    ConfigError,
    Conflict,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnreachable,
)

if TYPE_CHECKING:
    import psycopg

# Fragments of libpq's messages about failed connections, with our explanations; these errors have
# no codes.
_REFUSED = (
    (
        ("could not translate host name", "name or service not known", "failed to resolve host"),
        "its host is unknown; check the name",
    ),
    (
        ("password authentication failed",),
        "the server refused the user or the password; check both",
    ),
    (
        ("no password supplied",),
        "the server requires a password, but the URL contains none; add it, or use ~/.pgpass",
    ),
    (
        ("no pg_hba.conf entry",),
        "the server refuses this address; ask its administrator for an entry in pg_hba.conf",
    ),
    (
        ("does not support ssl",),
        "it does not support TLS, which the URL requires; change sslmode",
    ),
    (("certificate",), "its certificate can't be trusted; check sslmode and sslrootcert"),
    (
        ("unsupported startup parameter",),
        "its connection pooler refuses an option; remove it from the URL ({detail})",
    ),
)
_FULL = (  # waiting may help: a connection may become free
    (
        ("too many clients", "remaining connection slots"),
        "it has no free connection; try again, or raise max_connections",
    ),
    (
        ("no more connections allowed",),
        "its connection pooler has no free connection; try again, or raise its limit",
    ),
    (
        ("too many connections for",),
        "the user or the database has no free connection; try again, or raise its limit",
    ),
    (("too many connections",), "it has no free connection; try again, or raise its limit"),
)
_UNREACHABLE = (  # trying again may help
    (
        ("connection refused", "no such file or directory"),
        "nothing is listening at that address; start the server, or check host and port",
    ),
    (("starting up",), "it is still starting; try again"),
    (("recovery mode",), "it is recovering from a crash; try again"),
    # the server says "not yet accepting connections" or "not accepting commands"
    (("accepting connections", "accepting commands"), "it is still starting; try again"),
    (("shutting down",), "it is shutting down; try again when it is back"),
    (("timeout expired", "timed out"), "it does not answer; check host, port and firewall"),
    (("timeout",), "it did not answer in time; try again"),
    (("unreachable", "no route to host"), "there is no route to it; check host and network"),
    (
        (
            "closed the connection",
            "connection reset",
            "broken pipe",
            "eof detected",
            "terminating connection",
        ),
        "the server closed the connection; it may be restarting: try again",
    ),
    (
        ("server login", "cannot connect to server"),
        "its connection pooler can't reach the server; try again when it is back",
    ),
)
_STANDBY = (  # checked last, because trying again may help if another host was unreachable
    (
        ("session is read-only", "server is in hot standby"),
        "it is a read-only replica, but the URL requires a writable server",
    ),
)
_NAMELESS = (
    (
        ("temporary failure in name resolution",),
        "its host is currently unknown, because no name server answered",
    ),
)
_MISSING = (
    ("database", "does not have this database; create it, or check its name in the URL"),
    ("role", "does not have this user; create it, or check its name in the URL"),
)


class ServerFull(StoreUnreachable):
    """Raised if the server, the user or the database has no free connection at the moment."""


class Interrupted(StoreUnreachable):
    """Raised if a lost connection or a replaced table interrupts a read; try once more."""


@contextlib.contextmanager
def translate_errors(masked_url: str) -> Iterator[None]:
    """Translate driver errors that are raised inside the context into ours.

    Args:
        masked_url: The URL without its password.

    Raises:
        ConfigError: The driver is installed but can't be loaded.
    """
    try:
        import psycopg
    except ImportError as exc:
        from memories.core.installation import install_command

        raise ConfigError(
            f"the driver of the PostgreSQL store can't be loaded ({_first_line(exc)}); "
            f"run: {install_command('postgres')}"
        ) from exc

    try:
        yield
    except psycopg.Error as exc:
        raise translation(exc, masked_url) from exc
    except UnicodeError as exc:
        raise StoreError(
            f"{masked_url} can't store this text, which is not valid Unicode; nothing was written"
        ) from exc


# The driver's classes are given by name, because loading the driver takes time.
_TRANSLATIONS: tuple[tuple[str, type[StoreError], str], ...] = (
    (
        "LockNotAvailable",
        StoreBusy,
        "another writer kept {masked_url} busy; nothing was written; try again",
    ),
    (
        "DeadlockDetected SerializationFailure",
        StoreBusy,
        "{masked_url}: two writers waited for each other; nothing was written; try again",
    ),
    (
        "QueryCanceled",
        StoreBusy,
        "{masked_url}: the server canceled a statement ({detail}); try again",
    ),
    (
        "ReadOnlySqlTransaction",
        StoreError,
        (
            "{masked_url} is a read-only replica; "
            "connect to the primary, or add target_session_attrs=read-write"
        ),
    ),
    (
        "InsufficientPrivilege",
        StoreError,
        "{masked_url}: the user may not do this ({detail}); ask the database's owner to allow it",
    ),
    ("DiskFull", StoreFull, "{masked_url}: the server's disk is full ({detail})"),
    ("OutOfMemory", StoreError, "{masked_url}: the server is out of memory ({detail})"),
    (
        "DataCorrupted IndexCorrupted",
        StoreDamaged,
        "{masked_url} is damaged ({detail}); stop writing to it and restore a backup",
    ),
    (
        "UndefinedTable UndefinedColumn",
        Interrupted,
        "{masked_url}: a table of the store is missing or was just replaced ({detail}); try again",
    ),
    ("DataError", StoreError, "{masked_url} can't store a value ({detail}); nothing was written"),
)


def translation(exc: "psycopg.Error", masked_url: str) -> StoreError | Conflict:
    """Return the `MemoriesError` to raise for an exception of psycopg."""
    import psycopg
    from psycopg import errors

    detail = _first_line(exc)
    if isinstance(exc, errors.UniqueViolation):
        is_key = (exc.diag.constraint_name or "").endswith("_key")
        return Conflict(
            "another writer has already stored a record with the same "
            f"{('key' if is_key else 'position')}; read that record again"
        )
    for names, kind, message in _TRANSLATIONS:
        if isinstance(exc, tuple(getattr(errors, name) for name in names.split())):
            return kind(message.format(masked_url=masked_url, detail=detail))
    is_connection_error = isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError)
    if (is_connection_error and exc.sqlstate is None) or str(exc.sqlstate).startswith(_LOST):
        return Interrupted(
            f"the connection to {masked_url} was lost; nothing was written; try again"
        )
    return StoreError(f"{masked_url} failed ({detail}); nothing was written")


# The error codes of lost connections; a broken socket has no code.
# 57P: the server crashed, is starting or is stopping, or an administrator ended the session.
# 25P: the session was idle for too long.
# 08: connecting failed, or a pooler lost the connection.
# 53300: no connection is free.
_LOST = ("57P", "25P03", "25P04", "08", "53300")


def refusal(exc: "psycopg.Error", masked_url: str, password: str) -> StoreError:
    """Return the error to raise after a failed attempt to connect."""
    lower, detail = str(exc).lower(), _first_line(exc)
    if password:
        detail = detail.replace(password, "***")
    for kind, table in (
        (StoreUnreachable, _NAMELESS),
        (StoreError, _REFUSED),
        (ServerFull, _FULL),
        (StoreUnreachable, _UNREACHABLE),
        (StoreError, _STANDBY),
    ):
        for fragments, meaning in table:
            if any(fragment in lower for fragment in fragments):
                return kind(f"cannot connect to {masked_url}: {meaning.format(detail=detail)}")
    if "does not exist" in lower:
        for kind_of_object, meaning in _MISSING:
            if f'{kind_of_object} "' in lower:
                return StoreError(f"cannot connect: the server at {masked_url} {meaning}")
    return StoreError(f"cannot connect to {masked_url} ({detail}); check the URL and the server")


def _first_line(exc: Exception) -> str:
    return next(iter(str(exc).strip().splitlines()), type(exc).__name__)[:300]
