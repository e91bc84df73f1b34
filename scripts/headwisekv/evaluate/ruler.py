"""RULER's needle-in-a-haystack tasks: samples of a given length in tokens, and their scores.

The essays are free books in place of RULER's, so results are "RULER-style".
"""

import random
import re
from dataclasses import dataclass

from ..core import Failure
from .haystack import NOISE

N_PREDICT = 128
DEPTHS = [round(i * 100 / 39) for i in range(40)]
PAPER = {"lengths": [4096, 8192, 16384, 32768, 65536, 131072], "examples": 40, "seed": 42}


@dataclass(frozen=True)
class Task:
    haystack: str  # noise or essay
    n_keys: int
    n_values: int  # of each key
    n_queries: int

    @property
    def plural(self):
        return self.n_queries * self.n_values > 1


TASKS = {
    "niah_single_1":   Task("noise", 1, 1, 1),
    "niah_single_2":   Task("essay", 1, 1, 1),
    "niah_multikey_1": Task("essay", 4, 1, 1),
    "niah_multivalue": Task("essay", 1, 4, 1),
    "niah_multiquery": Task("essay", 4, 1, 4),
}


@dataclass(frozen=True)
class Sample:
    user: str        # the user's turn
    prefix: str      # begins the answer
    answers: tuple
    depths: tuple    # of each answer's needle: 0 is the beginning of the context, 1 its end
    n_units: int     # lines of noise or words of the essay


def draw_distinct(draw, n):
    """n different items."""
    items = []
    while len(items) < n:
        item = draw()
        if item not in items:
            items.append(item)
    return items


def shuffled(items, seed):
    """The same permutation for every sample, as in RULER."""
    items = list(items)
    random.Random(seed).shuffle(items)
    return items


def insert_in_noise(needles, n_lines, rng):
    """Needles as lines of their own; returns the text and each needle's depth."""
    lines = [NOISE] * n_lines
    indices = sorted(rng.sample(range(n_lines), len(needles)), reverse=True)
    for index, needle in zip(indices, needles):
        lines.insert(index, needle)
    return "\n".join(lines), [index / n_lines for index in indices]


def insert_in_essay(needles, sentences, depths):
    """Needle i in front of the sentence at the i-th smallest depth."""
    depths = sorted(depths)
    parts, start = [], 0
    for needle, depth in zip(needles, depths):
        position = len(sentences) * depth // 100
        parts += [*sentences[start:position], needle]
        start = position
    return " ".join(parts + sentences[start:]), [depth / 100 for depth in depths]


def wording(context, query, plural):
    if plural:
        return (f"Some special magic numbers are hidden within the following text. Make sure to memorize it. "
                f"I will quiz you about the numbers afterwards.\n{context}\n"
                f"What are all the special magic numbers for {query} mentioned in the provided text?",
                f" The special magic numbers for {query} mentioned in the provided text are")
    return (f"A special magic number is hidden within the following text. Make sure to memorize it. "
            f"I will quiz you about the number afterwards.\n{context}\n"
            f"What is the special magic number for {query} mentioned in the provided text?",
            f" The special magic number for {query} mentioned in the provided text is")


def make_sample(name, haystack, n_units, rng, seed, depths=None):
    """Draws keys, values, places and queries from rng. Depths in percent are drawn too unless they are given."""
    task = TASKS[name]
    keys = draw_distinct(lambda: f"{rng.choice(haystack.adjectives)}-{rng.choice(haystack.nouns)}", task.n_keys)
    numbers = draw_distinct(lambda: str(rng.randint(1000000, 9999999)), task.n_keys * task.n_values)
    values = {key: numbers[i * task.n_values:(i + 1) * task.n_values] for i, key in enumerate(keys)}
    owners = shuffled([(key, value) for key in keys for value in values[key]], seed)
    needles = [f"One of the special magic numbers for {key} is: {value}." for key, value in owners]
    if task.haystack == "noise":
        context, found = insert_in_noise(needles, n_units, rng)
    else:
        context, found = insert_in_essay(needles, haystack.sentences(n_units), depths or rng.sample(DEPTHS, len(needles)))
    depth_of = {value: depth for (_, value), depth in zip(owners, found)}
    queries = rng.sample(keys, task.n_queries)
    query = queries[0] if len(queries) == 1 else ", ".join(queries[:-1]) + ", and " + queries[-1]
    answers = tuple(value for key in queries for value in values[key])
    return Sample(*wording(context, query, task.plural), answers, tuple(depth_of[value] for value in answers), n_units)


def step_of(name, length):
    """Units by which a haystack shrinks. RULER has no lengths below 4096 for essays; 25 words are ours there."""
    if TASKS[name].haystack == "noise":
        return 5 if length < 4096 else 25
    return 25 if length < 4096 else 500


class Maker:
    """Makes samples that fit a length. `measure` is a coroutine that gives a sample's tokens, prefix and wrapping included."""

    def __init__(self, haystack, seed, measure):
        self.haystack, self.seed, self.measure = haystack, seed, measure
        self.units = {}

    def draw(self, name, n_units, rng, depths=None):
        return make_sample(name, self.haystack, n_units, rng, self.seed, depths)

    async def fit(self, name, length):
        """The largest number of units whose sample fits; each try is a fresh sample."""
        if (name, length) in self.units:
            return self.units[name, length]

        async def tokens(n):
            return await self.measure(self.draw(name, n, random.Random(f"{self.seed} fit {name} {length} {n}"))) + N_PREDICT

        low = TASKS[name].n_keys * TASKS[name].n_values
        smallest = await tokens(low)
        if smallest > length:
            raise Failure(f"length {length} is too small for {name}: its smallest sample has {smallest} tokens")
        high = step_of(name, length)
        while await tokens(high) <= length:
            low, high = high, 2 * high
        while low < high - 1:
            middle = (low + high) // 2
            if await tokens(middle) <= length:
                low = middle
            else:
                high = middle
        self.units[name, length] = low
        return low

    async def make(self, name, length, index, depth=None):
        """The sample of that index: the same for the same seed, tokenizer and data. A depth fixes the place of the needle."""
        n = await self.fit(name, length)
        step = step_of(name, length)
        rng = random.Random(f"{self.seed} {name} {length} {index} {depth}")
        while True:
            sample = self.draw(name, n, rng, None if depth is None else [depth])
            tokens = await self.measure(sample) + N_PREDICT
            if tokens <= length:
                return sample, tokens
            smallest = TASKS[name].n_keys * TASKS[name].n_values
            if n == smallest:
                raise Failure(f"length {length} is too small for {name}: a sample has {tokens} tokens")
            n = n - step if n - step >= smallest else max(smallest, n - max(1, n // 10))


def found_answers(prediction, answers):
    """For every reference answer whether it occurs in the prediction: RULER's string_match_all."""
    text = re.sub("[\x00-\x1f]", "\n", prediction.strip()).strip().lower()
    return [answer.lower() in text for answer in answers]
