"""Authentication and rights: the owner on the Unix socket, tokens, browsers and OAuth clients."""

import base64
import binascii
import functools
import hashlib
import hmac
import json
import logging
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.types import Scope

from memories.core.disk import locked, read_file, replacing
from memories.core.urls import is_loopback, local_path
from memories.errors import ConfigError, InvalidInput, MemoriesError
from memories.guard.validate import canonical_namespace
from memories.identity import tokens
from memories.languages import is_unseen
from memories.models import SHARED
from memories.server.api.middleware import LOG
from memories.server.api.problems import PUBLIC, Refused
from memories.settings import Config

SESSION_SECONDS = 12 * 3600
SCOPES = {"read": 1, "write": 2, "admin": 3, "unredacted": 3}
_LEVELS = {level: name for name, level in tokens.LEVELS.items()}
_FLUSH_SECONDS = 60.0
RATE, BURST = 200.0, 1_000.0  # requests per second for each token, and the allowed burst
_MAX_BUCKETS = 10_000
_BEARER = "bearer "
_logger = logging.getLogger(__name__)


class Principal(NamedTuple):
    """The sender of a request.

    Attributes:
        id: The token's id; `owner` for the user who runs the server.
        name: The name recorded as the writer of memories.
        grants: The grant (`r`, `rw` or `admin`) for each namespace; `*` stands for all others.
        browser: Whether a cookie identified the sender.
    """

    id: str
    name: str
    grants: Mapping[str, str]
    browser: bool = False

    def level(self, namespace: str) -> int:
        """Return the access level in a namespace: 0 none, 1 read, 2 write, 3 admin."""
        return tokens.LEVELS.get(self.grants.get(namespace) or self.grants.get(tokens.ALL, ""), 0)

    def _level_everywhere(self) -> int:
        """Return the lowest access level that the sender has in any namespace."""
        return min(map(self.level, (tokens.ALL, *self.grants)))

    @property
    def channel(self) -> str:
        """The channel recorded in origins: `page` for a browser, else `http`."""
        return "page" if self.browser else "http"

    @property
    def manages_store(self) -> bool:
        """Whether the sender may manage the entire store, and see where it is."""
        return self._level_everywhere() >= SCOPES["admin"]

    def home(self, default: str) -> str:
        """Return the namespace for requests that don't name one.

        Args:
            default: The server's own namespace, which is returned if the sender may read it.
        """
        named = [name for name in self.grants if name != tokens.ALL]

        def rank(name: str) -> tuple[int, bool]:
            return min(self.level(name), 2), name != SHARED

        best = max((default, *named), key=rank)
        return best if self.level(best) else default

    def require(self, scope: str, namespace: str | None = None) -> None:
        """Raise an error unless the sender has a right.

        Args:
            scope: `read`, `write`, `admin`, or `unredacted` (the right to write without redaction).
            namespace: The namespace; None for the entire store.

        Raises:
            Refused: 403, the sender lacks the right.
        """
        level = self._level_everywhere() if namespace is None else self.level(namespace)
        if level < SCOPES[scope]:
            where = "the entire store" if namespace is None else f"namespace {namespace}"
            needed = _LEVELS[SCOPES[scope]]
            raise Refused(403, f"your token may not {_MAY[scope]} {where}; that requires {needed}")


_MAY = {
    "read": "read",
    "write": "write to",
    "admin": "manage",
    "unredacted": "switch off redaction in",
}
OWNER = Principal("owner", "owner", {tokens.ALL: "admin"})


