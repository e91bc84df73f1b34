"""The calibration once more, in numpy and straight from the definitions: a llama in float64 on the weights of a GGUF file."""

import gguf
import numpy as np


#
# what a cache keeps
#


def hadamard(n):
    """Its own inverse."""
    return np.array([[1.0]]) if n == 1 else np.kron([[1, 1], [1, -1]], hadamard(n // 2)) / np.sqrt(2)


def rotate(x, n):
    """Every n elements of the last axis."""
    return (x.reshape(*x.shape[:-1], -1, n) @ hadamard(n)).reshape(x.shape) if n else x


def to_blocks(x, kind):
    """Blocks of 32 with one factor each, in F16: 255 steps around zero, or 16 steps whose outermost, -8, is the element that is furthest from
    zero."""
    blocks = x.reshape(-1, 32)
    if kind == "q8_0":
        factor = np.abs(blocks).max(axis=-1, keepdims=True) / 127
        steps = np.rint(np.divide(blocks, factor, out=np.zeros_like(blocks), where=factor != 0))
    else:
        furthest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1)[:, None], axis=-1)
        factor = furthest / -8
        steps = np.clip(np.floor(np.divide(blocks, factor, out=np.zeros_like(blocks), where=factor != 0) + 0.5), -8, 7)
    return (steps * factor.astype(np.float16).astype(np.float64)).reshape(x.shape)


def rounded(x, kind, n_rot):
    """Rows as a cache of a type gives them back; n_rot: what is rotated if it has blocks."""
    if kind == "f16":
        return x.astype(np.float16).astype(np.float64)
    return rotate(to_blocks(rotate(x, n_rot), kind), n_rot)


#
# the model
#


class Reference:
    def __init__(self, path, n_head, n_head_kv, head_dim):
        self.tensors = {t.name: np.array(t.data, dtype=np.float64) for t in gguf.GGUFReader(str(path)).tensors}
        self.n_head, self.n_head_kv, self.head_dim = n_head, n_head_kv, head_dim
        self.n_layer = sum(name.endswith("attn_q.weight") for name in self.tensors)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6) * self.tensors[name]

    def rope(self, x):
        """Pairs of neighbours are turned; x: [position, head, dim]."""
        n, _, dim = x.shape
        angle = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, dim, 2) / dim)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)

    def qkv(self, x, il):
        n, w = len(x), self.tensors
        x = self.norm(x, f"blk.{il}.attn_norm.weight")
        q = self.rope((x @ w[f"blk.{il}.attn_q.weight"].T).reshape(n, self.n_head, self.head_dim))
        k = self.rope((x @ w[f"blk.{il}.attn_k.weight"].T).reshape(n, self.n_head_kv, self.head_dim))
        v = (x @ w[f"blk.{il}.attn_v.weight"].T).reshape(n, self.n_head_kv, self.head_dim)
        return q, k, v

    def attend(self, q, k, v, window, sinks):
        """One query head; window None: all positions up to the query's own."""
        row, col = np.arange(len(q))[:, None], np.arange(len(k))[None]
        seen = col <= row
        if window is not None:
            seen &= (row < window) | (col < sinks) | (col > row - (window - sinks))
        scores = np.where(seen, q @ k.T / np.sqrt(self.head_dim), -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True) @ v

    def finish_layer(self, x, heads, il):
        w = self.tensors
        x = x + np.concatenate(heads, axis=-1) @ w[f"blk.{il}.attn_output.weight"].T
        y = self.norm(x, f"blk.{il}.ffn_norm.weight")
        gate = y @ w[f"blk.{il}.ffn_gate.weight"].T
        return x + gate / (1 + np.exp(-gate)) * (y @ w[f"blk.{il}.ffn_up.weight"].T) @ w[f"blk.{il}.ffn_down.weight"].T

    def calibrate(self, sequences, codebook, sinks, tau, per_layer=False):
        """Scores [layer][KV head][entry] and the chosen entries, from all positions of the last quarter. The codebook is of (window or None,
        K type, V type), from cheap to dear; the reference is full in F16."""
        ratio = self.n_head // self.n_head_kv
        reference = codebook.index((None, "f16", "f16"))
        # as llama.cpp rotates heads of 64 and its multiples: K by the largest power of two that divides them, V by 64
        rot_k, rot_v = (max(n for n in (64, 128, 256) if self.head_dim % n == 0), 64) if self.head_dim % 64 == 0 else (0, 0)

        def output(trace, jh, entry):
            (q, k, v), (window, type_k, type_v) = trace, entry
            return self.attend(q[:, jh], rounded(k[:, jh // ratio], type_k, rot_k), rounded(v[:, jh // ratio], type_v, rot_v), window, sinks)

        states = [self.tensors["token_embd.weight"][tokens] for tokens in sequences]
        all_scores, choices = [], []
        for il in range(self.n_layer):
            traces = [self.qkv(x, il) for x in states]
            scores = []
            for ih in range(self.n_head_kv):
                cosines = [[] for _ in codebook]
                for trace in traces:
                    for jh in range(ih * ratio, (ih + 1) * ratio):
                        full = output(trace, jh, codebook[reference])
                        for sums, entry in zip(cosines, codebook):
                            cut = output(trace, jh, entry)
                            cosine = (cut * full).sum(-1) / np.linalg.norm(cut, axis=-1) / np.linalg.norm(full, axis=-1)
                            sums.append(cosine[len(cosine) - len(cosine) // 4:])
                scores.append([1.0 if ie == reference else float(np.mean(sums)) for ie, sums in enumerate(cosines)])
            judged = [np.mean(scores, axis=0)] * self.n_head_kv if per_layer else scores
            chosen = [next(ie for ie, score in enumerate(row) if score >= tau) for row in judged]
            states = [self.finish_layer(x, [output(trace, jh, codebook[chosen[jh // ratio]]) for jh in range(self.n_head)], il)
                      for x, trace in zip(states, traces)]
            all_scores.append(scores)
            choices.append(chosen)
        return all_scores, choices
