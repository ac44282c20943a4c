"""Texts that announce a change are recognized in every language."""

import pytest

from memories.languages import announces_change

CHANGED = {
    "ar": "لم نعد نستخدم جنكينز",
    "de": "Wir haben die Webseite auf Hugo umgestellt.",
    "el": "Η ομάδα χρησιμοποιεί πλέον το Slack.",
    "en": "We dropped Jenkins last week.",
    "es": "Ahora Pablo se encarga del diseño.",
    "fi": "Emme käytä enää Jenkinsiä.",
    "fr": "Désormais l'équipe se réunit le jeudi.",
    "he": "עכשיו אנחנו משתמשים בפוסטגרס",
    "hi": "अब हम पोस्टग्रेस इस्तेमाल करते हैं",
    "it": "Il team è passato da Trello a Notion.",
    "ja": "定例会議は今月から水曜日に変わりました。",
    "ko": "이제 우리는 슬랙을 쓰지 않습니다",
    "nl": "We zijn overgestapt op Postgres.",
    "pl": "Teraz używamy Postgresa, a nie MySQL.",
    "pt": "Agora mandamos o relatório uma vez por mês.",
    "ru": "Теперь мы используем Постгрес.",
    "th": "ตอนนี้เราใช้ Postgres แล้ว",
    "tr": "Artık Jenkins kullanmıyoruz.",
    "uk": "Тепер ми використовуємо Постгрес, її більше немає.",
    "vi": "Bây giờ chúng tôi dùng Postgres.",
    "zh": "前端已经改写成React了。",
}
UNCHANGED = (
    "Anna leads the payments team.",
    "The API listens on port 8080.",
    "Das Backup liegt verschlüsselt in Helsinki.",
    "El equipo usa Figma para el diseño.",
    "定例会議は月曜日です。",
    "张伟负责支付模块。",
)


@pytest.mark.parametrize("code", CHANGED)
def test_a_text_that_announces_a_change_is_recognized(code: str) -> None:
    assert announces_change(CHANGED[code])


@pytest.mark.parametrize("text", UNCHANGED)
def test_a_plain_fact_announces_no_change(text: str) -> None:
    assert not announces_change(text)
