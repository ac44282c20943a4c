"""Embedders: the same text gives the same unit vector, regardless of texts embedded earlier or
together with it.
"""

import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memories import Memories
from memories.embedders import Embedder, minilm, open_embedder
from memories.embedders.fake import FakeEmbedder
from memories.embedders.minilm import MAX_WINDOWS, MiniLM
from memories.embedders.protocol import embed_many
from memories.errors import ConfigError, EmbedderError
from memories.search.relevance import calibrate, to_cosine

TEXTS = [
    "The user prefers Python",
    "",
    "!",
    "用户住在柏林",
    "🎉",
    "a" * 500,
    "word " * 300,
    "Emails go out at noon",
]


@pytest.fixture(scope="module")
def model() -> MiniLM:
    """The default model, loaded once."""
    return MiniLM()


@pytest.fixture(params=["minilm", "fake"])
def embedder(request: pytest.FixtureRequest, model: MiniLM) -> Embedder:
    """Each embedder that needs no service."""
    other = open_embedder(request.param)
    assert other is not None
    return model if request.param == "minilm" else other


def cosine(model: Embedder, one: str, other: str) -> float:
    """Return the cosine of two texts' vectors."""
    return float(model.embed(one)[0] @ model.embed(other)[0])


def test_vectors_have_unit_length_and_the_dimension_of_their_space(embedder: Embedder) -> None:
    for text in TEXTS:
        vectors = embedder.embed(text)
        assert vectors.dtype == np.float32
        assert vectors.ndim == 2
        assert vectors.shape[1] == embedder.space.dimension
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-4)


def test_vectors_do_not_depend_on_earlier_texts(embedder: Embedder) -> None:
    alone = {text: embedder.embed(text) for text in TEXTS}
    for text in reversed(TEXTS):
        assert np.array_equal(embedder.embed(text), alone[text])


def test_vectors_do_not_depend_on_the_instance_or_the_thread(
    model: MiniLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[np.ndarray]] = []  # type: ignore[type-arg]
    monkeypatch.setattr(minilm, "_load_model", inspect.unwrap(minilm._load_model))
    another = MiniLM()
    threads = [
        threading.Thread(target=lambda: found.append([another.embed(text) for text in TEXTS]))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    alone = [model.embed(text) for text in TEXTS]
    for vectors in found:
        assert all(map(np.array_equal, alone, vectors))


def test_spaces_case_and_quote_styles_change_nothing(model: MiniLM) -> None:
    assert np.array_equal(model.embed("The  “user”\n"), model.embed('the "user"'))


class Windows:
    """A fake model that returns the length of each window."""

    def run(
        self, _: None, given: dict[str, "np.ndarray[Any, Any]"]
    ) -> "list[np.ndarray[Any, Any]]":
        return [np.full((1, 384), given["input_ids"].shape[1], dtype=np.float32)]


def test_a_long_text_is_cut_into_windows_up_to_a_limit(model: MiniLM) -> None:
    counting = MiniLM()
    counting._loaded = (model._load()[0], Windows())
    around = 2  # the tokens for the beginning and the end
    assert counting.embed("word " * 254)[:, 0].tolist() == [254 + around]
    assert counting.embed("word " * 255)[:, 0].tolist() == [254 + around, 33 + around]
    assert counting.embed("word " * 100_000)[:, 0].tolist() == [254 + around] * MAX_WINDOWS
    assert MAX_WINDOWS == 32


def test_the_end_of_a_long_text_is_embedded(model: MiniLM) -> None:
    text = "The weather was fine that day. " * 60 + "The database password is rotated every month."
    query = model.embed("how often do we rotate the database password?")[0]
    similar = model.embed(text) @ query
    assert similar.argmax() == len(similar) - 1
    assert similar.max() > similar[0] + 0.2


@pytest.mark.thorough
def test_window_vectors_of_an_answer_shift_towards_the_first_one(model: MiniLM) -> None:
    text = (
        f"{'How to bake bread with rye flour. ' * 34}{'The train to Basel leaves at nine. ' * 34}"
    )
    plain = model.embed(text)
    assert len(plain) > 2
    user, answer, tool = embed_many(model, [text] * 3, ["user", "assistant", "tool"])
    assert np.array_equal(user, plain)
    assert np.array_equal(tool, plain)
    assert np.allclose(np.linalg.norm(answer, axis=1), 1.0, atol=1e-5)
    assert np.allclose(answer[0], plain[0], atol=1e-6)
    halfway = (plain[-1] + plain[0]) / np.linalg.norm(plain[-1] + plain[0])
    assert np.allclose(answer[-1], halfway, atol=1e-6)
    [memory] = embed_many(model, [text])
    assert np.array_equal(memory, plain)
    [short] = embed_many(model, ["Yes"], ["assistant"])
    assert np.array_equal(short, model.embed("Yes"))


@pytest.mark.parametrize(
    ("text", "paraphrase", "stranger"),
    [
        (
            "The user prefers dark mode",
            "She likes a black background",
            "Deploys happen on Tuesdays",
        ),
        ("Deploys happen on Tuesdays", "When do we release?", "The user is allergic to nuts"),
        (
            "The user is allergic to nuts",
            "What must we not cook for her?",
            "The API listens on port 8080",
        ),
        ("Alice leads the payments team", "Who is in charge of billing?", "The tests run on Linux"),
    ],
)
def test_a_paraphrase_is_closer_than_an_unrelated_text(
    model: MiniLM, text: str, paraphrase: str, stranger: str
) -> None:
    assert cosine(model, text, paraphrase) > cosine(model, text, stranger) + 0.05


def test_a_calibrated_similarity_separates_similar_from_unrelated_texts(embedder: Embedder) -> None:
    """0.5 separates similar from dissimilar texts, whatever the model's cosines are."""
    text = "The database password is rotated every month"
    scale = embedder.space.calibration
    same, like, stranger = (
        calibrate(float(embedder.embed(text)[0] @ embedder.embed(other)[0]), *scale)
        for other in (
            text,
            "the password of the database is rotated",
            "Bob brings a cake for lunch",
        )
    )
    assert 1 >= same > 0.95
    assert same > like > 0.8
    assert 0 <= stranger < 0.1
    assert to_cosine(calibrate(0.3, *scale), *scale) == pytest.approx(0.3)
    assert calibrate(-1.0, *scale) < calibrate(0.0, *scale) < calibrate(1.0, *scale)


def test_the_fake_embedder_compares_only_words() -> None:
    fake = open_embedder("fake")
    assert fake is not None
    assert cosine(fake, "red apples", "apples, red!") == pytest.approx(1.0)
    assert cosine(fake, "red apples", "scarlet fruit") < 0.5


def test_missing_weights_are_reported_in_one_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(minilm, "_WEIGHTS", tmp_path)
    with pytest.raises(
        EmbedderError,
        match=rf"cannot load all-MiniLM-L6-v2 from {tmp_path}.*reinstall memoriae",
    ):
        MiniLM().embed("text")


@pytest.mark.parametrize("end", ["int8.onnx", "vocab.txt", "characters.json"])
def test_damaged_weights_are_reported_in_one_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str
) -> None:
    damaged = f"all-MiniLM-L6-v2.{end}"
    whole = {file.name: file.read_bytes() for file in minilm._WEIGHTS.glob("all-MiniLM-L6-v2.*")}
    for name, content in whole.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / damaged).write_bytes(
        whole[damaged][:100_000] if damaged.endswith("txt") else b"nonsense"
    )
    monkeypatch.setattr(minilm, "_WEIGHTS", tmp_path)
    with pytest.raises(EmbedderError, match="reinstall memoriae"):
        MiniLM().embed("text")


