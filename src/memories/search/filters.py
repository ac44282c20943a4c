"""Search filters: one table, from which the command, MCP, HTTP and the docs take their parameters.

To add a filter, add a key to `SearchFilters` and a row to `_ROWS` here; CONTRIBUTING.md shows an
example with its tests. A filter that compares an entire label becomes part of the store's `Filter`;
see `_narrow_labels` in `read.lookup`. Any other filter, such as one that compares a part of the
label `VIA` (`guard.origin`), needs a predicate, which `search.search` applies to the candidates.
Check first whether an expression in `where` can test it, as it can test most parts of an origin
(`read.names`).

The web page supports only a few filters: see `filters` in `server.pages.request`, `_narrowing` in
`server.pages.views`, and the form in `home.html`. `integrations.amplifier.tool` also supports only
a few. Neither needs to support a new filter.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict

from memories.errors import InvalidInput
from memories.guard.origin import TRUSTS
from memories.guard.validate import ROLES, shown
from memories.settings import RANKS

if TYPE_CHECKING:
    from memories.models import Moment

Scope = Literal["memories", "history", "all"]
Tier = Literal["deep", "hot", "auto"]
Kind = Literal["text", "time", "share", "whole", "flag", "tags"]
SCOPES: tuple[Scope, ...] = ("memories", "history", "all")
TIERS: tuple[Tier, ...] = ("deep", "hot", "auto")


class SearchFilters(TypedDict, total=False):
    """Search filters and bounds; all are optional.

    Attributes:
        scope: `memories` (the default), `history` for conversation turns, or `all` for both, ranked
            together.
        conversation: Only turns in this conversation. Your own conversation takes precedence over
            one in `shared`.
        role: Only turns with this role: `user`, `assistant`, `system` or `tool`.
        speaker: Only turns by this speaker.
        tags: Tags that each hit must have.
        project: Only hits from this project, and global memories (with the tag `global`).
        written_by: Only hits by this writer, a client or an operating-system user: see `Origin.by`.
        trust: Only hits with this trust: `user`, `agent`, `captured` or `imported`.
        where: An expression in the filter language that each hit must match.
        pending: Search the memories that await review instead.
        since: Only hits last written at this time or later: an aware datetime, or text such as
            "7d".
        until: Only hits last written at this time or earlier.
        as_of: Search the records that were current at this time, with the confidence that they had
            then.
        now: Reference time for words such as "yesterday"; the present by default. It doesn't filter
            hits.
        min_confidence: The lowest confidence of a hit, 0 to 1; by default, the setting of that
            name.
        min_similarity: The lowest similarity of a hit, 0 to 1 on the calibrated scale; needs an
            embedder.
        rank: `relevance`, which considers age and use of memories within bounds; `similarity`,
            which ignores them; or `formula`, the plain product of similarity, freshness and boost.
            By default, the setting of that name.
        include_corrected: Whether to show a hit that another hit corrects; it is shown after the
            correction. True by default.
        tier: `deep` (the default) to search the store, `hot` to search only the scratchpad, or
            `auto` to search the scratchpad if one of its entries contains all significant words,
            else the store.
        limit: The maximum number of hits, up to 1,000; by default, the setting `default_limit`.
    """

    scope: Scope
    conversation: str | None
    role: str | None
    speaker: str | None
    tags: Mapping[str, str] | None
    project: str | Sequence[str] | None
    written_by: str | None
    trust: str | None
    where: str | None
    pending: bool
    since: "Moment | None"
    until: "Moment | None"
    as_of: "Moment | None"
    now: "Moment | None"
    min_confidence: float | None
    min_similarity: float | None
    rank: str | None
    include_corrected: bool
    tier: Tier
    limit: int | None


class Parameter(NamedTuple):
    """A filter that the command, MCP and HTTP offer, or a field of a draft that the command and
    HTTP offer (`answers.fields.DRAFT`).

    Attributes:
        name: Its key in `SearchFilters`, and its name in MCP; or the draft's attribute.
        kind: The type of its value: text, a time, a number from 0 to 1, a whole number, true or
            false, or tags.
        about: Its effect, in one sentence.
        section: Its section in the command's help.
        alias: Its name on the command line and in the HTTP API, if different.
        choices: The allowed values, if there are only a few.
        metavar: The placeholder of its value, if different from its kind's; see `placeholder`.
        default: The default value as the help shows it; empty if there is none. A flag is a
            switch to turn off if this is `true`.
        scope: The only scope that it works in: `history` or `memories` if it compares something
            that only turns or only memories have; `all` if it works in every scope.
        in_lists: Whether lists of memories support it too. If so, `Memories.list` must accept it,
            and the store must apply it; the only predicate of a list is that of `where`.
        in_scratchpad: Whether a search of the scratchpad accepts it. A filter that compares a value
            needs that value in the file, and `_predicate` in `scratchpad.scratchpads` applies it.
            `rank` and `now` have no effect there.
        hint: Additional information for a model; usually empty, since every session pays for its
            tokens.
    """

    name: str
    kind: Kind
    about: str
    section: str = "Filters"
    alias: str = ""
    choices: tuple[str, ...] = ()
    metavar: str = ""
    default: str = ""
    scope: Scope = "all"
    in_lists: bool = False
    in_scratchpad: bool = False
    hint: str = ""

    @property
    def public_name(self) -> str:
        """The filter's name on the command line and in the HTTP API."""
        return self.alias or self.name

    @property
    def flag(self) -> str:
        """The filter's command-line option."""
        return f"--{self.public_name.replace('_', '-')}"

    @property
    def placeholder(self) -> str:
        """The placeholder of the filter's value in the command's help; empty for a flag."""
        return self.metavar or _PLACEHOLDERS[self.kind]

    @property
    def meaning(self) -> str:
        """The filter's effect and default, as a sentence."""
        if self.default:
            return f"{self.about} By default {self.default}."
        return self.about


