"""Scores of short answers: token F1 and exact match as LoCoMo has them, and yes or no from a judge model."""

import collections
import hashlib
import re
import string

from ..core import say
from ..markdown import failures_text
from ..stats import mean
from ..store import Store
from . import report
from .client import Endpoint
from .jobs import ExampleError, run_jobs
from .porter import stem

JUDGE_TOKENS = 2048  # a judge that thinks first needs room


def normalise(text):
    """Tokens without commas, case, punctuation and the words a, an, the, and; stemmed."""
    text = text.replace(",", "").lower()
    text = "".join(letter for letter in text if letter not in string.punctuation)
    return [stem(word) for word in re.sub(r"\b(a|an|the|and)\b", " ", text).split()]


def token_f1(prediction, gold):
    prediction, gold = normalise(prediction), normalise(gold)
    same = sum((collections.Counter(prediction) & collections.Counter(gold)).values())
    if not same:
        return 0.0
    precision, recall = same / len(prediction), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def list_f1(prediction, gold):
    """Comma lists: for every part of the gold answer the best part of the prediction."""
    parts = prediction.split(",")
    return mean(max(token_f1(part, item) for part in parts) for item in gold.split(","))


def exact(prediction, gold):
    return normalise(prediction) == normalise(gold)


def contains(prediction, gold):
    """Whether the words of the gold answer occur one after the other in the prediction."""
    gold = normalise(gold)
    return bool(gold) and f" {' '.join(gold)} " in f" {' '.join(normalise(prediction))} "


def read_verdict(text):
    """The last yes or no of the judge's answer."""
    words = re.findall(r"\b(yes|no)\b", text.lower())
    if not words:
        raise ExampleError(f"the judge said neither yes nor no: {' '.join(text.split())[:80]!r}")
    return words[-1] == "yes"


def add_judge_options(parser):
    parser.add_argument("--judge-url", help="OpenAI base URL of a judge model; default: no judge, only scores by words")
    parser.add_argument("--judge-model", help="its name; default: the first one that the endpoint lists")
    parser.add_argument("--judge-key-env", metavar="NAME", help="environment variable that holds its API key")


async def judge(options, records, question_of):
    """Verdicts of the judge by example, or None where no judge is asked or answers are missing. question_of(record) is the whole judging prompt."""
    if not options.judge_url:
        return None
    missing = sum("error" in record for record in records)
    if missing:
        say(f"no judging yet: {missing} of {len(records)} examples have no answer; the same command tries them again")
        return None
    async with Endpoint(options.judge_url, options.judge_model, options.judge_key_env, options.timeout) as endpoint:
        options.judge_model = endpoint.model
        store = Store(options.out / "judge.jsonl", {"judge": endpoint.model, "version": 1})

        async def work(record):
            text = await endpoint.chat([{"role": "user", "content": question_of(record)}], JUDGE_TOKENS, options.seed)
            return {"right": read_verdict(text)}

        try:
            # an answer that has changed since needs a new verdict
            jobs = [(f"{record['id']} {hashlib.sha256(record['text'].encode()).hexdigest()[:8]}", record) for record in records]
            verdicts = await run_jobs(jobs, work, store, options.parallel, "judge")
        finally:
            store.close()
    return dict(zip([record["id"] for record in records], verdicts))


def judge_figures(rows, judged):
    """What a judge says of (job, record, verdict) rows, nothing if there was none; a score only when every judgment exists."""
    if not judged:
        return {}
    figures = {"judge_failed": sum("error" in verdict for _, _, verdict in rows)}
    if rows and not figures["judge_failed"]:
        figures["judge"] = 100 * mean(verdict["right"] for _, _, verdict in rows)
    return figures


def with_verdicts(jobs, records, verdicts):
    """(job, record, verdict) rows."""
    return [(job, record, verdicts[record["id"]] if verdicts else None) for job, record in zip(jobs, records)]


def write_judged(options, endpoint, benchmark, results, markdown, records, verdicts):
    """Writes the results with what failed, and returns how much that was."""
    markdown += "\n" + failures_text(records) + failures_text(verdicts.values() if verdicts else [])
    data = {"benchmark": benchmark, "name": options.name, "seed": options.seed, "judge": options.judge_model, "results": results,
            "endpoints": [endpoint.describe()]}
    report.write_results(options.out, data, markdown)
    return results["all"]["failed"] + results["all"].get("judge_failed", 0)
