"""No repository can make the program read outside it, wait, or reveal the content of a file."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import memories
from memories.anchors import grammar
from memories.anchors.judge import Cited, Judge
from memories.anchors.tree import WorkingTree
from memories.core.times import from_millis
from memories.errors import InvalidInput
from memories.models import VERDICTS

NOW = from_millis(1_800_000_000_000)
PROGRAM = (Path(memories.__file__).parent, Path(sys.prefix), Path(sys.base_prefix))
SECRETS = (".env", "id_rsa", "key.pem", "credentials")
SECRET = "hunter2 of the outside"
NAMES = (
    "a",
    "b.py",
    "data.yml",
    "Makefile",
    "sub",
    "x\ny",
    "é",
    "\u202eb",
    "a b",
    ".hidden",
    "c.rs",
)
# Judges the anchors of a repository, and prints each file that Python opens while doing so.
SCRIPT = """
import json, os, sys
from pathlib import Path
top, text, anchors = json.loads(sys.stdin.read())
from memories.anchors import checks, discover
from memories.anchors.judge import Cited, Judge
from memories.core.times import from_millis
from memories.errors import InvalidInput
opened, reached = [], os.open
def open_and_note(*arguments, **options):
    descriptor = reached(*arguments, **options)
    opened.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return descriptor
def audit(event, arguments):
    if event == "open" and isinstance(arguments[1], str):  # not by `os.open`
        opened.append(str(arguments[0]))
    elif event in ("os.exec", "os.posix_spawn", "os.system", "subprocess.Popen", "socket.connect", "os.fork"):
        opened.append(event)
os.open = open_and_note
sys.addaudithook(audit)
judge = Judge(lambda name: Path(top))
now = from_millis(1_800_000_000_000)
verdicts = []
judge.discover(text, {"project": "p"})
for anchor in anchors:
    cited = Cited((anchor,), {"project": "p"}, now)
    [verdict] = judge.verdicts([cited], now)
    verdicts.append(verdict and verdict.word)
    try:
        judge.settle([anchor], {"project": "p"})
    except InvalidInput:
        pass
print(json.dumps([opened, verdicts]))
"""


def bind(place: Path) -> None:
    """Create a socket at a path, unless the path is too long."""
    if len(str(place)) < 90:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place))


def sparse(place: Path) -> None:
    """Create a sparse file of a terabyte."""
    place.touch()
    os.truncate(place, 1 << 40)


def unreadable(place: Path) -> None:
    """Create a file that no user may read."""
    place.write_text("port: 5433")
    place.chmod(0)


def folder_with_secrets(place: Path) -> None:
    """Create a folder of files that usually contain secrets."""
    place.mkdir()
    for name in (".env", "id_rsa", "key.pem", ".ENV", "credentials"):
        (place / name).write_text(SECRET)


def build(top: Path, outside: Path, chance: random.Random) -> list[str]:
    """Build a hostile repository; return the paths in it."""
    top.mkdir(parents=True)
    up = "../" * chance.randrange(1, 9)
    makers: list[Callable[[Path], object]] = [
        lambda place: place.write_bytes(chance.randbytes(200) + b"port: 5433\n"),
        lambda place: place.symlink_to(outside / "secret.txt"),
        lambda place: place.symlink_to(outside),
        lambda place: place.symlink_to(f"{up}etc"),
        lambda place: place.symlink_to(place.name),
        lambda place: place.write_bytes(b"port: 5433\n" * 100_000),
        Path.mkdir, os.mkfifo, bind, sparse, unreadable, folder_with_secrets,
    ]  # fmt: skip
    paths: list[str] = []
    for _ in range(chance.randrange(4, 16)):
        folders = [top, *(path for path in top.rglob("*") if path.is_dir())]
        place = chance.choice(folders) / chance.choice(NAMES)
        if not os.path.lexists(place) and place.resolve().is_relative_to(top.resolve()):
            chance.choice(makers)(place)
            path = place.relative_to(top).as_posix()
            paths += [path, f"{path}/secret.txt", f"{path}/passwd", f"{path}/.env"]
    return paths


def anchors_of(paths: list[str], outside: Path, chance: random.Random) -> list[str]:
    """Return well-formed and malformed anchors that try to reveal something."""
    tries = [
        str(outside / "secret.txt"), "../outside/secret.txt", "a/../../outside/secret.txt",
        "/etc/passwd", "~/.ssh/id_rsa", "/proc/self/environ", "/dev/zero", "./" * 50 + "../x",
        ".git/config", ".GIT/config", "a\x00b", "x" * 400,
    ]  # fmt: skip
    targets = [*paths, *(path.upper() for path in paths), *tries]
    name = ("", f"::{SECRET}", "::root", "::5433", "::def", "::port 5433")
    return [f"{target}{chance.choice(name)}" for target in targets]


def judge_elsewhere(top: Path, text: str, anchors: list[str]) -> tuple[list[str], list[str | None]]:
    """Judge anchors in a separate process; return the files it opened, and the verdicts."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps([str(top), text, anchors]), text=True,
        capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    opened, verdicts = json.loads(done.stdout)
    return opened, verdicts


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names what is open")
@pytest.mark.parametrize(
    "count", [pytest.param(300, marks=pytest.mark.thorough), 6], ids=["300", "few"]
)
def test_nothing_outside_a_hostile_repository_is_opened(tmp_path: Path, count: int) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    (outside / "passwd").write_text(f"root {SECRET}")
    for seed in range(count):
        chance = random.Random(seed)
        top = tmp_path / f"r{seed}" / "top"
        paths = build(top, outside, chance)
        anchors = anchors_of(paths, outside, chance)
        text = f"{SECRET} root 5433 in {' '.join(paths)} and {' '.join(anchors)}"
        opened, verdicts = judge_elsewhere(top, text, anchors)
        real = top.resolve()
        others = [
            name for name in opened if not any(map(Path(name).is_relative_to, (real, *PROGRAM)))
        ]
        assert (others, str(real) in opened) == ([], True), seed
        assert not [name for name in opened if Path(name).name.lower() in SECRETS]
        learned = {
            verdict
            for anchor, verdict in zip(anchors, verdicts, strict=True)
            if f"::{SECRET}" in anchor
        }
        assert "verified" not in learned


