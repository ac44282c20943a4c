"""The project to which a folder belongs, found from its git repository; see docs/identity.md.

No file that comes with a clone can choose the name. The name comes only from `.git` and from the
user's own Memories folder, to which only the user writes. A name made from a remote's URL never
contains a user name or a password.
"""

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

from memories.identity import git, registry
from memories.identity.git import Checkout, Unreadable
from memories.identity.registry import Repository

MAX_CHARACTERS = 256  # maximum length of a project's name, which must fit into a tag's value
_MAX_CLONES = 5  # maximum number of times that a local clone is followed to its source
_MAX_FOLDER_NAME = 100  # maximum number of characters of a folder's name in a project's name
_DIGITS = 12  # number of digits of a hash in a project's name
_NAME_SETTING = ("memories", "project")  # section and name of the git setting

MAX_REMOTE_CHARACTERS = 200
# Alternative names of hosts, each with the host's usual name.
_HOST_ALIASES = {
    "www.github.com": "github.com",
    "ssh.github.com": "github.com",
    "altssh.gitlab.com": "gitlab.com",
    "altssh.bitbucket.org": "bitbucket.org",
    "ssh.dev.azure.com": "dev.azure.com",
    "vs-ssh.visualstudio.com": "dev.azure.com",
}
# Hosts that ignore case in paths. On other hosts, `A/x` and `a/x` are different repositories.
_CASELESS = ("github.com", "gitlab.com", "bitbucket.org", "codeberg.org", "dev.azure.com")
_DEFAULT_PORTS = {"http": "80", "https": "443", "git": "9418", "ftp": "21", "ftps": "990"}
_SSH = ("ssh", "git+ssh", "ssh+git")
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/]*)/(.*)", re.I | re.S)
_SCP = re.compile(r"(?:[^/@:\[\]]*@)?(\[[0-9a-f:.]+\]|[^/:@\[\]]{2,}):(?!:|//)(.+)", re.I | re.S)
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^:@\[\]]+)(?::(\d*))?", re.I)


class Project(NamedTuple):
    """A project, as found from a folder.

    Attributes:
        name: The project's name, which is the value of the tag `project`.
        root: The top folder of the working tree.
        branch: The branch that is checked out; None if `HEAD` is detached.
        worktree: The name of a linked working tree; None for the main one.
    """

    name: str
    root: Path
    branch: str | None
    worktree: str | None = None


def identify(folder: Path, home: Path | None = None, *, record: bool = True) -> Project | None:
    """Return the project to which a folder belongs.

    All working trees and clones of a repository, and the folders inside them, are one project. The
    repository's own configuration can name the project (`git config memories.project NAME`).
    Without that setting, a known project keeps its name. A new project is named after its remote
    (`github.com/owner/name`) or, without a remote, after its folder. If another project already has
    the folder's name, a hash is added.

    Args:
        folder: Any folder.
        home: The folder with the user's aliases; by default the one with `config.toml`.
        record: Whether to remember the name, so that the project keeps it when a remote is added or
            changed.

    Returns:
        The project; None if the folder isn't in a repository, or if the repository is unreadable or
        belongs to another user.

    Raises:
        ConfigError: The user's aliases can't be read.
    """
    try:
        checkout = git.find(folder)
        if checkout is None or not git.is_trusted(checkout):
            return None
        config, own = git.read_config(checkout)
    except (Unreadable, OSError, ValueError):  # a path may be invalid text, or too long
        return None
    if home is None:
        from memories.config import registers

        home = registers()
    name = _chosen_name(own, checkout, folder)
    if name is None:
        name = _Naming(home, record=record).name(checkout, config)
    name = registry.resolve(name, registry.aliases(home))
    scope = own.get(("memories", "", "scope"), [""])[-1].lower()
    if scope == "worktree" and checkout.worktree:
        name = f"{name}#{checkout.worktree}"
    elif scope == "clone":
        name = f"{name}#{_short_hash(str(checkout.common))}"
    branch = git.current_branch(checkout)
    return Project(name[:MAX_CHARACTERS], checkout.root, branch, checkout.worktree)


