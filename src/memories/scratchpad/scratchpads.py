"""The scratchpads of one memory: read, searched, edited by hand, and told of what is written."""

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from memories.config import is_own_name
from memories.errors import InvalidInput, StoreError
from memories.guard import validate
from memories.models import SHARED
from memories.read.lookup import Lookup, narrowed, with_global
from memories.settings import Config
from memories.stores import Store, local_path
from memories.stores.records import SEARCHED, Collection, Filter

if TYPE_CHECKING:
    from memories.guard.origin import Origin
    from memories.read.selector import Selector
    from memories.scratchpad.at_hand import Scratchpad
    from memories.scratchpad.entries import Rules
    from memories.scratchpad.matching import Matches
    from memories.scratchpad.mirror import Change, Mirror
    from memories.scratchpad.scratchpad import Place
    from memories.search.filters import SearchFilters
    from memories.stores.records import Record
    from memories.write.writer import Writer


class Scratchpads:
    """The hot tier of one memory: the file of its own namespace, and that of `shared`.

    The store of the settings has a file for each namespace. One that an option names has the file
    only where no other store has it, and a `Store` that was passed in has none but for
    `Memories.at_home`.

    Attributes:
        lookup: Who asks, and which namespaces are read.
        is_home: Whether the store is the one that the files mirror.
        owns_store: Whether this process has opened the store, so that a file can tell by its stamp
            what it mirrors.
        writer: Returns what writes to the store.
        flush_accesses: Has the reads counted that wait for it.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        lookup: Lookup,
        channel: str,
        clock: Callable[[], datetime],
        *,
        home: bool,
    ) -> None:
        """Prepare; no file is opened.

        Args:
            config: The settings.
            store: The store itself: nothing that is written by it is told to a scratchpad.
            lookup: See the class.
            channel: How changes are made; see `Origin`.
            clock: Returns the current time, aware.
            home: See `is_home`.
        """
        self.config, self.lookup = config, lookup
        self.is_home = self.owns_store = home
        self.writer: Callable[[], Writer]
        self.flush_accesses: Callable[[], None]
        self._store, self._channel, self._clock = store, channel, clock

    def show(self, *, refresh: bool = False, rebuild: bool = False) -> "Scratchpad":
        """Return the hot tier; see `Memories.scratchpad`."""
        return self._current(refresh=refresh, rebuild=rebuild).current(self._rules(), self._clock())

    def at_hand(self) -> "Scratchpad | None":
        """Return what `show` does if that takes no look at the store; else None."""
        from memories.scratchpad.at_hand import at_hand

        return at_hand(self.config, self.lookup.readable, self._clock()) if self.is_home else None

    def search(self, query: str, filters: "SearchFilters", *, offline: bool = False) -> "Matches":
        """Search the scratchpads; see `Memories.search_scratchpad`."""
        from memories.scratchpad.matching import matches
        from memories.search.filters import only_in_store

        if asked := only_in_store(filters):
            raise InvalidInput(
                f"the scratchpad can't answer this ({', '.join(asked)}); leave it out or ask the store"
            )
        found = self._in_files() if offline else self._current()
        entries = () if found is None else found.entries
        fits, rules = self._fits(filters), self._rules()
        least = filters.get("min_confidence")
        rules = (
            rules
            if least is None
            else rules._replace(min_confidence=validate.unit(least, "min-confidence"))
        )
        limit = filters.get("limit")
        most = self.config.default_limit if limit is None else validate.limit(limit)
        return matches(entries, query, fits, most, rules, self._clock())

    def edits(self) -> tuple[str, ...]:
        """Take over what a person changed in the file; see `Memories.edits`."""
        from memories.scratchpad.file import content, is_edited, path

        if not self._is_configured:
            return ()
        file = path(self.config.home, self.lookup.namespace)
        try:
            text = content(file)
            if text is None or not is_edited(text):
                return ()
            return self._of(self.lookup.namespace).notes
        except InvalidInput as exc:
            return (str(exc),)
        except StoreError as exc:
            return (f"what was changed in {file} is taken over later: {exc}",)

    def offline(self) -> "Scratchpad | None":
        """Return what the files say; see `Memories.offline`."""
        found = self._in_files()
        return None if found is None else found.current(self._rules(), self._clock())

    def missing(self) -> str | None:
        """Return that the file of the store is gone although a scratchpad has memories; see
        `Memories.missing`.
        """
        file = self._store_file
        if file is None or file.exists():
            return None
        from memories.scratchpad import scratchpad

        place = self.place(self.lookup.namespace)
        with contextlib.suppress(InvalidInput):
            pad = scratchpad.load(place.home, place.namespace)
            if pad is not None and pad.entries and pad.store == place.store:
                return f"{file} is missing, and {place.file} remembers it; restore a backup, or remove the latter too"
        return None

    @property
    def are_there(self) -> bool:
        """Whether there is a file that can answer when the store can't be asked."""
        from memories.scratchpad.file import path

        return any(os.path.lexists(path(self.config.home, each)) for each in self.lookup.readable)

    def tell(self, changes: "Sequence[Change]") -> None:
        """Hear of what was written; a store that no file mirrors only has what is gone taken out of
        the files.
        """
        self.mirror(changes if self.is_home else _gone(changes))

    def promote(self, found: "Sequence[Record]") -> None:
        """Hear of what was read, which earns a place by that."""
        if self.is_home and any(record.accesses for record in found):
            self.mirror.promote(found)

    def flush(self) -> None:
        """Write what is still to be written to the files."""
        if "mirror" in vars(self):
            self.mirror.flush()

    @functools.cached_property
    def mirror(self) -> "Mirror":
        """What writes the files."""
        from memories.scratchpad.mirror import Mirror

        return Mirror(self.place, self._clock, make=self._may_have_file, describe=self._describe)

    def place(self, namespace: str) -> "Place":
        """Return where the scratchpad of a namespace is."""
        from memories.scratchpad.at_hand import place_of

        place = place_of(self.config, namespace)
        return place if self.owns_store else place._replace(stamp="")

    # --- inside
    # ----------------------------------------------------------------------------------------------------

    def _current(self, *, refresh: bool = False, rebuild: bool = False) -> "Scratchpad":
        """Return the hot tier, memories that are not current included."""
        if missing := self.missing():
            raise StoreError(missing)
        own = self._of(self.lookup.namespace, refresh=refresh, rebuild=rebuild)
        if SHARED not in self.lookup.readable or self.lookup.namespace == SHARED:
            return own
        from memories.scratchpad.at_hand import together

        return together(own, self._of(SHARED))

    def _in_files(self) -> "Scratchpad | None":
        """Return what the files hold, memories that are not current included; None if there are no
        files.
        """
        from memories.scratchpad import scratchpad
        from memories.scratchpad.at_hand import Scratchpad
        from memories.scratchpad.file import path

        entries, notes, waiting, there = [], [], 0, False
        for namespace in self.lookup.readable:
            try:
                pad = scratchpad.load(self.config.home, namespace)
            except InvalidInput as exc:
                notes.append(str(exc))
                continue
            if pad is not None:
                there = True
                entries += scratchpad.memories_of(pad, namespace)
                waiting += pad.waiting if namespace == self.lookup.namespace else 0
        file = str(path(self.config.home, self.lookup.namespace))
        return Scratchpad(tuple(entries), waiting, file, tuple(notes)) if there else None

    def _of(self, namespace: str, *, refresh: bool = False, rebuild: bool = False) -> "Scratchpad":
        from memories.scratchpad import at_hand, scratchpad, sync

        rules, place = self._rules(), self.place(namespace)
        try:
            pad = scratchpad.load(place.home, namespace)
        except InvalidInput:
            pad = None  # the refresh tells
        known = self._is_configured or pad is None or pad.store == place.store
        # Who is often read has a place, so the reads that wait are counted before it is chosen
        # anew.
        if not (self.is_home and known) or not (refresh or rebuild or self._is_kept(place)):
            self.flush_accesses()
            return sync.from_store(self._by_editor(namespace), rules, rebuild=rebuild)
        if not (
            refresh or rebuild or pad is None or at_hand.needs_store(place, pad, self._clock())
        ):
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
        return self.is_home and self.config.sources["store"] != "flag"

    def _may_have_file(self, namespace: str) -> bool:
        """Return whether the scratchpad of a namespace is made if it is not there."""
        return self._is_configured and not is_own_name(namespace, self.config)

    def _is_kept(self, place: "Place") -> bool:
        """Return whether a scratchpad is kept in its file: what only reads makes none before the
        first memory.
        """
        from memories.scratchpad import scratchpad

        if scratchpad.exists(place):
            return True
        written = Filter(Collection.MEMORY, (place.namespace,), state="any")
        return not is_own_name(place.namespace, self.config) and bool(
            self._store.count(written, at_most=1)
        )

    def _fits(self, filters: "SearchFilters") -> "Callable[[Record], bool]":
        """Return what tells whether a record meets the filters of a search."""
        project = filters.get("project")
        among = narrowed(self.lookup.where(), filters, self._clock())
        each = with_global(among, project)
        where = filters.get("where")
        selector = None if where is None else self._selector(where)

        def fits(record: "Record") -> bool:
            return any(one.fits(record) for one in each) and (
                selector is None or selector.fits(record)
            )

        return fits

    def _selector(self, where: str) -> "Selector":
        from memories.read import selector

        if "access_count" in where:
            self.flush_accesses()
        return selector.read(
            where,
            Collection.MEMORY,
            selector.Moment(self._clock(), self.config.decay_half_life_hours),
        )

    @property
    def _store_file(self) -> Path | None:
        """The file of the store, if it is one file."""
        is_file = self.is_home and self.config.store.startswith("sqlite:")
        return local_path(self.config.store) if is_file else None

    def _rules(self) -> "Rules":
        from memories.scratchpad.entries import Rules

        return Rules.of(self.config)

    def _by_editor(self, namespace: str) -> "Writer":
        """Return what writes an edit of a scratchpad, and tells no scratchpad of it.

        Anything may have edited the file, so the edit is trusted as the command is that takes it
        over: as a person's only at a terminal. What serves others may run at one, too.
        """
        from memories.guard.origin import AGENT, origin
        from memories.stores.logged import LoggedStore

        def writer_of() -> "Origin":
            found = origin("cli", self.config.identity or namespace)
            return found if self._channel == "cli" else found._replace(trust=AGENT)

        store = LoggedStore(self._store, "cli", self._clock, writer_of)
        return self.writer()._replace(lookup=Lookup(store, namespace, (namespace,)))

    def _describe(self, place: "Place") -> None:
        """Write `metadata.json` of a namespace; where that fails the next write does it."""
        from memories.scratchpad import metadata, scratchpad

        where, first = Filter(Collection.MEMORY, (place.namespace,)), None
        ever = (where._replace(collection=each, state="any") for each in SEARCHED)
        with contextlib.suppress(
            OSError, StoreError
        ):  # what was stored is stored, and this only tells of it
            if not place.file.with_name(metadata.FILE).exists() and not any(
                self._store.count(each, at_most=1) for each in ever
            ):
                return  # it was erased meanwhile
            with scratchpad.alone(place):
                if metadata.created(place.folder) is None:
                    first = next(iter(self._store.scan(where._replace(state="any"), limit=1)), None)
                metadata.write(
                    place.folder,
                    place.namespace,
                    lambda collection: self._store.count(where._replace(collection=collection)),
                    self._clock(),
                    None if first is None else first.created_at,
                )


def _gone(changes: "Sequence[Change]") -> "list[Change]":
    """Return the changes that take something away: what is new in a store of no home is in no
    file.
    """
    from memories.stores.records import Record

    return [change for change in changes if not isinstance(change, Record)]
