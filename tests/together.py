"""Processes that do the same at once: forks of one that has loaded the library, which costs more than what they do."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

FORKING = """
import json, os, sys, tempfile
from memories import Memories

script, runs = json.load(sys.stdin)
home = os.environ["MEMORY_HOME"]
with tempfile.TemporaryDirectory() as scratch:  # what a first use loads is loaded here, once
    os.environ["MEMORY_HOME"] = scratch
    with Memories(f"sqlite:///{scratch}/memories.db") as memories:
        memories.search(memories.create("Nothing of this is kept").memory.content)
os.environ["MEMORY_HOME"] = home
work = compile(script, "script", "exec")
ready, begin = os.pipe()
children = []
for arguments in runs:
    out = tempfile.TemporaryFile("w+")
    child = os.fork()
    if child == 0:
        os.close(begin)
        os.dup2(out.fileno(), 1)
        os.read(ready, 1)  # ends when the last one has been started
        sys.argv = ["script", *arguments]
        try:
            exec(work, {"__name__": "__main__"})
            sys.stdout.flush()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    children.append((child, out))
os.close(begin)
ended = [os.waitpid(child, 0)[1] for child, _ in children]
told = []
for _, out in children:
    out.seek(0)
    told.append(out.read())
json.dump([ended, told], sys.stdout)
"""


def together(
    script: str, runs: Sequence[Sequence[object]], *, environment: Mapping[str, str], folder: Path
) -> list[str]:
    """Run a script once for each list of arguments, all at once, each in a process; return what each printed."""
    given = json.dumps([script, [[str(argument) for argument in arguments] for arguments in runs]])
    done = subprocess.run(
        [sys.executable, "-c", FORKING],
        input=given, capture_output=True, text=True, env=dict(environment), cwd=folder, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ended, told = json.loads(done.stdout)
    assert ended == [0] * len(runs), done.stderr
    return [str(each) for each in told]
