"""Writes the home of a user of this version as a fixture: `write_home.py ARCHIVE`.

Later versions open it, upgrade it and disconnect its hosts; see `tests/test_older_home.py`. Run it
once a release, with the program of that release. The archive holds the user's folder, with
placeholders for the folder and for the program's path, and `answers.json`, which holds what the
program of that release answered.
"""

import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

PROGRAM = Path(sys.executable).with_name("memory")
HOSTS = (
    "claude-code",
    "codex",
    "gemini",
    "opencode",
    "cursor",
    "vscode",
    "claude-desktop",
    "windsurf",
    "zed",
)

# Questions whose answers must stay the same in later versions; none with figures that depend on the
# time.
QUESTIONS = {
    "shared": ("list", "--limit", "1000"),
    "bob": ("list", "--limit", "1000", "-n", "bob", "--no-shared"),
    "deleted": ("list", "--deleted"),
    "tags": ("tags",),
    "by key": ("get", "--key", "user/editor"),
    "namespaces": ("namespaces",),
    "conversations": ("turns", "list"),
    "standup": ("turns", "show", "standup"),
    "waiting": ("review", "-n", "eve", "--limit", "3"),
    "projects": ("projects",),
    "search": ("search", "when do we deploy?", "--limit", "3"),
    "search of turns": ("search", "when does Ann ship?", "--in", "history", "--limit", "2"),
    "search in German": ("search", "Straße", "-n", "bob", "--no-shared"),
    "scratchpad": ("scratchpad", "show", "-n", "ann"),
}


def main(archive: Path) -> None:
    """Create the home, record its answers, and pack it."""
    with tempfile.TemporaryDirectory(prefix="user-") as name:
        user = Path(name).resolve()
        work = user / "shop"
        work.mkdir()
        run = Runner(user, work)
        prepare_hosts(user)
        write_memories(run)
        connect_hosts(run)
        write_conversations(run)
        write_scratchpads(run)
        run("backup")
        run("tokens", "create", "reader", "--allow", "shared:r")
        write_half_moved_files(user)
        answers = {question: run.json(*arguments) for question, arguments in QUESTIONS.items()}
        ids = [memory["id"] for memory in answers["shared"]["results"] + answers["bob"]["results"]]
        answers["histories"] = {
            memory_id: run.json("history", memory_id, "-n", "bob") for memory_id in ids[-12:]
        }
        write_what_waits(run)
        (user / "answers.json").write_text(
            json.dumps(answers, ensure_ascii=False, indent=1, sort_keys=True)
        )
        pack(user, archive)


class Runner:
    """Runs the command like the user, in the user's project."""

    def __init__(self, user: Path, work: Path) -> None:
        path = f"{PROGRAM.parent}:/usr/bin:/bin"
        self.work = work
        self.environment = {"HOME": str(user), "PATH": path, "TZ": "Europe/Berlin"}

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [str(PROGRAM), *arguments],
            input=stdin,
            cwd=self.work,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if done.returncode not in (0, 3):
            raise SystemExit(f"memory {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--format", "json"))

    def create(self, text: str, *options: str) -> str:
        return str(json.loads(self("create", text, "--format", "json", *options))["id"])


