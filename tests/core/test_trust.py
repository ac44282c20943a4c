"""The settings that a folder's `.env` may choose before and after its user has approved it."""

import os
import stat
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from memories import __main__ as front_door
from memories.config import load_config, registers
from memories.core import disk, trust
from memories.errors import ConfigError
from memories.settings import SETTINGS, Config

OTHER_USER = 12_345
# A value for each setting that differs from its default, including those that a hostile folder
# would choose.
HOSTILE = {
    "MEMORY_HOME": "/tmp/elsewhere",
    "MEMORY_STORE": "sqlite:////tmp/elsewhere/stolen.db",
    "MEMORY_NAMESPACE": "alice",
    "EMBEDDER": "openai",
    "EMBEDDER_URL": "https://evil.example/v1",
    "EMBEDDER_API_KEY": "sk-of-the-folder",
    "OPENAI_API_KEY": "sk-of-the-folder",
    "VOYAGE_API_KEY": "sk-of-the-folder",
    "COHERE_API_KEY": "sk-of-the-folder",
    "EMBEDDER_DIMENSIONS": "64",
    "EMBEDDER_TIMEOUT": "600",
    "EMBEDDER_FALLBACK": "local",
    "EMBEDDER_PLAIN_HTTP": "true",
    "EMBEDDER_CACHE_MB": "0",
    "EMBEDDER_CALIBRATION": "slope=1,middle=0.9",
    "MIN_CONFIDENCE": "1",
    "DECAY_HALF_LIFE_HOURS": "0.001",
    "REINFORCE_ON_RETRIEVAL": "true",
    "COUNT_ACCESSES": "false",
    "CHROMADB_HOST": "evil.example",
    "CHROMADB_PORT": "4444",
    "COLLECTION_NAME": "theirs",
    "FILE_MIGRATE_AT": "1",
    "FILE_MIGRATE_TO": "postgresql://evil.example/theirs",
    "MEMORY_CONFIDENCE_MIN": "0",
    "MEMORY_MAX_PER_WINDOW": "1000",
    "CONTEXT_MAX_PER_WRITER": "none",
    "CONTEXT_TOOL_TURNS": "true",
    "MCP_ENDPOINT": "./evil.db",
    "REDACT": "off",
    "MEMORY_COMPACT": "true",
    "PROJECT_DETECTION": "false",
    "NAMESPACE_QUOTA": "memories=0",
    "MEMORY_TOKEN": "mem_of-the-folder",
    "MEMORY_TOKEN_FILE": "/etc/passwd",
    "MEMORY_PLAIN_HTTP": "true",
    "MEMORY_EVENTS": "content",
    "MEMORY_RANK": "similarity",
    "DECAY_REINFORCEABLE_HOURS": "1",
    "FRESHNESS_DECAY_RATE": "9",
    "FRESHNESS_MIN": "0",
    "FRESHNESS_FRESH": "1",
    "FRESHNESS_STALE": "0.9",
    "ACCESS_BOOST_RATE": "9",
    "ACCESS_BOOST_MAX": "100",
    "RELEVANCE_THRESHOLD_FRESH": "1",
    "RELEVANCE_THRESHOLD_NORMAL": "1",
    "RELEVANCE_THRESHOLD_STALE": "1",
    "MEMORY_SERVE": "auto",
    "CAPTURE_PROJECTS": "/*",
    "TIDY_COMMAND": "judge",
}
HARMLESS = {
    "MEMORY_FORMAT": "text",
    "DEFAULT_LIMIT": "3",
    "HISTORY_TAIL_N": "5",
    "MEMORY_TOP_K": "2",
    "CONTEXT_TOKEN_BUDGET": "900",
    "CONTEXT_MEMORY_CHARACTERS": "4000",
    "CONTEXT_RECALL_N": "7",
    "CONTEXT_SHARES": "30,40,30",
    "MEMORY_TIMEOUT_SECONDS": "20",
    "LOG_LEVEL": "ERROR",
    "SCRATCHPAD_SIZE": "20",
    "PROMPT_TOKENS": "700",
}


@pytest.fixture(autouse=True)
def own_folder_of_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own folders of settings and data."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that the user has cloned."""
    config = tmp_path / "cloned"
    config.mkdir()
    return config


