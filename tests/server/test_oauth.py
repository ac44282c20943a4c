"""Tokens from a real but small issuer on this machine, with its own keys."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from starlette.testclient import TestClient

from memories.errors import ConfigError
from memories.server.api import access
from memories.server.app import Options, build
from memories.settings import Config

RESOURCE = "http://127.0.0.1:8765/mcp"
Sign = Callable[..., dict[str, str]]


class TokenIssuer:
    """An issuer that serves its metadata and keys, and signs tokens."""

    def __init__(self) -> None:
        self.keys = {"one": rsa.generate_private_key(public_exponent=65537, key_size=2048)}
        self.requests: list[str] = []
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            wbufsize = -1

            def do_GET(self) -> None:
                issuer.requests.append(self.path)
                shape = issuer.answers().get(self.path)
                data = json.dumps(shape).encode()
                self.send_response(200 if shape else 404)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/tenant"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def answers(self) -> dict[str, Any]:
        rows = [
            json.loads(RSAAlgorithm.to_jwk(key.public_key()))
            | {"kid": kid, "use": "sig", "alg": "RS256"}
            for kid, key in self.keys.items()
        ]
        told = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        return {
            "/.well-known/oauth-authorization-server/tenant": told,
            "/tenant/keys": {"keys": rows},
        }

    def sign(
        self, kid: str = "one", key: Any = None, alg: str = "RS256", **claims: Any
    ) -> dict[str, str]:
        given = {
            "iss": self.url,
            "aud": RESOURCE,
            "sub": "ann",
            "exp": time.time() + 600,
            "scope": "memory:read",
        }
        given = {name: value for name, value in {**given, **claims}.items() if value is not None}
        token = jwt.encode(given, key or self.keys[kid], algorithm=alg, headers={"kid": kid})
        return {"authorization": f"Bearer {token}"}


@pytest.fixture
def issuer() -> Iterator[TokenIssuer]:
    """A small token issuer."""
    small = TokenIssuer()
    yield small
    small.http.shutdown()
    small.http.server_close()


@pytest.fixture
def api(issuer: TokenIssuer, config: Config) -> Iterator[TestClient]:
    """A client of a server that trusts the issuer."""
    app = build(config, Options(port=8765, issuer=issuer.url))
    with TestClient(app, base_url="http://127.0.0.1:8765") as client:
        yield client


def test_a_client_can_discover_the_address_of_the_issuer(
    api: TestClient, issuer: TokenIssuer
) -> None:
    for path in (
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
    ):
        told = api.get(path).json()
        assert (told["resource"], told["authorization_servers"]) == (RESOURCE, [issuer.url])
    refused = api.post("/mcp", json={})
    assert refused.status_code == 401
    base = RESOURCE.removesuffix("/mcp")
    wanted = f'resource_metadata="{base}/.well-known/oauth-protected-resource/mcp"'
    assert wanted in refused.headers["www-authenticate"]


def test_metadata_of_a_server_below_a_path_is_at_the_address_of_rfc_9728(
    config: Config, issuer: TokenIssuer
) -> None:
    options = Options(port=8765, issuer=issuer.url, public_url="http://127.0.0.1:8765/memory/")
    with TestClient(build(config, options), base_url="http://127.0.0.1:8765") as api:
        challenge = api.post("/mcp", json={}).headers["www-authenticate"]
        url = "http://127.0.0.1:8765/.well-known/oauth-protected-resource/memory/mcp"
        assert f'resource_metadata="{url}"' in challenge
        assert api.get(url).json()["resource"] == "http://127.0.0.1:8765/memory/mcp"


def test_scopes_set_the_rights_of_a_token(api: TestClient, issuer: TokenIssuer) -> None:
    reads, writes = issuer.sign(), issuer.sign(scope="memory:read memory:write", azp="claude")
    assert api.get("/api/memories", headers=reads).status_code == 200
    assert api.post("/api/memories", headers=reads, json={"content": "x"}).status_code == 403
    made = api.post("/api/memories", headers=writes, json={"content": "Deploys happen on Tuesdays"})
    assert (made.status_code, made.json()["origin"]["by"]) == (201, "claude")
    assert (
        api.post(f"/api/memories/{made.json()['id']}/forget", headers=writes, json={}).status_code
        == 403
    )


def test_a_claim_sets_the_namespaces_of_a_token(api: TestClient, issuer: TokenIssuer) -> None:
    headers = issuer.sign(
        scope="memory:write", namespaces={"ann": "rw", "shared": "r", "no/name": "rw"}
    )
    assert api.get("/api/me", headers=headers).json()["namespaces"] == {"ann": "rw", "shared": "r"}
    for namespace, status in (("ann", 200), ("shared", 200), ("bob", 403)):
        assert (
            api.get(f"/api/memories?namespace={namespace}", headers=headers).status_code == status
        )
    assert (
        api.post(
            "/api/memories?namespace=shared", headers=headers, json={"content": "x"}
        ).status_code
        == 403
    )


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "https://other.example/mcp"}, {"aud": None}, {"iss": "https://evil.example"},
        {"exp": 1.0},
        {"exp": None}, {"sub": None}, {"scope": ""}, {"scope": "openid profile"}, {"nbf": 9e9},
        {"namespaces": {}}, {"namespaces": []}, {"namespaces": ["bob"]}, {"namespaces": "bob"},
        {"sub": ""}, {"sub": " "}, {"sub": "\u200b"},
        {"scope": 5}, {"scope": {"memory:admin": True}},
    ],
)  # fmt: skip
def test_tokens_with_wrong_claims_are_refused(
    api: TestClient, issuer: TokenIssuer, claims: dict[str, Any]
) -> None:
    assert api.get("/api/me", headers=issuer.sign(**claims)).status_code == 401


@pytest.mark.parametrize("client", [" ", "", "\u202e", 5, ["claude"]])
def test_a_client_without_a_readable_name_is_recorded_as_its_user(
    api: TestClient, issuer: TokenIssuer, client: Any
) -> None:
    headers = issuer.sign(scope="memory:write", client_id=client, azp=client)
    made = api.post("/api/memories", headers=headers, json={"content": "Ann likes tea"}).json()
    assert made["origin"]["by"] == "ann"


def test_only_signatures_by_keys_of_the_issuer_are_accepted(
    api: TestClient, issuer: TokenIssuer
) -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    secret = "a public key is no shared secret, it is known to all"
    for headers in (
        issuer.sign(key=other),
        issuer.sign(kid="two", key=other),
        issuer.sign(key=secret, alg="HS256"),
        {"authorization": "Bearer eyJhbGciOiJub25lIiwia2lkIjoib25lIn0.eyJzdWIiOiJhbm4ifQ."},
    ):
        assert api.get("/api/me", headers=headers).status_code == 401


def test_unknown_keys_do_not_cause_a_request_each_time(
    api: TestClient, issuer: TokenIssuer
) -> None:
    api.get("/api/me", headers=issuer.sign())
    asked = len(issuer.requests)
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for number in range(10):
        api.get("/api/me", headers=issuer.sign(kid=f"unknown{number}", key=other))
    assert len(issuer.requests) == asked


def test_a_new_key_of_the_issuer_is_fetched(
    api: TestClient, issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert api.get("/api/me", headers=issuer.sign()).status_code == 200
    issuer.keys["two"] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    monkeypatch.setattr(access, "_AGAIN_SECONDS", 0.0)
    assert api.get("/api/me", headers=issuer.sign(kid="two")).status_code == 200


def test_an_unreachable_issuer_causes_503_and_not_401(api: TestClient, issuer: TokenIssuer) -> None:
    headers = issuer.sign()
    issuer.http.shutdown()
    issuer.http.server_close()
    answer = api.get("/api/me", headers=headers)
    assert (answer.status_code, "issuer" in answer.json()["detail"]) == (503, True)


def test_a_slow_request_for_keys_blocks_no_other_request(
    api: TestClient, issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking, go_on = threading.Event(), threading.Event()
    own = access.Issuer._fetch_keys

    def slow(self: Any) -> Any:
        asking.set()
        assert go_on.wait(60)
        return own(self)

    monkeypatch.setattr(access.Issuer, "_fetch_keys", slow)
    told: list[int] = []
    first = threading.Thread(
        target=lambda: told.append(api.get("/api/me", headers=issuer.sign()).status_code)
    )
    first.start()
    assert asking.wait(60)
    assert api.get("/api/me", headers=issuer.sign()).status_code == 503
    go_on.set()
    first.join()
    assert told == [200]
    assert api.get("/api/me", headers=issuer.sign()).status_code == 200


def test_an_unreachable_issuer_is_not_asked_for_each_token(
    api: TestClient, issuer: TokenIssuer
) -> None:
    issuer.answers = dict  # type: ignore[method-assign] # answers without metadata
    assert api.get("/api/me", headers=issuer.sign()).status_code == 503
    asked = len(issuer.requests)
    assert [api.get("/api/me", headers=issuer.sign()).status_code for _ in range(5)] == [503] * 5
    assert len(issuer.requests) == asked


def test_an_issuer_is_reached_over_tls(config: Config) -> None:
    with pytest.raises(ConfigError, match="https"):
        build(config, Options(issuer="http://issuer.example"))
