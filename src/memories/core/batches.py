"""Many things in portions: so many, or so many bytes, at once."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def by_count(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Yield items in order, so many at once."""
    return (items[start : start + size] for start in range(0, len(items), size))


def by_weight(
    items: Iterable[Item], weight_of: Callable[[Item], int], *, most: int, heaviest: int
) -> Iterator[list[Item]]:
    """Yield items in order, at most so many and of no more weight at once; one that is too heavy
    comes alone.
    """
    some: list[Item] = []
    weight = 0
    for item in items:
        added = weight_of(item)
        if some and (len(some) == most or weight + added > heaviest):
            yield some
            some, weight = [], 0
        some.append(item)
        weight += added
    if some:
        yield some
