"""The errors of PostgreSQL and of its driver, each turned into one of ours with one clear sentence."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from memories.errors import ConfigError, Conflict, StoreBusy, StoreDamaged, StoreError, StoreUnreachable

if TYPE_CHECKING:
    import psycopg

# The messages of libpq when it gets no connection, and what they mean: there is no code, only text.
_REFUSED = (
    ("could not translate host name", "its host is not known; check the name"),
    ("name or service not known", "its host is not known; check the name"),
    ("failed to resolve host", "its host is not known; check the name"),
    ("password authentication failed", "the server refused the user or the password; check both"),
    ("no password supplied", "the server wants a password and the URL has none; add it, or use ~/.pgpass"),
    ("no pg_hba.conf entry", "the server lets no one in from here; ask its administrator for an entry in pg_hba.conf"),
    ("does not support ssl", "it does not speak TLS, which the URL demands; change sslmode"),
    ("certificate", "its certificate can't be trusted; check sslmode and sslrootcert"),
    ("session is read-only", "it is a read-only replica and the URL demands one that can be written"),
    ("server is in hot standby", "it is a read-only replica and the URL demands one that can be written"),
)
_UNREACHABLE = (  # trying again may help
    ("connection refused", "nothing listens at that address; start the server, or check host and port"),
    ("no such file or directory", "nothing listens at that address; start the server, or check host and port"),
    ("too many clients", "it has no connection left; try again, or raise max_connections"),
    ("remaining connection slots", "it has no connection left; try again, or raise max_connections"),
    ("starting up", "it is just starting; try again"),
    ("shutting down", "it is shutting down; try again when it is back"),
    ("timeout expired", "it does not answer; check host, port and firewall"),
)
INSTALL = "run: pip install 'psycopg[binary]'"
_MISSING = (
    ("database", "has no such database; create it, or check its name in the URL"),
    ("role", "has no such user; create it, or check its name in the URL"),
)


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
        raise StoreError(f"{shown} can't hold this text, which is not valid Unicode; nothing was written") from exc


# By the names of the driver's classes: loading the driver takes time, and not every command needs it.
_TRANSLATIONS: tuple[tuple[str, type[StoreError], str], ...] = (
    ("LockNotAvailable", StoreBusy, "{shown} was kept busy by another writer; nothing was written; try again"),
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
    ("DiskFull OutOfMemory", StoreError, "{shown}: the server has no room left ({detail})"),
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
    if isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError) and exc.sqlstate in _LOST:
        return Interrupted(f"the connection to {shown} was lost; nothing was written; try again")
    return StoreError(f"{shown} could not do it ({detail}); nothing was written")


# None: the socket broke. The others: an administrator ended the session, the server crashed or is starting.
_LOST = (None, "57P01", "57P02", "57P03", "08000", "08003", "08006")


def refusal(exc: "psycopg.Error", shown: str, password: str | None) -> StoreError:
    """Return our error for a connection that could not be made."""
    lower = str(exc).lower()
    for kind, table in ((StoreError, _REFUSED), (StoreUnreachable, _UNREACHABLE)):
        for sign, meaning in table:
            if sign in lower:
                return kind(f"cannot connect to {shown}: {meaning}")
    if "does not exist" in lower:
        for what, meaning in _MISSING:
            if f'{what} "' in lower:
                return StoreError(f"cannot connect: the server of {shown} {meaning}")
    detail = _first_line(exc)
    if password:
        detail = detail.replace(password, "***")
    return StoreError(f"cannot connect to {shown} ({detail}); check the URL and the server")


def _first_line(exc: Exception) -> str:
    return next(iter(str(exc).strip().splitlines()), type(exc).__name__)[:300]
