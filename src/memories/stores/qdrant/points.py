"""How points lie in a Qdrant folder: as JSON, not as the pickled objects of Qdrant's client, which can run code."""

import array
import base64
import functools
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from memories.errors import StoreDamaged

if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec


class _Json:
    """Stands in for the module `pickle` where the client's local mode writes and reads points."""

    @staticmethod
    def dumps(value: Any, protocol: int | None = None) -> bytes:  # noqa: ARG004 - the client passes it
        """Return a point, or the id of one, as JSON; vectors are float32, as they are given to us."""
        if isinstance(value, int | str):
            return json.dumps(value).encode()
        shape = {"id": value.id, "vector": _packed(value.vector), "payload": value.payload}
        return json.dumps(shape, ensure_ascii=False, separators=(",", ":")).encode()

    @staticmethod
    def loads(data: bytes) -> Any:
        """Return the point of such JSON.

        Raises:
            StoreDamaged: It is something else; a pickled object is not read.
        """
        from qdrant_client import models

        try:
            shape = json.loads(data)
            return models.PointStruct(id=shape["id"], vector=_unpacked(shape["vector"]), payload=shape["payload"])
        except (ValueError, TypeError, LookupError) as exc:
            raise StoreDamaged(
                "a point in a Qdrant folder is damaged, or was written by another program: only points that memories "
                "wrote are read, since those of others are pickled objects, which can run code"
            ) from exc


@functools.cache
def persistence() -> ModuleType:
    """Return the client's module that writes and reads points, once more, with JSON in place of `pickle`."""
    spec = cast("ModuleSpec", importlib.util.find_spec("qdrant_client.local.persistence"))
    ours = importlib.util.module_from_spec(spec)
    cast("Loader", spec.loader).exec_module(ours)
    ours.pickle = _Json  # type: ignore[attr-defined]
    return ours


def keep_as_json(folder: Path) -> None:
    """Have the client's local mode write and read the points of a folder as JSON; those of other folders as always."""
    from qdrant_client.local import local_collection

    if not _folders:
        theirs = local_collection.CollectionPersistence  # type: ignore[attr-defined]

        def chosen(location: str, *more: Any) -> Any:
            inside = any(folder in Path(location).absolute().parents for folder in _folders)
            return (persistence().CollectionPersistence if inside else theirs)(location, *more)

        local_collection.CollectionPersistence = chosen  # type: ignore[assignment,attr-defined]
    _folders.add(folder.absolute())


_folders: set[Path] = set()


def _packed(vector: Any) -> Any:
    if isinstance(vector, dict):
        return {name: _packed(part) for name, part in vector.items()}
    numbers = array.array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


def _unpacked(packed: Any) -> Any:
    if isinstance(packed, dict):
        return {str(name): _unpacked(part) for name, part in packed.items()}
    numbers = array.array("f", base64.b64decode(packed, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
