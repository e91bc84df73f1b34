"""Types of options, for argparse."""

import argparse


def positive(text):
    """A whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"found '{text}', expected a whole number above 0")
    return int(text)


def lengths(text):
    """Whole numbers above 0, in order."""
    return sorted({positive(item) for item in text.split(",")})


def percents(text):
    """Whole numbers from 0 to 100, in order."""
    items = text.split(",")
    if not all(item.isdecimal() and int(item) <= 100 for item in items):
        raise argparse.ArgumentTypeError(f"found '{text}', expected whole numbers from 0 to 100")
    return sorted({int(item) for item in items})


def words(text):
    return text.split(",")


def some_of(known, what):
    """Some of these names."""
    def read(text):
        for name in words(text):
            if name not in known:
                raise argparse.ArgumentTypeError(f"found {what} '{name}', expected some of {','.join(known)}")
        return words(text)
    return read


def number(low, high):
    """A whole number in this range."""
    def read(text):
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number from {low} to {high}")
        return int(text)
    return read
