"""Which records were read, for stores that have to look at all of them to tell."""

from collections.abc import Callable, Sequence

from memories.stores.records import Filter, Record, Ref

_PAGE = 1_000


def used_among(scan: Callable[..., Sequence[Record]], where: Filter) -> list[tuple[Ref, int]]:
    """Return the records that were ever read and how often, as `Store.used` does; `scan` is that of the store."""
    found: list[tuple[Ref, int]] = []
    after: tuple[str, int] | None = None
    while page := scan(where, limit=_PAGE, after=after):
        found += [(record.ref, record.accesses) for record in page if record.accesses]
        after = page[-1].ref.group, page[-1].ref.position
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))
