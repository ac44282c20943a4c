"""Filters for the memories of a project."""

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from memories import load_config
from memories.errors import InvalidInput
from memories.read.lookup import _shorten, check_namespace, complete_project, with_global
from memories.stores.records import Collection, Filter, Record, Ref
from memories.stores.sqlite.store import SQLiteStore

EVERYTHING = Filter(Collection.MEMORY, ("shared",))


def in_project(name: str) -> Filter:
    """Return a filter for the memories of a project."""
    return EVERYTHING._replace(labels={"project": name})


def test_a_project_matches_all_of_its_names_and_global_memories() -> None:
    everywhere = EVERYTHING._replace(labels={"global": "true"})
    assert with_global(EVERYTHING, ["shop", "store"]) == (
        in_project("shop"),
        in_project("store"),
        everywhere,
    )
    assert with_global(EVERYTHING, ["shop"]) == (in_project("shop"), everywhere)
    assert with_global(EVERYTHING, None) == (EVERYTHING,)


def test_a_project_tag_restricts_to_that_name() -> None:
    assert with_global(in_project("store"), ["shop", "store"]) == (in_project("store"),)
    with pytest.raises(InvalidInput, match='given twice, as "web" and "shop"'):
        with_global(in_project("web"), ["shop", "store"])


def test_the_last_part_of_a_projects_name_is_enough_if_it_is_unique() -> None:
    names = {"github.com/acme/shop", "github.com/acme/till", "gitlab.com/ann/till", "web"}
    assert complete_project("shop", names) == ["github.com/acme/shop"]
    assert complete_project(" acme/till ", names) == ["github.com/acme/till"]
    assert complete_project("web", {*names, "example.org/web"}) == ["web"]
    assert complete_project("op", names) == ["op"]
    assert complete_project(["shop"], names) == ["shop"]
    assert complete_project(None, names) is None
    with pytest.raises(
        InvalidInput,
        match=r'"till" may mean github\.com/acme/till or gitlab\.com/ann/till; give',
    ):
        complete_project("till", names)


@pytest.mark.parametrize(
    ("memory_id", "short"),
    [("ab1000", "ab1000"), ("ab1001", "ab1001"), ("ab2000", "ab2"), ("b", "b")],
)
def test_a_short_id_differs_from_its_neighbours_on_both_sides(memory_id: str, short: str) -> None:
    assert _shorten(memory_id, ["ab1000", "ab1001", "ab2000", "b"], 2) == short


def test_an_id_without_known_neighbours_keeps_its_time_and_some_random_bits() -> None:
    memory_id = "0197d3b2-77aa-7c3e-8f00-1234567890ab"
    assert _shorten(memory_id, None, 8) == memory_id[:18]
    assert _shorten(memory_id, ["other"], 8) == memory_id[:18]
    assert _shorten("own-id", None, 2) == "own-id"


def test_a_namespace_named_like_one_of_our_files_is_readable_only_if_it_exists(
    tmp_path: Path,
) -> None:
    config = load_config({}, environment={"MEMORY_HOME": str(tmp_path / "home")})
    with closing(SQLiteStore(tmp_path / "m.db", None)) as store:
        store.append(
            [Record(Ref(Collection.HISTORY, "off", "talk", 0), "hello", datetime.now(UTC))]
        )
        assert check_namespace("off", store, config) == "off"
        assert check_namespace("bob", store, config) == "bob"
        with pytest.raises(InvalidInput, match='"inbox" has the name of one of this program'):
            check_namespace("inbox", store, config)
