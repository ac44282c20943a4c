"""Tables of fields: one for memories, turns, versions and hits, used by all output and the docs;
and one for drafts, from which the command and HTTP take their parameters.

To expose a field that memory records already have, add an attribute to `models.Memory`, read it
from the record in `versions.to_memory`, and add a row to `MEMORY` here. CONTRIBUTING.md lists what
else to change so that writers can set it.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.times import to_iso
from memories.models import DecayPolicy, is_global
from memories.search.filters import Parameter

if TYPE_CHECKING:
    from memories.guard.origin import Origin
    from memories.models import Memory

ALWAYS: Any = object()
# maximum number of characters in the excerpt of a memory that a new one may replace
SIMILAR_CHARACTERS = 120
_SCALARS = frozenset({str, int, float, bool, type(None)})  # types that JSON also has


class Field(NamedTuple):
    """A field of a response.

    Attributes:
        name: Its name in JSON and for `--fields`.
        kind: Its type, as `server.api.openapi` names it: `text`, `time?` for a time or null,
            `texts`, …
        about: Its meaning, for the docs.
        default: The value that is left out of JSON; `ALWAYS` if every value is shown.
        label: Its label where a memory is shown to a person; empty if it doesn't get its own row.
        read: Reads its value for JSON; by default, the attribute with the field's name is read.
    """

    name: str
    kind: str
    about: str
    default: Any = ALWAYS
    label: str = ""
    read: Callable[[Any], Any] | None = None


def shape(record: object, fields: tuple[Field, ...]) -> dict[str, Any]:
    """Return a record's fields in JSON form, except those that have their default value."""
    answer = {}
    for name, _, _, default, _, read in fields:
        value = getattr(record, name) if read is None else read(record)
        if type(value) not in _SCALARS:
            value = plain(value)
        if default is ALWAYS or value != default:
            answer[name] = value
    return answer


def plain(value: Any) -> Any:
    """Return a value in its JSON form."""
    if value is None or isinstance(value, str | float | int):  # the most common types first
        return value
    if isinstance(value, datetime):
        return to_iso(value)
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def cut(content: str, characters: int) -> str:
    """Return a text on one line, truncated to this many characters."""
    line = " ".join(content.split())
    return line if len(line) <= characters else f"{line[: characters - 1].rstrip()}…"


def origin_of(origin: "Origin | None", namespace: str) -> dict[str, Any] | None:
    """Return the origin of a record in a namespace; empty parts and usual values are left out."""
    if origin is None:
        return None
    usual = {"user": origin.by, "namespace": namespace}
    parts = origin._asdict().items()
    return {name: value for name, value in parts if value not in (None, "", usual.get(name))}


def _tag(name: str) -> Callable[[Any], str]:
    def read(record: Any) -> str:
        return str(record.tags.get(name, ""))

    return read


def _tags(record: Any) -> dict[str, str]:
    return dict(sorted(record.tags.items()))


def _origin(record: Any) -> dict[str, Any] | None:
    return origin_of(record.origin, record.namespace)


def _verdict(name: str) -> Callable[[Any], Any]:
    def read(memory: "Memory") -> Any:
        return getattr(memory.verdict, name) or None if memory.verdict else None

    return read


def _read_zoned(name: str) -> Callable[[Any], str]:
    def read(record: Any) -> str:
        return to_iso(getattr(record, name), keep_zone=True)

    return read


