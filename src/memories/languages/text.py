"""How words are seen: one normal form, and the same terms for what is stored and what is asked, in
any script.
"""

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence

from memories import languages

MAX_QUERY_TERMS = 64
_MAX_READ = 16_384  # characters of a text that terms are taken from
_LONGEST = 64  # letters of a word that has other forms, and words of a phrase
_ENDINGS, _LEAST_STEM = 2, 4  # endings that a word may have, and letters that they leave of it
_GLUED, _LEAST_BASE = (
    7,
    3,
)  # prefixes that are tried, the commonest, and letters of a word behind one

_QUOTES = str.maketrans(
    {"‘": "'", "’": "'", "‚": "'", "‛": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"'}
)

# Scripts written without spaces between words, and Hangul, whose endings are glued to the word.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    # kana and Han
    "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "\uac00-\ud7a3"  # Hangul
)
# Marks are parts of words too, though `\w` leaves them out: accents, Hebrew points, Arabic vowels,
# the Indic blocks. These patterns are for text without unspaced scripts: with those in them, they
# would take 7 ms to compile.
_LETTER = r"(?:[^\W_]|[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0dff])"
_WORD = re.compile(f"{_LETTER}+")
_COMPOUND = re.compile(rf"(?<!{_LETTER}){_LETTER}+(?:[.'/@:+_-]+{_LETTER}+)+")
_QUOTED = re.compile(r'"([^"]{3,200})"')
# A word as it stands: a sign between two digits does not end it, as in versions, dates, addresses
# and large numbers.
_TOKEN = re.compile(rf"{_LETTER}+(?:(?<=\d)(?:[^\w\s]|_)(?=\d){_LETTER}+)*")
_HAN_NUMBER = re.compile("[〇零一二三四五六七八九十百千万億亿兆]+")
# Letters that the index can hold, for names that consist of signs: C++, C#.
_SIGNS = ((re.compile(r"(?<=\w)\+\+"), "plusplus "), (re.compile(r"(?<=\w)#(?!\w)"), "sharp "))

# Function words of English. They stay in the index, for phrases, and are left out of queries that
# have better words.
STOP_WORDS = frozenset(
    "a about above after again against all also am an and any are aren't as at be because been before being below "
    "between both but by can can't cannot could couldn't did didn't do does doesn't doing don't down during each else "
    "ever few for from further get gets give go goes going got had hadn't has hasn't have haven't having he her here "
    "hers herself him himself his how i if in into is isn't it its itself just kind let like made make makes many may "
    "me might more most much must my myself no nor not of off often on once one only or other ought our ours "
    "ourselves out over own please same shall she should shouldn't so some still such take tell than that the their "
    "theirs them themselves then there these they thing things this those through to too under until up upon us use "
    "used using very was wasn't we well were weren't what what's when where which while who who's whom whose why "
    "will with won't would wouldn't yes yet you your yours yourself yourselves".split()
)


def normal_form(text: str) -> str:
    """Return the form in which two texts are compared: NFKC, case folded, straight quotes, single
    spaces.
    """
    return cased_form(unicodedata.normalize("NFKC", text).casefold())


def cased_form(text: str) -> str:
    """Return the normal form but for the case of letters."""
    return " ".join(unicodedata.normalize("NFKC", text).translate(_QUOTES).split())


def is_unspaced(text: str) -> bool:
    """Return whether a text has characters of a script that is written without spaces between
    words.
    """
    return not text.isascii() and bool(_unspaced_run().search(text))


def mark_raised(text: str) -> str:
    """Put a sign before raised and lowered digits and fractions, which NFKC makes plain digits: 10²
    is not 102.
    """
    if text.isascii():
        return text
    raised = ("<super>", "<sub>", "<fraction>")
    return text.translate(
        {ord(c): f"^{c}" for c in set(text) if unicodedata.decomposition(c).startswith(raised)}
    )


