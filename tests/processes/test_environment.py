"""Faults of the environment, with the real command: it works, or it prints one sentence and exits
with 1; nothing is lost.

Each case stores a memory, causes the fault, writes and reads, removes the fault, and writes and
reads again. `test_creation_faults` and `torture/test_campaigns` have faults of single system calls,
the tests of each store have files that disappear while it is open, and `cli/test_lost_answers` has
lost answers.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

SCRIPT = r"""
set -u
memory() { "$PYTHON" -m memories "$@"; }
kept() { memory create "The ferry leaves at nine" >/dev/null || exit 90; }
during() {
  "$@" "$PYTHON" -m memories create "Bob likes strong coffee" >"$ANSWERS/written" 2>"$ANSWERS/write"
  echo $? >"$ANSWERS/write.code"
  "$@" "$PYTHON" -m memories list >"$ANSWERS/listed" 2>"$ANSWERS/read"
  echo $? >"$ANSWERS/read.code"
}
limited() { limit=$1; shift; PYTHONDONTWRITEBYTECODE=1 sh -c 'ulimit '"$limit"'; exec "$@"' sh "$@"; }
weak() { setpriv --bounding-set=-dac_override,-dac_read_search,-fowner,-linux_immutable "$@"; }
"""
HEALED = """
memory list --limit 100 >"$ANSWERS/after" 2>"$ANSWERS/after.err" || exit 91
memory create "Deploys happen on Tuesdays" >/dev/null 2>"$ANSWERS/again.err" || exit 92
memory list --limit 100 >"$ANSWERS/final" || exit 93
"""


class Fault(NamedTuple):
    """A fault: the script that causes and removes it, the exit codes that a write and a read may
    have, and the program that the script needs.
    """

    script: str
    write: tuple[int, ...] = (1,)
    read: tuple[int, ...] = (0, 1)
    needs: str = ""


SMALL = """
mkdir -p "$DISK"; mount -t tmpfs -o size=3m,nr_inodes=200 tmpfs "$DISK"
export MEMORY_HOME="$DISK/memories"
kept
"""
ELSEWHERE = "kept\nbefore=$MEMORY_HOME\n"
FAULTS: Mapping[str, Fault] = {
    "1 the disk is full": Fault(
        SMALL + 'cat /dev/zero >"$DISK/filler" 2>/dev/null; during env; rm "$DISK/filler"',
        needs="mount",
    ),
    "2 no inodes": Fault(
        SMALL
        + 'n=0; while (: >"$DISK/f$n") 2>/dev/null; do n=$((n+1)); done; during env; rm "$DISK"/f*',
        (0, 1),
        needs="mount",
    ),
    "3 a limit on the size of files": Fault("kept\nduring limited '-f 8'"),
    "5 a mount that is read-only": Fault(
        SMALL + 'mount -o remount,ro "$DISK"; during env; mount -o remount,rw "$DISK"',
        needs="mount",
    ),
    "6 a folder that is read-only": Fault(
        'kept\nchmod 0555 "$MEMORY_HOME"; during weak; chmod 0700 "$MEMORY_HOME"', needs="setpriv"
    ),
    "7 a store that is read-only": Fault(
        'kept\nchmod 0400 "$MEMORY_HOME/memories.db"; during weak; chmod 0600 "$MEMORY_HOME/memories.db"',
        needs="setpriv",
    ),
    "8 a folder that is closed": Fault(
        'kept\nchmod 0000 "$MEMORY_HOME"; during weak; chmod 0700 "$MEMORY_HOME"',
        (1, 2),
        (0, 1, 2),
        needs="setpriv",
    ),
    "9 a store without permissions": Fault(
        'kept\nchmod 0000 "$MEMORY_HOME/memories.db"; during weak; chmod 0600 "$MEMORY_HOME/memories.db"',
        needs="setpriv",
    ),
    "10 an immutable store": Fault(
        'kept\nchattr +i "$MEMORY_HOME/memories.db" || exit 80; during env; chattr -i "$MEMORY_HOME/memories.db"',
        needs="root",
    ),
    "11 a folder where the file should be": Fault(
        ELSEWHERE
        + 'mkdir "$DISK-is-a-folder"; during env MEMORY_STORE="sqlite:///$DISK-is-a-folder"',
        read=(1,),
    ),
    "12 a parent that is a file": Fault(
        ELSEWHERE + 'echo text >"$DISK-file"; during env MEMORY_STORE="sqlite:///$DISK-file/m.db"'
    ),
    "13 a loop of links": Fault(
        ELSEWHERE
        + 'ln -s "$DISK-loop" "$DISK-loop"; during env MEMORY_STORE="sqlite:///$DISK-loop"'
    ),
    "14 a link to nothing": Fault(
        ELSEWHERE
        + 'ln -s /nowhere/at/all "$DISK-link"; during env MEMORY_STORE="sqlite:///$DISK-link"'
    ),
    "19 the index of the log is gone": Fault(
        'kept\nrm -f "$MEMORY_HOME/memories.db-shm"; during env', (0,), (0,)
    ),
    "20 a home that cannot be written": Fault(
        ELSEWHERE + "during env -u MEMORY_HOME HOME=/proc/nowhere"
    ),
    "21 no folder for temporary files": Fault("kept\nduring env TMPDIR=/nowhere", (0,), (0,)),
    "22 no descriptors": Fault("kept\nduring limited '-n 6'", (0, 1)),
    "24 the C locale": Fault(
        "kept\nduring env LC_ALL=C PYTHONUTF8=0 PYTHONIOENCODING=ascii", (0,), (0,)
    ),
}


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[Path]:
    """A folder that can be removed even if a test made its files immutable."""
    folder = tmp_path / "answers"
    folder.mkdir()
    yield folder
    if shutil.which("chattr"):
        subprocess.run(["chattr", "-R", "-i", str(tmp_path)], capture_output=True, timeout=300)


def is_one_sentence(said: str) -> bool:
    """Return whether an error is one short line of JSON."""
    return (
        said.count("\n") == 1 and "Traceback" not in said and len(json.loads(said)["error"]) < 500
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if FAULTS[name].needs else pytest.mark.thorough)
        for name in FAULTS
    ],
)
def test_an_environment_fault_is_reported_loses_nothing_and_can_be_resolved(
    clean_environment: dict[str, str], tmp_path: Path, answers: Path, name: str
) -> None:
    fault = FAULTS[name]
    if fault.needs and os.geteuid() != 0:
        pytest.skip("only root can cause this fault")
    if fault.needs == "setpriv" and shutil.which("setpriv") is None:
        pytest.skip("setpriv is missing")
    prefix = ["unshare", "-m"] if fault.needs == "mount" else []
    mount = [*prefix, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if prefix and subprocess.run(mount, capture_output=True, timeout=60).returncode:
        pytest.skip("this system doesn't allow mounts")
    environment = clean_environment | {
        "PYTHON": sys.executable, "ANSWERS": str(answers), "DISK": str(tmp_path / "disk"), "MEMORY_FORMAT": "json",
    }  # fmt: skip
    done = subprocess.run(
        [*prefix, "sh", "-c", f"{SCRIPT}\n{fault.script}\n{HEALED}"],
        capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=900,
    )  # fmt: skip
    if done.returncode == 80:
        pytest.skip("this file system has no such flag")
    said = {file.name: file.read_text() for file in answers.iterdir()}
    assert done.returncode == 0, (done.stderr, said)
    for what, allowed in (("write", fault.write), ("read", fault.read)):
        code = int(said[f"{what}.code"])
        assert code in allowed, said
        if code:
            assert is_one_sentence(said[what]), said[what]
        else:
            assert said[what] == ""
    final = [found["content"] for found in json.loads(said["final"])["results"]]
    assert {"The ferry leaves at nine", "Deploys happen on Tuesdays"} <= {*final}
    if int(said["write.code"]):
        assert "Bob likes strong coffee" not in final
    else:
        assert "Bob likes strong coffee" in final
