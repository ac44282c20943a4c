"""Calls of a store as JSON, for a server and its clients."""

from datetime import UTC, datetime
from typing import Any

import pytest

from memories.stores.records import Collection, Filter, Patch, Record, Ref
from memories.stores.wire import from_wire, namespaces_of, to_wire

NOW = datetime(2026, 6, 1, tzinfo=UTC)
REF = Ref(Collection.MEMORY, "ann", "m", 1)
OTHER = Ref(Collection.HISTORY, "bob", "talk", 5)
ARGUMENTS: list[tuple[Any, set[str]]] = [
    (REF, {"ann"}),
    (Record(OTHER, "hello", NOW), {"bob"}),
    (Patch(REF, NOW, "update", {}), {"ann"}),
    (Filter(Collection.MEMORY, ("ann", "carl")), {"ann", "carl"}),
    ([REF, OTHER], {"ann", "bob"}),
    ({REF: OTHER}, {"ann", "bob"}),
    ("ann", set()),
]


@pytest.mark.parametrize(("argument", "_namespaces"), ARGUMENTS)
def test_an_argument_comes_back_as_it_was(argument: Any, _namespaces: set[str]) -> None:
    assert from_wire(to_wire(argument)) == argument


@pytest.mark.parametrize(("argument", "namespaces"), ARGUMENTS)
def test_a_token_is_checked_for_every_namespace_of_an_argument(
    argument: Any, namespaces: set[str]
) -> None:
    assert namespaces_of(argument) == namespaces