def index_text(text: str) -> str:
    """Return the text that a word index takes: the normal form, with unspaced scripts cut into
    characters and pairs.

    A word index finds only whole words, and Chinese, Japanese, Thai or Korean text does not show
    where they end. So a run of such characters is indexed as its single characters and its
    overlapping pairs.
    """
    spelled = _spell_signs(normal_form(text))
    if spelled.isascii():
        return spelled
    return _space_emoji(
        _unspaced_run().sub(lambda run: f" {' '.join((*run[0], *_pairs(run[0])))} ", spelled)
    )


def query_terms(text: str) -> list[str]:
    """Return the terms to look for, most telling forms included, at most `MAX_QUERY_TERMS`, each
    once.

    A term of several words (an identifier, a path, a quoted phrase) is to be matched as a phrase.
    One that ends in `*` is the beginning of a word: the index knows the endings of English only.
    One that begins with a space is another form of a word that is there too. Function words are
    left out, unless there is nothing else.
    """
    spelled = _spelled(text[:_MAX_READ])
    codes = languages.of(spelled)
    terms = dict.fromkeys(
        term for term in _terms(_telling(spelled, codes), codes) if term not in STOP_WORDS
    )
    terms = terms or dict.fromkeys(_words(spelled)) or dict.fromkeys(_terms(spelled, ()))
    return list(terms)[:MAX_QUERY_TERMS]


def other_terms(text: str) -> list[str]:
    """Return the terms for a question whose telling words nobody has said: its function words; none
    in English.
    """
    spelled = _spelled(text[:_MAX_READ])
    told = query_terms(text)
    found = dict.fromkeys(_terms(spelled, ())) if languages.of(spelled) else {}
    return [term for term in found if term not in told][:MAX_QUERY_TERMS]


def _spelled(text: str) -> str:
    return _space_emoji(_spell_signs(normal_form(text)))


def _telling(spelled: str, codes: Sequence[str]) -> str:
    """Return a text without the function words of these languages."""
    for code in codes:
        known = frozenset(languages.words(code)["stop"])
        if code in languages.UNSPACED:
            # One sign alone may be a part of any word.
            longer = sorted((word for word in known if len(word) > 1), key=len, reverse=True)
            spelled = re.sub("|".join(map(re.escape, longer)), " ", spelled)
        else:
            words = (
                word for word in dict.fromkeys(_words(spelled)) if languages.folded(word) in known
            )
            spelled = functools.reduce(
                lambda told, word: re.sub(rf"(?<!\w){word}(?!\w)", " ", told), words, spelled
            )
    return spelled


def is_latin(text: str) -> bool:
    """Return whether at least half of a text's letters are Latin ones; so is a text without
    letters.
    """
    if text.isascii():
        return True
    letters = [sign for sign in text if sign.isalpha()]
    return 2 * sum(sign < "\u0250" or "\u1e00" <= sign <= "\u1eff" for sign in letters) >= len(
        letters
    )


def covered(text: str, words: Sequence[str]) -> float:
    """Return the share of these words that a text has, 0 to 1; other endings and other accents
    count as well.
    """
    indexed = _bare(index_text(text))
    held = f" {' '.join(_words(indexed))} {indexed}"
    beginnings = [_bare(word.rstrip("*"))[: max(4, len(word) - 3)] for word in words]
    return sum(f" {beginning}" in held for beginning in beginnings) / max(1, len(words))


def words_in(text: str) -> set[str]:
    """Return the words of a text without case and accents; of unspaced scripts, its characters and
    pairs.
    """
    indexed = _bare(index_text(text))
    found = set(_words(indexed))
    if not indexed.isascii():
        found.update(
            piece for piece in indexed.split() if is_unspaced(piece) or _is_emoji(piece[0])
        )
    return found


