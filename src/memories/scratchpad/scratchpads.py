"""The scratchpads of one `Memories`: reading, searching, editing, and applying changes."""

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING

from memories.config import is_own_name
from memories.errors import InvalidInput, StoreError
from memories.guard import validate
from memories.models import OFTEN, SHARED
from memories.read.lookup import Lookup, apply_filters, complete_project, with_global
from memories.read.versions import is_corrected
from memories.settings import Config
from memories.stores import Store
from memories.stores.records import SEARCHED, Collection, Filter

if TYPE_CHECKING:
    from memories.guard.origin import Origin
    from memories.read.selector import Selector
    from memories.scratchpad.entries import Entry, EntryRules
    from memories.scratchpad.file import PadFile
    from memories.scratchpad.hot_tier import Scratchpad
    from memories.scratchpad.matching import ScratchpadMatches
    from memories.scratchpad.mirror import Mirror
    from memories.search.filters import SearchFilters
    from memories.stores.logged import Change
    from memories.stores.records import Record
    from memories.write.write_context import WriteContext

# Names in expressions that refer to fields missing from the scratchpad's file.
_ONLY_IN_STORE = frozenset(
    "channel client conversation host identity import redacted source user verdict".split()
)


class Scratchpads:
    """The hot tier of one `Memories`: the scratchpads of its own namespace and of `shared`.

    The configured store has a file for each namespace. A store given by an option uses a
    namespace's file only if the file doesn't belong to a different store. A `Store` that was passed
    in has no files, except after `Memories.at_home`.

    Attributes:
        lookup: Reads the memories in the readable namespaces.
        owns_home: Whether the files in the home belong to this store, so scratchpads mirror it.
        owns_store: Whether this object opened the store itself. Only then is the stamp of the
            store's file meaningful.
        ctx: Returns the context for writing to the store.
        flush_accesses: Saves the pending counts of reads.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        lookup: Lookup,
        channel: str,
        clock: Callable[[], datetime],
        *,
        owns_home: bool,
    ) -> None:
        """Create the scratchpads; no file is opened.

        Args:
            config: The settings.
            store: The store itself; writing to it does not change scratchpads.
            lookup: See the class.
            channel: The channel of changes; see `Origin`.
            clock: Returns the current time, with its time zone.
            owns_home: See the class; also the initial value of `owns_store`.
        """
        self.config, self.lookup = config, lookup
        self.owns_home = self.owns_store = owns_home
        self.ctx: Callable[[], WriteContext]
        self.flush_accesses: Callable[[], None]
        self._store, self._channel, self._clock = store, channel, clock

    def show(self, *, refresh: bool = False, rebuild: bool = False) -> "Scratchpad":
        """Return the hot tier; see `Memories.scratchpad`."""
        from memories.scratchpad.file import copies_of

        scratchpad = self._load(refresh=refresh, rebuild=rebuild)
        if self.owns_home and not scratchpad.notes:
            copies = copies_of(self.pad_file(self.lookup.namespace))
            notes = tuple(f"{copy} contains edits that could not be applied" for copy in copies)
            scratchpad = scratchpad._replace(notes=notes)
        return self._judged(scratchpad.select_confident(self._rules(), self._clock()))

    def _judged(self, scratchpad: "Scratchpad") -> "Scratchpad":
        return scratchpad.with_verdicts(self.lookup.judge, self._clock())

    def at_hand(self) -> "Scratchpad | None":
        """Return the hot tier; None if it has no file, or a file must be refreshed first."""
        if not self.owns_home:
            return None
        from memories.scratchpad.hot_tier import read_up_to_date

        scratchpad = read_up_to_date(self.config, self.lookup.readable, self._clock())
        return None if scratchpad is None else self._judged(scratchpad)

    def search(
        self, query: str, filters: "SearchFilters", *, offline: bool = False
    ) -> "ScratchpadMatches":
        """Search the scratchpads; see `Memories.search_scratchpad`."""
        from memories.scratchpad.matching import find_matches
        from memories.search.filters import only_in_store

        _refuse(only_in_store(filters))
        validate.text_of(query, "query")
        scratchpad = self._load_files() if offline else self._load()
        entries = () if scratchpad is None else scratchpad.entries
        rules = self._rules()
        min_confidence = filters.get("min_confidence")
        if min_confidence is not None:
            rules = rules._replace(min_confidence=validate.unit(min_confidence, "min_confidence"))
        limit = filters.get("limit")
        limit = self.config.default_limit if limit is None else validate.limit(limit)
        is_wanted = self._predicate(filters, entries)
        return find_matches(entries, query, is_wanted, limit, rules, self._clock())

    def apply_edits(self) -> tuple[str, ...]:
        """Apply the user's edits to the file; see `Memories.apply_edits`."""
        if not self._is_configured:
            return ()
        from memories.scratchpad.text import is_edited, path_of, read_text

        file = path_of(self.config.home, self.lookup.namespace)
        try:
            text = read_text(file)
            if text is None or not is_edited(text):
                return ()
            return self._load_one(self.lookup.namespace).outcomes
        except InvalidInput as exc:
            return (str(exc),)
        except StoreError as exc:
            return (f"the changes in {file} will be applied later: {exc}",)

    def offline(self) -> "Scratchpad | None":
        """Return the hot tier using only the files; see `Memories.offline`."""
        scratchpad = self._load_files()
        if scratchpad is None:
            return None
        return self._judged(scratchpad.select_confident(self._rules(), self._clock()))

    @property
    def are_there(self) -> bool:
        """Whether there is a file to use when the store can't be reached."""
        from memories.scratchpad.text import path_of

        home = self.config.home
        return any(os.path.lexists(path_of(home, name)) for name in self.lookup.readable)

    def apply_changes(self, changes: "Sequence[Change]") -> None:
        """Apply changes in the store to the files. If the files don't mirror this store, new
        memories are skipped.
        """
        from memories.stores.records import Record

        if not self.owns_home:
            changes = [change for change in changes if not isinstance(change, Record)]
        self.mirror(changes)

    def promote(self, records: "Sequence[Record]") -> None:
        """Give frequently found memories a slot in the files."""
        if not self.owns_home:
            return
        now = self._clock()
        frequent: dict[str, list[Record]] = {}
        for record in records:
            if record.accesses + 1 >= OFTEN and not is_corrected(record, now):
                frequent.setdefault(record.ref.namespace, []).append(record)
        for namespace, candidates in frequent.items():
            unplaced = self._select_unplaced(namespace, candidates)
            if unplaced:
                self.mirror.promote(unplaced)

    def _select_unplaced(self, namespace: str, records: "list[Record]") -> "list[Record]":
        """Return the memories that aren't in their namespace's file; empty if there is no file."""
        from memories.scratchpad.text import has_entry, path_of, read_text

        try:
            text = read_text(path_of(self.config.home, namespace))
        except InvalidInput:  # `memory scratchpad` reports it
            return []
        if text is None:
            return []
        return [record for record in records if not has_entry(text, record.ref.group)]

    def flush(self) -> None:
        """Write the changes that have not been written to the files yet."""
        if "mirror" in vars(self):
            self.mirror.flush()

    @functools.cached_property
    def mirror(self) -> "Mirror":
        """The mirror that writes the files."""
        from memories.scratchpad.mirror import Mirror

        return Mirror(
            self.pad_file,
            self._clock,
            makes_file=self._may_have_file,
            write_metadata=self._write_metadata,
        )

    def pad_file(self, namespace: str) -> "PadFile":
        """Return the file of a namespace's scratchpad."""
        from memories.scratchpad.file import pad_file_of

        pad_file = pad_file_of(self.config, namespace)
        return pad_file if self.owns_store else pad_file._replace(stamp="")

    # --- inside

    def _load(self, *, refresh: bool = False, rebuild: bool = False) -> "Scratchpad":
        """Return the hot tier, including entries with too little confidence."""
        own = self._load_one(self.lookup.namespace, refresh=refresh, rebuild=rebuild)
        if SHARED not in self.lookup.readable or self.lookup.namespace == SHARED:
            return own
        return own.merged_with(self._load_one(SHARED))

    def _load_files(self) -> "Scratchpad | None":
        """Return the hot tier in the files, including entries with too little confidence."""
        from memories.scratchpad import file
        from memories.scratchpad.hot_tier import Scratchpad
        from memories.scratchpad.text import path_of

        pads, notes = {}, []
        for namespace in self.lookup.readable:
            try:
                pad = file.load(self.config.home, namespace)
            except InvalidInput as exc:
                notes.append(str(exc))
                continue
            if pad is not None:
                pads[namespace] = pad
        if not pads:
            return None
        own = self.lookup.namespace
        entries: list[Entry] = []
        for namespace, pad in pads.items():
            entries += file.memories_of(pad, namespace)
        waiting = pads[own].waiting if own in pads else 0
        path = str(path_of(self.config.home, own))
        return Scratchpad(tuple(entries), waiting, path, tuple(notes))

    def _load_one(
        self, namespace: str, *, refresh: bool = False, rebuild: bool = False
    ) -> "Scratchpad":
        from memories.scratchpad import file, hot_tier
        from memories.scratchpad.refresh import read_store
        from memories.scratchpad.refresh import refresh as bring_up_to_date

        rules, pad_file = self._rules(), self.pad_file(namespace)
        must_refresh = refresh or rebuild
        try:
            pad = file.load(pad_file.home, pad_file.namespace)
        except InvalidInput:
            pad, must_refresh = None, True  # the refresh reports the problem
        has_file = must_refresh or self._keeps_file(pad_file)
        mirrors_store = self._is_configured or pad is None or pad.store == pad_file.store
        if not (self.owns_home and mirrors_store and has_file):
            self.flush_accesses()
            return read_store(self._editor(namespace), rules, rebuild=rebuild)
        if pad is not None and not must_refresh:
            must_refresh = hot_tier.needs_refresh(pad_file, pad, self._clock())
            if not must_refresh:
                return hot_tier.from_pad(pad_file, pad)
        # Frequently read memories get a slot, so save the pending counts before choosing entries.
        self.flush_accesses()
        try:
            scratchpad = bring_up_to_date(pad_file, self._editor(namespace), rules, rebuild=rebuild)
        except StoreError:
            raise
        except OSError as exc:  # show the memories even if the file can't be written
            scratchpad = read_store(self._editor(namespace), rules, rebuild=rebuild)
            note = f"{pad_file.path} can't be written: {exc.strerror or exc}"
            return scratchpad._replace(notes=(note,))
        if self._may_have_file(namespace):
            self._write_metadata(pad_file)
        return scratchpad

    @property
    def _is_configured(self) -> bool:
        """Whether the store is the configured one."""
        return self.owns_home and self.config.sources["store"] != "flag"

    def _may_have_file(self, namespace: str) -> bool:
        """Return whether a missing scratchpad of this namespace may be created."""
        return self._is_configured and not is_own_name(namespace, self.config)

    def _keeps_file(self, pad_file: "PadFile") -> bool:
        """Return whether the file exists, or may be created because there are memories for it.

        A command that only reads an empty namespace creates no file.
        """
        from memories.scratchpad import file

        if file.exists(pad_file):
            return True
        if is_own_name(pad_file.namespace, self.config):
            return False
        memories = Filter(Collection.MEMORY, (pad_file.namespace,), state="any")
        return bool(self._store.count(memories, at_most=1))

    def _predicate(
        self, filters: "SearchFilters", entries: "Sequence[Entry]"
    ) -> "Callable[[Record], bool]":
        """Return a function that tests whether a record meets a search's filters."""
        where = apply_filters(self.lookup.where(), filters, self._clock())
        projects = {entry.tags["project"] for entry in entries if "project" in entry.tags}
        project = complete_project(filters.get("project"), projects)
        alternatives = with_global(where, project)
        expression = filters.get("where")
        selector = None
        if expression is not None:
            only_in_store = _ONLY_IN_STORE
            if any(map(attrgetter("cut"), entries)):
                only_in_store |= {"content"}
            selector = self._parse_expression(expression, filters, only_in_store)
            if selector is None:
                return lambda _record: False

        def matches(record: "Record") -> bool:
            if not any(where.fits(record) for where in alternatives):
                return False
            return selector is None or selector.fits(record)

        return matches

    def _parse_expression(
        self, expression: str, filters: "SearchFilters", only_in_store: frozenset[str]
    ) -> "Selector | None":
        """Return the selector for an expression; None if only the store can evaluate it. In that
        case, the search asks the store next.
        """
        from memories.read import selector
        from memories.read.expressions import conditions

        used = conditions(selector.parse_node(expression, Collection.MEMORY))
        names = {condition.name.lower() for condition in used if not condition.quoted}
        if unsupported := sorted(names & only_in_store):
            if filters.get("tier") == "auto":
                return None
            _refuse([f"where: {name}" for name in unsupported])
        if "access_count" in expression:
            self.flush_accesses()
        moment = selector.Instant(self._clock(), self.config.decay_half_life_hours)
        return selector.parse_live(expression, Collection.MEMORY, moment)

    def _rules(self) -> "EntryRules":
        from memories.scratchpad.entries import EntryRules

        return EntryRules.of(self.config)

    def _editor(self, namespace: str) -> "WriteContext":
        """Return the context for storing a scratchpad's edits without changing scratchpads.

        Any program may have edited the file. So an edit gets the trust of the command that applies
        it, and only a command at a terminal can have a person's trust. An edit applied by a server
        always gets an agent's trust, since a server may run at a terminal too.
        """
        from memories.guard.origin import AGENT, origin
        from memories.stores.logged import LoggedStore

        def origin_of_edit() -> "Origin":
            editor = origin("cli", self.config.identity or namespace)
            return editor if self._channel == "cli" else editor._replace(trust=AGENT)

        store = LoggedStore(self._store, "cli", self._clock, origin_of_edit)
        return self.ctx()._replace(lookup=Lookup(store, namespace, (namespace,)))

    def _write_metadata(self, pad_file: "PadFile") -> None:
        """Write a namespace's `metadata.json`. If that fails, the next write tries again."""
        from memories.scratchpad import file

        # The memories are already stored, so a failure here must not fail the command.
        with contextlib.suppress(OSError, StoreError):
            has_metadata = (pad_file.folder / file.METADATA).exists()
            if not has_metadata and not self._has_records(pad_file):
                return  # the namespace was erased in the meantime
            with file.exclusive(pad_file):
                first: Sequence[Record] = ()
                if file.read_created(pad_file.folder) is None:
                    memories = Filter(Collection.MEMORY, (pad_file.namespace,), state="any")
                    first = self._store.scan(memories, limit=1)
                created_at = first[0].created_at if first else None
                file.write_metadata(
                    pad_file.folder, pad_file.namespace, self._store, self._clock(), created_at
                )

    def _has_records(self, pad_file: "PadFile") -> bool:
        for collection in SEARCHED:
            records = Filter(collection, (pad_file.namespace,), state="any")
            if self._store.count(records, at_most=1):
                return True
        return False


def _refuse(unsupported: Sequence[str]) -> None:
    """Refuse a search with filters that only the store can apply.

    Raises:
        InvalidInput: There are such filters.
    """
    if unsupported:
        raise InvalidInput(
            f"the scratchpad can't answer this ({', '.join(unsupported)}); remove that condition, "
            "or search the store"
        )
