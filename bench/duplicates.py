"""How well duplicates are distinguished from corrections in `tests/data/duplicate_*.jsonl`, with a
packaged model.
"""

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from memories.embedders import open_embedder
from memories.write.compare.duplicates import Relation, compare_words

DATA = Path(__file__).parent.parent / "tests" / "data"
PAIRS, KINDS = DATA / "duplicate_pairs.jsonl", DATA / "duplicate_kinds.jsonl"
THRESHOLDS = (0.60, 0.65, 0.70, 0.75, 0.80, 0.82, 0.84, 0.86, 0.88, 0.90, 0.92, 0.94, 0.95, 0.96)
NOT_STORED = {Relation.SAME, Relation.DUPLICATE}


@dataclass(frozen=True, slots=True)
class Pair:
    """An old and a new text, whether the new one must be stored, and the cosine of their
    vectors.
    """

    kind: str
    split: str
    old: str
    new: str
    repeats: bool
    cosine: float

    def relation(self, threshold: float) -> Relation:
        """Return the relation of the new text to the old one at a threshold."""
        return compare_words(self.new, self.old, self.cosine, threshold=threshold).relation


@dataclass(frozen=True, slots=True)
class Score:
    """Counts of pairs: rightly refused, wrongly refused, and repetitions that were stored."""

    right: int
    wrong: int
    missed: int

    @property
    def precision(self) -> float:
        """Return the share of repetitions among the refused pairs."""
        return self.right / max(1, self.right + self.wrong)

    @property
    def recall(self) -> float:
        """Return the share of the repetitions that were refused."""
        return self.right / max(1, self.right + self.missed)


def load_pairs(path: Path = PAIRS, name: str = "minilm") -> list[Pair]:
    """Return the pairs of a file, with cosines by an embedder.

    Args:
        path: Lines of JSON with `kind`, `split`, `old`, `new` and `expected`, which is `duplicate`
            or `stored`.
        name: The embedder.
    """
    embedder = open_embedder(name)
    assert embedder is not None
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        Pair(
            kind=row["kind"],
            split=row["split"],
            old=row["old"],
            new=row["new"],
            repeats=row["expected"] == "duplicate",
            cosine=float(embedder.embed(row["old"])[0] @ embedder.embed(row["new"])[0]),
        )
        for row in rows
    ]


def score(pairs: Iterable[Pair], threshold: float) -> Score:
    """Count the pairs that are refused at a threshold, and the pairs that should be refused."""
    counts = Counter((pair.repeats, pair.relation(threshold) in NOT_STORED) for pair in pairs)
    return Score(right=counts[True, True], wrong=counts[False, True], missed=counts[True, False])


def recommended(pairs: Sequence[Pair]) -> float:
    """Return the best threshold on the dev split among those without a wrong duplicate.

    The best threshold has the largest sum of two shares: the repetitions that are not stored, and
    the pairs about one fact (corrections, elaborations) that get a hint, less the share of other
    pairs that get one too.
    """
    dev = [pair for pair in pairs if pair.split == "dev"]
    safe = [threshold for threshold in THRESHOLDS if not score(dev, threshold).wrong]
    return max(
        safe,
        key=lambda threshold: (
            score(dev, threshold).recall + _near(dev, threshold) - _far(dev, threshold)
        ),
    )


def _near(pairs: Sequence[Pair], threshold: float) -> float:
    return _hinted(
        [pair for pair in pairs if pair.kind.startswith(("correction", "elaboration"))], threshold
    )


def _far(pairs: Sequence[Pair], threshold: float) -> float:
    return _hinted([pair for pair in pairs if pair.kind in {"related", "unrelated"}], threshold)


def _hinted(pairs: Sequence[Pair], threshold: float) -> float:
    return sum(pair.relation(threshold) is Relation.DIFFERS for pair in pairs) / max(1, len(pairs))


def _grouped(pairs: Iterable[Pair], name: Callable[[Pair], str]) -> dict[str, list[Pair]]:
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[name(pair)].append(pair)
    return groups


def _print_cosines(pairs: Sequence[Pair]) -> None:
    print(f"{'cosines':22} {'pairs':>5} {'min':>6} {'median':>6} {'max':>6} {'>0.95':>6}")
    for kind, group in _grouped(pairs, lambda pair: pair.kind).items():
        cosines = [pair.cosine for pair in group]
        numbers = (min(cosines), statistics.median(cosines), max(cosines))
        hard = sum(cosine > 0.95 for cosine in cosines)
        print(f"{kind:22} {len(group):5} {' '.join(f'{n:6.3f}' for n in numbers)} {hard:6}")


def _print_sweep(pairs: Sequence[Pair]) -> None:
    print(
        f"\n{'not stored':10} {'threshold':>9} {'precision':>9} {'recall':>7} {'wrong':>6} "
        f"{'hints':>6} {'noise':>6}"
    )
    for split, group in _grouped(pairs, lambda pair: pair.split).items():
        for threshold in THRESHOLDS:
            result = score(group, threshold)
            hints = f"{_near(group, threshold):6.3f} {_far(group, threshold):6.3f}"
            print(
                f"{split:10} {threshold:9.2f} {result.precision:9.3f} {result.recall:7.3f} "
                f"{result.wrong:6} {hints}"
            )


def _print_verdicts(pairs: Sequence[Pair], threshold: float) -> None:
    print(
        f"\n{f'verdicts at {threshold:.2f}':22} {'split':5} {'pairs':>5} "
        f"{' '.join(f'{relation:>10}' for relation in Relation)}"
    )
    for name, group in _grouped(pairs, lambda pair: f"{pair.kind:22} {pair.split:5}").items():
        counts = Counter(pair.relation(threshold) for pair in group)
        print(
            f"{name} {len(group):5} {' '.join(f'{counts[v] / len(group):10.2f}' for v in Relation)}"
        )


def main() -> None:
    """Print the cosines by kind, precision and recall by threshold, and the verdicts, for both sets
    of pairs.
    """
    pairs = load_pairs()
    best = recommended(pairs)
    for group in (pairs, load_pairs(KINDS)):
        _print_cosines(group)
        _print_sweep(group)
        _print_verdicts(group, best)
    print(f"\nrecommended threshold: {best:.2f}")


if __name__ == "__main__":
    main()
