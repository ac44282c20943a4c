"""Settings come from a flag, the environment, `.env`, `config.toml`, or a default. The command's
output is tested in cli/.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memories.answers import store_shapes
from memories.cli import status as status_commands
from memories.config import cache_folder, load_config, registers
from memories.core import trust
from memories.core.urls import without_password
from memories.errors import ConfigError
from memories.settings import SETTINGS

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def own_settings_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own settings folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))


def trusted_dotenv(folder: Path, text: str) -> None:
    """Write a `.env` that the user has approved."""
    (folder / ".env").write_text(text)
    trust.approve(folder / ".env", registers({}))


def test_the_dotenv_example_matches_the_settings_table(tmp_path: Path) -> None:
    written = (ROOT / ".env.example").read_text()
    made = subprocess.run(
        [sys.executable, ROOT / "tools" / "env_example.py"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert written == made.stdout, "run: python tools/env_example.py >.env.example"
    assert re.findall(r"^# ([A-Z_]+)=", written, re.M) == [setting.variable for setting in SETTINGS]
    trusted_dotenv(
        tmp_path, re.sub(r"(?m)^# ([A-Z_]+=.)", r"\1", written)
    )  # every line with a value
    set_, unset = (
        load_config(environment={}, folder=tmp_path),
        load_config(environment={}, folder=tmp_path.parent),
    )
    chroma = {
        "store",
        "sources",
        "identity",
    }  # a host selects Chroma, and a namespace sets the identity
    assert {name: value for name, value in set_._asdict().items() if name not in chroma} == {
        name: value for name, value in unset._asdict().items() if name not in chroma
    }


def test_every_setting_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    assert [setting.variable for setting in SETTINGS if f"`{setting.variable}`" not in page] == []


def test_every_setting_documents_its_default(tmp_path: Path) -> None:
    config = load_config(environment={"MEMORY_HOME": str(tmp_path)}, folder=tmp_path)
    assert {name for name, source in config.sources.items() if source != "default"} == {"home"}
    assert (config.namespace, config.format, config.embedder) == ("shared", "auto", "minilm")
    assert (config.default_limit, config.min_confidence, config.decay_half_life_hours) == (
        10,
        0.3,
        720.0,
    )
    assert (config.chromadb_host, config.chromadb_port, config.collection_name) == (
        "localhost",
        8000,
        "memories",
    )
    assert config.store == f"sqlite:///{tmp_path}/memories.db"
    assert set(config.sources) == {setting.name for setting in SETTINGS}


RANGE = re.compile(r"must be a (whole )?number (?:of \w+ )?from (\S+) to ([\d.e+]+)")


def test_every_setting_accepts_both_ends_of_its_range_and_nothing_beyond(tmp_path: Path) -> None:
    ranges = {}
    for setting in SETTINGS:
        try:
            load_config(environment={setting.variable: "many"}, folder=tmp_path)
        except ConfigError as exc:
            if found := RANGE.search(str(exc)):
                ranges[setting.variable] = found.groups()
    assert {"DEFAULT_LIMIT", "EMBEDDER_TIMEOUT", "CONTEXT_MAX_PER_WRITER"} <= ranges.keys()
    for variable, (whole, low, high) in ranges.items():
        step = 1 if whole else 0.001
        for text in (low, high):
            load_config(environment={variable: text}, folder=tmp_path)
        beyond = [float(low) - step, float(high) + step]
        for number in map(int, beyond) if whole else beyond:
            with pytest.raises(ConfigError, match=f"from {low} to"):
                load_config(environment={variable: str(number)}, folder=tmp_path)


@pytest.mark.parametrize("variable", ["DECAY_HALF_LIFE_HOURS"])
def test_a_number_of_hours_must_be_greater_than_0(variable: str, tmp_path: Path) -> None:
    load_config(environment={variable: "0.001"}, folder=tmp_path)
    for text in ("0", "1e9"):
        with pytest.raises(ConfigError, match="must be a number of hours greater than 0"):
            load_config(environment={variable: text}, folder=tmp_path)


def test_a_quota_can_have_at_most_15_digits(tmp_path: Path) -> None:
    load_config(environment={"NAMESPACE_QUOTA": "memories=" + "9" * 15}, folder=tmp_path)
    with pytest.raises(ConfigError, match="must be limits such as"):
        load_config(environment={"NAMESPACE_QUOTA": "memories=" + "9" * 16}, folder=tmp_path)


@pytest.mark.parametrize(
    ("host", "in_url"),
    [
        ("db_1.example", "db_1.example"),
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "[::1]"),
        ("[::1]", "[::1]"),
    ],
)
def test_the_chroma_host_may_be_a_name_or_any_ip_address(
    host: str, in_url: str, tmp_path: Path
) -> None:
    config = load_config(environment={"CHROMADB_HOST": host}, folder=tmp_path)
    assert config.store == f"chroma://{in_url}:8000"


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the folders of other systems have other names"
)
def test_without_a_home_the_platform_folders_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    file = tmp_path / "settings" / "memories" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("default_limit = 4\n")
    config = load_config(environment={}, folder=tmp_path)
    assert config.home == tmp_path / ".local" / "share" / "memories"
    assert (config.default_limit, config.sources["default_limit"]) == (4, str(file))


def test_flags_with_the_value_none_count_as_omitted(tmp_path: Path) -> None:
    config = load_config(
        {"namespace": None, "format": "text"},
        environment={"MEMORY_NAMESPACE": "bob"},
        folder=tmp_path,
    )
    assert (config.namespace, config.sources["namespace"]) == ("bob", "environment")
    assert (config.format, config.sources["format"]) == ("text", "flag")


def test_the_home_in_dotenv_names_the_config_file(tmp_path: Path) -> None:
    trusted_dotenv(tmp_path, f"MEMORY_HOME={tmp_path}/kept\n")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "config.toml").write_text("count_accesses = false\n")
    config = load_config(environment={}, folder=tmp_path)
    assert config.home == tmp_path / "kept"
    assert config.count_accesses is False
    assert config.sources["home"] == ".env"


@pytest.mark.parametrize("word", ["true", "1", "YES", "on"])
def test_a_boolean_setting_accepts_several_words(word: str, tmp_path: Path) -> None:
    assert (
        load_config(
            environment={"REINFORCE_ON_RETRIEVAL": word}, folder=tmp_path
        ).reinforce_on_retrieval
        is True
    )


def test_the_namespace_is_trimmed_and_lower_case(tmp_path: Path) -> None:
    assert (
        load_config(environment={"MEMORY_NAMESPACE": " Bob "}, folder=tmp_path).namespace == "bob"
    )


def test_an_error_names_the_setting_its_source_and_the_value(tmp_path: Path) -> None:
    trusted_dotenv(tmp_path, "DEFAULT_LIMIT=many\n")
    with pytest.raises(ConfigError) as caught:
        load_config(environment={}, folder=tmp_path)
    assert (
        str(caught.value)
        == 'DEFAULT_LIMIT (.env) must be a whole number from 1 to 1000, not "many"'
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://user:secret@host/db", "postgresql://user:***@host/db"),
        ("postgresql://user:se:c@r@et/x@host:5432/db", "postgresql://user:***@host:5432/db"),
        ("postgresql://user@host:5432/db", "postgresql://user@host:5432/db"),
        ("https://host:8443/path", "https://host:8443/path"),
        ("sqlite:////tmp/a.db", "sqlite:////tmp/a.db"),
    ],
)
def test_the_password_of_a_url_is_masked(url: str, shown: str) -> None:
    assert without_password(url) == shown


KEYS = ("EMBEDDER_API_KEY", "OPENAI_API_KEY", "VOYAGE_API_KEY", "COHERE_API_KEY")


@pytest.mark.parametrize("variable", KEYS)
def test_api_keys_are_never_shown(variable: str, tmp_path: Path) -> None:
    config = load_config(environment={variable: " sk-secret "}, folder=tmp_path)
    key = getattr(config, variable.lower())
    assert key.reveal() == "sk-secret"
    assert f"{key} {key!r} {config}".count("sk-secret") == 0
    for shown in (store_shapes.config(config), status_commands.render_config(config)):
        assert "sk-secret" not in str(shown)
        assert "***" in str(shown)


@pytest.mark.parametrize("variable", KEYS)
def test_an_empty_key_counts_as_unset(variable: str, tmp_path: Path) -> None:
    """Other programs use the same variables; an empty one must not stop ours."""
    trusted_dotenv(tmp_path, f"{variable}=below\n")
    assert (
        getattr(load_config(environment={variable: ""}, folder=tmp_path), variable.lower()).reveal()
        == "below"
    )
    assert (
        getattr(load_config(environment={variable: ""}, folder=tmp_path.parent), variable.lower())
        is None
    )


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("EMBEDDER_DIMENSIONS", "0", "must be a whole number from 1 to 65536"),
        ("EMBEDDER_TIMEOUT", "0", "must be a number of seconds from 0.1 to 600"),
        ("EMBEDDER_TIMEOUT", "nan", "must be a number of seconds from 0.1 to 600"),
        ("EMBEDDER_TIMEOUT", "soon", "must be a number of seconds from 0.1 to 600"),
        ("EMBEDDER_FALLBACK", "minilm", "must be none or local"),
        ("EMBEDDER_PLAIN_HTTP", "perhaps", "must be true or false"),
        ("EMBEDDER_CACHE_MB", "-1", "must be a whole number from 0 to 100000"),
        ("CHROMADB_HOST", "a b", "must be a host name or an IP address"),
        ("CHROMADB_HOST", "a:b", "must be a host name or an IP address"),
        ("CHROMADB_HOST", "a%zz", "must be a host name or an IP address"),
        ("CHROMADB_HOST", "[::1", "must be a host name or an IP address"),
    ],
)
def test_service_settings_are_checked(variable: str, value: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(environment={variable: value}, folder=tmp_path)
    assert str(caught.value) == f'{variable} (environment) {said}, not "{value}"'


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the folders of other systems have other names"
)
def test_the_cache_folder_follows_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "memories"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere" / "memories"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:secret@h/d?sslmode=require", "postgresql://ann:***@h/d?sslmode=require"),
        (
            "postgresql://h/d?sslmode=require&password=secret&port=2",
            "postgresql://h/d?sslmode=require&password=***&port=2",
        ),
        ("postgresql://h/d?sslPassword=secret#x", "postgresql://h/d?sslPassword=***#***"),
        ("qdrant://:secret@h?api_key=secret", "qdrant://:***@h?api_key=***"),
        ("qdrant://secret@h:6333", "qdrant://***@h:6333"),
        ("https://secret@h/v1", "https://***@h/v1"),
        (
            "https://h/v1?sig=secret&code=secret&api-version=2024-02-01",
            "https://h/v1?sig=***&code=***&api-version=2024-02-01",
        ),
        (
            "postgresql://h/d?passwd=secret&pwd=secret&options=-csecret",
            "postgresql://h/d?passwd=***&pwd=***&options=***",
        ),
        ("postgresql://ann:sec?ret@h/d", "postgresql://ann:***?***"),
        ("ann:secret@h", "***@h"),
        ("postgresql:ann:secret@h/d", "***@h/d"),
        ("postgresql://ann:secret", "postgresql://ann:***"),
        ("postgresql://h:5432/d", "postgresql://h:5432/d"),
        ("postgresql://[::1]:5432/d", "postgresql://[::1]:5432/d"),
        ("postgresql:///d?host=/var/run/postgresql", "postgresql:///d?host=/var/run/postgresql"),
        ("sqlite:///C:/Users/ann@home/m.db", "sqlite:///C:/Users/ann@home/m.db"),
        ("sqlite:////home/ann/m.db", "sqlite:////home/ann/m.db"),
    ],
)
def test_secrets_anywhere_in_a_url_are_masked(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="needs POSIX")
def test_a_time_zone_that_python_cannot_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        with monkeypatch.context() as context:
            context.setenv("TZ", "UTC+99:99")
            time.tzset()
            with pytest.raises(ConfigError, match="in TZ is a day or more from UTC"):
                load_config()
    finally:
        time.tzset()
