"""`python -m memories.integrations.openclaw`: writes the plugin into OpenClaw's home."""

import json
import os
import sys
from pathlib import Path

NAME = "memories"
FILES = ("index.js", "openclaw.plugin.json", "package.json")
_COMMAND = 'const COMMAND = ["memoriae"]'


def install(state: Path) -> Path:
    """Write the plugin to a folder in OpenClaw's state folder; return the plugin's folder.

    The plugin runs the command that is installed in this environment.
    """
    folder = state / "local-plugins" / NAME
    folder.mkdir(parents=True, exist_ok=True)
    # -P keeps Python from importing a folder `memories` where OpenClaw runs.
    command = f"const COMMAND = {json.dumps([sys.executable, '-P', '-m', 'memories'])}"
    for name in FILES:
        text = (Path(__file__).parent / name).read_text(encoding="utf-8")
        (folder / name).write_text(text.replace(_COMMAND, command), encoding="utf-8")
    return folder


def main() -> None:
    """Write the plugin, and say what to do next."""
    state = Path(os.environ.get("OPENCLAW_STATE_DIR") or Path.home() / ".openclaw")
    if not state.is_dir():
        sys.exit(
            f"error: OpenClaw has no folder {state}; install OpenClaw first, "
            "or set OPENCLAW_STATE_DIR"
        )
    folder = install(state)
    sys.stdout.write(f"wrote {folder}; docs/openclaw.md names the commands that enable it\n")


if __name__ == "__main__":
    main()
