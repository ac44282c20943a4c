"""Views as HTML: the templates, and how times and numbers are written in them."""

from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from memories import __version__
from memories.core.times import describe_age
from memories.languages.unseen import shown
from memories.server.pages.asked import Asked, View
from memories.server.pages.plots import excerpt, moment

if TYPE_CHECKING:
    from jinja2 import Environment

HEADERS = {  # of every page: it runs its own script only, and is shown in no other page
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def html(view: View, asked: Asked, **about: Any) -> str:
    """Return a view as HTML; every value in it is escaped.

    Args:
        view: What to show.
        asked: What was asked for.
        **about: What all pages show: `namespace`, `pending_count`, `path`, `changes` and `seen`.
    """
    given = {"data": view.data, "asked": asked, "to": asked.address, "call": asked.call, "past": asked.past}
    given |= {**view.more, **about}
    return _environment().get_template(view.template).render(given)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader

    made = Environment(
        loader=PackageLoader("memories.server.pages"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )  # what is not known of a memory is left out of its JSON, so a name that is undefined counts as empty
    made.filters |= {"moment": moment, "ago": _ago, "day": _day, "short": _short, "shown": _shown, "cut": excerpt}
    made.globals |= {"version": __version__}
    return made


def _ago(iso: str) -> str:
    return describe_age(datetime.fromisoformat(iso), datetime.now(UTC))


def _day(date: str) -> str:
    return datetime.fromisoformat(date).strftime("%A, %d %B %Y").replace(" 0", " ")


def _short(name: str) -> str:
    return name[:8]


def _shown(text: str) -> str:
    """Return a text with what can't be seen made visible: it could hide words or turn them around."""
    return shown(text, lambda sign: f"\\u{{{ord(sign):x}}}", keep="\n\t\u200d\ufe0f")  # joined emoji stay whole
