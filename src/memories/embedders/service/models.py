"""The models that services offer: the length of their vectors, how much they read, what they want before a text."""

from collections.abc import Mapping
from typing import NamedTuple

MAX_WINDOW_BYTES = 4_000  # about 1,000 tokens of English; a vector of much more text says little about any part of it
BYTES_PER_TOKEN = 2.5  # of UTF-8, the lowest in practice: English has 4, German 4, Chinese 2.5, code 3


class Known(NamedTuple):
    """A model.

    Attributes:
        dimension: The length of a vector, unless another one is asked for.
        tokens: How many it reads at once.
        shorter: Other lengths it can make.
        statement: The prefix its makers want before a text that is stored.
        question: The prefix its makers want before a query.
    """

    dimension: int
    tokens: int
    shorter: range | frozenset[int] = frozenset()
    statement: str = ""
    question: str = ""

    @property
    def window_bytes(self) -> int:
        """How many bytes of UTF-8 one of its windows has."""
        return min(MAX_WINDOW_BYTES, int(self.tokens * BYTES_PER_TOKEN))


UNKNOWN_TOKENS = 512
_MATRYOSHKA = frozenset({256, 512, 1024, 2048})
_PASSAGES = "Represent this sentence for searching relevant passages: "
_INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"

MODELS: Mapping[str, Known] = {
    "text-embedding-3-small": Known(1536, 8191, range(1, 1537)),
    "text-embedding-3-large": Known(3072, 8191, range(1, 3073)),
    "text-embedding-ada-002": Known(1536, 8191),
    "voyage-3": Known(1024, 32_000),
    "voyage-3-lite": Known(512, 32_000),
    "voyage-3-large": Known(1024, 32_000, _MATRYOSHKA),
    "voyage-3.5": Known(1024, 32_000, _MATRYOSHKA),
    "voyage-3.5-lite": Known(1024, 32_000, _MATRYOSHKA),
    "voyage-code-3": Known(1024, 32_000, _MATRYOSHKA),
    "voyage-2": Known(1024, 4_000),
    "voyage-large-2": Known(1536, 16_000),
    "voyage-code-2": Known(1536, 16_000),
    "voyage-multilingual-2": Known(1024, 32_000),
    "voyage-finance-2": Known(1024, 32_000),
    "voyage-law-2": Known(1024, 16_000),
    "embed-english-v3.0": Known(1024, 512),
    "embed-multilingual-v3.0": Known(1024, 512),
    "embed-english-light-v3.0": Known(384, 512),
    "embed-multilingual-light-v3.0": Known(384, 512),
    "embed-v4.0": Known(1536, 128_000, frozenset({256, 512, 1024, 1536})),
    "nomic-embed-text": Known(768, 2048, statement="search_document: ", question="search_query: "),
    "nomic-embed-text-v1.5": Known(768, 2048, statement="search_document: ", question="search_query: "),
    "mxbai-embed-large": Known(1024, 512, question=_PASSAGES),
    "mxbai-embed-large-v1": Known(1024, 512, question=_PASSAGES),
    "snowflake-arctic-embed": Known(1024, 512, question=_PASSAGES),
    "snowflake-arctic-embed2": Known(1024, 8192, question="query: "),
    "embeddinggemma": Known(768, 2048, statement="title: none | text: ", question="task: search result | query: "),
    "qwen3-embedding:0.6b": Known(1024, 32_000, question=_INSTRUCTION),
    "qwen3-embedding-0.6b": Known(1024, 32_000, question=_INSTRUCTION),
    "qwen3-embedding:4b": Known(2560, 32_000, question=_INSTRUCTION),
    "qwen3-embedding-4b": Known(2560, 32_000, question=_INSTRUCTION),
    "qwen3-embedding:8b": Known(4096, 32_000, question=_INSTRUCTION),
    "qwen3-embedding-8b": Known(4096, 32_000, question=_INSTRUCTION),
    "all-minilm": Known(384, 256),
    "all-minilm-l6-v2": Known(384, 256),
    "bge-m3": Known(1024, 8192),
    "bge-large": Known(1024, 512, question=_PASSAGES),
    "bge-large-en-v1.5": Known(1024, 512, question=_PASSAGES),
    "bge-base-en-v1.5": Known(768, 512, question=_PASSAGES),
    "bge-small-en-v1.5": Known(384, 512, question=_PASSAGES),
    "multilingual-e5-large": Known(1024, 512, statement="passage: ", question="query: "),
    "multilingual-e5-base": Known(768, 512, statement="passage: ", question="query: "),
    "multilingual-e5-small": Known(384, 512, statement="passage: ", question="query: "),
}


def known(model: str) -> Known | None:
    """Return what is known of a model, whatever the case of its name, its maker (`BAAI/`) and `:latest`."""
    return MODELS.get(model.rpartition("/")[2].lower().removesuffix(":latest"))
