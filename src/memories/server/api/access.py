"""Who asks: the owner on the Unix socket, a token, or a browser that signed in with one; and what each may do."""

import base64
import binascii
import hashlib
import hmac
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from starlette.types import Scope

from memories.core.disk import locked, read_file, replacing
from memories.errors import ConfigError
from memories.identity import tokens
from memories.models import SHARED
from memories.server.api.metrics import LOG
from memories.server.api.problems import Refused

SESSION_SECONDS = 12 * 3600
SCOPES = {"read": 1, "write": 2, "admin": 3, "unredacted": 3}
_LEVELS = {level: name for name, level in tokens.LEVELS.items()}
_FLUSH_SECONDS = 60.0
RATE, BURST = 200.0, 1_000.0  # requests of one token per second, and at once
_MAX_BUCKETS = 10_000
_BEARER = "bearer "
_logger = logging.getLogger(__name__)


class Principal(NamedTuple):
    """Who asks.

    Attributes:
        id: Of the token; `owner` for the user of the server.
        name: What is written with it tells this name.
        grants: For each namespace, or `*` for all others, `r`, `rw` or `admin`.
        browser: Whether a cookie told who it is.
    """

    id: str
    name: str
    grants: Mapping[str, str]
    browser: bool = False

    def level(self, namespace: str) -> int:
        """Return what it may do in a namespace: 0 nothing, 1 read, 2 write, 3 everything."""
        return tokens.LEVELS.get(self.grants.get(namespace) or self.grants.get(tokens.ALL, ""), 0)

    @property
    def channel(self) -> str:
        """How it reads and writes, for origins: on the page, or by requests of its own."""
        return "page" if self.browser else "http"

    @property
    def everywhere(self) -> int:
        """What it may do in the whole store."""
        return tokens.LEVELS.get(self.grants.get(tokens.ALL, ""), 0)

    def home(self, default: str) -> str:
        """Return the namespace that is used if a request names none.

        Args:
            default: That of the server.
        """
        named = [name for name in self.grants if name != tokens.ALL]
        best = max((default, *named), key=lambda name: (min(self.level(name), 2), name != SHARED))
        return best if self.level(best) else default

    def require(self, scope: str, namespace: str | None = None) -> None:
        """Refuse what it may not do.

        Args:
            scope: `read`, `write`, `admin`, or `unredacted`: write without taking secrets out.
            namespace: Where; None for the whole store.

        Raises:
            Refused: 403.
        """
        level = self.everywhere if namespace is None else self.level(namespace)
        if level < SCOPES[scope]:
            where = "the whole store" if namespace is None else f"namespace {namespace}"
            raise Refused(403, f"your token may not {_MAY[scope]} {where}; it needs {_LEVELS[SCOPES[scope]]} there")


_MAY = {"read": "read", "write": "write to", "admin": "manage", "unredacted": "switch redaction off in"}
OWNER = Principal("owner", "owner", {tokens.ALL: "admin"})
Verify = Callable[[str], Principal | None]


