"""The grammar of anchors, and the paths that a text names. Pure: nothing here reads a file.

    ops/grafana/                       a folder; a file without the slash
    src/refund_service.py::lock_order  a symbol, if the file's language is known
    docker-compose.yml::5433           a literal
    README.md::"lock order"            always a literal
    commit:9fceb02                     a commit, which is never checked
    https://example.org/runbook        a URL, which is never fetched

Paths are relative to the top folder of the memory's project.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from memories.errors import InvalidInput
from memories.guard.validate import shown
from memories.languages import is_unseen

RootOf = Callable[[str], Path | None]

PATH, SYMBOL, LITERAL, COMMIT, URL = "path", "symbol", "literal", "commit", "url"
CHECKED = (PATH, SYMBOL, LITERAL)
MAX_ANCHORS = 20
MAX_CHARACTERS = 500
_COMMIT_PREFIX = "commit:"
_HEX = frozenset("0123456789abcdef")
# Names of files and folders with secrets, in lower case.
_SECRET_FOLDERS = frozenset(".git .hg .svn .ssh .aws .gnupg .kube .docker".split())
_SECRET_NAMES = frozenset(
    """.env id_rsa id_dsa id_ecdsa id_ed25519 id_ecdsa_sk id_ed25519_sk .netrc _netrc .npmrc .pypirc
    .pgpass .htpasswd .dockercfg .vault-token .git-credentials .my.cnf kubeconfig""".split()
)
_SECRET_ENDS = (
    ".env", ".pem", ".key", ".p12", ".pfx", ".jks", ".keystore", ".kdbx", ".asc", ".gpg", ".ppk",
    ".tfstate", ".tfstate.backup", ".tfvars", ".ovpn",
)  # fmt: skip
_SECRET_WORDS = frozenset("credential credentials secret secrets".split())
_DATA_ENDS = frozenset("json yaml yml toml ini cfg conf env txt xml properties".split())
_SAMPLES = (".env.example", ".env.sample", ".env.template", ".env.dist")
MAX_TEXT = 20_000  # maximum number of characters searched
_MAX_PATHS = 40  # maximum number of paths that are looked up in the working tree
_QUOTED = re.compile(r"`([^`\n]{2,200})`|\"([^\"\n]{2,80})\"|(?<!\w)'([^'\n]{2,80})'(?!\w)")
_WORD = re.compile(r"[^\s,;()\[\]{}\"'`“”‘’«»<>|]+")
_PATH = re.compile(r"(?:\./)?[\w.@+-]+(?:/[\w.@+-]+)*/?")
_EXTENSION = re.compile(r"\w.*\.[A-Za-z]\w{0,9}")
_NAMELESS = re.compile(  # well-known files without an extension
    r"(?:Make|Docker|Container|Proc|Jenkins|Gem|Rake|Vagrant|Brew|Pod|Just|Tilt|Pip)file"
    r"|LICENSE|NOTICE|README|CHANGELOG|CODEOWNERS|\.\w[\w.-]*"
)
_LINE_NUMBER = re.compile(r"(?::\d+(?:[:-]\d+)?|#L\d+(?:-L?\d+)?)$")


class Anchor(NamedTuple):
    """A file, symbol, literal, commit or URL that a memory cites.

    Attributes:
        kind: `path`, `symbol`, `literal`, `commit` or `url`.
        target: The path, the commit or the URL.
        name: The symbol or the literal; empty for the other kinds.
    """

    kind: str
    target: str
    name: str = ""

    @property
    def parts(self) -> list[str]:
        """The parts of the path: the names of its folders, followed by its own name."""
        return self.target.rstrip("/").split("/")

    def __str__(self) -> str:
        """Return the anchor as it is stored; `parse` reads it back."""
        if self.kind == COMMIT:
            return f"{_COMMIT_PREFIX}{self.target}"
        if self.kind == SYMBOL:
            return f"{self.target}::{self.name}"
        if self.kind == LITERAL:
            needs_quotes = _is_symbol(self.target, self.name) or self.name[0] in "\"'"
            name = f'"{self.name}"' if needs_quotes else self.name
            return f"{self.target}::{name}"
        return self.target


def parse(text: str) -> Anchor:
    """Return the anchor written in a text.

    Raises:
        InvalidInput: The text is malformed, or its path is outside the project or may contain
            secrets.
    """
    text = unicodedata.normalize("NFC", text.strip())
    if not text or len(text) > MAX_CHARACTERS:
        raise InvalidInput(
            f"an anchor must have 1 to {MAX_CHARACTERS} characters; "
            "give a path, FILE::SYMBOL, FILE::LITERAL, commit:ID or a URL"
        )
    if any(is_unseen(sign) for sign in text):
        raise InvalidInput(f'the anchor "{shown(text)}" has an invisible character; leave it out')
    if text.startswith(_COMMIT_PREFIX) or (_is_commit(text) and any(map(str.isdigit, text))):
        commit = text.removeprefix(_COMMIT_PREFIX).lower()
        if not _is_commit(commit):
            raise InvalidInput(
                f'"{shown(commit)}" is not a commit: give 7 to 64 hexadecimal digits'
            )
        return Anchor(COMMIT, commit)
    scheme, colon, _ = text.partition("://")
    if colon and scheme.isalnum():
        if scheme.lower() not in ("http", "https") or " " in text:
            raise InvalidInput(f'the anchor "{shown(text)}" is not an http or https URL')
        return Anchor(URL, text)
    target, separator, name = text.partition("::")
    path = parse_path(target)
    if not separator:
        return Anchor(PATH, path)
    name = name.strip()
    if path.endswith("/") or not name:
        raise InvalidInput(
            f'the anchor "{shown(text)}" needs a file before :: and a symbol or literal after it'
        )
    if len(name) > 2 and name[0] == name[-1] and name[0] in "\"'":
        return Anchor(LITERAL, path, name[1:-1])
    return Anchor(SYMBOL if _is_symbol(path, name) else LITERAL, path, name)


def _is_commit(text: str) -> bool:
    return 7 <= len(text) <= 64 and _HEX.issuperset(text.lower())


def parse_path(text: str) -> str:
    """Return a path relative to the project, in its shortest form.

    Raises:
        InvalidInput: The path is outside the project, or may contain secrets.
    """
    label = f'the anchor path "{shown(text)}"'
    if not text or text[0] in "/~" or "\\" in text or text[1:2] == ":":
        raise InvalidInput(
            f"{label} is not relative to the project; give the path from the project's top folder, "
            "with / between folders"
        )
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise InvalidInput(f"{label} must stay inside the project, without ..")
    if any(map(_is_secret, parts)):
        raise InvalidInput(f"{label} may contain secrets, so it is never read; anchor another file")
    return "/".join(parts) + ("/" if text.endswith("/") else "")


def _is_secret(name: str) -> bool:
    # Some file systems ignore case, compatibility forms, and trailing dots or spaces.
    name = unicodedata.normalize("NFKC", name).casefold().rstrip(". ")
    if name in _SECRET_FOLDERS or name in _SECRET_NAMES or name.endswith(_SECRET_ENDS):
        return True
    if name.startswith(".env."):
        return name not in _SAMPLES
    stem, dot, end = name.partition(".")
    if stem in _SECRET_WORDS:
        return not dot or end in _DATA_ENDS
    return stem.startswith(("service_account", "service-account")) and end == "json"


def _is_symbol(path: str, name: str) -> bool:
    from memories.anchors.contents import knows_language  # imported late: for parsing anchors only

    if not knows_language(path):
        return False
    parts = name.replace("::", ".").replace("#", ".").split(".")
    return all(part.rstrip("?!").replace("$", "_").isidentifier() for part in parts)


def parse_all(texts: Iterable[str]) -> list[Anchor]:
    """Return the anchors written in texts, without duplicates.

    Raises:
        InvalidInput: An anchor is invalid, or there are too many.
    """
    anchors = list(dict.fromkeys(map(parse, texts)))
    if len(anchors) > MAX_ANCHORS:
        raise InvalidInput(f"a memory can have at most {MAX_ANCHORS} anchors, not {len(anchors)}")
    return anchors


def select_named(anchors: Sequence[str], old_text: str, new_text: str) -> tuple[str, ...]:
    """Return the anchors that a memory keeps when its text changes.

    An anchor is dropped if the old text named its path, symbol or literal and the new one doesn't.
    """

    def stays(written: str) -> bool:
        anchor = parse(written)
        words = (anchor.name or anchor.target.rstrip("/")).split()
        return all(word in new_text or word not in old_text for word in words)

    return tuple(filter(stays, anchors))


# --- paths in a text


def quoted_texts(text: str) -> list[str]:
    """Return the texts in backquotes and quotes."""
    return [match[1] or match[2] or match[3] for match in _QUOTED.finditer(text)]


def find_paths(text: str) -> Iterator[Anchor]:
    """Yield the paths that a text may name, in order."""
    seen: set[str] = set()
    text = text[:MAX_TEXT]
    for written in (*quoted_texts(text), *_WORD.findall(text)):
        word = _LINE_NUMBER.sub("", written.partition("::")[0].rstrip(".:!?"))
        name = word.rstrip("/").rpartition("/")[2]
        has_form = "/" in word or _EXTENSION.fullmatch(name) or _NAMELESS.fullmatch(name)
        if not has_form or not _PATH.fullmatch(word) or len(seen) >= _MAX_PATHS:
            continue
        try:
            path = parse_path(word)
        except InvalidInput:
            continue
        if path not in seen:
            seen.add(path)
            yield Anchor(PATH, path)
