"""What `Memories` tells of itself as a whole: tags, days, figures, the log, its state."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Unpack

from memories import validate
from memories.lookup import Lookup, narrowed, still_waiting, waiting
from memories.models import PENDING, LogCheck, LogEntry, Moment, Status
from memories.origin import is_reserved
from memories.settings import Config
from memories.stores import Store
from memories.stores.records import Collection
from memories.times import to_moment

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.transfer.audit import LogFilters
    from memories.transfer.stats import Stats


class OverviewVerbs:
    """The verbs of `Memories` that look at all of it; it opens the store that they use."""

    config: Config
    namespace: str
    flush_accesses: Callable[[], object]
    _embedder: "Embedder | None"
    _lookup: Lookup
    _store: Store
    _now: Callable[[], datetime]
    _limit: Callable[[int | None], int]

    def log(self, memory_id: str | None = None, **filters: "Unpack[LogFilters]") -> "tuple[LogEntry, ...]":
        """Return entries of the audit log, newest first: who changed what and when; never any content.

        Args:
            memory_id: Only changes of this memory, also of one that was forgotten: its id, or a prefix of 8 or more
                characters.
            **filters: See `LogFilters`.

        Raises:
            InvalidInput: A value is not acceptable.
        """
        from memories.transfer.audit import entries, wanted

        given = wanted(memory_id, filters, self._now())._replace(limit=self._limit(filters.get("limit")))
        return tuple(entries(self._store, self._lookup.readable, given))

    def verify_log(self, *, against: str | None = None) -> "tuple[LogCheck, ...]":
        """Check the audit log of each namespace that is read: that no entry was changed, removed or moved.

        Args:
            against: A hash that an earlier check returned as `head`. It proves that nothing up to there was changed,
                although who can write the store can also compute hashes, and that the end was not cut off.

        Raises:
            InvalidInput: `against` is no hash.
        """
        from memories.transfer.audit import verify

        return tuple(verify(self._store, self._lookup.readable, against))

    def tags(
        self,
        key: str | None = None,
        *,
        written_by: str | None = None,
        trust: str | None = None,
        as_of: Moment | None = None,
    ) -> dict[str, int]:
        """Return the tag keys in use, or the values of one key, with the number of memories that have each.

        Args:
            key: The key whose values are returned.
            written_by: Count only memories that it wrote; see `list`.
            trust: Count only memories of this trust.
            as_of: Count what was current at this time.
        """
        key = None if key is None else validate.tag_key(key)
        given = {"written_by": written_by, "trust": trust, "as_of": as_of}
        where = narrowed(self._lookup.where(), given, self._now())
        counts = Counter(self._store.labels(where, key))
        for record in still_waiting(self._store, where) if where.as_of else ():
            counts.subtract(value if key else name for name, value in record.labels.items() if key in (None, name))
        counts = +counts
        return dict(counts) if key else {name: count for name, count in counts.items() if not is_reserved(name)}

    def stats(self, *, since: Moment | None = None) -> "Stats":
        """Return what was done with the memory, how long it took, and what of it is used; see `Stats`.

        Args:
            since: Count only what was done or written at this time or later: an aware datetime, or text such as "7d".
        """
        from memories.transfer.stats import stats

        self.flush_accesses()
        return stats(self._lookup, self.config, to_moment(since, self._now()))

    def days(self) -> "dict[date, int]":
        """Return how many versions of memories were written on each day of UTC, oldest first; not what waits."""
        where = self._lookup.where()
        ended = where._replace(state="ended", ended_by=PENDING)
        waiting = self._store.days(ended) if self._store.count(ended, at_most=1) else {}
        written = self._store.days(where._replace(state="any"))
        counts = {day: count - waiting.get(day, 0) for day, count in written.items()}
        return {date(1970, 1, 1) + timedelta(day): count for day, count in counts.items() if count}

    def status(self) -> Status:
        """Return where memories are stored, how many there are, and what a quick look finds wrong."""
        from memories.turns import count

        where = self._lookup.where()
        history = where._replace(collection=Collection.HISTORY)
        info, said = self._store.info(where), self._store.info(history)
        return Status(
            store=info.url,
            collection=info.collection or self.config.collection_name,
            namespace=self.namespace,
            namespaces_read=self._lookup.readable,
            memory_count=self._store.count(where),
            deleted_count=self._store.count(where._replace(state="ended", ended_by="delete")),
            without_vector_count=info.without_vector_count + said.without_vector_count,
            turn_count=count(self._store, history),
            embedder=self._embedder.space.model if self._embedder else "none",
            store_model=info.model,
            schema_version=info.schema_version,
            size_bytes=info.size_bytes,
            erasing=info.erasing,
            log_bytes=info.log_bytes,
            missing_commits=info.missing_commits,
            damage=tuple(self._damage()),
            read_only=info.read_only,
            compact=info.compact,
            pending_count=self._store.count(waiting(where)),
        )

    def _damage(self) -> Iterator[str]:
        """Yield what a quick look finds wrong in the store; of other namespaces, no more than that."""
        for finding in self._store.check(deep=False):
            ours = finding.ref is None or finding.ref.namespace in self._lookup.readable
            yield finding.what if ours else "a record of another namespace is damaged"
