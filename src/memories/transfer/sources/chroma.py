"""Memories in ChromaDB, each a document with metadata; read from a server or from its folder.

The collection is `memories`, or the one that `COLLECTION_NAME` names. A document has the metadata
`agent`, `personality`, `project`, `type`, `global`, `decay_policy`, `created_at` and `deleted`;
any other metadata becomes tags.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

from memories.core.http import Address, JsonClient, NoAnswer
from memories.errors import InvalidInput, SystemFault
from memories.guard.validate import shown
from memories.models import Draft
from memories.transfer.sources.database import Database, open_copy
from memories.transfer.sources.items import Item, add_tag, to_draft
from memories.transfer.sources.reader import Reader
from memories.transfer.sources.sample import Sample, Source

_API = "/api/v2/tenants/default_tenant/databases/default_database/collections"
_PAGE = 500
_SECONDS = 30.0
_PORT = 8000
_OF_SPECIFICATION = frozenset(
    "agent personality project type global decay_policy created_at last_reinforced_at deleted "
    "chroma:document tags".split()
)
_VALUES = ("string_value", "int_value", "float_value", "bool_value")
_DOCUMENTS = (
    "WHERE segment_id IN (SELECT s.id FROM segments AS s JOIN collections AS c "
    "ON c.id = s.collection WHERE s.scope = 'METADATA' AND c.name = ?) ORDER BY id"
)

Document = tuple[str, object, Mapping[str, Any]]  # a document: ID, text and metadata


def recognize(sample: Sample) -> bool:
    """Return whether a path is the folder of a Chroma server, or its database."""
    if "chroma.sqlite3" in sample.names:
        return True
    return {"collections", "embeddings", "embedding_metadata"} <= sample.tables.keys()


def read(reader: Reader) -> Iterator[Item]:
    """Yield a memory for each document that was not deleted."""
    name = os.environ.get("COLLECTION_NAME") or "memories"
    documents = _ask(reader.address, name) if reader.address else _read_files(reader, name)
    for their_id, text, metadata in documents:
        if metadata.get("deleted") in (True, 1, "true", "True"):
            reader.skip("deleted memories")
        elif draft := _to_draft(their_id, text, metadata):
            yield draft
        else:
            reader.skip("documents without text")


def _to_draft(their_id: str, text: object, metadata: Mapping[str, Any]) -> Draft | None:
    draft = to_draft({**metadata, "content": text})
    if draft is None:
        return None
    tags = dict(draft.tags)
    for key, value in metadata.items():
        if key not in _OF_SPECIFICATION:
            add_tag(tags, key, value)
    return replace(draft, tags=tags, key=their_id)


# --- from its folder


def _read_files(reader: Reader, name: str) -> Iterator[Document]:
    for file in reader.files("chroma.sqlite3"):
        with open_copy(file) as database:
            if not any(database.rows("collections", ("id",), (), "WHERE name = ?", name)):
                raise _missing(name, str(reader.path))
            yield from read_collection(database, name)


def read_collection(database: Database, name: str) -> Iterator[Document]:
    """Yield each document of a collection in a Chroma database."""
    for row in database.rows("embeddings", ("id", "embedding_id"), (), _DOCUMENTS, name):
        metadata: dict[str, Any] = {}
        pairs = database.rows(
            "embedding_metadata", ("key",), _VALUES, "WHERE id = ?", str(row["id"])
        )
        for pair in pairs:
            values = [pair[column] for column in _VALUES if pair[column] is not None]
            metadata[pair["key"]] = values[0] if values else None
        yield row["embedding_id"], metadata.get("chroma:document"), metadata


# --- from a server


def _ask(url: str, name: str) -> Iterator[Document]:
    parts = urlsplit(url)
    try:
        port = parts.port or _PORT
    except ValueError:
        port = 0
    if not parts.hostname or not port:
        raise InvalidInput(f"{shown(url)} is not the address of a server; write http://HOST:PORT")
    client = JsonClient(Address("Chroma", parts.hostname, port, parts.scheme == "https"))
    try:
        collection = _request(client, "GET", f"{_API}/{quote(name, safe='')}", None)
        if collection is None:
            raise _missing(name, url)
        path, offset = f"{_API}/{collection['id']}/get", 0
        while True:
            body = {"limit": _PAGE, "offset": offset, "include": ["documents", "metadatas"]}
            page = _request(client, "POST", path, body) or {}
            ids = page.get("ids") or []
            texts, metadatas = page.get("documents") or [], page.get("metadatas") or []
            for their_id, text, metadata in zip(ids, texts, metadatas, strict=False):
                yield str(their_id), text, metadata or {}
            offset += len(ids)
            if len(ids) < _PAGE:
                return
    finally:
        client.close()


def _request(client: JsonClient, method: str, path: str, body: object) -> Any:
    """Return the server's response; None if the collection doesn't exist."""
    try:
        answer = client.ask(method, path, body, seconds=_SECONDS)
    except NoAnswer as exc:
        raise SystemFault(f"{client.address} does not answer ({exc}); start the server") from exc
    if answer.status == 404:
        return None
    if answer.status != 200 or not isinstance(answer.value, dict):
        text = client.address.quoted(str(answer.value))
        raise SystemFault(f"{client.address} answered with status {answer.status}: {text}")
    return answer.value


def _missing(name: str, place: str) -> InvalidInput:
    return InvalidInput(
        f'there is no collection "{shown(name)}" in {shown(place)}; '
        "set COLLECTION_NAME to the one with the memories"
    )


SOURCES = {"chroma": Source(("chroma.sqlite3",), recognize, read)}
