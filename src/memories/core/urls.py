"""URLs of stores and services: local paths, loopback hosts, and masking of secrets."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memories.settings import Config

_LOCAL_SCHEMES = ("sqlite", "files", "qdrant")


def local_path(url: str) -> Path | None:
    """Return a store's file or folder on this machine; None for a store on a server."""
    scheme, _, rest = url.partition("://")
    if scheme not in _LOCAL_SCHEMES or not rest.startswith("/") or rest == "/":
        return None
    return Path(rest[1:]).expanduser().absolute()


def absolute_url(url: str) -> str:
    """Return a store's URL, with an absolute path if the store is local."""
    path = local_path(url)
    return url if path is None else f"{url.partition(':')[0]}:///{path}"


def slashes_hint(url: str) -> str:
    """Return a hint if a relative path was probably meant to be absolute, else an empty string.

    That is likely if the path does not exist yet and begins with a folder of the root directory, as
    in `sqlite:///tmp/notes.db`.
    """
    scheme, _, rest = url.partition(":///")
    first = Path(rest).parts[:1]
    if scheme not in _LOCAL_SCHEMES or not first or first[0] in ("/", "~", ".", ".."):
        return ""
    if not Path("/", *first).is_dir() or Path(rest).exists():
        return ""
    return (
        f"{url} is a relative path, {Path(rest).absolute()}; for /{rest} write four slashes: "
        f"{scheme}:////{rest}"
    )


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, without a network lookup."""
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# Query parameters of a URL whose values are not secret; all others are masked.
_PLAIN_OPTIONS = frozenset(
    "schema partitions dbname user host hostaddr port application_name fallback_application_name "
    "connect_timeout client_encoding sslmode sslcompression sslcert sslrootcert sslcrl sslsni "
    "gssencmode channel_binding require_auth target_session_attrs load_balance_hosts keepalives "
    "keepalives_idle keepalives_interval keepalives_count tcp_user_timeout collection https "
    "timeout api-version".split()
)


def without_password(url: str) -> str:
    """Return a URL with *** in place of everything that may be a password.

    The URL may be malformed.
    """
    head, mark, rest = url.partition("?")
    query, hash_sign, fragment = rest.partition("#")
    options = "&".join(map(_mask_option, query.split("&")))
    return _mask_user(head) + mark + options + hash_sign + (fragment and "***")


def _mask_option(option: str) -> str:
    name, equals, value = option.partition("=")
    if not equals:
        return name and "***"
    return f"{name}={value}" if name.lower() in _PLAIN_OPTIONS else f"{name}=***"


def _mask_user(head: str) -> str:
    """Mask the password in the part of a URL before its query."""
    scheme, separator, rest = head.partition("://")
    if not separator:
        return f"***@{head.rpartition('@')[2]}" if "@" in head else head
    if rest.startswith(("/", "~", ".")):  # a path
        return head
    user, at, host = rest.rpartition("@")
    if not at:
        name, colon, password = rest.partition(":")
        # A number after the colon is a port. Anything else is a password, in a URL without a host.
        is_port = password.partition("/")[0].isdigit()
        if not colon or is_port or rest.startswith("["):
            return head
        return f"{scheme}://{name}:***"
    name, colon, _ = user.partition(":")
    if colon:
        return f"{scheme}://{name}:***@{host}"
    # A user name without a password may be a token, except in a PostgreSQL URL.
    return f"{scheme}://{name if scheme.startswith('postgres') else '***'}@{host}"


def store_option(config: "Config") -> str:
    """Return ` --store URL` if the current command was given this option, else an empty string.

    The URL contains no password.
    """
    if config.sources["store"] != "flag":
        return ""
    return f" --store {shlex.quote(without_password(config.store))}"
