"""`memory namespaces` and `memory projects`, and the project of a repository's records."""

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest

from memories import Memories, StoreBusy

Command = Callable[..., Any]
ACME = "example.com/acme/shop"


def create_repository(folder: Path, remote: str = f"https://{ACME}.git") -> Path:
    """Create a Git repository with a commit."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@b.c",
        "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@b.c",
    }  # fmt: skip
    commands = [
        "init -q -b main",
        f"commit -q --allow-empty -m {uuid4()}",
        f"remote add origin {remote}",
    ]
    for command in commands:
        subprocess.run(
            ["git", *command.split()], cwd=folder, env=environment, check=True, timeout=60
        )
    return folder


@pytest.fixture
def shop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a repository, with project detection on, as by default."""
    monkeypatch.delenv("PROJECT_DETECTION")
    return create_repository(folder)


def test_memories_written_in_a_repository_have_its_project_and_branch(
    memory: Command, shop: Path
) -> None:
    made = memory("create", "Deploys happen on Tuesdays").json
    assert (made["project"], made["tags"], made["origin"]["branch"]) == (
        ACME,
        {"project": ACME},
        "main",
    )
    turn = memory("turns", "add", "standup", "we ship").json
    assert (turn["tags"], turn["origin"]["branch"]) == ({"project": ACME}, "main")
    lines = memory("create", "--lines", "-", stdin="one thing\nanother matter\n")
    assert lines.code == 0
    assert {each["project"] for each in memory("list").json["results"]} == {ACME}