def _chosen_name(own: git.Config, checkout: Checkout, folder: Path) -> str | None:
    """Return the name that the repository's own configuration gives to a folder or to the whole
    project.
    """
    names = {
        subfolder: values[-1].strip()
        for (section, subfolder, setting), values in own.items()
        if (section, setting) == _NAME_SETTING
    }
    if not names:
        return None
    real = Path(os.path.realpath(folder))
    parts = real.relative_to(checkout.root).parts if real.is_relative_to(checkout.root) else ()
    for length in range(len(parts), -1, -1):
        name = names.get("/".join(parts[:length]), "")
        if 0 < len(name) <= MAX_CHARACTERS and name.isprintable():
            return name
    return None


class _Naming:
    """Names repositories that have no name in their configuration, and remembers the names."""

    def __init__(self, home: Path, *, record: bool) -> None:
        self._home, self._record = home, record

    def name(self, checkout: Checkout, config: git.Config, clones: int = _MAX_CLONES) -> str:
        """Return the earlier name of a known repository, or a new name for an unknown one.

        Args:
            checkout: The repository.
            config: The repository's configuration.
            clones: How many more times a local clone may be followed to its source.
        """
        remote = self._remote(checkout, config, clones)
        remembered = registry.find_repository(self._home, checkout.common)
        if remembered and remote and remembered.remote == remote:
            return remembered.name
        current = _examine(checkout, remote)
        if remembered and _is_same(remembered, current):
            if remembered.remote == remote and remembered.commit:
                return remembered.name  # the remembered name is up to date
            if self._record and remote and not registry.in_use(self._home, remote):
                registry.set_alias(self._home, remote, remembered.name)
            current = current._replace(name=remembered.name)
        elif remote is None:
            return self._name_by_folder(current, is_taken=remembered is not None)
        self._remember(current)
        return current.name

    def _name_by_folder(self, current: Repository, *, is_taken: bool) -> str:
        """Name a repository that has no remote and hasn't been seen in this folder before.

        Args:
            current: The repository, named after its folder.
            is_taken: Whether a different repository was in this folder before. If so, that
                repository may already have the folder's name.
        """
        moved = self._find_moved(current)
        if moved:
            current = current._replace(name=moved.name)
        elif is_taken or (not self._record and registry.in_use(self._home, current.name)):
            current = current._replace(name=_unique_name(current))
        elif self._record:
            return registry.remember_first(self._home, current, _unique_name(current)).name
        self._remember(current)
        return current.name

    def _remember(self, current: Repository) -> None:
        if self._record:
            registry.remember(self._home, current)

    def _find_moved(self, current: Repository) -> Repository | None:
        """Return the known repository without a remote that was moved here, if any."""
        for remembered in registry.repositories(self._home):
            if remembered.remote or not remembered.commit or os.path.lexists(remembered.folder):
                continue
            if git.has_commit(Path(current.folder), remembered.commit):
                return remembered
        return None

    def _remote(self, checkout: Checkout, config: git.Config, clones: int) -> str | None:
        """Return the name that a repository gets from its remote; None if no remote gives one."""
        urls: dict[str, str] = {}
        for (section, remote, setting), values in config.items():
            if section == "remote" and setting == "url" and values[0]:
                urls[remote] = values[0]
        if not urls:
            return None
        remotes = [remote for remote in ("origin", "upstream", *sorted(urls)) if remote in urls]
        url = urls[remotes[0]].strip()
        name = remote_name(url)
        if name is None or "." not in name.partition("/")[0]:  # perhaps a configured shorthand
            url = _expand(url, config) or _expand(url, git.user_config()) or url
            name = remote_name(url)
        if name is not None or clones == 0:
            return name
        path = _local_path(url)
        if not path:
            return None
        return self._source(checkout.root / git.expand_home(path), checkout, clones)

    def _source(self, path: Path, clone: Checkout, clones: int) -> str | None:
        """Return the name of the local project from which a repository was cloned."""
        try:
            for place in (path, path.with_name(f"{path.name}.git")):
                source = git.find(place) if place.is_dir() else None
                if source is None or source.common == clone.common:
                    continue
                if os.path.realpath(place) in (str(source.root), str(source.git)):
                    if not git.is_trusted(source):
                        return None
                    return self.name(source, git.read_config(source)[0], clones - 1)
        except (Unreadable, OSError, ValueError):
            return None  # the source no longer exists
        return None


