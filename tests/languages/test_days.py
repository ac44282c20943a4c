"""Days in other languages are translated into English."""

import random
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from memories import languages
from memories.core.times import parse_span
from memories.languages.dates import asks_when, span, spans, tells_time
from memories.languages.days import in_english

NOW = datetime(2026, 2, 21, 10, tzinfo=UTC)  # a Saturday
SAID = (
    "yesterday",
    "the day before yesterday",
    "last week",
    "2 weeks ago",
    "3 May 2023",
    "in March",
)
SAYINGS = (
    (
        "de",
        (
            "Was haben wir gestern entschieden?|vorgestern war ich dort|letzte Woche gab es Streit|"
            "vor zwei Wochen|am 3. Mai 2023|im März"
        ),
    ),
    (
        "fr",
        (
            "Que s'est-il passé hier ?|avant-hier|la semaine dernière|"
            "il y a deux semaines|le 3 mai 2023|au mois de mars dernier, en mars"
        ),
    ),
    (
        "es",
        "¿Qué pasó ayer?|anteayer|la semana pasada|hace dos semanas|el 3 de mayo de 2023|en marzo",
    ),
    (
        "pt",
        (
            "O que aconteceu ontem?|anteontem|na semana passada|há duas semanas|"
            "3 de maio de 2023|em março"
        ),
    ),
    (
        "it",
        (
            "Cosa è successo ieri?|l'altro ieri|la settimana scorsa|due settimane fa|"
            "il 3 maggio 2023|nel mese di marzo"
        ),
    ),
    (
        "nl",
        "Wat gebeurde er gisteren?|eergisteren|vorige week|twee weken geleden|3 mei 2023|in maart",
    ),
    (
        "pl",
        (
            "Co się stało wczoraj?|przedwczoraj|w zeszłym tygodniu|dwa tygodnie temu|"
            "3 maja 2023|w marcu"
        ),
    ),
    ("ru", "Что случилось вчера?|позавчера|на прошлой неделе|две недели назад|3 мая 2023|в марте"),
    ("uk", "Що сталося вчора?|позавчора|минулого тижня|два тижні тому|3 травня 2023|у березні"),
    ("tr", "Dün ne oldu?|evvelsi gün|geçen hafta|iki hafta önce|3 Mayıs 2023|martta"),
    (
        "fi",
        (
            "Mitä eilen tapahtui?|toissapäivänä|viime viikolla|kaksi viikkoa sitten|"
            "3. toukokuuta 2023|maaliskuussa"
        ),
    ),
    (
        "el",
        (
            "Τι έγινε χθες;|προχθές|την περασμένη εβδομάδα|πριν από δύο εβδομάδες|"
            "3 Μαΐου 2023|τον Μάρτιο"
        ),
    ),
    (
        "vi",
        "Hôm qua có chuyện gì?|hôm kia|tuần trước|hai tuần trước|ngày 3 tháng 5 năm 2023|tháng ba",
    ),
    ("ar", "ماذا حدث أمس؟|أول أمس|في الأسبوع الماضي|قبل أسبوعين|٣ مايو ٢٠٢٣|في مارس"),
    ("he", "מה קרה אתמול?|שלשום|בשבוע שעבר|לפני שבועיים|3 במאי 2023|במרץ"),
    ("hi", "कल क्या हुआ?|परसों|पिछले हफ़्ते|दो हफ्ते पहले|3 मई 2023|मार्च में"),
    ("th", "เมื่อวานเกิดอะไรขึ้น|เมื่อวานซืน|สัปดาห์ที่แล้ว|สองสัปดาห์ที่แล้ว|3 พฤษภาคม 2023|เดือนมีนาคม"),
    ("zh", "昨天我们决定了什么?|前天|上周|两周前|2023年5月3日|三月"),
    ("ja", "昨日何を決めた?|おととい|先週は何を|2週間前に|2023年5月3日に|3月に"),
    ("ko", "어제 무슨 일이 있었나?|그저께|지난주|2주 전|2023년 5월 3일|3월에"),
)
CODES = tuple(code for code, _ in SAYINGS)


