"""Tiny models with what those of tiny_gguf don't have: two more architectures, and a chat template.

gemma2: attention scores are capped. gemma3n: four streams pass from layer to layer, so a layer's input is not one
tensor of hidden states.
"""

from dataclasses import replace
from pathlib import Path

import tiny_gguf
from tiny_gguf import BRANCH, SHARPNESS

N_STREAM, STREAM_WIDTH, LAUREL_RANK = 4, 256, 64  # fixed in llama.cpp


def _write_gemma2(w, _n_vocab):
    c = w.config
    tiny_gguf._write_attention_keys(w)
    w.u32("attention.sliding_window", c.swa)
    # far below the largest scores, so that a cap that is left out shows
    w.f32("attn_logit_softcapping", SHARPNESS)
    w.f32("final_logit_softcapping", 30.0)
    for il in range(c.n_layer):
        _write_layer(w, il, norms=False)


def _write_gemma3n(w, n_vocab):
    c = w.config
    tiny_gguf._write_attention_keys(w)
    w.u32("attention.sliding_window", c.swa)
    w.u32("attention.sliding_window_pattern", c.interval)
    w.matrix("altup_proj.weight", c.n_embd, c.n_embd, N_STREAM - 1)
    w.matrix("altup_unembd_proj.weight", c.n_embd, c.n_embd, N_STREAM - 1)
    w.matrix("per_layer_token_embd.weight", STREAM_WIDTH * c.n_layer, n_vocab)
    w.matrix("per_layer_model_proj.weight", c.n_embd, STREAM_WIDTH * c.n_layer)
    w.norm("per_layer_proj_norm.weight", STREAM_WIDTH)
    for il in range(c.n_layer):
        _write_layer(w, il, norms=True)
        w.matrix(f"blk.{il}.inp_gate.weight", c.n_embd, STREAM_WIDTH)
        w.matrix(f"blk.{il}.proj.weight", STREAM_WIDTH, c.n_embd)
        w.norm(f"blk.{il}.post_norm.weight", c.n_embd, BRANCH)
        w.matrix(f"blk.{il}.altup_correct_coef.weight", N_STREAM, N_STREAM)
        w.norm(f"blk.{il}.altup_correct_scale.weight", c.n_embd)
        w.matrix(f"blk.{il}.altup_predict_coef.weight", N_STREAM, N_STREAM * N_STREAM)
        w.matrix(f"blk.{il}.altup_router.weight", c.n_embd, N_STREAM)
        w.norm(f"blk.{il}.altup_router_norm.weight", c.n_embd)
        w.matrix(f"blk.{il}.laurel_l.weight", c.n_embd, LAUREL_RANK)
        w.matrix(f"blk.{il}.laurel_r.weight", LAUREL_RANK, c.n_embd)
        w.norm(f"blk.{il}.laurel_post_norm.weight", c.n_embd, BRANCH)


def _write_layer(w, il, *, norms):
    c = w.config
    w.norm(f"blk.{il}.attn_norm.weight", c.n_embd)
    tiny_gguf._write_qkvo(w, il, norms=norms)
    w.norm(f"blk.{il}.post_attention_norm.weight", c.n_embd, BRANCH)
    w.norm(f"blk.{il}.ffn_norm.weight", c.n_embd)
    tiny_gguf._write_ffn(w, il)
    w.norm(f"blk.{il}.post_ffw_norm.weight", c.n_embd, BRANCH)


_WRITERS = {"gemma2": (_write_gemma2, tiny_gguf.Config()), "gemma3n": (_write_gemma3n, tiny_gguf.Config(n_layer=6, interval=2))}


def make_model(path, arch, seed=0, chat_template=None, **options):
    """As tiny_gguf.make_model, whose architectures are included."""
    write, config = _WRITERS[arch] if arch in _WRITERS else (tiny_gguf._WRITERS[arch], tiny_gguf.DEFAULTS[arch])
    w = tiny_gguf._Writer(Path(path), arch, seed, replace(config, **options))
    if chat_template:
        w.gguf.add_chat_template(chat_template)
    write(w, tiny_gguf._write_common(w))
    w.gguf.write_header_to_file()
    w.gguf.write_kv_data_to_file()
    w.gguf.write_tensors_to_file()
    w.gguf.close()
    return w.config
