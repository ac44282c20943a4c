"""All exceptions. Each message states the problem, where it is, and the remedy, in one sentence.

MemoriesError
├── RequestError             the request was wrong; nothing was changed
│   ├── InvalidInput         a value is invalid; a ValueError
│   │   └── AmbiguousId      an id prefix matches several memories
│   ├── ConfigError          a setting is invalid
│   ├── NotFound             no such memory in the readable namespaces
│   ├── NotReinforceable     the decay policy does not allow reinforcement
│   └── Conflict             another writer wrote the same version first
└── SystemFault              the system failed
    ├── StoreError           the store failed
    │   ├── StoreUnreachable the store's server does not respond; a ConnectionError
    │   ├── StoreBusy        another process held the write lock for too long
    │   │   └── ErasureUnfinished  the memory is erased, but some bytes may still be on disk
    │   ├── StoreFull        the disk that holds the store is full
    │   ├── StoreDamaged     the contents of the store are damaged or unreadable
    │   └── SchemaTooNew     a newer program wrote this store
    ├── EmbedderError        the embedder failed
    └── EmbedderMismatch     the store's vectors come from another model
"""

import copyreg


class MemoriesError(Exception):
    """The base class of all errors that Memories raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """Return how to unpickle the error: without `__init__`, whose parameters vary."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class RequestError(MemoriesError):
    """The request was wrong; nothing was changed."""


class InvalidInput(RequestError, ValueError):
    """A value is invalid."""


class AmbiguousId(InvalidInput):
    """An id prefix matches several memories.

    Attributes:
        matches: The matching ids, at most ten of them.
    """

    def __init__(self, message: str, matches: tuple[str, ...]) -> None:
        super().__init__(message)
        self.matches = matches


class ConfigError(RequestError):
    """A setting is invalid."""


class NotFound(RequestError):
    """There is no such memory in the readable namespaces."""


class NotReinforceable(RequestError):
    """The memory's decay policy does not allow reinforcement."""


class Conflict(RequestError):
    """Another writer wrote the same version first."""


class SystemFault(MemoriesError):
    """The system failed; the request itself may be valid."""


class StoreError(SystemFault):
    """The store failed."""


class StoreUnreachable(StoreError, ConnectionError):
    """The store's server does not respond; a write may or may not have arrived."""


class StoreBusy(StoreError):
    """Another process held the write lock for too long; nothing was written."""


class ErasureUnfinished(StoreBusy):
    """A memory may have been erased, but some of its bytes may still be on disk. Forgetting it
    again finishes the erasure.
    """


class StoreFull(StoreError):
    """The store's disk is full."""


class StoreDamaged(StoreError):
    """The store's contents are damaged or unreadable; they were left unchanged."""


class SchemaTooNew(StoreError):
    """A newer program wrote this store, which was left unchanged."""


class EmbedderError(SystemFault):
    """The embedder failed."""


class EmbedderMismatch(SystemFault):
    """The store's vectors come from another model; vectors of two models are never compared."""


def describe_after_writes(error: Exception) -> str:
    """Return an error's message for an operation that has already written something.

    The message alone could say that nothing was written or acknowledged.
    """
    message = str(error)
    for denial in ("acknowledged", "written", "changed"):
        message = message.replace(f"; nothing was {denial}", "")
    return message
