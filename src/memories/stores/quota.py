"""Limits on the size of a namespace, checked in the transaction that writes: see the setting
`namespace_quota`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memories.errors import RequestError
from memories.guard.origin import HELD
from memories.models import PENDING
from memories.stores.records import Collection, Filter, Record

if TYPE_CHECKING:
    from memories.stores.protocol import Store

_COLLECTIONS = {"memories": Collection.MEMORY, "turns": Collection.HISTORY}
_ADVICE = {
    "memories": "delete or forget some, such as with memory delete --where 'updated < 90d'",
    "turns": "forget some conversations: memory turns forget",
}


def check_quota(store: "Store", records: Sequence[Record], quota: str) -> None:
    """Check that the namespaces of new records stay within their quotas.

    Args:
        store: The store, without these records.
        records: The records to add.
        quota: The setting, such as `memories=10000,bob.memories=500`.

    Raises:
        RequestError: A namespace would have more memories or turns than its quota.
    """
    limits: dict[str, int | None] = {}
    for part in quota.split(","):
        name, _, limit = part.partition("=")
        limits[name] = None if limit == "none" else int(limit)
    for kind, collection in _COLLECTIONS.items():
        new = Counter(
            record.ref.namespace
            for record in records
            if record.ref.collection is collection and _adds_to_count(store, record)
        )
        for namespace, count in new.items():
            limit_of_namespace = limits.get(f"{namespace}.{kind}", limits.get(kind))
            if limit_of_namespace is not None:
                _refuse_excess(store, namespace, kind, count, limit_of_namespace)


def _refuse_excess(store: "Store", namespace: str, kind: str, count: int, limit: int) -> None:
    where = Filter(_COLLECTIONS[kind], (namespace,))
    stored = store.count(where)
    if kind == "memories":
        pending = where._replace(state="ended", ended_by=PENDING, labels={HELD: "1"})
        stored += store.count(pending)
    if stored + count > limit:
        raise RequestError(
            f"namespace {namespace} contains {stored} {kind} and its quota is {limit}, so there "
            f"is no room for {count} more; {_ADVICE[kind]}, or raise NAMESPACE_QUOTA"
        )


def _adds_to_count(store: "Store", record: Record) -> bool:
    """Return whether a record makes the namespace larger; later versions of a memory do not."""
    if record.ended_at is not None and record.ended_by != PENDING:
        return False
    if record.ref.collection is Collection.HISTORY or record.ref.position == 1:
        return True
    # A restored memory counts again; but a rollback only undoes changes, so no limit prevents it.
    if record.fields.get("operation") == "restore":
        return True
    where = Filter(Collection.MEMORY, (record.ref.namespace,), group=record.ref.group, state="any")
    return not store.count(where, at_most=1)
