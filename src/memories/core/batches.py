"""Divides items into batches that are limited by number or by total weight."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def by_count(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Yield batches of at most `size` items, in order."""
    return (items[start : start + size] for start in range(0, len(items), size))


def by_weight(
    items: Iterable[Item], weight_of: Callable[[Item], int], *, most: int, heaviest: int
) -> Iterator[list[Item]]:
    """Yield batches limited by number and total weight, in order.

    An item heavier than the limit gets its own batch.

    Args:
        items: The items.
        weight_of: Returns the weight of an item.
        most: Maximum number of items in a batch.
        heaviest: Maximum total weight of a batch.
    """
    batch: list[Item] = []
    batch_weight = 0
    for item in items:
        weight = weight_of(item)
        if batch and (len(batch) == most or batch_weight + weight > heaviest):
            yield batch
            batch, batch_weight = [], 0
        batch.append(item)
        batch_weight += weight
    if batch:
        yield batch
