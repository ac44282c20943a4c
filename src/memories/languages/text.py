"""Words in any script: normal forms, the text for a word index, and the terms of a query."""

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence

from memories import languages

MAX_QUERY_TERMS = 64
_MAX_READ = 16_384  # maximum number of characters from which terms are extracted
# Maximum number of letters in a word whose other forms are tried, and maximum number of words in a
# phrase.
_LONGEST = 64
# Maximum number of endings to remove from a word, and minimum number of letters that must remain.
_MAX_ENDINGS, _MIN_STEM = 2, 4
# Maximum number of prefixes to add to a word, and minimum number of letters after a prefix.
_MAX_PREFIXES, _MIN_BASE = 7, 3

_QUOTES = str.maketrans(
    {"‘": "'", "’": "'", "‚": "'", "‛": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"'}
)

# Scripts without spaces between words, and Hangul, which attaches endings to words.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    # kana and Han
    "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "\uac00-\ud7a3"  # Hangul
)
# Marks are parts of words too, though `\w` does not match them: accents, Hebrew points, Arabic
# vowels, the Indic blocks. These patterns exclude unspaced scripts, with which they would take 7 ms
# to compile.
_LETTER = r"(?:[^\W_]|[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0dff])"
_WORD = re.compile(f"{_LETTER}+")
_COMPOUND = re.compile(rf"(?<!{_LETTER}){_LETTER}+(?:[.'/@:+_-]+{_LETTER}+)+")
_QUOTED = re.compile(r'"([^"]{3,200})"')
# A symbol between two digits does not end a token: versions, dates, addresses and large numbers.
_TOKEN = re.compile(rf"{_LETTER}+(?:(?<=\d)(?:[^\w\s]|_)(?=\d){_LETTER}+)*")
_HAN_NUMBER = re.compile("[〇零一二三四五六七八九十百千万億亿兆]+")
# Symbols in names, such as C++ and C#, spelled as words, because the index drops symbols.
_SIGNS = ((re.compile(r"(?<=\w)\+\+"), "plusplus "), (re.compile(r"(?<=\w)#(?!\w)"), "sharp "))

# English function words. They are indexed so that phrases match, but left out of queries with other
# words.
STOP_WORDS = frozenset(
    "a about above after again against all also am an and any are aren't as at be because been "
    "before being below between both but by can can't cannot could couldn't did didn't do does "
    "doesn't doing don't down during each else ever few for from further get gets give go goes "
    "going got had hadn't has hasn't have haven't having he her here hers herself him himself his "
    "how i if in into is isn't it its itself just kind let like made make makes many may me might "
    "more most much must my myself no nor not of off often on once one only or other ought our "
    "ours ourselves out over own please same shall she should shouldn't so some still such take "
    "tell than that the their theirs them themselves then there these they thing things this those "
    "through to too under until up upon us use used using very was wasn't we well were weren't "
    "what what's when where which while who who's whom whose why will with won't would wouldn't "
    "yes yet you your yours yourself yourselves".split()
)


def normal_form(text: str) -> str:
    """Return the form used to compare texts: NFKC, case-folded, plain quotes, single spaces."""
    return cased_form(unicodedata.normalize("NFKC", text).casefold())


def cased_form(text: str) -> str:
    """Return the normal form, but keep the case of letters."""
    return " ".join(unicodedata.normalize("NFKC", text).translate(_QUOTES).split())


def is_unspaced(text: str) -> bool:
    """Return whether a text has characters of a script that is written without spaces."""
    return not text.isascii() and bool(_unspaced_run().search(text))


def mark_raised(text: str) -> str:
    """Put a ^ before superscripts, subscripts and fractions, so that 10² does not become 102.

    NFKC turns them into plain characters.
    """
    if text.isascii():
        return text
    kinds = ("<super>", "<sub>", "<fraction>")
    raised = [sign for sign in set(text) if unicodedata.decomposition(sign).startswith(kinds)]
    return text.translate({ord(sign): f"^{sign}" for sign in raised})


