"""Tokens of an OAuth issuer: its JWTs are checked against its keys, so that remote MCP clients can sign in with it.

The server is a protected resource (RFC 9728), never an issuer.
"""

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from memories.core.http import Address, JsonClient, NoAnswer
from memories.core.urls import is_loopback
from memories.errors import ConfigError, InvalidInput
from memories.guard.validate import canonical_namespace
from memories.identity.tokens import ALL, LEVELS
from memories.server.api.access import Principal
from memories.server.api.problems import Refused

SCOPES = {"memory:read": "r", "memory:write": "rw", "memory:admin": "admin"}
WELL_KNOWN = "/.well-known/oauth-protected-resource"
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")  # none with a shared secret
_LEEWAY_SECONDS = 30
_AGAIN_SECONDS = 30.0  # between two looks at the keys of the issuer, whatever tokens are shown
_SILENT_SECONDS = 5.0  # the same while it has told none
_KEPT_SECONDS = 3600.0
_SECONDS = 5.0
_MAX_BYTES = 262_144
_logger = logging.getLogger(__name__)
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
            "scopes_supported": list(SCOPES),
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
        most = max((LEVELS[SCOPES[scope]] for scope in scopes if scope in SCOPES), default=0)
        named = claims.get("namespaces")
        grants: dict[str, str] = {}
        for name, level in (named if isinstance(named, dict) else {self._namespace: "admin"}).items():
            try:
                namespace = name if name == ALL else canonical_namespace(name)
            except InvalidInput:
                continue
            allowed = min(most, LEVELS.get(str(level), 0))
            if allowed:
                grants[namespace] = next(word for word, number in LEVELS.items() if number == allowed)
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
