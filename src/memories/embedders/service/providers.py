"""Embedding services and their models: addresses, requests, responses and settings."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from memories.core.urls import is_loopback
from memories.errors import ConfigError, EmbedderError
from memories.guard.validate import shown
from memories.settings import Config, Secret
from memories.stores.records import Space

# about 1,000 English tokens; a longer text's vector says little about any part of the text
MAX_WINDOW_BYTES = 4_000
# The average for Chinese, which is the lowest; it is 4 for English and German, and 3 for code.
BYTES_PER_TOKEN = 2.5


class Model(NamedTuple):
    """A model that a service offers.

    Attributes:
        dimension: The default length of a vector.
        tokens: The maximum number of tokens that it reads at once.
        shorter: Other lengths of vectors that it offers.
        statement: The prefix that it expects before a text to be stored.
        question: The prefix that it expects before a query.
    """

    dimension: int
    tokens: int
    shorter: range | frozenset[int] = frozenset()
    statement: str = ""
    question: str = ""

    @property
    def window_bytes(self) -> int:
        """The size of the model's windows, in bytes of UTF-8."""
        return min(MAX_WINDOW_BYTES, int(self.tokens * BYTES_PER_TOKEN))


UNKNOWN_TOKENS = 512


@functools.cache
def models() -> Mapping[str, Model]:
    """Return the models in `models.toml`, keyed by name."""
    import tomllib  # imported late, since it takes 4 ms

    table = tomllib.loads(Path(__file__).with_name("models.toml").read_text(encoding="utf-8"))
    read_models: dict[str, Model] = {}
    for name, row in table.items():
        shorter: range | frozenset[int] = frozenset(row.pop("shorter", ()))
        if row.pop("any_shorter", False):
            shorter = range(1, row["dimension"] + 1)
        read_models[name] = Model(**row, shorter=shorter)
    return read_models


def find_model(name: str) -> Model | None:
    """Return a model by name, ignoring case, maker (`BAAI/`) and `:latest`; None if unknown."""
    return models().get(name.rpartition("/")[2].lower().removesuffix(":latest"))


# With a model that we haven't measured, no query is noise, and only nearly equal texts are
# duplicates. So nothing is hidden or refused by mistake.
_UNMEASURED = {
    "noise_mean": 0.0,
    "noise_spread": 0.0,
    "weight": 1.65,
    "duplicate": 0.95,
    "slope": 20.0,
    "middle": 0.4,
}
_MINILM = {
    "noise_mean": 0.09,
    "noise_spread": 0.07,
    "weight": 1.65,
    "duplicate": 0.8,
    "slope": 20.6,
    "middle": 0.213,
}
_CONSTANTS: Mapping[str, Mapping[str, float]] = {
    "all-minilm": _MINILM,
    "all-minilm-l6-v2": _MINILM,
    # This model's cosines are between 0.7 and 1, so small differences mean more.
    "text-embedding-ada-002": {
        **_UNMEASURED,
        "weight": 5.0,
        "duplicate": 0.98,
        "slope": 60.0,
        "middle": 0.8,
    },
}
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "noise_mean": (-1, 1),
    "noise_spread": (0, 1),
    "weight": (0, 100),
    "duplicate": (0, 1),
    "slope": (0.1, 1000),
    "middle": (-1, 1),
}
_TREATMENT = 1  # increased whenever texts are split or prefixed differently


class Patience(NamedTuple):
    """Seconds to wait for one request, and for all attempts together with the pauses between them.

    Attributes:
        tries: The maximum number of attempts; None for as many attempts as may help.
    """

    request: float
    total: float
    tries: int | None = None


class Service(NamedTuple):
    """A service's address and API key.

    Attributes:
        title: Its name in messages.
        url: The URL of requests.
        key: The API key, if there is one.
        key_from: The setting that contains or should contain the key.
        model: The model, for messages.
    """

    title: str
    url: str
    key: Secret | None
    key_from: str
    model: str

    @property
    def shown(self) -> str:
        """The service's name and address, for messages."""
        parts = urlsplit(self.url)
        return f"{self.title} ({parts.scheme}://{parts.netloc}{parts.path})"


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider of embedding services, and the formats of its requests and responses.

    Attributes:
        name: The part before the colon in EMBEDDER.
        title: Its name in messages.
        url: The URL of the provider's own service, which is the default.
        path: The endpoint below the URL.
        model: The default model.
        batch: The maximum number of texts in a request.
        keys: The settings that may contain its key; empty if it needs none.
        body: The constant part of a request's body.
        texts: The key in the body for the texts.
        kinds: The values of `input_type` for statements and questions; empty if it isn't sent.
        dimension: The key in the body for a vector length other than the default; empty if the
            length can't be chosen.
        vectors: Extracts the vectors from a response, in the order of the texts; raises
            LookupError, TypeError or ValueError if they are missing.
    """

    name: str
    title: str
    url: str
    path: str
    model: str
    batch: int
    keys: tuple[str, ...]
    body: Mapping[str, Any]
    texts: str
    kinds: tuple[str, ...]
    dimension: str
    vectors: Callable[[Any], list[Any]]


def _in_order(answer: Any) -> list[Any]:
    """Return the vectors in a response in OpenAI's format, sorted by index if they have one."""
    rows = answer["data"]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TypeError
    indexes = [row.get("index") for row in rows]
    if any(index is not None for index in indexes):
        if sorted(indexes) != list(range(len(rows))):
            raise ValueError
        rows = sorted(rows, key=itemgetter("index"))
    return [row["embedding"] for row in rows]