def index_text(text: str) -> str:
    """Return the text for a word index: the normal form, with unspaced scripts split into pieces.

    A word index finds only whole words, but Chinese, Japanese, Thai and Korean texts do not show
    where words end. So a run of such characters is indexed as its single characters and overlapping
    pairs.
    """
    spelled = _spell_signs(normal_form(text))
    if spelled.isascii():
        return spelled
    return _space_emoji(_unspaced_run().sub(_cut_run, spelled))


def _cut_run(run: re.Match[str]) -> str:
    return f" {' '.join((*run[0], *_pairs(run[0])))} "


def query_terms(text: str) -> list[str]:
    """Return the terms to search for, without repetitions, at most `MAX_QUERY_TERMS`.

    A term of several words (an identifier, a path, a quoted phrase) must be matched as a phrase. A
    term that ends with `*` is the beginning of a word, because the index strips only English
    endings. A term that begins with a space is another form of a word; that word is a term too.
    Function words are left out, unless there are no other words.
    """
    spelled = _spell_out(text[:_MAX_READ])
    codes = languages.detect(spelled)
    significant = _terms(_drop_function_words(spelled, codes), codes)
    terms = dict.fromkeys(term for term in significant if term not in STOP_WORDS)
    terms = terms or dict.fromkeys(_words(spelled)) or dict.fromkeys(_terms(spelled, ()))
    return list(terms)[:MAX_QUERY_TERMS]


def stop_terms(text: str) -> list[str]:
    """Return a question's function words (stop words), to search for if its other words find
    nothing.

    English function words are never returned.
    """
    spelled = _spell_out(text[:_MAX_READ])
    if not languages.detect(spelled):
        return []
    first = query_terms(text)
    others = [term for term in dict.fromkeys(_terms(spelled, ())) if term not in first]
    return others[:MAX_QUERY_TERMS]


def _spell_out(text: str) -> str:
    return _space_emoji(_spell_signs(normal_form(text)))


def _drop_function_words(spelled: str, codes: Sequence[str]) -> str:
    """Return a text without the function words of these languages."""
    for code in codes:
        function_words = frozenset(languages.words(code)["stop"])
        if code in languages.UNSPACED:
            # A single character may be part of another word, so don't remove it.
            longer = [word for word in function_words if len(word) > 1]
            longer.sort(key=len, reverse=True)
            spelled = re.sub("|".join(map(re.escape, longer)), " ", spelled)
        else:
            for word in dict.fromkeys(_words(spelled)):
                if languages.fold(word) in function_words:
                    spelled = re.sub(rf"(?<!\w){word}(?!\w)", " ", spelled)
    return spelled


def is_latin(text: str) -> bool:
    """Return whether at least half of a text's letters are Latin; True if it has none."""
    if text.isascii():
        return True
    letters = [sign for sign in text if sign.isalpha()]
    latin = [sign for sign in letters if sign < "\u0250" or "\u1e00" <= sign <= "\u1eff"]
    return 2 * len(latin) >= len(letters)


def coverage(text: str, words: Sequence[str]) -> float:
    """Return the share of the words that occur in a text, 0 to 1, ignoring endings and accents."""
    haystack = _haystack(text)
    stems = [_strip_marks(word.rstrip("*"))[: max(4, len(word) - 3)] for word in words]
    return sum(f" {stem}" in haystack for stem in stems) / max(1, len(words))


@functools.lru_cache(256)  # cached, since the best hits are compared
def _haystack(text: str) -> str:
    indexed = _strip_marks(index_text(text))
    return f" {' '.join(_words(indexed))} {indexed}"


def words_in(text: str) -> set[str]:
    """Return a text's words without case and accents.

    For scripts without spaces, return the characters and the pairs of adjacent characters.
    """
    indexed = _strip_marks(index_text(text))
    return set(_words(indexed)) | _pieces(indexed)


def _pieces(indexed: str) -> set[str]:
    """Return the pieces of unspaced scripts, and the emoji, in a text for a word index."""
    if indexed.isascii():
        return set()
    return {piece for piece in indexed.split() if is_unspaced(piece) or _is_emoji(piece[0])}


