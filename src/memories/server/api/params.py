"""What routes take: the fields of a query or a body, checked and read before a verb is called."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from memories.errors import InvalidInput
from memories.guard.validate import parse_tag, read_json, shown

_TRUE, _FALSE = ("true", "1", "yes", ""), ("false", "0", "no")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "text": (str,), "whole": (int,), "number": (int, float), "flag": (bool,),
    "tags": (dict,), "texts": (list,), "objects": (list,),
}  # fmt: skip
_CALLED = {
    "text": "text", "whole": "a whole number", "number": "a number", "flag": "true or false",
    "tags": "an object of texts", "texts": "a list of texts", "objects": "a list of objects",
}  # fmt: skip


class Field(NamedTuple):
    """One value that a route takes.

    Attributes:
        kind: `text`, `whole`, `number`, `flag`, `tags`, `texts` or `objects`. In a query, tags are `KEY=VALUE` and,
            like texts, given by the same name several times.
        about: What it says.
        required: Whether it has to be there.
        choices: The only values, if there are few.
        of: The fields of each object in a list.
    """

    kind: str
    about: str
    required: bool = False
    choices: tuple[str, ...] = ()
    of: "dict[str, Field] | None" = None


Fields = dict[str, Field]


def from_query(pairs: Sequence[tuple[str, str]], known: Fields) -> dict[str, Any]:
    """Return the values of a query.

    Raises:
        InvalidInput: One is unknown, not acceptable, or given twice.
    """
    given: dict[str, Any] = {}
    for name, text in pairs:
        field = _field(name, known)
        if field.kind == "tags":
            key, value = parse_tag(text)
            given.setdefault(name, {})[key] = value
        elif field.kind == "texts":
            given.setdefault(name, []).append(text)
        elif name in given:
            raise InvalidInput(f"{name} is given twice; give it once")
        else:
            given[name] = _read(name, field, text)
    return _complete(given, known)


def from_body(data: bytes, known: Fields) -> dict[str, Any]:
    """Return the values of a JSON body; null stands for what is left out.

    Raises:
        InvalidInput: It is not an object of these values.
    """
    try:
        value = read_json(data.decode()) if data else {}
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"the body is not UTF-8 (byte 0x{data[exc.start]:02x} at {exc.start})") from None
    except InvalidInput as exc:
        raise InvalidInput(f"the body {exc}") from exc
    return checked(value, known, "the body")


def checked(value: object, known: Fields, what: str) -> dict[str, Any]:
    """Return the values of a JSON object; see `from_body`."""
    if type(value) is not dict:
        raise InvalidInput(f"{what} must be a JSON object")
    given = {}
    for name, found in value.items():
        field = _field(name, known)
        if found is not None:
            given[name] = _checked(name, field, found)
    return _complete(given, known)


def _checked(name: str, field: Field, found: Any) -> Any:
    if type(found) not in _TYPES[field.kind]:
        raise InvalidInput(f"{name} must be {_CALLED[field.kind]}")
    if field.kind == "texts" and not all(type(each) is str for each in found):
        raise InvalidInput(f"{name} must be a list of texts")
    if field.kind == "tags" and not all(type(each) is str for each in found.values()):
        raise InvalidInput(f"{name} must be an object whose values are texts")
    if field.kind == "objects":
        return [checked(each, field.of or {}, f"{name}[{at}]") for at, each in enumerate(found)]
    _among(name, field, found)
    return found


def _field(name: str, known: Fields) -> Field:
    if name not in known:
        raise InvalidInput(f'there is no "{shown(name)}" here; use {", ".join(known) or "nothing"}')
    return known[name]


def _read(name: str, field: Field, text: str) -> Any:
    if field.kind == "flag":
        if text.lower() not in _TRUE + _FALSE:
            raise InvalidInput(f"{name} must be true or false")
        return text.lower() in _TRUE
    if field.kind == "whole":
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise InvalidInput(f"{name} must be a whole number")
        return int(text)
    if field.kind == "number":
        try:
            return float(text)
        except ValueError:
            raise InvalidInput(f"{name} must be a number") from None
    _among(name, field, text)
    return text


def _among(name: str, field: Field, found: object) -> None:
    if field.choices and found not in field.choices:
        raise InvalidInput(f"{name} must be {', '.join(field.choices[:-1])} or {field.choices[-1]}")


def _complete(given: dict[str, Any], known: Fields) -> dict[str, Any]:
    for name, field in known.items():
        if field.required and name not in given:
            raise InvalidInput(f"{name} is missing")
    return given
