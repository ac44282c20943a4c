"""The errors of PostgreSQL and of its driver, each turned into one of ours with one clear
sentence.
"""

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

# The messages of libpq when it gets no connection, and what they mean: there is no code, only text.
_REFUSED = (
    ("could not translate host name", "its host is not known; check the name"),
    ("name or service not known", "its host is not known; check the name"),
    ("failed to resolve host", "its host is not known; check the name"),
    ("password authentication failed", "the server refused the user or the password; check both"),
    (
        "no password supplied",
        "the server wants a password and the URL has none; add it, or use ~/.pgpass",
    ),
    (
        "no pg_hba.conf entry",
        "the server lets no one in from here; ask its administrator for an entry in pg_hba.conf",
    ),
    ("does not support ssl", "it does not speak TLS, which the URL demands; change sslmode"),
    ("certificate", "its certificate can't be trusted; check sslmode and sslrootcert"),
    (
        "unsupported startup parameter",
        "a connection pooler stands before it and refuses an option; leave it out of the URL ({detail})",
    ),
)
_FULL = (  # a connection that somebody gives back helps
    ("too many clients", "it has no connection left; try again, or raise max_connections"),
    (
        "remaining connection slots",
        "it has no connection left; try again, or raise max_connections",
    ),
    (
        "no more connections allowed",
        "its connection pooler has no connection left; try again, or raise its limit",
    ),
    (
        "too many connections for",
        "the user or the database has no connection left; try again, or raise its limit",
    ),
    ("too many connections", "it has no connection left; try again, or raise its limit"),
)
_UNREACHABLE = (  # trying again may help
    (
        "connection refused",
        "nothing listens at that address; start the server, or check host and port",
    ),
    (
        "no such file or directory",
        "nothing listens at that address; start the server, or check host and port",
    ),
    ("starting up", "it is just starting; try again"),
    ("recovery mode", "it recovers from a crash; try again"),
    ("accepting connections", "it is just starting; try again"),  # not yet
    ("accepting commands", "it is just starting; try again"),  # not
    ("shutting down", "it is shutting down; try again when it is back"),
    ("timeout expired", "it does not answer; check host, port and firewall"),
    ("timed out", "it does not answer; check host, port and firewall"),
    ("timeout", "it does not answer in time; try again"),
    ("unreachable", "there is no way to it; check host and network"),
    ("no route to host", "there is no way to it; check host and network"),
    ("closed the connection", "the server closed the connection; it may be restarting: try again"),
    ("connection reset", "the server closed the connection; it may be restarting: try again"),
    ("broken pipe", "the server closed the connection; it may be restarting: try again"),
    ("eof detected", "the server closed the connection; it may be restarting: try again"),
    ("terminating connection", "the server closed the connection; it may be restarting: try again"),
    ("server login", "its connection pooler can't reach the server; try again when it is back"),
    (
        "cannot connect to server",
        "its connection pooler can't reach the server; try again when it is back",
    ),
)
_STANDBY = (  # of several hosts; where one could not be reached at all, trying again may help
    (
        "session is read-only",
        "it is a read-only replica and the URL demands one that can be written",
    ),
    (
        "server is in hot standby",
        "it is a read-only replica and the URL demands one that can be written",
    ),
)
_NAMELESS = (
    (
        "temporary failure in name resolution",
        "its host is not known for now: no name server answered",
    ),
)
INSTALL = "run: pip install 'psycopg[binary]'"
_MISSING = (
    ("database", "has no such database; create it, or check its name in the URL"),
    ("role", "has no such user; create it, or check its name in the URL"),
)


class ServerFull(StoreUnreachable):
    """The server, or the user, may have no more connections; one that is given back helps."""


class Interrupted(StoreUnreachable):
    """A read was interrupted, by a lost connection or a replaced table; reading again may help."""


