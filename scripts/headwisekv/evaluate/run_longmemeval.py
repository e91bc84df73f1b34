"""`scripts/eval longmemeval`: accuracy by question type."""

from ..arguments import positive
from ..core import Failure
from ..markdown import number, table
from ..stats import mean
from ..store import Store
from . import longmemeval, scoring
from .jobs import run_jobs


def add_options(parser):
    parser.add_argument("--file", required=True, help="longmemeval_s_cleaned.json or another file of that format")
    parser.add_argument("--questions", type=positive, help="only the first N")
    parser.add_argument("--max-input", type=positive, help="tokens of a prompt, the middle of longer ones is left out; "
                        "default: 122880, or the server's context less the answer where that is smaller")
    parser.add_argument("--max-output", type=positive, default=longmemeval.N_PREDICT, help="tokens of an answer; default: 8192")
    scoring.add_judge_options(parser)


def input_limit(options, endpoint):
    n_ctx = endpoint.n_ctx()
    limit = options.max_input or min(longmemeval.MAX_INPUT, (n_ctx or 2 ** 31) - options.max_output)
    if limit < 1 or n_ctx and limit + options.max_output > n_ctx:
        raise Failure(f"the server's context is {n_ctx}, expected room for {options.max_input or 'a prompt'} and {options.max_output} tokens of "
                      "answer; see --max-input and --max-output")
    return limit


async def run(options, endpoint):
    questions = longmemeval.load(options.file)[:options.questions]
    limit = input_limit(options, endpoint)
    store = Store(options.out / "results.jsonl", {
        "benchmark": "longmemeval", "version": 1, "name": options.name, "model": endpoint.model, "kv_policy": endpoint.policy(),
        "seed": options.seed, "max_input": limit, "max_output": options.max_output})

    async def work(question):
        text, cut = await longmemeval.cut_middle(endpoint, longmemeval.prompt(question), limit)
        answer = await endpoint.chat([{"role": "user", "content": text}], options.max_output, options.seed)
        return {"cut": cut, "text": answer}

    try:
        records = await run_jobs([(question.key, question) for question in questions], work, store, options.parallel, "longmemeval")
    finally:
        store.close()
    by_key = {question.key: question for question in questions}
    verdicts = await scoring.judge(options, records, lambda record: longmemeval.judging_prompt(by_key[record["id"]], record["text"]))
    return write(options, endpoint, questions, records, verdicts)


def summarise(rows, judged):
    failed = sum("error" in record for _, record, _ in rows)
    result = {"n": len(rows) - failed, "failed": failed, "contains": None, "f1": None, "judge": None,
              "cut": sum(record.get("cut", False) for _, record, _ in rows)}
    if rows and not failed:
        scores = [longmemeval.score(question, record["text"]) for question, record, _ in rows]
        result["contains"], result["f1"] = (100 * mean(score[i] for score in scores) for i in (0, 1))
    return {**result, **scoring.judge_figures(rows, judged)}


def write(options, endpoint, questions, records, verdicts):
    rows = scoring.with_verdicts(questions, records, verdicts)
    groups = {kind: [row for row in rows if row[0].kind == kind and not row[0].abstain] for kind in longmemeval.TYPES}
    groups["abstention"] = [row for row in rows if row[0].abstain]
    results = {name: summarise(group, verdicts) for name, group in {**groups, "all": rows}.items()}
    lines = [[name, row["n"], row["failed"], row["cut"], number(row["contains"]), number(row["f1"]), number(row["judge"]),
              row.get("judge_failed", "-")] for name, row in results.items()]
    markdown = (f"# LongMemEval{' of ' + options.name if options.name else ''}\n\nGreedy, thinking off. Judge: accuracy by a model. Contains and F1 "
                "go by words and are only a proxy. Cut: prompts whose middle was left out. A score counts only when every answer and "
                "judgment exists.\n\n"
                + table(["type", "n", "failed", "cut", "contains", "F1", "judge", "judge failed"], lines))
    return scoring.write_judged(options, endpoint, "longmemeval", results, markdown, records, verdicts)
