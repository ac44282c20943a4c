"""Normal forms, and the same terms for stored texts and for questions, in any script."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memories import languages
from memories.languages.text import (
    MAX_QUERY_TERMS,
    STOP_WORDS,
    _drop_function_words,
    _stem,
    coverage,
    index_text,
    normal_form,
    query_terms,
)
from memories.stores.words import occurrences, parse, tokens


def missing(query: str, content: str) -> list[str]:
    """Return the terms of a query that the index text of a content lacks."""
    held = (
        " "
        + " ".join(
            "".join(c if c.isalnum() or _mark(c) else " " for c in index_text(content)).split()
        )
        + " "
    )
    terms = [term for term in query_terms(query) if not term.startswith(" ")]
    return [
        term
        for term in terms
        if (f" {term[:-1]}" if term.endswith("*") else f" {term} ") not in held
    ]


def _mark(character: str) -> bool:
    """Return whether a character is a mark or a symbol."""
    return unicodedata.category(character)[0] == "M" or unicodedata.category(character) == "So"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("  Two\twords\n here ", "two words here"),
        ("ＦＵＬＬ ｗｉｄｔｈ", "full width"),
        ("“Quoted” ‘text’ «ici»", '"quoted" \'text\' "ici"'),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("e\u0301", "é"),
        ("ﬁle", "file"),
        ("ΣΊΣΥΦΟΣ", "σίσυφοσ"),
        ("", ""),
    ],
)
def test_texts_have_the_expected_normal_form(text: str, form: str) -> None:
    assert normal_form(text) == form


@pytest.mark.parametrize(
    ("query", "content"),
    [
        ("αγγελος", "Ο Άγγελος μένει εδώ"),
        ("ΑΓΓΕΛΟΣ", "Ο Άγγελος μένει εδώ"),
        ("Άγγελος", "ο αγγελος μενει εδω"),
        ("где еще елка", "ёлка стоит у входа"),
        ("ёлка", "елка стоит у входа"),
        ("gdzie jest Łódź", "Spotkanie w Łodzi"),
        ("gdzie jest lodz", "Spotkanie w Łodzi"),
        ("ışık nerede", "ışıklar açık"),
        ("isik nerede", "ışıklar açık"),
        ("wo liegt Koeln", "Wir fahren nach Köln"),
        ("Köln", "Wir fahren nach Koeln"),
        ("احمد", "أحمد هنا"),
        ("أحمد", "احمد هنا"),
        ("الاحمر", "اللون الأحمر"),
        ("كِتاب", "كتاب جديد"),
        ("जरूरी", "ज़रूरी काम"),
        ("ज़रूरी", "जरूरी काम"),
    ],
)
def test_a_word_with_other_marks_is_found(query: str, content: str) -> None:
    content_tokens, terms = (
        tokens(content),
        [term for term in map(parse, query_terms(query)) if term],
    )
    assert any(occurrences(content_tokens, term) for term in terms)


def test_english_has_no_other_spellings() -> None:
    assert query_terms("the poet queues for maize") == ["poet", "queues", "maize"]


@given(st.text())
def test_the_normal_form_of_a_normal_form_is_itself(text: str) -> None:
    assert normal_form(normal_form(text)) == normal_form(text)


@pytest.mark.parametrize(
    ("query", "content"),
    [
        ("住在柏林", "用户住在柏林。"),  # Chinese
        ("ベルリン", "ユーザーはベルリンに住んでいます"),  # Japanese
        ("東京", "本社は東京にあります"),
        ("베를린", "사용자는 베를린에 산다"),  # Korean
        ("เบอร์ลิน", "ผู้ใช้อาศัยอยู่ในเบอร์ลิน"),  # Thai
        ("Берлин", "Пользователь живёт в Берлине"),  # Cyrillic
        ("برلين", "يعيش المستخدم في برلين"),  # Arabic
        ("बर्लिन", "उपयोगकर्ता बर्लिन में रहता है"),  # Hindi
        ("ברלין", "המשתמש גר בברלין ברלין"),  # Hebrew
        ("Café", "the CAFÉ is closed"),
        ("🎉", "release🎉today"),
        ("C++", "we write C++ here"),
        ("C#", "we write C# here"),
        ("user_id", "the column user_id is null"),
        ("src/cart.tsx", "see src/cart.tsx first"),
        ("a@b.com", "mail to a@b.com please"),
        ("don't", "I don't eat meat"),
        ('"release manager"', "Priya is the release manager."),
        ("v1.2.3", "it broke in v1.2.3 only"),
        ("naïve façade", "a naïve façade"),
        ("１２３", "the code is 123"),
    ],
)
def test_the_index_text_contains_the_terms_of_a_matching_query(query: str, content: str) -> None:
    assert query_terms(query)
    assert missing(query, content) == []
    assert coverage(content, [term for term in query_terms(query) if " " not in term]) == 1.0


@pytest.mark.parametrize(
    ("query", "terms"),
    [
        ("where does the user live", ["user", "live"]),
        ("who am I", ["who", "am", "i"]),
        ("C++ and C#", ["cplusplus", "csharp"]),
        ('the "release manager" is', ["release manager", "release", "manager"]),
        ("src/cart.tsx", ["src cart tsx", "src", "cart", "tsx"]),
        ("柏林", ["柏林"]),
        ("柏", ["柏"]),
        ("住在柏林", ["住在", "在柏", "柏林"]),
        ("party 🎉", ["party", "🎉"]),
        ("Alice's Alice alice", ["alice"]),
        ('* ( ) ^ "', []),
    ],
)
def test_texts_have_the_expected_query_terms(query: str, terms: list[str]) -> None:
    assert query_terms(query) == terms


def test_terms_of_similarly_spelled_languages_differ() -> None:
    assert missing("柏林", "用户住在东京。") == ["柏林"]
    assert missing("C++", "we write C here") == ["cplusplus"]
    assert missing("C#", "we write C here") == ["csharp"]


def test_query_terms_are_limited_and_unique() -> None:
    terms = query_terms(" ".join(f"word{n % 100}" for n in range(1000)))
    assert len(terms) == MAX_QUERY_TERMS == len(set(terms))


@pytest.mark.parametrize("code", sorted(languages.UNSPACED))
def test_the_longest_of_overlapping_function_words_is_dropped(code: str) -> None:
    function_words = [word for word in languages.words(code)["stop"] if len(word) > 1]
    longer = [
        word
        for word in function_words
        if any(word != another and word.startswith(another) for another in function_words)
    ]
    assert longer
    assert {word: _drop_function_words(word, [code]) for word in longer} == dict.fromkeys(
        longer, " "
    )


def test_stop_words_are_in_their_normal_form() -> None:
    assert {normal_form(word) for word in STOP_WORDS} == STOP_WORDS


@given(st.text(max_size=300))
def test_every_text_contains_its_own_terms(text: str) -> None:
    for term in query_terms(text):
        assert term.strip() == term.removeprefix(" ") != ""
    assert 0 <= coverage(text, query_terms(text)) <= 1
    assert coverage(text, []) == 0


@pytest.mark.parametrize(
    "part", ["a", "don't ", "a.", ".", "a-", '"a ', "字", "🎉", "a#", "+", "x_1/"]
)
def test_a_long_line_without_spaces_is_read_to_its_end(part: str) -> None:
    """For example base64, which took minutes; `python -m bench long` measures that time grows only
    with length.
    """
    text = part * (20_000 // len(part))
    assert len(query_terms(text)) <= MAX_QUERY_TERMS
    assert index_text(f"{text} zanzibar").split()[-1] == "zanzibar"


@pytest.mark.parametrize(
    ("word", "term"),
    [("hunde", "hund*"), ("kindern", "kind*"), ("tage", "tage*"), ("haus", "haus*")],
)
def test_an_ending_is_removed_if_four_letters_remain(word: str, term: str) -> None:
    assert _stem(word, ["de"]) == term