def test_a_link_created_during_the_check_is_not_followed(tmp_path: Path) -> None:
    top, outside = tmp_path / "top", tmp_path / "outside"
    outside.mkdir()
    (outside / "data.yml").write_text(SECRET)
    (top / "real").mkdir(parents=True)
    (top / "real" / "data.yml").write_text("port: 5433")
    folder = top / "sub"
    folder.symlink_to("real")
    is_over = threading.Event()

    def swap() -> None:
        targets = ("real", str(outside))
        for number in range(100_000):
            if is_over.is_set():
                return
            scratch = top / "scratch"
            if number % 3:
                scratch.symlink_to(targets[number % 2])
                scratch.replace(folder)
            else:
                folder.unlink()
                folder.mkdir()
                folder.rmdir()
                folder.symlink_to(outside)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        with WorkingTree(top) as tree:
            for _ in range(3_000):
                _, text = tree.read(["sub", "data.yml"])
                assert SECRET not in text
    finally:
        is_over.set()
        thread.join(timeout=60)


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("name", "fill"),
    [
        ("a.py", lambda: "def lock" * 130_000),
        ("a.c", lambda: "int a lock " * 90_000),
        ("a.ts", lambda: ("lock " * 70 + "\n") * 2_900),
        ("a.yml", lambda: "lock = : = " * 90_000),
        ("a.java", lambda: "<" * 500_000 + "lock" * 100_000),
        ("b.yml", lambda: "l " + "=" * 1_000_000),
    ],
)
def test_no_file_slows_down_a_check(tmp_path: Path, name: str, fill: Callable[[], str]) -> None:
    (tmp_path / name).write_text(fill()[: 1 << 20])
    judge = Judge(lambda _: tmp_path, seconds=0.02)
    anchors = (f"{name}::lock", f"{name}::lock 5433", f"{name}::l o c k", f'{name}::"= ="')
    start = time.thread_time()
    [verdict] = judge.verdicts([Cited(anchors, {"project": "p"}, NOW)], NOW)
    assert verdict is not None and verdict.word in VERDICTS
    assert time.thread_time() - start < 1.0  # 0.02, plus the time of one step


def test_a_broken_cache_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("5433")
    cache = tmp_path / "cache"
    for content in (
        "",
        "[]",
        "{}",
        '{"salt": 3, "checks": {}}',
        '{"salt": "00", "checks": {"a": 1}}',
    ):
        cache.write_text(content)
        judge = Judge(lambda _: tmp_path, cache)
        [verdict] = judge.verdicts([Cited(("a.yml::5433",), {"project": "p"}, NOW)], NOW)
        assert verdict is not None and verdict.word == "verified"


def test_a_stored_anchor_that_points_outside_the_project_is_not_checked(tmp_path: Path) -> None:
    judge = Judge(lambda _: tmp_path)
    for anchor in ("../x", "/etc/passwd::root", ".env::TOKEN"):
        with pytest.raises(InvalidInput):
            grammar.parse(anchor)
        assert judge.verdicts([Cited((anchor,), {"project": "p"}, NOW)], NOW) == [None]
