"""What a store takes and returns as JSON and back, for both sides. Only the values named here can
be made from it.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
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

KINDS: Mapping[str, Any] = {
    kind.__name__: kind
    for kind in (
        Candidate,
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
}
_DTYPES = ("float32", "float64", "int64", "bool")


def to_wire(value: Any) -> Any:
    """Return a value as JSON: what JSON has not is an object with one member, named by what it
    is.
    """
    if value is None or (
        isinstance(value, str | bool | int | float) and not isinstance(value, Collection)
    ):
        return value
    if isinstance(value, Collection | datetime):
        return (
            {"time": value.isoformat()}
            if isinstance(value, datetime)
            else {"collection": str(value)}
        )
    if isinstance(value, Mapping):
        return {"map": [[to_wire(key), to_wire(each)] for key, each in value.items()]}
    if hasattr(value, "dtype"):
        return {"array": _array_to_wire(value)}
    inner = [to_wire(each) for each in value]
    if not isinstance(value, tuple):
        return inner
    return {type(value).__name__ if type(value).__name__ in KINDS else "tuple": inner}


def from_wire(shape: Any) -> Any:
    """Return the value that JSON stands for.

    Raises:
        InvalidInput: It stands for none.
    """
    if isinstance(shape, list):
        return [from_wire(each) for each in shape]
    if not isinstance(shape, dict):
        return shape
    if len(shape) != 1:
        raise InvalidInput("a value on the wire has more than one kind")
    [(kind, inner)] = shape.items()
    try:
        return _made(kind, inner)
    except (TypeError, ValueError, LookupError) as exc:
        raise InvalidInput(f"this is no {kind[:40]}") from exc


def _made(kind: str, inner: Any) -> Any:
    if kind == "collection":
        return Collection(inner)
    if kind == "time":
        return datetime.fromisoformat(inner)
    if kind == "tuple":
        return tuple(from_wire(each) for each in inner)
    if kind == "map":
        return {from_wire(key): from_wire(each) for key, each in inner}
    if kind == "array":
        return _array(*inner)
    made = KINDS[kind](*(from_wire(each) for each in inner))
    _check(made)
    return made


def _check(made: Any) -> None:
    """Refuse an address or a filter that names no namespace as it should: who may do what depends
    on it.
    """
    if isinstance(made, Ref):
        known: Any = (Collection, str, str, int)
        good = all(isinstance(value, kind) for value, kind in zip(made, known, strict=True))
    elif isinstance(made, Filter):
        good = isinstance(made.namespaces, tuple) and all(
            isinstance(name, str) for name in made.namespaces
        )
        good = good and isinstance(made.collection, Collection)
    elif isinstance(made, Record | Patch):
        good = isinstance(made.ref, Ref)
    else:
        return
    if not good:
        raise ValueError(type(made).__name__)


def _array_to_wire(array: "NDArray[Any]") -> list[Any]:
    import numpy as np

    name = str(array.dtype)
    kept = np.ascontiguousarray(array, dtype=name if name in _DTYPES else "float32")
    return [str(kept.dtype), list(array.shape), b64encode(kept.tobytes()).decode()]


def _array(name: str, shape: list[int], data: str) -> "np.ndarray[Any, Any]":
    import numpy as np

    if name not in _DTYPES:
        raise ValueError(name)
    return np.frombuffer(b64decode(data), dtype=name).reshape(shape).copy()


def namespaces_of(value: Any) -> set[str]:
    """Return every namespace that arguments name."""
    if isinstance(value, Ref):
        return {value.namespace}
    if isinstance(value, Filter):
        return set(value.namespaces)
    if isinstance(value, Record | Patch):
        return {value.ref.namespace}
    if isinstance(value, Mapping):
        return {name for pair in value.items() for part in pair for name in namespaces_of(part)}
    if isinstance(value, list | tuple) and type(value).__name__ not in KINDS:
        return {name for each in value for name in namespaces_of(each)}
    return set()