def write(folder: Path, values: dict[str, str]) -> Path:
    """Write settings into the `.env` of a folder; return its path."""
    file = folder / ".env"
    file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return file


def load(folder: Path, warnings: list[str] | None = None, **environment: str) -> Config:
    """Load the configuration of a folder; collect the warnings."""
    return load_config(
        environment=environment,
        folder=folder,
        tell=(warnings if warnings is not None else []).append,
    )


def test_every_setting_is_harmless_or_tested_here() -> None:
    assert HOSTILE.keys() | HARMLESS.keys() == {setting.variable for setting in SETTINGS}
    assert {setting.variable for setting in SETTINGS if setting.harmless} == HARMLESS.keys()


def test_a_folder_cannot_choose_a_harmful_setting(folder: Path) -> None:
    plain = load(folder)
    write(folder, HOSTILE)
    warnings: list[str] = []
    assert load(folder, warnings) == plain
    assert len(warnings) == 1
    assert warnings[0].startswith("ignored MEMORY_HOME, MEMORY_STORE, ")
    assert warnings[0].endswith(
        f"{folder}/.env may not choose them for you; to allow it, run: memory trust"
    )
    assert "evil" not in warnings[0]


@pytest.mark.parametrize("variable", HOSTILE)
def test_each_harmful_setting_alone_is_ignored(folder: Path, variable: str) -> None:
    plain = load(folder)
    write(folder, {variable: HOSTILE[variable]})
    warnings: list[str] = []
    assert load(folder, warnings) == plain
    assert [variable in line for line in warnings] == (
        [] if variable.endswith(("API_KEY", "MEMORY_TOKEN")) else [True]
    )


def test_harmless_settings_are_accepted(folder: Path) -> None:
    write(folder, HARMLESS)
    warnings: list[str] = []
    config = load(folder, warnings)
    assert warnings == []
    assert {
        setting.variable for setting in SETTINGS if config.sources[setting.name] == ".env"
    } == HARMLESS.keys()
    assert (config.default_limit, config.format) == (3, "text")


def test_invalid_values_from_another_program_are_ignored(folder: Path) -> None:
    write(folder, {"DEFAULT_LIMIT": "unlimited", "MEMORY_TOP_K": "", "HISTORY_TAIL_N": "4"})
    warnings: list[str] = []
    config = load(folder, warnings)
    assert (config.default_limit, config.history_tail_n) == (10, 4)
    assert "ignored DEFAULT_LIMIT, MEMORY_TOP_K" in warnings[0]


def test_an_approved_file_can_choose_everything_until_it_changes(folder: Path) -> None:
    file = write(folder, {"MEMORY_NAMESPACE": "bob", "EMBEDDER": "none"})
    trust.approve(file, registers({}))
    warnings: list[str] = []
    config = load(folder, warnings)
    assert (config.namespace, config.embedder, warnings) == ("bob", "none", [])
    write(folder, {"MEMORY_NAMESPACE": "bob", "EMBEDDER": "none", "DEFAULT_LIMIT": "3"})
    config = load(folder, warnings)
    assert (config.namespace, config.embedder, config.default_limit) == ("shared", "minilm", 3)
    assert "has changed since you trusted it" in warnings[0]
    trust.approve(file, registers({}))
    assert load(folder).namespace == "bob"
    assert trust.revoke(file, registers({})) is True
    assert trust.revoke(file, registers({})) is False
    assert load(folder).namespace == "shared"


def test_an_approval_is_for_one_path(folder: Path, tmp_path: Path) -> None:
    file = write(folder, {"MEMORY_NAMESPACE": "bob"})
    trust.approve(file, registers({}))
    other = tmp_path / "copied"
    other.mkdir()
    (other / ".env").write_bytes(file.read_bytes())
    assert load(other).namespace == "shared"
    (tmp_path / "linked").symlink_to(folder)
    assert load(tmp_path / "linked").namespace == "bob"


def test_a_dotenv_file_cannot_approve_itself(folder: Path) -> None:
    """The environment, not the file, determines where the approvals are."""
    file = write(folder, {"MEMORY_HOME": str(folder), "MEMORY_NAMESPACE": "bob"})
    trust.approve(file, folder)
    assert (folder / "trusted.json").exists()
    assert load(folder).namespace == "shared"


