"""`memory edit`: a memory in the user's editor, on a terminal."""

import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Command
from memories import Memories

Editor = Callable[[str], dict[str, str]]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def editor(tmp_path: Path, temporary: Path) -> Editor:
    """Return a function that returns the environment of an editor, a Python program in which `file`
    is the path of the edited file.
    """
    assert temporary

    def make(program: str) -> dict[str, str]:
        script = tmp_path / "an editor.py"
        script.write_text(
            f"import sys, os, pathlib\nfile = pathlib.Path(sys.argv[-1])\n{program}\n"
        )
        return {"EDITOR": f"'{sys.executable}' '{script}' --wait", "VISUAL": "", "EMBEDDER": "fake"}

    return make


def content(memory: Command, name: str) -> str:
    """Return the content of a memory."""
    return str(memory("get", name).json["content"])


def test_the_saved_text_is_the_new_version(
    memory: Command, terminal: Command, stored: Callable[..., str], editor: Editor, temporary: Path
) -> None:
    name = stored("Deploys happen on Tuesdays\nat $(touch /tmp/no) 9:30", "--key", "deploys")
    program = """
file.write_text(file.read_text().replace("Tuesdays", "Thursdays"))
modes = f"{file.stat().st_mode:o} {file.parent.stat().st_mode:o}"
pathlib.Path("seen").write_text(f"{modes} {sys.argv[1:-1]}")
"""
    answer = terminal("edit", "--key", "deploys", "--format", "json", env=editor(program))
    assert answer.code == 0
    assert json.loads(answer.out)["version"] == 2
    assert content(memory, name) == "Deploys happen on Thursdays\nat $(touch /tmp/no) 9:30"
    assert Path("seen").read_text() == "100600 40700 ['--wait']"
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "program", ["pass", "file.write_text(file.read_text() + '\\n\\n')", "file.touch()"]
)
def test_an_unchanged_text_creates_no_version(
    memory: Command,
    terminal: Command,
    stored: Callable[..., str],
    editor: Editor,
    temporary: Path,
    program: str,
) -> None:
    name = stored("Deploys happen on Tuesdays")
    answer = terminal("edit", name, env=editor(program))
    assert (answer.code, answer.out) == (0, "Nothing was changed.\n")
    assert memory("history", name).json["count"] == 1
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "case",
    [
        (
            "file.write_text('')",
            "the saved file is empty; nothing was changed; to delete a memory, use memory delete ID",
        ),
        ("file.write_text(' \\n\\n')", "the saved file is empty"),
        ("file.unlink()", "the file was removed, so there is no new text; nothing was changed"),
        ("sys.exit(3)", "ended with exit code 3; nothing was changed"),
    ],
)
def test_an_unusable_text_changes_nothing(
    memory: Command,
    terminal: Command,
    stored: Callable[..., str],
    editor: Editor,
    temporary: Path,
    case: tuple[str, str],
) -> None:
    (program, error), name = case, stored("Deploys happen on Tuesdays")
    answer = terminal("edit", name, env=editor(program))
    assert answer.code in (1, 2)
    assert error in " ".join(answer.out.split())
    assert memory("history", name).json["count"] == 1
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "case",
    [
        ("file.write_bytes(b'caf\\xe9')", "the saved file is not UTF-8 (byte 3)"),
        ("file.write_text('a' * 2_000_000)", "the limit is 1048576"),
        (
            (
                "os.system(f\"'{sys.executable}' -m memories update $NAME Daily >/dev/null\"); "
                "file.write_text('Mine')"
            ),
            "Memory has changed: its latest version is 2, not 1; read it again",
        ),
    ],
)
def test_a_text_that_cannot_be_stored_is_kept_for_the_user(
    memory: Command,
    terminal: Command,
    stored: Callable[..., str],
    editor: Editor,
    temporary: Path,
    case: tuple[str, str],
) -> None:
    (program, error), name = case, stored("Deploys happen on Tuesdays")
    answer = terminal("edit", name, "--format", "json", env={**editor(program), "NAME": name})
    assert answer.code in (1, 2)
    message = json.loads(answer.out)["error"]
    assert error in message
    [folder] = temporary.iterdir()
    file = folder / "memory.txt"
    assert message.endswith(f"; your text is kept in {file}")
    assert file.read_bytes()[:4] in (b"caf\xe9", b"aaaa", b"Mine")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert content(memory, name) != "Mine"


def test_different_line_endings_are_not_a_change(
    memory: Command, terminal: Command, stored: Callable[..., str], editor: Editor
) -> None:
    name = stored("one\ntwo")
    program = "file.write_bytes(b'\\xef\\xbb\\xbf' + file.read_bytes().replace(b'\\n', b'\\r\\n'))"
    assert terminal("edit", name, env=editor(program)).out == "Nothing was changed.\n"
    program = "file.write_bytes(b'one\\r\\ntwo\\r\\nthree\\r\\n')"
    terminal("edit", name, env=editor(program))
    assert content(memory, name) == "one\ntwo\nthree"


@pytest.mark.parametrize(
    ("env", "error"),
    [
        (
            {"EDITOR": "'vim"},
            "EDITOR can't be parsed (No closing quotation); balance its quotes",
        ),
        (
            {"VISUAL": "/no/such/editor", "EDITOR": "true"},
            "cannot start the editor /no/such/editor: No such file",
        ),
        (
            {"EDITOR": "", "VISUAL": "", "PATH": "/nowhere"},
            "found no editor; set VISUAL or EDITOR",
        ),
    ],
)
@pytest.mark.usefixtures("temporary")
def test_an_unusable_editor_is_reported(
    terminal: Command, stored: Callable[..., str], env: dict[str, str], error: str
) -> None:
    answer = terminal("edit", stored("Deploys happen on Tuesdays"), env={"VISUAL": "", **env})
    assert answer.code == 2
    assert error in " ".join(answer.out.split())


def test_without_a_terminal_the_error_names_the_alternative(
    memory: Command, stored: Callable[..., str]
) -> None:
    name = stored("Deploys happen on Tuesdays")
    answer = memory("edit", name)
    assert answer.code == 2
    assert answer.error.startswith(
        f"there is no terminal to edit on; give the new text: memory update {name} CONTENT, or - to read it"
    )
    assert memory("edit", "f" * 8).error == "Memory not found"
    assert memory("edit", name, name[:18]).error == "edit takes one memory at a time; give one ID"


def test_a_memory_of_another_namespace_is_not_edited(
    terminal: Command, stored: Callable[..., str]
) -> None:
    name = stored("Deploys happen on Tuesdays")
    answer = terminal("edit", name, "-n", "bob", env={"EDITOR": "false"})
    assert answer.code == 1
    assert "Memory is in namespace shared; to edit it, add -n shared" in answer.out


def test_the_library_updates_only_the_expected_version() -> None:
    from memories import Conflict

    with Memories() as memories:
        found = memories.create("one").memory
        assert found is not None
        assert memories.update(found.id, "two", if_version=1).version == 2
        with pytest.raises(Conflict, match="latest version is 2, not 1"):
            memories.update(found.id, "three", if_version=1)
        assert memories.get(found.id).content == "two"