def misread(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str, object, object]]:
    """Return the pairs (text, English) that do not name the same days, with the days of each."""
    read = [
        (text, english, spans(text, NOW, [2025]), spans(english, NOW, [2025]))
        for text, english in pairs
    ]
    return [row for row in read if row[2] != row[3] or not row[3]]


def test_days_in_other_languages_equal_the_english_ones() -> None:
    pairs = [pair for _, texts in SAYINGS for pair in zip(texts.split("|"), SAID, strict=True)]
    assert len(pairs) == len(CODES) * len(SAID)
    assert misread(pairs) == []


MORE = [
    ("im Mai letzten Jahres", "May of last year"),
    ("letzten Montag war Sitzung", "last monday"),
    ("in den letzten drei Tagen", "last 3 days"),
    ("morgen ist das Treffen", "tomorrow"),
    ("el mes que viene", "next month"),
    ("O servidor caiu na segunda-feira passada", "last monday"),
    ("hace poco", "recently"),
    ("неделю назад", "1 week ago"),
    ("去年五月", "May of last year"),
    ("上周一", "last monday"),
    ("先週の月曜日", "last monday"),
    ("작년 5월", "May of last year"),
    (unicodedata.normalize("NFD", "지난주에 무슨 일이"), "last week"),
    ("사흘 전에 무슨 일이", "3 days ago"),
    ("열흘 뒤", "in 10 days"),
    ("三月五号发生了什么", "5 March"),
    ("十二月二十三日の会議", "23 December"),
    ("2026年十月十日", "10 October 2026"),
    ("thứ ba tuần trước", "last tuesday"),
    ("thứ sáu tuần sau", "next friday"),
    ("منذ ثلاثة أيام", "3 days ago"),
    ("7.5.2023", "7 May 2023"),
    ("le 07/05/2023", "7 May 2023"),
]


def test_days_are_recognized_in_many_phrasings() -> None:
    assert misread(MORE) == []


NO_DAYS = [
    "Jeden Montag gibt es Kuchen",
    "am Morgen trinkt er Tee",
    "La mañana es fría",
    "no mayo please",
    "the hier button",
    "Nous nous voyons chaque lundi",
    "毎週月曜日に会います",
    "Was ist das?",
    "a segunda vez que o vi",
]


def test_a_text_without_a_day_is_unchanged() -> None:
    assert [text for text in NO_DAYS if spans(text, NOW, [2025])] == []


QUESTIONS = [
    "Wann war das Treffen?",
    "Quand est la fête ?",
    "¿Cuándo es?",
    "Когда встреча?",
    "会議はいつですか",
    "什么时候开会",
    "מתי הישיבה?",
    "متى الاجتماع؟",
    "बैठक कब है?",
    "회의는 언제인가",
]


def test_questions_about_a_time_in_other_languages_are_recognized() -> None:
    assert [text for text in QUESTIONS if not asks_when(text)] == []


def test_times_in_texts_of_other_languages_are_recognized() -> None:
    assert tells_time("Wir haben gestern gewonnen")
    assert tells_time("先週東京に行きました")
    assert not tells_time("Wir haben gewonnen")


OPTIONS = [
    ("hier", "2026-02-20"),
    ("letzte Woche", "2026-02-09"),
    ("la semana pasada", "2026-02-09"),
    ("7.5.2023", "2023-05-07"),
    ("3. Mai 2023", "2023-05-03"),
    ("昨天", "2026-02-20"),
]


def test_options_accept_days_in_other_languages() -> None:
    assert [(text, f"{parse_span(text, NOW)[0].date()}") for text, _ in OPTIONS] == OPTIONS


def test_options_reject_extra_words() -> None:
    beside = ("gestern um acht", "Was", "hier und da", "la", "昨天开会")
    assert [text for text in beside if span(text, NOW) is not None] == []


@given(st.sampled_from(CODES), st.randoms(use_true_random=False))
def test_any_sequence_of_entries_is_read(code: str, random: random.Random) -> None:
    entries = [
        entry.replace("_", " ").strip("~*")
        for line in languages.words(code).values()
        for entry in line
    ]
    text = " ".join(part for entry in random.choices(entries, k=8) for part in entry.split("|")[:2])
    assert isinstance(in_english(f"3 {text} 2023"), str)
    spans(text, NOW, [2025])


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert isinstance(in_english(text), str)
