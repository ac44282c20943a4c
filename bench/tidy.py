"""How precise the proposals of `memory tidy` are, on the histories of `bench.agents_memory`.

The facts of a person are stored on their days without any comparison, so that no correction is
linked. Every seventh fact is stored again at the end, without its full stop. All proposals are
counted, not only the first twenty.

- A proposal `contradiction` is right if the newer fact corrects the older one, by the history.
- A proposal `same` is right if it deletes one of the facts that were stored again.
- recall: the share of the corrections, and of the repeated facts, that were proposed.
"""

import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench import agents_memory, report
from bench.agents_memory import EVERYWHERE, HALVES, History
from memories import Draft, Memories, load_config
from memories.write.tidy import suggest

_EVERY = 7


def run() -> None:
    """Measure the proposals of each half."""
    report.heading("Proposals to tidy")
    rows = []
    for half in HALVES:
        count: Counter[str] = Counter()
        for history in agents_memory.load():
            if history.half == half:
                count += _count(history)
        rows += [_row(half, kind, count) for kind in ("contradiction", "same")]
    report.table(("proposals", "made", "right", "precision", "recall"), rows)


def _row(half: str, kind: str, count: Counter[str]) -> tuple[object, ...]:
    made, right, there = count[kind], count[f"{kind} right"], count[f"{kind} there"]
    precision, recall = right / max(1, made), right / max(1, there)
    return f"{half}, {kind}", made, right, f"{precision:.2f}", f"{recall:.2f}"


def _count(history: History) -> Counter[str]:
    count: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        config = load_config({"store": f"sqlite:///{scratch}/m.db"})._replace(home=Path(scratch))
        last = max(datetime.fromisoformat(fact.at) for fact in history.facts)
        now = last.replace(tzinfo=UTC) + timedelta(days=30)
        with Memories(config=config, clock=lambda: now) as memories:
            drafts = [
                Draft(fact.text, _tags(fact.project), created_at=_noon(fact.at))
                for fact in history.facts
            ]
            again = [
                Draft(fact.text.rstrip("."), _tags(fact.project), created_at=now)
                for fact in history.facts[::_EVERY]
            ]
            stored = memories.create_many(drafts, force=True)
            repeated = {made.id for made in memories.create_many(again, force=True)}
            ids = {fact.id: made.id for fact, made in zip(history.facts, stored, strict=True)}
            corrected = {
                ids[fact.id]: ids[fact.corrects] for fact in history.facts if fact.corrects
            }
            text_of = {made.id: made.memory.content for made in stored if made.memory}
            for suggestion in suggest(memories._ctx()):
                if suggestion.kind not in ("contradiction", "same"):
                    continue
                count[suggestion.kind] += 1
                newer, older = suggestion.action["id"], suggestion.action.get("corrects")
                if suggestion.kind == "same":
                    is_right = newer in repeated
                else:
                    while newer in corrected and corrected[newer] != older:
                        newer = corrected[newer]
                    is_right = corrected.get(newer) == older
                count[f"{suggestion.kind} right"] += is_right
                if not is_right:
                    print(f"wrong, {history.id}: {suggestion.text} {text_of.get(older, '')}")
            count["contradiction there"] += len(corrected)
            count["same there"] += len(repeated)
    return count


def _tags(project: str) -> dict[str, str]:
    return {"global": "true"} if project == EVERYWHERE else {"project": project}


def _noon(day: str) -> datetime:
    return datetime.fromisoformat(day).replace(hour=12, tzinfo=UTC)
