"""Tables and marks of Markdown documents."""


def row(cells):
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"


def table(head, rows, figures=True):
    """figures: all columns but the first are right-aligned."""
    return row(head) + "|---" + ("|---:" if figures else "|---") * (len(head) - 1) + "|\n" + "".join(map(row, rows))


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def failures_text(records):
    """What went wrong, each reason once with its count."""
    reasons = {}
    for record in records:
        if "error" in record:
            reasons[record["error"]] = reasons.get(record["error"], 0) + 1
    return "".join(f"- {count} failed: {reason}\n" for reason, count in sorted(reasons.items()))


def put_between(marks, text, new):
    """The document with `new` between its two marks; ValueError if it has not exactly one pair of them."""
    begin, end = marks
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"found no lines {begin} and {end}, expected one of each in this order")
    return text[:text.index(begin)] + begin + "\n" + new + "\n" + text[text.index(end):]
