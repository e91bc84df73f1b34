"""scripts/eval: LoCoMo, LongMemEval and needle likelihood against a scripted endpoint; scores against hand-made cases."""

import argparse
import asyncio
import json
import re

import pytest
from eval_stub import Stub
from server_process import ROOT

from headwisekv.core import Failure
from headwisekv.evaluate import __main__ as cli
from headwisekv.evaluate import locomo, longmemeval, run_needle, scoring
from headwisekv.evaluate.client import Endpoint
from headwisekv.evaluate.jobs import ExampleError
from headwisekv.evaluate.porter import stem

pytestmark = pytest.mark.unit
LOCOMO = ROOT.parent / "shared" / "data" / "restricted" / "locomo10.json"
SAMPLE = ROOT / "scripts" / "headwisekv" / "evaluate" / "data" / "longmemeval-sample.json"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Tries again at once."""
    monkeypatch.setattr(Endpoint, "BACKOFF", 0.001)


def read_json(path):
    return json.loads(path.read_text())


#
# scores
#

@pytest.mark.parametrize("words, expected", [
    ("caresses ponies ties cats skies", "caress poni tie cat sky"),
    ("agreed plastered motoring hopping falling filing died", "agre plaster motor hop fall file die"),
    ("happy enjoy by relational conditional generalization", "happi enjoy by relat condit gener"),
    ("hopeful goodness adoption effective probate controlling", "hope good adopt effect probat control"),
    ("geology radically analogies 2023", "geolog radic analog 2023"),
])
def test_stems(words, expected):
    assert " ".join(map(stem, words.split())) == expected


@pytest.mark.parametrize("prediction, gold, expected", [
    ("the Cats and dogs!", "cat, dog", 1.0),
    ("7 May 2023", "May 7, 2023", 1.0),
    ("in May", "7 May 2023", 2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3)),
    ("cat cat", "cat", 2 / 3),
    ("dog", "cat", 0.0),
    ("", "cat", 0.0),
    ("the", "a", 0.0),
])
def test_token_f1(prediction, gold, expected):
    assert scoring.token_f1(prediction, gold) == pytest.approx(expected)


def test_lists_take_the_best_part_for_every_gold_part():
    assert scoring.list_f1("red paint, running", "runs, painting, pottery") == pytest.approx((1 + 2 / 3 + 0) / 3)


def test_contains_wants_whole_words_in_order():
    assert scoring.contains("I think it was 14, maybe.", "14")
    assert not scoring.contains("It was 140.", "14")
    assert scoring.contains("They were walking in the park.", "walk in park")
    assert not scoring.contains("anything", "the")


def test_verdicts():
    assert scoring.read_verdict("Yes.") is True
    assert scoring.read_verdict("Is it the same? Yes, but the date is wrong, so: NO") is False
    with pytest.raises(ExampleError, match="neither yes nor no"):
        scoring.read_verdict("nothing known")


#
# LoCoMo
#

def make_locomo(path):
    """Two conversations of three sessions, ours."""
    def talk(name, fact):
        sessions = {}
        for n in (1, 2, 10):
            sessions[f"session_{n}"] = [{"speaker": name, "dia_id": f"D{n}:1", "text": f"{fact} number {n}. " + "Well. " * 30},
                                        {"speaker": "Bo", "dia_id": f"D{n}:2", "text": "I see.", "blip_caption": "a photo of a hill"}]
            sessions[f"session_{n}_date_time"] = f"1:0{n % 9} pm on {n} May, 2023"
        return {"speaker_a": name, "speaker_b": "Bo", "session_11_date_time": "never", **sessions}

    def questions(name):
        return [{"question": f"What did {name} say?", "answer": "Hello", "category": 4, "evidence": ["D1:1"]},
                {"question": "When?", "answer": 10, "category": 2, "evidence": ["D10:01; D:2:1", "D"]},
                {"question": "Why?", "answer": "kind; or so", "category": 3, "evidence": []},
                {"question": "What things?", "answer": "tea, cake", "category": 1, "evidence": ["D10:2"]},
                {"question": "Which?", "adversarial_answer": "none", "category": 5, "evidence": ["D1:1"]}]

    items = [{"sample_id": f"c-{name}", "conversation": talk(name, fact), "qa": questions(name)} for name, fact in (("Ann", "Tea"), ("Cy", "Cake"))]
    path.write_text(json.dumps(items))
    return path


def answer_locomo(prompt):
    question = prompt.split("Question: ")[1]
    return {"Why?": "kind", "When": "on 10 May"}.get(question[:4]) or ("Answer: hello\nand more" if "did" in question else "cakes, coffee")


def test_locomo_file(tmp_path):
    conversation = locomo.load(make_locomo(tmp_path / "locomo.json"))[0]
    assert [number for number, _ in conversation.sessions] == [1, 2, 10]
    assert [question.key for question in conversation.questions] == ["c-Ann/0", "c-Ann/1", "c-Ann/2", "c-Ann/3"]
    assert conversation.questions[1].evidence == {(10, 1), (2, 1)}
    text = locomo.prompt(conversation, 2, conversation.questions[1])
    assert "number 1." not in text and text.index("DATE: 1:02 pm on 2 May") < text.index("DATE: 1:01 pm on 10 May")
    assert 'Bo said, "I see."\n and shared a photo of a hill.\n' in text
    assert text.endswith("\n\nQuestion: When? Use DATE of CONVERSATION to answer with an approximate date.\n")
    assert [locomo.survives(conversation, 2, question) for question in conversation.questions] == [False, True, None, True]
    (tmp_path / "bad.json").write_text('[{"sample_id": 1}]')
    with pytest.raises(Failure, match="not a LoCoMo file: KeyError: 'conversation'"):
        locomo.load(tmp_path / "bad.json")


def test_locomo_run_with_judge(tmp_path, capsys):
    path = make_locomo(tmp_path / "locomo.json")
    out = tmp_path / "out"
    with Stub(answer_locomo, n_ctx=450) as stub, Stub(lambda prompt: "no" if "Answer to judge: kind" in prompt else "yes") as judge:
        arguments = ["locomo", "--base-url", stub.url, "--file", str(path), "--out", str(out), "--judge-url", judge.url]
        stub.faults = [400]
        assert cli.main(arguments) == 1
        first = read_json(out / "results.json")["results"]
        assert first["all"]["f1"] is None and first["all"]["failed"] == 1 and first["4 single-hop"]["n"] == 1 and not judge.prompts
        assert first["2 temporal"]["f1"] is not None
        assert "no judging yet: 1 of 8" in capsys.readouterr().err
        assert cli.main(arguments) == 0
        assert len(stub.prompts) == 8 and len(judge.prompts) == 8
        assert all("number 10." in prompt and "number 1." not in prompt for prompt in stub.prompts)  # cut to whole latest sessions
        assert all(len(stub.tokens(prompt)) <= 400 for prompt in stub.prompts)
        assert all(body["max_tokens"] == 50 and body["temperature"] == 0 for body in stub.bodies)
        conversations = ["Ann" in prompt.split("people: ")[1][:5] for prompt in stub.prompts[:7]]
        assert conversations == sorted(conversations, reverse=True)  # one conversation after the other
        assert cli.main(arguments) == 0 and len(judge.prompts) == 8  # all there
    results = read_json(out / "results.json")["results"]
    assert {key: row["judge"] for key, row in results.items()} == {"1 multi-hop": 100, "2 temporal": 100, "3 open-domain": 0, "4 single-hop": 100,
                                                                  "all": 75}
    assert results["4 single-hop"]["f1"] == 100 and results["3 open-domain"]["exact"] == 100 and results["1 multi-hop"]["f1"] == 50
    assert results["2 temporal"]["f1"] == pytest.approx(50) and results["all"]["evidence_kept"] == pytest.approx(2 / 3)
    stored = (out / "results.jsonl").read_text() + (out / "judge.jsonl").read_text() + (out / "results.json").read_text()
    assert "What did Ann say" not in stored and "Well." not in stored  # nothing of the data


def test_locomo_without_room(tmp_path, capsys):
    with Stub(answer_locomo, n_ctx=200) as stub:
        assert cli.main(["locomo", "--base-url", stub.url, "--file", str(make_locomo(tmp_path / "locomo.json")), "--out", str(tmp_path)]) == 1
    assert "c-Ann: not even the latest session fits into 150 tokens" in capsys.readouterr().err


def test_locomo_released_file(tmp_path):
    if not LOCOMO.exists():
        pytest.skip(f"{LOCOMO} is missing: its licence does not allow to ship it")
    conversations = locomo.load(LOCOMO)
    questions = [question for conversation in conversations for question in conversation.questions]
    counts = [sum(question.category == category for question in questions) for category in (1, 2, 3, 4)]
    assert counts == [282, 321, 96, 841] and len(conversations) == 10
    first = conversations[0]
    assert first.key == "conv-26" and len(first.sessions) == 19 and len(first.turns) == 419
    # the reference answers themselves have the full score; of category 3 only a part of some is the gold answer
    assert all(locomo.score(question, question.answer)[0] == 1 for question in first.questions if question.category in (2, 4))
    assert all(locomo.score(question, "")[0] == 0 for question in first.questions)
    with Stub(lambda prompt: first.questions[1].answer, n_ctx=8192) as stub:
        assert cli.main(["locomo", "--base-url", stub.url, "--file", str(LOCOMO), "--out", str(tmp_path), "--conversations", "1",
                         "--questions", "2"]) == 0
        assert all(6000 < len(stub.tokens(prompt)) <= 8192 - 50 for prompt in stub.prompts)
    results = read_json(tmp_path / "results.json")["results"]
    assert results["all"]["n"] == 2 and results[f"{first.questions[1].category} {locomo.CATEGORIES[first.questions[1].category]}"]["f1"] >= 50


#
# LongMemEval
#

def test_sample_file_has_every_type():
    questions = longmemeval.load(SAMPLE)
    assert len(questions) == 20 and {question.kind for question in questions} == set(longmemeval.TYPES)
    assert sum(question.abstain for question in questions) == 2
    for question, item in zip(questions, read_json(SAMPLE)):
        assert [date for date, _ in question.sessions] == sorted(item["haystack_dates"])
        assert set(item["answer_session_ids"]) <= set(item["haystack_session_ids"])
    text = longmemeval.prompt(questions[0])
    assert "has_answer" not in text and text.count("### Session ") == 5
    assert text.endswith("\n\nCurrent Date: 2024/06/09 (Sun) 10:51\nQuestion: What is the name of my cat?\nAnswer:")


def test_longmemeval_file_errors(tmp_path):
    for change, message in (({"haystack_dates": []}, "0 haystack_dates and"), ({"question_type": "x"}, "question_type 'x'"),
                            ({"answer": ...}, "'answer'")):
        item = {**read_json(SAMPLE)[0], **change}
        (tmp_path / "bad.json").write_text(json.dumps([{key: value for key, value in item.items() if value is not ...}]))
        with pytest.raises(Failure, match=message):
            longmemeval.load(tmp_path / "bad.json")
    with pytest.raises(Failure, match="cannot read"):
        longmemeval.load(tmp_path / "none.json")


def test_middle_is_left_out_evenly():
    async def cut(text, limit):
        async with Endpoint(stub.url) as endpoint:
            return await longmemeval.cut_middle(endpoint, text, limit)

    words = " ".join(f"w{i}" for i in range(1000))
    with Stub() as stub:
        assert asyncio.run(cut(words, 1100)) == (words, False)
        text, was_cut = asyncio.run(cut(words, 200))
        assert was_cut and 196 <= len(stub.tokens(stub.render([{"role": "user", "content": text}]))) <= 200
        kept = [int(number) for number in re.findall(r"w(\d+)", text)]
        n_begin = sum(number < 500 for number in kept)
        assert abs(2 * n_begin - len(kept)) <= 1 and kept == [*range(n_begin), *range(1000 - len(kept) + n_begin, 1000)]


def test_longmemeval_run(tmp_path):
    questions = {question.text: question for question in longmemeval.load(SAMPLE)}

    def answer(prompt):
        question = questions[re.search("Question: (.*)\nAnswer:", prompt)[1]]
        return "There is no information about that." if question.abstain or question.key == "su1" else f"It is {question.answer}, I think."

    with Stub(answer, n_ctx=2048) as stub, Stub(lambda prompt: "yes" if "It is" in prompt or "cannot be answered" in prompt else "no") as judge:
        arguments = ["longmemeval", "--base-url", stub.url, "--file", str(SAMPLE), "--out", str(tmp_path), "--judge-url", judge.url]
        assert cli.main(arguments) == 1  # 8192 tokens of answer do not fit
        assert cli.main([*arguments, "--max-output", "64", "--parallel", "4"]) == 0
        assert all(body["chat_template_kwargs"] == {"enable_thinking": False} and body["max_tokens"] == 64 for body in stub.bodies)
    results = read_json(tmp_path / "results.json")["results"]
    assert results["all"]["judge"] == 95 and results["all"]["contains"] == 95 and results["all"]["cut"] == 0
    assert results["single-session-user"]["judge"] == 75 and results["abstention"] == {
        "n": 2, "failed": 0, "contains": 100, "f1": 100, "judge": 100, "cut": 0, "judge_failed": 0}


#
# needle likelihood
#

def test_needle_compares_endpoints(tmp_path, capsys):
    data = tmp_path / "data"
    (data / "books").mkdir(parents=True)
    (data / "ruler").mkdir()
    (data / "books" / "essay-1.txt").write_text("A quiet river runs under seven old stones. " * 200)
    (data / "ruler" / "adjectivelist.txt").write_text("warm\ncold\n")
    (data / "ruler" / "nounlist.txt").write_text("lamp\nhill\n")

    def forgetful(prompt):
        """Lost is what is in the first half."""
        return -3.0 if prompt.index("One of the") < len(prompt) / 2 else -0.25

    with Stub(logprob=lambda prompt: -0.25) as full, Stub(logprob=forgetful) as policy:
        policy.pieces, policy.ids = full.pieces, full.ids  # one tokenizer
        assert cli.main(["needle", "--base-url", full.url, "--policy-url", policy.url, "--policy-url", f"same={full.url}",
                         "--data", str(data), "--out", str(tmp_path / "out"),
                         "--lengths", "400,600", "--depths", "10,90", "--examples", "2"]) == 0
        body = full.bodies[0]
        prompt, forced = full.text(body["prompt"]), [int(token) for token in re.findall(r"<\[(\d+)\]>", body["grammar"])]
        assert prompt.endswith("mentioned in the provided text is") and not body["cache_prompt"]
        assert re.fullmatch(r" \d{7}", full.text(forced)) and full.text(forced).strip() in prompt and body["n_predict"] == len(forced)
    results = read_json(tmp_path / "out" / "results.json")
    cells = {(cell["length"], cell["depth"]): cell for cell in results["cells"]}
    assert cells[400, 10]["policy"] == {"logprob": -3.0, "greedy": 0.0, "change": -2.75, "interval": 0}
    assert cells[400, 10]["full"] == {"logprob": -0.25, "greedy": 1.0} and cells[600, 90]["policy"]["change"] == 0
    assert results["lengths"]["all"]["policy"]["change"] == -1.375 and results["lengths"]["all"]["n"] == 8
    assert results["lengths"]["all"]["same"]["change"] == 0
    assert (tmp_path / "out" / "needle.png").read_bytes()[:4] == b"\x89PNG"
    table = capsys.readouterr().out
    assert "| 400 | full | 4 | 0 | -0.250 | 100.0 | - |" in table and "| 400 | policy | 4 | 0 | -1.625 | 50.0 | -1.375 ± " in table


def test_endpoints_have_names():
    assert run_needle.named_url("tau-0.99=http://a/v1?b=c") == ("tau-0.99", "http://a/v1?b=c")
    assert run_needle.named_url("http://a:1?b=c") == ("policy", "http://a:1?b=c")
    for text in ("full=http://a", "=http://a", "a"):
        with pytest.raises(argparse.ArgumentTypeError):
            run_needle.named_url(text)
