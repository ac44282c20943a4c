"""Embedders turn text into vectors; `open_embedder` returns one by its name."""

from importlib import import_module
from typing import TYPE_CHECKING, cast

from memories.embedders.protocol import (
    Embedded,
    Embedder,
    EmbedderUnavailable,
    RemoteEmbedder,
    embed_many,
    embed_query,
    embed_to_store,
)
from memories.errors import ConfigError
from memories.stores.records import Space

if TYPE_CHECKING:
    from memories.settings import Config

__all__ = [
    "Embedded",
    "Embedder",
    "EmbedderUnavailable",
    "RemoteEmbedder",
    "Space",
    "embed_many",
    "embed_query",
    "embed_to_store",
    "open_embedder",
]

_REMOTE = ("openai", "ollama", "voyage", "cohere")


def open_embedder(name: str, config: "Config | None" = None) -> Embedder | None:
    """Return the embedder of that name; the first `embed` loads its model or asks its service.

    Args:
        name: `minilm` (the default, local, English), `e5` (local, about 100 languages, a package of
            its own), `openai`, `ollama`, `voyage` or `cohere`, with or without `:MODEL`, `fake`
            (for tests: deterministic, compares words only), or `none`.
        config: The settings of a service. [default: the environment and the files]

    Returns:
        The embedder, or None for `none`: search then goes by words alone.

    Raises:
        ConfigError: There is no such embedder, or a setting of its service is missing or invalid.
    """
    match name:
        case "minilm":
            from memories.embedders.minilm import MiniLM

            return MiniLM()
        case "e5":
            return cast("Embedder", import_module(f"{__name__}.e5").E5())
        case "fake":
            from memories.embedders.fake import FakeEmbedder

            return FakeEmbedder()
        case "none":
            return None
    if name.partition(":")[0] in _REMOTE:
        from memories.config import load_config

        service = import_module(f"{__name__}.service.embedder")
        return cast("Embedder", service.open_service(name, config or load_config()))
    services = ", ".join(_REMOTE)
    raise ConfigError(
        f'there is no embedder "{name}"; '
        f"EMBEDDER is minilm, e5, none, or a service: {services}, then :MODEL"
    )
