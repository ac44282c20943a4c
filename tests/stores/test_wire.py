"""Calls of a store are encoded as JSON between a server and its clients."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from memories.embedders.fake import FakeEmbedder
from memories.errors import InvalidInput
from memories.stores.records import Collection, Filter, Finding, Patch, Record, Ref
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
    (FakeEmbedder.space, set()),
    (Finding("a part is damaged", "run memory doctor"), set()),
    ((1, "two", None, 0.5), set()),
]


@pytest.mark.parametrize(("argument", "_namespaces"), ARGUMENTS)
def test_an_encoded_argument_is_decoded_unchanged(argument: Any, _namespaces: set[str]) -> None:
    assert from_wire(to_wire(argument)) == argument


@pytest.mark.parametrize(("argument", "namespaces"), ARGUMENTS)
def test_a_token_is_checked_for_every_namespace_of_an_argument(
    argument: Any, namespaces: set[str]
) -> None:
    assert namespaces_of(argument) == namespaces


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float32", "float32"), ("float64", "float64"), ("int64", "int64"), ("bool", "bool"), ("float16", "float32")],
)  # fmt: skip
def test_an_array_is_decoded_with_its_shape_and_a_known_type(name: str, dtype: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]], dtype=name).T
    wire = to_wire(array)
    back = from_wire(wire)
    assert (str(back.dtype), back.shape, back.tolist()) == (dtype, (3, 2), array.tolist())
    back[0, 0] = 1  # the array is writable
    wire["array"][0] = "object"
    with pytest.raises(InvalidInput, match="not a valid array"):
        from_wire(wire)
