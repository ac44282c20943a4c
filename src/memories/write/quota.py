"""How much a namespace may hold: see the setting `namespace_quota`. It is asked for in the
transaction that writes.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from memories.errors import RequestError
from memories.guard.origin import HELD
from memories.models import PENDING
from memories.stores.protocol import Store
from memories.stores.records import Collection, Filter, Record

_COLLECTIONS = {"memories": Collection.MEMORY, "turns": Collection.HISTORY}
_BACK = (
    "restore",
)  # makes a memory current that was not; a rollback undoes, which no limit prevents


def admission(quota: str | None) -> Callable[[Store, Sequence[Record]], None] | None:
    """Return what refuses records that a namespace has no room for; None without a quota.

    Args:
        quota: The setting, such as `memories=10000,bob.memories=500`.
    """
    if quota is None:
        return None
    limits = {
        name: None if most == "none" else int(most)
        for name, _, most in map(_parts, quota.split(","))
    }

    def admit(store: Store, records: Sequence[Record]) -> None:
        for what, collection in _COLLECTIONS.items():
            some = [record for record in records if record.ref.collection is collection]
            new = Counter(record.ref.namespace for record in some if _is_new(store, record))
            for namespace, count in new.items():
                most = limits.get(f"{namespace}.{what}", limits.get(what))
                if most is not None:
                    _refuse_more(store, (collection, namespace, what), count, most)

    return admit


def _parts(part: str) -> tuple[str, str, str]:
    return part.partition("=")


def _refuse_more(store: Store, place: tuple[Collection, str, str], count: int, most: int) -> None:
    """Raise RequestError if there is no room for so many more."""
    collection, namespace, what = place
    where = Filter(collection, (namespace,))
    there = store.count(where)
    if collection is Collection.MEMORY:
        there += store.count(where._replace(state="ended", ended_by=PENDING, labels={HELD: "1"}))
    if there + count > most:
        raise RequestError(
            f"namespace {namespace} has {there} {what} and its quota is {most}, so {count} more "
            f"{_have(count)} no room; {_WAYS[what]}, or raise NAMESPACE_QUOTA"
        )


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


_WAYS = {
    "memories": "delete or forget some, such as with memory delete --where 'updated < 90d'",
    "turns": "forget some conversations: memory turns forget",
}


def _is_new(store: Store, record: Record) -> bool:
    """Return whether a record makes the namespace larger: no version that follows one does."""
    if record.ended_at is not None and record.ended_by != PENDING:
        return False
    if record.ref.collection is Collection.HISTORY or record.ref.position == 1:
        return True
    if record.fields.get("operation") in _BACK:
        return True
    where = Filter(Collection.MEMORY, (record.ref.namespace,), group=record.ref.group, state="any")
    return not store.count(where, at_most=1)
