"""Data sets of questions about conversations, each read from the user's copy into a common model."""

import json
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

_FOLDERS = ("beam", "realtalk")
SETS = ("locomo", "longmemeval", "beam", "realtalk")
LOCOMO_CATEGORIES = {
    1: "1 multi-hop",
    2: "2 temporal",
    3: "3 open-domain",
    4: "4 single-hop",
    5: "5 adversarial",
}
REALTALK_CATEGORIES = {1: "1 multi-hop", 2: "2 temporal", 3: "3 commonsense"}
BETWEEN_TURNS = timedelta(seconds=30)
_DAY = timedelta(days=1)
_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)  # for a data set without times
_CLOCKS = ("%I:%M %p on %d %B, %Y", "%d.%m.%Y, %H:%M:%S", "%d.%m.%Y, %H:%M", "%Y-%m-%d %H:%M:%S")
_BEAM_ANSWERS = ("answer", "ideal_answer", "ideal_summary")  # other questions have only a rubric
_ONE = "everyone"  # the pool of all conversations
_AGAIN = "~"  # between a message's number and its position among messages with the same number


class DataError(ValueError):
    """The data are missing, or not in the format of the data set; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message.

    Attributes:
        id: Unique to each message in a pool.
        session: The id of the session that it belongs to.
        target: The id that counts as found with it: its own, or that of the first message of its
            exchange.
        role: `user` or `assistant`; None where two persons talk.
        speaker: Its writer, if people talk to each other.
    """

    id: str
    session: str
    target: str
    text: str
    said_at: datetime
    role: str | None = None
    speaker: str | None = None

    @property
    def said(self) -> str:
        """The text with its speaker, for systems that don't support speakers."""
        return f"{self.speaker}: {self.text}" if self.speaker else self.text


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order of time, of one session or several."""

    id: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its answers.

    Attributes:
        turns: The targets that answer it; empty if the data set names only sessions.
        sessions: The sessions that answer it.
        asked_at: When it is asked; None for after everything.
        counted: Whether it counts in the figure for all.
        answer: The expected answer; empty if the data set has none.
    """

    id: str
    text: str
    category: str
    turns: frozenset[str]
    sessions: frozenset[str]
    asked_at: datetime | None = None
    counted: bool = True
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Pool:
    """Conversations that are searched together, and the questions about them."""

    name: str
    conversations: tuple[Conversation, ...]
    questions: tuple[Question, ...]

    @property
    def turns(self) -> list[Turn]:
        """All messages, conversation by conversation."""
        return [turn for conversation in self.conversations for turn in conversation.turns]


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set in the form that is measured.

    Attributes:
        pools: What is searched together.
        apart: Whether each pool is stored, queried and forgotten before the next, because all pools
            at once would be too many.
    """

    name: str
    pools: tuple[Pool, ...]
    apart: bool = False

    @property
    def questions(self) -> list[Question]:
        """All questions, pool by pool."""
        return [question for pool in self.pools for question in pool.questions]

    def limited(self, count: int | None, seed: int) -> "DataSet":
        """Return the set with this many random questions in their original order; conversations all
        stay.
        """
        if count is None or count >= len(self.questions):
            return self
        kept = set(random.Random(seed).sample([question.id for question in self.questions], count))
        pools = (
            replace(pool, questions=tuple(q for q in pool.questions if q.id in kept))
            for pool in self.pools
        )
        return replace(
            self, pools=tuple(pool for pool in pools if pool.questions or not self.apart)
        )

    def joined(self) -> "DataSet":
        """Return the set with all conversations in one pool, in which every question is asked.

        Raises:
            DataError: The same sessions are in several pools, each with different answers.
        """
        if self.apart:
            raise DataError(
                f"{self.name} gives every question its own conversations; they cannot be put in one store"
            )
        conversations = tuple(
            conversation for pool in self.pools for conversation in pool.conversations
        )
        return replace(self, pools=(Pool(_ONE, conversations, tuple(self.questions)),))


def load(name: str, path: Path) -> DataSet:
    """Read a data set.

    Args:
        name: One of `SETS`.
        path: A JSON file for LoCoMo and LongMemEval, a folder for BEAM and REALTALK.

    Raises:
        DataError: It is missing, or in a different format.
    """
    loaders = {"locomo": _locomo, "longmemeval": _longmemeval, "beam": _beam, "realtalk": _realtalk}
    if not path.exists():
        raise DataError(f"there is no {path}; bench/README.md says where to get the data")
    if path.is_dir() != (name in ("beam", "realtalk")):
        raise DataError(
            f"{path} is a folder, and {name} is a file"
            if path.is_dir()
            else f"{path} is not a folder of chats"
        )
    found = DataSet(name, tuple(loaders[name](path)), apart=name == "longmemeval")
    if not found.questions:
        raise DataError(f"{path} has no question with a known answer; is it {name}?")
    return found


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as exc:
        raise DataError(f"{file} cannot be read as JSON: {exc}") from exc


@contextmanager
def _in_format(file: Path, name: str) -> Iterator[None]:
    """Raise an error with one sentence if a file isn't in the format of its data set."""
    try:
        yield
    except DataError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as exc:
        detail = f"{exc} is missing" if isinstance(exc, KeyError) else str(exc)
        raise DataError(f"{file} is not in the format of {name}: {detail}") from exc


