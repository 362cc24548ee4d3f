"""Reading ease of Markdown by Flesch's formula, the higher the easier.

python -m tests.reading FILE...
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def prose_of(text: str) -> str:
    """The sentences of a page: no code, headings, tables, pictures or marks."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    # Names in code are one short word, whatever they are called.
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"^[|#].*$", "", text, flags=re.M)
    text = re.sub(r"^\s*(?:[->]|\d+\.) +", "\n\n", text, flags=re.M)
    return re.sub(r"[*_]", "", text)


def syllables(word: str) -> int:
    """An estimate: groups of vowels, without a silent e at the end."""
    groups = len(re.findall(r"[aeiouy]+", word.lower()))
    is_silent = re.search(r"[^aeiouyl]e$|[^aeiouytd]ed$", word.lower()) is not None
    return max(1, groups - is_silent)


def reading_ease(prose: str) -> float:
    """206.835 − 1.015 words a sentence − 84.6 syllables a word."""
    sentences = [
        words
        for part in re.split(r"[.?!](?:\s|$)|\n\s*\n", prose)
        if (words := re.findall(r"[A-Za-z]+(?:['’-][A-Za-z]+)*", part))
    ]
    n_words = sum(map(len, sentences))
    n_syllables = sum(syllables(word) for words in sentences for word in words)
    return 206.835 - 1.015 * n_words / len(sentences) - 84.6 * n_syllables / n_words


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{reading_ease(prose_of(Path(name).read_text())):6.1f}  {name}")