class Access:
    """Tells who asks, from the token or the cookie of a request; a changed file of tokens counts at once."""

    def __init__(self, home: Path, port: int = 0, *, verify: Verify | None = None, challenge: str = "") -> None:
        """Prepare.

        Args:
            home: Where the tokens are kept.
            port: Of the server: browsers send a cookie to every port of a host, so its name tells which one it is for.
            verify: Tells who shows a token that is none of ours, such as one of an OAuth server; it may block.
            challenge: What more a client is told that has no token: where to get one.
        """
        self.cookie = f"memories_{port}"
        self._home, self._verify, self._challenge = home, verify, challenge
        self._own = tokens.own(home)
        self._key = hashlib.sha256(b"cookie:" + self._own.encode()).digest()
        self._lock = threading.Lock()
        self._known: Sequence[tokens.Token] = ()
        self._stamp = (-1, -1, -1)
        self._ended = home / "serve" / "signed-out.json"
        self._used: dict[str, datetime] = {}
        self._flushed = time.monotonic()
        self._buckets: dict[str, tuple[float, float]] = {}

    @property
    def is_quick(self) -> bool:
        """Whether nobody else is asked who it is."""
        return self._verify is None

    # --- who it is -------------------------------------------------------------------------------------------------

    def principal(self, scope: Scope) -> Principal:
        """Return who sends a request; it may read files and ask an OAuth server, so call it in a thread.

        Raises:
            Refused: 401 if nobody is known to, 403 for a browser that does not say from where, 429 for one who asks
                too often.
        """
        found = self._found(scope)
        if found is None:
            self.refused(scope)
            extra = f", {self._challenge}" if self._challenge else ""
            raise Refused(
                401,
                "this needs a token: Authorization: Bearer mem_…; memory tokens create makes one",
                headers={"www-authenticate": f'Bearer realm="memories"{extra}'},
            )
        scope.get(LOG, {})["token"] = found.id
        if found is not OWNER:
            self._count(found.id, RATE, BURST)
        return found

    def refused(self, scope: Scope) -> None:
        """Count a wrong token against the address that it came from.

        Raises:
            Refused: 429, there were too many.
        """
        self._count(f"from {(scope.get('client') or ('?',))[0]}", 5.0, 20.0)

    def _found(self, scope: Scope) -> Principal | None:
        if (scope.get("server") or ("", 0))[1] is None:
            return OWNER  # the Unix socket, which only the owner can open
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get(b"authorization")
        if given is not None:
            return self.of_token(given[len(_BEARER) :].strip()) if given.lower().startswith(_BEARER) else None
        value = _cookie(headers.get(b"cookie", ""), self.cookie)
        found = None if value is None else self._of_cookie(value)
        if found is None:
            return None
        if scope["method"] not in ("GET", "HEAD") and not {b"origin", b"sec-fetch-site"} & headers.keys():
            raise Refused(403, "a browser's request has to say from where it comes (Origin)")
        return found

    def of_token(self, token: str) -> Principal | None:
        """Return who a token stands for; None if it is unknown or has expired."""
        if not token.isascii() or not 8 <= len(token) <= 8_192:
            return None
        if hmac.compare_digest(token.encode(), self._own.encode()):
            return OWNER
        if token.startswith(tokens.PREFIX):
            now = datetime.now(UTC)
            match = tokens.found(self._tokens(), token, now)
            return None if match is None else self._noted(match, now)
        return None if self._verify is None else self._verify(token)

    def _tokens(self) -> Sequence[tokens.Token]:
        stamp = tokens.stamp(self._home)
        if stamp != self._stamp:
            try:
                with self._lock:
                    self._known, self._stamp = tokens.read(self._home), stamp
            except ConfigError as exc:  # who asks is not known, so the path in it is not for them
                _logger.warning("%s", exc)
                raise Refused(503, "the server can't read its tokens; its log tells why") from exc
        return self._known

    def _noted(self, token: tokens.Token, now: datetime) -> Principal:
        with self._lock:
            self._used[token.id] = now
            due = time.monotonic() - self._flushed > _FLUSH_SECONDS
        if due:
            self.flush()
        return Principal(token.id, token.name, token.namespaces)

    def flush(self) -> None:
        """Write down when tokens were last used."""
        with self._lock:
            when, self._used = self._used, {}
            self._flushed = time.monotonic()
        if when:
            tokens.used(self._home, when)

    # --- browsers --------------------------------------------------------------------------------------------------

    def session(self, token: str) -> str | None:
        """Return the value of a cookie for who shows a token; None if nobody is known by it. It is signed."""
        found = self.of_token(token)
        if found is None or (found.id != OWNER.id and not token.startswith(tokens.PREFIX)):
            return None
        said = json.dumps([self.cookie, found.id, int(time.time()) + SESSION_SECONDS, secrets.token_hex(8)]).encode()
        return f"{_text(said)}.{_text(hmac.digest(self._key, said, 'sha256'))}"

    def _of_cookie(self, value: str) -> Principal | None:
        said, _, signature = value.partition(".")
        try:
            data = _bytes(said)
            if not hmac.compare_digest(_bytes(signature), hmac.digest(self._key, data, "sha256")):
                return None
            name, token_id, until, session = json.loads(data)
        except (ValueError, binascii.Error):
            return None
        if name != self.cookie or until < time.time() or session in self._ended_sessions():
            return None
        if token_id == OWNER.id:
            return OWNER._replace(browser=True)
        now = datetime.now(UTC)
        known = next((each for each in self._tokens() if each.id == token_id and not each.expired(now)), None)
        return None if known is None else self._noted(known, now)._replace(browser=True)

    def end_session(self, scope: Scope) -> None:
        """Have the cookie of a request, and every copy of it, count no more; without one that counts, do nothing."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        value = _cookie(headers.get(b"cookie", ""), self.cookie)
        if value is None or self._of_cookie(value) is None:
            return
        _, _, until, session = json.loads(_bytes(value.partition(".")[0]))
        with locked(self._ended.with_name(f"{self._ended.name}.lock")):
            ended = {each: end for each, end in self._ended_sessions().items() if end > time.time()}
            with replacing(self._ended) as stream:
                stream.write(json.dumps(ended | {session: until}).encode())

    def _ended_sessions(self) -> dict[str, int]:
        """Return the sessions that were ended before their time, and until when their cookies would have counted."""
        try:
            found: dict[str, int] = json.loads(read_file(self._ended))
        except FileNotFoundError:
            return {}
        except ValueError as exc:
            _logger.warning("cannot read %s; remove it, and sessions that were signed out expire by time", self._ended)
            raise Refused(503, "the server can't read which sessions have ended; its log tells why") from exc
        return found

    # --- how often -------------------------------------------------------------------------------------------------

    def _count(self, who: str, rate: float, burst: float) -> None:
        """Take one from somebody's bucket, which fills with time.

        Raises:
            Refused: 429, it is empty.
        """
        now = time.monotonic()
        with self._lock:
            left, since = self._buckets.get(who, (burst, now))
            left = min(burst, left + (now - since) * rate)
            if len(self._buckets) >= _MAX_BUCKETS:
                self._buckets.clear()
            self._buckets[who] = (left - 1 if left >= 1 else left, now)
        if left < 1:
            raise Refused(429, "too many requests; wait a second", headers={"retry-after": "1"})


def _cookie(header: str, name: str) -> str | None:
    """Return the value of a cookie; None if it is not there, or twice: another service may have set the second one."""
    pairs = (part.strip().partition("=") for part in header.split(";"))
    values = [value for key, _, value in pairs if key == name]
    return values[0] if len(values) == 1 else None


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True)
