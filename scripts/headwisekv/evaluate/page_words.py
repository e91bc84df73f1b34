"""Words and figures that both pages of results have."""

WORDS = """\
- tau-0.998 and the like are operating points of the policy: tau is the lowest mean cosine that calibration allows between what a KV head puts out with
  its window and with the whole history. Nearer to 1 is more careful and takes more memory.
- KL is the mean Kullback-Leibler divergence, in nats a token, of the next token's probabilities from those with the full F16 cache: 0 is no change.
  With quantised weights a good part of a small one is rounding, not windows ([how much](evaluation.md#what-rounding-gives)), so each table says with which
  weights it was measured.

"""


def text_line(texts):
    def names(files):
        return ", ".join(f"{file['file']} `{file['sha256'][:12]}`" for file in files)

    whole = f" (whole text: sha256 `{texts['sha256']}`)" if texts["sha256"] else ""
    return f"{texts['source']}{whole}; held out: {names(texts['held_out'])}; essays: {names(texts['essays'])}"


def with_interval(found, digits):
    if not found or found["mean"] is None:
        return "-"
    return f"{found['mean']:.{digits}f}" + (f" ± {found['half']:.{digits}f}" if found["half"] is not None else "")


def weights_text(f32):
    return "Weights in F32" if f32 else "Weights as in the file, so rounding is in it"