class Access:
    """Identifies senders by the token or the cookie in their requests. Changes to the token file
    take effect immediately.
    """

    def __init__(self, config: Config, port: int, issuer: "Issuer | None") -> None:
        """Initialize without reading any tokens.

        Args:
            config: The settings; their home contains the tokens.
            port: The server's port. It is part of the cookie's name, because browsers send a cookie
                to every port of a host.
            issuer: Identifies senders whose tokens this server did not issue.
        """
        self.cookie = f"memories_{port}"
        self._home, self._issuer = config.home, issuer
        self._own = tokens.own(config.home)
        self._key = hashlib.sha256(b"cookie:" + self._own.encode()).digest()
        self._lock = threading.Lock()
        self._tokens: Sequence[tokens.Token] = ()
        self._stamp = (-1, -1, -1)
        self._ended = config.home / "serve" / "signed-out.json"
        self._used_at: dict[str, datetime] = {}
        self._flushed = time.monotonic()
        self._buckets: dict[str, tuple[float, float]] = {}
        store = local_path(config.store) or config.home
        folders = set(map(str, (config.home, store.parent, Path.home())))
        self._folders = sorted(folders - {"/"}, key=len, reverse=True)

    @property
    def is_quick(self) -> bool:
        """Whether senders can be identified without asking another server."""
        return self._issuer is None

    def principal(self, scope: Scope) -> Principal:
        """Return the sender of a request. Call it in a thread: it may read files and ask an OAuth
        server.

        Raises:
            Refused: 401 if the sender is unknown, 403 if a browser sends no origin, 429 after too
                many requests.
        """
        principal = self._identify(scope)
        if principal is None:
            self.count_failure(scope)
            challenge = 'Bearer realm="memories"'
            if self._issuer is not None:
                challenge += f", {self._issuer.challenge()}"
            problem = "a token is required: Authorization: Bearer mem_…"
            if b"authorization" in dict(scope["headers"]):
                problem = "this token is unknown, revoked or expired"
            raise Refused(
                401,
                f"{problem}; create one with: memory tokens create",
                www_authenticate=challenge,
            )
        scope.get(LOG, {})["token"] = principal.id
        scope[PUBLIC] = functools.partial(self.without_folders, principal)
        if principal is not OWNER:
            self._count(principal.id, RATE, BURST)
        return principal

    def without_folders(self, who: Principal, text: str) -> str:
        """Return a text without the folders of the server's files, unless the sender manages the
        store.
        """
        for folder in () if who.manages_store else self._folders:
            text = text.replace(f"{folder}/", "")
        return text

    def count_failure(self, scope: Scope) -> None:
        """Count a wrong token against the client's address.

        Raises:
            Refused: 429, the address sent too many wrong tokens.
        """
        self._count(f"from {(scope.get('client') or ('?',))[0]}", 5.0, 20.0)

    def _identify(self, scope: Scope) -> Principal | None:
        if (scope.get("server") or ("", 0))[1] is None:
            return OWNER  # the Unix socket, which only the owner can open
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        authorization = headers.get(b"authorization")
        if authorization is not None:
            if not authorization.lower().startswith(_BEARER):
                return None
            return self.of_token(authorization[len(_BEARER) :].strip())
        cookie = _read_cookie(headers.get(b"cookie", ""), self.cookie)
        principal = None if cookie is None else self._of_cookie(cookie)
        if principal is None:
            return None
        names_origin = b"origin" in headers or b"sec-fetch-site" in headers
        if scope["method"] not in ("GET", "HEAD") and not names_origin:
            raise Refused(403, "a browser must send the Origin header with this request")
        return principal

    def of_token(self, token: str) -> Principal | None:
        """Return the principal that owns a token; None if the token is unknown or has expired."""
        if not token.isascii() or not 8 <= len(token) <= 8_192:
            return None
        if hmac.compare_digest(token.encode(), self._own.encode()):
            return OWNER
        if token.startswith(tokens.PREFIX):
            now = datetime.now(UTC)
            match = tokens.match(self._read_tokens(), token, now)
            return None if match is None else self._record_use(match, now)
        return None if self._issuer is None else self._issuer.identify(token)

    def _read_tokens(self) -> Sequence[tokens.Token]:
        stamp = tokens.stamp(self._home)
        if stamp != self._stamp:
            try:
                with self._lock:
                    self._tokens, self._stamp = tokens.read(self._home), stamp
            except ConfigError as exc:
                # the message contains a path, which an unknown sender must not see
                _logger.warning("%s", exc)
                raise Refused(
                    503, "the server can't read its tokens; see the server's log"
                ) from exc
        return self._tokens

    def _record_use(self, token: tokens.Token, now: datetime) -> Principal:
        with self._lock:
            self._used_at[token.id] = now
            due = time.monotonic() - self._flushed > _FLUSH_SECONDS
        if due:
            self.flush()
        return Principal(token.id, token.name, token.namespaces)

    def flush(self) -> None:
        """Try to save the times at which tokens were last used."""
        with self._lock:
            used_at, self._used_at = self._used_at, {}
            self._flushed = time.monotonic()
        if used_at:
            try:
                tokens.record_use(self._home, used_at)
            except (
                MemoriesError,
                OSError,
            ) as exc:  # the disk is full, for example; requests still work
                _logger.warning("cannot record when tokens were last used: %s", exc)

    def session(self, token: str) -> str | None:
        """Return the signed value of a session cookie for a token's owner; None if the token is
        unknown.
        """
        principal = self.of_token(token)
        if principal is None or (principal.id != OWNER.id and not token.startswith(tokens.PREFIX)):
            return None
        expires = int(time.time()) + SESSION_SECONDS
        payload = json.dumps([self.cookie, principal.id, expires, secrets.token_hex(8)]).encode()
        return f"{_to_base64(payload)}.{_to_base64(hmac.digest(self._key, payload, 'sha256'))}"

    def _of_cookie(self, cookie: str) -> Principal | None:
        encoded, _, signature = cookie.partition(".")
        try:
            payload = _from_base64(encoded)
            expected = hmac.digest(self._key, payload, "sha256")
            if not hmac.compare_digest(_from_base64(signature), expected):
                return None
            name, token_id, expires, session = json.loads(payload)
        except (ValueError, binascii.Error):
            return None
        if name != self.cookie or expires < time.time() or session in self._read_ended_sessions():
            return None
        if token_id == OWNER.id:
            return OWNER._replace(browser=True)
        now = datetime.now(UTC)
        for token in self._read_tokens():
            if token.id == token_id and not token.is_expired(now):
                return self._record_use(token, now)._replace(browser=True)
        return None

    def end_session(self, scope: Scope) -> None:
        """Invalidate the session cookie of a request, including every copy of the cookie; do
        nothing if the request has no valid cookie.
        """
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        cookie = _read_cookie(headers.get(b"cookie", ""), self.cookie)
        if cookie is None or self._of_cookie(cookie) is None:
            return
        _, _, expires, session = json.loads(_from_base64(cookie.partition(".")[0]))
        with locked(self._ended.with_name(f"{self._ended.name}.lock")):
            ended = {
                name: until
                for name, until in self._read_ended_sessions().items()
                if until > time.time()
            }
            with replacing(self._ended) as stream:
                stream.write(json.dumps(ended | {session: expires}).encode())

    def _read_ended_sessions(self) -> dict[str, int]:
        """Return the sessions that users signed out of, each with its original expiry time."""
        try:
            sessions: dict[str, int] = json.loads(read_file(self._ended))
        except FileNotFoundError:
            return {}
        except ValueError as exc:
            _logger.warning(
                "cannot read %s; if you remove it, sessions that users signed out of stay valid "
                "until they expire",
                self._ended,
            )
            raise Refused(
                503, "the server can't tell which sessions have ended; see the server's log"
            ) from exc
        return sessions

    def _count(self, sender: str, rate: float, burst: float) -> None:
        """Count a request against a sender's limit of `rate` requests per second.

        Up to `burst` requests may come at once.

        Raises:
            Refused: 429, the sender has reached the limit.
        """
        now = time.monotonic()
        with self._lock:
            level, since = self._buckets.get(sender, (burst, now))
            level = min(burst, level + (now - since) * rate)
            if len(self._buckets) >= _MAX_BUCKETS:
                self._buckets.clear()
            self._buckets[sender] = (level - 1 if level >= 1 else level, now)
        if level < 1:
            raise Refused(
                429,
                "too many requests; wait a second and try again",
                retry_after="1",
            )


