"""Porter's stemmer (1980) with the departures that NLTK's default has, because LoCoMo's scores are made with it."""

import functools

VOWELS = "aeiou"
# whole words that the rules would spoil
IRREGULAR = {"skies": "sky", "sky": "sky", "dying": "die", "lying": "lie", "tying": "tie", "news": "news", "innings": "inning",
             "inning": "inning", "outings": "outing", "outing": "outing", "cannings": "canning", "canning": "canning", "howe": "howe",
             "proceed": "proceed", "exceed": "exceed", "succeed": "succeed"}
STEP_2 = (("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble"), ("alli", "al"),
          ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"), ("ator", "ate"), ("alism", "al"),
          ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"), ("iviti", "ive"), ("biliti", "ble"),
          ("fulli", "ful"))
STEP_3 = (("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""))
STEP_4 = ("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "sion", "tion", "ou", "ism", "ate", "iti", "ous",
          "ive", "ize")


def consonants(word):
    """For every letter whether it is a consonant; y is one at the beginning and after a vowel."""
    result = []
    for i, letter in enumerate(word):
        result.append(letter not in VOWELS and (letter != "y" or i == 0 or not result[i - 1]))
    return result


def measure(stem):
    """How often a consonant follows a vowel."""
    kinds = consonants(stem)
    return sum(not a and b for a, b in zip(kinds, kinds[1:]))


def has_vowel(stem):
    return not all(consonants(stem))


def ends_double(word):
    return len(word) >= 2 and word[-1] == word[-2] and consonants(word)[-1]


def ends_cvc(word):
    """Consonant, vowel, consonant other than w, x, y; or a word of vowel and consonant."""
    kinds = consonants(word)
    if len(word) == 2:
        return kinds == [False, True]
    return len(word) >= 3 and kinds[-3:] == [True, False, True] and word[-1] not in "wxy"


def step_1a(word):
    if word.endswith("ies") and len(word) == 4:
        return word[:-1]
    for ending, new in (("sses", "ss"), ("ies", "i"), ("ss", "ss"), ("s", "")):
        if word.endswith(ending):
            return word[:len(word) - len(ending)] + new
    return word


def step_1b(word):
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        stem = word[:-len(ending)]
        if word.endswith(ending) and has_vowel(stem):
            if stem.endswith(("at", "bl", "iz")):
                return stem + "e"
            if ends_double(stem):
                return stem if stem[-1] in "lsz" else stem[:-1]
            return stem + "e" if measure(stem) == 1 and ends_cvc(stem) else stem
    return word


def step_1c(word):
    return word[:-1] + "i" if word.endswith("y") and len(word) > 2 and consonants(word[:-1])[-1] else word


def replace_first(word, rules):
    """The first ending that fits decides, whether its condition holds or not."""
    for ending, new in rules:
        if word.endswith(ending):
            stem = word[:len(word) - len(ending)]
            return stem + new if measure(stem) > 0 else word
    return word


def step_2(word):
    if word.endswith("alli") and measure(word[:-4]) > 0:
        return step_2(word[:-2])
    if word.endswith("logi"):
        return word[:-1] if measure(word[:-3]) > 0 else word
    return replace_first(word, STEP_2)


def step_4(word):
    for ending in STEP_4:
        if word.endswith(ending):
            stem = word[:len(word) - (3 if ending in ("sion", "tion") else len(ending))]
            return stem if measure(stem) > 1 else word
    return word


def step_5(word):
    if word.endswith("e"):
        stem = word[:-1]
        if measure(stem) > 1 or measure(stem) == 1 and not ends_cvc(stem):
            word = stem
    return word[:-1] if word.endswith("ll") and measure(word[:-1]) > 1 else word


@functools.lru_cache(maxsize=65536)
def stem(word):
    word = word.lower()
    if word in IRREGULAR:
        return IRREGULAR[word]
    if len(word) <= 2:
        return word
    word = step_1c(step_1b(step_1a(word)))
    return step_5(step_4(replace_first(step_2(word), STEP_3)))