def _by_type(answer: Any) -> list[Any]:
    """Return the vectors in a response; Cohere groups them by number type, Ollama doesn't."""
    vectors = answer["embeddings"]
    if isinstance(vectors, dict):
        vectors = vectors["float"]
    return list(vectors)


OPENAI = Provider(
    "openai", "OpenAI", "https://api.openai.com/v1", "/embeddings", "text-embedding-3-small", 256,
    ("openai_api_key",), {"encoding_format": "float"}, "input", (), "dimensions", _in_order,
)  # fmt: skip
OLLAMA = Provider(
    "ollama", "Ollama", "http://127.0.0.1:11434", "/api/embed", "nomic-embed-text", 16,
    (), {"truncate": True}, "input", (), "", _by_type,
)  # fmt: skip
VOYAGE = Provider(
    "voyage", "Voyage", "https://api.voyageai.com/v1", "/embeddings", "voyage-3", 128,
    ("voyage_api_key",), {"truncation": True}, "input", ("document", "query"), "output_dimension",
    _in_order,
)  # fmt: skip
COHERE = Provider(
    "cohere", "Cohere", "https://api.cohere.com/v2", "/embed", "embed-english-v3.0", 96,
    ("cohere_api_key",), {"embedding_types": ["float"], "truncate": "END"}, "texts",
    ("search_document", "search_query"), "output_dimension", _by_type,
)  # fmt: skip
PROVIDERS = {provider.name: provider for provider in (OPENAI, OLLAMA, VOYAGE, COHERE)}


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """The model and service chosen by the settings.

    Attributes:
        provider: The kind of service.
        service: The service that runs the model.
        model: The model.
        space: The space of its vectors.
        shorter: The length of vectors to request if it isn't the model's default.
        key_missing: The error message if a key is needed and there is none; else empty.
    """

    provider: Provider
    service: Service
    model: Model
    space: Space
    shorter: int | None
    key_missing: str


def choose(name: str, config: Config) -> ChosenModel:
    """Return the model chosen by a name and the settings.

    Args:
        name: `openai`, `openai:MODEL`, `ollama:MODEL`, …
        config: The settings.

    Raises:
        ConfigError: A setting is missing or invalid.
    """
    provider = PROVIDERS[name.partition(":")[0]]
    model = name.partition(":")[2].strip() or provider.model
    if len(model) > 200 or not model.isprintable():
        raise ConfigError(f'EMBEDDER has an invalid model name, "{shown(model)}"; correct it')
    url = _url(config.embedder_url or provider.url, provider, config)
    key, key_from = _key(provider, url, config)
    size, shorter = _find_size(model, config.embedder_dimensions)
    title, key_missing = provider.title, ""
    if not _belongs(url, provider):
        if provider is OPENAI:  # the service is compatible with it
            title = "the embedder's server"
    elif provider.keys and not key:
        key_missing = (
            f"{provider.title} requires a key; set {key_from}, or EMBEDDER=minilm for the local "
            "model"
        )
    service = Service(title, url.geturl(), key, key_from, model)
    space = _space(provider, model, shorter or size.dimension, config.embedder_calibration)
    return ChosenModel(provider, service, size, space, shorter, key_missing)


def _url(text: str, provider: Provider, config: Config) -> SplitResult:
    """Return the URL to which requests are posted.

    Raises:
        ConfigError: The setting is not a valid service URL, or would send texts unencrypted over a
            network.
    """
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError:
        raise ConfigError(
            f'EMBEDDER_URL "{shown(text)}" is not a URL; give https://host/path'
        ) from None
    if url.username is not None or url.password is not None:
        raise ConfigError(
            "EMBEDDER_URL contains a user name or a password; remove it, and set EMBEDDER_API_KEY"
        )
    is_clean = text.isascii() and " " not in text
    if url.scheme not in ("http", "https") or not url.hostname or not is_clean:
        raise ConfigError(
            f'EMBEDDER_URL "{shown(text)}" is not the URL of a service; give https://host/path'
        )
    if url.scheme == "http" and not is_loopback(url.hostname) and not config.embedder_plain_http:
        raise ConfigError(
            f"EMBEDDER_URL http://{shown(url.netloc)} would send texts unencrypted over a network; "
            "use https, or set EMBEDDER_PLAIN_HTTP=true if you trust that network"
        )
    path = url.path.rstrip("/")
    if not path.endswith(provider.path):
        path += provider.path
    return url._replace(path=path, fragment="")


