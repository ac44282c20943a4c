"""Verifies and confirms memories: `Memories.truth`."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from memories.core.times import to_millis
from memories.errors import InvalidInput
from memories.guard.origin import tags_of
from memories.models import VERDICTS, Draft, Memory, Moment, is_doubtful
from memories.read.lookup import with_global
from memories.read.versions import ANCHORS
from memories.stores.protocol import scan_pages
from memories.write.anchoring import fields_of
from memories.write.change import append_confirmation
from memories.write.write_context import WriteContext

if TYPE_CHECKING:
    from memories.stores.records import Record
    from memories.write.tidy import Choose, Suggestion


class Verification(NamedTuple):
    """The result of checking the anchors of memories.

    Attributes:
        counts: The number of memories with each verdict.
        doubtful: The memories that may no longer be true, starting with those whose anchors
            changed.
        unverified: The memories that could not be checked, or that need to be confirmed.
    """

    counts: Mapping[str, int]
    doubtful: tuple[Memory, ...]
    unverified: tuple[Memory, ...]


class Truth:
    """Verifies and confirms memories for one caller: `Memories.truth`."""

    def __init__(
        self, ctx: WriteContext, judge: Callable[[Sequence[Memory]], Sequence[Memory]]
    ) -> None:
        """Initialize.

        Args:
            ctx: The context in which memories are read and written.
            judge: Returns memories with their verdicts.
        """
        self._ctx, self._judge = ctx, judge

    def verify(self, *, project: str | Sequence[str] | None = None) -> Verification:
        """Check the anchors of all readable memories whose project is available here.

        Args:
            project: Only memories of this project, under any of its names.

        Raises:
            InvalidInput: This caller can't check anchors; see `place` of `Memories`.
        """
        ctx, judge = self._ctx, self._ctx.lookup.judge
        if judge is None:
            raise InvalidInput(
                "anchors can be checked only by you, on the machine with the working tree: run "
                "memory verify there"
            )
        records: dict[tuple[str, str], Record] = {}
        names = ctx.lookup.names_of_project(project)
        for namespace in ctx.lookup.readable:  # namespaces may share ids
            own = ctx.lookup.where()._replace(namespaces=(namespace,))
            for where in with_global(own, names):
                for page in scan_pages(ctx.store, where):
                    records |= {
                        (namespace, record.ref.group): record
                        for record in page
                        if any(name in record.fields for name in ANCHORS)
                    }
        memories = [ctx.to_memory(record) for record in records.values()]
        judged = judge.judge(memories, ctx.now)
        with_verdict = [(memory.verdict.word, memory) for memory in judged if memory.verdict]
        counts = Counter(word for word, _ in with_verdict)
        ordered = sorted(with_verdict, key=lambda pair: VERDICTS.index(pair[0]))
        return Verification(
            counts={word: counts[word] for word in VERDICTS},
            doubtful=tuple(memory for _, memory in ordered if is_doubtful(memory)),
            unverified=tuple(memory for word, memory in ordered if word == VERDICTS[2]),
        )

    def tidy(
        self, *, dry_run: bool = False, choose: "Choose | None" = None
    ) -> "list[tuple[Suggestion, str]]":
        """Propose how to tidy the caller's own namespace. The proposals await `review`.

        At most 20 proposals wait at a time, and a rejected proposal is not made again.

        Args:
            dry_run: Store nothing; only return what would be proposed.
            choose: Receives up to 60 suggestions, most certain first, and returns those to propose.

        Returns:
            The new proposals, most certain first, each with the id under which it awaits review.
        """
        from memories.write.tidy import propose

        return propose(self._ctx, dry_run=dry_run, choose=choose)

    def peek(self, memory_id: str) -> Memory:
        """Return your own memory, even if it was deleted. Unlike `Memories.get`, this doesn't count
        as a read.

        Raises:
            NotFound: There is no such memory.
            RequestError: Only another namespace has the memory.
        """
        return self._ctx.to_memory(self._ctx.lookup.find_own(memory_id, deleted=True))

    def confirm(
        self,
        memory_id: str,
        *,
        anchors: Sequence[str] | None = None,
        valid_until: Moment | None = None,
    ) -> Memory:
        """Confirm that a memory is still true, by adding a version with the same content.

        If newer memories corrected this one, it now corrects the last of them.

        Args:
            memory_id: The id, or an unambiguous prefix of 8 or more characters.
            anchors: The memory's new anchors. None keeps the anchors that still
                hold, and adds those found in its content.
            valid_until: A new time until which the memory is valid. None removes a time that has
                passed.

        Raises:
            NotFound: There is no such memory, or it was deleted.
            RequestError: Another memory has replaced this one.
            InvalidInput: An anchor doesn't hold.
        """
        ctx, anchoring = self._ctx, self._ctx.anchoring
        latest = ctx.lookup.find_live(memory_id)
        if anchors is None:
            anchors = anchoring.confirm(latest)
        draft = Draft(latest.text, tags_of(latest.labels), anchors=anchors, valid_until=valid_until)
        draft, kinds = anchoring.prepare(draft)
        fields = fields_of(replace(draft, anchored_at=ctx.now))
        until = latest.fields.get("valid_until")
        if valid_until is None and until is not None and until < to_millis(ctx.now):
            fields["valid_until"] = None
        fields["redacted"] = " ".join((*latest.read_list("redacted"), *kinds)) or None
        record = append_confirmation(ctx.lookup, ctx.embedder, latest.ref.group, fields, ctx.now)
        memory = ctx.to_memory(record)
        return self._judge([memory])[0]
