"""The embedder of a store: its own unless a setting names one; `reembed` changes it."""

import sys
from pathlib import Path

import pytest

from cli.conftest import Command
from memories import EmbedderMismatch, Memories
from memories.core import installation
from memories.embedders import give_hint
from memories.embedders.minilm import MiniLM

ASK = ("search", "wo wohnt Anna?")
UNSET = {"EMBEDDER": None}


@pytest.fixture
def e5_store(memory: Command) -> str:
    """Create a store with vectors of E5; return the id of its memory."""
    answer = memory("create", "Anna lives in Riga", env={"EMBEDDER": "e5"})
    return str(answer.json["id"])


def test_a_store_is_searched_with_the_model_of_its_vectors(memory: Command, e5_store: str) -> None:
    assert memory(*ASK, env=UNSET).json["results"][0]["id"] == e5_store
    assert memory("create", "Bob lives in Oslo", env=UNSET).json["stored"] is True
    status = memory("status", env=UNSET).json
    assert status["embedder"] == status["store_model"] == "multilingual-e5-small/int8/1"
    assert status["without_vector_count"] == 0


@pytest.mark.usefixtures("e5_store")
def test_a_setting_that_names_another_model_is_an_error(memory: Command, home: Path) -> None:
    assert "multilingual-e5-small/int8/1" in memory(*ASK, env={"EMBEDDER": "minilm"}).error
    (home / "config.toml").write_text('embedder = "minilm"\n')
    assert "multilingual-e5-small/int8/1" in memory(*ASK, env=UNSET).error


def test_a_store_cannot_select_an_embedding_service(
    memory: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service would receive every text; only a setting may choose it."""
    with monkeypatch.context() as patch:
        patch.setattr(MiniLM, "space", MiniLM.space._replace(model="text-embedding-3-small"))
        memory("create", "Anna lives in Riga", env={"EMBEDDER": "minilm"})
    monkeypatch.delenv("EMBEDDER")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-used")
    with Memories() as memories, pytest.raises(EmbedderMismatch, match="text-embedding-3-small"):
        memories.search("wo wohnt Anna?")


def test_without_the_package_of_the_model_the_error_names_the_command(
    memory: Command, e5_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "memories_e5", None)
    answer = memory(*ASK, env=UNSET)
    assert answer.code == 2
    assert "EMBEDDER=e5 needs its model" in answer.error
    assert memory("get", e5_store, env=UNSET).json["content"] == "Anna lives in Riga"


# --- reembed


def test_reembed_saves_the_new_model_in_the_settings(
    memory: Command, e5_store: str, home: Path
) -> None:
    file = home / "config.toml"
    file.write_text('# mine\nembedder = "e5" # for German\ndefault_limit = 5\n')
    answer = memory("reembed", "--model", "minilm", env=UNSET)
    assert answer.json["saved"] == str(file)
    assert answer.err == f"Saved in {file}: embedder = minilm\n"
    assert file.read_text() == '# mine\nembedder = "minilm"\ndefault_limit = 5\n'
    answer = memory("search", "where does Anna live?", env=UNSET)
    assert answer.json["results"][0]["id"] == e5_store


def test_reembed_writes_the_setting_before_any_table(memory: Command, home: Path) -> None:
    memory("create", "Anna lives in Riga", env=UNSET)
    rule = "[[redact]]\nname = 'badge'\npattern = 'BADGE-[0-9]{6}'\nkeywords = ['BADGE-']\n"
    (home / "config.toml").write_text(rule)
    assert memory("reembed", "--model", "e5", env=UNSET).code == 0
    assert (home / "config.toml").read_text() == f'embedder = "e5"\n{rule}'
    assert memory("config", env=UNSET).code == 0


def test_reembed_of_another_store_does_not_change_the_settings(memory: Command, home: Path) -> None:
    other = ("--store", "sqlite:///other.db")
    memory("create", "Anna lives in Riga", *other, env=UNSET)
    answer = memory("reembed", "--model", "e5", *other, env=UNSET)
    assert not {"saved", "switch"} & set(answer.json)
    assert not (home / "config.toml").exists()
    assert memory(*ASK, *other, env=UNSET).json["count"] == 1


def test_reembed_reports_an_environment_that_names_another_model(
    memory: Command, e5_store: str
) -> None:
    answer = memory("reembed", "--model", "e5", env={"EMBEDDER": "minilm"})
    assert answer.json["switch"] == "export EMBEDDER=e5"
    assert "EMBEDDER (environment) is still minilm" in answer.err
    assert memory(*ASK, env={"EMBEDDER": "e5"}).json["results"][0]["id"] == e5_store


def test_a_failed_installation_changes_nothing(
    memory: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory("create", "Anna lives in Riga", env=UNSET)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(installation, "install_arguments", lambda _: ["false", "memoriae-e5"])
    answer = memory("reembed", "--model", "e5", "--install", env=UNSET)
    assert answer.code == 1
    assert "false ended with exit code 1; nothing was changed; run: false memoriae-e5" in answer.err
    assert memory("status", env=UNSET).json["store_model"].startswith("all-MiniLM-L6-v2")


# --- the hint


@pytest.mark.parametrize(
    ("verb", "text", "language"),
    [
        ("create", "Anna wohnt in Riga und arbeitet bei der Post", "German"),
        ("search", "где живёт Анна?", "Russian"),
        ("search", "お客様の請求書", "Japanese"),
    ],
)
def test_a_language_unknown_to_the_packaged_model_is_reported_once(
    memory: Command, verb: str, text: str, language: str
) -> None:
    hint = memory(verb, text, env=UNSET).err
    assert f"looks like {language}" in hint
    assert "memory reembed --model e5 --install" in hint
    assert memory(verb, f"{text} !", env=UNSET).err == ""


@pytest.mark.parametrize(
    "text",
    [
        "Anna lives in Riga",
        "Ann met José in Paris",
        "fix: la la land",
        "naïve café",
        "CI runs on node 22",
        "La Scala plays on Friday",
        "main runs on es",
    ],
)
def test_english_gets_no_hint(text: str, tmp_path: Path) -> None:
    assert give_hint(text, MiniLM(), tmp_path) == ""
    assert not (tmp_path / ".language-hint").exists()


def test_a_store_with_the_multilingual_model_gets_no_hint(memory: Command, e5_store: str) -> None:
    answer = memory(*ASK, env=UNSET)
    assert (answer.json["results"][0]["id"], answer.err) == (e5_store, "")
