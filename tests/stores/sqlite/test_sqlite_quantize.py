"""Codes and bit codes of vectors: the nearest are selected exactly, and the coarse order is
right.
"""

from typing import Any

import numpy as np
import pytest

from memories.stores.sqlite import quantize
from memories.stores.sqlite.quantize import Quantizer

COUNT = 3_000


def unit(count: int, dimension: int, seed: int = 1) -> Any:
    """Return random unit vectors, shape (count, dimension)."""
    drawn = np.random.default_rng(seed).standard_normal((count, dimension))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def quantizer(monkeypatch: pytest.MonkeyPatch) -> Quantizer:
    """A quantizer that scores one code in 30, but at least 16."""
    monkeypatch.setattr(quantize, "_SCORED_AT_LEAST", 16)
    monkeypatch.setattr(quantize, "_SCORED_SHARE", 30)
    monkeypatch.setattr(quantize, "_PIECE", 1_000)
    return Quantizer(96)


def differing(codes: bytes, query: Any) -> Any:
    """Count the signs in which each code differs from a query."""
    return ((Quantizer(96).numbers(codes) > 0) != (query > 0)).sum(axis=1)


@pytest.mark.parametrize(
    ("among", "least", "share"),
    [(None, 1, 100), (None, 101, 101), (1_500, 1, 50), (600, 1, 20), (450, 1, 16)],
)
def test_the_nearest_codes_differ_least(
    quantizer: Quantizer, among: int | None, least: int, share: int
) -> None:
    codes = quantizer.encode(unit(COUNT, 96))
    query = quantizer.rotate_query(unit(1, 96, seed=2)[0])
    chosen = np.arange(COUNT)
    if among is not None:
        chosen = np.sort(np.random.default_rng(3).permutation(COUNT)[:among])
    counted = differing(codes, query)[chosen]
    expected = chosen[counted <= np.sort(counted)[share - 1]]
    near = quantizer.nearest(query, quantizer.bits(codes), None if among is None else chosen, least)
    assert near is not None
    assert near.tolist() == expected.tolist()


@pytest.mark.parametrize(("count", "are_all"), [(16, True), (17, False)])
def test_all_codes_count_as_near_if_there_are_few(
    quantizer: Quantizer, count: int, are_all: bool
) -> None:
    codes = quantizer.encode(unit(count, 96))
    query = quantizer.rotate_query(unit(1, 96, seed=2)[0])
    chosen = np.arange(count)
    near = quantizer.nearest(query, quantizer.bits(codes), chosen, 1)
    assert (near is chosen) == are_all
    assert (quantizer.nearest(query, quantizer.bits(codes), None, 1) is None) == are_all


def test_with_many_codes_a_sample_determines_which_are_near(
    quantizer: Quantizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantize, "_SAMPLE", 500)
    codes = quantizer.encode(unit(COUNT, 96))
    query = quantizer.rotate_query(unit(1, 96, seed=2)[0])
    counted = differing(codes, query)
    sample = np.sort(counted[::6])  # 500 of 3,000; 100 are wanted of all, so 17 of the sample
    near = quantizer.nearest(query, quantizer.bits(codes), None, 1)
    assert near is not None
    assert near.tolist() == np.flatnonzero(counted <= sample[16]).tolist()


@pytest.mark.parametrize("dimension", [8, 64, 96, 192, 200, 384])
def test_coarse_scores_are_products_with_the_signs(dimension: int) -> None:
    """The query is rounded to eight levels, so each number is off by at most half a step."""
    quantizer = Quantizer(dimension)
    codes = quantizer.encode(unit(300, dimension))
    query = quantizer.rotate_query(unit(1, dimension, seed=2)[0])
    bits = quantizer.bits(codes)
    step = (query.max() - query.min()) / 7
    levels = query.min() + step * np.rint((query - query.min()) / step)
    expected = (quantizer.numbers(codes) > 0) @ levels
    scores = quantizer.coarse_scores(query, bits, quantizer.bit_counts(bits))
    assert np.allclose(scores, expected, atol=1e-4)


@pytest.mark.parametrize("compact", [False, True])
def test_no_codes_have_no_scores(compact: bool) -> None:
    """All vectors that a search selects may be damaged."""
    quantizer = Quantizer(96, compact=compact)
    assert len(quantizer.scores(unit(1, 96)[0], b"")) == 0


@pytest.mark.parametrize("compact", [False, True])
def test_vectors_get_the_same_codes_whether_encoded_together_or_one_by_one(compact: bool) -> None:
    """A batch of three is encoded vector by vector, a batch of four together."""
    quantizer = Quantizer(96, compact=compact)
    vectors = [unit(1, 96, seed=seed) for seed in range(4)]
    for batch in (vectors, vectors[:3], [*vectors[:3], unit(2, 96)]):
        assert quantizer.encode_each(batch) == [quantizer.encode(windows) for windows in batch]
