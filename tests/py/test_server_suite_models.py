"""The models that scripts/server-suite puts in the places of a hub's: the same model but for what it would never write."""

import gguf
import numpy as np
import pytest
import tiny_gguf
from kv_policy_server import EXACT, ask, words
from server_process import ServerProcess

from headwisekv.suite import prose

pytestmark = pytest.mark.server


def scores(model, log_path, prompt):
    """The logarithm of every token's probability after the prompt, by id."""
    n_vocab = len(tiny_gguf._vocab()[0])
    with ServerProcess(model, log_path, *EXACT, ctx=256) as server:
        best = ask(server, prompt, n=1, n_probs=n_vocab)["completion_probabilities"][0]["top_logprobs"]
    found = {token["id"]: token["logprob"] for token in best}
    assert len(found) == n_vocab
    return np.array([found[i] for i in range(n_vocab)])


def test_a_prose_model_differs_in_its_bias_alone(tmp_path):
    model, made = tmp_path / "llama.gguf", tmp_path / "prose.gguf"
    tiny_gguf.make_model(model, "llama", seed=5, n_embd=256)  # qwen2's heads fill the width of the model
    prose.write_prose_model(model, made)
    bias = prose.bias(gguf.GGUFReader(made).get_field("tokenizer.ggml.tokens").contents())
    text = bias == 0
    assert text.sum() == 84  # ten words and 74 characters: no byte, no control token

    prompt = words(7, 100)  # long enough for a rotation in the wrong order to show
    before, after = scores(model, tmp_path / "before.log", prompt), scores(made, tmp_path / "after.log", prompt)
    assert np.ptp((after - before)[text]) < 1e-3  # a constant: probabilities add up to one
    assert after[text].min() > after[~text].max() + 50


def test_another_architecture_is_refused(tmp_path):
    tiny_gguf.make_model(tmp_path / "m.gguf", "qwen3")
    with pytest.raises(SystemExit, match="has architecture qwen3, expected llama"):
        prose.write_prose_model(tmp_path / "m.gguf", tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()
