"""For any records, exporting an import gives the same bytes, and a second import changes
nothing.
"""

import os
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memories import Memories
from memories.core.ids import new_id
from memories.embedders.fake import FakeEmbedder
from memories.stores.records import Collection, Record, Ref
from memories.stores.sqlite.store import SQLiteStore
from memories.transfer.export import export
from memories.transfer.importing import import_
from memories.transfer.lines import read_line, to_line

characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
on_a_line = st.characters(
    exclude_categories=["Cs", "Cc"]
)  # otherwise no store returns the record: see `damage.find_problem`
names = st.text(on_a_line, min_size=1, max_size=12)
values = st.text(characters, max_size=20)
times = st.datetimes(datetime.min, datetime.max, timezones=st.just(UTC)).map(  # noqa: DTZ901 - naive
    lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
)
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    values,
)


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    """Draw memories with their versions, and turns."""
    found: list[Record] = []
    for group in range(draw(st.integers(0, 4))):
        memory = draw(st.booleans())
        created_at = draw(times)
        name = new_id(created_at) if memory else f"{group}{draw(names)}"
        place = (
            Collection.MEMORY if memory else Collection.HISTORY,
            draw(st.sampled_from(("ann", "shared", "b-1.x"))),
        )
        last = draw(st.integers(1, 3))
        for position in range(1, last + 1):
            ended = position < last or draw(st.booleans())
            found.append(
                Record(
                    ref=Ref(*place, name, position),
                    text="x" + draw(values),
                    created_at=created_at,
                    ended_at=draw(times) if ended else None,
                    ended_by=draw(st.sampled_from(("update", "delete", "supersede")))
                    if ended
                    else None,
                    key=draw(st.none() | names.map(lambda key, group=group: f"{group}{key}")),
                    labels=draw(
                        st.dictionaries(names, st.text(on_a_line, max_size=20), max_size=3)
                    ),
                    fields=draw(st.dictionaries(names, scalars, max_size=3)),
                    accesses=draw(st.integers(0, 3)),
                    session=None if memory else 0,
                )
            )
    return found


def lines_of(store: SQLiteStore) -> list[str]:
    """Return the export of a store."""
    lines: list[str] = []
    export(store, lines.append, namespaces=None, progress=lambda what, done, whole: None)
    return lines


@pytest.mark.torture
def test_exporting_an_import_gives_the_same_bytes(
    size: Callable[[int, int], int], figures: dict[str, Any], tmp_path: Path
) -> None:
    figures |= {"cases": 0, "records": 0}

    @settings(
        max_examples=size(10, 2000), deadline=None, database=None, derandomize="TORTURE" not in os.environ,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(records())
    def round_trip(written: list[Record]) -> None:
        assert [read_line(to_line(record)) for record in written] == written
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            first, second = (
                SQLiteStore(Path(folder) / name / "m.db", FakeEmbedder.space) for name in "ab"
            )
            first.append(written)
            lines = lines_of(first)
            for _ in range(2):
                done = import_(
                    second, (line.encode() for line in lines), FakeEmbedder(), namespaces=None
                )
                assert done.conflict_count == 0
                assert lines_of(second) == lines
            assert (done.imported, done.known) == (0, len(written))
            first.close()
            second.close()
        figures["cases"] += 1
        figures["records"] += len(written)

    round_trip()


@pytest.mark.torture
def test_exporting_an_import_of_many_records_gives_the_same_bytes(
    size: Callable[[int, int], int], figures: dict[str, Any], tmp_path: Path
) -> None:
    count = size(500, 50_000)
    with Memories(f"sqlite:///{tmp_path}/a/m.db", embedder="fake", namespace="ann") as memories:
        for start in range(0, count, 500):
            memories.create_many(
                [f"note {number} of many" for number in range(start, start + 500)], force=True
            )
    first, second = (SQLiteStore(tmp_path / name / "m.db", FakeEmbedder.space) for name in "ab")
    lines = lines_of(first)
    assert (
        import_(second, (line.encode() for line in lines), FakeEmbedder(), namespaces=None).imported
        == count
    )
    assert lines_of(second) == lines
    figures |= {"records": count}
    first.close()
    second.close()
