"""What `Memories` does with scratchpads, and how they hear of what is written."""

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from memories import validate
from memories.config import is_own_name
from memories.errors import InvalidInput, StoreError, StoreUnreachable
from memories.lookup import Lookup, narrowed, with_global
from memories.models import SHARED, Memory
from memories.settings import Config
from memories.stores import Store, local_path
from memories.stores.records import SEARCHED, Collection, Filter

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.hot.at_hand import Scratchpad
    from memories.hot.entries import Rules
    from memories.hot.matching import Matches
    from memories.hot.mirror import Change, Mirror
    from memories.hot.scratchpad import Place
    from memories.origin import Origin
    from memories.search.filters import SearchFilters
    from memories.search.results import Explanation, Found
    from memories.stores.logged import Told
    from memories.stores.records import Record
    from memories.where.selector import Selector
    from memories.write.create import Writer


Answer = TypeVar("Answer")


class ScratchpadVerbs:
    """The verbs of `Memories` that concern the hot tier.

    The store of the settings has a file for each namespace. One that an option names has the file only where no other
    store has it, and a `Store` that was passed in has none but for `at_home`.
    """

    config: Config
    namespace: str
    _channel: str
    _clock: Callable[[], datetime]
    _embedder: "Embedder | None"
    _kept: Store
    _lookup: Lookup
    _writer: Callable[[], "Writer"]
    _memory: "Callable[[Record], Memory]"
    _limit: Callable[[int | None], int]
    _selector: "Callable[[str | None], Selector]"
    _owns_store: bool
    flush_accesses: Callable[[], None]
    _search: "Callable[[str, SearchFilters], Found]"
    _is_home: bool  # whether the store is the one that scratchpads mirror

    def pin(self, memory_id: str) -> Memory:
        """Keep a memory in the scratchpad, by a version of it that says the same.

        Raises:
            NotFound: There is no such memory, or it was deleted.
            RequestError: Another memory has replaced it, it is in a namespace that is only read, or 50 are pinned.
        """
        return self._pin(memory_id, pinned=True)

    def unpin(self, memory_id: str) -> Memory:
        """Take back that a memory is kept in the scratchpad; see `pin`."""
        return self._pin(memory_id, pinned=False)

    def scratchpad(self, *, refresh: bool = False, rebuild: bool = False) -> "Scratchpad":
        """Return the hot tier: pinned, recent and often used memories of your own namespace, and those of `shared`.

        What a person changed in a file is taken over first. The store is opened only if a file is out of date.

        Args:
            refresh: Bring the file of your namespace up to date whatever it says of itself.
            rebuild: Choose anew from all memories of it, those included that were taken out of the file.

        Raises:
            InvalidInput: With `rebuild`: what a person wrote in the file can't be taken over.
        """
        return self._scratchpad(refresh=refresh, rebuild=rebuild).current(self._rules(), self._clock())

    def scratchpad_at_hand(self) -> "Scratchpad | None":
        """Return what `scratchpad` does if that takes no look at the store; else None."""
        from memories.hot.at_hand import at_hand

        return at_hand(self.config, self._lookup.readable, self._clock()) if self._is_home else None

    def search_scratchpad(self, query: str, *, offline: bool = False, **filters: "Unpack[SearchFilters]") -> "Matches":
        """Search the hot tier by words, without the store or a model.

        Args:
            query: The question.
            offline: Read the files as they are, because the store can't be asked.
            **filters: As for `search`, but those that only a store can answer.

        Raises:
            InvalidInput: A value is not acceptable, only a store can answer this, or a file can't be read.
        """
        return self._search_hot(query, filters, offline=offline)

    def edits(self) -> tuple[str, ...]:
        """Take over what a person changed in the scratchpad's file; return what was not, each a sentence.

        It costs a look at the file unless there is something. A store that can't be written is left for later.
        """
        from memories.hot.file import content, is_edited, path

        if not self._is_configured:
            return ()
        file = path(self.config.home, self.namespace)
        try:
            text = content(file)
            if text is None or not is_edited(text):
                return ()
            return self._scratchpad_of(self.namespace).notes
        except InvalidInput as exc:
            return (str(exc),)
        except StoreError as exc:
            return (f"what was changed in {file} is taken over later: {exc}",)

    def offline(self) -> "Scratchpad | None":
        """Return what the files of scratchpads say, whichever store they mirror; None if there are none.

        A memory that decays is left out if an older program wrote the file, which lacks what its confidence depends on.
        """
        found = self._offline()
        return None if found is None else found.current(self._rules(), self._clock())

    def missing(self) -> str | None:
        """Return that the file of the store is gone although its scratchpad has memories, a sentence; None if not."""
        from memories.hot import scratchpad

        file = self._store_file
        if file is None or file.exists():
            return None
        place = self._scratchpad_place(self.namespace)
        with contextlib.suppress(InvalidInput):
            pad = scratchpad.load(place.home, place.namespace)
            if pad is not None and pad.entries and pad.store == place.store:
                return f"{file} is missing, and {place.file} remembers it; restore a backup, or remove the latter too"
        return None

    @property
    def has_scratchpad(self) -> bool:
        """Whether there is a scratchpad that can answer when the store can't be asked."""
        from memories.hot.file import path

        return any(os.path.lexists(path(self.config.home, each)) for each in self._lookup.readable)

    def ask_store(
        self, ask: "Callable[[], Answer]", instead: "Callable[[], Answer | None]"
    ) -> "tuple[Answer, str | None]":
        """Return the store's answer, and None; if it can't be asked, what the scratchpad says, and why.

        The store may take as long as `memory_timeout_seconds` allows, if there is a scratchpad.

        Args:
            ask: Asks the store.
            instead: Answers from the scratchpad; None if it can't.

        Raises:
            StoreError: The store can't be asked, and the scratchpad can't answer.
        """
        if not self.has_scratchpad:
            return ask(), None
        try:
            return self._ask_in_time(ask), None
        except StoreError as exc:
            found = instead()
            if found is None:
                raise
            return found, str(exc)

    def abandon(self) -> None:
        """Leave the store open when this is closed: a call that was given up still uses it."""
        self._owns_store = self._is_home = False

    def at_home(self) -> Self:
        """Return it with scratchpads: the store that was passed in is the one that the settings name, opened before."""
        self._is_home = True
        return self

    # --- inside ----------------------------------------------------------------------------------------------------

    def _answer(self, query: str, filters: "SearchFilters", *, offline: bool) -> "Explanation":
        """Search, with the scratchpad in place of a store that can't be asked if `offline`; see `search`."""
        if not offline or not self.has_scratchpad:
            return self._search_tier(query, filters)
        ask = functools.partial(self._search_tier, query, filters)
        instead = functools.partial(self._search_offline, query, filters)
        found, error = self.ask_store(ask, instead)
        return found if error is None else found._replace(tier="hot", error=error)

    def _ask_in_time(self, ask: "Callable[[], Answer]") -> "Answer":
        """Return what the store answers within `memory_timeout_seconds`."""
        from memories.deadline import DEADLINE, Deadline, MemoryTimeout

        if missing := self.missing():
            raise StoreError(missing)
        shared, seconds = DEADLINE.get(), self.config.memory_timeout_seconds
        deadline = Deadline(seconds) if shared is None else shared(seconds)
        try:
            return deadline.run(ask)
        except MemoryTimeout as exc:
            self.abandon()
            raise StoreUnreachable(str(exc)) from exc
        finally:
            if shared is None:
                deadline.close()

    def _search_tier(self, query: str, filters: "SearchFilters") -> "Explanation":
        from memories.search.filters import TIERS

        tier = filters.get("tier") or "deep"
        if tier not in TIERS:
            raise InvalidInput(f'tier must be deep, hot or auto, not "{validate.shown(str(tier))}"')
        if tier != "deep":
            hot = self._search_hot(query, filters)
            if tier == "hot" or hot.enough:
                return hot.found
        return self._search(query, filters).explanation()._replace(tier=tier)

    def _search_offline(self, query: str, filters: "SearchFilters") -> "Explanation | None":
        """Search the scratchpad as it is; None if only the store can answer."""
        try:
            return self._search_hot(query, filters, offline=True).found
        except InvalidInput:
            return None

    def _search_hot(self, query: str, filters: "SearchFilters", *, offline: bool = False) -> "Matches":
        """Search the scratchpads; see `search_scratchpad`."""
        from memories.hot.matching import matches
        from memories.search.filters import only_in_store

        if asked := only_in_store(filters):
            raise InvalidInput(f"the scratchpad can't answer this ({', '.join(asked)}); leave it out or ask the store")
        found = self._offline() if offline else self._scratchpad()
        entries = () if found is None else found.entries
        fits, rules = self._fits(filters), self._rules()
        least = filters.get("min_confidence")
        rules = rules if least is None else rules._replace(min_confidence=validate.unit(least, "min-confidence"))
        return matches(entries, query, fits, self._limit(filters.get("limit")), rules, self._clock())

    def _scratchpad(self, *, refresh: bool = False, rebuild: bool = False) -> "Scratchpad":
        """Return the hot tier, memories that are not current included."""
        if missing := self.missing():
            raise StoreError(missing)
        own = self._scratchpad_of(self.namespace, refresh=refresh, rebuild=rebuild)
        if SHARED not in self._lookup.readable or self.namespace == SHARED:
            return own
        from memories.hot.at_hand import together

        return together(own, self._scratchpad_of(SHARED))

    def _offline(self) -> "Scratchpad | None":
        """Return what the files hold, memories that are not current included; None if there are no files."""
        from memories.hot import scratchpad
        from memories.hot.at_hand import Scratchpad
        from memories.hot.file import path

        entries, notes, waiting, there = [], [], 0, False
        for namespace in self._lookup.readable:
            try:
                pad = scratchpad.load(self.config.home, namespace)
            except InvalidInput as exc:
                notes.append(str(exc))
                continue
            if pad is not None:
                there = True
                entries += scratchpad.memories_of(pad, namespace)
                waiting += pad.waiting if namespace == self.namespace else 0
        file = str(path(self.config.home, self.namespace))
        return Scratchpad(tuple(entries), waiting, file, tuple(notes)) if there else None

    def _scratchpad_of(self, namespace: str, *, refresh: bool = False, rebuild: bool = False) -> "Scratchpad":
        from memories.hot import at_hand, scratchpad, sync

        rules, place = self._rules(), self._scratchpad_place(namespace)
        try:
            pad = scratchpad.load(place.home, namespace)
        except InvalidInput:
            pad = None  # the refresh tells
        known = self._is_configured or pad is None or pad.store == place.store
        # Who is often read has a place, so the reads that wait are counted before it is chosen anew.
        if not (self._is_home and known) or not (refresh or rebuild or self._is_kept(place)):
            self.flush_accesses()
            return sync.from_store(self._by_editor(namespace), rules, rebuild=rebuild)
        if not (refresh or rebuild or pad is None or at_hand.needs_store(place, pad, self._clock())):
            return at_hand.from_file(place, pad)
        self.flush_accesses()
        try:
            found = sync.refreshed(place, self._by_editor(namespace), rules, rebuild=rebuild)
        except OSError as exc:  # what is remembered is told all the same
            if isinstance(exc, StoreError):
                raise
            found = sync.from_store(self._by_editor(namespace), rules, rebuild=rebuild)
            return found._replace(notes=(f"{place.file} can't be written: {exc.strerror or exc}",))
        if self._may_have_file(namespace):
            self._describe(place)
        return found

    @property
    def _is_configured(self) -> bool:
        """Whether the store is that of the settings."""
        return self._is_home and self.config.sources["store"] != "flag"

    def _may_have_file(self, namespace: str) -> bool:
        """Return whether the scratchpad of a namespace is made if it is not there."""
        return self._is_configured and not is_own_name(namespace, self.config)

    def _is_kept(self, place: "Place") -> bool:
        """Return whether a scratchpad is kept in its file: what only reads makes none before the first memory."""
        from memories.hot import scratchpad

        if scratchpad.exists(place):
            return True
        written = Filter(Collection.MEMORY, (place.namespace,), state="any")
        return not is_own_name(place.namespace, self.config) and bool(self._kept.count(written, at_most=1))

    def _fits(self, filters: "SearchFilters") -> "Callable[[Record], bool]":
        """Return what tells whether a record meets the filters of a search."""
        project = filters.get("project")
        among = narrowed(self._lookup.where(), filters, self._clock())
        each = with_global(among, project)
        where = filters.get("where")
        selector = None if where is None else self._selector(where)
        return lambda record: any(one.fits(record) for one in each) and (selector is None or selector.fits(record))

    def _pin(self, memory_id: str, *, pinned: bool) -> Memory:
        from memories.write import change

        return self._memory(change.pin(self._lookup, self._embedder, memory_id, self._clock(), pinned=pinned))

    def _scratchpad_place(self, namespace: str) -> "Place":
        from memories.hot.at_hand import place_of

        place = place_of(self.config, namespace)
        return place if self._owns_store else place._replace(stamp="")

    @property
    def _store_file(self) -> Path | None:
        """The file of the store, if it is one file."""
        is_file = self._is_home and self.config.store.startswith("sqlite:")
        return local_path(self.config.store) if is_file else None

    def _rules(self) -> "Rules":
        from memories.hot.entries import Rules

        return Rules.of(self.config)

    def _by_editor(self, namespace: str) -> "Writer":
        """Return what writes an edit of a scratchpad, and tells no scratchpad of it.

        Anything may have edited the file, so the edit is trusted as the command is that takes it over: as a person's
        only at a terminal. What serves others may run at one, too.
        """
        from memories.origin import AGENT, origin
        from memories.stores.logged import logged

        def writer_of() -> "Origin":
            found = origin("cli", self.config.identity or namespace)
            return found if self._channel == "cli" else found._replace(trust=AGENT)

        store = logged(self._kept, "cli", self._clock, writer_of)
        return self._writer()._replace(lookup=Lookup(store, namespace, (namespace,)))

    @functools.cached_property
    def _mirror(self) -> "Mirror":
        from memories.hot.mirror import Mirror

        return Mirror(self._scratchpad_place, self._clock, make=self._may_have_file, describe=self._describe)

    def _describe(self, place: "Place") -> None:
        """Write `metadata.json` of a namespace; where that fails the next write does it."""
        from memories.hot import metadata, scratchpad

        where, first = Filter(Collection.MEMORY, (place.namespace,)), None
        ever = (where._replace(collection=each, state="any") for each in SEARCHED)
        with contextlib.suppress(OSError, StoreError):  # what was stored is stored, and this only tells of it
            if not place.file.with_name(metadata.FILE).exists() and not any(
                self._kept.count(each, at_most=1) for each in ever
            ):
                return  # it was erased meanwhile
            with scratchpad.alone(place):
                if metadata.created(place.folder) is None:
                    first = next(iter(self._kept.scan(where._replace(state="any"), limit=1)), None)
                metadata.write(
                    place.folder,
                    place.namespace,
                    lambda collection: self._kept.count(where._replace(collection=collection)),
                    self._clock(),
                    None if first is None else first.created_at,
                )

    def _tell_scratchpads(self) -> "Told":
        return lambda changes: self._mirror(changes if self._is_home else _gone(changes))

    def _promote(self, found: "Sequence[Record]") -> None:
        if self._is_home and any(record.accesses for record in found):
            self._mirror.promote(found)

    def _tell_the_rest(self) -> None:
        if "_mirror" in vars(self):
            self._mirror.flush()


def _gone(changes: "Sequence[Change]") -> "list[Change]":
    """Return the changes that take something away: what is new in a store of no home is in no file."""
    from memories.stores.records import Record

    return [change for change in changes if not isinstance(change, Record)]
