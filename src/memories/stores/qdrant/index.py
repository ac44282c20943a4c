"""An index over payloads, which Qdrant's local mode lacks, so that a filter need not check every point. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

_HOLDS = {
    "lt": lambda value, bound: value < bound,
    "lte": lambda value, bound: value <= bound,
    "gt": lambda value, bound: value > bound,
    "gte": lambda value, bound: value >= bound,
}


class PayloadIndex:
    """Which points of one collection have which values in some fields.

    Attributes:
        names: The names of the points, by id.
    """

    def __init__(self, fields: Iterable[str], name: str) -> None:
        """Prepare.

        Args:
            fields: The fields that filters name.
            name: The field of a point's name.
        """
        self.names: dict[str, Any] = {}
        self._name = name
        self._holders: dict[str, dict[Any, set[str]]] = {field: {} for field in fields}
        self._values: dict[str, dict[str, list[Any]]] = {}  # of each point, by field

    def __len__(self) -> int:
        return len(self.names)

    def put(self, point_id: str, payload: Mapping[str, Any]) -> None:
        """Set the payload of a point."""
        self.drop(point_id)
        self.names[point_id] = payload.get(self._name)
        values: dict[str, list[Any]] = {}
        for field, holders in self._holders.items():
            found = payload.get(field)
            if found is None:
                continue
            values[field] = found if isinstance(found, list) else [found]
            for value in values[field]:
                holders.setdefault(value, set()).add(point_id)
        self._values[point_id] = values

    def drop(self, point_id: str) -> None:
        """Forget a point, if it is known."""
        self.names.pop(point_id, None)
        for field, values in self._values.pop(point_id, {}).items():
            holders = self._holders[field]
            for value in values:
                left = holders.get(value, set())
                left.discard(point_id)
                if not left:
                    holders.pop(value, None)

    def counts(self, field: str) -> dict[Any, int]:
        """Return how many points have each value of a field."""
        return {value: len(holders) for value, holders in self._holders[field].items()}

    def find(self, where: Mapping[str, Any] | None) -> set[str]:
        """Return the ids of the points that match a filter of Qdrant's, of which only `must` is supported."""
        conditions = list((where or {}).get("must", ()))
        sets = [self._having(condition) for condition in conditions if "range" not in condition]
        ids = set.intersection(*sorted(sets, key=len)) if sets else set(self.names)
        for condition in conditions:
            if "range" in condition:
                ids = {point for point in ids if self._within(point, condition)}
        return ids

    def _having(self, condition: Mapping[str, Any]) -> set[str]:
        """Return the points that have a value or an id."""
        if "has_id" in condition:
            return {point for point in condition["has_id"] if point in self.names}
        match, holders = condition["match"], self._holders[condition["key"]]
        wanted = match["any"] if "any" in match else [match["value"]]
        return set().union(*(holders.get(value, ()) for value in wanted))

    def _within(self, point_id: str, condition: Mapping[str, Any]) -> bool:
        bounds = condition["range"].items()
        values = self._values[point_id].get(condition["key"], ())
        return any(all(_HOLDS[name](value, bound) for name, bound in bounds) for value in values)
