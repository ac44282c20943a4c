"""Where a store remembers the damaged records that it has left out of its answers."""

import threading
from collections import OrderedDict
from collections.abc import Callable

from memories.errors import StoreDamaged
from memories.guard.validate import shown
from memories.languages import unseen
from memories.stores.records import Collection, Finding, Ref

UNKNOWN = "?"  # a namespace that can't be read; no namespace has this name
UNREADABLE = "damaged-"  # and a number: the group of a record whose own can't be read or asked for
_MOST = 1_000


class Damaged:
    """The damaged parts of a store that reads have met, each once.

    Threads may share it. It is a statement about what was met, not a check: `Store.check` looks at
    everything.
    """

    def __init__(self, most: int = _MOST) -> None:
        """Begin without any; of more than `most` only the last ones are remembered."""
        self._most = most
        self._lock = threading.Lock()
        self._met: OrderedDict[Ref | str, tuple[int, Finding]] = OrderedDict()
        self._count = 0

    def note(self, finding: Finding) -> None:
        """Remember that something was left out; what is met again counts as the newest."""
        with self._lock:
            self._count += 1
            name = finding.what if finding.ref is None else finding.ref
            self._met[name] = self._count, finding
            self._met.move_to_end(name)
            if len(self._met) > self._most:
                self._met.popitem(last=False)

    def mark(self) -> int:
        """Return a moment for `since`."""
        return self._count

    def since(self, mark: int = 0) -> tuple[Finding, ...]:
        """Return what was met after a moment, by default all; what other threads have met may be
        among it.
        """
        with self._lock:
            return tuple(finding for number, finding in self._met.values() if number > mark)

    def forget(self, fits: Callable[[Ref], bool]) -> None:
        """Drop the records that are gone."""
        with self._lock:
            for name in [name for name in self._met if isinstance(name, Ref) and fits(name)]:
                del self._met[name]


def damaged_record(ref: Ref, why: object) -> Finding:
    """Return what is wrong with a record, and how to be rid of it."""
    name, quoted = shown(ref.group), _quoted(ref.group)
    if ref.collection is Collection.HISTORY:
        what, how = (
            f"turn {ref.position} of {name}",
            f"turns forget {quoted} --index {ref.position}",
        )
    else:
        what, how = f"memory {name} (version {ref.position})", f"forget {quoted}"
    at = f" --namespace {ref.namespace}" if ref.namespace != UNKNOWN else ""
    return Finding(
        f"{what} in namespace {ref.namespace} is damaged: {why}",
        f"restore a backup, or remove it with: memory {how}{at}",
        ref=ref,
    )


def _quoted(name: str) -> str:
    """Return a name as a shell takes it, with nothing in it that can't be seen."""
    import shlex  # what is sound does without

    seen = unseen.shown(name, lambda sign: f"\\U{ord(sign):08x}")
    return shlex.quote(name) if seen == name else "$'" + seen.replace("'", "\\'") + "'"


def refusal(finding: Finding) -> StoreDamaged:
    """Return the error for a request that needs just what is damaged."""
    return StoreDamaged(f"{finding.what}; {finding.remedy}")
