"""Twenty-five tasks for a memory: each is one command, in a separate process with a new store."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Answer, Command, Once

TEXT = "# Notes\n\n```python\ndef f(x):\n\treturn x\n```"


@pytest.fixture
def shop(memory: Command, once: Once) -> dict[str, str]:
    """The memories of two agents; return their ids by content."""

    def fill() -> dict[str, str]:
        made = {
            "Deploys happen on Tuesdays": (
                "--project",
                "shop",
                "--type",
                "fact",
                "--agent",
                "claude",
            ),
            "The database is PostgreSQL": (
                "--project",
                "shop",
                "--type",
                "fact",
                "--agent",
                "codex",
            ),
            "The site is static": ("--project", "web", "--type", "note"),
            "Invoices are in euros": ("--project", "bank", "--type", "note"),
            "Answer in short sentences": ("--global", "--type", "preference"),
            "The editor is Vim": ("--key", "user/editor"),
        }
        ids = {
            text: str(memory("create", text, *options).json["id"]) for text, options in made.items()
        }
        memory("turns", "add", "standup", "When do deploys happen?", "--speaker", "Ann")
        return ids

    kept: dict[str, str] = once(fill)
    return kept


Check = Callable[[Answer, Mapping[str, str], Command], bool]


def contents(answer: Answer) -> set[str]:
    """Return the contents in an answer."""
    return {found["content"] for found in answer.json["results"]}


def listed(memory: Command, *arguments: str) -> set[str]:
    """Return the contents that `memory list` shows."""
    return contents(memory("list", *arguments))


# Each task: the command, its standard input, and a check of the result.
TASKS: dict[str, tuple[list[str], str, Check]] = {
    "remember a text with its layout": (
        ["create", "-", "--tag", "source=notes"], TEXT, lambda answer, _, __: answer.json["content"] == TEXT,
    ),
    "recall within a project, and what holds everywhere": (
        ["search", "how do we answer, when do deploys happen?", "--project", "shop"], "",
        lambda answer, _, __: {"Deploys happen on Tuesdays", "Answer in short sentences"} <= contents(answer)
        and not {"The site is static", "Invoices are in euros"} & contents(answer),
    ),
    "fix a fact": (
        ["update", "{Deploys happen on Tuesdays}", "Deploys happen on Thursdays"], "",
        lambda _, __, memory: "Deploys happen on Thursdays" in listed(memory, "--project", "shop"),
    ),
    "fix by address": (
        ["create", "The editor is Helix", "--key", "user/editor"], "",
        lambda answer, ids, _: (answer.json["id"], answer.json["version"]) == (ids["The editor is Vim"], 2),
    ),
    "read by address": (
        ["get", "--key", "user/editor"], "", lambda answer, _, __: answer.json["content"] == "The editor is Vim",
    ),
    "change decay and confidence of what is there": (
        ["update", "{The site is static}", "--decay", "contextual", "--confidence", "0.8"], "",
        lambda answer, _, __: (answer.json["decay_policy"], answer.json["base_confidence"]) == ("contextual", 0.8),
    ),
    "undo an edit": (
        ["restore", "{edited}", "--version", "1"], "",
        lambda answer, _, __: (answer.json["content"], answer.json["version"]) == ("The site is static", 3),
    ),
    "undo a delete": (
        ["restore", "{deleted}"], "", lambda _, __, memory: "Invoices are in euros" in listed(memory),
    ),
    "list a project": (
        ["list", "--tag", "project=shop"], "",
        lambda answer, _, __: contents(answer) == {"Deploys happen on Tuesdays", "The database is PostgreSQL"},
    ),
    "list two projects, or all but one": (
        ["list", "--where", "project = shop or project = web"], "", lambda answer, _, __: answer.json["count"] == 3,
    ),
    "what changed last week, latest first": (
        ["list", "--since", "last week", "--sort", "updated"], "",
        lambda answer, _, __: answer.json["results"][0]["content"] == "The editor is Vim",
    ),
    "who wrote what": (
        ["list", "--where", "agent = codex and by = {user}", "--fields", "content,origin.by"], "",
        lambda answer, _, __: contents(answer) == {"The database is PostgreSQL"},
    ),
    "rename a tag": (
        ["tags", "rename", "type=note", "type=remark"], "",
        lambda _, __, memory: len(listed(memory, "--type", "remark")) == 2 and not listed(memory, "--type", "note"),
    ),
    "merge two projects": (
        ["tags", "merge", "project=web", "project=bank", "project=shop"], "",
        lambda _, __, memory: len(listed(memory, "--tag", "project=shop")) == 4,
    ),
    "delete a batch": (
        ["delete", "-"], "{The site is static}\n{Invoices are in euros}\n",
        lambda answer, _, memory: answer.json["count"] == 2 and not listed(memory, "--type", "note"),
    ),
    "export a project": (
        ["export", "--where", "project = shop", "--in", "memories"], "",
        lambda answer, _, __: {json.loads(line)["text"] for line in answer.out.splitlines()[1:-1]}
        == {"Deploys happen on Tuesdays", "The database is PostgreSQL"},
    ),
    "store a list of facts, one a line": (
        ["create", "--lines", "-", "--project", "shop"], "The port is 5433\nThe queue is Redis\n",
        lambda _, __, memory: len(listed(memory, "--tag", "project=shop")) == 4,
    ),
    "store objects with tags": (
        ["create", "--jsonl", "-"], '{"content": "The port is 5433", "tags": {"team": "blue"}, "key": "port"}\n',
        lambda _, __, memory: memory("get", "--key", "port").json["tags"] == {"team": "blue"},
    ),
    "get several by their ids": (
        ["get", "{The site is static}", "{Invoices are in euros}"], "",
        lambda answer, _, __: [found["content"] for found in answer.json["results"]]
        == ["The site is static", "Invoices are in euros"],
    ),
    "compact output": (
        ["search", "when do deploys happen?", "--limit", "1", "--format", "compact"], "",
        lambda answer, _, __: answer.out.endswith(" Deploys happen on Tuesdays\n") and len(answer.out) < 75,
    ),
    "count by a tag": (
        ["tags", "project"], "",
        lambda answer, _, __: {each["value"]: each["count"] for each in answer.json["values"]}
        == {"shop": 2, "web": 1, "bank": 1},
    ),
    "edit in an editor": (
        ["edit", "--key", "user/editor"], "",
        lambda _, __, memory: memory("get", "--key", "user/editor").json["content"] == "The editor is Emacs",
    ),
    "what two versions differ in": (
        ["history", "{edited}", "--diff", "--format", "text"], "",
        lambda answer, _, __: "│ The site is [-static-]{+dynamic+}\n" in answer.out,
    ),
    "see duplicates that are there": (
        ["duplicates"], "",
        lambda answer, ids, __: [found["duplicates"][0]["id"] for found in answer.json["results"]]
        == [ids["The database is PostgreSQL"]],
    ),
    "context for a prompt": (
        ["context", "When do deploys happen?", "--conversation", "standup"], "",
        lambda answer, _, __: "Deploys happen on Tuesdays" in answer.json["prompt"],
    ),
}  # fmt: skip


def test_there_are_twenty_five_tasks() -> None:
    assert len(TASKS) == 25


@pytest.mark.parametrize("task", TASKS)
def test_each_task_is_one_command(
    task: str,
    shop: dict[str, str],
    memory: Command,
    process: Command,
    terminal: Command,
    tmp_path: Path,
) -> None:
    arguments, stdin, check = TASKS[task]
    names: dict[str, Any] = {
        **shop,
        "user": memory("list", "--limit", "1").json["results"][0]["origin"]["by"],
    }
    text = " ".join((*arguments, stdin))
    if "{edited}" in text:
        names["edited"] = shop["The site is static"]
        memory("update", names["edited"], "The site is dynamic")
    if "{deleted}" in text:
        names["deleted"] = shop["Invoices are in euros"]
        memory("delete", names["deleted"])
    if arguments == ["duplicates"]:
        memory("create", "The database is PostgreSQL.", "--project", "shop", "--force")
    filled = [
        re.sub(r"\{([^}]+)\}", lambda found: str(names[found[1]]), argument)
        for argument in arguments
    ]
    given = re.sub(r"^\{([^}]+)\}$", lambda found: str(names[found[1]]), stdin, flags=re.M)
    if arguments[0] == "edit":
        script = tmp_path / "editor"
        script.write_text('#!/bin/sh\nsed -i s/Vim/Emacs/ "$1"\n')
        script.chmod(0o700)
        answer = terminal(*filled, env={"VISUAL": str(script)})
    else:
        answer = process(*filled, stdin=given.encode())
    assert answer.code == 0, answer.err
    assert check(answer, shop, memory)


@pytest.mark.thorough
@pytest.mark.usefixtures("shop")
def test_an_answer_can_be_piped_through_another_program() -> None:
    """Like `memory list | jq -r '.results[].id' | memory get -`."""
    program = "import json, sys; print('\\n'.join(found['id'] for found in json.load(sys.stdin)['results']))"
    command = f"'{sys.executable}' -m memories"
    piped = f"{command} list --limit 3 | '{sys.executable}' -c \"{program}\" | {command} get -"
    done = subprocess.run(
        ["sh", "-c", piped], capture_output=True, text=True, timeout=300, env={**os.environ}
    )
    assert json.loads(done.stdout)["count"] == 3