def tokens(text: str) -> set[str]:
    """Return a text's words, ignoring case and accents and keeping numbers whole.

    `1.2` is not in `1.20`, nor `80` in `8080`. Versions, dates, IP addresses and identifiers
    such as `k8s` are words too. All scripts' digits are treated alike. For unspaced scripts, return
    the characters, the pairs, and each number with the prefix `=`.
    """
    plain = normal_form(mark_raised(text))
    if not plain.isascii():
        plain = "".join(str(unicodedata.decimal(sign, sign)) for sign in plain)
    indexed = _strip_marks(index_text(plain))
    result = set(_TOKEN.findall(_without_unspaced(indexed))) | _pieces(indexed)
    if not indexed.isascii():
        result.update(f"={number}" for number in _HAN_NUMBER.findall(plain))
    return result


def significant_tokens(query: str) -> set[str]:
    """Return a question's tokens without function words, unless it has no others."""
    spelled = _spell_out(mark_raised(query))
    significant = _drop_function_words(spelled, languages.detect(spelled))
    significant = _COMPOUND.sub(_drop_stop_word, significant)
    return (tokens(significant) - STOP_WORDS - {"s"}) or tokens(spelled)


def _drop_stop_word(compound: re.Match[str]) -> str:
    if compound[0] in STOP_WORDS:
        return " "
    return compound[0]


def is_number(token: str) -> bool:
    """Return whether a token has digits, or is a number in an unspaced script."""
    return token.startswith("=") or any(sign.isdigit() for sign in token)


def _strip_marks(text: str) -> str:
    """Return a text without accents and other marks."""
    if text.isascii():
        return text
    text = unicodedata.normalize("NFD", text)
    marks = [sign for sign in set(text) if unicodedata.category(sign) == "Mn"]
    return text.translate(dict.fromkeys(map(ord, marks)))


def _terms(spelled: str, codes: Sequence[str]) -> Iterator[str]:
    """Yield the terms in a normal form.

    These are quoted phrases, compounds, words, character pairs in unspaced scripts, emoji, and
    other forms of the words.
    """
    phrases = [_words(phrase) for phrase in _QUOTED.findall(spelled)]
    for phrase in phrases:
        if len(phrase) > 1:
            yield " ".join(phrase)
    # Examine each compound only once, since long texts repeat compounds.
    for compound in dict.fromkeys(_COMPOUND.findall(_without_unspaced(spelled))):
        if compound in STOP_WORDS:
            spelled = spelled.replace(compound, " ")
            continue
        parts = [word for word in _words(compound) if word != "s"]
        if 1 < len(parts) <= _LONGEST:
            yield " ".join(parts)
    words = [word for word in _words(spelled) if word != "s"]
    yield from (_stem(word, codes) for word in words)
    if not spelled.isascii():
        for run in _unspaced_run().findall(spelled):
            yield from _pairs(run) if len(run) > 1 else run
    yield from filter(_is_emoji, spelled)
    yield from _prefix_forms([word for word in words if len(word) >= _MIN_BASE], codes)
    if codes or not spelled.isascii():
        yield from _spelling_forms([word for word in words if len(word) <= _LONGEST], codes)


def _spelling_forms(words: Sequence[str], codes: Sequence[str]) -> Iterator[str]:
    """Yield the terms for other spellings of words."""
    for word in dict.fromkeys(words):
        forms = {_stem(word, codes)}
        for spelling in _spellings(word, codes):
            form = _stem(spelling, codes)
            if len(spelling) >= _MIN_BASE and form not in forms:
                forms.add(form)
                yield f" {form}"


@functools.cache
def _unspaced_run() -> re.Pattern[str]:
    return re.compile(f"[{_UNSPACED}]+")


def _without_unspaced(text: str) -> str:
    """Return a text with runs of unspaced scripts replaced with spaces."""
    if text.isascii():
        return text
    return _unspaced_run().sub(" ", text)


def _words(text: str) -> list[str]:
    return _WORD.findall(_without_unspaced(text))


