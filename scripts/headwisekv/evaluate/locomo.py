"""LoCoMo: conversations over many sessions and questions about them. The data may be used for evaluation only."""

import json
import re
from dataclasses import dataclass

from ..core import Failure, read_text
from .scoring import exact, list_f1, token_f1

N_PREDICT = 50
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
HEAD = ("Below is a conversation between two people: {a} and {b}. The conversation takes place over multiple days and the date of each "
        "conversation is wriiten at the beginning of the conversation.\n\n")
TAIL = ("\n\n\nBased on the above conversations, write a short answer for the following question in a few words. Do not write complete and "
        "lengthy sentences. Answer with exact words from the conversations whenever possible.\n\nQuestion: {question}\n")


@dataclass(frozen=True)
class Question:
    key: str
    text: str
    answer: str
    category: int
    evidence: frozenset  # (session, turn)


@dataclass(frozen=True)
class Conversation:
    key: str
    speakers: tuple
    sessions: tuple   # (number, text), in order of time
    questions: tuple
    turns: dict       # (session, turn) -> text


def turn_ids(evidence):
    """Turns named by the evidence strings; what names none is left out."""
    found = re.findall(r"D:?(\d+):(\d+)", " ".join(map(str, evidence)))
    return frozenset((int(session), int(turn)) for session, turn in found)


def turn_text(turn):
    text = f'{turn["speaker"]} said, "{turn["text"]}"\n'
    return text + (f' and shared {turn["blip_caption"]}.' if turn.get("blip_caption") else "") + "\n"


def read_conversation(item):
    talk = item["conversation"]
    numbers = sorted(int(match[1]) for match in (re.fullmatch(r"session_(\d+)", key) for key in talk) if match)
    sessions, turns = [], {}
    for number in numbers:
        session = talk[f"session_{number}"]
        sessions.append((number, f"\nDATE: {talk[f'session_{number}_date_time']}\nCONVERSATION:\n" + "".join(map(turn_text, session))))
        for turn in session:
            turns[tuple(map(int, turn["dia_id"][1:].split(":")))] = turn_text(turn).strip()
    questions = tuple(
        Question(f"{item['sample_id']}/{i}", qa["question"], str(qa["answer"]), qa["category"], turn_ids(qa["evidence"]) & turns.keys())
        for i, qa in enumerate(item["qa"]) if qa["category"] in CATEGORIES)
    return Conversation(item["sample_id"], (talk["speaker_a"], talk["speaker_b"]), tuple(sessions), questions, turns)


def load(path):
    try:
        return [read_conversation(item) for item in json.loads(read_text(path))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failure(f"{path} is not a LoCoMo file: {type(error).__name__}: {error}") from None


def question_text(question):
    return question.text + (" Use DATE of CONVERSATION to answer with an approximate date." if question.category == 2 else "")


def prompt(conversation, n_sessions, question):
    """The latest n sessions in order of time, then the question: what comes before the question is the same for all."""
    kept = conversation.sessions[len(conversation.sessions) - n_sessions:]
    return (HEAD.format(a=conversation.speakers[0], b=conversation.speakers[1]) + "".join(text for _, text in kept)
            + TAIL.format(question=question_text(question)))


def survives(conversation, n_sessions, question):
    """Whether all evidence is in the latest n sessions; None for a question without evidence."""
    kept = {number for number, _ in conversation.sessions[len(conversation.sessions) - n_sessions:]}
    return all(session in kept for session, _ in question.evidence) if question.evidence else None


def clean(text):
    """First line with text, lower case, without marks of a choice."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "").lower()
    return re.sub(r"\([ab]\)|\b[ab]\)|answer:", "", line).strip()


def score(question, text):
    """Token F1 and exact match."""
    gold = question.answer.split(";")[0].strip() if question.category == 3 else question.answer
    prediction = clean(text)
    return (list_f1 if question.category == 1 else token_f1)(prediction, gold), exact(prediction, gold)


def judging_prompt(conversation, question, text):
    evidence = "\n".join(conversation.turns[turn] for turn in sorted(question.evidence)) or "(none given)"
    return (f"Judge whether an answer to a question about a conversation is correct.\n\nQuestion: {question.text}\n"
            f"Reference answer: {question.answer}\nParts of the conversation that hold the evidence:\n{evidence}\n\n"
            f"Answer to judge: {text.strip()}\n\nIt is correct if it says the same as the reference answer or as the evidence, in any words, form "
            "or length; a date may be given in another form or relative to a date. It is wrong if it contradicts them, leaves the "
            "asked fact out or gives no answer. Reply with one word: yes or no.")
