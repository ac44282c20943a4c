"""Build the site of the docs in site/ with zensical: `python tools/docs_site.py`.

Links to files outside docs/ lead to those files in the repository.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def with_addresses(text: str, repository: str) -> str:
    """Return a page in which links to files outside docs/ are URLs in the repository."""
    return text.replace("](../", f"]({repository}/blob/main/")


def main() -> None:
    """Build the site from a copy of the pages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "docs", folder / "docs")
        shutil.copy(ROOT / "mkdocs.yml", folder)
        for page in (folder / "docs").glob("*.md"):
            text = page.read_text(encoding="utf-8")
            page.write_text(with_addresses(text, project["urls"]["Repository"]), encoding="utf-8")
        done = subprocess.run(
            [Path(sys.executable).with_name("zensical"), "build"],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        sys.stdout.write(done.stdout)
        if re.search(r"\d+ issues? found", done.stdout):
            sys.exit("the site has broken links")
        shutil.rmtree(ROOT / "site", ignore_errors=True)
        shutil.copytree(folder / "site", ROOT / "site")


if __name__ == "__main__":
    main()
