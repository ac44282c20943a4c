"""A chat is killed at random moments: its output is stored, no tool runs twice, and no session is
damaged.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torture.forks import ON_PATH

# The process that starts, kills and checks. It imports the modules of a chat, so that its forks
# start with them. Each round tells the agent a fact, kills the chat, and asks a new chat about it.
DRIVER = """
import io, json, os, random, signal, sys, time
sys.modules["sqlite3"] = __import__("pysqlite3")
from torture import forks
from torture.forks import fork
from pathlib import Path
import memories.integrations.chat.agent, memories.integrations.chat.memory
from memories.settings import Secret
from memories.guard.redactor import Redactor
from memories.integrations.chat.loop import Chat
from memories.integrations.chat.settings import Settings

forks.LONGEST_SECONDS = 300
url, key, root, rounds, seed = sys.argv[1], sys.argv[2], Path(sys.argv[3]), *map(int, sys.argv[4:])
drawn = random.Random(seed)
totals = {"rounds": 0, "killed": 0, "shown": 0, "finished": 0, "known": 0}
spent = 0.6  # seconds of a turn on this machine, measured at the last turn that was not killed


def chat(number, text, out):
    os.dup2(os.open(out, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 1)
    os.dup2(os.open(f"{out}.err", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 2)
    sys.stdin = io.StringIO(text + chr(10))
    user, thread = f"user{number % 3}", f"thread{number % 5}"
    settings = Settings(root, user, thread, Secret(key), url, "kimi-k3", 60.0, "recency", {})
    return Chat(settings, Redactor()).run()


def run(number, text, out, after=None):
    began = time.monotonic()
    child = fork(lambda: sys.exit(1) if chat(number, text, out) else None)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, out.read_text() if out.exists() else "", Path(f"{out}.err").read_text(), time.monotonic() - began


for number in range(rounds):
    out = root / "out"
    out.unlink(missing_ok=True)
    name = f"thing {chr(97 + number % 26)}{chr(97 + number // 26)}"
    status, said, _, _ = run(number, f"My {name} is value{number}", out, drawn.uniform(0, 1.2 * spent))
    shown = "I will remember that." in said
    totals["killed"] += status == -signal.SIGKILL
    totals["shown"] += shown
    status, said, err, spent = run(number, f"What is my {name}?", out)
    assert status == 0, (number, said, err)
    *finished, answer = said.splitlines()
    known = f"value{number}" in answer
    assert known or not shown, (number, said)
    assert finished in ([], ["I will remember that."]), (number, said)
    totals["finished"] += bool(finished)
    totals["known"] += known
    totals["rounds"] += 1

facts = [json.loads(line) for file in (root / "data" / "memory").glob("*.jsonl") for line in open(file)]
assert len({fact["content"] for fact in facts}) == len(facts), "a tool was run twice"
assert len(facts) >= totals["shown"]
print(json.dumps(totals | {"facts": len(facts)}))
"""


@pytest.mark.thorough
@pytest.mark.torture
def test_a_killed_chat_loses_nothing_that_it_has_shown(
    tmp_path: Path,
    clean_environment: dict[str, str],
    size: Callable[[int, int], int],
    figures: dict[str, Any],
) -> None:
    from memories.integrations.chat.demo import FakeKimi

    rounds = size(4, 200)
    with FakeKimi(delay=0.02) as kimi:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                ON_PATH + DRIVER,
                kimi.url,
                kimi.key,
                str(tmp_path),
                str(rounds),
                "1",
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**clean_environment, "LANGSMITH_TRACING": "false", "PYTHONWARNINGS": "default"},
            timeout=60 + 30 * rounds,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    totals = json.loads(done.stdout.splitlines()[-1])
    figures |= totals
    assert totals["rounds"] == rounds
