"""`python -m memories.integrations.hermes`: installs the plugin in Hermes's home."""

import os
import sys
from pathlib import Path

NAME = "memories"
FILES = {"plugin.yaml": "plugin.yaml", "plugin.txt": "__init__.py"}


def install(hermes_home: Path) -> Path:
    """Write the plugin's two files to a folder in Hermes's home; return the folder."""
    folder = hermes_home / "plugins" / NAME
    folder.mkdir(parents=True, exist_ok=True)
    for source, target in FILES.items():
        text = (Path(__file__).parent / source).read_text(encoding="utf-8")
        (folder / target).write_text(text, encoding="utf-8")
    return folder


def main() -> None:
    """Install the plugin, and say what to do next."""
    home = Path(os.environ.get("HERMES_HOME") or Path.home() / ".hermes")
    if not home.is_dir():
        sys.exit(f"error: Hermes has no folder {home}; install Hermes first, or set HERMES_HOME")
    folder = install(home)
    sys.stdout.write(f"installed in {folder}; set memory.provider to memories in config.yaml\n")


if __name__ == "__main__":
    main()
