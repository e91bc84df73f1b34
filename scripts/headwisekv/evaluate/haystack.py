"""Texts and words that the needle tasks are made of."""

import functools
import hashlib
import re

from ..core import Failure, read_text

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
# a full stop, perhaps closing quotes or brackets, a blank, then what begins a sentence
SENTENCE_END = re.compile("[.!?][\"')\\]\u2019\u201d]* (?=[\"'(\\[\u2018\u201c_]?[A-Z0-9])")


def split_sentences(text):
    start = 0
    sentences = []
    for match in SENTENCE_END.finditer(text):
        sentences.append(text[start:match.end() - 1])
        start = match.end()
    return sentences + [text[start:]]


class Haystack:
    """Words of the essays in order, and the words that keys are drawn from."""

    def __init__(self, texts):
        """`texts` is a texts.Texts."""
        if not texts.essays:
            raise Failure(f"found no essay-*.txt in {texts.folder / 'books'}, expected the text for haystacks; see --data and --text")
        essays = [read_text(path) for path in texts.essays]
        lists = [read_text(path) for path in texts.word_lists()]
        self.words = " ".join(essays).split()
        self.adjectives, self.nouns = (sorted({line.strip() for line in text.splitlines() if line.strip()}) for text in lists)
        if not self.words or not self.adjectives or not self.nouns:
            raise Failure(f"the essays ({texts.source}) or a word list are empty")
        self.hash = hashlib.sha256("\0".join(essays + lists).encode()).hexdigest()[:16]
        self.sentences = functools.lru_cache(maxsize=8)(self.split_words)

    def split_words(self, n_words):
        """Sentences of the first n words; the text repeats where it is too short."""
        words = self.words
        while len(words) < n_words:
            words = words + self.words
        return split_sentences(" ".join(words[:n_words]))
