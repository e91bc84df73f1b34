"""The calibration once more, in numpy and straight from the definitions: a llama in float64 on the weights of a GGUF file."""

import gguf
import numpy as np


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
        return q, k.astype(np.float16).astype(np.float64), v.astype(np.float16).astype(np.float64)  # as an F16 cache keeps them

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

    def calibrate(self, sequences, windows, sinks, tau, per_layer=False):
        """Scores [layer][KV head][window, then full] and the choices, from all positions of the last quarter."""
        ratio = self.n_head // self.n_head_kv
        states = [self.tensors["token_embd.weight"][tokens] for tokens in sequences]
        all_scores, choices = [], []
        for il in range(self.n_layer):
            traces = [self.qkv(x, il) for x in states]
            scores = []
            for ih in range(self.n_head_kv):
                cosines = [[] for _ in windows]
                for q, k, v in traces:
                    for jh in range(ih * ratio, (ih + 1) * ratio):
                        full = self.attend(q[:, jh], k[:, ih], v[:, ih], None, sinks)
                        for sums, window in zip(cosines, windows):
                            cut = self.attend(q[:, jh], k[:, ih], v[:, ih], window, sinks)
                            cosine = (cut * full).sum(-1) / np.linalg.norm(cut, axis=-1) / np.linalg.norm(full, axis=-1)
                            sums.append(cosine[len(cosine) - len(cosine) // 4:])
                scores.append([float(np.mean(sums)) for sums in cosines] + [1.0])
            judged = [np.mean(scores, axis=0)] * self.n_head_kv if per_layer else scores
            chosen = [next(w for w, score in zip([*windows, None], row) if score >= tau) for row in judged]
            states = [self.finish_layer(x, [self.attend(q[:, jh], k[:, jh // ratio], v[:, jh // ratio], chosen[jh // ratio], sinks)
                                            for jh in range(self.n_head)], il) for x, (q, k, v) in zip(states, traces)]
            all_scores.append(scores)
            choices.append(["full" if w is None else w for w in chosen])
        return all_scores, choices
