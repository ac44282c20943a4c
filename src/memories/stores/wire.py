"""Converts the store protocol's values to and from JSON, for both ends of the HTTP store.

Only the types named here can be created from JSON.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from memories.errors import InvalidInput
from memories.stores.records import (
    Candidate,
    Collection,
    Filter,
    Finding,
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

_TYPES = (
    Candidate, Filter, Finding, Matches, Patch, Record, Ref, Space, StoreInfo, TurnQuery,
)  # fmt: skip
KINDS: Mapping[str, Any] = {kind.__name__: kind for kind in _TYPES}
_DTYPES = ("float32", "float64", "int64", "bool")


def to_wire(content: Any) -> Any:
    """Return a value as JSON; a type that JSON lacks becomes an object whose key names the type."""
    if isinstance(content, Collection):
        return {"collection": str(content)}
    if content is None or isinstance(content, str | bool | int | float):
        return content
    if isinstance(content, datetime):
        return {"time": content.isoformat()}
    if isinstance(content, Mapping):
        return {"map": [[to_wire(key), to_wire(member)] for key, member in content.items()]}
    if hasattr(content, "dtype"):
        return {"array": _array_to_wire(content)}
    return _sequence_to_wire(content)


def _sequence_to_wire(sequence: Iterable[Any]) -> Any:
    members = [to_wire(member) for member in sequence]
    if not isinstance(sequence, tuple):
        return members
    kind = type(sequence).__name__
    return {kind if kind in KINDS else "tuple": members}


def from_wire(shape: Any) -> Any:
    """Return the value that JSON represents.

    Raises:
        InvalidInput: The JSON doesn't represent a value.
    """
    if isinstance(shape, list):
        return [from_wire(member) for member in shape]
    if not isinstance(shape, dict):
        return shape
    if len(shape) != 1:
        raise InvalidInput("an encoded value must have exactly one kind")
    [(kind, members)] = shape.items()
    try:
        return _create(kind, members)
    except (TypeError, ValueError, LookupError) as exc:
        raise InvalidInput(f"this is not a valid {kind[:40]}") from exc


def _create(kind: str, members: Any) -> Any:
    if kind == "collection":
        return Collection(members)
    if kind == "time":
        return datetime.fromisoformat(members)
    if kind == "tuple":
        return tuple(from_wire(member) for member in members)
    if kind == "map":
        return {from_wire(key): from_wire(member) for key, member in members}
    if kind == "array":
        return _array_from_wire(*members)
    created = KINDS[kind](*map(from_wire, members))
    if not _has_valid_address(created):
        raise ValueError(kind)
    return created


def _has_valid_address(part: Any) -> bool:
    """Return whether a value's address has the right types; access rights depend on it."""
    if isinstance(part, Ref):
        has_names = isinstance(part.namespace, str) and isinstance(part.group, str)
        return (
            isinstance(part.collection, Collection) and has_names and isinstance(part.position, int)
        )
    if isinstance(part, Filter):
        if not isinstance(part.collection, Collection) or not isinstance(part.namespaces, tuple):
            return False
        return all(isinstance(name, str) for name in part.namespaces)
    if isinstance(part, Record | Patch):
        return isinstance(part.ref, Ref)
    return True


def _array_to_wire(array: "NDArray[Any]") -> list[Any]:
    import numpy as np

    name = str(array.dtype)
    packed = np.ascontiguousarray(array, dtype=name if name in _DTYPES else "float32")
    return [str(packed.dtype), list(array.shape), b64encode(packed.tobytes()).decode()]


def _array_from_wire(name: str, shape: list[int], data: str) -> "np.ndarray[Any, Any]":
    import numpy as np

    if name not in _DTYPES:
        raise ValueError(name)
    return np.frombuffer(b64decode(data), dtype=name).reshape(shape).copy()


def namespaces_of(argument: Any) -> set[str]:
    """Return all namespaces that are named in a call's arguments.

    Named tuples are searched too, because a store iterates over any tuple that a client sends
    instead of a list of records.
    """
    if isinstance(argument, Ref):
        return {argument.namespace}
    names: set[str] = set()
    if isinstance(argument, Filter):
        names.update(argument.namespaces)
    if isinstance(argument, Mapping):
        argument = [*argument.keys(), *argument.values()]
    if isinstance(argument, list | tuple):
        for member in argument:
            names |= namespaces_of(member)
    return names
