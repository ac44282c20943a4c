"""Sets the anchors of memories: those given by the writer, otherwise those found in the text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.times import parse_length, parse_span, to_moment
from memories.errors import InvalidInput
from memories.guard import validate
from memories.guard.origin import tags_of
from memories.models import Draft, Moment, is_session_note
from memories.read import versions

if TYPE_CHECKING:
    from memories.anchors.grammar import Anchor
    from memories.anchors.judge import Judge
    from memories.guard.redactor import Redactor
    from memories.stores.records import Record

MAX_RECHECK_DAYS = 36_500


class Anchoring(NamedTuple):
    """Finds and checks the anchors of drafts and new versions.

    Attributes:
        judge: Checks anchors; None if this caller has no working tree.
        redactor: Removes secrets from anchors that a draft gives; None to leave them unchanged.
        now: The time of writing.
    """

    judge: "Judge | None"
    redactor: "Redactor | None"
    now: datetime

    def prepare(self, draft: Draft) -> tuple[Draft, tuple[str, ...]]:
        """Return a draft with its anchors in their stored form, and the kinds of secrets removed
        from them.

        Raises:
            InvalidInput: A value is invalid, or a given anchor does not hold.
        """
        valid_until = parse_valid_until(draft.valid_until, self.now)
        recheck = parse_recheck(draft.recheck)
        draft = replace(draft, valid_until=valid_until, recheck=recheck, anchored_at=None)
        if draft.anchors is None:
            return draft, ()
        texts, kinds = self._redact(draft.anchors)
        if self.judge is None:
            from memories.anchors.grammar import parse_all  # few drafts give anchors

            return replace(draft, anchors=_to_texts(parse_all(texts))), kinds
        anchors = self.judge.settle(texts, draft.tags)
        return self._set_anchors(draft, _to_texts(anchors)), kinds

    def _redact(self, anchors: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
        if not isinstance(anchors, list | tuple) or not all(isinstance(a, str) for a in anchors):
            raise InvalidInput("anchors must be a list of strings; put a single one in a list")
        if self.redactor is None:
            return list(anchors), ()
        redacted = [self.redactor.text(anchor, "anchor") for anchor in anchors]
        kinds = tuple(kind for anchor in redacted for kind in anchor.kinds)
        return [anchor.text for anchor in redacted], kinds

    def discover(self, draft: Draft) -> tuple[str, ...]:
        """Return the anchors found in a draft's text; none if the draft lists its own anchors."""
        if draft.anchors is not None or self.judge is None:
            return ()
        if is_session_note(draft.tags, draft.key):
            return ()
        return _to_texts(self.judge.discover(draft.content, draft.tags))

    def _set_anchors(self, draft: Draft, anchors: Sequence[str]) -> Draft:
        """Return a draft with anchors and, if these were checked here, the time of the check."""
        assert self.judge is not None
        is_checked = bool(anchors) and self.judge.is_at_hand(draft.tags)
        return replace(draft, anchors=anchors, anchored_at=self.now if is_checked else None)

    def set_for_new(self, draft: Draft, in_text: Sequence[str]) -> Draft:
        """Return a draft of a new memory with the anchors found in its text."""
        return self._set_anchors(draft, in_text) if in_text else draft

    def set_for_next_version(self, latest: "Record", draft: Draft, in_text: Sequence[str]) -> Draft:
        """Return a draft of a memory's next version with the anchors found in its text, and the old
        anchors that still apply. If the draft gives anchors or repeats the text, no anchors are
        added.

        Anchors that the new text no longer mentions, or that no longer hold, are dropped.
        """
        old = versions.split_anchors(latest.fields.get("anchors"))
        if draft.anchors is not None:
            is_same = tuple(draft.anchors) == old
            return replace(draft, anchors=None, anchored_at=None) if is_same else draft
        if draft.content == latest.text or self.judge is None:
            return draft
        from memories.anchors.grammar import select_named  # only updates need it

        named = select_named(old, latest.text, draft.content)
        tags = {**tags_of(latest.labels), **draft.tags}
        kept = self._select_held(named, tags)
        anchors = tuple(dict.fromkeys((*in_text, *kept)))
        if anchors or old:
            return self._set_anchors(draft, anchors)
        return draft

    def make_fields(
        self,
        latest: "Record",
        text: str,
        tags: Mapping[str, str],
        declared: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the fields for the anchors of a memory whose text or tags change.

        Args:
            latest: The latest version of the memory.
            text: The new text.
            tags: The new tags.
            declared: The fields that the writer gave.
        """
        if "anchors" in declared:
            is_same = declared["anchors"] == latest.fields.get("anchors")
            if is_same:
                return {"anchored_at": latest.fields.get("anchored_at")}
            return {}
        draft = Draft(text, tags)
        in_text = self.discover(draft) if text != latest.text else ()
        return fields_of(self.set_for_next_version(latest, draft, in_text))

    def _select_held(self, anchors: Iterable[str], tags: dict[str, str]) -> list[str]:
        """Return the anchors that hold, or that can't be checked here."""
        assert self.judge is not None
        held: list[str] = []
        for anchor in anchors:
            try:
                held += _to_texts(self.judge.settle([anchor], tags))
            except InvalidInput:
                continue
        return held

    def confirm(self, latest: "Record") -> tuple[str, ...]:
        """Return a confirmed memory's anchors: the stored ones that still hold, and those found in
        the text.
        """
        old = versions.split_anchors(latest.fields.get("anchors"))
        if self.judge is None:
            return old
        tags = tags_of(latest.labels)
        in_text = _to_texts(self.judge.discover(latest.text, tags))
        return tuple(dict.fromkeys((*self._select_held(old, tags), *in_text)))


def fields_of(draft: Draft) -> dict[str, Any]:
    """Return a record's fields for the anchors and dates of a draft."""
    return {
        name: value
        for name, value in versions.declared_fields(draft).items()
        if name in versions.ANCHORS
    }


def _to_texts(anchors: "Iterable[Anchor]") -> tuple[str, ...]:
    return tuple(map(str, anchors))


def parse_valid_until(moment: Moment | None, now: datetime) -> Moment | None:
    """Return the time until which a memory is valid, or "" to remove that time.

    A date means the end of that day, and a span such as `12h` or `90d` counts from now.

    Raises:
        InvalidInput: The text is not a time.
    """
    if not isinstance(moment, str):
        return to_moment(moment, now)
    if not moment.strip():
        return ""
    return parse_span(moment, now, is_ahead=True)[1]


def parse_recheck(span: str | int | None) -> int | None:
    """Return the number of days after which a memory should be confirmed again.

    Args:
        span: A number of days, or a time span such as `90d`, `12w`, `3mo` or `1y`. Both 0 and an
            empty string mean never.

    Raises:
        InvalidInput: The text is not a time span.
    """
    if span is None:
        return None
    if isinstance(span, int) and not isinstance(span, bool):
        days = span
    elif isinstance(span, str) and not span.strip():
        days = 0
    else:
        length = parse_length(str(span))
        days = -1
        if length is not None and not length.seconds:
            days = length.days
    if not 0 <= days <= MAX_RECHECK_DAYS:
        shown = validate.shown(str(span))
        raise InvalidInput(
            f'recheck must be a time span such as 90d, 12w, 3mo or 1y, not "{shown}"'
        )
    return days
