"""Secrets that were stored before they were taken out, or all the same: where they are and of which kind, never"
" which."""

import contextlib
import itertools
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from memories.guard.redactor import Redactor
from memories.read import versions
from memories.settings import Config
from memories.stores import open_store
from memories.stores.records import Collection, Finding, Record
from memories.transfer.pages import Progress, pages, places

MAX_FINDINGS = 1_000  # that are named; all are counted
_ERASE = "store again what should stay, without it, and erase the rest: "


def find(config: Config, waiting: Iterable[tuple[Path, int, str]], progress: Progress) -> list[Finding]:
    """Return what holds a secret: memories in all their versions, turns, and what waits to be stored.

    Args:
        config: The settings; what they take out is looked for, and secrets if they take out nothing.
        waiting: The lines of the queues: the file, the number, and the line.
        progress: Is told how many records were looked at.
    """
    redactor = (config._replace(redact="secrets") if config.redact == "off" else config).redactor()
    found = itertools.chain(_in_store(config, redactor, progress), _in_queues(waiting, redactor))
    named = list(itertools.islice(found, MAX_FINDINGS))
    more = sum(1 for _ in found)
    return named + ([Finding(f"{more} more memories and turns hold a secret", "see to these first")] if more else [])


def _in_store(config: Config, redactor: Redactor, progress: Progress) -> Iterator[Finding]:
    seen = 0
    with contextlib.closing(open_store(config.store, None, config)) as store:
        for place in places(store):
            records = itertools.chain.from_iterable(pages(store, place))
            for _, same in itertools.groupby(records, _owner):
                group = list(same)
                seen += len(group)
                progress("looking for secrets", seen, seen)
                held = [(record, kinds) for record in group if (kinds := kinds_in(record, redactor))]
                if held:
                    yield _named(
                        [record for record, _ in held], [kind for _, kinds in held for kind in kinds], redactor
                    )


def _owner(record: Record) -> tuple[str, int]:
    """Return what is erased as a whole: a memory with its versions, or one turn."""
    return record.ref.group, 0 if record.ref.collection is Collection.MEMORY else record.ref.position


def kinds_in(record: Record, redactor: Redactor) -> tuple[str, ...]:
    """Return the kinds of the secrets in a record: its text, labels, key, fields, and the name of its conversation."""
    texts = [
        record.text,
        record.ref.group,
        record.key or "",
        record.ended_by or "",
        *record.labels,
        *record.labels.values(),
    ]
    texts += [value for value in record.fields.values() if isinstance(value, str)]
    return tuple(kind for text in texts if text for kind in _new(text, redactor))


def _new(text: str, redactor: Redactor) -> tuple[str, ...]:
    """Return the kinds of what is in a text and would be taken out of it now."""
    done = redactor.secrets(text)
    return done.kinds if done.text is not text else ()


def _named(records: Sequence[Record], kinds: Sequence[str], redactor: Redactor) -> Finding:
    ref = records[0].ref
    holds = f"in namespace {ref.namespace} holds {', '.join(sorted(set(kinds)))}"
    name = redactor.secrets(ref.group).text
    plain = name is ref.group
    if ref.collection is Collection.MEMORY:
        numbers = ", ".join(str(record.ref.position) for record in records[:20])
        key = records[-1].key
        said = f" (key {redactor.secrets(versions.plain_key(key) or '').text})" if key else ""
        command = f"memory forget {shlex.quote(name)} -n {ref.namespace} --yes"
        what = f"memory {name}{said}, version {numbers}, {holds}"
    else:
        what = f"turn {ref.position} of conversation {name} {holds}"
        command = f"memory turns forget {shlex.quote(name)} --index {ref.position} -n {ref.namespace} --yes"
    return Finding(what, f"{_ERASE}{command}", ref=ref if plain else None)


def _in_queues(waiting: Iterable[tuple[Path, int, str]], redactor: Redactor) -> Iterator[Finding]:
    for file, number, line in waiting:
        kinds = _new(line, redactor)
        if kinds:
            yield Finding(
                f"line {number} of {file} holds {', '.join(sorted(set(kinds)))}",
                "it is taken out when an agent goes on and the turn is stored; what was refused: read it, then r"
                "emove it",
            )