def tokens(text: str) -> set[str]:
    """Return the words of a text without case and accents, numbers whole: `1.2` is not in `1.20`,
    nor `80` in `8080`.

    Versions, dates, IP addresses and identifiers such as `k8s` are words too. Digits of all scripts
    are the same. Of unspaced scripts there are the characters and the pairs, and their numbers,
    each with a `=` before it.
    """
    plain = normal_form(mark_raised(text))
    if not plain.isascii():
        plain = "".join(str(unicodedata.decimal(sign, sign)) for sign in plain)
    indexed = _bare(index_text(plain))
    found = set(_TOKEN.findall(_spaced(indexed)))
    if not indexed.isascii():
        found.update(
            piece for piece in indexed.split() if is_unspaced(piece) or _is_emoji(piece[0])
        )
        found.update(f"={number}" for number in _HAN_NUMBER.findall(plain))
    return found


def telling_tokens(query: str) -> set[str]:
    """Return the tokens of a question without its function words, unless it has no others."""
    spelled = _spelled(mark_raised(query))
    telling = _telling(spelled, languages.of(spelled))
    telling = _COMPOUND.sub(lambda found: " " if found[0] in STOP_WORDS else found[0], telling)
    return (tokens(telling) - STOP_WORDS - {"s"}) or tokens(spelled)


def is_number(token: str) -> bool:
    """Return whether a token has digits, or is a number of an unspaced script."""
    return token.startswith("=") or any(sign.isdigit() for sign in token)


def _bare(text: str) -> str:
    """Return text without accents and other marks."""
    if text.isascii():
        return text
    text = unicodedata.normalize("NFD", text)
    return text.translate(
        dict.fromkeys(ord(sign) for sign in set(text) if unicodedata.category(sign) == "Mn")
    )


def _terms(spelled: str, codes: Sequence[str]) -> Iterator[str]:
    """Yield words, compounds, quoted phrases, pairs of unspaced scripts and emoji of a spelled-out
    normal form.
    """
    for phrase in _QUOTED.findall(spelled):
        words = _words(phrase)
        if len(words) > 1:
            yield " ".join(words)
    for compound in dict.fromkeys(
        _COMPOUND.findall(_spaced(spelled))
    ):  # each once: a long text repeats itself
        if compound in STOP_WORDS:
            spelled = spelled.replace(compound, " ")
            continue
        words = [word for word in _words(compound) if word != "s"]
        if 1 < len(words) <= _LONGEST:
            yield " ".join(words)
    words = [word for word in _words(spelled) if word != "s"]
    yield from (_stem(word, codes) for word in words)
    for run in [] if spelled.isascii() else _unspaced_run().findall(spelled):
        yield from _pairs(run) if len(run) > 1 else run
    yield from (sign for sign in spelled if _is_emoji(sign))
    yield from _glued([word for word in words if len(word) >= _LEAST_BASE], codes)
    short = (
        [word for word in words if len(word) <= _LONGEST] if codes or not spelled.isascii() else []
    )
    for word in dict.fromkeys(short):
        told = _stem(word, codes)
        forms = (
            _stem(other, codes) for other in _spellings(word, codes) if len(other) >= _LEAST_BASE
        )
        yield from (f" {form}" for form in dict.fromkeys(forms) if form != told)


@functools.cache
def _unspaced_run() -> re.Pattern[str]:
    return re.compile(f"[{_UNSPACED}]+")


def _spaced(text: str) -> str:
    """Return text with spaces in place of unspaced scripts."""
    return text if text.isascii() else _unspaced_run().sub(" ", text)


def _words(text: str) -> list[str]:
    return _WORD.findall(_spaced(text))


def _open_ended(word: str) -> str:
    """Return a word of a script other than Latin as its beginning, so that other endings are found
    as well.
    """
    if len(word) < 4 or is_latin(word):
        return word
    return f"{word[: max(4, len(word) - 2)]}*"


