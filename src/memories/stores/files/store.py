"""The files store: memories and turns as lines of JSON, one file for each namespace, which people and git can read."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memories.config import Config
from memories.errors import Conflict, EmbedderMismatch, StoreDamaged, StoreError
from memories.stores.files.derived import FORMAT, Named, Spaces, decode, encode, named
from memories.stores.files.lines import file_name
from memories.stores.files.pool import Address, Entry, kept, meant, order_of, present
from memories.stores.files.session import Session, Work, by_file
from memories.stores.records import (
    Candidate,
    Collection,
    Filter,
    Matches,
    Patch,
    Record,
    Ref,
    Space,
    StoreInfo,
    TurnQuery,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.protocol import Store


def open_files(folder: Path, space: Space | None, config: Config | None) -> "Store":
    """Return the store of a folder; nothing is opened or written yet.

    Args:
        folder: Where the files are.
        space: The space of the vectors that will be written and searched; None in keyword-only mode.
        config: When namespaces move to which larger store; without it they stay where they are.

    Raises:
        ConfigError: The larger store is none.
    """
    from memories.stores.files.tiered import TieredStore

    return TieredStore(folder, space, config)


class FilesStore:
    """Implements `Store` on a folder of files; every rule of the protocol holds, with several processes and threads.

    - The lines are the truth. They may be edited, merged and committed with other programs: what a merge brings twice
      is kept twice, as two versions. Such a program does not lock: if it has written since the file was read,
      `StoreBusy` refuses to write over it.
    - A file with a line that is none is left as it is: it is warned of and reads as empty. `StoreDamaged` refuses to
      write to it, to read it in a transaction, and to say anything of it in `info`; `namespaces` names it.
    - Vectors, the name of their space, and the counts of reads are in the folder `.memories`, which git leaves out.
      Without it no memory is lost; `reembed` makes the vectors again.
    - What was removed is gone from the folder, but not from commits that were made of it.
    - Everything is compared with everything, which is meant for some thousand records in a namespace.
    """

    def __init__(
        self,
        folder: Path,
        space: Space | None,
        *,
        after_commit: Callable[[set[str]], None] | None = None,
    ) -> None:
        """Prepare; nothing is opened or written yet.

        Args:
            folder: Where the files are.
            space: The space of the vectors that will be written and searched; None in keyword-only mode.
            after_commit: Called with the namespaces that were written to, while the folder is still locked.
        """
        self._session = Session(folder, after_commit)
        self.folder, self.derived = self._session.folder, self._session.derived
        self._space = space

    # --- writing ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Store.transaction`."""
        with self._session.writing():
            yield

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        if not records:
            return
        with self._session.writing() as work:
            for (collection, namespace), some in by_file(records, lambda record: record.ref).items():
                name = file_name(collection, namespace)
                work.pools[name] = self._session.intact(work, collection, namespace).plus(map(_as_kept, some))
                work.reads += tuple((record.ref, record.accesses) for record in some if record.accesses)
                embedded = {(r.ref.group, r.ref.position): r.vectors for r in some if r.vectors is not None}
                if embedded:
                    self._add_vectors(work, name, self._claimed(work), embedded)

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        with self._session.writing() as work:
            for (collection, namespace), some in by_file(patches, lambda patch: patch.ref).items():
                pool = self._session.intact(work, collection, namespace).patched(some)
                work.pools[file_name(collection, namespace)] = pool

    def touch(self, refs: Sequence[Ref]) -> None:
        """See `Store.touch`; in a power cut the last counts may be lost."""
        found = tuple((entry.record.ref, 1) for entry in self._entries(refs))
        work = self._session.work
        if work is not None:
            work.reads += found
        elif found:
            try:
                with self.folder.locked(0):
                    self._session.count(found)
            except StoreDamaged:
                raise
            except StoreError:
                return  # busy, full or read-only: a read does not fail for its statistic

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`."""
        if self._session.work is not None:
            raise StoreError("removing for good rewrites files and can't be part of a transaction")
        if not self.folder.exists():
            return ()
        with self.folder.locked():
            work = Work()
            for (collection, namespace), some in by_file(refs, lambda ref: ref).items():
                pool = self._session.intact(work, collection, namespace)
                work.pools[file_name(collection, namespace)] = pool.minus((ref.group, ref.position) for ref in some)
            changed = {name: pool for name, pool in work.pools.items() if pool.changed}
            unfinished = self.derived.erasing
            if changed or unfinished:
                self.derived.begin_erasing()
                self._session.save(work, changed)
                self._erase(set(self._session.all_files()) if unfinished else set(changed))
        return ()

    def _erase(self, names: set[str]) -> None:
        for name in names:
            collection, namespace = self._session.all_files()[name]
            pool = self._session.file(name, collection, namespace).pool
            if pool.damage is None:
                self.derived.erase(name, pool.entries.values())
        self.derived.end_erasing()

    # --- reading ---------------------------------------------------------------------------------------------------

    def scan(
        self, where: Filter, *, limit: int, after: tuple[str, int] | None = None, newest_first: bool = False
    ) -> list[Record]:
        """See `Store.scan`."""
        found = self._meant(where)
        if after is not None:
            behind = order_of(*after)
            found = [entry for entry in found if (entry.order < behind if newest_first else entry.order > behind)]
        found.sort(key=lambda entry: (entry.order, entry.record.ref.namespace), reverse=newest_first)
        return self._counted(found[:limit])

    def groups(self, where: Filter, *, limit: int) -> list[tuple[str, str]]:
        """See `Store.groups`."""
        found = {(order_of(ref.group, 0), ref.namespace) for ref in (entry.record.ref for entry in self._meant(where))}
        return [(namespace, order[1]) for order, namespace in sorted(found)[:limit]]

    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """See `Store.count`."""
        found = len(self._meant(where))
        return found if at_most is None else min(found, at_most)

    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """See `Store.labels`."""
        counts: dict[str, int] = {}
        for entry in self._meant(where):
            labels = entry.record.labels
            for label in labels if key is None else [labels[key]] if key in labels else []:
                counts[label] = counts.get(label, 0) + 1
        return dict(sorted(counts.items()))

    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """See `Store.candidates`."""
        from memories.stores.files.search import best, words_of

        pools = self._session.pools(where.collection, where.namespaces)
        entries = [entry for pool in pools for entry in meant(pool, where)]
        words = words_of(pools, where, entries, terms).scores
        similar = self._similarities(entries, vector)
        rows = dict.fromkeys([row for row in best(words, k) if words[row] > 0] + best(similar, k))
        records = self._counted([entries[row] for row in rows])
        return [
            Candidate(record, None if similar[row] != similar[row] else float(similar[row]), float(words[row]))
            for row, record in zip(rows, records, strict=True)
        ]

    def matches(self, where: Filter, query: TurnQuery) -> Matches:
        """See `Store.matches`."""
        from memories.stores.columns import matches_of
        from memories.stores.files.search import words_of

        pools = self._session.pools(where.collection, where.namespaces)
        entries = [entry for pool in pools for entry in meant(pool, where)]
        words = words_of(pools, where, entries, query.terms)
        similarity = self._similarities(entries, query.vector)
        return matches_of([entry.record for entry in entries], words, similarity, searched=len(entries))

    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """See `Store.read`."""
        return self._counted(self._entries(refs))

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """See `Store.values`."""
        return list(self.labels(Filter(collection, tuple(namespaces), state="any"), key))

    def info(self, where: Filter) -> StoreInfo:
        """See `Store.info`."""
        self._session.refuse_damaged(where.collection, where.namespaces)
        spaces = self._session.spaces
        return StoreInfo(
            url=f"files:///{self.folder.path}",
            schema_version=FORMAT if self.folder.exists() else None,
            model=spaces.used.model if spaces.used else None,
            size_bytes=self.folder.size_bytes(),
            without_vector_count=sum(
                kept is None for kept in self._session.vectors_of(self._meant(where), spaces.used)
            ),
            erasing=self.derived.erasing,
        )

    def namespaces(self, collection: Collection) -> list[str]:
        """See `Store.namespaces`."""
        return self._session.namespaces(collection)

    def close(self) -> None:
        """See `Store.close`."""
        self._session.forget()

    # --- vectors ---------------------------------------------------------------------------------------------------

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """See `Store.vectors`."""
        used = self._session.spaces.used
        if used is None:
            return {}
        found = self._entries(refs)
        return {
            entry.record.ref: decode(kept, used)
            for entry, kept in zip(found, self._session.vectors_of(found, used), strict=True)
            if kept is not None
        }

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`."""
        found: list[Entry] = []
        for namespace in self.namespaces(collection):
            entries = self._meant(Filter(collection, (namespace,), state="any"))
            vectors = self._session.vectors_of(entries, named(space))
            found += [entry for entry, kept in zip(entries, vectors, strict=True) if kept is None]
            if len(found) >= limit:
                break
        return self._counted(found[:limit])

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        wanted = named(space)
        with self._session.writing() as work:
            refs = [entry.record.ref for entry in self._entries(list(vectors))]
            if not refs:
                return
            spaces = self._session.spaces
            if wanted not in spaces:
                work.spaces = Spaces(wanted) if spaces.used is None else Spaces(spaces.used, wanted)
            for (collection, namespace), some in by_file(refs, lambda ref: ref).items():
                given = {(ref.group, ref.position): vectors[ref] for ref in some}
                self._add_vectors(work, file_name(collection, namespace), wanted, given)

    def unstage_others(self, space: Space) -> None:
        """Drop what was staged for another space than this one."""
        spaces = self._session.spaces
        if spaces.staged not in (None, named(space)):
            with self._session.writing() as work:
                work.spaces = Spaces(spaces.used)

    def switch(self, space: Space) -> None:
        """See `Store.switch`."""
        with self._session.writing() as work:
            if self._session.spaces.used == named(space):
                return
            for collection in Collection:
                if self.unstaged(space, collection, limit=1):
                    raise Conflict(f"not all records have vectors of {space.model} yet; make them and switch again")
            work.spaces = Spaces(named(space))

    def whole(self, namespace: str) -> list[Record]:
        """Return all records of a namespace, ended ones included.

        Raises:
            StoreDamaged: A file of it can't be read.
        """
        for collection in Collection:
            self._session.refuse_damaged(collection, [namespace])
        return self._counted(
            [entry for each in Collection for entry in self._meant(Filter(each, (namespace,), state="any"))]
        )

    def stored_space(self) -> Named | None:
        """Return the space of the vectors in use."""
        return self._session.spaces.used

    def _entries(self, refs: Sequence[Ref]) -> list[Entry]:
        found: list[Entry] = []
        for (collection, namespace), some in by_file(refs, lambda ref: ref).items():
            [pool] = self._session.pools(collection, [namespace])
            addresses = dict.fromkeys((ref.group, ref.position) for ref in some)
            found += [pool.entries[address] for address in addresses if address in pool.entries]
        return found

    def _claimed(self, work: Work) -> Named:
        """Return the space of the vectors that go in; the first one decides for the store."""
        if self._space is None:
            raise StoreError("this store was opened without an embedder and was given a vector")
        spaces, own = self._session.spaces, named(self._space)
        if spaces.used is None:
            work.spaces = Spaces(own)
        elif spaces.used != own:
            raise self._mismatch(spaces.used)
        return own

    def _mismatch(self, used: Named) -> EmbedderMismatch:
        own = "none" if self._space is None else f"{self._space.model} ({self._space.dimension})"
        return EmbedderMismatch(
            f"this store's vectors were made by {used.model} ({used.dimension} dimensions) and the embedder is {own}; "
            "set EMBEDDER to the one it was made with, or use another store"
        )

    def _add_vectors(
        self, work: Work, name: str, space: Named, vectors: "Mapping[Address, NDArray[np.float32]]"
    ) -> None:
        """Keep the vectors of records."""
        entries = (work.pools.get(name) or work.loaded[name].pool).entries
        added = {entries[address].vector_key: encode(given) for address, given in vectors.items()}
        work.vectors[space, name] = {**work.vectors.get((space, name), {}), **added}

    def _similarities(self, entries: Sequence[Entry], vector: "NDArray[np.float32] | None") -> "NDArray[np.float64]":
        from memories.stores.files.derived import similarities

        used = self._session.spaces.used
        if vector is None or used is None:
            import numpy as np

            return np.full(len(entries), np.nan)
        if self._space is None or named(self._space) != used:
            raise self._mismatch(used)
        return similarities(self._session.vectors_of(entries, used), vector, used)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _meant(self, where: Filter) -> list[Entry]:
        return [
            entry for pool in self._session.pools(where.collection, where.namespaces) for entry in meant(pool, where)
        ]

    def _counted(self, entries: Sequence[Entry]) -> list[Record]:
        """Return the records with the counts of their reads."""
        counts = {
            place: self.derived.accesses(file_name(*place))
            for place in {(entry.record.ref.collection, entry.record.ref.namespace) for entry in entries}
        }
        records: list[Record] = []
        for entry in entries:
            ref = entry.record.ref
            count = counts[ref.collection, ref.namespace].get(entry.address, 0)
            records.append(entry.record._replace(accesses=count) if count else entry.record)
        return records


def _as_kept(record: Record) -> Record:
    """Return a record as it is kept: times in their resolution, no vectors, no count of reads."""
    return record._replace(
        created_at=kept(record.created_at),
        ended_at=None if record.ended_at is None else kept(record.ended_at),
        fields=present(record.fields),
        vectors=None,
        accesses=0,
    )
