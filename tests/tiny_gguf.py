"""Tiny random GGUF models for tests: real architectures in miniature, the same bytes for the same arguments.

    make_model("tiny.gguf", "qwen35", seed=1)
    python tests/tiny_gguf.py ARCH FILE [--seed N]

Weights are random, with the scales of a fresh network but for three things, all for comparisons of logits: attention is
sharp, so that one key more or less is seen; what a layer adds is small beside what was there, so that rounding in one does
not grow through the others; logits are flat, so that two that rounding can swap are less than 0.001 apart.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np


SHARPNESS = 2.0  # standard deviation of the attention scores
BRANCH = 0.3     # of what gemma's layers add, after their norms
LOGITS = 0.25    # of the logits


@dataclass(frozen=True)
class Config:
    n_layer: int = 4
    n_embd: int = 128
    n_ff: int = 256
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    head_dim_swa: int = 32  # gemma4 only
    n_head_kv_swa: int = 0  # gemma4: KV heads of the sliding-window layers, 0: n_head_kv
    n_expert: int = 0
    n_expert_used: int = 0
    n_ctx_train: int = 4096
    swa: int = 64           # width of gemma's and gpt-oss's sliding windows
    interval: int = 3       # gemma, gpt-oss, qwen3next, qwen35: every interval-th layer has full attention
    n_shared: int = 2       # gemma4: last layers that use the cache of an earlier one
    k_is_v: bool = False    # gemma4: the full-attention layers have no V projection, V is K before norm and RoPE
    n_nextn: int = 0        # qwen3next, qwen35: MTP layers after the trunk
    only_text: bool = False # qwen2: its output has a bias, so that it writes nothing but ASCII and never ends by itself
    rope_dim: int = 0       # qwen3next, qwen35: of a head's dims, those that are rotated, 0: half of them
    n_head_linear_k: int = 2  # qwen3next, qwen35: heads of the linear layers
    n_head_linear_v: int = 4
    head_dim_linear: int = 64
    dtype: str = "f32"      # of the matrices: f32 or f16
    hollow: bool = False    # tensors have shapes, but the file has a hole for their data: for what only asks for sizes
    name: str = "tiny"


DEFAULTS = {
    "llama": Config(),
    "qwen2": Config(n_embd=256),  # its heads fill the width of the model
    "qwen3": Config(),
    "qwen3moe": Config(n_ff=64, n_expert=4, n_expert_used=2),
    "gemma3": Config(n_layer=6),
    "gemma4": Config(n_layer=6, interval=2),
    "gpt-oss": Config(n_ff=64, interval=2, n_expert=4, n_expert_used=2),
    "qwen3next": Config(n_layer=6, n_ff=64, n_expert=4, n_expert_used=2),
    "qwen35": Config(n_layer=6),
    "qwen35moe": Config(n_layer=6, n_ff=64, n_expert=4, n_expert_used=2),
    "mpt": Config(n_layer=2, n_embd=256),
    "mamba": Config(n_layer=2),
    "deepseek2": Config(n_layer=2),
}

ARCHS = tuple(DEFAULTS)

# The paper's models in their real shapes, but for a small vocabulary and, where data is wanted, PAPER_NARROW.
PAPER = {
    "Qwen3.5-9B": ("qwen35", Config(
        n_layer=32, interval=4, n_embd=4096, n_ff=12288, n_head=16, n_head_kv=4, head_dim=256, rope_dim=64,
        n_head_linear_k=16, n_head_linear_v=32, head_dim_linear=128, n_ctx_train=262144, dtype="f16", name="Qwen3.5-9B")),
    "Qwen3.6-27B": ("qwen35", Config(
        n_layer=64, interval=4, n_embd=5120, n_ff=17408, n_head=24, n_head_kv=4, head_dim=256, rope_dim=64,
        n_head_linear_k=16, n_head_linear_v=48, head_dim_linear=128, n_ctx_train=262144, dtype="f16", name="Qwen3.6-27B")),
    "Qwen3.6-35B-A3B": ("qwen35moe", Config(
        n_layer=40, interval=4, n_embd=2048, n_ff=512, n_head=16, n_head_kv=2, head_dim=256, rope_dim=64, n_expert=256, n_expert_used=8,
        n_head_linear_k=16, n_head_linear_v=32, head_dim_linear=128, n_ctx_train=262144, dtype="f16", name="Qwen3.6-35B-A3B")),
    "Gemma4-31B": ("gemma4", Config(
        n_layer=60, interval=6, n_embd=5376, n_ff=21504, n_head=32, n_head_kv=4, head_dim=512, n_head_kv_swa=16, head_dim_swa=256, swa=1024,
        n_shared=0, k_is_v=True, n_ctx_train=262144, dtype="f16", name="Gemma4-31B")),
}
PAPER_NARROW = {"n_embd": 8, "n_ff": 8, "dtype": "f32"}


def full_layers(arch: str, config: Config | None = None) -> list[int]:
    """The layers whose KV cache grows with the context."""
    c = config or DEFAULTS[arch]
    if arch in ("llama", "qwen2", "qwen3", "qwen3moe", "mpt"):
        return list(range(c.n_layer))
    if arch in ("gemma3", "gpt-oss", "qwen3next", "qwen35", "qwen35moe"):
        return [il for il in range(c.n_layer) if (il + 1) % c.interval == 0]
    if arch == "gemma4":
        return [il for il in range(c.n_layer - c.n_shared) if (il + 1) % c.interval == 0]
    return []


class _Writer:
    def __init__(self, path: Path, arch: str, seed: int, config: Config):
        self.gguf = gguf.GGUFWriter(str(path), arch)
        self.arch = arch
        self.seed = seed
        self.config = config

    def rng(self, name: str) -> np.random.Generator:
        # by name: a tensor's values don't depend on which others there are
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def u32(self, key: str, value: int) -> None:
        self.gguf.add_uint32(f"{self.arch}.{key}", value)

    def f32(self, key: str, value: float) -> None:
        self.gguf.add_float32(f"{self.arch}.{key}", value)

    def tensor(self, name: str, shape: tuple[int, ...], dtype: type, make: Callable[[], np.ndarray]) -> None:
        if self.config.hollow:
            self.gguf.add_tensor_info(name, shape, np.dtype(dtype), int(np.prod(shape)) * np.dtype(dtype).itemsize)
        else:
            self.gguf.add_tensor(name, make().astype(dtype))

    def matrix(self, name: str, n_in: int, n_out: int, *more: int, scale: float = 1.0) -> None:
        dtype = np.float16 if self.config.dtype == "f16" else np.float32
        self.tensor(name, (*more, n_out, n_in), dtype, lambda: self.rng(name).standard_normal((*more, n_out, n_in)) * scale / np.sqrt(n_in))

    def bias(self, name: str, *shape: int) -> None:
        self.vector(name, 0.1 * self.rng(name).standard_normal(shape))

    def norm(self, name: str, n: int, scale: float = 1.0) -> None:
        self.vector(name, scale * (1.0 + 0.1 * self.rng(name).standard_normal(n)))

    def vector(self, name: str, data: np.ndarray) -> None:
        self.tensor(name, data.shape, np.float32, lambda: data)

    def write(self) -> None:
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        if not self.config.hollow:
            self.gguf.write_tensors_to_file()
            return
        self.gguf.write_ti_data_to_file()
        file = self.gguf.fout[0]
        self.gguf.write_padding(file, file.tell())
        file.truncate(file.tell() + sum(self.gguf.ggml_pad(info.nbytes, self.gguf.data_alignment) for info in self.gguf.tensors[0].values()))


def _vocab() -> tuple[list[bytes], list[float], list[int]]:
    # SentencePiece with byte fallback: any text can be tokenized
    tokens = [b"<unk>", b"<s>", b"</s>"]
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    for i in range(256):
        tokens.append(f"<0x{i:02X}>".encode())
        types.append(gguf.TokenType.BYTE)
    space = "\u2581"
    words = [space + w for w in ("the", "of", "and", "to", "in", "a", "is", "that", "it", "for")]
    chars = [space, *"abcdefghijklmnopqrstuvwxyz", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ", *"0123456789", *".,:;!?'\"()-"]
    for text in [*words, *chars]:
        tokens.append(text.encode())
        types.append(gguf.TokenType.NORMAL)
    scores = [0.0 if t != gguf.TokenType.NORMAL else -float(i) for i, t in enumerate(types)]
    return tokens, scores, [int(t) for t in types]


def _write_common(w: _Writer) -> int:
    c = w.config
    tokens, scores, types = _vocab()

    w.gguf.add_name(c.name)
    w.u32("context_length", c.n_ctx_train)
    w.u32("embedding_length", c.n_embd)
    w.u32("block_count", c.n_layer + c.n_nextn)

    w.gguf.add_tokenizer_model("llama")
    w.gguf.add_tokenizer_pre("default")
    w.gguf.add_token_list(tokens)
    w.gguf.add_token_scores(scores)
    w.gguf.add_token_types(types)
    w.gguf.add_unk_token_id(0)
    w.gguf.add_bos_token_id(1)
    w.gguf.add_eos_token_id(2)
    w.gguf.add_add_bos_token(True)

    # gemma multiplies by sqrt(n_embd) itself
    w.matrix("token_embd.weight", c.n_embd, len(tokens), scale=1.0 if w.arch.startswith("gemma") else c.n_embd**0.5)
    w.norm("output_norm.weight", c.n_embd, LOGITS)
    return len(tokens)


def _write_attention_keys(w: _Writer) -> None:
    c = w.config
    w.u32("feed_forward_length", c.n_ff)
    w.u32("attention.head_count", c.n_head)
    if not c.n_head_kv_swa:
        w.u32("attention.head_count_kv", c.n_head_kv)
    w.u32("attention.key_length", c.head_dim)
    w.u32("attention.value_length", c.head_dim)
    w.f32("attention.layer_norm_rms_epsilon", 1e-6)
    w.f32("rope.freq_base", 10000.0)
    if c.n_expert:
        w.u32("expert_count", c.n_expert)
        w.u32("expert_used_count", c.n_expert_used)
        w.u32("expert_feed_forward_length", c.n_ff)


def _write_qkvo(w: _Writer, il: int, *, norms: bool, gated: bool = False, biases: bool = False, head_dim: int = 0, n_head_kv: int = 0,
                kv: bool = True, v: bool = True) -> None:
    c = w.config
    d = head_dim or c.head_dim
    n_kv = n_head_kv or c.n_head_kv
    n_q = c.n_head * d * (2 if gated else 1)
    w.matrix(f"blk.{il}.attn_q.weight", c.n_embd, n_q, scale=1.0 if norms else SHARPNESS)
    w.matrix(f"blk.{il}.attn_output.weight", c.n_head * d, c.n_embd)
    if kv:
        w.matrix(f"blk.{il}.attn_k.weight", c.n_embd, n_kv * d)
        if v:
            w.matrix(f"blk.{il}.attn_v.weight", c.n_embd, n_kv * d)
    if biases:
        for name, n in (("q", n_q), ("k", n_kv * d), ("v", n_kv * d)):
            w.bias(f"blk.{il}.attn_{name}.bias", n)
    if norms:
        # gemma4 doesn't divide scores by sqrt(d): its norm has learnt to
        w.norm(f"blk.{il}.attn_q_norm.weight", d, SHARPNESS * (d**-0.5 if w.arch == "gemma4" else 1.0))
        if kv:
            w.norm(f"blk.{il}.attn_k_norm.weight", d)


def _write_ffn(w: _Writer, il: int) -> None:
    c = w.config
    w.matrix(f"blk.{il}.ffn_gate.weight", c.n_embd, c.n_ff)
    w.matrix(f"blk.{il}.ffn_up.weight", c.n_embd, c.n_ff)
    w.matrix(f"blk.{il}.ffn_down.weight", c.n_ff, c.n_embd)


def _write_experts(w: _Writer, il: int, *, shared: bool = False, biases: bool = False) -> None:
    c = w.config
    w.matrix(f"blk.{il}.ffn_gate_inp.weight", c.n_embd, c.n_expert)
    w.matrix(f"blk.{il}.ffn_gate_exps.weight", c.n_embd, c.n_ff, c.n_expert)
    w.matrix(f"blk.{il}.ffn_up_exps.weight", c.n_embd, c.n_ff, c.n_expert)
    w.matrix(f"blk.{il}.ffn_down_exps.weight", c.n_ff, c.n_embd, c.n_expert)
    if shared:
        w.bias(f"blk.{il}.ffn_gate_inp_shexp.weight", c.n_embd)
        w.matrix(f"blk.{il}.ffn_gate_shexp.weight", c.n_embd, c.n_ff)
        w.matrix(f"blk.{il}.ffn_up_shexp.weight", c.n_embd, c.n_ff)
        w.matrix(f"blk.{il}.ffn_down_shexp.weight", c.n_ff, c.n_embd)
    if biases:
        w.bias(f"blk.{il}.ffn_gate_inp.bias", c.n_expert)
        w.bias(f"blk.{il}.ffn_gate_exps.bias", c.n_expert, c.n_ff)
        w.bias(f"blk.{il}.ffn_up_exps.bias", c.n_expert, c.n_ff)
        w.bias(f"blk.{il}.ffn_down_exps.bias", c.n_expert, c.n_embd)


def _write_llama(w: _Writer, n_vocab: int) -> None:
    c = w.config
    _write_attention_keys(w)
    w.u32("vocab_size", n_vocab)
    w.u32("rope.dimension_count", c.head_dim)
    w.matrix("output.weight", c.n_embd, n_vocab)
    if c.only_text:
        w.vector("output.bias", np.where(np.array(_vocab()[2]) == int(gguf.TokenType.NORMAL), 0.0, -100.0))
    for il in range(c.n_layer):
        w.norm(f"blk.{il}.attn_norm.weight", c.n_embd)
        _write_qkvo(w, il, norms=w.arch in ("qwen3", "qwen3moe"), biases=w.arch == "qwen2")
        w.norm(f"blk.{il}.ffn_norm.weight", c.n_embd)
        if c.n_expert:
            _write_experts(w, il)
        else:
            _write_ffn(w, il)


def _write_gpt_oss(w: _Writer, n_vocab: int) -> None:
    c = w.config
    _write_attention_keys(w)
    w.u32("rope.dimension_count", c.head_dim)
    w.u32("attention.sliding_window", c.swa)
    w.u32("attention.sliding_window_pattern", c.interval)
    w.matrix("output.weight", c.n_embd, n_vocab)
    for il in range(c.n_layer):
        w.norm(f"blk.{il}.attn_norm.weight", c.n_embd)
        _write_qkvo(w, il, norms=False, biases=True)
        w.bias(f"blk.{il}.attn_output.bias", c.n_embd)
        # far apart and as heavy as some 10 keys, so that a head with another's sink is noticed
        w.vector(f"blk.{il}.attn_sinks.weight", 2.0 + 2.0 * w.rng(f"sinks{il}").standard_normal(c.n_head))
        w.norm(f"blk.{il}.post_attention_norm.weight", c.n_embd)
        _write_experts(w, il, biases=True)


def _write_gemma3(w: _Writer, _n_vocab: int) -> None:
    c = w.config
    _write_attention_keys(w)
    w.u32("attention.sliding_window", c.swa)
    w.u32("attention.sliding_window_pattern", c.interval)
    # tied output
    for il in range(c.n_layer):
        w.norm(f"blk.{il}.attn_norm.weight", c.n_embd)
        _write_qkvo(w, il, norms=True)
        w.norm(f"blk.{il}.post_attention_norm.weight", c.n_embd, BRANCH)
        w.norm(f"blk.{il}.ffn_norm.weight", c.n_embd)
        _write_ffn(w, il)
        w.norm(f"blk.{il}.post_ffw_norm.weight", c.n_embd, BRANCH)


def _write_gemma4(w: _Writer, _n_vocab: int) -> None:
    # like E2B: wider heads in the full-attention layers, the last layers reuse earlier caches
    c = w.config
    is_swa = [(il + 1) % c.interval != 0 for il in range(c.n_layer)]
    _write_attention_keys(w)
    w.u32("attention.sliding_window", c.swa)
    w.gguf.add_array(f"{w.arch}.attention.sliding_window_pattern", is_swa)
    w.u32("attention.shared_kv_layers", c.n_shared)
    w.u32("attention.key_length_swa", c.head_dim_swa)
    w.u32("attention.value_length_swa", c.head_dim_swa)
    w.u32("rope.dimension_count", c.head_dim)
    w.u32("rope.dimension_count_swa", c.head_dim_swa)
    w.u32("embedding_length_per_layer_input", 0)
    n_head_kv = [c.n_head_kv_swa or c.n_head_kv if swa else c.n_head_kv for swa in is_swa]
    if c.n_head_kv_swa:
        w.gguf.add_array(f"{w.arch}.attention.head_count_kv", n_head_kv)
    w.vector("rope_freqs.weight", np.ones(c.head_dim // 2))
    for il in range(c.n_layer):
        w.norm(f"blk.{il}.attn_norm.weight", c.n_embd)
        _write_qkvo(w, il, norms=True, head_dim=c.head_dim_swa if is_swa[il] else c.head_dim, n_head_kv=n_head_kv[il],
                    kv=il < c.n_layer - c.n_shared, v=is_swa[il] or not c.k_is_v)
        w.norm(f"blk.{il}.post_attention_norm.weight", c.n_embd, BRANCH)
        w.norm(f"blk.{il}.ffn_norm.weight", c.n_embd)
        _write_ffn(w, il)
        w.norm(f"blk.{il}.post_ffw_norm.weight", c.n_embd, BRANCH)


def _write_delta_net(w: _Writer, il: int, state: int, n_k: int, n_v: int, conv: int) -> None:
    c = w.config
    channels = 2 * state * n_k + state * n_v
    w.matrix(f"blk.{il}.attn_qkv.weight", c.n_embd, channels)
    w.matrix(f"blk.{il}.attn_gate.weight", c.n_embd, state * n_v)
    w.vector(f"blk.{il}.ssm_conv1d.weight", w.rng(f"conv{il}").standard_normal((channels, conv)) / np.sqrt(conv))
    w.vector(f"blk.{il}.ssm_dt.bias", w.rng(f"dt{il}").standard_normal(n_v))
    w.vector(f"blk.{il}.ssm_a", -w.rng(f"a{il}").uniform(0.05, 1.0, n_v))
    if w.arch == "qwen3next":
        w.matrix(f"blk.{il}.ssm_ba.weight", c.n_embd, 2 * n_v)
    else:
        w.matrix(f"blk.{il}.ssm_beta.weight", c.n_embd, n_v)
        w.matrix(f"blk.{il}.ssm_alpha.weight", c.n_embd, n_v)
    w.norm(f"blk.{il}.ssm_norm.weight", state)
    w.matrix(f"blk.{il}.ssm_out.weight", state * n_v, c.n_embd)


def _write_qwen35(w: _Writer, n_vocab: int) -> None:
    c = w.config
    state, n_k, n_v, conv = c.head_dim_linear, c.n_head_linear_k, c.n_head_linear_v, 4
    rope_dim = c.rope_dim or c.head_dim // 2
    _write_attention_keys(w)
    w.u32("rope.dimension_count", rope_dim)
    if w.arch != "qwen3next":
        w.gguf.add_array(f"{w.arch}.rope.dimension_sections", [*((rope_dim // 2 + more) // 3 for more in (2, 1, 0)), 0])
    if c.n_expert:
        w.u32("expert_shared_feed_forward_length", c.n_ff)
    w.u32("full_attention_interval", c.interval)
    w.u32("ssm.conv_kernel", conv)
    w.u32("ssm.inner_size", state * n_v)
    w.u32("ssm.state_size", state)
    w.u32("ssm.time_step_rank", n_v)
    w.u32("ssm.group_count", n_k)
    if c.n_nextn:
        w.u32("nextn_predict_layers", c.n_nextn)
    w.matrix("output.weight", c.n_embd, n_vocab)
    for il in range(c.n_layer + c.n_nextn):
        is_full = il >= c.n_layer or (il + 1) % c.interval == 0
        w.norm(f"blk.{il}.attn_norm.weight", c.n_embd)
        w.norm(f"blk.{il}.post_attention_norm.weight", c.n_embd)
        if is_full:
            _write_qkvo(w, il, norms=True, gated=True)
        else:
            _write_delta_net(w, il, state, n_k, n_v, conv)
        if c.n_expert:
            _write_experts(w, il, shared=True)
        else:
            _write_ffn(w, il)
        if il >= c.n_layer:
            w.matrix(f"blk.{il}.nextn.eh_proj.weight", 2 * c.n_embd, c.n_embd)
            w.norm(f"blk.{il}.nextn.enorm.weight", c.n_embd)
            w.norm(f"blk.{il}.nextn.hnorm.weight", c.n_embd)


def _write_mpt(w: _Writer, _n_vocab: int) -> None:
    # ALiBi: a slope per head instead of RoPE
    c = w.config
    w.u32("feed_forward_length", c.n_ff)
    w.u32("attention.head_count", c.n_head)
    w.u32("attention.head_count_kv", c.n_head_kv)
    w.f32("attention.layer_norm_epsilon", 1e-5)
    w.f32("attention.max_alibi_bias", 8.0)
    for il in range(c.n_layer):
        w.norm(f"blk.{il}.attn_norm.weight", c.n_embd)
        w.matrix(f"blk.{il}.attn_qkv.weight", c.n_embd, (c.n_head + 2 * c.n_head_kv) * c.n_embd // c.n_head)
        w.matrix(f"blk.{il}.attn_output.weight", c.n_embd, c.n_embd)
        w.norm(f"blk.{il}.ffn_norm.weight", c.n_embd)
        w.matrix(f"blk.{il}.ffn_up.weight", c.n_embd, c.n_ff)
        w.matrix(f"blk.{il}.ffn_down.weight", c.n_ff, c.n_embd)


def _write_mamba(w: _Writer, _n_vocab: int) -> None:
    c = w.config
    inner, state, conv, rank = 2 * c.n_embd, 16, 4, 8
    w.u32("feed_forward_length", 0)
    w.u32("attention.head_count", 0)
    w.f32("attention.layer_norm_rms_epsilon", 1e-5)
    w.u32("ssm.conv_kernel", conv)
    w.u32("ssm.inner_size", inner)
    w.u32("ssm.state_size", state)
    w.u32("ssm.time_step_rank", rank)
    for il in range(c.n_layer):
        w.norm(f"blk.{il}.attn_norm.weight", c.n_embd)
        w.matrix(f"blk.{il}.ssm_in.weight", c.n_embd, 2 * inner)
        w.vector(f"blk.{il}.ssm_conv1d.weight", w.rng(f"conv{il}").standard_normal((inner, conv)) / np.sqrt(conv))
        w.vector(f"blk.{il}.ssm_conv1d.bias", np.zeros(inner))
        w.matrix(f"blk.{il}.ssm_x.weight", inner, rank + 2 * state)
        w.matrix(f"blk.{il}.ssm_dt.weight", rank, inner)
        w.vector(f"blk.{il}.ssm_dt.bias", np.zeros(inner))
        w.vector(f"blk.{il}.ssm_a", -np.tile(np.arange(1, state + 1), (inner, 1)))
        w.vector(f"blk.{il}.ssm_d", np.ones(inner))
        w.matrix(f"blk.{il}.ssm_out.weight", inner, c.n_embd)


def _write_deepseek2(w: _Writer, n_vocab: int) -> None:
    # multi-head latent attention, dense layers only
    c = w.config
    rank, rope, nope, v_dim = 64, 32, 64, 64
    w.u32("vocab_size", n_vocab)
    w.u32("feed_forward_length", c.n_ff)
    w.u32("expert_feed_forward_length", c.n_ff)
    w.u32("expert_count", 2)
    w.u32("expert_used_count", 1)
    w.u32("expert_shared_count", 1)
    w.f32("expert_weights_scale", 1.0)
    w.u32("leading_dense_block_count", c.n_layer)
    w.u32("attention.head_count", c.n_head)
    w.u32("attention.head_count_kv", 1)
    w.u32("attention.q_lora_rank", rank)
    w.u32("attention.kv_lora_rank", rank)
    w.u32("attention.key_length", rank + rope)
    w.u32("attention.value_length", rank)
    w.u32("attention.key_length_mla", nope + rope)
    w.u32("attention.value_length_mla", v_dim)
    w.u32("rope.dimension_count", rope)
    w.f32("attention.layer_norm_rms_epsilon", 1e-6)
    w.matrix("output.weight", c.n_embd, n_vocab)
    for il in range(c.n_layer):
        w.norm(f"blk.{il}.attn_norm.weight", c.n_embd)
        w.matrix(f"blk.{il}.attn_q_a.weight", c.n_embd, rank)
        w.norm(f"blk.{il}.attn_q_a_norm.weight", rank)
        w.matrix(f"blk.{il}.attn_q_b.weight", rank, c.n_head * (nope + rope))
        w.matrix(f"blk.{il}.attn_kv_a_mqa.weight", c.n_embd, rank + rope)
        w.norm(f"blk.{il}.attn_kv_a_norm.weight", rank)
        w.matrix(f"blk.{il}.attn_k_b.weight", nope, rank, c.n_head)
        w.matrix(f"blk.{il}.attn_v_b.weight", rank, v_dim, c.n_head)
        w.matrix(f"blk.{il}.attn_output.weight", c.n_head * v_dim, c.n_embd)
        w.norm(f"blk.{il}.ffn_norm.weight", c.n_embd)
        _write_ffn(w, il)


_WRITERS = {
    "llama": _write_llama,
    "qwen2": _write_llama,
    "qwen3": _write_llama,
    "qwen3moe": _write_llama,
    "gemma3": _write_gemma3,
    "gemma4": _write_gemma4,
    "gpt-oss": _write_gpt_oss,
    "qwen3next": _write_qwen35,
    "qwen35": _write_qwen35,
    "qwen35moe": _write_qwen35,
    "mpt": _write_mpt,
    "mamba": _write_mamba,
    "deepseek2": _write_deepseek2,
}


def make_model(path: str | Path, arch: str, seed: int = 0, **options) -> Config:
    """Write a model of `arch`; options are fields of Config. Returns the Config used."""
    config = replace(DEFAULTS[arch], **options)
    path = Path(path)
    part = path.with_name(path.name + ".part")

    w = _Writer(part, arch, seed, config)
    n_vocab = _write_common(w)
    _WRITERS[arch](w, n_vocab)
    w.write()
    w.gguf.close()
    part.replace(path)
    return config


def make_paper_model(path: str | Path, name: str, **options) -> Config:
    """Write a model of PAPER."""
    arch, config = PAPER[name]
    return make_model(path, arch, **{**vars(config), **options})


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a tiny random GGUF model.")
    parser.add_argument("arch", choices=ARCHS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    make_model(args.file, args.arch, args.seed)


if __name__ == "__main__":
    main()
