"""Embedders turn texts into vectors. `open_embedder` opens one by name; `StoreEmbedder` chooses one
for a store.
"""

import contextlib
import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from memories.core.disk import make_folder
from memories.embedders.protocol import Embedder
from memories.errors import ConfigError, InvalidInput, MemoriesError
from memories.languages import detect, is_evident
from memories.models import SHARED
from memories.stores.records import Collection, Filter, Space

if TYPE_CHECKING:
    from memories.settings import Config
    from memories.stores.protocol import Store

__all__ = [
    "Embedder",
    "Space",
    "StoreEmbedder",
    "give_hint",
    "name_of",
    "open_embedder",
    "own_embedder",
]

_ENGLISH_ONLY = "all-MiniLM-L6-v2/"  # the beginning of the packaged model's name
# Models that run in this process, keyed by the beginning of their name in a store. A store must not
# be able to choose a service, which would receive every text.
_LOCAL = {_ENGLISH_ONLY: "minilm", "multilingual-e5-small/": "e5"}
_REMOTE = ("openai", "ollama", "voyage", "cohere")
_GIVEN = ".language-hint"
_NAMES = {
    "ar": "Arabic", "de": "German", "el": "Greek", "es": "Spanish", "fi": "Finnish",
    "fr": "French", "he": "Hebrew", "hi": "Hindi", "it": "Italian", "ja": "Japanese",
    "ko": "Korean", "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ru": "Russian",
    "th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
_HINT = (
    "this looks like {}, which the packaged model does not understand: search matches its words, "
    "not its meaning; for about 100 languages, run once: memory reembed --model e5 --install"
)


def open_embedder(name: str, config: "Config | None" = None) -> Embedder | None:
    """Return an embedder by name; its first `embed` loads the model or calls the service.

    Args:
        name: `minilm` (the default, local, English), `e5` (local, about 100 languages, in a
            separate package), `openai`, `ollama`, `voyage` or `cohere`, with or without `:MODEL`,
            `fake` (for tests: deterministic, compares words only), or `none`.
        config: The settings of a service; by default, those in the environment and configuration
            files.

    Returns:
        The embedder, or None for `none`: search then uses only words.

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
        f"set EMBEDDER to minilm, e5, none, or a service ({services}), optionally with :MODEL"
    )


class StoreEmbedder:
    """Chooses a store's embedder: the one given by the caller or a setting, else the one that made
    the store's vectors.
    """

    def __init__(
        self, embedder: Embedder | str | None, config: "Config", *, may_change: bool
    ) -> None:
        """Open the embedder that a store without vectors uses.

        Args:
            embedder: An embedder or its name; None for the one in the settings.
            config: The settings.
            may_change: Whether to use the store's own embedder if no setting chooses one.

        Raises:
            ConfigError: There is no such embedder, or a setting of its service is missing or
                invalid.
            InvalidInput: The embedder is neither a name nor an embedder.
        """
        self._is_final = embedder is not None or not may_change
        if embedder is None or isinstance(embedder, str):
            embedder = open_embedder(embedder or config.embedder, config)
        elif not hasattr(embedder, "space"):
            kind = type(embedder).__name__
            raise InvalidInput(f"embedder is of type {kind}; pass a name or an embedder")
        self._embedder, self._config = embedder, config

    @property
    def space(self) -> Space | None:
        """The space of the embedder's vectors; None if searches use only words."""
        return self._embedder.space if self._embedder else None

    def of(self, store: "Store") -> Embedder | None:
        """Return a store's embedder, and make the store use its space; see `own_embedder`."""
        if not self._is_final:
            own = own_embedder(store, self._embedder, self._config)
            self._is_final = own is not self._embedder
            self._embedder = own
        return self._embedder


def own_embedder(store: "Store", embedder: Embedder | None, config: "Config") -> Embedder | None:
    """Return the embedder to use for a store, after giving the store that embedder's space.

    This is the embedder that made the store's vectors, unless a setting chose the given one. If the
    store can't be read, the given embedder is returned; the operation that needs the store reports
    the error.

    Raises:
        ConfigError: The package with the store's model is missing.
    """
    if embedder is None or config.sources.get("embedder", "default") != "default":
        return embedder
    try:
        model = store.info(Filter(Collection.MEMORY, (SHARED,))).model or ""
    except MemoriesError:
        return embedder
    name = name_of(model)
    if name in ("", config.embedder):
        return embedder
    own = open_embedder(name, config)
    if own is not None:
        store.use_space(own.space)
    return own


def name_of(model: str) -> str:
    """Return the name of the local embedder that runs a model; empty if there is none."""
    for beginning, name in _LOCAL.items():
        if model.startswith(beginning):
            return name
    return ""


# --- a hint for users who write in other languages


def give_hint(text: str, embedder: Embedder | None, home: Path) -> str:
    """Return a hint, once per home, on how to get the multilingual model, if it would help.

    Args:
        text: The stored text, or the question.
        embedder: The embedder that embeds the text.
        home: The folder in which a file records that the hint was given.

    Returns:
        The hint, or an empty string.
    """
    if embedder is None or not embedder.space.model.startswith(_ENGLISH_ONLY):
        return ""
    file = home / _GIVEN
    if file.exists():
        return ""
    names = [_NAMES[code] for code in detect(text) if is_evident(text, code)]
    if not names:
        return ""
    with contextlib.suppress(OSError):  # if the home isn't writable, the hint is repeated
        make_folder(home)
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))
    return _HINT.format(" or ".join(names[:2]))