@pytest.mark.parametrize("approved", [False, True])
def test_variables_are_not_expanded(
    folder: Path, approved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "AKIAVICTIM")
    file = write(
        folder,
        {
            "EMBEDDER_URL": "https://evil.example/${AWS_SECRET_ACCESS_KEY}",
            "EMBEDDER_API_KEY": "$AWS_SECRET_ACCESS_KEY",
        },
    )
    if approved:
        trust.approve(file, registers({}))
    config = load(folder)
    key = config.embedder_api_key
    assert "AKIAVICTIM" not in f"{config} {key.reveal() if key else ''}"
    assert (config.embedder_url == "https://evil.example/${AWS_SECRET_ACCESS_KEY}") is approved


@pytest.mark.skipif(os.name != "posix", reason="modes are of POSIX")
@pytest.mark.parametrize(
    ("mode", "warnings"),
    [(0o646, "is writable by everyone"), (0o664, "other members of its group")],
)
def test_a_file_that_others_may_write_is_ignored(folder: Path, mode: int, warnings: str) -> None:
    file = write(folder, HARMLESS)
    if mode & stat.S_IWGRP and os.geteuid() == 0:
        os.chown(file, 0, OTHER_USER)
    elif mode & stat.S_IWGRP:
        pytest.skip("only root can give a file to a group of others")
    file.chmod(mode)
    lines: list[str] = []
    assert load(folder, lines).default_limit == 10
    assert warnings in lines[0]
    trust.approve(
        file, registers({})
    )  # the approval applies to the content, no matter who may change the file
    assert load(folder).default_limit == 3


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files away")
def test_another_users_file_is_ignored(folder: Path) -> None:
    os.chown(write(folder, HARMLESS), OTHER_USER, OTHER_USER)
    lines: list[str] = []
    assert load(folder, lines).default_limit == 10
    assert "belongs to another user" in lines[0]


def test_a_very_large_file_is_ignored(folder: Path) -> None:
    file = write(folder, {"DEFAULT_LIMIT": "3"})
    with file.open("a") as stream:
        stream.write("# é\n" * 3_000_000)
    lines: list[str] = []
    assert load(folder, lines).default_limit == 10
    assert "is larger than 65536 bytes" in lines[0]
    with pytest.raises(ConfigError, match="larger than 65536 bytes"):
        trust.approve(file, registers({}))


@pytest.mark.parametrize("sign", ["é", "€", "😀"])
def test_a_large_file_is_read_up_to_the_last_complete_character(folder: Path, sign: str) -> None:
    file, head = folder / ".env", b"DEFAULT_LIMIT=3\n#"
    for inside in range(
        1, len(sign.encode())
    ):  # this many bytes of the character are within the part that is read
        file.write_bytes(head + b"-" * (trust.MAX_BYTES - len(head) - inside) + sign.encode())
        config = trust.read(file, registers({}))
        assert (config.values, config.doubt) == (
            {"DEFAULT_LIMIT": "3"},
            "is larger than 65536 bytes",
        )


def test_a_large_file_with_an_error_before_its_last_character_is_refused(folder: Path) -> None:
    file, head = folder / ".env", b"DEFAULT_LIMIT=3\n#"
    for rest, is_refused in ((b"\xff---", True), (b"\xff--", False)):
        file.write_bytes(head + b"-" * (trust.MAX_BYTES - len(head) - len(rest)) + rest + b"----")
        with pytest.raises(ConfigError, match="not UTF-8") if is_refused else nullcontext():
            trust.read(file, registers({}))


def test_a_file_of_the_maximum_size_is_read_and_approved(folder: Path) -> None:
    file = folder / ".env"
    file.write_bytes(b"#" * (trust.MAX_BYTES - 1) + b"\n")
    assert not trust.read(file, registers({})).doubt
    assert trust.approve(file, registers({}))
    assert trust.read(file, registers({})).approved


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes in folders")
def test_a_pipe_does_not_block(folder: Path) -> None:
    os.mkfifo(folder / ".env")
    assert load(folder).default_limit == 10
    with pytest.raises(ConfigError, match="there is no file"):
        trust.approve(folder / ".env", registers({}))