def prepare_hosts(user: Path) -> None:
    """Give some hosts settings of the user, with comments and another server."""
    files = {
        ".claude/settings.json": '{\n  "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "bell"}]}]}\n}\n',
        ".claude.json": '{"mcpServers": {"other": {"command": "other-server"}}}\n',
        ".codex/config.toml": '# my settings\nmodel = "o5"\n\n[mcp_servers.other]\ncommand = "other-server"\n',
        ".gemini/settings.json": '{\n\t"theme": "dark"\n}\n',
        ".config/zed/settings.json": '// the editor\n{\n  "vim_mode": true, // always\n}\n',
    }
    for name, text in files.items():
        file = user / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def write_memories(run: Runner) -> None:
    """Write memories of every kind: with versions, tags, keys and corrections; deleted, replaced,
    forgotten and pending.
    """
    for folder in ("objects", "refs/heads"):
        (run.work / ".git" / folder).mkdir(parents=True)
    (run.work / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (run.work / ".git" / "config").write_text(
        '[remote "origin"]\n\turl = https://git.example/acme/shop.git\n'
    )
    run.create("Deploys happen on Tuesdays at 09:30", "--type", "fact")
    run.create("Deploys happen on Thursdays at 09:30", "--type", "fact")
    run.create("The user prefers Python for command line tools", "--type", "preference", "--global")
    language = run.create(
        "The API answers in JSON",
        "--tag",
        "area=api",
        "--decay",
        "contextual",
        "--confidence",
        "0.8",
    )
    run("update", language, "The API answers in JSON and CSV", "--tag", "team=blue")
    run.create("The editor is Vim", "--key", "user/editor")
    run.create("The editor is Helix", "--key", "user/editor")
    habit = run.create("Ann reviews on Mondays", "--decay", "reinforceable")
    run("reinforce", habit)
    old = run.create("Invoices are sent by post")
    run.create("Invoices are sent by mail", "--supersedes", old)
    run("delete", run.create("The office is in Cologne"))
    lunch = run.create("Lunch is at noon")
    run("delete", lunch)
    run("restore", lunch)
    run("forget", run.create("A sentence that nobody may read again: zanzibar"), "--yes")
    run.create("Die Straße ist gesperrt, Müller weiß warum", "-n", "bob")
    run.create("デプロイは木曜日です", "-n", "bob")
    run.create("عنوان المكتب في برلين", "-n", "bob")
    for number in range(30):
        run.create(
            f"Service {number} belongs to team {chr(97 + number % 7)} and listens on port {8000 + 13 * number}",
            "--force",
        )
    lines = "".join(
        f'{{"content": "Note {n} of an import", "tags": {{"source": "wiki"}}}}\n' for n in range(3)
    )
    run("create", "--jsonl", "-", stdin=lines)
    exported = run("export", "--namespace", "shared")
    (run.work / "export.jsonl").write_text(exported)
    (run.work / "foreign.jsonl").write_text(re.sub(r',"proof":"\w+"', "", exported))
    run("import", "foreign.jsonl", "--as", "eve")  # its memories wait for review


def connect_hosts(run: Runner) -> None:
    """Connect all hosts, two of them with capture."""
    for host in HOSTS:
        capture = ["--capture"] if host in {"claude-code", "codex"} else []
        run("connect", host, *capture)


def write_conversations(run: Runner) -> None:
    """Write two conversations with speakers, time zones and an answer."""
    run("turns", "add", "standup", "We ship the beta on Friday", "--speaker", "Ann")
    run("turns", "add", "standup", "Then I will write the notes on Thursday", "--speaker", "Bob")
    run("turns", "add", "retro", "The build was red for three days 🚨")


def write_scratchpads(run: Runner) -> None:
    """Write two scratchpads."""
    pinned = run.create("Never push to main on a Friday", "-n", "ann")
    run("scratchpad", "pin", pinned, "-n", "ann")
    run.create("Ann's laptop is called heron", "-n", "ann")
    run("prompt", "-n", "ann")


def write_half_moved_files(user: Path) -> None:
    """Write a files store, killed during the move of its namespace to SQLite."""
    script = """
import os, signal, sys
from memories import Memories
from memories.config import load_config
from memories.stores.files import move
from memories.stores.sqlite.store import SQLiteStore
url = f"files:///{sys.argv[1]}"
with Memories(url, config=load_config(environment={})) as memories:
    for number in range(9):
        memories.create(f"Line {number} of the notebook is about {'owls hares otters'.split()[number % 3]}", force=True)
    memories.update(memories.list().memories[0].id, "The last line of the notebook is about seals")
    memories.add_turns("trip", ["We saw an otter"])
append, calls = SQLiteStore.append, []
def killed(self, *args, **named):
    calls.append(1)
    if len(calls) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return append(self, *args, **named)
SQLiteStore.append, move._BATCH = killed, 4
with Memories(url, config=load_config({"file_migrate_at": "5"}, environment={})) as memories:
    memories.create("The notebook is full")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(user / "notebook")],
        env={"HOME": str(user), "PATH": "/usr/bin:/bin"},
        cwd=user,
        timeout=120,
    )
    if done.returncode != -9:
        raise SystemExit(f"the move was not cut short: {done.returncode}")


def write_what_waits(run: Runner) -> None:
    """Write an edit and an event that no command has taken over; last, since any command may take
    them over.
    """
    pad = next(Path(run.environment["HOME"]).rglob("ann/scratchpad.yaml"))
    text = pad.read_text()
    added = '- "Ann learns Welsh on Wednesdays"\n# For programs'
    pad.write_text(text.replace("heron", "osprey").replace("# For programs", added))
    inbox = {
        "session_id": "s1",
        "cwd": str(run.work),
        "hook_event_name": "UserPromptSubmit",
        "prompt": "remember: the staging key rotates on the first of the month",
    }
    hook = [
        str(PROGRAM),
        "hook",
        "user-prompt",
        "--host",
        "claude-code",
        "--capture",
        "--seconds",
        "30",
    ]
    subprocess.run(
        hook,
        input=json.dumps(inbox),
        text=True,
        env=run.environment,
        cwd=run.work,
        check=True,
        timeout=60,
        stdout=subprocess.DEVNULL,
    )


def pack(user: Path, archive: Path) -> None:
    """Pack the user's folder, with placeholders for the paths of this machine."""
    for file in [file for file in user.rglob("*") if file.is_file()]:
        if file.suffix in {".json", ".toml", ".yaml", ".js", ".jsonl", ""} or file.name.endswith(
            ".bak"
        ):
            data = file.read_bytes()
            plain = data.replace(str(PROGRAM).encode(), b"@PROGRAM@").replace(
                str(user).encode(), b"@USER@"
            )
            if plain != data:
                file.write_bytes(plain)
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(user, "user")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
