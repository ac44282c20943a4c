"""`memory context`: the context for a model, as a prompt and as JSON."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memories.context.context import estimate_tokens
from rendered import read

Command = Callable[..., Any]


@pytest.fixture
def filled(memory: Command) -> Command:
    """The command, with a conversation of twenty turns and two memories."""
    rows = [
        {"content": f"message {number}", "role": ("user", "assistant")[number % 2]}
        for number in range(20)
    ]
    assert memory("turns", "add", "c", "-", stdin="\n".join(map(json.dumps, rows))).code == 0
    memory("create", "Ann keeps bees", "--type", "fact", "--confidence", "0.9")
    memory("create", "Bob fears bees", "--type", "preference", "--confidence", "0.5")
    return memory


def test_a_context_contains_its_parts_and_a_prompt(filled: Command) -> None:
    shape = filled("context", "who keeps bees?", "--conversation", "c").json
    assert list(shape) == [
        *(
            "conversation_id",
            "history",
            "memories",
            "latest_message",
            "recalled",
            "metadata",
            "prompt",
        )
    ]
    assert [turn["text"] for turn in shape["history"]] == [
        f"message {number}" for number in range(4, 20)
    ]
    assert shape["history"][0]["role"] == "user"
    [known] = shape["memories"]
    assert (known["text"], known["type"], known["confidence"]) == ("Ann keeps bees", "fact", 0.9)
    assert 0 < known["similarity"] <= 1
    assert (shape["conversation_id"], shape["latest_message"]) == ("c", "who keeps bees?")
    boundary = shape["metadata"]["boundary"]
    known, *said = read(shape["prompt"], boundary)
    assert (known.head[:2], known.text) == ("- ", "Ann keeps bees")
    assert said[-1] == ("assistant", "message 19")
    assert shape["prompt"].endswith("\nwho keeps bees?")


def test_the_id_of_a_memory_that_was_stored_together_with_others_finds_it(memory: Command) -> None:
    texts = "Ann keeps bees\nThe port is 8080\nWe ship on Fridays"
    memory("create", "--lines", "-", stdin=texts)
    shown = memory("context", "who keeps bees?", "--format", "text").out
    [line] = [line for line in shown.splitlines() if "Ann keeps bees" in line]
    assert memory("get", line.split()[1]).json["content"] == "Ann keeps bees"


def test_the_text_output_of_a_context_is_its_prompt(filled: Command) -> None:
    answer = filled("context", "who keeps bees?", "--conversation", "c", "--format", "text")
    assert answer.out.startswith("=== stored data ")
    assert answer.out.endswith("; the message:\nwho keeps bees?\n")
    assert answer.err == ""


def test_the_command_keeps_a_context_within_its_budget(filled: Command) -> None:
    shape = filled("context", "who keeps bees?", "--conversation", "c", "--budget", "130").json
    assert estimate_tokens(shape["prompt"]) <= 130
    assert 0 < len(shape["history"]) < 16
    assert (len(shape["memories"]), shape["metadata"]["truncated"]) == (0, True)
    shape = filled("context", "who keeps bees?", "--conversation", "c", "--budget", "190").json
    assert estimate_tokens(shape["prompt"]) <= 190
    assert len(shape["memories"]) == 1  # it has a share


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("variable", "value", "counts"),
    [
        ("HISTORY_TAIL_N", "2", (2, 1)),
        ("MEMORY_CONFIDENCE_MIN", "0.4", (16, 2)),
        ("MEMORY_TOP_K", "1", (16, 1)),
        ("CONTEXT_TOKEN_BUDGET", "10", (0, 0)),
        ("CONTEXT_TOKEN_BUDGET", "none", (16, 1)),
    ],
)
def test_ac_conf_the_settings_change_the_contents_of_a_context(
    filled: Command, variable: str, value: str, counts: tuple[int, int]
) -> None:
    shape = filled(
        "context", "who keeps or fears bees?", "--conversation", "c", env={variable: value}
    ).json
    assert (len(shape["history"]), len(shape["memories"])) == counts


def test_the_message_can_come_from_standard_input(memory: Command) -> None:
    answer = memory("context", "-", "--conversation", "c", "--format", "text", stdin="what now?\n")
    assert (answer.code, answer.out) == (0, "what now?\n")


def test_a_prompt_on_a_terminal_has_no_control_characters(memory: Command) -> None:
    answer = memory("context", "red \x1b[31m \u202e", "--conversation", "c", "--format", "text")
    assert answer.out == "red \\u{1b}[31m \\u{202e}\n"


def test_each_namespace_has_its_own_context(memory: Command) -> None:
    memory("turns", "add", "c", "Bob's secret", "-n", "bob")
    memory("create", "Bob keeps bees", "-n", "bob")
    mine = memory("context", "who keeps bees?", "--conversation", "c", "-n", "ann").json
    assert (mine["history"], mine["memories"]) == ([], [])
    his = memory("context", "who keeps bees?", "--conversation", "c", "-n", "bob").json
    assert (len(his["history"]), len(his["memories"])) == (1, 1)


def test_with_a_broken_store_a_context_contains_the_message_and_a_note(
    memory: Command, tmp_path: Path
) -> None:
    store = tmp_path / "broken.db"
    store.write_bytes(b"this is no database, " * 500)
    answer = memory("context", "what now?", "--conversation", "c", "--store", f"sqlite:///{store}")
    assert answer.json["metadata"]["degraded"] is True
    assert answer.json["prompt"] == "what now?"
    parts = ("history", "memories", "recalled")
    assert [line.split(":")[0] for line in answer.err.splitlines()] == [
        f"{part} left out" for part in parts
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--conversation", " "), "conversation_id is empty"),
        (("--conversation", ""), "conversation_id is empty"),
        (("--conversation", "c", "--budget", "0"), "budget must be a whole number of tokens"),
        (("--conversation", "c", "--budget", "many"), "budget must be a whole number of tokens"),
        (("--conversation", "c", "--budget", "1e3"), "budget must be a whole number of tokens"),
    ],
)
def test_invalid_options_are_refused_in_one_sentence(
    memory: Command, options: tuple[str, ...], said: str
) -> None:
    answer = memory("context", "what now?", *options)
    assert answer.code == 2
    assert said in answer.error


def test_a_different_endpoint_can_be_given(memory: Command, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere.db")
    memory("turns", "add", "c", "hello", "--store", f"sqlite:///{elsewhere}")
    shape = memory(
        "context", "what now?", "--conversation", "c", env={"MCP_ENDPOINT": elsewhere}
    ).json
    assert [turn["text"] for turn in shape["history"]] == ["hello"]
    answer = memory(
        "context", "what now?", "--conversation", "c", env={"MCP_ENDPOINT": "stdio:chroma"}
    )
    assert answer.code == 2
    assert 'MCP_ENDPOINT: endpoint "stdio:chroma" is not supported yet' in answer.error
    named = ("--store", f"sqlite:///{elsewhere}")  # an option on the command line takes effect
    shape = memory(
        "context", "what now?", "--conversation", "c", *named, env={"MCP_ENDPOINT": "stdio:chroma"}
    ).json
    assert len(shape["history"]) == 1


def test_logs_are_written_only_if_a_level_is_set(process: Command) -> None:
    quiet = process("context", "what now?", "--conversation", "c")
    assert quiet.err == ""
    loud = process(
        "context", "what now?", "--conversation", "c", env={**os.environ, "LOG_LEVEL": "INFO"}
    )
    assert {json.loads(row)["event"] for row in loud.err.splitlines()} == {
        *("history read", "memories recalled", "history searched")
    }


@pytest.mark.parametrize("query", ["", " \n"])
def test_a_context_needs_a_message_or_a_conversation(filled: Command, query: str) -> None:
    refused = filled("context", query)
    assert (refused.code, "query is empty" in refused.error) == (2, True)
    assert filled("context", query, "--conversation", "c").json["history"]


def test_a_message_with_a_nul_character_still_recalls_memories(filled: Command) -> None:
    shape = filled("context", "-", stdin="who keeps\0bees?").json
    assert shape["metadata"]["degraded"] is False
    assert "Ann keeps bees" in [each["text"] for each in shape["memories"]]
