"""The exceptions that Memories raises; each message is one sentence that says what, which, and what
to do.

MemoriesError
├── RequestError             your request was wrong; nothing was changed
│   ├── InvalidInput         a value is not acceptable; a ValueError
│   │   └── AmbiguousId      an id prefix fits several memories
│   ├── ConfigError          a setting is not acceptable
│   ├── NotFound             no such memory in the namespaces that you read
│   ├── NotReinforceable     its decay policy knows no reinforcement
│   └── Conflict             somebody else wrote the same version first
└── SystemFault              the system is unwell
    ├── StoreError           the store could not do it
    │   ├── StoreUnreachable the store's server does not answer; a ConnectionError
    │   ├── StoreBusy        another process kept the write lock too long
    │   │   └── ErasureUnfinished  forgotten, but bytes of it may still be on the disk
    │   ├── StoreFull        the disk of the store has no room
    │   ├── StoreDamaged     what the store holds can't be trusted or read
    │   └── SchemaTooNew     a newer program wrote this store
    ├── EmbedderError        no vector could be made
    └── EmbedderMismatch     the store's vectors come from another model
"""


class MemoriesError(Exception):
    """The root of all errors that Memories raises on purpose."""


class RequestError(MemoriesError):
    """The request was wrong; nothing was changed."""


class InvalidInput(RequestError, ValueError):
    """A value is not acceptable."""


class AmbiguousId(InvalidInput):
    """An id prefix fits several memories.

    Attributes:
        matches: The ids that it fits, at most ten of them.
    """

    def __init__(self, message: str, matches: tuple[str, ...]) -> None:
        super().__init__(message)
        self.matches = matches


class ConfigError(RequestError):
    """A setting is not acceptable."""


class NotFound(RequestError):
    """No such memory in the namespaces that are read."""


class NotReinforceable(RequestError):
    """The memory's decay policy knows no reinforcement."""


class Conflict(RequestError):
    """Somebody else wrote the same version first."""


class SystemFault(MemoriesError):
    """The system is unwell; the request may be fine."""


class StoreError(SystemFault):
    """The store could not do it."""


class StoreUnreachable(StoreError, ConnectionError):
    """The store's server does not answer; whether a write arrived is then not known."""


class StoreBusy(StoreError):
    """Another process kept the write lock for too long; nothing was written."""


class ErasureUnfinished(StoreBusy):
    """What was forgotten is gone, or may be, but bytes of it may still be on the disk; forgetting
    it again goes on.
    """


class StoreFull(StoreError):
    """The disk of the store has no room."""


class StoreDamaged(StoreError):
    """What the store holds can't be trusted or read; it was left as it is."""


class SchemaTooNew(StoreError):
    """A newer program wrote this store; it was left as it is."""


class EmbedderError(SystemFault):
    """No vector could be made."""


class EmbedderMismatch(SystemFault):
    """The store's vectors come from another model; two models are never compared."""
