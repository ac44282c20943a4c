"""Checks the files and their index, and rebuilds the index."""

from collections.abc import Iterable, Iterator
from typing import Any

from memories.stores.damage import damaged_record, find_problem
from memories.stores.files.index import NO_LIMIT, FileState
from memories.stores.files.local import LocalFiles
from memories.stores.files.log import fold, parse
from memories.stores.files.schema import file_name
from memories.stores.records import (
    Collection,
    Filter,
    Finding,
    Record,
    Ref,
    immutable_parts,
    mutable_parts,
)


def check(files: LocalFiles, *, deep: bool) -> list[Finding]:
    """Return unreadable lines and errors in the index; a deep check also compares both."""
    findings: list[Finding] = []
    for collection in Collection:
        for namespace in files.list_namespaces(collection):
            findings += _check_file(files, collection, namespace, deep=deep)
    if files.has_index():
        reported = {finding.ref for finding in findings} - {None}
        remedy = f"remove {files.folder.inner}, which loses no memory, and run: memory reembed"
        for finding in files.index.check(deep=deep):
            if finding.ref not in reported:
                findings.append(finding._replace(remedy=remedy, ref=None))
    return findings


def _check_file(
    files: LocalFiles, collection: Collection, namespace: str, *, deep: bool
) -> Iterator[Finding]:
    name = file_name(collection, namespace)
    parsed = parse(files.folder.read(name)[1], collection, namespace)
    sound: list[Record] = []
    for record in fold(parsed.events).records.values():
        problem = find_problem(record)
        if problem:
            yield damaged_record(record.ref, f"it {problem}")
        else:
            sound.append(record)
    if parsed.damage:
        yield files.damage_finding(name, parsed.damage)
    elif deep:
        state = files.index.read_states([name]).get(name, FileState())
        if state.stamp == files.folder.stamp(name):
            where = Filter(collection, (namespace,), state="any")
            expected = _contents(sound)
            indexed = _contents(files.index.scan(where, limit=NO_LIMIT))
            refs = expected.keys() | indexed.keys()
            count = sum(expected.get(ref) != indexed.get(ref) for ref in refs)
            if count:
                problem = f"the index of {name} differs from its lines in {count} places"
                yield Finding(problem, "run: memory doctor --fix", derived=True)


def _contents(records: Iterable[Record]) -> dict[Ref, Any]:
    return {record.ref: (immutable_parts(record), mutable_parts(record)) for record in records}


def repair(files: LocalFiles) -> list[str]:
    """Read all files again, and rebuild derived parts of the index; return the rebuilt parts."""
    if not any(finding.derived for finding in check(files, deep=True)):
        return []
    repaired = files.index.repair()
    with files.transaction() as work:
        for collection in Collection:
            for namespace in files.list_namespaces(collection):
                files.read_file(file_name(collection, namespace), work.index)
    return [*repaired, "the index of the files"]
