"""Embedders turn text into vectors; `open_embedder` names those that ship."""

from memories.embedders.base import Embedder, Space
from memories.errors import ConfigError

__all__ = ["Embedder", "Space", "open_embedder"]


def open_embedder(name: str) -> Embedder | None:
    """Return the embedder of that name; its model is loaded when it first embeds.

    Args:
        name: `minilm` (the default, local), `fake` (for tests: deterministic, knows words only), or `none`.

    Returns:
        The embedder, or None for `none`: the memory then works by words alone.

    Raises:
        ConfigError: There is no such embedder.
    """
    match name:
        case "minilm":
            from memories.embedders.minilm import MiniLM

            return MiniLM()
        case "fake":
            from memories.embedders.fake import FakeEmbedder

            return FakeEmbedder()
        case "none":
            return None
    raise ConfigError(f'there is no embedder "{name}"; EMBEDDER is minilm, fake or none')
