"""What is wrong on a document server, and adding labels that are missing: all else there is the record itself."""

from collections.abc import Iterator

from memories.stores.damage import Damaged
from memories.stores.documents.driver import Condition, Driver, Kind, Part, Point
from memories.stores.documents.query import View
from memories.stores.documents.schema import PENDING, Stored, decode, label_of, window_ids
from memories.stores.records import Finding

_FIX = "run: memory doctor --fix"
_PAGE = 1_000  # records that are read at once


def check(view: View, space: str) -> Iterator[Finding]:
    """Yield what is wrong; see `Store.check`.

    Args:
        view: Reads the server.
        space: The id of the space in use; empty if there is none.
    """
    driver, damaged = view.driver, Damaged(2**31)
    for part in (part for part in driver.parts() if part.kind is Kind.RECORDS):
        left = len(driver.ids(part, [Condition("ended", "=", PENDING)]))
        if left:
            what = f"{left} records of namespace {part.namespace} were begun and not finished"
            yield Finding(what, "if no other machine is writing, the next write to them removes them")
        found = [stored for page in _pages(driver, part) for stored in decode(part, page, damaged)]
        missing = len(_missing_labels(driver, part, found))
        if missing:
            yield Finding(f"{missing} labels of namespace {part.namespace} are not listed", _FIX, derived=True)
        lost = _without_windows(driver, part, found, space)
        if lost:
            what = f"{lost} records of namespace {part.namespace} have lost vectors"
            yield Finding(what, "run: memory reembed, with another model and back")
    yield from damaged.since()


def repair(driver: Driver) -> list[str]:
    """Add labels that are not listed; return what was done."""
    added = 0
    for part in (part for part in driver.parts() if part.kind is Kind.RECORDS):
        found = [stored for page in _pages(driver, part) for stored in decode(part, page, Damaged())]
        labels = sorted(_missing_labels(driver, part, found))
        driver.add(part._replace(kind=Kind.LABELS), [Point(label, {}) for label in labels])
        added += len(labels)
    return [f"{added} labels that were not listed"] if added else []


def _pages(driver: Driver, part: Part) -> Iterator[list[Point]]:
    ids = driver.ids(part, [])
    for start in range(0, len(ids), _PAGE):
        yield driver.get(part, ids[start : start + _PAGE])


def _missing_labels(driver: Driver, part: Part, found: list[Stored]) -> set[str]:
    """Return labels that records have and that the list of labels does not."""
    labels = {label_of(*pair) for stored in found for pair in stored.record.labels.items()}
    return labels.difference(driver.ids(part._replace(kind=Kind.LABELS), []))


def _without_windows(driver: Driver, part: Part, found: list[Stored], space: str) -> int:
    """Return how many records name vectors that are not there."""
    named = {stored.record.ref: stored.windows[space] for stored in found if space in stored.windows}
    there = set(driver.ids(part._replace(kind=Kind.VECTORS, space=space), [])) if named else set()
    return sum(not there.issuperset(window_ids(ref, windows)) for ref, windows in named.items())