def _read_cookie(header: str, name: str) -> str | None:
    """Return a cookie's value. Return None if the cookie is missing, or if it occurs twice,
    since another service may have set one of them.
    """
    pairs = (part.strip().partition("=") for part in header.split(";"))
    values = [value for key, _, value in pairs if key == name]
    return values[0] if len(values) == 1 else None


def _to_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True)


OAUTH_SCOPES = {"memory:read": "r", "memory:write": "rw", "memory:admin": "admin"}
WELL_KNOWN = "/.well-known/oauth-protected-resource"
# the accepted algorithms; none of them uses a shared secret
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
_LEEWAY_SECONDS = 30
# minimum seconds between requests for the issuer's keys, however many unknown tokens arrive
_AGAIN_SECONDS = 30.0
_SILENT_SECONDS = 5.0  # minimum seconds between requests until the keys have been fetched once
_KEPT_SECONDS = 3600.0  # how long the issuer's keys are used before they are fetched again
_SECONDS = 5.0
_MAX_BYTES = 262_144
_DOCUMENTS = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")


class Issuer:
    """Identifies senders by the JWTs of an OAuth issuer, so that remote MCP clients can sign in.

    Tokens are checked against the issuer's keys. Call the methods in a thread, since they may have
    to fetch the keys. This server is a protected resource (RFC 9728), never an issuer.
    """

    def __init__(self, url: str, resource: str, namespace: str) -> None:
        """Check the URL; no request is sent before the first token arrives.

        Args:
            url: The issuer, as in the claim `iss`.
            resource: The required claim `aud`: the public URL of `/mcp`.
            namespace: The namespace for tokens without a `namespaces` claim.

        Raises:
            ConfigError: The issuer's URL is invalid.
        """
        parts = urlsplit(url)
        is_local = parts.scheme == "http" and is_loopback(parts.hostname or "")
        if not (is_local or (parts.scheme == "https" and parts.hostname)):
            raise ConfigError("the issuer must be an https:// URL with a host")
        self.url, self.resource, self._namespace = url.rstrip("/"), resource, namespace
        self._named = url
        self._lock = threading.Lock()
        self._keys: Mapping[str | None, Any] = {}
        self._looked_at = -_KEPT_SECONDS

    def metadata(self) -> dict[str, Any]:
        """Return the protected resource metadata."""
        return {
            "resource": self.resource,
            "resource_name": "Memories",
            "authorization_servers": [self._named],
            "scopes_supported": list(OAUTH_SCOPES),
            "bearer_methods_supported": ["header"],
        }

    def challenge(self) -> str:
        """Return the `WWW-Authenticate` parameters that say where to get a token."""
        parts = urlsplit(self.resource)
        url = f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path}"
        return f'resource_metadata="{url}", scope="memory:read"'

    def identify(self, token: str) -> Principal | None:
        """Return a token's owner. Return None if the token has expired, is for another resource, or
        comes from another issuer.

        Raises:
            Refused: 503, the issuer's keys are unavailable.
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
        scopes = claims.get("scope", claims.get("scp", ""))
        if isinstance(scopes, str):
            scopes = scopes.split()
        elif not isinstance(scopes, list):
            scopes = []
        known_scopes = [name for name in map(str, scopes) if name in OAUTH_SCOPES]
        max_level = max((tokens.LEVELS[OAUTH_SCOPES[name]] for name in known_scopes), default=0)
        namespaces = claims.get("namespaces", {self._namespace: "admin"})
        names = filter(_is_readable, map(claims.get, ("client_id", "azp", "sub")))
        client = next(names, None)
        if not isinstance(namespaces, dict) or client is None:
            return None
        grants: dict[str, str] = {}
        for name, level in namespaces.items():
            try:
                namespace = name if name == tokens.ALL else canonical_namespace(name)
            except InvalidInput:
                continue
            allowed = min(max_level, tokens.LEVELS.get(str(level), 0))
            if allowed:
                grants[namespace] = _LEVELS[allowed]
        if not grants:
            return None
        return Principal(f"oauth:{claims['sub']}", client, grants)

    def _key(self, kid: str | None) -> Any:
        """Return the key with this id; None if it is unknown.

        For an unknown id, the keys are fetched again, at a limited rate.
        """
        age = time.monotonic() - self._looked_at
        pause = _AGAIN_SECONDS if self._keys else _SILENT_SECONDS
        is_due = age > _KEPT_SECONDS or (kid not in self._keys and age > pause)
        # other requests don't wait for a slow issuer
        if is_due and self._lock.acquire(blocking=False):
            try:
                self._keys = self._fetch_keys()
            except (ConnectionError, LookupError, TypeError, ValueError) as exc:
                _logger.warning("cannot read the OAuth issuer's keys: %s", type(exc).__name__)
            finally:
                self._looked_at = time.monotonic()
                self._lock.release()
        if not self._keys:
            raise Refused(503, "the token's OAuth issuer does not answer", retry_after="5")
        return self._keys.get(kid)

    def _fetch_keys(self) -> Mapping[str | None, Any]:
        import jwt

        for document in _DOCUMENTS:
            parts = urlsplit(self.url)
            metadata = _get_json(f"{parts.scheme}://{parts.netloc}{document}{parts.path}")
            if metadata is None:
                metadata = _get_json(f"{self.url}{document}")
            issuer = metadata.get("issuer", "") if isinstance(metadata, dict) else ""
            if str(issuer).rstrip("/") == self.url:
                keys = jwt.PyJWKSet.from_dict(_get_json(str(metadata["jwks_uri"])) or {})
                return {key.key_id: key for key in keys.keys}
        raise LookupError(self.url)


def _is_readable(name: Any) -> bool:
    """Return whether a claim can be a writer's name: a text with at least one visible character."""
    if not isinstance(name, str):
        return False
    return not all(is_unseen(sign) or sign.isspace() for sign in name)


def _get_json(url: str) -> Any:
    """Return the JSON at a URL; None if the URL does not exist.

    Raises:
        NoAnswer: The server does not respond.
        ValueError: The URL is neither https nor on localhost.
    """
    from memories.core.http import Address, JsonClient  # imported late, since it loads urllib3

    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise ValueError("keys must be fetched over https://")
    tls = parts.scheme == "https"
    address = Address("the issuer", host, parts.port or (443 if tls else 80), tls, proxies=True)
    client = JsonClient(address, max_bytes=_MAX_BYTES)
    try:
        path = parts.path or "/"
        if parts.query:
            path += f"?{parts.query}"
        answer = client.ask("GET", path, seconds=_SECONDS, whole=True)
    finally:
        client.close()
    return answer.value if answer.status == 200 else None
