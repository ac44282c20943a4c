"""The audit log on a document server: finding the last entry of a chain, and adding to it beside other machines."""

import contextlib
from collections.abc import Callable, Sequence

from memories.errors import Conflict, StoreBusy
from memories.stores.chain import CHAIN, relinked
from memories.stores.damage import Damaged
from memories.stores.documents.changes import Changes, Flush, by_part, check_free
from memories.stores.documents.driver import Driver
from memories.stores.documents.pending import WriterLock
from memories.stores.documents.query import View
from memories.stores.records import Collection, Record, Ref

_ATTEMPTS = 20
_NEAR = (0, 1, 2)
_FAR = tuple(digit * 8**power for power in range(8) for digit in range(1, 8))


class Chains:
    """The chains of a server.

    Entries are written before what they tell, in a step of their own: so what was done is in the log, though a crash in
    between leaves an entry for what was not. Writers on other machines may add to the same chain: then an entry that
    comes too late follows theirs, with a hash of its own.
    """

    def __init__(self, driver: Driver) -> None:
        """Prepare; no request is sent."""
        self._driver = driver
        self._known: dict[str, int] = {}  # a position that the chain of a namespace has reached

    def last(self, namespace: str, view: View) -> list[Record]:
        """Return the last entry of a chain, if it has one.

        A server can only list all ids of a chain. Since a chain has no gaps, some positions are tried instead: those
        beside the last one known, else ever closer ones.
        """
        first = Ref(Collection.LOG, namespace, CHAIN, 0)
        known, steps = self._known.get(namespace, 0), _NEAR
        while True:
            if known == 0:
                steps = _FAR
            tried = [known + step for step in steps]
            stored = view.stored(first._replace(position=position) for position in tried)
            found = {each.record.ref.position: each.record for each in stored}
            top = max(found, default=0)
            if top and top + 1 in tried:
                self._known[namespace] = top
                return [found[top]]
            if not top and not known:
                return []
            known, steps = top, (0, *_FAR)

    def write(self, entries: Sequence[Record], lock: WriterLock, begin: Callable[[], object]) -> list[Record]:
        """Add entries to their chains; return them as they were written.

        Raises:
            StoreBusy: Others kept adding.
        """
        written: list[Record] = []
        for part, refs in by_part(entry.ref for entry in entries).items():
            own = [entry for entry in entries if entry.ref in refs]
            begin()
            for _ in range(_ATTEMPTS):
                try:
                    Flush(self._driver, Changes({entry.ref: entry for entry in own}), lock, None).run()
                    break
                except Conflict:
                    with contextlib.suppress(Conflict):
                        check_free(self._driver, own, Changes(), lock)  # takes out what a dead writer has left
                    own = relinked(own, self.last(part.namespace, View(self._driver, Changes(), Damaged())))
            else:
                raise StoreBusy(f"others kept writing to the log of {part.namespace}; nothing was written; try again")
            self._known[part.namespace] = own[-1].ref.position
            written += own
        return written
