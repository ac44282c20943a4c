"""How many tokens a text has at most, whatever model reads it. Pure."""


def estimate_tokens(text: str) -> int:
    """Return an upper bound."""
    others = 0 if text.isascii() else sum(sign > "\x7f" for sign in text)
    return -(-(len(text) - others) // 3) + others
