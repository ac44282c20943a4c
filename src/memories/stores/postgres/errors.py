"""The errors of PostgreSQL and of its driver, each turned into one of ours with one clear sentence."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from memories.errors import ConfigError, Conflict, StoreBusy, StoreDamaged, StoreError, StoreUnreachable

if TYPE_CHECKING:
    import psycopg

# The messages of libpq when it gets no connection: there is no code, only text.
_REFUSED = (
    ("could not translate host name", "its host is not known; check the name"),
    ("name or service not known", "its host is not known; check the name"),
    ("failed to resolve host", "its host is not known; check the name"),
    ("connection refused", "nothing listens at that address; start the server, or check host and port"),
    ("no such file or directory", "nothing listens at that address; start the server, or check host and port"),
    ("password authentication failed", "the server refused the user or the password; check both"),
    ("no password supplied", "the server wants a password and the URL has none; add it, or use ~/.pgpass"),
    ("no pg_hba.conf entry", "the server lets no one in from here; ask its administrator for an entry in pg_hba.conf"),
    ("does not support ssl", "it does not speak TLS, which the URL demands; change sslmode"),
    ("certificate", "its certificate can't be trusted; check sslmode and sslrootcert"),
    ("too many clients", "it has no connection left; try again, or raise max_connections"),
    ("remaining connection slots", "it has no connection left; try again, or raise max_connections"),
    ("starting up", "it is just starting; try again"),
    ("shutting down", "it is shutting down; try again when it is back"),
    ("timeout expired", "it does not answer; check host, port and firewall"),
    ("session is read-only", "it is a read-only replica and the URL demands one that can be written"),
    ("server is in hot standby", "it is a read-only replica and the URL demands one that can be written"),
)
_NOBODY_THERE = {
    meaning
    for sign, meaning in _REFUSED
    if sign
    in {
        *("connection refused", "no such file or directory", "starting up", "shutting down", "timeout expired"),
        *("too many clients", "remaining connection slots"),
    }
}  # trying again may help
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


def translation(exc: "psycopg.Error", shown: str) -> StoreError | Conflict:
    """Return our error for one of the driver's."""
    import psycopg
    from psycopg import errors

    detail = _first_line(exc)
    taken = "the key" if (exc.diag.constraint_name or "").endswith("_key") else "the position"
    known: tuple[tuple[type[psycopg.Error] | tuple[type[psycopg.Error], ...], StoreError | Conflict], ...] = (
        (
            errors.UniqueViolation,
            Conflict(f"{taken} of a record was written by somebody else first; read it again"),
        ),
        (
            errors.LockNotAvailable,
            StoreBusy(f"{shown} was kept busy by another writer; nothing was written; try again"),
        ),
        (
            (errors.DeadlockDetected, errors.SerializationFailure),
            StoreBusy(f"{shown}: two writers waited for each other; nothing was written; try again"),
        ),
        (errors.QueryCanceled, StoreBusy(f"{shown}: the server stopped a statement ({detail}); try again")),
        (
            errors.ReadOnlySqlTransaction,
            StoreError(f"{shown} is a read-only replica; name the primary, or add target_session_attrs=read-write"),
        ),
        (
            errors.InsufficientPrivilege,
            StoreError(f"{shown}: the user may not do this ({detail}); ask the database's owner for the right"),
        ),
        ((errors.DiskFull, errors.OutOfMemory), StoreError(f"{shown}: the server has no room left ({detail})")),
        (
            (errors.DataCorrupted, errors.IndexCorrupted),
            StoreDamaged(f"{shown} is damaged ({detail}); stop writing to it and restore a backup"),
        ),
        (
            (errors.UndefinedTable, errors.UndefinedColumn),
            Interrupted(f"{shown}: a table of the store is missing or was just replaced ({detail}); try again"),
        ),
        (psycopg.DataError, StoreError(f"{shown} can't hold a value ({detail}); nothing was written")),
    )
    for kind, ours in known:
        if isinstance(exc, kind):
            return ours
    if isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError) and exc.sqlstate in _LOST:
        return Interrupted(f"the connection to {shown} was lost; nothing was written; try again")
    return StoreError(f"{shown} could not do it ({detail}); nothing was written")


# None: the socket broke. The others: an administrator ended the session, the server crashed or is starting.
_LOST = (None, "57P01", "57P02", "57P03", "08000", "08003", "08006")


def refusal(exc: "psycopg.Error", shown: str, password: str | None) -> StoreError:
    """Return our error for a connection that could not be made."""
    lower = str(exc).lower()
    for sign, meaning in _REFUSED:
        if sign in lower:
            kind = StoreUnreachable if meaning in _NOBODY_THERE else StoreError
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
