"""Brings the plugins up to date: one version everywhere, and one text of what several of them
share.

python tools/plugins.py
"""

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
CLAUDE, EXTENSIONS = ROOT / "plugins" / "memories", ROOT / "extensions"
VERSIONED = (
    ".claude-plugin/marketplace.json",
    "plugins/memories/.claude-plugin/plugin.json",
    "extensions/gemini/gemini-extension.json",
    "extensions/opencode/package.json",
)
SHARED = (
    "hooks/memory-hook.sh",
    "skills/recall/SKILL.md",
)  # of the Claude plugin, in the Gemini extension too
_OPENCODE = """\
const COMMAND = ["memoriae"]
const CAPTURE = /^(1|true|yes|on)$/.test(process.env.MEMORY_CAPTURE ?? "")
const OPTIONS = CAPTURE ? ["--capture"] : []

"""


def wanted() -> dict[Path, str]:
    """Return what each file that is made here should hold."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    texts = {}
    for name in VERSIONED:
        text = (ROOT / name).read_text()
        texts[ROOT / name] = re.sub(r'("version": )"[^"]*"', rf"\1{json.dumps(version)}", text)
    for name in SHARED:
        texts[EXTENSIONS / "gemini" / name] = (CLAUDE / name).read_text()
    body = (ROOT / "src" / "memories" / "connect" / "opencode.js").read_text()
    texts[EXTENSIONS / "opencode" / "memories.js"] = _OPENCODE + body
    return texts


if __name__ == "__main__":
    for file, text in wanted().items():
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            print(f"wrote {file.relative_to(ROOT)}")