def _open_end(word: str) -> str:
    """Return a term for a word's beginning, or the word itself if it is short or Latin."""
    if len(word) < 4 or is_latin(word):
        return word
    return f"{word[: max(4, len(word) - 2)]}*"


def _stem(word: str, codes: Sequence[str]) -> str:
    """Return a word without the endings of its language, as a term; the whole word if too little
    would remain.
    """
    endings = languages.words(codes[0]).get("endings", ()) if codes else ()
    if not endings or not word.isalpha() or not is_latin(word):
        return _open_end(word)
    folded, unmarked = languages.fold(word), _strip_marks(word)
    stem = folded
    for _ in range(_MAX_ENDINGS):
        matching = [ending for ending in endings if stem.endswith(ending)]
        ending = max(matching, key=len, default="")
        if len(stem) - len(ending) >= _MIN_STEM:
            stem = stem.removesuffix(ending)
    if len(unmarked) == len(folded):
        # Letters that have no accent to strip, such as ł and ı, are unchanged in the index.
        stem = unmarked[: len(stem)]
    if len(stem) >= _MIN_STEM:
        return f"{stem}*"
    return word


# Letters whose marks are often omitted, with their marked forms; some only in certain languages.
_MARKED = {"α": "ά", "ε": "έ", "η": "ή", "ι": "ί", "ο": "ό", "υ": "ύ", "ω": "ώ"}
_MARKED.update({sign: f"{sign}\u093c" for sign in "कखगजडढफ"})
_MARKED_IN = {"ru": {"е": "ё"}, "pl": {"l": "ł"}, "vi": {"d": "đ"}}
_UMLAUTS = {"ä": "ae", "ö": "oe", "ü": "ue"}
_ALEFS = "أإآ"


def _spellings(word: str, codes: Sequence[str]) -> Iterator[str]:
    """Yield other spellings of a word that may be in the index: without its marks, or with a mark
    that is often omitted.
    """
    unmarked = _without_marks(word)
    yield unmarked
    for letter, spelled_out in _UMLAUTS.items():
        if letter in word:
            yield word.replace(letter, spelled_out)
        elif "de" in codes and spelled_out in word:
            yield word.replace(spelled_out, letter)
    if "tr" in codes and "i" in word:
        yield word.replace("i", "ı")
    yield from _with_marks(unmarked, codes)
    for article in ("", "ال"):
        if unmarked.startswith(f"{article}ا"):
            yield from (f"{article}{alef}{unmarked[len(article) + 1 :]}" for alef in _ALEFS)


def _without_marks(word: str) -> str:
    """Return a word without the marks that the index keeps."""
    is_cyrillic = "\u0400" <= word[0] < "\u0530"
    is_indic = "\u0900" <= word[0] < "\u0e00"
    if is_cyrillic or is_indic:
        return word.replace("ё", "е").replace("\u093c", "")
    folded = languages.fold(word)
    if folded == _strip_marks(word) and is_latin(word):
        return word
    return folded


def _with_marks(unmarked: str, codes: Sequence[str]) -> Iterator[str]:
    """Yield an unmarked word's spellings with one of the marks that are often omitted."""
    marked = dict(_MARKED)
    for code in codes:
        marked.update(_MARKED_IN.get(code, {}))
    for position, sign in enumerate(unmarked):
        if sign in marked:
            yield f"{unmarked[:position]}{marked[sign]}{unmarked[position + 1 :]}"


def _prefix_forms(words: Sequence[str], codes: Sequence[str]) -> Iterator[str]:
    """Yield terms for words with and without the prefixes that their language attaches to words."""
    for code in codes:
        prefixes = languages.words(code).get("glued", ())
        common = prefixes[:_MAX_PREFIXES]
        for word in words:
            for prefix in common:
                yield f" {_open_end(f'{prefix}{word}')}"
        bases: dict[str, None] = {}
        for word in words:
            for prefix in prefixes:
                if word.startswith(prefix) and len(word) - len(prefix) >= _MIN_BASE:
                    bases[word.removeprefix(prefix)] = None
        for base in bases:
            for prefix in ("", *common):
                yield f" {_open_end(f'{prefix}{base}')}"


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
