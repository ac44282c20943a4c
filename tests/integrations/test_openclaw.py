"""The OpenClaw plugin, called by Node as OpenClaw calls it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memories import Memories
from memories.integrations.openclaw.__main__ import install

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node is not installed")
MAX_FLUSHES = 50
OWN, GROUP = "agent:main:main", "agent:main:telegram:group:42"
CALL = """
import { pathToFileURL } from "node:url"
const [file, config, steps] = process.argv.slice(1)
const { default: plugin } = await import(pathToFileURL(file))
const handlers = {}, tools = {}, capabilities = []
plugin.register({
  pluginConfig: JSON.parse(config),
  on: (name, handler) => (handlers[name] = handler),
  registerTool: (make, { name }) => (tools[name] = make),
  registerMemoryCapability: (capability) => capabilities.push(capability),
})
const answers = []
for (const [name, event, context] of JSON.parse(steps)) {
  const tool = tools[name]?.(context)
  if (name in handlers) answers.push((await handlers[name](event, context)) ?? null)
  else answers.push(tool ? (await tool.execute("1", event)).content[0].text : null)
}
console.log(JSON.stringify(answers))
process.exit(0)
"""


class Plugin:
    """The installed plugin, and what OpenClaw passes to it."""

    def __init__(self, folder: Path, workspace: Path, config: dict[str, bool]) -> None:
        """Call a plugin with these options in sessions of a workspace."""
        self.folder, self.workspace, self.config = folder, workspace, config

    def context(self, key: str = OWN) -> dict[str, str]:
        """Return the context of a session with this key."""
        return {"sessionId": "s1", "sessionKey": key, "workspaceDir": str(self.workspace)}

    def call(self, *steps: tuple[str, dict[str, Any], dict[str, str]]) -> list[Any]:
        """Call handlers and tools by name in one process; return their answers."""
        assert NODE is not None
        arguments = [str(self.folder / "index.js"), json.dumps(self.config), json.dumps(steps)]
        done = subprocess.run(
            [NODE, "--input-type=module", "-e", CALL, *arguments],
            cwd=self.workspace,
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert not done.returncode, done.stderr
        answers: list[Any] = json.loads(done.stdout.splitlines()[-1])
        return answers

    def prompt(self, text: str, key: str = OWN) -> Any:
        """Return what the plugin adds to a session's first prompt."""
        return self.call(("before_prompt_build", {"prompt": text}, self.context(key)))[0]


@pytest.fixture
def plugin(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugin:
    """The plugin in an OpenClaw state folder."""
    monkeypatch.setenv("EMBEDDER", "minilm")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    return Plugin(install(tmp_path / "openclaw"), workspace, {})


def test_the_plugin_has_the_manifest_of_a_memory_with_its_tools(plugin: Plugin) -> None:
    manifest = json.loads((plugin.folder / "openclaw.plugin.json").read_text())
    package = json.loads((plugin.folder / "package.json").read_text())
    assert (manifest["id"], manifest["kind"], package["name"]) == ("memories", "memory", "memories")
    answers = plugin.call(
        *(
            (name, {"query": "tea", "content": "Tea is green"}, plugin.context())
            for name in manifest["contracts"]["tools"]
        )
    )
    assert None not in answers


def test_a_folder_named_memories_in_the_workspace_is_not_run(plugin: Plugin) -> None:
    (plugin.workspace / "memories").mkdir()
    code = "raise SystemExit('the code of another program')"
    (plugin.workspace / "memories" / "__init__.py").write_text(code)
    assert "persistent memory" in plugin.prompt("good morning")["appendSystemContext"]


def test_a_session_begins_with_the_block_which_names_the_tools(plugin: Plugin) -> None:
    with Memories() as memories:
        memories.create("The user prefers short answers", tags={"type": "preference"})
    block = plugin.prompt("good morning")["appendSystemContext"]
    assert "The user prefers short answers" in block
    assert "search_memories" in block


def test_a_prompt_recalls_the_memory_that_it_needs_once(plugin: Plugin) -> None:
    with Memories() as memories:
        assert plugin.prompt("good morning").get("prependContext") is None
        memories.create("Otto orders the badges for visitors")
    question = ("before_prompt_build", {"prompt": "who orders the badges?"}, plugin.context())
    first, again = plugin.call(question, question)
    shown = first["appendSystemContext"] + first.get("prependContext", "")
    assert "Otto orders the badges" in shown
    assert "prependContext" not in again


@pytest.mark.parametrize("key", [GROUP, "agent:main:subagent:7"])
def test_groups_and_subagents_get_no_memories(plugin: Plugin, key: str) -> None:
    with Memories() as memories:
        memories.create("The salary talk is on Friday")
    assert plugin.prompt("when is the salary talk?", key) is None
    assert plugin.call(("search_memories", {"query": "salary"}, plugin.context(key))) == [None]


def test_a_group_gets_memories_if_all_sessions_are_allowed(plugin: Plugin) -> None:
    with Memories() as memories:
        memories.create("The match is on Friday")
    plugin.config = {"everySession": True}
    assert "Friday" in plugin.prompt("when is the match?", GROUP)["appendSystemContext"]


def test_the_tools_store_and_find_memories(plugin: Plugin) -> None:
    created, hits, duplicate = plugin.call(
        ("create_memory", {"content": "--force is what Otto always says"}, plugin.context()),
        ("search_memories", {"query": "what does Otto say"}, plugin.context()),
        ("create_memory", {"content": "What Otto always says is --force"}, plugin.context()),
    )
    assert created
    assert "--force is what Otto always says" in hits
    assert duplicate


@pytest.mark.parametrize("captures", [False, True])
def test_messages_are_recorded_only_with_the_option(plugin: Plugin, captures: bool) -> None:
    plugin.config = {"capture": captures}
    answer = {"role": "assistant", "content": [{"type": "text", "text": "We ship on Tuesday."}]}
    plugin.call(
        ("before_prompt_build", {"prompt": "when do we ship?"}, plugin.context()),
        ("agent_end", {"messages": [answer], "success": True}, plugin.context()),
        ("session_end", {}, plugin.context()),
    )
    flush = [sys.executable, "-m", "memories", "capture", "flush"]
    for _ in range(MAX_FLUSHES):  # the flusher that the plugin started may still be running
        done = subprocess.run(flush, capture_output=True, timeout=60, check=True)
        if json.loads(done.stdout)["waiting"] == 0:
            break
    with Memories() as memories:
        texts = [
            turn.content
            for conversation in memories.conversations()
            for turn in memories.turns(conversation.id)
        ]
    assert texts == (["when do we ship?", "We ship on Tuesday."] if captures else [])