def _stem(word: str, codes: Sequence[str]) -> str:
    """Return the beginning of a word without the endings of its language, as a term; the word where
    it has none.
    """
    endings = languages.words(codes[0]).get("endings", ()) if codes else ()
    if not endings or not word.isalpha() or not is_latin(word):
        return _open_ended(word)
    whole, written = languages.folded(word), _bare(word)
    stem = whole
    for _ in range(_ENDINGS):
        ending = max((each for each in endings if stem.endswith(each)), key=len, default="")
        if len(stem) - len(ending) >= _LEAST_STEM:
            stem = stem.removesuffix(ending)
    # The index has letters that are no others with an accent, such as ł and ı, as they are written.
    stem = written[: len(stem)] if len(written) == len(whole) else stem
    return f"{stem}*" if len(stem) >= _LEAST_STEM else word


# Letters that are often written as others, and those: by the language where it must be known.
_MARKED = {"α": "ά", "ε": "έ", "η": "ή", "ι": "ί", "ο": "ό", "υ": "ύ", "ω": "ώ"} | {
    sign: f"{sign}\u093c" for sign in "कखगजडढफ"
}
_MARKED_IN = {"ru": {"е": "ё"}, "pl": {"l": "ł"}, "vi": {"d": "đ"}}
_SPELLED_OUT = {"ä": "ae", "ö": "oe", "ü": "ue"}
_ALEFS = "أإآ"


def _spellings(word: str, codes: Sequence[str]) -> Iterator[str]:
    """Yield other ways to write a word: without its marks, or with one that was left out, as the
    index keeps them.
    """
    unmarked = word.replace("ё", "е").replace("\u093c", "")
    if not "\u0400" <= word[0] < "\u0530" and not "\u0900" <= word[0] < "\u0e00":
        unmarked = languages.folded(word)
        unmarked = (
            word if unmarked == _bare(word) and is_latin(word) else unmarked
        )  # the index does that itself
    yield unmarked
    for letter, two in _SPELLED_OUT.items():
        if letter in word:
            yield word.replace(letter, two)
        elif "de" in codes and two in word:
            yield word.replace(two, letter)
    if "tr" in codes and "i" in word:
        yield word.replace("i", "ı")
    marked = _MARKED | {
        letter: other for code in codes for letter, other in _MARKED_IN.get(code, {}).items()
    }
    yield from (
        f"{unmarked[:at]}{marked[sign]}{unmarked[at + 1 :]}"
        for at, sign in enumerate(unmarked)
        if sign in marked
    )
    for article in ("", "ال"):
        if unmarked.startswith(f"{article}ا"):
            yield from (f"{article}{alef}{unmarked[len(article) + 1 :]}" for alef in _ALEFS)


def _glued(words: Sequence[str], codes: Sequence[str]) -> Iterator[str]:
    """Yield words behind the prefixes that their language writes as parts of them, and without
    those that they have.
    """
    for code in codes:
        prefixes = languages.words(code).get("glued", ())
        usual = prefixes[:_GLUED]
        bare = [
            word.removeprefix(prefix)
            for word in words
            for prefix in prefixes
            if word.startswith(prefix) and len(word) - len(prefix) >= _LEAST_BASE
        ]
        yield from (f" {_open_ended(f'{prefix}{word}')}" for word in words for prefix in usual)
        yield from (
            f" {_open_ended(f'{prefix}{base}')}"
            for base in dict.fromkeys(bare)
            for prefix in ("", *usual)
        )


def _pairs(run: str) -> Iterator[str]:
    return (run[i : i + 2] for i in range(len(run) - 1))


def _spell_signs(text: str) -> str:
    for pattern, spelling in _SIGNS:
        text = pattern.sub(spelling, text)
    return text


def _is_emoji(character: str) -> bool:
    return character > "\u2000" and unicodedata.category(character) == "So"


def _space_emoji(text: str) -> str:
    if text.isascii():
        return text
    return text.translate({ord(sign): f" {sign} " for sign in set(text) if _is_emoji(sign)})
