"""No byte of a secret gets into the home: a secret is planted in each field of every kind of write,
and then every file is searched.
"""

import asyncio
import itertools
import json
import logging
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import planted_secrets as corpus
import pytest
from click.testing import CliRunner

from memories import Draft, InvalidInput, Memories, TurnDraft
from memories import __main__ as front_door
from memories.config import load_config
from memories.context.gateway import MemoryGateway
from memories.context.memory import AgentMemory
from memories.errors import ConfigError, NotFound
from memories.guard.origin import Place


class Answer(NamedTuple):
    """The result of running the command."""

    returncode: int
    stdout: str
    stderr: str


_SEEDS = itertools.count(1_000)
STORES = ("sqlite", "files")


def secret() -> str:
    """Return a secret that no other test uses."""
    return "ghp_" + corpus.text(random.Random(next(_SEEDS)), 36)


def held(folder: Path, planted: str) -> list[str]:
    """Return the files of a folder that contain a piece of a secret."""
    pieces = [planted[at : at + 12].encode() for at in range(4, len(planted) - 11)]
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and any(piece in path.read_bytes() for piece in pieces)
    ]


@pytest.fixture(params=STORES)
def memories(request: pytest.FixtureRequest, home: Path) -> Memories:
    """Memories in each store that uses files."""
    store = None if request.param == "sqlite" else f"files:///{home}/files"
    return Memories(store, embedder="fake")


def _create(memories: Memories, **given: Any) -> object:
    """Create a memory with these fields."""
    return memories.create(**({"content": "The sky is blue"} | given))


def _update(memories: Memories, **given: Any) -> object:
    """Create a memory and change these fields."""
    made = memories.create(f"Something to change, number {next(_SEEDS)}", force=True).memory
    assert made is not None
    return memories.update(made.id, **given)


def _turn(memories: Memories, **given: Any) -> object:
    """Add a turn with these fields."""
    return memories.add_turns("standup", [TurnDraft(**({"content": "Good morning"} | given))])


FIELDS: dict[str, Callable[[Memories, str], object]] = {
    "content": lambda memories, planted: _create(memories, content=f"the token is {planted}"),
    "tag key": lambda memories, planted: _create(memories, tags={planted: "x"}),
    "tag value": lambda memories, planted: _create(memories, tags={"note": f"my {planted}"}),
    "project": lambda memories, planted: _create(memories, tags={"project": planted}, key="a"),
    "key": lambda memories, planted: _create(memories, key=f"tokens/{planted}"),
    "create_many": lambda memories, planted: memories.create_many(
        [Draft(f"x {planted}"), f"y {planted}"]
    ),
    "update": lambda memories, planted: _update(memories, content=f"now {planted}"),
    "update of a tag": lambda memories, planted: _update(memories, tags={"note": planted}),
    "turn": lambda memories, planted: _turn(memories, content=f"I use {planted}"),
    "speaker": lambda memories, planted: _turn(memories, speaker=planted),
    "message id": lambda memories, planted: _turn(memories, message_id=f"m-{planted}"),
    "have the tag": lambda memories, planted: _turn(memories, tags={"a": planted}),
}


def test_secrets_are_removed_from_every_field_of_a_write(memories: Memories, home: Path) -> None:
    planted = {field: secret() for field in FIELDS}
    shown = {field: repr(write(memories, planted[field])) for field, write in FIELDS.items()}
    memories.search("token")
    memories.close()
    assert {field: held(home, planted[field]) for field in FIELDS} == {
        field: [] for field in FIELDS
    }
    assert [field for field in FIELDS if planted[field] in shown[field]] == []
    assert [field for field in FIELDS if "github_token" not in shown[field]] == []


def test_the_name_of_a_conversation_must_not_contain_a_secret(
    memories: Memories, home: Path
) -> None:
    planted = secret()
    with pytest.raises(
        InvalidInput, match="conversation id contains what looks like a secret"
    ) as refused:
        memories.add_turns(f"about {planted}", ["Hello"])
    assert planted not in str(refused.value)
    assert held(home, planted) == []


def test_a_source_must_not_contain_a_secret(memories: Memories, home: Path) -> None:
    planted = secret()
    with pytest.raises(InvalidInput, match="source contains what looks like a secret") as refused:
        memories.create("The sky is blue", source=f"{planted}#1")
    assert planted not in str(refused.value)
    assert held(home, planted) == []
    assert memories.create("The sky is blue", source=planted, redact=False).stored


