"""`scripts/eval locomo`: questions of categories 1 to 4, by conversation so that a server can reuse the prefix."""

from ..arguments import positive
from ..core import Failure, say
from ..markdown import number, table
from ..stats import mean
from ..store import Store
from ..texts import data_folder
from . import locomo, scoring
from .jobs import run_jobs

SLACK = 64  # tokens by which the longest question may be longer than the one with most letters


def add_options(parser):
    parser.add_argument("--file", help="default: DATA/restricted/locomo10.json")
    parser.add_argument("--conversations", type=positive, help="only the first N")
    parser.add_argument("--questions", type=positive, help="only the first N of each conversation")
    parser.add_argument("--max-input", type=positive, help="tokens of a prompt; default: the server's context less the answer")
    scoring.add_judge_options(parser)


async def keep_sessions(endpoint, conversation, questions, limit):
    """How many of the latest sessions fit with any of the questions."""
    n_all = len(conversation.sessions)
    if limit is None:
        return n_all
    longest = max(questions, key=lambda question: len(locomo.question_text(question)))

    async def fits(n):
        text = await endpoint.render([{"role": "user", "content": locomo.prompt(conversation, n, longest)}])
        return await endpoint.count(text) + SLACK <= limit

    if await fits(n_all):
        return n_all
    low, high = 0, n_all
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (middle, high) if await fits(middle) else (low, middle)
    if low == 0:
        raise Failure(f"{conversation.key}: not even the latest session fits into {limit} tokens; use a larger context")
    return low


def find_file(options):
    folder = data_folder(options.data)
    path = folder and folder / "restricted" / "locomo10.json"
    if path is None or not path.is_file():
        raise Failure(f"skipped: there is no {path or 'data folder with restricted/locomo10.json'}; it is CC BY-NC 4.0, so it is neither shipped "
                      "nor fetched: give --file locomo10.json of LoCoMo's repository")
    return path


async def run(options, endpoint):
    conversations = locomo.load(options.file or find_file(options))[:options.conversations]
    n_ctx = endpoint.n_ctx()
    limit = options.max_input or (n_ctx - locomo.N_PREDICT if n_ctx else None)
    store = Store(options.out / "results.jsonl", {
        "benchmark": "locomo", "version": 1, "name": options.name, "model": endpoint.model, "kv_policy": endpoint.policy(),
        "seed": options.seed, "max_input": limit})
    jobs = []
    try:
        for i, conversation in enumerate(conversations, 1):
            questions = conversation.questions[:options.questions]
            n = await keep_sessions(endpoint, conversation, questions, limit)
            say(f"sizing {i} of {len(conversations)}: {conversation.key} keeps {n} of {len(conversation.sessions)} sessions")
            jobs += [(question.key, (conversation, n, question)) for question in questions]

        async def work(job):
            messages = [{"role": "user", "content": locomo.prompt(*job)}]
            return {"text": await endpoint.chat(messages, locomo.N_PREDICT, options.seed)}

        records = await run_jobs(jobs, work, store, options.parallel, "locomo")
    finally:
        store.close()
    by_key = dict(jobs)
    verdicts = await scoring.judge(options, records, lambda record: locomo.judging_prompt(
        by_key[record["id"]][0], by_key[record["id"]][2], record["text"]))
    return write(options, endpoint, [job for _, job in jobs], records, verdicts)


def summarise(rows, judged):
    """Figures of (job, record, verdict) rows; a score exists only when every answer, or every judgment, does."""
    failed = sum("error" in record for _, record, _ in rows)
    result = {"n": len(rows) - failed, "failed": failed, "f1": None, "exact": None, "judge": None,
              "evidence_kept": mean(kept for kept in (locomo.survives(*job) for job, _, _ in rows) if kept is not None)}
    if rows and not failed:
        scores = [locomo.score(job[2], record["text"]) for job, record, _ in rows]
        result["f1"], result["exact"] = (100 * mean(score[i] for score in scores) for i in (0, 1))
    return {**result, **scoring.judge_figures(rows, judged)}


def write(options, endpoint, jobs, records, verdicts):
    rows = scoring.with_verdicts(jobs, records, verdicts)
    groups = {f"{category} {name}": [row for row in rows if row[0][2].category == category] for category, name in locomo.CATEGORIES.items()}
    results = {name: summarise(group, verdicts) for name, group in {**groups, "all": rows}.items()}
    lines = []
    for name, row in results.items():
        kept = None if row["evidence_kept"] is None else 100 * row["evidence_kept"]
        lines.append([name, row["n"], row["failed"], number(row["f1"]), number(row["exact"]), number(row["judge"]),
                      row.get("judge_failed", "-"), number(kept, 1)])
    markdown = (f"# LoCoMo{' of ' + options.name if options.name else ''}\n\nCategories 1 to 4, sessions in order of time, greedy. F1 and exact "
                "match by words, judge by a model; a score counts only when every answer and judgment exists. Evidence: share of questions "
                "whose evidence is in the sessions that fit.\n\n"
                + table(["category", "n", "failed", "F1", "exact", "judge", "judge failed", "evidence %"], lines))
    return scoring.write_judged(options, endpoint, "locomo", results, markdown, records, verdicts)
