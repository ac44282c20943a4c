"""Invisible characters are removed or escaped wherever a text is shown."""

import json
import unicodedata

import pytest

from memories.cli import output
from memories.context import fence
from memories.guard import validate
from memories.languages import is_unseen, make_visible

# One of each kind: controls, direction marks, zero width, tags, variation selectors, fillers,
# separators, private use.
HIDDEN = (
    "\x00\x07\x1b\x7f\x85\u00ad\u034f\u061c\u115f\u1160\u17b4\u180b\u180e\u200b\u200e\u2028\u202e\u2066\u2800\u3164"
    "\ue000\ufe00\ufe0e\ufeff\uffa0\ufff9\U000e0001\U000e0041\U000e0100\U000e01ef\U0010ffff"
)
SEEN = "a é ß Ω ж ש ع क ไทย 漢字 かな 한국 👍 € → ½ \u00a0"


def sentence(hidden: str) -> str:
    """Return a sentence with hidden characters in it."""
    return f"before{hidden}{hidden}after"


@pytest.mark.parametrize("sign", HIDDEN, ids=lambda sign: f"U+{ord(sign):04X}")
def test_unseen_characters_are_escaped_everywhere(
    sign: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = sentence(sign)
    output.begin_run()
    output.set_format("json")
    output.emit({"content": text}, lambda: "")
    printed = capsysbinary.readouterr().out.decode()
    assert json.loads(printed) == {"content": text}
    shown = (
        printed.rstrip("\n"),
        output.safe(text),
        validate.shown(text),
        fence.line({"text": text}),
        fence.plain(text),
    )
    for text in shown:
        assert sign not in text
        assert not any(is_unseen(character) for character in text)


def test_visible_characters_are_unchanged() -> None:
    assert not any(is_unseen(sign) for sign in SEEN)
    assert output.safe(SEEN) == SEEN == fence.plain(SEEN)
    assert make_visible(SEEN, lambda _: "?") == SEEN


def test_every_variation_selector_and_every_tag_is_unseen() -> None:
    codes = [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), *range(0xE0020, 0xE0080)]
    assert all(is_unseen(chr(code)) for code in codes)
    assert all(
        is_unseen(chr(code))
        for code in range(0x3000)
        if unicodedata.category(chr(code)) in ("Cc", "Cf")
    )
