"""The project that a folder belongs to, from its git repository; see docs/identity.md.

A repository's files are data. Its name comes from what only its user writes: `.git` and the user's
own folder.
"""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from memories.identity import git, registry, remotes
from memories.identity.git import Checkout, Unreadable
from memories.identity.registry import Known

MOST_CHARACTERS = 256  # of the value of a tag
_MAX_CLONES = 5  # of clones of clones on this machine
_SHORT = 12  # digits of a commit or a hash in a name


class Project(NamedTuple):
    """A project, and how far it was followed.

    Attributes:
        name: What stands in the tag `project`.
        root: The top folder of the working tree.
        branch: The branch that is checked out; None for a commit without one.
        worktree: The name of a linked working tree; None for the main one.
    """

    name: str
    root: Path
    branch: str | None
    worktree: str | None = None


def identify(folder: Path, home: Path | None = None, *, record: bool = True) -> Project | None:
    """Return the project that a folder belongs to.

    Working trees, clones and folders inside of them are one project. Its name is the one that the
    repository's own configuration gives it (`git config memories.project NAME`), else the one that
    it had before, else that of its remote (`github.com/owner/name`), else its folder's name, with a
    hash if another project has that name.

    Args:
        folder: Any folder.
        home: Where the user's aliases are kept; by default beside `config.toml`.
        record: Remember the name, so that the project keeps it when a remote is added or changed.

    Returns:
        None outside of a repository, in one of another user, and in one that can't be read.

    Raises:
        ConfigError: The user's aliases can't be read.
    """
    try:
        checkout = git.find(folder)
        if checkout is None or not git.is_trusted(checkout):
            return None
        config, own = git.read_config(checkout)
    except (Unreadable, OSError, ValueError):  # a path may be no text, or too long
        return None
    if home is None:
        from memories.config import registers

        home = registers()
    name = _chosen(own, checkout, folder)
    if name is None:
        name = _remembered(checkout, config, home, record, _MAX_CLONES)
    name = registry.resolve(name, registry.aliases(home))
    scope = own.get(("memories", "", "scope"), [""])[-1].lower()
    if scope == "worktree" and checkout.worktree:
        name = f"{name}#{checkout.worktree}"
    elif scope == "clone":
        name = f"{name}#{_hash(checkout.common)[:_SHORT]}"
    return Project(name[:MOST_CHARACTERS], checkout.root, git.branch(checkout), checkout.worktree)


def _chosen(own: git.Config, checkout: Checkout, folder: Path) -> str | None:
    """Return the name that the repository's own configuration gives the project, or a folder in
    it.
    """
    named = {
        sub: values[-1].strip()
        for (section, sub, name), values in own.items()
        if (section, name) == _PROJECT
    }
    if not named:
        return None
    real = Path(os.path.realpath(folder))
    parts = real.relative_to(checkout.root).parts if real.is_relative_to(checkout.root) else ()
    for length in range(len(parts), -1, -1):
        name = named.get("/".join(parts[:length]), "")
        if 0 < len(name) <= MOST_CHARACTERS and name.isprintable():
            return name
    return None


_PROJECT = ("memories", "project")


def _remembered(
    checkout: Checkout, config: git.Config, home: Path, record: bool, clones: int
) -> str:
    """Return the name that the project had before, if this is the same repository, else the one
    that it has now.
    """
    common = checkout.common
    remote = _remote(checkout, config, home, record, clones)
    known = registry.repository(home, common)
    if known and remote and known.remote == remote:
        return known.name
    seen = _look(checkout, remote)
    if known and _is_same(known, seen):
        if known.remote == remote and known.commit:
            return known.name  # nothing is new
        if record and remote and not registry.in_use(home, remote):
            registry.set_alias(home, remote, known.name)
        seen = seen._replace(name=known.name)
    elif remote is None:
        return _named_by_folder(home, seen, record, is_taken=known is not None)
    if record:
        registry.remember(home, seen)
    return seen.name