@contextlib.contextmanager
def translated(shown: str) -> Iterator[None]:
    """Turn the driver's errors into ours.

    Args:
        shown: The URL without its password.

    Raises:
        ConfigError: The driver is installed and can't be loaded.
    """
    try:
        import psycopg
    except ImportError as exc:
        raise ConfigError(
            f"the driver of the PostgreSQL store can't be loaded ({_first_line(exc)}); {INSTALL}"
        ) from exc

    try:
        yield
    except psycopg.Error as exc:
        raise translation(exc, shown) from exc
    except UnicodeError as exc:
        raise StoreError(
            f"{shown} can't hold this text, which is not valid Unicode; nothing was written"
        ) from exc


# By the names of the driver's classes: loading the driver takes time, and not every command needs
# it.
_TRANSLATIONS: tuple[tuple[str, type[StoreError], str], ...] = (
    (
        "LockNotAvailable",
        StoreBusy,
        "{shown} was kept busy by another writer; nothing was written; try again",
    ),
    (
        *("DeadlockDetected SerializationFailure", StoreBusy),
        "{shown}: two writers waited for each other; nothing was written; try again",
    ),
    ("QueryCanceled", StoreBusy, "{shown}: the server stopped a statement ({detail}); try again"),
    (
        *("ReadOnlySqlTransaction", StoreError),
        "{shown} is a read-only replica; name the primary, or add target_session_attrs=read-write",
    ),
    (
        *("InsufficientPrivilege", StoreError),
        "{shown}: the user may not do this ({detail}); ask the database's owner for the right",
    ),
    ("DiskFull", StoreFull, "{shown}: the disk of the server is full ({detail})"),
    ("OutOfMemory", StoreError, "{shown}: the server has no room left ({detail})"),
    (
        *("DataCorrupted IndexCorrupted", StoreDamaged),
        "{shown} is damaged ({detail}); stop writing to it and restore a backup",
    ),
    (
        *("UndefinedTable UndefinedColumn", Interrupted),
        "{shown}: a table of the store is missing or was just replaced ({detail}); try again",
    ),
    ("DataError", StoreError, "{shown} can't hold a value ({detail}); nothing was written"),
)


def translation(exc: "psycopg.Error", shown: str) -> StoreError | Conflict:
    """Return our error for one of the driver's."""
    import psycopg
    from psycopg import errors

    detail = _first_line(exc)
    if isinstance(exc, errors.UniqueViolation):
        taken = "the key" if (exc.diag.constraint_name or "").endswith("_key") else "the position"
        return Conflict(f"{taken} of a record was written by somebody else first; read it again")
    for names, kind, message in _TRANSLATIONS:
        if isinstance(exc, tuple(getattr(errors, name) for name in names.split())):
            return kind(message.format(shown=shown, detail=detail))
    lost = (
        isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError) and exc.sqlstate is None
    )
    if lost or str(exc.sqlstate).startswith(_LOST):
        return Interrupted(f"the connection to {shown} was lost; nothing was written; try again")
    return StoreError(f"{shown} could not do it ({detail}); nothing was written")


# Besides a broken socket, which has no code: the server crashed, is starting or stopping, or an
# administrator ended the session; it waited too long; a connection could not be made, or a pooler
# lost it; no connection is left.
_LOST = ("57P", "25P03", "25P04", "08", "53300")


def refusal(exc: "psycopg.Error", shown: str, password: str) -> StoreError:
    """Return our error for a connection that could not be made."""
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
        for sign, meaning in table:
            if sign in lower:
                return kind(f"cannot connect to {shown}: {meaning.format(detail=detail)}")
    if "does not exist" in lower:
        for what, meaning in _MISSING:
            if f'{what} "' in lower:
                return StoreError(f"cannot connect: the server of {shown} {meaning}")
    return StoreError(f"cannot connect to {shown} ({detail}); check the URL and the server")


def _first_line(exc: Exception) -> str:
    return next(iter(str(exc).strip().splitlines()), type(exc).__name__)[:300]