def _key(provider: Provider, url: SplitResult, config: Config) -> tuple[Secret | None, str]:
    """Return the key to send, or None, and the setting that contains or should contain it.

    A provider's key is sent only to that provider's host. EMBEDDER_API_KEY is sent to any
    EMBEDDER_URL, unless the URL comes from a `.env` in the working folder and the key doesn't.

    Raises:
        ConfigError: The key may not be sent there, or is invalid.
    """
    own = list(provider.keys) if _belongs(url, provider) else []
    for name in ("embedder_api_key", *own):
        secret: Secret | None = getattr(config, name)
        if secret is None:
            continue
        url_source, key_source = config.sources["embedder_url"], config.sources[name]
        is_foreign_url = url_source == ".env" and key_source != ".env"
        if name == "embedder_api_key" and is_foreign_url:
            raise ConfigError(
                "EMBEDDER_URL comes from .env in the working folder, but EMBEDDER_API_KEY doesn't, "
                "so the key is not sent to that URL; set both in the same place"
            )
        key = secret.reveal()
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigError(
                f"{name.upper()} has characters that aren't allowed in a key; copy it again"
            )
        return secret, name.upper()
    return None, own[0].upper() if own else "EMBEDDER_API_KEY"


def _belongs(url: SplitResult, provider: Provider) -> bool:
    """Return whether a URL is the provider's own, so that it may receive the provider's key."""
    host, home = url.hostname or "", urlsplit(provider.url).hostname or ""
    return url.scheme == "https" and (host == home or host.endswith(f".{home}"))


def _find_size(name: str, dimension: int | None) -> tuple[Model, int | None]:
    """Return a model, and the length of vectors to request if it isn't the default."""
    model = find_model(name)
    if model is None:
        if dimension is None:
            raise ConfigError(
                f"the vector length of the embedder model {shown(name)} is unknown; "
                "set EMBEDDER_DIMENSIONS"
            )
        return Model(dimension, UNKNOWN_TOKENS), None
    if dimension is None or dimension == model.dimension:
        return model, None
    if dimension not in model.shorter:
        raise ConfigError(
            f"EMBEDDER_DIMENSIONS is {dimension}, but the vectors of {shown(name)} have "
            f"{model.dimension} dimensions; unset it"
        )
    return model, dimension


def _space(provider: Provider, model: str, dimension: int, calibration: str | None) -> Space:
    name = model.removesuffix(":latest")
    constants = dict(_CONSTANTS.get(name.rpartition("/")[2].lower(), _UNMEASURED))
    constants.update(_calibration(calibration))
    return Space(
        model=f"{provider.name}/{name}/{_TREATMENT}",
        dimension=dimension,
        noise_mean=constants["noise_mean"],
        noise_spread=constants["noise_spread"],
        weight=constants["weight"],
        duplicate=constants["duplicate"],
        calibration=(constants["slope"], constants["middle"]),
    )


def _calibration(text: str | None) -> dict[str, float]:
    """Return the constants in the setting EMBEDDER_CALIBRATION: `slope=20.6, middle=0.213`."""
    constants: dict[str, float] = {}
    for part in (text or "").replace(",", " ").split():
        name, _, number = part.partition("=")
        try:
            low, high = _BOUNDS[name]
            constants[name] = float(number)
            is_valid = low <= constants[name] <= high
        except (KeyError, ValueError):
            is_valid = False
        if not is_valid:
            bounds = (f"{name} {low:g} to {high:g}" for name, (low, high) in _BOUNDS.items())
            raise ConfigError(
                f'EMBEDDER_CALIBRATION has "{shown(part)}"; '
                f"it takes name=number: {', '.join(bounds)}"
            )
    return constants


def ask(chosen: ChosenModel, texts: Sequence[str], *, question: bool) -> dict[str, Any]:
    """Return the body of a request for the vectors of these texts."""
    if chosen.key_missing:
        raise EmbedderError(chosen.key_missing)
    provider = chosen.provider
    body = {"model": chosen.service.model, provider.texts: list(texts), **provider.body}
    if provider.kinds:
        body["input_type"] = provider.kinds[question]
    if chosen.shorter and provider.dimension:
        body[provider.dimension] = chosen.shorter
    return body