def test_secrets_are_removed_from_tags_of_many_memories(memories: Memories, home: Path) -> None:
    planted = secret()
    made = _create(memories, tags={"a": "b", "c": "d"})
    memories.tag_where(None, tags={f"tag-{planted}": planted})
    memories.tag_where(None, rename_tags={"a": f"a-{planted}", "c=d": f"c={planted}"})
    memories.close()
    assert held(home, planted) == []
    assert len(memories.get(made.id).tags) == 3  # type: ignore[attr-defined]


def by_client(planted: str, store: str | None = None) -> Memories:
    """Return the memories of a client whose name and branch contain a secret."""
    place, client = Place("shop", f"fix/{planted}"), (f"agent {planted}", "1")
    return Memories(store, embedder="fake", channel="mcp", client=client, place=lambda: place)


def test_secrets_are_removed_from_origins(home: Path) -> None:
    planted = secret()
    with by_client(planted) as memories:
        origin = _create(memories).memory.origin  # type: ignore[attr-defined]
        _turn(memories)
    assert (origin.by, origin.branch) == (
        "agent [redacted:github_token]",
        "fix/[redacted:github_token]",
    )
    assert held(home, planted) == []


def test_an_import_removes_secrets_from_origins(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = secret()
    exported = tmp_path / "export.jsonl"
    with monkeypatch.context() as patch:
        patch.setenv("REDACT", "off")
        with by_client(planted, f"sqlite:///{tmp_path}/other.db") as memories:
            origin = _create(memories).memory.origin  # type: ignore[attr-defined]
        run("export", "--output", str(exported), "--store", f"sqlite:///{tmp_path}/other.db")
    assert (origin.by, origin.branch) == (f"agent {planted}", f"fix/{planted}")
    (home / "events.jsonl").unlink()
    assert json.loads(run("import", str(exported)).stdout)["imported"] == 1
    assert held(home, planted) == []


def test_errors_do_not_quote_a_secret(memories: Memories) -> None:
    planted = secret()
    for given in (
        {"tags": {f"a b {planted}": "x"}},
        {"decay": planted},
        {"supersedes": planted},
        {"key": f"{planted}\n"},
    ):
        with pytest.raises(Exception) as refused:
            _create(memories, **given)
        assert planted not in str(refused.value)


def test_a_key_with_a_secret_still_identifies_one_memory(memories: Memories) -> None:
    one, other = secret(), secret()
    made = [
        memories.create(f"said {n}", key=f"k/{key}").memory
        for n, key in enumerate((one, one, other))
    ]
    assert made[0] and made[1] and made[2]
    assert made[0].id == made[1].id != made[2].id
    assert made[1].version == 2
    assert memories.id_of_key(f"k/{one}") == made[0].id
    with pytest.raises(NotFound) as refused:
        memories.id_of_key(one)
    assert one not in str(refused.value)


def test_a_message_id_with_a_secret_is_still_stored_once(memories: Memories) -> None:
    planted = secret()
    for _ in range(2):
        _turn(memories, message_id=planted)
    _turn(memories, message_id=secret())
    assert len(memories.tail_turns("standup")) == 2


def test_the_vector_is_made_from_the_redacted_text(home: Path) -> None:
    from memories.embedders.fake import FakeEmbedder

    class Listening(FakeEmbedder):
        heard: ClassVar[list[str]] = []

        def embed(self, text: str) -> Any:
            self.heard.append(text)
            return super().embed(text)

    with Memories(embedder=Listening()) as memories:
        planted = secret()
        memories.create(f"the token is {planted}")
        memories.add_turns("standup", [f"take {planted}"])
    assert Listening.heard
    assert planted not in "".join(Listening.heard)


def test_duplicates_are_recognized_by_their_redacted_text(memories: Memories) -> None:
    first, second = (memories.create(f"the token of stage is {secret()}") for _ in range(2))
    assert (first.stored, second.stored) == (True, False)
    assert second.redacted == ("github_token",)


def test_the_caller_can_keep_a_secret_in_one_call(memories: Memories) -> None:
    planted = secret()
    made = memories.create(f"the token is {planted} <private>x</private>", redact=False)
    assert made.memory is not None
    assert made.memory.content == f"the token is {planted} <private>x</private>"
    assert made.redacted == made.memory.redacted == ()


def test_each_version_lists_what_was_redacted(memories: Memories) -> None:
    made = memories.create(f"the token is {secret()}").memory
    assert made is not None
    assert made.redacted == ("github_token",)
    assert memories.update(made.id, tags={"a": "b"}).redacted == ("github_token",)
    assert memories.get(made.id).redacted == ("github_token",)
    assert memories.update(made.id, "there is none").redacted == ()


# --- agents


@pytest.fixture
def logged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[], str]]:
    """The text written to standard error, including the log."""
    logger = logging.getLogger("memories")
    before = logger.handlers[:], logger.level, logger.propagate
    monkeypatch.setenv("LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("EMBEDDER", "fake")
    yield lambda: capsys.readouterr().err
    logger.handlers[:], logger.level, logger.propagate = before


def test_agent_memory_removes_secrets(home: Path, logged: Callable[[], str]) -> None:
    planted = secret()
    with AgentMemory.start() as memory:
        assert memory.append(
            "standup", "user", f"I use {planted}", message_id=f"m {planted}", channel=planted
        )
        assert memory.append(f"standup {planted}", "user", "hello") is None
        assert memory.remember(
            f"the token is {planted}", "fact", 0.9,
            conversation_id="standup", entities=planted, tags=planted, window=f"w {planted}",
        )  # fmt: skip
        assert memory.gateway.count_window(f"w {planted}") == 1
        memory.prompt("standup", "which token?")
    assert held(home, planted) == []
    said = logged()
    assert "turn not stored" in said
    assert planted not in said


def test_queued_turns_contain_no_secret(home: Path, logged: Callable[[], str]) -> None:
    from memories.context.memories_backend import MemoriesBackend

    class Down(MemoriesBackend):
        def append(self, turn: Any) -> str:
            raise ConnectionError("down")

    planted = secret()
    with Memories() as memories, MemoryGateway("memories", backend=Down(memories)) as gateway:
        with pytest.raises(ConnectionError):
            gateway.append_history(
                "standup", "user", f"take {planted}", 0, "2026-01-02T03:04:05Z", f"m {planted}"
            )
        assert gateway.tail_history("standup", 5)
        assert gateway.queue.entries()
    assert planted not in logged()
    assert held(home, planted) == []


# --- the command


def run(*arguments: str, given: str = "") -> Answer:
    """Run the command in this process; return its status and the text on both streams."""
    with CliRunner().isolation(input=given, env={"EMBEDDER": "fake"}) as (out, err, _):
        code = front_door.run_by_server_or_here(list(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
        return Answer(code, out.getvalue().decode(), err.getvalue().decode())


def test_the_command_neither_stores_nor_prints_secrets(home: Path) -> None:
    planted = secret()
    lines = json.dumps(
        {
            "content": f"c {planted}",
            "speaker": planted,
            "message_id": f"{planted} 2",
            "tags": {"a": planted},
        }
    )
    done = [
        run(
            "create",
            f"the token is {planted}",
            "--key",
            planted,
            "--tag",
            f"a={planted}",
            "--agent",
            planted,
        ),
        run("create", "-", given=f"from a pipe: {planted}"),
        run("create", "x", "--tag", planted),
        run("create", "x", f"--{planted}"),
        run(
            "turns",
            "add",
            "standup",
            f"I use {planted}",
            "--speaker",
            planted,
            "--message-id",
            planted,
        ),
        run("turns", "add", "standup", "-", given=lines),
        run("turns", "add", planted, "hello"),
    ]
    assert [each.returncode for each in done] == [0, 0, 2, 2, 0, 0, 2]
    assert all(planted not in each.stdout + each.stderr for each in done)
    assert json.loads(done[0].stdout)["redacted"] == ["github_token"] * 4
    assert held(home, planted) == []


def test_an_import_stores_no_secret_and_recognizes_its_lines_later(
    home: Path, tmp_path: Path
) -> None:
    planted = secret()
    with Memories(f"sqlite:///{tmp_path}/other.db", embedder="fake") as other:
        other.create(f"the token is {planted}", key=planted, tags={"a": planted}, redact=False)
        other.add_turns(
            "standup",
            [TurnDraft(f"I use {planted}", speaker=planted, message_id=planted)],
            redact=False,
        )
    exported = tmp_path / "export.jsonl"
    run(
        "export",
        "--vectors",
        "--output",
        str(exported),
        "--store",
        f"sqlite:///{tmp_path}/other.db",
    )
    assert planted in exported.read_text()
    first, again, kept = (
        run("import", str(exported)),
        run("import", str(exported)),
        run("import", str(exported), "--no-redact"),
    )
    assert held(home, planted) == []
    assert json.loads(first.stdout)["imported"] == 2
    assert json.loads(first.stdout)["redacted"] == {"github_token": 6}
    assert (json.loads(again.stdout)["known"], json.loads(again.stdout)["imported"]) == (2, 0)
    assert planted not in first.stdout + first.stderr + again.stdout + again.stderr
    assert json.loads(kept.stdout)["conflict_count"] == 2


def test_no_redact_applies_to_one_command_only(home: Path) -> None:
    planted = secret()
    kept = json.loads(run("create", f"the token is {planted}", "--no-redact").stdout)
    assert planted in kept["content"]
    assert "redacted" not in kept
    taken = json.loads(run("update", kept["id"], f"it is {planted} now").stdout)
    assert planted not in taken["content"]
    assert taken["redacted"] == ["github_token"]


# --- MCP


def test_mcp_keeps_no_secret_and_cannot_switch_redaction_off(home: Path) -> None:
    from mcp.client import Client

    from mcp_answers import server

    planted = secret()

    async def talk() -> str:
        said = []
        with Memories(embedder="fake") as memories:
            async with Client(server(memories)) as client:
                made = await client.call_tool(
                    "create_memory",
                    {"content": f"token {planted}", "key": planted, "tags": {"a": planted}},
                )
                said.append(str(made))
                told = json.loads(made.content[0].text.split("\n")[0])
                assert told["redacted"] == ["github_token"] * 3
                changed = {"id": told["id"], "content": f"now {planted}", "tags": {planted: "b"}}
                said += [str(await client.call_tool("update_memory", changed))]
                refused = await client.call_tool(
                    "create_memory", {"content": planted, "redact": False}
                )
                said += [str(refused)]
        return "".join(said)

    said = asyncio.run(talk())
    assert planted not in said
    assert held(home, planted) == []


# --- settings


def test_the_user_can_switch_redaction_off_and_a_folder_cannot(home: Path, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("REDACT=off\n")
    told: list[str] = []
    assert load_config(folder=tmp_path, tell=told.append).redact == "secrets"
    assert "REDACT" in told[0]
    assert load_config(environment={"REDACT": "off", "MEMORY_HOME": str(home)}).redact == "off"
    home.mkdir(parents=True)
    home.chmod(0o700)
    for line in ('redact = "pii"\n', 'redaction = "pii"\n'):
        (home / "config.toml").write_text(line)
        (home / "config.toml").chmod(0o600)
        assert load_config().redact == "pii"


def test_user_rules_are_read_and_invalid_ones_refused(home: Path) -> None:
    home.mkdir(parents=True)
    home.chmod(0o700)
    file = home / "config.toml"
    rule = '[[redact]]\nname = "shop_key"\npattern = "SHOP-[0-9]{6}"\nkeywords = ["SHOP-"]\n'
    file.write_text(f'redaction = "secrets"\n{rule}')
    file.chmod(0o600)
    with Memories(embedder="none") as memories:
        made = memories.create("the key is SHOP-123456")
    assert made.redacted == ("shop_key",)
    file.write_text(rule.replace("{6}", "*"))
    with pytest.raises(
        ConfigError, match=r"\[\[redact\]\] number 1: pattern repeats without a limit"
    ):
        load_config()


# --- secrets stored earlier


def test_doctor_reports_stored_secrets_but_never_their_values(home: Path) -> None:
    planted = secret()
    with Memories(embedder="fake") as memories:
        made = memories.create(f"the token is {planted}", redact=False).memory
        assert made is not None
        memories.update(made.id, f"the other is {secret()}", redact=False)
        memories.create("nothing to see", tags={"a": planted}, redact=False)
        memories.add_turns("standup", ["hello", f"I use {planted}"], redact=False)
        memories.create("clean")
        queued = home / "memories.db.shared.turns.jsonl"
        queued.write_text(
            json.dumps({"conversation_id": "standup", "text": f"take {planted}"}) + "\n"
        )
        queued.chmod(0o600)
    done = run("doctor", "--secrets")
    found = [each for each in json.loads(done.stdout)["findings"] if "contains" in each["what"]]
    assert done.returncode == 1
    assert planted not in done.stdout + done.stderr
    assert all("github_token" in each["what"] for each in found)
    assert len(found) == 4
    assert "version 1, 2, in namespace shared" in next(
        each["what"] for each in found if made.id in each["what"]
    )
    for each in found:
        command = each["remedy"].partition("memory ")[2]
        if command:
            assert run(*command.split()).returncode == 0
    queued.unlink()
    again = run("doctor", "--secrets")
    assert not [each for each in json.loads(again.stdout)["findings"] if "contains" in each["what"]]
    assert held(home, planted) == []
