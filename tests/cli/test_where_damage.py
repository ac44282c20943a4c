"""Bulk changes report damaged records and don't change them."""

from pathlib import Path

from cli.conftest import Command
from memories import Memories

DAMAGE = """
import sys, apsw
db = apsw.Connection(sys.argv[1])
db.execute("UPDATE record SET text = 'changed behind its back' WHERE text = 'the door is red'")
"""


def test_damaged_records_are_left_alone_and_reported(
    memory: Command, folder: Path, run_python: object
) -> None:
    store = folder / "m.db"
    url = ("--store", f"sqlite:///{store}")
    for text in ("the roof is flat", "the door is red", "the wall is white"):
        memory("create", text, "--type", "fact", "--force", *url)
    to = memory("list", *url).json["results"][0]["created_at"]
    run_python(DAMAGE, store)  # type: ignore[operator]
    listed = memory("list", "--where", "type = fact or type = rule", *url)
    assert (listed.code, listed.json["count"], len(listed.json["damaged"])) == (4, 2, 1)
    done = memory("delete", "--where", "type = fact or type = rule", *url)
    assert (done.code, done.json["count"], len(done.json["damaged"])) == (4, 2, 1)
    assert "is damaged" in done.err
    back = memory("rollback", "--to", to, *url)
    assert (back.code, back.json["counts"]) == (4, {"restore": 2})
    with Memories(url[1]) as memories:
        assert len(memories.list().memories) == 2
    assert memory("export", "--where", "type = fact", *url).code == 4
    assert memory("tags", "set", "a=b", *url).code == 4
