"""Switching memory off and on."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forked import Forked
from hooks.conftest import Hook
from memories.config import load_config
from memories.errors import ConfigError
from memories.hooks import files, inbox, session, switch
from memories.hooks.host_events import HostEvent

Memory = Callable[..., str]


def is_on(folder: Path, session_name: str | None = None, **variables: str) -> bool:
    """Return whether memory is on in a folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        return switch.read_state(str(folder), session_name).on


def test_memory_is_on_by_default(folder: Path, home: Path) -> None:
    state = switch.read_state(str(folder), None)
    assert (state.on, state.capture, state.why, state.namespace) == (True, True, "", None)
    assert not home.exists()


def test_a_variable_switches_memory_off(folder: Path) -> None:
    assert [is_on(folder, MEMORY_OFF=value) for value in ("1", "true", "0", "", "no")] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_a_marker_file_switches_its_folder_and_subfolders_off(folder: Path) -> None:
    inner = folder / "a" / "b"
    inner.mkdir(parents=True)
    (folder / ".memories-off").touch()
    assert (is_on(inner), is_on(folder), is_on(folder.parent)) == (False, False, True)
    (folder / ".memories-off").unlink()
    (folder / "a" / ".memories-off").symlink_to("nowhere")
    assert (is_on(inner), is_on(folder)) == (False, True)


def test_memory_is_off_behind_a_link_to_a_folder_that_is_off(folder: Path, tmp_path: Path) -> None:
    (folder / ".memories-off").touch()
    (tmp_path / "link").symlink_to(folder)
    assert not is_on(tmp_path / "link")


def test_no_file_in_a_repository_can_switch_memory_on(folder: Path, home: Path) -> None:
    """A repository can contain settings in .env, and a file like the one in the home."""
    home.mkdir(parents=True)
    (home / files.OFF).write_text(f"{folder.resolve()}\n")
    for name, text in (
        (".memories-on", ""),
        (".env", "MEMORY_OFF=0\nCAPTURE_PROJECTS=/\n"),
        ("off", ""),
    ):
        (folder / name).write_text(text)
    assert not is_on(folder)


def test_the_setting_capture_projects_selects_folders(folder: Path) -> None:
    def captured(patterns: str, where: Path = folder) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CAPTURE_PROJECTS", patterns)
            state = switch.read_state(str(where), None)
        assert state.on
        return state.capture

    inner = folder / "inner"
    inner.mkdir()
    assert captured(f"{folder}")
    assert captured(f"{folder.parent}/*", inner)
    assert captured("!/elsewhere")
    assert not captured("/elsewhere/*")
    assert not captured(f"{folder},!inner", inner)
    assert not captured(f"!{folder}", inner)
    assert not captured("work")  # only a name, which the folder's author may have chosen


def test_the_setting_capture_projects_is_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPTURE_PROJECTS", "work")
    with pytest.raises(ConfigError, match="full paths"):
        load_config()
    monkeypatch.setenv("CAPTURE_PROJECTS", "~/work/*,!secret")
    assert load_config().capture_projects == "~/work/*,!secret"


def test_the_setting_capture_projects_is_read_from_the_users_file(folder: Path, home: Path) -> None:
    home.mkdir(parents=True)
    (home / "config.toml").write_text(f'capture_projects = "!{folder}"\n')
    assert not switch.read_state(str(folder), None).capture


def test_a_session_switches_only_itself(folder: Path, home: Path) -> None:
    session.append(str(home), "claude-code.s1", off=True)
    assert (is_on(folder, "claude-code.s1"), is_on(folder, "claude-code.s2")) == (False, True)
    session.append(str(home), "claude-code.s1", off=False, namespace="bob")
    state = switch.read_state(str(folder), "claude-code.s1")
    assert (state.on, state.namespace) == (True, "bob")