@pytest.mark.skipif(os.name != "posix", reason="modes are of POSIX")
@pytest.mark.parametrize("name", ["config.toml", "trusted.json"])
def test_the_users_own_files_count_only_if_no_other_user_may_write_them(
    folder: Path, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "settings" / "memories" / name
    file.parent.mkdir(parents=True)
    file.write_text("{}" if name == "trusted.json" else "default_limit = 4\n")
    write(folder, HARMLESS)
    load(folder)
    file.chmod(0o666)
    with pytest.raises(ConfigError, match=rf"{name} is writable by everyone; run: chmod o-w"):
        load(folder)


@pytest.mark.skipif(os.name != "posix", reason="modes are of POSIX")
def test_a_home_that_others_may_write_is_refused(folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "parent" / "home"
    home.mkdir(parents=True)
    load(folder, MEMORY_HOME=str(home))
    home.parent.chmod(0o777)
    with pytest.raises(ConfigError, match=r"parent is writable by everyone; run: chmod o-w"):
        load(folder, MEMORY_HOME=str(home))
    home.parent.chmod(0o1777)  # like /tmp: users can't replace files of other users there
    load(folder, MEMORY_HOME=str(home))
    home.chmod(0o757)
    with pytest.raises(ConfigError, match=r"home is writable by everyone"):
        load(folder, MEMORY_HOME=str(home))


@pytest.mark.parametrize("content", ["[]", "{", "\x00", '{"a": '])
def test_unreadable_approvals_approve_nothing(folder: Path, tmp_path: Path, content: str) -> None:
    register = tmp_path / "settings" / "memories" / "trusted.json"
    register.parent.mkdir(parents=True)
    register.write_text(content)
    write(folder, HARMLESS)
    with pytest.raises(ConfigError, match=r"trusted\.json.*remove it and trust your files again"):
        load(folder)


def test_the_library_warns_about_an_ignored_file(folder: Path) -> None:
    write(folder, {"MEMORY_STORE": "sqlite:///other.db"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_config(environment={}, folder=folder)
    assert ["ignored MEMORY_STORE" in str(each.message) for each in caught] == [True]


def test_the_command_warns_about_a_dotenv_file_in_a_cloned_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, {"MEMORY_STORE": f"sqlite:///{tmp_path}/stolen.db", "EMBEDDER": "none"})
    monkeypatch.chdir(folder)

    def run(*arguments: str) -> tuple[int, str, str]:
        with CliRunner().isolation(
            env={"MEMORY_HOME": str(tmp_path / "home"), "EMBEDDER": "fake"}
        ) as (out, err, _):
            code = front_door.run_by_server_or_here([*arguments])
            sys.stdout.flush()
            return code, out.getvalue().decode(), err.getvalue().decode()

    code, _, reported = run("create", "kept at home")
    assert (code, reported.count("\n")) == (0, 1)
    assert "ignored MEMORY_STORE, EMBEDDER:" in reported
    assert not (tmp_path / "stolen.db").exists()
    code, _, reported = run("trust")
    assert (code, "add --yes to confirm" in reported) == (2, True)
    assert run("trust", "--yes")[0] == 0
    assert str(folder / ".env") in run("trust", "--list")[1]
    assert '"count": 0' in run("list")[1]
    assert run("trust", "--revoke")[0] == 0
    assert '"count": 1' in run("list")[1]
    assert run("trust", "--revoke")[0] == 1


@pytest.mark.parametrize(
    ("group", "user", "members", "is_private"),
    [
        (("ann", 7), ("ann", 7), [], True),
        (("ann", 7), ("ann", 7), ["ann"], True),
        (("ann", 7), ("ann", 7), ["ann", "bob"], False),
        (("users", 7), ("ann", 7), [], False),
        (("ann", 7), ("ann", 8), [], False),
        (("ann", 7), None, [], False),
    ],
)
def test_a_group_is_private_if_it_has_the_users_name_and_no_other_members(
    monkeypatch: pytest.MonkeyPatch,
    group: tuple[str, int],
    user: tuple[str, int] | None,
    members: list[str],
    is_private: bool,
) -> None:
    def entry(_: int) -> object:
        if user is None:
            raise KeyError
        return SimpleNamespace(pw_name=user[0], pw_gid=user[1])

    found = SimpleNamespace(gr_name=group[0], gr_gid=group[1], gr_mem=members)
    monkeypatch.setattr("grp.getgrgid", lambda _: found)
    monkeypatch.setattr("pwd.getpwuid", entry)
    assert disk._is_private(7) is is_private
