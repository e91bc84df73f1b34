"""LongMemEval-S: questions about chat histories of some 115k tokens. The released file is given by its path."""

import json
from dataclasses import dataclass

from ..core import Failure, read_text
from .scoring import contains, token_f1

N_PREDICT = 8192
MAX_INPUT = 122880
TYPES = ("single-session-user", "single-session-assistant", "single-session-preference", "temporal-reasoning", "knowledge-update",
         "multi-session")
PROMPT = ("I will give you several history chats between you and a user. Please answer the question based on the relevant chat history."
          "\n\n\nHistory Chats:\n\n{history}\n\nCurrent Date: {date}\nQuestion: {question}\nAnswer:")
REFUSALS = ("not mention", "no mention", "no information", "not enough information", "don't have", "do not have", "don't know", "do not know",
            "cannot answer", "can't answer", "not provide", "no record")
RULES = {
    "single-session-preference": "The reference is a rubric for a personal answer. The answer is correct if it recalls the user's "
                                 "information and uses it rightly; it need not meet every point of the rubric.",
    "temporal-reasoning": "The answer is correct if it has the same content as the reference. A number of days, weeks or months that is off by "
                          "one is still correct.",
    "knowledge-update": "The answer is correct if it has the updated fact of the reference; older facts may be there beside it.",
}
RULE = "The answer is correct if it holds the reference answer or says the same; only a part of it is not enough."
RULE_ABSTAIN = ("The question cannot be answered from the history; the reference says why. The answer is correct if it recognises that the "
                "information is missing or incomplete.")


@dataclass(frozen=True)
class Question:
    key: str
    kind: str
    text: str
    answer: str
    date: str
    sessions: tuple  # (date, turns), in order of time

    @property
    def abstain(self):
        return self.key.endswith("_abs")


def read_question(item):
    dates, sessions = item["haystack_dates"], item["haystack_sessions"]
    if len(dates) != len(sessions):
        raise ValueError(f"{item['question_id']} has {len(dates)} haystack_dates and {len(sessions)} haystack_sessions")
    if item["question_type"] not in TYPES:
        raise ValueError(f"{item['question_id']} has question_type {item['question_type']!r}")
    turns = [[{"role": turn["role"], "content": turn["content"]} for turn in session] for session in sessions]
    in_order = sorted(zip(dates, turns), key=lambda pair: pair[0])
    return Question(item["question_id"], item["question_type"], item["question"], str(item["answer"]), item["question_date"], tuple(in_order))


def load(path):
    try:
        questions = [read_question(item) for item in json.loads(read_text(path))]
        if len({question.key for question in questions}) < len(questions):
            raise ValueError("a question_id occurs twice")
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(f"{path} is not a LongMemEval file: {type(error).__name__}: {error}") from None
    if not questions:
        raise Failure(f"{path} holds no question")
    return questions


def prompt(question):
    history = "".join(f"\n### Session {i}:\nSession Date: {date}\nSession Content:\n\n{json.dumps(turns)}\n"
                      for i, (date, turns) in enumerate(question.sessions, 1))
    return PROMPT.format(history=history, date=question.date, question=question.text)


async def cut_middle(endpoint, text, limit):
    """The text if its whole prompt fits, else as many tokens of its beginning as of its end. Says whether it was cut."""
    async def total(content):
        return await endpoint.count(await endpoint.render([{"role": "user", "content": content}]))

    if await total(text) <= limit:
        return text, False
    tokens = await endpoint.tokens(text)
    half = (limit - (await total(text) - len(tokens))) // 2
    while half > 0:
        short = await endpoint.text_of(tokens[:half]) + await endpoint.text_of(tokens[-half:])
        over = await total(short) - limit
        if over <= 0:
            return short, True
        half -= (over + 1) // 2  # the seam may take more tokens than the parts did
    raise Failure(f"no prompt fits into {limit} tokens, expected more than the chat template needs")


def score(question, text):
    """Without a judge: whether the answer's words occur, and token F1. A proxy; for abstention, whether it sounds like one."""
    if question.abstain:
        refused = any(words in text.lower() for words in REFUSALS)
        return refused, float(refused)
    return contains(text, question.answer), token_f1(text, question.answer)


def judging_prompt(question, text):
    rule = RULE_ABSTAIN if question.abstain else RULES.get(question.kind, RULE)
    return (f"Judge whether an answer to a question about earlier chats is correct.\n\nQuestion: {question.text}\nReference: {question.answer}\n"
            f"Answer to judge: {text.strip()}\n\n{rule} Reply with one word: yes or no.")