def _named_by_folder(home: Path, seen: Known, record: bool, *, is_taken: bool) -> str:
    """Return the name of a project without a remote that is new here, or was in another place
    before.

    Args:
        home: Where names are remembered.
        seen: The repository, with the name of its folder.
        record: Remember the name.
        is_taken: Another repository was in this place, which may have the name of the folder.
    """
    if moved := _moved(home, seen):
        seen = seen._replace(name=moved.name)
    elif is_taken or (not record and registry.in_use(home, seen.name)):
        seen = seen._replace(name=_unique(seen))
    elif record:
        return registry.remember_first(home, seen, _unique(seen)).name
    if record:
        registry.remember(home, seen)
    return seen.name


def _unique(seen: Known) -> str:
    digest = hashlib.sha256(
        f"{seen.folder}\0{seen.number}".encode(errors="surrogateescape")
    ).hexdigest()
    return f"{seen.name}-{digest[:_SHORT]}"


def _look(checkout: Checkout, remote: str | None) -> Known:
    """Return what is to be known of a repository, with the name that it has without a past."""
    from memories.identity import objects

    common = checkout.common
    folder = (
        common.parent if common.name.startswith(".") else common
    )  # .git, and .bare beside working trees
    plain = "".join(
        sign if sign.isprintable() else "_" for sign in folder.name.removesuffix(".git")
    ).strip()
    commit = objects.latest_commit(common, git.reference(checkout._replace(git=common)))
    return Known(
        str(common), remote or plain[:100] or "project", remote, commit, common.stat().st_ino
    )


def _is_same(known: Known, seen: Known) -> bool:
    """Return whether the repository is still the one that was seen in this place."""
    if known.commit and _has(Path(seen.folder), known.commit):
        return True
    is_same_folder = known.number == seen.number
    return is_same_folder and (
        known.commit is None or known.remote == seen.remote
    )  # git removes commits in time


def _moved(home: Path, seen: Known) -> Known | None:
    """Return what is remembered of a repository without a remote that was in another place, which
    is gone.
    """
    for known in registry.repositories(home):
        if known.remote or not known.commit or os.path.lexists(known.folder):
            continue
        if _has(Path(seen.folder), known.commit):
            return known
    return None


def _has(common: Path, commit: str) -> bool:
    from memories.identity import objects

    return objects.has_commit(common, commit)


def _remote(
    checkout: Checkout, config: git.Config, home: Path, record: bool, clones: int
) -> str | None:
    """Return the name of the remote that a repository was cloned from; None without one that has a
    name.
    """
    urls = {
        sub: values[0]
        for (section, sub, name), values in config.items()
        if (section, name) == ("remote", "url")
    }
    chosen = next((each for each in ("origin", "upstream", *sorted(urls)) if urls.get(each)), None)
    if chosen is None:
        return None
    url = urls[chosen].strip()
    name = remotes.name_of(url)
    if (
        name is None or "." not in name.partition("/")[0]
    ):  # perhaps a short form that stands for an address
        url = _expanded(url, config) or _expanded(url, git.user_config()) or url
        name = remotes.name_of(url)
    if name is not None or clones == 0:
        return name
    path = remotes.local_path(url)
    return path and _source(checkout.root / git.in_home(path), checkout, home, record, clones)


def _expanded(url: str, config: git.Config) -> str | None:
    """Return a URL with the beginning that `url.BASE.insteadOf` gives it."""
    bases = [
        (short, sub)
        for (section, sub, name), values in config.items()
        if (section, name) == ("url", "insteadof")
        for short in values
        if short and url.startswith(short)
    ]
    short, base = max(bases, key=lambda each: len(each[0]), default=("", ""))
    return base + url.removeprefix(short) if short else None


def _source(path: Path, clone: Checkout, home: Path, record: bool, clones: int) -> str | None:
    """Return the name of the project that a repository was cloned from on this machine."""
    try:
        for each in (path, path.with_name(f"{path.name}.git")):
            found = git.find(each) if each.is_dir() else None
            if (
                found
                and found.common != clone.common
                and os.path.realpath(each) in (str(found.root), str(found.git))
            ):
                if not git.is_trusted(found):
                    return None
                return _remembered(found, git.read_config(found)[0], home, record, clones - 1)
    except (Unreadable, OSError, ValueError):
        return None  # it is not there any more
    return None


def _hash(folder: Path) -> str:
    return hashlib.sha256(str(folder).encode(errors="surrogateescape")).hexdigest()
