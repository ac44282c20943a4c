"""Draw the terminal output of commands as an SVG picture, for the README.

python tools/picture.py docs/search.svg 'memory search "when do we release?" --limit 3'
"""

import html
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

STYLES = {"1": "b", "2": "d", "31": "r", "32": "g", "33": "y"}
CSS = (
    "text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#d8dee9;white-space:pre}"
    ".b{font-weight:bold;fill:#fff}.d{fill:#7b8794}.g{fill:#8fbf7f}.y{fill:#e0b860}.r{fill:#d9736f}"
)
COLUMNS, LINE, MARGIN, CHARACTER = 90, 20, 20, 8.43


def terminal_output(command: list[str]) -> str:
    """Return the output of a command that writes to a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    output = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:  # the other end was closed
            break
        if not piece:
            break
        output += piece
    process.wait()
    return output.decode().replace("\r\n", "\n")


def draw(lines: list[str]) -> str:
    rows = []
    for number, line in enumerate(lines):
        spans, style = [], ""
        for part in re.split(r"(\x1b\[\d+m)", line):
            if part.startswith("\x1b"):
                style = STYLES.get(part[2:-1], "")
            elif part:
                spans.append(f'<tspan class="{style}">{html.escape(part)}</tspan>')
        rows.append(
            f'<text x="{MARGIN}" y="{MARGIN + LINE * (number + 1) - 5}">{"".join(spans)}</text>'
        )
    width, height = round(COLUMNS * CHARACTER + 2 * MARGIN), LINE * len(lines) + 2 * MARGIN
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    return f'{frame}<style>{CSS}</style><rect width="100%" height="100%" rx="8" fill="#1f2430"/>{"".join(rows)}</svg>\n'


if __name__ == "__main__":
    target, *commands = sys.argv[1:]
    lines: list[str] = []
    for command in commands:
        output = terminal_output(shlex.split(command)).rstrip()
        lines += [f"\x1b[32m$\x1b[0m {command}", *output.split("\n"), ""]
    Path(target).write_text(draw(lines[:-1]))
