"""The three demos of the chat, each turn in a process of its own: a session goes on, facts outlast it, users are apart.

They run against a stand-in for the model on this machine or, with a key, against the real one.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from memories.integrations.chat.fake_kimi import FakeKimi
from memories.integrations.chat.settings import BASE, KEY, Settings
from memories.integrations.chat.shortterm import FILE

_TURN_SECONDS = 300


class Step(NamedTuple):
    """A turn of a demo: who says what in which thread, and what must be in the answer, or must not."""

    user: str
    thread: str
    says: str
    expect: str = ""
    never: str = ""


class Demo(NamedTuple):
    """A demo: its name, its turns, and for each user how many facts are stored at its end, as (least, most)."""

    name: str
    steps: tuple[Step, ...]
    facts: Mapping[str, tuple[int, int]]


DEMOS = (
    Demo(
        "a session goes on in the same thread",
        (
            Step("ann", "one", "My dog is Rex. Please keep that in mind."),
            Step("ann", "one", "What is its name?", expect="Rex"),
            Step("ann", "one", "What is my dog?", expect="Rex"),
        ),
        {"ann": (0, 1)},
    ),
    Demo(
        "a fact is known in a new thread of the same user",
        (
            Step("ann", "one", "My favourite colour is teal. Remember that for all our conversations."),
            Step("ann", "two", "What is my favourite colour?", expect="teal"),
        ),
        {"ann": (1, 1)},
    ),
    Demo(
        "another user does not know it",
        (
            Step("ann", "one", "My favourite colour is teal. Remember that for all our conversations."),
            Step("ben", "one", "What is my favourite colour?", never="teal"),
            Step("ben", "two", "What is my favourite colour?", never="teal"),
        ),
        {"ann": (1, 1), "ben": (0, 0)},
    ),
)


def run(live: Settings | None, say: Callable[[str], None]) -> bool:
    """Run the demos, each in a new folder; return whether all passed.

    Args:
        live: The settings of the real model; None for the stand-in.
        say: Is given the lines to show.
    """
    with ExitStack() as stack:
        if live is None:
            fake = stack.enter_context(FakeKimi())
            access = {KEY: fake.key, BASE: fake.url}
        else:
            access = {KEY: live.key.reveal(), "MEMCLI_MODEL": live.model, **({BASE: live.base} if live.base else {})}
        passed = [_run(demo, access, stack, say) for demo in DEMOS]
    say(f"{sum(passed)} of {len(passed)} demos passed")
    return all(passed)


def _run(demo: Demo, access: Mapping[str, str], stack: ExitStack, say: Callable[[str], None]) -> bool:
    say(f"=== {demo.name}")
    root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memories-chat-")))
    wrong = []
    for step in demo.steps:
        done = _turn(root, step, access)
        said = done.stdout.strip()
        say(f"{step.user}/{step.thread}> {step.says}\n{said or done.stderr.strip()}")
        if done.returncode:
            wrong.append(f"the command ended with {done.returncode}: {done.stderr.strip()}")
        if step.expect.lower() not in said.lower():
            wrong.append(f'"{step.expect}" is not in the answer')
        if step.never and step.never.lower() in said.lower():
            wrong.append(f'"{step.never}" is in the answer')
    for user, (least, most) in demo.facts.items():
        file = root / "data" / "memory" / f"{user}.jsonl"
        count = len([json.loads(line) for line in file.read_text().splitlines()]) if file.exists() else 0
        if not least <= count <= most:
            wrong.append(f"{count} facts of {user} are stored, not {least} to {most}")
    if not (root / "data" / FILE).stat().st_size:
        wrong.append("the session file is empty")
    for problem in wrong:
        say(f"FAILED: {problem}")
    say("failed" if wrong else "passed")
    return not wrong


def _turn(root: Path, step: Step, access: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    own = {"MEMCLI_USER_ID": step.user, "MEMCLI_THREAD_ID": step.thread, "LANGSMITH_TRACING": "false"}
    return subprocess.run(  # noqa: S603 - this program itself
        [sys.executable, "-P", "-m", "memories", "chat", "--root", str(root)],
        input=f"{step.says}\n",
        env={**os.environ, **own, **access},
        capture_output=True,
        text=True,
        timeout=_TURN_SECONDS,
        check=False,
    )