def _examine(checkout: Checkout, remote: str | None) -> Repository:
    """Return the record of a repository, with the name that a new project would get."""
    common = checkout.common
    # The common folder may be called `.git` or, next to working trees, `.bare`.
    folder = common.parent if common.name.startswith(".") else common
    plain = folder.name.removesuffix(".git")
    plain = "".join(sign if sign.isprintable() else "_" for sign in plain).strip()
    name = remote or plain[:_MAX_FOLDER_NAME] or "project"
    commit = git.latest_commit(common, git.head_reference(checkout._replace(git=common)))
    return Repository(str(common), name, remote, commit, common.stat().st_ino)


def _is_same(remembered: Repository, current: Repository) -> bool:
    """Return whether a repository is the one that was seen in its folder earlier."""
    if remembered.commit and git.has_commit(Path(current.folder), remembered.commit):
        return True
    if remembered.number != current.number:
        return False
    # A missing commit doesn't prove that this is a different repository: git removes old commits.
    return remembered.commit is None or remembered.remote == current.remote


def _unique_name(current: Repository) -> str:
    place = f"{current.folder}\0{current.number}"
    return f"{current.name}-{_short_hash(place)}"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:_DIGITS]


def _expand(url: str, config: git.Config) -> str | None:
    """Expand a URL with the longest matching `url.BASE.insteadOf`; return None if none matches."""
    longest, base = "", ""
    for (section, replacement, setting), values in config.items():
        if (section, setting) != ("url", "insteadof"):
            continue
        for short in values:
            if url.startswith(short) and len(short) > len(longest):
                longest, base = short, replacement
    return base + url.removeprefix(longest) if longest else None


def remote_name(url: str) -> str | None:
    """Return the name of a remote, such as `github.com/owner/repository`.

    Args:
        url: The remote's address in git: a URL, or `user@host:path`.

    Returns:
        The name, which is the same for https, ssh and `user@host:path`, and never contains a URL's
        user, password or options. None if the address has no host or no path, or is a path on this
        machine.
    """
    if match := _URL.fullmatch(url):
        return _name_of_url(match[1].lower(), match[2], match[3])
    if match := _SCP.fullmatch(url):
        return _join(match[1], "", match[2])
    return None


def _name_of_url(scheme: str, authority: str, path: str) -> str | None:
    if scheme not in _DEFAULT_PORTS and scheme not in _SSH:
        return None
    address = _AUTHORITY.fullmatch(authority.rpartition("@")[2])
    if not address:  # for example if a password contains a slash, so that its end is unknown
        return None
    host, port = address[1], address[2] or ""
    path = re.split(r"[?#]", path, maxsplit=1)[0]
    if scheme in _SSH:
        port = ""  # a host may offer ssh on a second port, for the same repositories
    else:
        path = _unquote(path)
    if port == _DEFAULT_PORTS.get(scheme):
        port = ""
    return _join(host, port, path)


def _local_path(url: str) -> str | None:
    """Return the path of a remote that is on this machine; None for any other remote."""
    if url.lower().startswith("file://"):
        host, slash, path = url[len("file://") :].partition("/")
        return _unquote(slash + path) if host.lower() in ("", "localhost") else None
    if "://" in url or "::" in url or not url:
        return None
    return None if _SCP.fullmatch(url) and not url.startswith((".", "/")) else url


def _unquote(path: str) -> str:
    if "%" not in path:
        return path
    from urllib.parse import unquote  # this import takes longer than everything else here

    return unquote(path, errors="replace")


def _join(host: str, port: str, path: str) -> str | None:
    host = host.lower().rstrip(".")
    host = _HOST_ALIASES.get(host, host)
    if host.endswith(".visualstudio.com"):
        path, host = f"{host.partition('.')[0]}/{path}", "dev.azure.com"
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if host == "dev.azure.com":
        parts = [part for part in parts if part not in ("_git", "v3", "DefaultCollection")]
    elif len(parts) == 3 and parts[0] == "scm":  # only in Bitbucket Server's https addresses
        del parts[0]
    if parts:
        parts[-1] = parts[-1].removesuffix(".git")
    if not parts or not parts[-1] or ".." in parts:
        return None
    if any("@" in part and ":" in part for part in parts):
        return None
    name = "/".join((f"{host}:{port}" if port else host, *parts))
    if host in _CASELESS:
        name = name.lower()
    is_plain = name.isprintable() and "\\" not in name and len(name) <= MAX_REMOTE_CHARACTERS
    return name if is_plain else None
