"""The default model as one that writes nothing but prose and never ends, for tests that would else hang on what it happens to write.

It has the model's weights and a bias against every token that has more than letters, digits and the marks of a story: it opens no
call, and nothing that ends a text is ever the best. The bias is finite: a grammar can still ask for such tokens. llama.cpp's
`llama` architecture has no bias there, its `qwen2` has, and is otherwise the same but for the order of rows in Q and K.
"""

import re
import string

import gguf
import numpy as np

BIAS = -100.0  # twice what was found between the best and the worst token of the default model
SPACES = "\u2581\u0120\u010a"  # how tokens spell space (SentencePiece, byte-level BPE) and newline
PROSE = frozenset(string.ascii_letters + string.digits + ".,:;!?'\"()-" + SPACES)

FROM, TO = "llama", "qwen2"


def bias(tokens):
    return np.array([0.0 if PROSE.issuperset(token) else BIAS for token in tokens], dtype=np.float32)


def halves(rows, n_head):
    """llama rotates neighbours, qwen2 the halves of a head: its even rows come first."""
    return rows.reshape(n_head, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def write_prose_model(model, path):
    reader = gguf.GGUFReader(model)

    def value(name):
        field = reader.get_field(name)
        return field.contents() if field else None

    if value("general.architecture") != FROM:
        raise SystemExit(f"{model} has architecture {value('general.architecture')}, expected {FROM}")
    n_head = {"attn_q": value(f"{FROM}.attention.head_count"), "attn_k": value(f"{FROM}.attention.head_count_kv")}

    part = path.with_name(path.name + ".part")
    writer = gguf.GGUFWriter(part, TO)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(re.sub(rf"^{FROM}\.", f"{TO}.", name), field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        kind = tensor.name.split(".")[-2]
        rows = halves(tensor.data, n_head[kind]) if kind in n_head else tensor.data
        writer.add_tensor(tensor.name, rows, raw_dtype=tensor.tensor_type)
    writer.add_tensor("output.bias", bias(value("tokenizer.ggml.tokens")))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(path)