@pytest.mark.parametrize("variable", ["", "XDG_DATA_HOME", "XDG_CONFIG_HOME"])
def test_hooks_use_the_same_home_as_all_other_commands(
    variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MEMORY_HOME")
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    assert files.home() == str(load_config().home)


def test_hooks_use_the_home_that_the_users_file_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MEMORY_HOME")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    config = tmp_path / "home" / ".config" / "memories"
    config.mkdir(parents=True)
    (config / "config.toml").write_text(f'home = "{tmp_path / "other"}"\n')
    assert files.home() == str(load_config().home) == str(tmp_path / "other")


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "inbox"
    open_to_all.mkdir(mode=0o777)
    open_to_all.chmod(0o777)
    with pytest.raises(files.UnsafeFolder):
        files.private_folder(str(open_to_all))
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(files.UnsafeFolder):
        files.private_folder(str(tmp_path / "link"))


def git(folder: Path, *arguments: str) -> None:
    """Run Git in a folder."""
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main")
    subprocess.run(
        ["git", *who, "-C", str(folder), *arguments], check=True, capture_output=True, timeout=60
    )


@pytest.fixture
def memory(forked: Forked) -> Memory:
    """Return a function that runs the command in a folder and returns its output."""

    def run(folder: Path, *arguments: str, code: int = 0) -> str:
        done = forked.run(arguments, cwd=folder)
        assert done.returncode == code, done.stderr
        return done.stdout.decode()

    return run


@pytest.fixture
def clones(tmp_path: Path) -> list[Path]:
    """A working tree, a linked one next to it, and a clone of the same remote."""
    one, linked, clone = (tmp_path / name for name in ("one", "linked", "clone"))
    for each in (one, clone):
        each.mkdir()
        git(each, "init", "-q")
        git(each, "remote", "add", "origin", "https://example.com/acme/shop.git")
    git(one, "commit", "-q", "--allow-empty", "-m", "first")
    git(one, "worktree", "add", "-q", str(linked))
    return [one, linked, clone]


def test_a_project_is_off_in_all_its_clones_and_working_trees(
    memory: Memory, clones: list[Path], folder: Path, home: Path
) -> None:
    one, linked, clone = clones
    (clone / "src").mkdir()
    assert "example.com/acme/shop" in memory(linked, "off", "--format", "text")
    assert [is_on(each) for each in (one, linked, clone, clone / "src", folder)] == [
        False,
        False,
        False,
        False,
        True,
    ]
    assert "the project example.com/acme/shop" in switch.read_state(str(clone), None).why
    memory(clone, "on")
    assert [is_on(each) for each in clones] == [True, True, True]
    memory(one, "off")
    memory(one, "projects", "alias", "example.com/acme/shop", "store")
    assert [is_on(each) for each in clones] == [False, False, False]
    memory(one, "on")
    assert [is_on(each) for each in clones] == [True, True, True]


def test_a_folder_that_was_off_before_projects_had_names_stays_off(
    memory: Memory, clones: list[Path], home: Path
) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / files.OFF).write_text(f"{clones[0].resolve()}\n")
    assert [is_on(each) for each in clones] == [False, True, True]
    memory(clones[0], "on")
    assert is_on(clones[0])


@pytest.mark.usefixtures("no_flusher")
@pytest.mark.usefixtures("projects")
def test_unreadable_project_names_do_not_break_a_hook(
    memory: Memory, clones: list[Path], hook: Hook, home: Path, folder: Path
) -> None:
    memory(clones[0], "create", "Deploys happen on Tuesdays")
    (home / ".projects" / "aliases.json").write_text("{broken")
    payload = {"cwd": str(clones[2])}
    assert "Deploys happen on Tuesdays" in hook("session-start", payload, "--capture").context
    assert hook("stop", payload | {"last_assistant_message": "Done."}, "--capture").silent
    assert inbox.names(str(home)) == ["claude-code.s1"]
    assert "aliases.json is not JSON" in memory(folder, "doctor", "--format", "text", code=1)
    (home / files.OFF).write_text(
        "project example.com/acme/shop\n"
    )  # this folder's project may be the same one
    assert hook("session-start", payload).silent
    assert is_on(folder)  # this folder is in no repository


@pytest.mark.parametrize("in_file", [True, False])
def test_an_empty_home_setting_is_reported_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_file: bool
) -> None:
    """Hooks read the setting themselves, and name its source like the command."""
    config = tmp_path / "memories" / "config.toml"
    config.parent.mkdir()
    config.write_text('home = ""\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("MEMORY_HOME")
    source = f"home ({config})"
    if not in_file:
        monkeypatch.setenv("MEMORY_HOME", " ")
        source = "MEMORY_HOME (environment)"
    with pytest.raises(ValueError, match="set but empty") as refused:
        files.home()
    with pytest.raises(ConfigError) as also_refused:
        load_config()
    assert str(refused.value) == str(also_refused.value)
    assert str(refused.value).startswith(f"{source} is set but empty")


def test_memory_is_off_in_a_folder_whose_name_the_host_cannot_encode(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts replace what is not UTF-8 in a path with U+FFFD, so the event names no folder."""
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux has folders whose names are not UTF-8")
    odd = os.fsencode(folder) + b"/caf\xe9"
    Path(os.fsdecode(odd)).mkdir()
    monkeypatch.chdir(os.fsdecode(odd))
    event = HostEvent("claude-code", {"cwd": odd.decode("utf-8", "replace")})
    assert is_on(Path(event.folder))
    Path(".memories-off").touch()
    assert not is_on(Path(event.folder))


def test_a_folder_name_may_contain_the_replacement_character(folder: Path) -> None:
    odd = folder / "caf\ufffd"
    odd.mkdir()
    assert HostEvent("claude-code", {"cwd": str(odd)}).folder == str(odd)
