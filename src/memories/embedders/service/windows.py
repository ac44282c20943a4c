"""Long texts cut into windows that a model reads one by one. Pure."""


def windows(text: str, size: int, most: int) -> list[str]:
    """Cut a text into windows that overlap by an eighth, at spaces where there are some.

    Args:
        text: The text.
        size: How many bytes of UTF-8 a window has at most.
        most: How many windows at most; the rest is left out.

    Returns:
        At least one window, none of them blank; a text without anything visible becomes one full stop, since services
        refuse empty texts.
    """
    data = text.strip().encode("utf-8", "replace")
    cut: list[str] = []
    start = 0
    while start < len(data) and len(cut) < most:
        end = _end(data, start, size)
        cut.append(data[start:end].decode("utf-8", "ignore").strip())
        if end == len(data):
            break
        overlap = end - size // 8
        space = data.find(b" ", overlap, end)
        start = max(start + 1, _whole(data, overlap) if space < 0 else space + 1)
    return [window for window in cut if window] or ["."]


def _end(data: bytes, start: int, size: int) -> int:
    """Return where a window ends: at the last space in its last eighth, else after a whole character."""
    if len(data) - start <= size:
        return len(data)
    space = max(data.rfind(b" ", start + size - size // 8, start + size), data.rfind(b"\n", start, start + size))
    if space > start + size - size // 8:
        return space
    return _whole(data, start + size)


def _whole(data: bytes, at: int) -> int:
    """Return where the character begins that a byte is part of."""
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return at