def _clean(text: str) -> str:
    """Return a text as it can be stored: without NUL and halves of characters, which JSON can hold;
    empty if blank.
    """
    kept = unicodedata.normalize(
        "NFC", text.replace("\0", "").encode("utf-8", "replace").decode()
    ).strip()
    return kept if any(unicodedata.category(sign)[0] in "LNPSM" for sign in kept) else ""


def _number_in(file: Path) -> tuple[int, str]:
    digits = re.search(r"\d+", file.name)
    return (int(digits[0]) if digits else 0, file.name)


# --- two persons: LoCoMo and REALTALK


def _locomo(file: Path) -> Iterator[Pool]:
    with _in_format(file, "LoCoMo"):
        for item in _read(file):
            yield _persons(item["sample_id"], item["conversation"], item["qa"], LOCOMO_CATEGORIES)


def _realtalk(folder: Path) -> Iterator[Pool]:
    for file in sorted(folder.glob("Chat_*.json"), key=_number_in):
        with _in_format(file, "REALTALK"):
            item = _read(file)
            yield _persons(
                file.stem, item.get("conversation", item), item["qa"], REALTALK_CATEGORIES
            )


def evidence_ids(evidence: object) -> list[str]:
    """Return the turn ids in the evidence of LoCoMo and REALTALK, cleaned.

    Args:
        evidence: A text or texts, with slips such as `D:3:07`, or several ids in one text.

    Returns:
        Ids of the form `D3:7`.
    """
    return [
        f"D{session}:{turn}"
        for session, turn in re.findall(r"D:?(\d+):0*(\d+)", json.dumps(evidence))
    ]


def _persons(
    name: str, talk: Mapping[str, Any], asked: Sequence[Any], categories: Mapping[int, str]
) -> Pool:
    turns = tuple(_person_turns(name, talk))
    sessions = {turn.id: turn.session for turn in turns}
    questions = []
    for number, item in enumerate(asked, 1):
        gold = {f"{name}/{at}" for at in evidence_ids(item.get("evidence", []))} & sessions.keys()
        if gold:
            category = int(item["category"])
            questions.append(
                Question(
                    id=f"{name}/q{number}",
                    text=_clean(item["question"]),
                    category=categories.get(category, str(category)),
                    turns=frozenset(gold),
                    sessions=frozenset(sessions[turn] for turn in gold),
                    counted=category != 5,
                    answer=_clean(str(item.get("answer", ""))),
                )
            )
    return Pool(name, (Conversation(name, turns),), tuple(questions))


def _person_turns(name: str, talk: Mapping[str, Any]) -> Iterator[Turn]:
    numbers = sorted(
        int(found[1]) for key in talk if (found := re.fullmatch(r"session_(\d+)", key))
    )
    if not numbers:
        raise DataError(f"{name} has no session_1, session_2, …")
    before: datetime | None = None
    for number in numbers:
        start = _clock(talk.get(f"session_{number}_date_time"))
        for place, message in enumerate(talk[f"session_{number}"], 1):
            said_at = _clock(message.get("date_time")) or (
                start and start + BETWEEN_TURNS * (place - 1)
            )
            if said_at is None:
                said_at = (
                    _EPOCH if before is None else before + (_DAY if place == 1 else BETWEEN_TURNS)
                )
            before = said_at if before is None else max(before, said_at)
            if text := _with_photo(message):
                ids = evidence_ids(message.get("dia_id", "")) or [f"D{number}:{place}"]
                at = f"{name}/{ids[0]}"
                yield Turn(at, f"{name}/S{number}", at, text, before, speaker=message["speaker"])


