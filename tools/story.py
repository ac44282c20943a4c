"""Draw the story in the README: one agent stores a fact, and another one recalls it.

`python tools/story.py docs/story.svg` runs the story in a temporary home: it calls the real MCP
tool and the real hook, and each line below an agent's mark is a real answer. The picture is
animated if the viewer supports that; otherwise it shows all lines.
"""

import html
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

CSS = (
    "text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#d8dee9;white-space:pre}"
    ".h{fill:#88c0d0;font-weight:bold}.u{fill:#fff;font-weight:bold}.d{fill:#7b8794}.g{fill:#8fbf7f}"
    "@media (prefers-reduced-motion:no-preference){"
    "text{animation:appear .4s backwards}@keyframes appear{from{opacity:0}}}"
)
WIDTH, LINE, MARGIN = 800, 24, 22
OLD = "Deploys of the shop happen on Tuesdays at 09:30"
HOOK = ["hook", "user-prompt", "--host", "codex", "--seconds", "30"]
NEW = "Deploys of the shop happen on Thursdays at 09:30"
QUESTION = "When is the next deploy of the shop?"


class Line(NamedTuple):
    """A line of the picture: its style, its text, and the second at which it appears."""

    style: str
    text: str
    at: float


def create_memory(client: str, content: str, folder: Path) -> str:
    """Store a memory through `memory mcp`, as an MCP client of this name; return the answer."""
    messages = [
        {
            "id": 0,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": client, "version": "1"},
            },
        },
        {"method": "notifications/initialized"},
        {
            "id": 1,
            "method": "tools/call",
            "params": {"name": "create_memory", "arguments": {"content": content}},
        },
    ]
    lines = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages)
    answers = run(["mcp"], lines, folder).splitlines()
    return str(json.loads(answers[1])["result"]["content"][0]["text"])


def recall(prompt: str, folder: Path) -> list[str]:
    """Return the facts that the Codex hook adds to a prompt."""
    event = {
        "session_id": "story",
        "cwd": str(folder),
        "hook_event_name": "UserPromptSubmit",
        "prompt": prompt,
    }
    answer = json.loads(run(HOOK, json.dumps(event), folder))
    context = answer["hookSpecificOutput"]["additionalContext"]
    return [line for line in context.splitlines() if line.startswith("- ")]


def run(arguments: list[str], stdin: str, folder: Path) -> str:
    """Run the command of this environment in a folder with a home of its own."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MEMORY_")
    }
    environment |= {"HOME": str(folder), "MEMORY_HOME": str(folder / "memories")}
    environment["MEMORY_SERVE"] = "off"  # a server might write while the folder is removed
    command = [sys.executable, "-m", "memories", *arguments]
    process = subprocess.run(
        command,
        input=stdin,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout


def tell() -> list[Line]:
    """Run the story; return its lines."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        create_memory("claude-code", OLD, folder)
        answer = create_memory("claude-code", NEW, folder)
        facts = recall(QUESTION, folder)
    hint = json.loads(answer.splitlines()[0])["hint"]
    outcome = re.sub(r"it corrects \S+:.*", f"it corrects “{OLD}”", hint)
    lines = [
        Line("h", "One day, in Claude Code", 0.0),
        Line("u", "› We moved the shop's deploys to Thursdays, 09:30.", 0.8),
        Line("d", f"● create_memory  {NEW}", 2.0),
        Line("g", f"  ✓ {outcome}", 2.8),
        Line("", "", 2.8),
        Line("h", "The next day, in Codex", 4.2),
        Line("u", f"› {QUESTION}", 5.0),
        Line("d", "◆ added to the prompt by Memories, as quoted data:", 6.2),
    ]
    lines += [Line("g", f"  {fact}", 6.8) for fact in facts]
    last = "No key, no cloud: one file on your machine, shared by all your agents."
    return [*lines, Line("", "", 6.8), Line("d", last, 8.2)]


def draw(lines: list[Line]) -> str:
    """Return the picture."""
    rows = []
    for number, line in enumerate(lines):
        y = MARGIN + LINE * (number + 1) - 7
        rows.append(
            f'<text class="{line.style}" x="{MARGIN}" y="{y}" style="animation-delay:{line.at}s">'
            f"{html.escape(line.text)}</text>"
        )
    height = LINE * len(lines) + 2 * MARGIN
    text = html.escape(" ".join(line.text for line in lines if line.text))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}"><title>{text}</title><style>{CSS}</style>'
        f'<rect width="100%" height="100%" rx="8" fill="#1f2430"/>{"".join(rows)}</svg>\n'
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(tell()), encoding="utf-8")
