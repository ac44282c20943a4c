"""URLs of stores and services: the path of a local one, whether a host is this machine, and what
may be shown.
"""

from pathlib import Path


def local_path(url: str) -> Path | None:
    """Return the file or the folder of a store on this machine; None for one on a server."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("sqlite", "files", "qdrant") or not rest.startswith("/") or rest == "/":
        return None
    return Path(rest[1:]).expanduser().absolute()


def slashes_hint(url: str) -> str:
    """Return a sentence about a relative path that was probably meant as an absolute one; empty if
    it was not.

    It is one if it begins with a folder of the root, as `sqlite:///tmp/notes.db` does, and nothing
    is there yet.
    """
    scheme, _, rest = url.partition(":///")
    first = Path(rest).parts[:1]
    if (
        scheme not in ("sqlite", "files", "qdrant")
        or not first
        or first[0] in ("/", "~", ".", "..")
    ):
        return ""
    if not Path("/", *first).is_dir() or Path(rest).exists():
        return ""
    return f"{url} is a relative path, {Path(rest).absolute()}; for /{rest} write four slashes: {scheme}:////{rest}"


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, whatever the network does."""
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# Options of a URL whose values tell no secret; those of all others are masked.
_PLAIN_OPTIONS = frozenset(
    "schema partitions dbname user host hostaddr port application_name fallback_application_name connect_timeout "
    "client_encoding sslmode sslcompression sslcert sslrootcert sslcrl sslsni gssencmode channel_binding require_auth "
    "target_session_attrs load_balance_hosts keepalives keepalives_idle keepalives_interval keepalives_count "
    "tcp_user_timeout collection https timeout api-version".split()
)


def without_password(url: str) -> str:
    """Return a URL as it may be shown: with *** in place of all that may be a password, also in a
    malformed one.
    """
    head, mark, rest = url.partition("?")
    query, hash_, fragment = rest.partition("#")
    options = (option.partition("=") for option in query.split("&"))
    shown = (
        f"{name}={value}"
        if equals and name.lower() in _PLAIN_OPTIONS
        else f"{name}=***"
        if equals
        else name and "***"
        for name, equals, value in options
    )
    return _without_user(head) + mark + "&".join(shown) + hash_ + (fragment and "***")


def _without_user(head: str) -> str:
    """Return the part of a URL before its options, without a password before the host."""
    scheme, separator, rest = head.partition("://")
    if not separator:
        return f"***@{head.rpartition('@')[2]}" if "@" in head else head
    if rest.startswith(("/", "~", ".")):  # a path
        return head
    user, at, host = rest.rpartition("@")
    name, colon, password = (user if at else rest).partition(":")
    if not at:  # a port, or the password of one who forgot the host
        written = password.partition("/")[0]
        return (
            head
            if not colon or written.isdigit() or rest.startswith("[")
            else f"{scheme}://{name}:***"
        )
    told = f"{name}:***" if colon else name if scheme.startswith("postgres") else "***"
    return f"{scheme}://{told}@{host}"