def _with_photo(message: Mapping[str, Any]) -> str:
    text = message.get("text") or message.get("clean_text") or ""
    caption = message.get("blip_caption")
    return _clean(f"{text} [shares a photo: {caption}]" if caption else text)


def _clock(text: str | None) -> datetime | None:
    """Return a time that is written in one of the data sets' formats; None for other texts."""
    for form in _CLOCKS if text else ():
        try:
            return datetime.strptime(str(text), form).replace(tzinfo=UTC)
        except ValueError:
            continue
    return None


# --- a user and an assistant: LongMemEval and BEAM


def _longmemeval(file: Path) -> Iterator[Pool]:
    with _in_format(file, "LongMemEval"):
        for item in _read(file):
            if not item["question_id"].endswith("_abs"):
                yield _haystack(item)


def _haystack(item: Mapping[str, Any]) -> Pool:
    conversations: list[Conversation] = []
    gold: set[str] = set()
    for name, date, messages in zip(
        item["haystack_session_ids"], item["haystack_dates"], item["haystack_sessions"], strict=True
    ):
        spoken = [message for message in messages if _clean(message["content"])]
        if not spoken:
            continue
        moment = _slashed(date)
        times = (moment + BETWEEN_TURNS * place for place in range(len(spoken)))
        turns = _exchanges(name, [(f"{name}/{at}", m) for at, m in enumerate(spoken)], times)
        gold |= {
            turn.target
            for turn, message in zip(turns, spoken, strict=True)
            if message.get("has_answer")
        }
        again = sum(
            other.turns[0].session == name for other in conversations
        )  # the same session, contained twice
        conversations.append(Conversation(f"{name}-{again + 1}" if again else name, turns))
    question = Question(
        id=item["question_id"],
        text=_clean(item["question"]),
        category=item["question_type"],
        turns=frozenset(gold),
        sessions=frozenset(item["answer_session_ids"]),
        asked_at=_slashed(item["question_date"]),
        answer=_clean(str(item.get("answer", ""))),
    )
    return Pool(item["question_id"], tuple(conversations), (question,) if question.sessions else ())


def _slashed(text: str) -> datetime:
    """Return the time of `2023/05/20 (Sat) 02:21`."""
    found = re.fullmatch(r"(\d{4}/\d{2}/\d{2})\b.*?(\d{2}:\d{2})", text.strip())
    if not found:
        raise ValueError(f'"{text}" is not a time')
    return datetime.strptime(f"{found[1]} {found[2]}", "%Y/%m/%d %H:%M").replace(tzinfo=UTC)


def _exchanges(
    session: str, messages: Sequence[tuple[str, Mapping[str, Any]]], times: Iterable[datetime]
) -> tuple[Turn, ...]:
    """Return messages with their ids as turns; messages that follow a user's message count as one
    with it.
    """
    turns: list[Turn] = []
    for (at, message), said_at in zip(messages, times, strict=True):
        role = message["role"]
        target = turns[-1].target if turns and role == "assistant" else at
        turns.append(Turn(at, session, target, _clean(message["content"]), said_at, role=role))
    return tuple(turns)


def _beam(folder: Path) -> Iterator[Pool]:
    chats = sorted(folder.glob("*/chat.json"), key=lambda file: _number_in(file.parent))
    if not chats:
        raise DataError(f"{folder} has no N/chat.json; is it beam?")
    for file in chats:
        with _in_format(file, "BEAM"):
            turns = tuple(_beam_turns(file.parent.name, _read(file)))
        questions = _beside(file)
        with _in_format(questions, "BEAM"):
            yield Pool(
                file.parent.name,
                (Conversation(f"chat-{file.parent.name}", turns),),
                tuple(_beam_questions(file.parent.name, _read(questions), turns)),
            )


def _beside(chat: Path) -> Path:
    names = ("pq.json", "probing_questions.json", "probing_questions/probing_questions.json")
    files = [file for name in names if (file := chat.parent / name).is_file()]
    if not files:
        raise DataError(f"there is no pq.json next to {chat}")
    return files[0]


def _beam_turns(chat: str, batches: Sequence[Any]) -> Iterator[Turn]:
    groups = list(_groups(batches))
    anchors = [
        next(filter(None, (m.get("time_anchor") for m in group)), anchor)
        for _, group, anchor in groups
    ]
    starts = group_starts([anchor and _anchor(anchor) for anchor in anchors])
    before = starts[0] if starts else _EPOCH
    used: Counter[str] = Counter()
    for (place, group, _), start in zip(groups, starts, strict=True):
        spoken = [
            {**message, "content": _unmarked(message)} for message in group if _unmarked(message)
        ]
        times = [max(before, start) + BETWEEN_TURNS * at for at in range(len(spoken))]
        before = times[-1] + BETWEEN_TURNS if times else before
        named = [(_once(f"{chat}/{message['id']}", used), message) for message in spoken]
        yield from _exchanges(f"{chat}/{place}", named, times)