KNOWN_TAGS = (
    Field("agent", "text", "The agent in its tags.", read=_tag("agent")),
    Field(
        "personality",
        "text",
        "The role or persona in its tags.",
        read=_tag("personality"),
    ),
    Field("project", "text", "The project in its tags.", read=_tag("project")),
    Field("type", "text", "The type in its tags.", read=_tag("type")),
    Field(
        "global",
        "flag",
        "Whether it is valid in every project.",
        read=lambda record: is_global(record.tags),
    ),
)
_SUSPICIOUS = Field(
    "suspicious", "texts", "Why it looks like an instruction to a model.", [], "suspicious"
)
_REDACTED = Field("redacted", "texts", "The kinds of secrets that were removed.", [], "redacted")
_ACCEPTED = (
    Field(
        "accepted_at",
        "time",
        "When it was accepted, if it was held for review.",
        None,
        "accepted",
    ),
    Field("accepted_by", "text", "Who accepted it.", None),
)
MEMORY = (
    Field("id", "text", "Its id.", label="id"),
    Field("content", "text", "What it says."),
    *KNOWN_TAGS,
    Field("tags", "tags", "All tags.", read=_tags, label="tags"),
    Field("namespace", "text", "The namespace that it belongs to.", label="namespace"),
    Field("decay_policy", "text", "How its confidence decays.", label="decay"),
    Field("confidence", "number", "How current it is, 0 to 1."),
    Field("created_at", "time", "When its first version was written.", label="created"),
    Field("updated_at", "time", "When its latest version was written.", label="updated"),
    Field("version", "whole", "The number of its latest version."),
    Field("version_count", "whole", "How many versions it has.", read=attrgetter("version")),
    Field("key", "text", "Its key.", None, "key"),
    Field("base_confidence", "number", "How sure its writer was, 0 to 1.", 1.0),
    Field("last_reinforced_at", "time", "When its decay was last restarted.", None, "reinforced"),
    Field("supersedes", "text", "The id of the memory that it replaced.", None, "supersedes"),
    Field("superseded_by", "text", "The id of the memory that replaced it.", None, "replaced by"),
    Field("corrects", "text?", "The id of the memory that it corrects.", None, "corrects"),
    Field(
        "also_corrects", "texts", "The ids of other memories that it corrects.", [], "also corrects"
    ),
    Field("corrected_by", "text", "The id of the memory that corrects it.", None, "corrected by"),
    Field("current_again", "texts", "The ids of memories that a change made current again.", []),
    Field("same_as", "text", "After a restore: another current memory with the same text.", None),
    Field("source", "text", "The conversation or turn that it comes from.", None),
    Field("deleted", "flag", "Whether it was deleted.", False),
    Field("access_count", "whole", "About how often it was read.", 0),
    Field("origin", "object", "Who wrote its latest version.", None, "writer", _origin),
    Field("pending", "flag", "Whether it is pending review.", False, "state"),
    Field("pinned", "flag", "Whether it stays in the scratchpad.", False),
    *_ACCEPTED,
    _REDACTED,
    _SUSPICIOUS,
    Field("anchors", "texts", "The evidence that it cites.", [], "anchors"),
    Field("valid_until", "time", "When it stops being true.", None, "holds until"),
    Field(
        "recheck_days",
        "whole",
        "After how many days it should be confirmed again.",
        None,
        "recheck days",
    ),
    Field("anchored_at", "time", "When its anchors were last known to hold.", None),
    Field(
        "verdict",
        "text",
        "Whether it still holds, if that can be checked.",
        None,
        "verdict",
        _verdict("word"),
    ),
    Field(
        "verdict_reason",
        "text",
        "What changed, or why it can't be checked.",
        None,
        read=_verdict("reason"),
    ),
    Field(
        "verdict_since",
        "time",
        "When it changed, or when it last held.",
        None,
        read=_verdict("since"),
    ),
)
TURN = (
    Field("id", "text", "The conversation and the index, such as `standup#3`."),
    Field("content", "text", "What was said."),
    Field("conversation_id", "text", "The conversation."),
    Field(
        "turn_index",
        "whole",
        "Its place in the conversation, counted from 0.",
        read=attrgetter("index"),
    ),
    Field("role", "text", "`user`, `assistant`, `system` or `tool`."),
    Field("speaker", "text", "The speaker's name.", None),
    Field("tags", "tags", "Its tags.", read=_tags),
    Field("namespace", "text", "The namespace that it belongs to."),
    Field(
        "created_at",
        "text",
        "When it was said, in the time zone of its writer.",
        read=_read_zoned("created_at"),
    ),
    Field("message_id", "text", "Its id in the system that it comes from.", None),
    Field("origin", "object", "Who wrote it.", None, read=_origin),
    _REDACTED,
    _SUSPICIOUS,
    Field("part", "whole", "Which part of a long message it is.", None),
    Field("parts", "whole", "How many parts that message has.", 1),
    Field("status", "text", "The result of adding it.", None),
    Field("reason", "text", "Why it was refused.", None),
    Field("waiting", "flag", "Whether it is waiting to be stored.", False),
)
VERSION = (
    Field("version", "whole", "Its number."),
    Field("content", "text", "What it said."),
    Field("tags", "tags", "Its tags."),
    Field(
        "operation",
        "text",
        "What wrote it: `create`, `update`, `confirm`, `restore` or `rollback`.",
    ),
    Field("created_at", "text", "When it was written."),
    Field("ended_at", "time", "When it stopped being current.", None),
    Field("ended_by", "text", "What ended it.", None),
    *_ACCEPTED,
    _SUSPICIOUS,
)
HIT = (
    Field("speaker", "text", "Who said it; for a memory, the agent in its tags.", None),
    Field("conversation_id", "text", "The conversation; for a memory, the tag of that name.", None),
    Field("similarity", "number?", "The cosine similarity of its embedding and the query's."),
    Field("calibrated", "number", "The similarity on a scale that all embedders share.", None),
    Field("score", "number", "The ranking score, 0 to 1, comparable only within one search."),
    Field(
        "date", "time", "When it was said, or last written or confirmed.", read=_read_zoned("date")
    ),
)
KIND = Field("kind", "text", "`memory` or `turn`.")
# The result of creating a memory, without the memory itself.
CREATED = (
    Field("stored", "flag", "Whether a memory or a version was written."),
    Field(
        "duplicates",
        "[Similar]",
        "Existing memories that say the same thing, if the text was refused.",
        [],
    ),
    Field("merged", "texts", "What was added to the existing memory.", []),
    Field("not_merged", "object", "What was not added to the existing memory.", {}),
    Field("reinforced", "flag", "Whether the existing memory was reinforced.", False),
    Field("similar_to", "[Similar]", "Similar memories that say something different.", []),
    Field("redacted", "texts", "The kinds of secrets that were removed.", []),
    Field("note", "text", "A remark, such as why the memory has no vector.", ""),
    Field("hint", "text", "The result and the next step, in one sentence.", ""),
)
# What writers can set, besides content, tags, anchors and dates.
DRAFT: Mapping[str, Parameter] = {row.name: row for row in (
    Parameter(
        "decay", "text", "How the memory's confidence decays.", metavar="POLICY",
        choices=tuple(DecayPolicy),
    ),
    Parameter(
        "key", "text",
        "A stable key, such as user/editor; creating a memory with an existing key adds a version.",
        metavar="KEY",
    ),
    Parameter("supersedes", "text", "The id of a memory that this one replaces.", metavar="ID"),
    Parameter("confidence", "share", "The writer's confidence, from 0 to 1."),
    Parameter(
        "source", "text", "The conversation or turn that the memory was made from.",
        metavar="CONVERSATION[#INDEX]",
    ),
)}  # fmt: skip
NAMES = frozenset(field.name for field in (*MEMORY, *TURN, *VERSION, *HIT, KIND))