def test_embedders_are_opened_by_name() -> None:
    assert isinstance(open_embedder("minilm"), MiniLM)
    assert open_embedder("none") is None
    for name in ("gpt", "gpt:4", "openai-large", "", ":"):
        with pytest.raises(ConfigError, match=f'there is no embedder "{name}"'):
            open_embedder(name)


class OddEmbedder(FakeEmbedder):
    """An embedder that passes the right vectors through a given function."""

    space = FakeEmbedder.space._replace(model="odd/1")

    def __init__(self, change: Callable[[Any], Any]) -> None:
        """Initialize with the function."""
        self._change = change

    def embed(self, text: str) -> Any:
        """Return the changed vectors."""
        return self._change(super().embed(text))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda vectors: vectors[:, :10], "an array of shape (1, 10)"),
        (lambda vectors: vectors[0], "an array of shape (64,)"),
        (lambda vectors: vectors[:0], "an array of shape (0, 64)"),
        (lambda vectors: vectors * np.nan, "a vector of length nan"),
        (lambda vectors: vectors * 0, "a vector of length 0"),
        (lambda vectors: vectors * 7, "a vector of length 7"),
        (lambda vectors: vectors.tolist(), "something of type list"),
        (lambda vectors: vectors.astype(object), "an array of type object"),
        (lambda vectors: vectors.astype(complex), "an array of type complex128"),
        (lambda _: None, "something of type NoneType"),
    ],
)
def test_only_unit_vectors_are_stored_and_searched_for(
    tmp_path: Path, change: Callable[[Any], Any], part: str
) -> None:
    url = f"sqlite:///{tmp_path}/store"
    message = (
        f"the embedder odd/1 returned {part}; it must return unit vectors of shape (windows, 64)"
    )
    with Memories(url, embedder=OddEmbedder(change)) as memories:
        with pytest.raises(EmbedderError) as caught:
            memories.create("The port is 5433")
        assert str(caught.value) == message
        with pytest.raises(EmbedderError):
            memories.add_turns("talk", ["The port is 5433"])
    with Memories(url, embedder=OddEmbedder(lambda vectors: vectors)) as memories:
        assert memories.status().memory_count == memories.status().turn_count == 0
        memories.create("The port is 5433")
    with Memories(url, embedder=OddEmbedder(change)) as memories, pytest.raises(EmbedderError):
        memories.search("port")