def _groups(batches: Sequence[Any], plan: str = "") -> Iterator[tuple[str, list[Any], str | None]]:
    """Yield the groups of messages of a chat, each with its place and the date of its batch.

    A chat is a list of batches. In the repository, a batch is an object with `turns`, lists of
    messages; in the data set's own files, it is one list of messages. Chats of 10M tokens are lists
    of plans: objects of one or more chats by name, some of them null.
    """
    for number, batch in enumerate(batches, 1):
        if isinstance(batch, Mapping) and "turns" not in batch:
            for name, inner in batch.items():
                yield from _groups(inner or (), f"{plan}{name}.")
            continue
        if isinstance(batch, Mapping):
            place, groups, anchor = (
                batch.get("batch_number", number),
                batch["turns"],
                batch.get("time_anchor"),
            )
        else:
            place, groups, anchor = number, [batch], None
        for at, group in enumerate(groups, 1):
            yield f"{plan}{place}.{at}", group, anchor if at == 1 else None


def _once(at: str, used: Counter[str]) -> str:
    """Return the id of a message, followed by a number if other messages have the same id."""
    used[at] += 1
    return at if used[at] == 1 else f"{at}{_AGAIN}{used[at]}"


def group_starts(anchors: Sequence[datetime | None]) -> list[datetime]:
    """Return the time at which each group of messages begins.

    A group begins at its date if it has one, else a day after the previous group. Groups are moved
    closer together if they would otherwise pass the next date. A date that is before an earlier one
    is ignored.

    Args:
        anchors: The date of each group, if it has one.
    """
    known: list[tuple[int, datetime]] = []
    for at, anchor in enumerate(anchors):
        if anchor and (not known or anchor > known[-1][1]):
            known.append((at, anchor))
    first = known[0] if known else (0, _EPOCH)
    starts = [first[1] - _DAY * (first[0] - at) for at in range(first[0])]
    for (at, anchor), (following, limit) in zip(
        known or [first],
        [*known[1:], (len(anchors), datetime.max.replace(tzinfo=UTC))],
        strict=True,
    ):
        step = min(_DAY, (limit - anchor) / max(1, following - at))
        starts += [anchor + step * place for place in range(following - at)]
    return starts


def _anchor(text: str) -> datetime:
    return datetime.strptime(text, "%B-%d-%Y").replace(tzinfo=UTC)


def _unmarked(message: Mapping[str, Any]) -> str:
    """Return the text of a message without the mark that BEAM leaves at the end of user messages,
    such as `->-> 1,1`.
    """
    text: str = message["content"]
    return _clean(
        re.sub(r"\s*->->[\s\d,.)]*(N/A)?\s*$", "", text) if message["role"] == "user" else text
    )


def _beam_questions(
    chat: str, abilities: Mapping[str, Any], turns: Sequence[Turn]
) -> Iterator[Question]:
    known = {turn.id: turn for turn in turns}
    # If several messages have the same number, it is unknown which of them answers.
    doubtful = {turn.id.partition(_AGAIN)[0] for turn in turns if _AGAIN in turn.id}
    for ability, asked in abilities.items():
        for number, item in enumerate(asked if ability != "abstention" else (), 1):
            ids = (f"{chat}/{at}" for at in source_ids(item.get("source_chat_ids")))
            gold = [known[at] for at in ids if at in known and at not in doubtful]
            if gold:
                yield Question(
                    id=f"{chat}/{ability}/{number}",
                    text=_clean(item["question"]),
                    category=ability,
                    turns=frozenset(turn.target for turn in gold),
                    sessions=frozenset(turn.session for turn in gold),
                    answer=_clean(
                        next((item[name] for name in _BEAM_ANSWERS if item.get(name)), "")
                    ),
                )


def source_ids(given: object) -> list[int]:
    """Return the message numbers in BEAM's `source_chat_ids`, which are lists, lists of lists, or
    lists by name.
    """
    if isinstance(given, Mapping):
        return source_ids(list(given.values()))
    if isinstance(given, list):
        return [number for part in given for number in source_ids(part)]
    return [int(str(given))] if str(given).isdigit() else []
