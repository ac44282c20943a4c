"""Settings come from a flag, the environment, `.env`, `config.toml`, or a default; the command shows it in cli/."""

import sys
from pathlib import Path

import pytest

from memories.config import SETTINGS, load_config, without_password
from memories.errors import ConfigError


def test_every_setting_has_a_default_and_says_so(tmp_path: Path) -> None:
    config = load_config(environment={"MEMORY_HOME": str(tmp_path)}, folder=tmp_path)
    assert {name for name, source in config.sources.items() if source != "default"} == {"home"}
    assert (config.namespace, config.format, config.embedder) == ("shared", "auto", "minilm")
    assert (config.default_limit, config.min_confidence, config.decay_half_life_hours) == (10, 0.3, 720.0)
    assert (config.chromadb_host, config.chromadb_port, config.collection_name) == ("localhost", 8000, "memories")
    assert config.store == f"sqlite:///{tmp_path}/memories.db"
    assert set(config.sources) == {setting.name for setting in SETTINGS}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the folders of other systems have other names")
def test_the_platforms_folders_are_used_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    file = tmp_path / "settings" / "memories" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("default_limit = 4\n")
    config = load_config(environment={}, folder=tmp_path)
    assert config.home == tmp_path / ".local" / "share" / "memories"
    assert (config.default_limit, config.sources["default_limit"]) == (4, str(file))


def test_flags_that_are_none_were_not_given(tmp_path: Path) -> None:
    config = load_config(
        {"namespace": None, "format": "text"}, environment={"MEMORY_NAMESPACE": "bob"}, folder=tmp_path
    )
    assert (config.namespace, config.sources["namespace"]) == ("bob", "environment")
    assert (config.format, config.sources["format"]) == ("text", "flag")


def test_the_home_in_dotenv_names_the_config_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"MEMORY_HOME={tmp_path}/kept\n")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "config.toml").write_text("count_accesses = false\n")
    config = load_config(environment={}, folder=tmp_path)
    assert config.home == tmp_path / "kept"
    assert config.count_accesses is False
    assert config.sources["home"] == ".env"


@pytest.mark.parametrize("word", ["true", "1", "YES", "on"])
def test_words_for_yes(word: str, tmp_path: Path) -> None:
    assert load_config(environment={"REINFORCE_ON_RETRIEVAL": word}, folder=tmp_path).reinforce_on_retrieval is True


def test_namespaces_are_folded_here_too(tmp_path: Path) -> None:
    assert load_config(environment={"MEMORY_NAMESPACE": " Bob "}, folder=tmp_path).namespace == "bob"


def test_an_error_names_the_setting_its_source_and_the_value(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("DEFAULT_LIMIT=many\n")
    with pytest.raises(ConfigError) as caught:
        load_config(environment={}, folder=tmp_path)
    assert str(caught.value) == 'DEFAULT_LIMIT (.env) must be a whole number from 1 to 1000, not "many"'


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
def test_passwords_are_masked(url: str, shown: str) -> None:
    assert without_password(url) == shown
