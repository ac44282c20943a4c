"""One name for every way to write the address of a git remote; it never holds a user or a
password.
"""

import re

# Other names of the same host.
_HOSTS = {
    "www.github.com": "github.com",
    "ssh.github.com": "github.com",
    "altssh.gitlab.com": "gitlab.com",
    "altssh.bitbucket.org": "bitbucket.org",
    "ssh.dev.azure.com": "dev.azure.com",
    "vs-ssh.visualstudio.com": "dev.azure.com",
}
# Hosts where the case of a path has no meaning; elsewhere `A/x` and `a/x` are two repositories.
_CASELESS = ("github.com", "gitlab.com", "bitbucket.org", "codeberg.org", "dev.azure.com")
_DEFAULT_PORTS = {"http": "80", "https": "443", "git": "9418", "ftp": "21", "ftps": "990"}
_SSH = ("ssh", "git+ssh", "ssh+git")
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/]*)/(.*)", re.I | re.S)
_SCP = re.compile(r"(?:[^/@:\[\]]*@)?(\[[0-9a-f:.]+\]|[^/:@\[\]]{2,}):(?!:|//)(.+)", re.I | re.S)
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^:@\[\]]+)(?::(\d*))?", re.I)
MOST_CHARACTERS = 200


def name_of(url: str) -> str | None:
    """Return the name of a remote, such as `github.com/owner/repository`.

    Args:
        url: What git calls it by: a URL, or `user@host:path`.

    Returns:
        The same name for https, ssh and `user@host:path`, without a user, a password and the
        options of a URL. None for what is no host and path, and for a path on this machine.
    """
    if found := _URL.fullmatch(url):
        scheme, authority, path = found[1].lower(), found[2], found[3]
        if scheme not in _DEFAULT_PORTS and scheme not in _SSH:
            return None
        address = _AUTHORITY.fullmatch(authority.rpartition("@")[2])
        if not address:  # such as a password with a slash in it: nobody can tell where it ends
            return None
        host, port = address[1], address[2] or ""
        path = re.split(r"[?#]", path, maxsplit=1)[0]
        if scheme not in _SSH:
            path = _unquoted(path)
        elif port:
            port = ""  # ssh has a port of its own on hosts that are reached by https too
        if port == _DEFAULT_PORTS.get(scheme):
            port = ""
    elif found := _SCP.fullmatch(url):
        host, port, path = found[1], "", found[2]
    else:
        return None
    return _joined(host.lower().rstrip("."), port, path)


def local_path(url: str) -> str | None:
    """Return the path that a remote on this machine has; None for one elsewhere."""
    if url.lower().startswith("file://"):
        host, slash, path = url[len("file://") :].partition("/")
        return _unquoted(slash + path) if host.lower() in ("", "localhost") else None
    if "://" in url or "::" in url or not url:
        return None
    return None if _SCP.fullmatch(url) and not url.startswith((".", "/")) else url


def _unquoted(path: str) -> str:
    if "%" not in path:
        return path
    from urllib.parse import unquote  # costs more than all the rest

    return unquote(path, errors="replace")


def _joined(host: str, port: str, path: str) -> str | None:
    host = _HOSTS.get(host, host)
    if host.endswith(".visualstudio.com"):
        path, host = f"{host.partition('.')[0]}/{path}", "dev.azure.com"
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if host == "dev.azure.com":
        parts = [part for part in parts if part not in ("_git", "v3", "DefaultCollection")]
    elif len(parts) == 3 and parts[0] == "scm":  # Bitbucket Server has it in https only
        del parts[0]
    if parts:
        parts[-1] = parts[-1].removesuffix(".git")
    if (
        not parts
        or not parts[-1]
        or ".." in parts
        or any("@" in part and ":" in part for part in parts)
    ):
        return None
    name = "/".join((f"{host}:{port}" if port else host, *parts))
    if host in _CASELESS:
        name = name.lower()
    return (
        name if name.isprintable() and "\\" not in name and len(name) <= MOST_CHARACTERS else None
    )
