"""Write `languages/latin.txt`: the words that identify each language in the Latin alphabet, in
folded form.

Run `python tools/latin_words.py` after a change to a file in `src/memories/languages`. A test fails
if it is necessary.
"""

import re
from pathlib import Path

from memories.languages import LATIN, words

FILE = Path(__file__).parents[1] / "src/memories/languages/latin.txt"
LINES = (
    "stop today yesterday tomorrow before after last next every recently weekdays months week weekend year month not "
    "numbers single is using many few"
).split()
# Words that occur in English texts too, as ordinary words or as names. The function words of
# English are not listed here, since `languages` counts them as signs of English.
ENGLISH = frozenset(
    "act adore ago ami ante apr april aug august ben bin china club coach come commence commute com con dal dan "
    "dance dans day dec dine dins dove era even fa fare feb french gain gala gene hat hem hen hobby hoe "
    "hun jan january jo juli julia julio jul jun la les like los lot lotta lu ma maj man mar marca marco mars "
    "mart may mayo met mi mia mich mit mon most mot my name net november nov nu null oct oh once os otto pain pan "
    "par part pass passe past pay place plan plus point pour pro quest rest reste run runs sa san sat sea sep "
    "september sept ser set side six son spends start sur tal te ten tens ter test thus tie toe top tot trade tun "
    "two un under use usa val van vari vas vendor vent vis visa visit vu war weekend with work y ya ze zo".split()
) - frozenset("les dans mit la con van zo".split())


def marks(code: str) -> list[str]:
    """Return the words that identify a language."""
    entries = (entry for line in LINES for entry in words(code).get(line, ()))
    parts = (part.strip("~") for entry in entries for part in re.split(r"[|_']", entry))
    return sorted(
        {part for part in parts if len(part) > 1 and part.isalpha() and part not in ENGLISH}
    )


if __name__ == "__main__":
    FILE.write_text(
        "".join(f"{code}: {' '.join(marks(code))}\n" for code in LATIN), encoding="utf-8"
    )