def test_outside_a_repository_no_project_is_added(
    memory: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROJECT_DETECTION")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(folder.parent))
    made = memory("create", "Deploys happen on Tuesdays").json
    assert (made["project"], made["tags"], "branch" in made["origin"]) == ("", {}, False)


@pytest.mark.parametrize(
    ("options", "env", "project"),
    [
        (["--project", "mine"], {}, "mine"),
        (["--tag", "project=mine"], {}, "mine"),
        (["--project", "  "], {}, ACME),
        (["--project", "."], {}, ACME),
        (["--global"], {}, ""),
        ([], {"PROJECT_DETECTION": "false"}, ""),
    ],
)
def test_an_option_and_a_setting_override_the_repository(
    memory: Command, shop: Path, options: list[str], env: dict[str, str], project: str
) -> None:
    assert (
        memory("create", "Deploys happen on Tuesdays", *options, env=env).json["project"] == project
    )


def test_a_subfolder_and_a_clone_have_the_project_of_the_repository(
    memory: Command, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory("create", "Deploys happen on Tuesdays")
    monkeypatch.chdir(create_repository(tmp_path / "clone", f"git@{ACME.replace('/', ':', 1)}"))
    again = memory("create", "Deploys happen on Tuesdays").json
    assert (again["stored"], again["project"]) == (False, ACME)
    assert memory("search", "deploys", "--project", ".").json["count"] == 1


def test_without_a_filter_memories_of_other_projects_are_found(
    memory: Command, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory("create", "Deploys of the shop happen on Tuesdays")
    monkeypatch.chdir(create_repository(tmp_path / "till", "https://example.com/acme/till"))
    memory("create", "Deploys of the till happen on Fridays")
    assert memory("search", "when do deploys happen").json["count"] == 2
    assert memory("list").json["count"] == 2
    [only] = memory("list", "--project", ".").json["results"]
    assert only["project"] == "example.com/acme/till"


def test_a_dot_outside_a_repository_is_refused(
    memory: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(folder.parent))
    refusal = "\".\" means the working folder's project, and there is none; give the project's name"
    answer = memory("list", "--project", ".")
    assert (answer.code, answer.error) == (2, refusal)
    line = json.dumps({"content": "Tea is at four", "tags": {"project": "."}})
    answer = memory("create", "--jsonl", "-", stdin=line)
    assert (answer.code, json.loads(answer.out.splitlines()[0])["error"]) == (1, refusal)
    assert memory("list").json["count"] == 0


def test_a_key_in_the_project_takes_precedence_over_one_outside_projects(
    memory: Command, shop: Path
) -> None:
    outside = {"PROJECT_DETECTION": "false"}
    everywhere = memory("create", "Ann uses vim", "--key", "user/editor", env=outside).json["id"]
    changed = memory("create", "Ann uses emacs", "--key", "user/editor").json
    assert (changed["id"], changed["version"], changed["project"]) == (everywhere, 2, "")
    own = memory("create", "The database is Postgres", "--key", "db/engine").json
    assert own["project"] == ACME
    assert memory("get", "--key", "db/engine").json["id"] == own["id"]
    assert memory("get", "--key", "user/editor").json["id"] == everywhere
    assert memory("create", "The database is MySQL", "--key", "db/engine").json["id"] == own["id"]
    assert memory("get", "--key", "db/engine", env=outside).code == 1


def test_another_branch_creates_neither_a_version_nor_a_memory(memory: Command, shop: Path) -> None:
    first = memory("create", "Deploys happen on Tuesdays").json
    subprocess.run(["git", "checkout", "-q", "-b", "feature"], cwd=shop, check=True, timeout=60)
    again = memory("create", "Deploys happen on Tuesdays").json
    assert (again["id"], again["stored"], again["version"], again.get("merged")) == (
        first["id"],
        False,
        1,
        None,
    )
    assert (
        memory("update", first["id"], "Deploys happen on Fridays").json["origin"]["branch"]
        == "feature"
    )


def test_an_export_keeps_the_branch(memory: Command, shop: Path, tmp_path: Path) -> None:
    memory("create", "Deploys happen on Tuesdays")
    memory("export", "--output", "all.jsonl")
    other = f"sqlite:///{tmp_path}/other/m.db"
    memory("import", "all.jsonl", "--store", other)
    assert memory("list", "--store", other).json["results"][0]["origin"]["branch"] == "main"


def test_a_project_is_found_by_its_alias(memory: Command, shop: Path) -> None:
    memory("create", "Deploys happen on Tuesdays")
    memory("create", "Lunch is at noon every day", "--project", "till")
    assert memory("projects", "alias", ACME, "till").json == {"alias": ACME, "project": "till"}
    assert memory("create", "Tea is served at four").json["project"] == "till"
    assert memory("list", "--tag", f"project={ACME}").json["count"] == 1
    for name in ("till", ACME, "."):
        assert memory("list", "--project", name).json["count"] == 3
    rows = {row["name"]: row for row in memory("projects").json["projects"]}
    assert rows["till"]["aliases"] == [ACME] and rows["till"]["memories"] == 2
    assert rows["till"]["folders"] == [str(shop)]
    assert memory("projects", "unalias", ACME).json == {"alias": ACME, "project": ACME}
    assert memory("list", "--project", "till").json["count"] == 2


def test_an_alias_comes_before_the_end_of_a_name_but_tags_ignore_it(
    memory: Command, shop: Path
) -> None:
    memory("projects", "alias", "shop", "till")
    for option, project in (("--project=shop", "till"), ("--tag=project=shop", ACME)):
        made = memory("create", f"Deploys happen {option}", option, "--force").json
        assert made["project"] == project
        changed = memory("update", made["id"], "Deploys stopped", option).json
        assert changed["project"] == project
    assert memory("list", "--project", "shop").json["results"][0]["project"] == "till"
    assert memory("list", "--tag", "project=shop").json["results"][0]["project"] == ACME


def test_the_last_part_of_the_current_projects_name_means_that_project(
    memory: Command, shop: Path
) -> None:
    for option in (
        "--project=shop",
        "--tag=project=shop",
        "--tag=project=acme/shop",
        "--project=.",
    ):
        made = memory("create", "Deploys happen on Tuesdays", option, "--force").json
        assert made["project"] == ACME, option
    assert memory("list", "--tag", "project=shop").json["count"] == 4
    assert memory("search", "deploys", "--tag", "project=shop").json["count"] == 4
    down = {"MEMORY_STORE": "postgresql://u@127.0.0.1:1/db"}
    offline = memory("search", "deploys", "--tag", "project=shop", env=down)
    assert (offline.code, offline.json["tier"], offline.json["count"]) == (4, "hot", 4)
    made = memory("create", "Deploys happen on Mondays", "--tag", "project=.", "--force").json
    assert made["project"] == ACME
    line = json.dumps({"content": "Tea is at four", "tags": {"project": "."}})
    assert memory("create", "--jsonl", "-", stdin=line).code == 0
    with_prefix = memory("create", "Deploys happen on Fridays", "--project", "op", "--force").json
    assert with_prefix["project"] == "op"
    assert memory("list", "--tag", "project=.").json["count"] == 6
    memory("tags", "set", "project=.", "--where", "project = op")
    assert memory("list", "--tag", "project=.").json["count"] == 7
    memory("turns", "add", "standup", "We ship")
    assert memory("turns", "update", "standup", "--tag", "project=.").json["tags"] == {
        "project": ACME
    }
    assert memory("turns", "list", "--tag", "project=.").json["count"] == 1


def test_changes_use_the_same_names_for_the_current_project_as_create(
    memory: Command, stored: Callable[..., str], shop: Path
) -> None:
    made = stored("Deploys happen on Tuesdays", "--project", "till")
    memory("turns", "add", "standup", "We ship")
    for option in ("--project=shop", "--tag=project=acme/shop"):
        assert memory("update", made, option).json["project"] == ACME, option
        memory("update", made, "--project", "till")
    memory("tags", "set", "project=shop", "--where", "project = till")
    assert memory("tags", "project").json["values"] == [{"value": ACME, "count": 1}]
    conversation = memory("turns", "update", "standup", "--tag", "project=shop").json
    assert conversation["tags"] == {"project": ACME}
    for name in ("shop", "."):
        turn = {"content": f"Deploys in {name} are slow", "tags": {"project": name}}
        memory("turns", "add", "retro", "-", stdin=json.dumps(turn))
    tags = [turn["tags"] for turn in memory("turns", "show", "retro").json["results"]]
    assert tags == [{"project": ACME}, {"project": ACME}]


def test_a_project_with_exactly_the_given_name_takes_precedence(
    memory: Command, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as outside:
        outside.setenv("PROJECT_DETECTION", "false")
        memory("create", "Deploys happen on Tuesdays", "--project", "shop")
    assert memory("create", "Lunch is at noon", "--project", "shop").json["project"] == "shop"


def test_the_last_part_of_a_projects_name_is_enough_unless_it_is_ambiguous(
    memory: Command, stored: Callable[..., str]
) -> None:
    in_shop = stored("Deploys happen on Tuesdays", "--project", ACME, "--key", "deploy/day")
    stored("The till is closed on Mondays", "--project", "example.org/till", "--type", "shop")
    turn = {"content": "deploys are slow", "tags": {"project": ACME}}
    memory("turns", "add", "standup", "-", stdin=json.dumps(turn))
    for name in ("shop", "acme/shop", ACME):
        assert memory("list", "--project", name).json["results"][0]["id"] == in_shop
        assert memory("search", "deploys", "--project", name, "--in", "all").json["count"] == 2
        assert memory("get", "--key", "deploy/day", "--project", name).json["id"] == in_shop
        hot = memory("search", "deploys happen on Tuesdays", "--project", name, "--tier", "hot")
        assert hot.json["count"] == 1
    stored("Deploys happen by hand", "--project", "example.org/shop", "-n", "bob")
    assert memory("list", "--project", "shop").json["count"] == 1
    stored("Deploys are announced", "--project", "example.org/shop")
    refused = memory("search", "deploys", "--project", "shop")
    assert (refused.code, refused.error) == (
        2,
        f'"shop" may mean {ACME} or example.org/shop; give the full name',
    )
    stored("Deploys need no project", "--project", "shop")
    assert memory("list", "--project", "shop").json["count"] == 1


def test_the_last_part_of_a_projects_name_is_enough_for_a_prompt(
    memory: Command, stored: Callable[..., str]
) -> None:
    stored("Deploys happen on Tuesdays", "--project", ACME)
    stored("The till is closed on Mondays", "--project", "example.org/till")
    for name in ("shop", "acme/shop", ACME):
        block = memory("prompt", "--project", name).json
        assert "Deploys happen" in block["prompt"]
        assert (block["left_out"], "The till" in block["prompt"]) == ({"other_project": 1}, False)
    assert "Deploys happen" not in memory("prompt", "--project", "op").json["prompt"]
    stored("Deploys are announced", "--project", "example.org/shop")
    refused = memory("prompt", "--project", "shop")
    said = f'"shop" may mean {ACME} or example.org/shop; give the full name'
    assert (refused.code, refused.error) == (2, said)


def test_merging_projects_changes_tags_and_can_be_undone(memory: Command, shop: Path) -> None:
    made = memory("create", "Deploys happen on Tuesdays", "--key", "deploy/day").json["id"]
    assert memory("projects", "merge", ACME, "shop", "--dry-run").json["counts"] == {"tag": 1}
    assert memory("projects").json["aliases"] == {}
    answer = memory("projects", "merge", ACME, "shop")
    done, said = answer.json, answer.err.replace("\n", " ")
    assert f"{ACME} is now another name for shop; to remove that name, run: " in said
    assert memory("get", made).json["project"] == "shop"
    assert memory("get", "--key", "deploy/day").json["id"] == made
    assert done["undo"].startswith("memory rollback --to ")
    assert memory("history", made).json["count"] == 2
    memory(*shlex.split(done["undo"])[1:])
    assert memory("get", made).json["project"] == ACME
    assert memory("projects", "unalias", ACME).code == 0
    unused = memory("projects", "merge", "till", "shop", "--format", "text")
    assert unused.out == "Nothing matches.\n"
    assert "till is now another name for shop; " in unused.err.replace("\n", " ")


def test_an_error_in_a_merge_says_that_the_alias_was_added(
    memory: Command, stored: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored("Deploys happen on Tuesdays", "--project", "web")
    assert memory("projects", "merge", "web", "shop", "--show", "5000").code == 2
    assert memory("projects").json["aliases"] == {}
    problem = StoreBusy("another program kept it busy; nothing was written; try again")
    monkeypatch.setattr(Memories, "tag_where", Mock(side_effect=problem))
    assert memory("projects", "merge", "web", "shop").error == (
        "web is now another name for shop, but another program kept it busy; try again; running "
        "the command again does the rest"
    )
    assert memory("projects").json["aliases"] == {"web": "shop"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["alias", "one"], "projects alias takes 2 names, not 1"),
        (["alias", "one", "one"], '"one" is already a name of "one"; give two different projects'),
        (["unalias", "one"], '"one" is not an alias; memory projects lists the aliases'),
        (["paint"], 'projects has no action "paint"; use list, show, alias, unalias, merge'),
        (["list", "--dry-run"], "projects list takes neither --dry-run nor --show; omit them"),
        (
            ["alias", "a\nb", "c"],
            'value of tag "project" contains a line break or another control character',
        ),
        (["show", "/"], "/ is not in one of your git repositories, so it has no project"),
    ],
)
def test_invalid_project_commands_get_a_one_sentence_error(
    memory: Command, words: list[str], said: str
) -> None:
    assert memory("projects", *words).error == said
    assert memory("projects").json == {"projects": [], "aliases": {}, "count": 0}


def test_aliases_cannot_be_circular(memory: Command) -> None:
    memory("projects", "alias", "a", "b")
    assert (
        memory("projects", "alias", "b", "a").error
        == '"a" is already a name of "b"; give two different projects'
    )


def test_show_prints_the_project_of_a_folder(memory: Command, shop: Path, home: Path) -> None:
    found = memory("projects", "show").json
    assert (found["name"], found["root"], found["branch"], found["worktree"]) == (
        ACME,
        str(shop),
        "main",
        None,
    )
    assert not home.exists()


def test_namespaces_without_a_subcommand_lists_them(
    memory: Command, stored: Callable[..., str]
) -> None:
    stored("one", "-n", "bob")
    expected = {
        "namespaces": [
            {
                "name": "bob",
                "memory_count": 1,
                "pending_count": 0,
                "deleted_count": 0,
                "turn_count": 0,
                "read": False,
            }
        ],
        "count": 1,
    }
    assert memory("namespaces").json == memory("namespaces", "list").json == expected
    assert memory("namespaces", "--format", "text").out == "bob        1 memory          0 turns\n"


def test_a_namespace_is_shown_renamed_merged_and_deleted(
    memory: Command, stored: Callable[..., str]
) -> None:
    made = stored("bob likes tea", "-n", "bob", "--key", "user/drink")
    stored("ann likes milk", "-n", "ann")
    shown = memory("namespaces", "show", "bob").json
    assert (shown["memory_count"], shown["key_count"], shown["text_bytes"]) == (1, 1, 13)
    assert memory("namespaces", "rename", "bob", "rob").json["into"] == "rob"
    assert memory("get", made, "-n", "rob").json["content"] == "bob likes tea"
    assert memory("namespaces", "merge", "rob", "ann", "--dry-run").json["dry_run"] is True
    assert memory("namespaces", "merge", "rob", "ann").code == 0
    assert [each["name"] for each in memory("namespaces").json["namespaces"]] == ["ann"]
    answer = memory("namespaces", "delete", "ann")
    assert (answer.code, answer.error) == (
        2,
        "this can't be undone, but there is no terminal to ask on; add --yes to confirm",
    )
    assert memory("namespaces", "delete", "ann", "--dry-run").json["memories"] == 2
    assert memory("namespaces", "delete", "ann", "--yes").json["memories"] == 2
    assert memory("namespaces").json == {"namespaces": [], "count": 0}


@pytest.mark.parametrize("action", ["rename", "merge"])
def test_rejected_scratchpad_edits_move_with_their_namespace(
    memory: Command, stored: Callable[..., str], home: Path, action: str
) -> None:
    stored("bob likes tea", "-n", "bob")
    memory("scratchpad", "show", "-n", "bob")
    with (home / "bob" / "scratchpad.yaml").open("a") as stream:
        stream.write("bad: [yaml")
    assert "scratchpad.edited.yaml" in memory("list", "-n", "bob").err
    assert memory("namespaces", action, "bob", "rob").json["versions"] == 1
    assert "bad: [yaml" in (home / "rob" / "scratchpad.edited.yaml").read_text()
    assert not (home / "bob").exists()
    assert [row["name"] for row in memory("namespaces").json["namespaces"]] == ["rob"]


def test_moved_memories_can_be_moved_back_with_the_command_in_the_answer(
    memory: Command, stored: Callable[..., str]
) -> None:
    first = stored("ann likes milk", "--key", "user/drink")
    second = stored("ann likes tea too")
    moved = memory("move", "-", "--to", "ann", stdin=f"{first}\n{second}\n").json
    assert moved == {
        "ids": [first, second], "namespace": "shared", "into": "ann", "versions": 2, "count": 2,
        "undo": f"memory move {first} {second} -n ann --to shared",
    }  # fmt: skip
    assert memory("list").json["count"] == 0
    assert memory("get", "--key", "user/drink", "-n", "ann").json["id"] == first
    assert memory(*shlex.split(moved["undo"])[1:]).code == 0
    assert memory("list").json["count"] == 2
    text = memory("move", "--key", "user/drink", "--to", "ann", "--format", "text").out
    assert text.startswith("1 memory is now in ann.\nTo undo it: memory move ")
    refused = memory("move", second, first, "--to", "ann")
    assert (refused.code, refused.error) == (1, "Memory not found")
    assert memory("list").json["count"] == 1
    assert memory("move", second).error.startswith("Missing option '--to'")


@pytest.mark.first(4)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show"], "namespaces show takes 1 name, not 0"),
        (["rename", "a"], "namespaces rename takes 2 names, not 1"),
        (["show", "nobody"], 'there is no namespace "nobody"; run memory namespaces to list them'),
        (
            ["delete", "nobody", "--yes"],
            'there is no namespace "nobody"; run memory namespaces to list them',
        ),
        (
            ["delete", "all", "--yes"],
            'namespace "all" would be mistaken for every namespace; choose another name',
        ),
        (["rename", "bob", "bob"], 'the namespace is already called "bob"; give a different name'),
        (
            ["rename", "bob", "../x"],
            'namespace "../x" is not usable; use a-z 0-9 . _ - and begin with a letter or digit',
        ),
        (
            ["merge", "nobody", "bob"],
            'there is no namespace "nobody"; run memory namespaces to list them',
        ),
        (
            ["paint", "bob"],
            'namespaces has no action "paint"; use list, show, rename, merge, delete',
        ),
        (["show", "bob", "--yes"], "namespaces show changes nothing; omit --yes"),
    ],
)
def test_invalid_namespace_commands_get_a_one_sentence_error_and_change_nothing(
    memory: Command, stored: Callable[..., str], words: list[str], said: str
) -> None:
    stored("bob likes tea", "-n", "bob")
    before = memory("namespaces").out
    assert memory("namespaces", *words).error == said
    assert memory("namespaces").out == before


def test_deleting_a_namespace_on_a_terminal_requires_its_name(
    memory: Command, stored: Callable[..., str], terminal: Command
) -> None:
    stored("bob likes tea", "-n", "bob")
    for typed in ("y\n", "Bob\n", "\n"):
        answer = terminal("namespaces", "delete", "bob", typed=typed)
        assert (answer.code, "Type its name: " in answer.out) == (1, True)
        assert "Nothing was erased." in answer.out
    assert memory("namespaces").json["count"] == 1
    assert terminal("namespaces", "delete", "bob", typed="bob\n").code == 0
    assert memory("namespaces").json["count"] == 0


def test_a_whole_identity_can_be_moved_to_another_home(
    memory: Command, stored: Callable[..., str], tmp_path: Path
) -> None:
    made = stored("bob likes tea", "-n", "bob", "--key", "user/drink")
    memory("update", made, "bob likes green tea", "-n", "bob")
    held = memory("delete", stored("bob has a cat", "-n", "bob"), "-n", "bob").json["id"]
    memory("turns", "add", "standup", "we ship", "-n", "bob", "--message-id", "1")
    memory("turns", "update", "standup", "--title", "Release", "-n", "bob")
    stored("for everybody")
    memory("export", "-n", "bob", "--no-shared", "--output", "bob.jsonl")
    assert "for everybody" not in Path("bob.jsonl").read_text()
    other = f"sqlite:///{tmp_path}/other/m.db"
    done = memory("import", "bob.jsonl", "-n", "bob", "--store", other).json
    assert (done["trusted"], done["pending"], done["conflict_count"]) == (True, 0, 0)
    memory("export", "-n", "bob", "--no-shared", "--output", "again.jsonl", "--store", other)
    assert Path("again.jsonl").read_bytes() == Path("bob.jsonl").read_bytes()
    assert memory("restore", held, "-n", "bob", "--store", other).json["content"] == "bob has a cat"
    assert (
        memory("turns", "list", "-n", "bob", "--store", other).json["results"][0]["title"]
        == "Release"
    )


def test_an_identity_is_imported_under_another_name(
    memory: Command, stored: Callable[..., str], tmp_path: Path
) -> None:
    made = stored("bob likes tea", "-n", "bob", "--key", "user/drink")
    memory("turns", "add", "standup", "we ship", "-n", "bob")
    memory("export", "-n", "bob", "--no-shared", "--output", "bob.jsonl")
    other = f"sqlite:///{tmp_path}/other/m.db"
    done = memory("import", "bob.jsonl", "--as", "rob", "--store", other).json
    assert done["imported"] == 2 and done["trusted"] is True
    assert [each["name"] for each in memory("namespaces", "--store", other).json["namespaces"]] == [
        "rob"
    ]
    lines = [json.loads(line) for line in Path("bob.jsonl").read_text().splitlines()[1:-1]]
    memory("export", "-n", "rob", "--no-shared", "--output", "rob.jsonl", "--store", other)
    renamed = [json.loads(line) for line in Path("rob.jsonl").read_text().splitlines()[1:-1]]
    assert renamed == [{**line, "namespace": "rob"} for line in lines]
    assert memory("get", made, "-n", "rob", "--store", other).json["content"] == "bob likes tea"


def test_a_file_of_two_namespaces_cannot_be_imported_under_one_name(
    memory: Command, stored: Callable[..., str]
) -> None:
    stored("bob likes tea", "-n", "bob")
    stored("for everybody")
    memory("export", "-n", "bob", "--output", "both.jsonl")
    answer = memory("import", "both.jsonl", "--as", "rob")
    assert answer.code == 2 and "--as accepts only an export of a single namespace" in answer.error


def test_an_import_respects_the_quota(
    memory: Command, stored: Callable[..., str], tmp_path: Path
) -> None:
    for number in range(3):
        stored(f"bob knows fact {number}", "-n", "bob")
    memory("export", "-n", "bob", "--no-shared", "--output", "bob.jsonl")
    other = f"sqlite:///{tmp_path}/other/m.db"
    answer = memory(
        "import", "bob.jsonl", "-n", "bob", "--store", other, env={"NAMESPACE_QUOTA": "memories=2"}
    )
    assert answer.code == 1 and "its quota is 2" in answer.error
    assert memory("list", "-n", "bob", "--store", other).json["count"] <= 2
