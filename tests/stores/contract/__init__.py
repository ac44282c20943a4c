"""The suite that every store passes unchanged; it checks the rules of
`memories.stores.protocol.Store`.

A backend's test file inherits `StoreContract` and gives it one fixture:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def open_store(self, tmp_path):
            ...
            yield open_one      # open_one(space) returns a store; each call opens the same
            # storage, which doesn't exist at first
            ...                 # close what was opened

Vectors are those of the `FakeEmbedder` or random ones of its space.
"""

from contract.answers import Answers
from contract.conversations import Conversations
from contract.durability import Durability
from contract.health import Health
from contract.isolation import Isolation
from contract.log import Log
from contract.model import AsTheModelSays
from contract.moving import Moving
from contract.order import Order
from contract.origin import Origins
from contract.repetitions import Repetitions
from contract.review import Review
from contract.search import Search
from contract.undo import Undo
from contract.words import Words

# isort: split
# The import of the module `search` bound that name here; this rebinds it to the function.

from contract.samples import (
    HISTORY,
    MEMORY,
    OTHER,
    SPACE,
    OpenStore,
    at,
    by_other,
    by_words,
    embed,
    embed_other,
    everything,
    holders,
    matching,
    pages,
    pool,
    record,
    refs_of,
    search,
    seen,
    stage_all,
    turn,
    turns,
    unit_vectors,
)

__all__ = [
    "HISTORY",
    "MEMORY",
    "OTHER",
    "SPACE",
    "OpenStore",
    "StoreContract",
    "at",
    "by_other",
    "by_words",
    "embed",
    "embed_other",
    "everything",
    "holders",
    "matching",
    "pages",
    "pool",
    "record",
    "refs_of",
    "search",
    "seen",
    "stage_all",
    "turn",
    "turns",
    "unit_vectors",
]


class StoreContract(
    Durability,
    Isolation,
    Order,
    Search,
    Words,
    Moving,
    Health,
    Log,
    Origins,
    Repetitions,
    Review,
    Undo,
    Conversations,
    AsTheModelSays,
    Answers,
):
    """The rules that hold for every store."""