_PLACEHOLDERS = {
    "text": "NAME",
    "time": "TIME",
    "share": "0..1",
    "whole": "N",
    "flag": "",
    "tags": "KEY=VALUE",
}


def _either(choices: Sequence[str]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


# fmt: off
_ROWS = (
    Parameter(
        "scope", "text", "What to search: memories, history (conversations) or all.", alias="in",
        choices=SCOPES, metavar="WHAT", default="memories", hint="history: what was said",
    ),
    Parameter(
        "conversation", "text", "Only turns of this conversation, in a search of the history.",
        scope="history", hint="only turns of this one",
    ),
    Parameter(
        "role", "text", f"Only turns of this role: {_either(ROLES)}.", choices=ROLES,
        metavar="ROLE", scope="history",
    ),
    Parameter("speaker", "text", "Only turns of this speaker.", scope="history"),
    Parameter(
        "tags", "tags", "Only with this tag; may be repeated, and all must match.", alias="tag",
        in_lists=True, in_scratchpad=True, hint="must all match",
    ),
    Parameter(
        "project", "text", "Only from this project, or valid in every project.", in_lists=True,
        in_scratchpad=True, hint=". is this folder's",
    ),
    Parameter(
        "written_by", "text", "Only memories and turns written by this client or user.",
        in_lists=True, in_scratchpad=True,
    ),
    Parameter(
        "trust", "text",
            f"Only memories and turns with this trust: {_either(TRUSTS)}.", choices=TRUSTS,
        metavar="LEVEL", in_lists=True, in_scratchpad=True,
    ),
    Parameter(
        "where", "text",
        'Only memories and turns that match an expression, such as "type = fact and not by = '
        'claude-code".',
        metavar="EXPRESSION", in_lists=True, in_scratchpad=True,
    ),
    Parameter(
        "pending", "flag", "Only memories that are waiting for review.", scope="memories",
        in_lists=True,
    ),
    Parameter(
        "since", "time",
            "Only memories and turns written at this time or later.", "Time", in_lists=True,
        in_scratchpad=True, hint="like 2024-05-31 or 7d",
    ),
    Parameter(
        "until", "time",
            "Only memories and turns written by this time; a date includes that whole day.",
        "Time", in_lists=True, in_scratchpad=True,
    ),
    Parameter(
        "as_of", "time",
        "Use the state at this time; a date means the end of that day.", "Time",
        in_lists=True, hint="what was known then",
    ),
    Parameter(
        "now", "time", 'Reference time for words like "yesterday".', "Time", default="now",
        in_scratchpad=True,
    ),
    Parameter(
        "min_confidence", "share", "Hide results with lower confidence.", "Ranking", default="0.3",
        in_scratchpad=True,
    ),
    Parameter(
        "min_similarity", "share", "Hide results that are less similar.", "Ranking", default="0",
    ),
    Parameter(
        "rank", "text",
        "Let age and use change the order within bounds (relevance), ignore both (similarity), or "
        "multiply similarity, freshness and use (formula).", "Ranking", choices=RANKS,
        metavar="ORDER", default="relevance", in_scratchpad=True,
    ),
    Parameter(
        "include_corrected", "flag",
            "Also show a result that another result corrects, after that result.",
        "Ranking", default="true",
    ),
    Parameter(
        "tier", "text",
        "Search the store (deep), only the scratchpad (hot), or the store unless the scratchpad "
        "contains every word (auto).", "Ranking", choices=TIERS, metavar="TIER",
        default="deep", in_scratchpad=True,
    ),
    Parameter(
        "limit", "whole", "Maximum number of results, 1 to 1000.", "Output", default="10",
        in_lists=True, in_scratchpad=True,
    ),
)
# fmt: on
FILTERS: Mapping[str, Parameter] = {row.name: row for row in _ROWS}


def tier_of(filters: SearchFilters) -> Tier:
    """Return the requested tier, `deep` by default.

    Raises:
        InvalidInput: There is no such tier.
    """
    tier = filters.get("tier")
    if tier is None:
        return "deep"
    if tier not in TIERS:
        raise InvalidInput(f'tier must be deep, hot or auto, not "{shown(str(tier))}"')
    return tier


def only_in_store(filters: SearchFilters) -> list[str]:
    """Return the names of those given filters that the scratchpad does not support."""
    names = [
        row.name
        for row in _ROWS
        if not row.in_scratchpad and row.name not in ("scope", "include_corrected")
    ]
    unsupported = [name for name in names if filters.get(name)]
    unsupported += [name for name in filters if name not in FILTERS]
    if filters.get("scope", "memories") != "memories":
        unsupported.append("scope")
    if not filters.get("include_corrected", True):
        unsupported.append("include_corrected")
    return unsupported
