"""How long the codes of vectors are: known without what makes them, which takes long to load."""

SCALE_BYTES = 4
COMPACT_BITS = 5


def code_bytes(dimension: int, *, compact: bool) -> int:
    """Return the length of the code of a vector."""
    return SCALE_BYTES + (COMPACT_BITS * -(-dimension // 8) if compact else dimension)
