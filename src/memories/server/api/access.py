"""Who sends a request, and their rights: the owner on the Unix socket, a token, a browser or an OAuth client."""

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
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.types import Scope

from memories.core.disk import locked, read_file, replacing
from memories.core.http import Address, JsonClient, NoAnswer
from memories.core.urls import is_loopback
from memories.errors import ConfigError, InvalidInput
from memories.guard.validate import canonical_namespace
from memories.identity import tokens
from memories.models import SHARED
from memories.server.api.middleware import LOG
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


OAUTH_SCOPES = {"memory:read": "r", "memory:write": "rw", "memory:admin": "admin"}
WELL_KNOWN = "/.well-known/oauth-protected-resource"
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")  # none with a shared secret
_LEEWAY_SECONDS = 30
_AGAIN_SECONDS = 30.0  # between two looks at the keys of the issuer, whatever tokens are shown
_SILENT_SECONDS = 5.0  # the same while it has told none
_KEPT_SECONDS = 3600.0
_SECONDS = 5.0
_MAX_BYTES = 262_144
_DOCUMENTS = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")


class Issuer:
    """Tells who a JWT of an issuer stands for. It may ask the issuer for its keys, so call it in a thread."""

    def __init__(self, url: str, resource: str, namespace: str) -> None:
        """Prepare; nothing is asked before the first token.

        Args:
            url: The issuer, as the claim `iss` names it.
            resource: What tokens have to be made for, the claim `aud`: the public URL of `/mcp`.
            namespace: What a token may use that names no namespaces in the claim `namespaces`.

        Raises:
            ConfigError: The URL of the issuer is not acceptable.
        """
        parts = urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
            raise ConfigError("the issuer must be an https:// URL")
        self.url, self.resource, self._namespace = url.rstrip("/"), resource, namespace
        self._named = url
        self._lock = threading.Lock()
        self._keys: Mapping[str | None, Any] = {}
        self._looked_at = -_KEPT_SECONDS

    def metadata(self) -> dict[str, Any]:
        """Return what clients are told about this resource."""
        return {
            "resource": self.resource,
            "resource_name": "Memories",
            "authorization_servers": [self._named],
            "scopes_supported": list(OAUTH_SCOPES),
            "bearer_methods_supported": ["header"],
        }

    def challenge(self) -> str:
        """Return what a client without a token is told: where the metadata is."""
        parts = urlsplit(self.resource)
        return f'resource_metadata="{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path}", scope="memory:read"'

    def __call__(self, token: str) -> Principal | None:
        """Return who a token stands for; None if it is not one of this issuer for this resource, or has expired.

        Raises:
            Refused: 503, the issuer does not tell its keys.
        """
        import jwt

        try:
            head = jwt.get_unverified_header(token)
            key = self._key(head.get("kid"))
            if key is None or head.get("alg") not in _ALGORITHMS:
                return None
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[head["alg"]],
                audience=self.resource,
                issuer=[self.url, f"{self.url}/"],
                leeway=_LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError):
            return None
        return self._principal(claims)

    def _principal(self, claims: Mapping[str, Any]) -> Principal | None:
        given = claims.get("scope", claims.get("scp", ""))
        scopes = given.split() if isinstance(given, str) else map(str, given if isinstance(given, list) else ())
        most = max((tokens.LEVELS[OAUTH_SCOPES[scope]] for scope in scopes if scope in OAUTH_SCOPES), default=0)
        named = claims.get("namespaces")
        grants: dict[str, str] = {}
        for name, level in (named if isinstance(named, dict) else {self._namespace: "admin"}).items():
            try:
                namespace = name if name == tokens.ALL else canonical_namespace(name)
            except InvalidInput:
                continue
            allowed = min(most, tokens.LEVELS.get(str(level), 0))
            if allowed:
                grants[namespace] = next(word for word, number in tokens.LEVELS.items() if number == allowed)
        if not grants:
            return None
        client = claims.get("client_id") or claims.get("azp") or claims["sub"]
        return Principal(f"oauth:{claims['sub']}", str(client), grants)

    def _key(self, kid: str | None) -> Any:
        """Return the key of this name; the issuer is asked again for one that is not known, but not too often."""
        age = time.monotonic() - self._looked_at
        due = age > _KEPT_SECONDS or (
            kid not in self._keys and age > (_AGAIN_SECONDS if self._keys else _SILENT_SECONDS)
        )
        if due and self._lock.acquire(blocking=False):  # no second one waits for an issuer that is slow to answer
            try:
                self._keys = self._asked()
            except (NoAnswer, LookupError, TypeError, ValueError) as exc:
                _logger.warning("the keys of the OAuth issuer can't be read: %s", type(exc).__name__)
            finally:
                self._looked_at = time.monotonic()
                self._lock.release()
        if not self._keys:
            raise Refused(503, "the issuer of this token does not answer", headers={"retry-after": "5"})
        return self._keys.get(kid)

    def _asked(self) -> Mapping[str | None, Any]:
        import jwt

        for document in _DOCUMENTS:
            parts = urlsplit(self.url)
            told = _get(f"{parts.scheme}://{parts.netloc}{document}{parts.path}")
            if told is None:
                told = _get(f"{self.url}{document}")
            if isinstance(told, dict) and str(told.get("issuer", "")).rstrip("/") == self.url:
                keys = jwt.PyJWKSet.from_dict(_get(str(told["jwks_uri"])) or {})
                return {key.key_id: key for key in keys.keys}
        raise LookupError(self.url)


def _get(url: str) -> Any:
    """Return the JSON at a URL; None if there is none.

    Raises:
        NoAnswer: Nobody answers.
        ValueError: It is no URL that tokens may be checked by.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise ValueError("keys come over https:// only")
    tls = parts.scheme == "https"
    address = Address("the issuer", host, parts.port or (443 if tls else 80), tls, proxies=True)
    client = JsonClient(address, max_bytes=_MAX_BYTES)
    try:
        path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
        answer = client.ask("GET", path, seconds=_SECONDS, whole=True)
    finally:
        client.close()
    return answer.value if answer.status == 200 else None
