"""Converts the store protocol's values to and from JSON, for the HTTP store and its server.

Only values of the types that are named here can be created from JSON.
"""

import functools
import inspect
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from memories.core.ids import storable
from memories.errors import InvalidInput
from memories.guard.validate import shown
from memories.stores.damage import find_problem
from memories.stores.protocol import Store
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
# the types that are accepted in place of some parameters' types
_ALSO: Mapping[Any, tuple[type, ...]] = {
    float: (int, float),
    Any: (str, bool, int, float, type(None)),
}
# the allowed ranges of numbers that determine how much work a request causes
_BOUNDS = {"dimension": (1, 65_536), **dict.fromkeys(("limit", "k", "at_most"), (0, 2**31 - 1))}
_SEARCHES = frozenset("candidates matches info unstaged stage".split())
_DTYPES = ("float32", "float64", "int64", "bool")


def to_wire(content: Any) -> Any:
    """Return a value as JSON.

    A value of a type that JSON lacks becomes an object whose only key names the type.
    """
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
    except InvalidInput:
        raise
    except (TypeError, ValueError, LookupError, OverflowError) as exc:
        raise InvalidInput(f"this is not a valid {shown(kind)}") from exc


def _create(kind: str, members: Any) -> Any:
    if kind == "collection":
        return Collection(members)
    if kind == "time":
        return datetime.fromisoformat(members).astimezone(UTC)
    if kind == "tuple":
        return tuple(from_wire(member) for member in members)
    if kind == "map":
        return {from_wire(key): from_wire(member) for key, member in members}
    if kind == "array":
        return _array_from_wire(*members)
    return KINDS[kind](*map(from_wire, members))


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


def read_arguments(
    method: str, space: Space | None, arguments: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name, after checking their types and values.

    Args:
        method: A method of `Store`.
        space: The space of the vectors in the arguments.
        arguments: The positional arguments.
        named: The other arguments.

    Raises:
        InvalidInput: The method doesn't take these arguments, a record would count as damaged, or a
            vector is not in its space.
    """
    function = getattr(Store, method)
    try:
        values = inspect.signature(function).bind(None, *arguments, **named).arguments
    except TypeError as exc:
        raise InvalidInput(f"the store's method {method}: {exc}") from exc
    hints = _hints(function)
    del values["self"]
    if type(values.get("after")) is list:  # clients send every tuple as a list
        values["after"] = tuple(values["after"])
    for name, value in values.items():
        if not fits(name, value, hints[name]):
            raise InvalidInput(f"the store's method {method} was given an invalid {name}")
    for part in parts_of(values):
        if problem := _find_problem(part, values.get("space", space)):
            raise InvalidInput(problem)
        if part is Collection.LOG and method in _SEARCHES:
            raise InvalidInput("the log has neither words nor vectors")
    return values


def _find_problem(part: Any, space: Space | None) -> str | None:
    """Return why a store can't use this part of an argument; None if it can."""
    if isinstance(part, Patch):
        fields = {name: value for name, value in part.fields.items() if value is not None}
        part = Record(part.ref, "", datetime.now(UTC), None, part.ended_by, fields=fields)
    if isinstance(part, Record):
        problem = find_problem(part)
        if part.ref.collection is Collection.LOG and part.vectors is not None:
            problem = "of the log has a vector"
        return problem and f"a record {problem}"
    if hasattr(part, "dtype") and space is not None and part.shape[-1] != space.dimension:
        return "a vector and its space have different dimensions"
    return None


@functools.cache
def _hints(owner: Any) -> dict[str, Any]:
    """Return the types of a method's parameters, or of a named tuple's fields."""
    import numpy as np
    from numpy.typing import NDArray

    return get_type_hints(owner, localns={**KINDS, "np": np, "NDArray": NDArray})


def fits(name: str, value: Any, hint: Any) -> bool:
    """Return whether a value is valid for a parameter or a field with this type.

    Subclasses aren't accepted, since access rights depend on the namespaces in the arguments.
    """
    if get_origin(hint) in (Union, UnionType):
        return any(fits(name, value, part) for part in get_args(hint))
    if get_origin(hint) is not None:
        return _contains(name, value, hint)
    if hasattr(hint, "_fields"):
        hints = _hints(hint)
        return type(value) is hint and all(
            fits(field, getattr(value, field), hints[field]) for field in hint._fields
        )
    if type(value) not in _ALSO.get(hint, (hint,)):
        return False
    if type(value) is int:
        lowest, highest = _BOUNDS.get(name, (-(2**63), 2**63 - 1))
        return lowest <= value <= highest
    return type(value) is not str or storable(value.replace("\0", ""))


def _contains(name: str, value: Any, hint: Any) -> bool:
    """Return whether a value is valid for a generic type, such as `Sequence[Ref]`; see `fits`."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return type(value) is str and value in parts
    if origin is Mapping:
        return type(value) is dict and all(
            fits(name, key, parts[0]) and fits(name, member, parts[1])
            for key, member in value.items()
        )
    if origin is Sequence:
        return type(value) in (list, tuple) and all(fits(name, one, parts[0]) for one in value)
    if origin is tuple:
        if type(value) is not tuple:
            return False
        hints = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        return len(value) == len(hints) and all(map(fits, [name] * len(value), value, hints))
    import numpy as np

    axes = 1 if name == "vector" else 2
    is_array = isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.ndim == axes
    return is_array and value.size > 0 and bool(np.isfinite(value).all())


def namespaces_of(argument: Any) -> set[str]:
    """Return all namespaces that are named in a call's arguments."""
    names: set[str] = set()
    for part in parts_of(argument):
        if isinstance(part, Ref):
            names.add(part.namespace)
        elif isinstance(part, Filter):
            names.update(part.namespaces)
    return names


def parts_of(argument: Any) -> Iterator[Any]:
    """Yield an argument and, if it is a collection, all its members at any depth."""
    yield argument
    if isinstance(argument, Mapping):
        argument = [*argument.keys(), *argument.values()]
    if isinstance(argument, list | tuple):
        for member in argument:
            yield from parts_of(member)
