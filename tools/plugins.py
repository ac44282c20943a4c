"""Brings the plugins and manifests up to date: the same version, repository and shared texts
everywhere.

python tools/plugins.py          # writes what is out of date
"""

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
CLAUDE, EXTENSIONS = ROOT / "plugins" / "memories", ROOT / "extensions"
# Files with the version and the repository's address, which come from pyproject.toml.
VERSIONED = (
    ".claude-plugin/marketplace.json",
    "server.json",
    "plugins/memories/.claude-plugin/plugin.json",
    "extensions/gemini/gemini-extension.json",
    "extensions/opencode/package.json",
    "extensions/claude-desktop/manifest.json",
    "extensions/claude-desktop/pyproject.toml",
)
ADDRESSED = (
    "README.md",
    "INSTALL_FOR_AGENTS.md",
    "llms.txt",
    "Dockerfile",
    "plugins/memories/README.md",
)
SHARED = (
    "hooks/memory-hook.sh",
    "skills/recall/SKILL.md",
)  # files of the Claude plugin that the Gemini extension contains too
_OPENCODE = """\
const COMMAND = ["memoriae"]
const CAPTURE = /^(1|true|yes|on)$/.test(process.env.MEMORY_CAPTURE ?? "")
const OPTIONS = CAPTURE ? ["--capture"] : []

"""


def wanted() -> dict[Path, str]:
    """Return the text that each generated file should have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    owner = project["urls"]["Repository"].split("/")[-2]
    texts = {}
    for name in VERSIONED:
        text = _with_owner((ROOT / name).read_text(), owner)
        text = re.sub(r'("version": )"[^"]*"', rf"\1{json.dumps(project['version'])}", text)
        text = re.sub(r'(?m)^version = "[^"]*"', f'version = "{project["version"]}"', text)
        texts[ROOT / name] = re.sub(r'memoriae==[^"]*', f"memoriae=={project['version']}", text)
    for name in ADDRESSED:
        texts[ROOT / name] = _with_owner((ROOT / name).read_text(), owner)
    for name in SHARED:
        texts[EXTENSIONS / "gemini" / name] = (CLAUDE / name).read_text()
    body = (ROOT / "src" / "memories" / "connect" / "opencode.js").read_text()
    texts[EXTENSIONS / "opencode" / "memories.js"] = _OPENCODE + body
    return texts


def _with_owner(text: str, owner: str) -> str:
    """Return a text in which every address of the repository names its owner."""
    text = re.sub(r"github\.com/[\w.-]+/memories\b", f"github.com/{owner}/memories", text)
    text = re.sub(r"io\.github\.[\w-]+/memories\b", f"io.github.{owner}/memories", text)
    return re.sub(r"marketplace add [\w.-]+/memories\b", f"marketplace add {owner}/memories", text)


if __name__ == "__main__":
    for file, text in wanted().items():
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            print(f"wrote {file.relative_to(ROOT)}")
