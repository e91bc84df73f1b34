#!/usr/bin/env python3
"""Makes bad policies for the tests: each file is BASE or BASE_2, good policies of version 1 and 2, with one fault put in.

    make-corpus.py FOLDER    write the files and EXPECT.tsv into FOLDER, which is theirs alone; the build calls it

A file is named <code>-<reason>.json, <code> being the end of its HWKV_ERR_* name. EXPECT.tsv has a line per file:
file, code, the JSON path that must be reported (- for none, * for any), a part of the message.
"""

import pathlib
import sys

CODES = ["parse", "truncated", "too-deep", "utf8", "duplicate-key", "not-finite", "range", "type", "unknown-key",
         "missing-key", "value", "version"]

POINT = "$.operating_points[0]"
HEX = "0123456789abcdef" * 4

# 2 layers x 2 KV heads, f16: 128 bytes a position. (256 + 1024 + 1024 + 256) * 128 = 327680 of 524288 bytes.
BASE = """{
  "format": "headwisekv-policy",
  "version": 1,
  "model": {
    "architecture": "llama",
    "name": "m",
    "fingerprint": "",
    "type_fingerprint": "",
    "n_layer": 4,
    "layers": [
      {"layer": 1, "n_head": 4, "n_head_kv": 2, "head_dim_k": 32, "head_dim_v": 32},
      {"layer": 3, "n_head": 4, "n_head_kv": 2, "head_dim_k": 32, "head_dim_v": 32}
    ]
  },
  "context": 1024,
  "cache_types": {"k": "f16", "v": "f16"},
  "codebook": [256, 512, "full"],
  "sinks": 4,
  "operating_points": [
    {
      "name": "p",
      "tau": 0.9,
      "windows": [[256, "full"], ["full", 256]],
      "scores": [[[0.95, 0.97, 1], [0.5, 0.75, 1]], [[0.25, 0.5, 1], [0.92, 0.96, 1]]],
      "retention": 0.625,
      "min_score": 0.92,
      "bytes": 327680,
      "artifact_id": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    }
  ],
  "selected": "p",
  "calibration": {"text": "t", "text_sha256": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "seed": 1, "n_seq": 2, "n_query": 3, "query_rule": "q", "tool": "w"}
}
"""


# Version 2, with types: bytes a position are 36 in q4_0, 52 in q8_0/q4_0, 68 in q8_0, 128 in f16, 256 in f32. The heads have
# 256 * 36 + 1024 * 128 + 512 * 68 + 256 * 52 = 188416 of 524288 bytes, and the positions 256 + 1024 + 512 + 256 of 4096; the first layer has
# one query head for each KV head, the second three.
BASE_2 = """{
  "format": "headwisekv-policy",
  "version": 2,
  "model": {
    "architecture": "llama",
    "name": "m",
    "fingerprint": "",
    "type_fingerprint": "",
    "n_layer": 4,
    "layers": [
      {"layer": 1, "n_head": 2, "n_head_kv": 2, "head_dim_k": 32, "head_dim_v": 32},
      {"layer": 3, "n_head": 6, "n_head_kv": 2, "head_dim_k": 32, "head_dim_v": 32}
    ]
  },
  "context": 1024,
  "cache_types": {"k": "f16", "v": "f16"},
  "codebook": ["256:q4_0", "256:q8_0/q4_0", "512:q8_0", "full:f16", "full:f32"],
  "sinks": 4,
  "operating_points": [
    {
      "name": "p",
      "method": "m",
      "budget": 200000,
      "lambda": 1e-9,
      "retention": 0.359375,
      "retention_tokens": 0.5,
      "retention_query": 0.4375,
      "min_score": 0.91,
      "bytes": 188416,
      "artifact_id": "%s",
      "entries": [["256:q4_0", "full:f16"], ["512:q8_0", "256:q8_0/q4_0"]],
      "scores": {
        "cosine": [[[0.91, 0.95, 0.98, 1, 1], [0.1, 0.2, 0.3, 1, 1]], [[0.5, 0.6, 0.97, 1, 1], [0.8, 0.93, 0.94, 1, 1]]],
        "loss": {"512": [[[9, 5, 2, 0, 0.5], [8, 7, 6, 0, 0]], [[3, 2, 1, 0, 0], [4, 3, 2, 0, 0]]]}
      }
    }
  ],
  "selected": "p"
}
""" % HEX


def between(start, end, base=BASE):
    """the part of base from start up to, not including, end"""
    i = base.index(start)
    return base[i:base.index(end, i)]


SECOND_POINT = """{"name": "p", "method": "m", "windows": [[512, 512], [512, 512]], "retention": 0.5, "bytes": 262144,
    "artifact_id": "%s"}""" % HEX

# reason, what is replaced in BASE, by what, JSON path, part of the message
EDITS_1 = [
    # not JSON at all
    ("parse-trailing-text", '"tool": "w"}\n}\n', '"tool": "w"}\n}\nx\n', "-", "'x'"),
    ("parse-second-object", '"tool": "w"}\n}\n', '"tool": "w"}\n}\n{}\n', "-", "end of the text"),
    ("parse-single-quotes", '"llama"', "'llama'", "-", "'''"),
    ("parse-comment", '"sinks": 4,', '"sinks": 4, // four', "-", "'/'"),
    ("parse-leading-zero", '"sinks": 4', '"sinks": 04', "-", "leading zero"),
    ("parse-plus-sign", '"sinks": 4', '"sinks": +4', "-", "'+'"),
    ("parse-dot-first", '"tau": 0.9', '"tau": .9', "-", "'.'"),
    ("parse-dot-last", '"tau": 0.9', '"tau": 0.', "-", "digit"),
    ("parse-exponent-without-digits", '"tau": 0.9', '"tau": 9e-', "-", "digit"),
    ("parse-hex-number", '"sinks": 4', '"sinks": 0x4', "-", "'x'"),
    ("parse-control-char-in-string", '"name": "m"', '"name": "m\n"', "-", "control character"),
    ("parse-zero-byte-in-string", '"name": "m"', '"name": "m\0"', "-", "control character"),
    ("parse-zero-byte-escaped", '"name": "m"', '"name": "m\\\0"', "-", "escape"),
    ("parse-zero-byte-at-end", '"tool": "w"}\n}\n', '"tool": "w"}\n}\0', "-", "byte 0x00"),
    ("parse-unicode-zero-name", '"name": "m"', '"name": "m\\u0000m"', "-", "\\u0000"),
    ("parse-lone-high-surrogate", '"name": "m"', '"name": "\\ud800"', "-", "surrogate"),
    ("parse-lone-low-surrogate", '"name": "m"', '"name": "\\udc00"', "-", "surrogate"),
    ("parse-two-high-surrogates", '"name": "m"', '"name": "\\ud800\\ud800"', "-", "surrogate"),
    ("parse-bad-hex-escape", '"name": "m"', '"name": "\\u00g0"', "-", "hex digits"),
    ("parse-unknown-escape", '"name": "m"', '"name": "\\x41"', "-", "escape"),
    ("parse-trailing-comma-array", '512, "full"]', '512, "full",]', "-", "']'"),
    ("parse-trailing-comma-object", '"v": "f16"}', '"v": "f16",}', "-", "'}'"),
    ("parse-missing-comma", '"version": 1,', '"version": 1', "-", "','"),
    ("parse-missing-colon", '"sinks": 4', '"sinks" 4', "-", "':'"),
    ("parse-missing-value", '"sinks": 4', '"sinks": ', "-", "','"),
    ("parse-wrong-bracket", '512, "full"]', '512, "full"}', "-", "'}'"),
    ("parse-key-without-quotes", '"sinks": 4', 'sinks: 4', "-", "'s'"),
    ("parse-upper-case-word", '"sinks": 4', '"sinks": Null', "-", "'N'"),
    ("parse-vertical-tab", '"version": 1', '"version":\v1', "-", "byte 0x0b"),
    ("parse-no-break-space", '"version": 1', '"version":\u00a01', "-", "byte 0xc2"),
    ("parse-byte-order-mark", '{\n  "format"', '\ufeff{\n  "format"', "-", "byte 0xef"),

    # numbers beyond double, numbers out of place
    ("not-finite-nan-tau", '"tau": 0.9', '"tau": NaN', "-", "finite"),
    ("not-finite-infinity-retention", '"retention": 0.625', '"retention": Infinity', "-", "finite"),
    ("not-finite-minus-infinity-score", "0.5, 0.75, 1", "-Infinity, 0.75, 1", "-", "finite"),
    ("not-finite-1e999", '"tau": 0.9', '"tau": 1e999', POINT + ".tau", "finite"),
    ("not-finite-huge-exponent", '"seed": 1', '"seed": -1e99999999999999', "$.calibration.seed", "finite"),
    ("not-finite-in-extensions", '"selected": "p"', '"selected": "p", "extensions": {"a": [0, {"b": 2e308}]}',
     "$.extensions.a[1].b", "finite"),
    ("range-number-too-long", '"tau": 0.9', '"tau": 0.9' + 60 * "0", "-", "60 characters"),
    ("range-window-over-int32", "[[256,", "[[4294967552,", POINT + ".windows[0][0]", "4294967552"),
    ("range-codebook-int32-max", "[256, 512,", "[256, 2147483647,", "$.codebook[1]", "2147483647"),
    ("range-codebook-zero", "[256, 512,", "[0, 512,", "$.codebook[0]", "0"),
    ("range-codebook-negative", "[256, 512,", "[-256, 512,", "$.codebook[0]", "-256"),
    ("range-window-zero", "[[256,", "[[0,", POINT + ".windows[0][0]", "0"),
    ("range-window-negative", "[[256,", "[[-256,", POINT + ".windows[0][0]", "-256"),
    ("range-window-fraction", "[[256,", "[[256.5,", POINT + ".windows[0][0]", "256.5"),
    ("range-fraction-context", '"context": 1024', '"context": 1024.5', "$.context", "1024.5"),
    ("range-context-zero", '"context": 1024', '"context": 0', "$.context", "0"),
    ("range-context-2-to-the-53", '"context": 1024', '"context": 9007199254740993', "$.context", "9007199254740992"),
    ("range-sinks-negative", '"sinks": 4', '"sinks": -1', "$.sinks", "-1"),
    ("range-sinks-257", '"sinks": 4', '"sinks": 257', "$.sinks", "257"),
    ("range-sinks-tiny-fraction", '"sinks": 4', '"sinks": 4.0000000001', "$.sinks", "4.0000000001"),
    ("range-n-layer-zero", '"n_layer": 4', '"n_layer": 0', "$.model.n_layer", "0"),
    ("range-n-layer-huge", '"n_layer": 4', '"n_layer": 1e9', "$.model.n_layer", "1000000000"),
    ("range-layer-negative", '"layer": 1', '"layer": -1', "$.model.layers[0].layer", "-1"),
    ("range-n-head-kv-zero", '"n_head_kv": 2, "head_dim_k": 32, "head_dim_v": 32},',
     '"n_head_kv": 0, "head_dim_k": 32, "head_dim_v": 32},', "$.model.layers[0].n_head_kv", "0"),
    ("range-n-head-kv-1025", '"n_head_kv": 2, "head_dim_k": 32, "head_dim_v": 32},',
     '"n_head_kv": 1025, "head_dim_k": 32, "head_dim_v": 32},', "$.model.layers[0].n_head_kv", "1025"),
    ("range-head-dim-zero", '"head_dim_v": 32},', '"head_dim_v": 0},', "$.model.layers[0].head_dim_v", "0"),
    ("range-tau-zero", '"tau": 0.9', '"tau": 0', POINT + ".tau", "0"),
    ("range-tau-negative-zero", '"tau": 0.9', '"tau": -0.0', POINT + ".tau", "0"),
    ("range-tau-1.5", '"tau": 0.9', '"tau": 1.5', POINT + ".tau", "1.5"),
    ("value-retention-zero", '"retention": 0.625', '"retention": 0', POINT + ".retention", "0"),
    ("value-retention-2", '"retention": 0.625', '"retention": 2', POINT + ".retention", "2"),
    ("range-bytes-negative", '"bytes": 327680', '"bytes": -327680', POINT + ".bytes", "-327680"),
    ("range-bytes-fraction", '"bytes": 327680', '"bytes": 327680.25', POINT + ".bytes", "327680.25"),
    ("range-seed-fraction", '"seed": 1', '"seed": 1.5', "$.calibration.seed", "1.5"),
    ("range-seed-negative", '"seed": 1', '"seed": -1', "$.calibration.seed", "-1"),
    ("range-seed-over-2-to-the-53", '"seed": 1', '"seed": 18446744073709551615', "$.calibration.seed", "1.8446744073709552e+19"),
    ("range-n-seq-zero", '"n_seq": 2', '"n_seq": 0', "$.calibration.n_seq", "0"),
    ("range-point-name-empty", '"name": "p"', '"name": ""', POINT + ".name", "1 to 127"),
    ("range-point-name-too-long", '"name": "p"', '"name": "' + 128 * "n" + '"', POINT + ".name", "127"),
    ("range-model-name-too-long", '"name": "m"', '"name": "' + 64 * "\u00e9" + '"', "$.model.name", "127"),
    ("range-architecture-too-long", '"llama"', '"' + 64 * "a" + '"', "$.model.architecture", "63"),

    # wrong types
    ("type-top-array", BASE, "[]", "$", "an array"),
    ("type-top-number", BASE, "1", "$", "a number"),
    ("version-format-number", '"headwisekv-policy"', "1", "$.format", "a number"),
    ("type-version-string", '"version": 1', '"version": "1"', "$.version", "a string"),
    ("type-model-null", between('{\n    "architecture"', ',\n  "context"'), "null", "$.model", "null"),
    ("type-layers-object", between('[\n      {"layer"', '\n  },\n  "context"'), "{}", "$.model.layers", "an object"),
    ("type-layer-array", '{"layer": 3, "n_head": 4, "n_head_kv": 2, "head_dim_k": 32, "head_dim_v": 32}', "[3, 4, 2, 32, 32]",
     "$.model.layers[1]", "an array"),
    ("type-n-head-string", '"n_head": 4, "n_head_kv": 2, "head_dim_k": 32, "head_dim_v": 32},',
     '"n_head": "4", "n_head_kv": 2, "head_dim_k": 32, "head_dim_v": 32},', "$.model.layers[0].n_head", "a string"),
    ("type-context-true", '"context": 1024', '"context": true', "$.context", "a boolean"),
    ("type-cache-types-string", '{"k": "f16", "v": "f16"}', '"f16"', "$.cache_types", "a string"),
    ("type-cache-type-number", '"v": "f16"', '"v": 16', "$.cache_types.v", "a number"),
    ("type-codebook-null", '[256, 512, "full"]', "null", "$.codebook", "null"),
    ("type-codebook-entry-array", "[256, 512,", "[256, [512],", "$.codebook[1]", "an array"),
    ("type-sinks-null", '"sinks": 4', '"sinks": null', "$.sinks", "null"),
    ("type-windows-string", '[[256, "full"], ["full", 256]]', '"full"', POINT + ".windows", "a string"),
    ("type-windows-row-number", '[[256, "full"], ["full", 256]]', '[[256, "full"], 256]', POINT + ".windows[1]", "a number"),
    ("type-window-null", "[[256,", "[[null,", POINT + ".windows[0][0]", "null"),
    ("type-points-object", between('[\n    {\n      "name": "p"', ',\n  "selected"'), "{}", "$.operating_points", "an object"),
    ("type-point-string", between('{\n      "name": "p"', '\n  ],\n  "selected"'), '"p"', POINT, "a string"),
    ("type-scores-flat", "[[0.95, 0.97, 1], [0.5, 0.75, 1]]", "[0.95, 0.97]", POINT + ".scores[0][0]", "a number"),
    ("type-score-string", "0.5, 0.75, 1", '0.5, "0.75", 1', POINT + ".scores[0][1][1]", "a string"),
    ("type-min-score-null", '"min_score": 0.92', '"min_score": null', POINT + ".min_score", "null"),
    ("type-artifact-id-number", '"artifact_id": "' + HEX + '"', '"artifact_id": 1', POINT + ".artifact_id", "a number"),
    ("type-method-false", '"tau": 0.9', '"method": false', POINT + ".method", "a boolean"),
    ("type-validation-array", '"min_score": 0.92', '"min_score": 0.92, "validation": []', POINT + ".validation", "an array"),
    ("type-selected-number", '"selected": "p"', '"selected": 0', "$.selected", "a number"),
    ("type-calibration-string", between('{"text": "t"', '\n}\n'), '"none"', "$.calibration", "a string"),
    ("type-extensions-null", '"selected": "p"', '"selected": "p", "extensions": null', "$.extensions", "null"),

    # keys
    ("unknown-key-top", '"sinks": 4', '"sinks": 4, "sink": 4', "$", "sink"),
    ("unknown-key-case", '"sinks": 4', '"Sinks": 4', "$", "Sinks"),
    ("unknown-key-model", '"n_layer": 4', '"n_layer": 4, "n_layers": 4', "$.model", "n_layers"),
    ("unknown-key-layer", '{"layer": 3', '{"il": 3, "layer": 3', "$.model.layers[1]", "il"),
    ("unknown-key-cache-types", '"k": "f16"', '"k": "f16", "q": "f16"', "$.cache_types", "q"),
    ("unknown-key-point", '"bytes": 327680', '"bytes": 327680, "size": 327680', POINT, "size"),
    ("unknown-key-calibration", '"seed": 1', '"seed": 1, "time": 0', "$.calibration", "time"),
    ("unknown-key-empty", '"sinks": 4', '"sinks": 4, "": 0', "$", "key"),
    ("unknown-key-with-newline", '"sinks": 4', '"sinks": 4, "a\\nb": 0', "$", "a b"),
    ("unknown-key-very-long", '"sinks": 4', '"sinks": 4, "' + 200 * "\u20ac" + '": 0', "$", "\u20ac\u20ac"),
    ("duplicate-key-sinks", '"sinks": 4', '"sinks": 4, "sinks": 4', "$", "sinks"),
    ("duplicate-key-escaped", '"sinks": 4', '"sinks": 4, "sink\\u0073": 4', "$", "sinks"),
    ("duplicate-key-in-layer", '{"layer": 3', '{"layer": 3, "layer": 3', "$.model.layers[1]", "layer"),
    ("duplicate-key-in-point", '"tau": 0.9', '"tau": 0.9, "tau": 0.9', POINT, "tau"),
    ("duplicate-key-in-extensions", '"selected": "p"', '"selected": "p", "extensions": {"a": {"": 1, "": 2}}', "$.extensions.a", "twice"),
    ("duplicate-key-in-validation", '"min_score": 0.92', '"min_score": 0.92, "validation": {"a": 1, "b": 2, "a": 3}',
     POINT + ".validation", "a"),
    ("duplicate-key-long-path", '"selected": "p"', '"selected": "p", "extensions": {"' + 60 * "\u20ac" + '": {"a": 1, "a": 2}}',
     "*", "twice"),
    ("missing-key-format", '"format": "headwisekv-policy",\n', "", "$", "format"),
    ("missing-key-version", '"version": 1,\n', "", "$", "version"),
    ("missing-key-all", BASE, "{}", "$", "format"),
    ("missing-key-context", '"context": 1024,\n', "", "$", "context"),
    ("missing-key-cache-types", '"cache_types": {"k": "f16", "v": "f16"},\n', "", "$", "cache_types"),
    ("missing-key-cache-type-v", ', "v": "f16"', "", "$.cache_types", "v"),
    ("missing-key-sinks", '"sinks": 4,\n', "", "$", "sinks"),
    ("missing-key-selected", '"selected": "p",\n', "", "$", "selected"),
    ("missing-key-fingerprint", '"fingerprint": "",\n    "type', '"type', "$.model", "fingerprint"),
    ("missing-key-head-dim-v", ', "head_dim_v": 32},', "},", "$.model.layers[0]", "head_dim_v"),
    ("missing-key-windows", '"windows": [[256, "full"], ["full", 256]],\n', "", POINT, "windows"),
    ("missing-key-retention", '"retention": 0.625,\n', "", POINT, "retention"),
    ("missing-key-bytes", '"bytes": 327680,\n', "", POINT, "bytes"),
    ("missing-key-artifact-id", ',\n      "artifact_id": "' + HEX + '"', "", POINT, "artifact_id"),
    ("missing-key-min-score", '"min_score": 0.92,\n', "", POINT, "min_score"),
    ("missing-key-seed", '"seed": 1, ', "", "$.calibration", "seed"),

    # values that contradict the rest
    ("value-window-not-in-codebook", "[[256,", "[[300,", POINT + ".windows[0][0]", "300"),
    ("value-window-other-word", '["full", 256]]', '["Full", 256]]', POINT + ".windows[1][0]", "Full"),
    ("value-row-count", '[[256, "full"], ["full", 256]]', '[[256, "full"]]', POINT + ".windows", "1"),
    ("value-row-count-more", '["full", 256]]', '["full", 256], [256, 256]]', POINT + ".windows", "3"),
    ("value-no-rows", '[[256, "full"], ["full", 256]]', "[]", POINT + ".windows", "0"),
    ("value-head-count", '["full", 256]]', '["full", 256, 256]]', POINT + ".windows[1]", "3"),
    ("value-head-count-fewer", '["full", 256]]', '["full"]]', POINT + ".windows[1]", "1"),
    ("value-score-rows", ", [[0.25, 0.5, 1], [0.92, 0.96, 1]]]", "]", POINT + ".scores", "1"),
    ("value-score-heads", ", [0.92, 0.96, 1]]]", "]]", POINT + ".scores[1]", "1"),
    ("value-score-entries", "[0.5, 0.75, 1]", "[0.5, 0.75, 0.8, 1]", POINT + ".scores[0][1]", "4"),
    ("value-score-full-not-1", "[0.5, 0.75, 1]", "[0.5, 0.75, 0.99]", POINT + ".scores[0][1][2]", "0.99"),
    ("value-score-over-1", "[0.5, 0.75, 1]", "[0.5, 1.75, 1]", POINT + ".scores[0][1][1]", "1.75"),
    ("value-sinks-ge-window", '"sinks": 4', '"sinks": 256', "$.sinks", "256"),
    ("value-retention-wrong", '"retention": 0.625', '"retention": 0.626', POINT + ".retention", "0.626"),
    ("value-bytes-wrong", '"bytes": 327680', '"bytes": 327681', POINT + ".bytes", "327681"),
    ("value-min-score-wrong", '"min_score": 0.92', '"min_score": 0.91', POINT + ".min_score", "0.91"),
    ("value-min-score-without-scores",
     '"scores": [[[0.95, 0.97, 1], [0.5, 0.75, 1]], [[0.25, 0.5, 1], [0.92, 0.96, 1]]],\n', "", POINT, "scores"),
    ("value-tau-and-method", '"tau": 0.9', '"tau": 0.9, "method": "m"', POINT, "tau"),
    ("missing-key-tau-and-method", '"tau": 0.9,\n', "", POINT, "method"),
    ("value-codebook-not-ascending", '[256, 512, "full"]', '[512, 256, "full"]', "$.codebook[1]", "256"),
    ("value-codebook-twice", '[256, 512, "full"]', '[256, 256, "full"]', "$.codebook[1]", "256"),
    ("value-codebook-without-full", '[256, 512, "full"]', "[256, 512]", "$.codebook", "full"),
    ("value-codebook-full-first", '[256, 512, "full"]', '["full", 256, 512]', "$.codebook[1]", "full"),
    ("value-codebook-at-context", '[256, 512, "full"]', '[256, 1024, "full"]', "$.codebook[1]", "1024"),
    ("value-codebook-other-word", '[256, 512, "full"]', '[256, 512, "all"]', "$.codebook[2]", "all"),
    ("range-codebook-65-entries", '[256, 512, "full"]', str(list(range(256, 320)))[:-1] + ', "full"]', "$.codebook", "64"),
    ("range-no-layers", between('[\n      {"layer"', '\n  },\n  "context"'), "[]", "$.model.layers", "0"),
    ("range-codebook-empty", '[256, 512, "full"]', "[]", "$.codebook", "0"),
    ("value-n-head-not-a-multiple", '"n_head": 4, "n_head_kv": 2, "head_dim_k": 32, "head_dim_v": 32}\n',
     '"n_head": 5, "n_head_kv": 2, "head_dim_k": 32, "head_dim_v": 32}\n', "$.model.layers[1]", "5"),
    ("value-layers-not-ascending", '"layer": 3', '"layer": 0', "$.model.layers[1]", "layer 0"),
    ("value-layer-twice", '"layer": 3', '"layer": 1', "$.model.layers[1]", "layer 1"),
    ("value-layer-not-below-n-layer", '"layer": 3', '"layer": 4', "$.model.layers[1]", "layer 4"),
    ("value-n-layer-below-layers", '"n_layer": 4', '"n_layer": 1', "$.model.n_layer", "1"),
    ("value-cache-type-unknown", '"v": "f16"', '"v": "q3_k"', "$.cache_types.v", "q3_k"),
    ("value-cache-type-blocks", BASE, BASE.replace('"head_dim_v": 32},', '"head_dim_v": 40},').replace('"v": "f16"', '"v": "q8_0"'),
     "$.cache_types", "q8_0"),
    ("value-fingerprint-short", '"fingerprint": "",\n    "type', '"fingerprint": "' + HEX[:63] + '",\n    "type', "$.model.fingerprint", "64"),
    ("value-fingerprint-long", '"fingerprint": "",\n    "type', '"fingerprint": "' + HEX + '0",\n    "type', "$.model.fingerprint", "64"),
    ("value-type-fingerprint-text", '"type_fingerprint": ""', '"type_fingerprint": "none"', "$.model.type_fingerprint", "64"),
    ("value-artifact-id-bad-hex", '"artifact_id": "0', '"artifact_id": "g', POINT + ".artifact_id", "64"),
    ("value-artifact-id-upper-case", '"artifact_id": "0123456789a', '"artifact_id": "0123456789A', POINT + ".artifact_id", "64"),
    ("value-artifact-id-empty", '"artifact_id": "' + HEX + '"', '"artifact_id": ""', POINT + ".artifact_id", "64"),
    ("value-text-sha256-short", '"text_sha256": "0123', '"text_sha256": "', "$.calibration.text_sha256", "64"),
    ("value-selected-unknown", '"selected": "p"', '"selected": "q"', "$.selected", "q"),
    ("value-selected-number-of-point", '"selected": "p"', '"selected": "0"', "$.selected", "0"),
    ("value-duplicate-point-name", '\n  ],\n  "selected"', ", " + SECOND_POINT + '\n  ],\n  "selected"', "$.operating_points[1].name", '"p"'),
    ("value-no-points", between('[\n    {\n      "name": "p"', ',\n  "selected"'), "[]", "$.operating_points", "none"),

    # another format
    ("version-3", '"version": 1', '"version": 3', "$.version", "found 3, expected 1 or 2"),
    ("version-0", '"version": 1', '"version": 0', "$.version", "0"),
    ("version-1.5", '"version": 1', '"version": 1.5', "$.version", "1.5"),
    ("version-negative", '"version": 1', '"version": -1', "$.version", "found -1, expected 1 or 2"),
    ("version-other-format", '"headwisekv-policy"', '"headwisekv-bench"', "$.format", "headwisekv-bench"),
    ("version-3-with-new-keys", '"version": 1', '"version": 3, "new_in_3": []', "$.version", "3"),
]

CODEBOOK = '["256:q4_0", "256:q8_0/q4_0", "512:q8_0", "full:f16", "full:f32"]'
COSINE = between('"cosine": [', ',\n        "loss"', BASE_2)
LOSS = between('"loss": {', "\n      }\n    }\n  ],", BASE_2)
SCORES = between('"scores": {', "\n    }\n  ],", BASE_2)
ENTRY = '[["256:q4_0", "full:f16"]'  # the first row

# full history alone, so that the numbers are few
FULL_2 = (BASE_2.replace(CODEBOOK, '["full"]').replace('"256:q4_0"', '"full"').replace('"full:f16"', '"full"').replace('"512:q8_0"', '"full"')
          .replace('"256:q8_0/q4_0"', '"full"').replace('"retention": 0.359375', '"retention": 1').replace('"retention_tokens": 0.5', '"retention_tokens": 1')
          .replace('"retention_query": 0.4375', '"retention_query": 1').replace('"min_score": 0.91,', "").replace("188416", "524288"))


def codebook(*entries):
    return "[" + ", ".join(entry if entry == "full" or entry.isdigit() else f'"{entry}"' for entry in entries) + "]"


def entry(found, expected, *, code="value", reason):
    """A spelling that is none, in the codebook and in the matrix."""
    return [(f"{code}-entry-{reason}", CODEBOOK, CODEBOOK.replace('"256:q4_0"', found), "$.codebook[0]", expected),
            (f"{code}-head-entry-{reason}", ENTRY, ENTRY.replace('"256:q4_0"', found), POINT + ".entries[0][0]", expected)]


# the same for BASE_2: what version 1 does not have
EDITS_2 = [
    # the two versions are not mixed
    ("unknown-key-windows-in-2", '"entries": ', '"windows": ', POINT, "windows"),
    ("missing-key-entries", between('"entries": ', '\n      "scores"', BASE_2), "", POINT, "entries"),
    ("missing-key-retention-tokens", '"retention_tokens": 0.5,\n', "", POINT, "retention_tokens"),
    ("missing-key-retention-query", '"retention_query": 0.4375,\n', "", POINT, "retention_query"),
    ("type-scores-of-version-1-in-2", SCORES, '"scores": ' + COSINE[len('"cosine": '):], POINT + ".scores", "an array"),
    ("version-3-of-2", '"version": 2', '"version": 3', "$.version", "found 3, expected 1 or 2"),

    # spellings of an entry
    *entry('"256:q3_k"', 'found "256:q3_k", expected types of f32, f16', reason="type-unknown"),
    *entry('"256:q8_0/q3_k"', "q3_k", reason="second-type-unknown"),
    *entry('"256:Q4_0"', "expected types of f32", reason="type-upper-case"),
    *entry('"256:"', "expected types of f32", reason="type-empty"),
    *entry('"256:q4_0/"', "expected types of f32", reason="second-type-empty"),
    *entry('"256:/q4_0"', "expected types of f32", reason="first-type-empty"),
    *entry('"256:q4_0/q8_0/q8_0"', "expected types of f32", reason="three-types"),
    *entry('"256:q4_0:q8_0"', "expected types of f32", reason="two-colons"),
    *entry('"256:q4_0/q4_0"', 'found "256:q4_0/q4_0", expected 256:q4_0', reason="type-twice"),
    *entry('"256:' + 200 * "q" + '"', "...", reason="type-very-long"),
    *entry('"0256:q4_0"', "expected a positive 32-bit integer", reason="leading-zero"),
    *entry('"-256:q4_0"', "expected a positive 32-bit integer", reason="minus-sign"),
    *entry('"256.5:q4_0"', "expected a positive 32-bit integer", reason="fraction-with-types"),
    *entry('"1e2:q4_0"', "expected a positive 32-bit integer", reason="exponent"),
    *entry('" 256:q4_0"', "expected a positive 32-bit integer", reason="space"),
    *entry('":q4_0"', "expected a positive 32-bit integer", reason="no-window"),
    *entry('""', "expected a positive 32-bit integer", reason="empty"),
    *entry('"Full:f16"', "expected a positive 32-bit integer", reason="other-word"),
    *entry('"256"', 'found "256", expected the number 256', reason="window-in-quotes"),
    *entry('"0:q4_0"', "found", code="range", reason="zero"),
    *entry('"2147483647:q4_0"', "2147483647", code="range", reason="int32-max"),
    *entry('"99999999999999999999:q4_0"', "99999999999999999999", code="range", reason="over-int64"),
    *entry("256.5", "256.5", code="range", reason="fraction"),
    *entry("null", 'found null, expected a positive 32-bit integer, "full" or a string', code="type", reason="null"),
    *entry('["256:q4_0"]', "found an array", code="type", reason="array"),

    # entries that the codebook cannot have
    ("value-entry-blocks", BASE_2, BASE_2.replace('"head_dim_k": 32, "head_dim_v": 32},', '"head_dim_k": 80, "head_dim_v": 80},'), "$.codebook[0]",
     "found q4_0 and q4_0, expected types whose blocks divide the head dims 80 and 80"),
    ("value-entry-blocks-v", '"head_dim_v": 32},', '"head_dim_v": 80},', "$.codebook[0]", "head dims 32 and 80"),
    ("value-entry-at-context", CODEBOOK, codebook("256:q4_0", "1024:q4_0", "full:f16"), "$.codebook[1]", "found window 1024"),
    ("value-entry-twice", CODEBOOK, codebook("256:q4_0", "256:q4_0", "full:f16"), "$.codebook[1]", "found 256:q4_0 again, expected it once"),
    ("value-entry-full-twice", CODEBOOK, codebook("256:q4_0", "full:f16", "full:f16"), "$.codebook[2]", "found full:f16 again, expected it once"),
    ("value-entry-twice-spelled-twice", CODEBOOK, codebook("256:q4_0", "256:q4_0/q4_0", "full:f16"), "$.codebook[1]", "expected 256:q4_0"),
    ("value-entries-mixed", CODEBOOK, codebook("256", "256:q8_0/q4_0", "full:f16"), "$.codebook[1]", "found 256:q8_0/q4_0 after 256, expected types in all"),
    ("value-entries-mixed-full", CODEBOOK, CODEBOOK.replace("full:f32", "full"), "$.codebook[4]", "found full after 256:q4_0, expected types in all"),
    ("value-entries-by-window", CODEBOOK, codebook("256:q4_0", "256:f16", "512:q4_0", "full:f16"), "$.codebook[2]",
     "found 512:q4_0 of 73728 bytes after 256:f16 of 131072, expected ascending bytes"),
    ("value-entries-equal-bytes", CODEBOOK, codebook("256:q4_0", "512:f16", "256:f32", "full:f16"), "$.codebook[2]",
     "found 256:f32 of 262144 bytes after 512:f16 of 262144, expected ascending bytes, then windows"),
    ("value-entries-equal-windows", CODEBOOK, codebook("256:q4_0", "full:f16", "full:bf16"), "$.codebook[2]", "then precision"),
    ("value-entries-equal-k", CODEBOOK, codebook("256:q4_0", "full:f16", "full:f16/bf16"), "$.codebook[2]", "then precision"),
    ("value-entries-equal-but-for-name", CODEBOOK, codebook("256:iq4_nl", "256:q4_0", "full:f16"), "$.codebook[1]", "then precision"),
    ("value-reference-missing", CODEBOOK, codebook("256:q4_0", "full:q8_0", "full:f32"), "$.codebook", 'found no "full:f16", expected the reference'),
    ("value-reference-of-other-types", '{"k": "f16", "v": "f16"}', '{"k": "f16", "v": "q8_0"}', "$.codebook", 'found no "full:f16/q8_0"'),
    ("value-sinks-ge-smallest-window", BASE_2, BASE_2.replace('"512:q8_0", ', '"512:q8_0", "200:f32", ', 1).replace('"sinks": 4', '"sinks": 200'), "$.sinks",
     "found 200, expected less than the smallest window 200"),
    ("value-head-entry-not-in-codebook", ENTRY, ENTRY.replace("q4_0", "q5_0"), POINT + ".entries[0][0]", "found 256:q5_0, expected one of the codebook"),
    ("value-head-entry-without-types", ENTRY, ENTRY.replace('"256:q4_0"', "256"), POINT + ".entries[0][0]", "found 256, expected one of the codebook"),
    ("value-head-entry-full-without-types", ENTRY, ENTRY.replace("full:f16", "full"), POINT + ".entries[0][1]", "found full, expected one of the codebook"),

    # numbers that follow from the entries
    ("value-retention-2-wrong", '"retention": 0.359375', '"retention": 0.5', POINT + ".retention", "found 0.5, expected 0.359375 from the entries"),
    ("value-retention-tokens-wrong", '"retention_tokens": 0.5', '"retention_tokens": 0.4375', POINT + ".retention_tokens", "expected 0.5"),
    ("value-retention-query-wrong", '"retention_query": 0.4375', '"retention_query": 0.5', POINT + ".retention_query", "expected 0.4375"),
    ("value-bytes-2-wrong", '"bytes": 188416', '"bytes": 188415', POINT + ".bytes", "found 188415, expected 188416 from the entries"),
    ("type-retention-tokens-null", '"retention_tokens": 0.5', '"retention_tokens": null', POINT + ".retention_tokens", "null"),

    # budget and price
    ("missing-key-lambda", ',\n      "lambda": 1e-9', "", POINT, "found budget without lambda, expected both or neither"),
    ("missing-key-budget", '"budget": 200000,\n', "", POINT, "found lambda without budget, expected both or neither"),
    ("value-budget-with-tau", '"method": "m"', '"tau": 0.9', POINT, "found a budget beside tau"),
    ("range-budget-zero", '"budget": 200000', '"budget": 0', POINT + ".budget", "0"),
    ("range-budget-negative", '"budget": 200000', '"budget": -1', POINT + ".budget", "-1"),
    ("range-budget-fraction", '"budget": 200000', '"budget": 0.5', POINT + ".budget", "0.5"),
    ("range-budget-over-2-to-the-53", '"budget": 200000', '"budget": 9007199254740994', POINT + ".budget", "9007199254740994"),
    ("type-budget-string", '"budget": 200000', '"budget": "24MiB"', POINT + ".budget", "a string"),
    ("range-lambda-negative", '"lambda": 1e-9', '"lambda": -1e-9', POINT + ".lambda", "-1e-09"),
    ("type-lambda-null", '"lambda": 1e-9', '"lambda": null', POINT + ".lambda", "null"),
    ("not-finite-lambda", '"lambda": 1e-9', '"lambda": 1e999', POINT + ".lambda", "finite"),

    # kinds of scores
    ("value-scores-empty", SCORES, '"scores": {}', POINT + ".scores", "found none"),
    ("value-kind-empty", LOSS, '"loss": {}', POINT + ".scores.loss", "found none"),
    ("value-kind-upper-case", '"loss": ', '"Loss": ', POINT + ".scores", 'found the kind "Loss", expected 1 to 31 of a-z'),
    ("value-kind-no-name", '"loss": ', '"": ', POINT + ".scores", 'found the kind ""'),
    ("value-kind-with-space", '"loss": ', '"a loss": ', POINT + ".scores", "a loss"),
    ("value-kind-with-dot", '"loss": ', '"loss.x": ', POINT + ".scores", "loss.x"),
    ("value-kind-not-ascii", '"loss": ', '"l\u00f6ss": ', POINT + ".scores", "l\u00f6ss"),
    ("value-kind-too-long", '"loss": ', '"' + 32 * "l" + '": ', POINT + ".scores", 32 * "l"),
    ("type-kind-number", LOSS, '"loss": 1', POINT + ".scores.loss", "found a number, expected an array, or an object of contexts"),
    ("type-kind-null", LOSS, '"loss": null', POINT + ".scores.loss", "null"),
    ("type-context-matrix-number", LOSS, '"loss": {"512": 1}', POINT + ".scores.loss.512", "found a number, expected an array"),
    ("type-score-null", "[9, 5, 2, 0, 0.5]", "[9, null, 2, 0, 0.5]", POINT + ".scores.loss.512[0][0][1]", "null"),
    ("duplicate-key-kind", '"loss": ', '"cosine": ', POINT + ".scores", "cosine"),
    ("duplicate-key-context", LOSS, LOSS[:-1] + LOSS.replace('"loss": {', ", "), POINT + ".scores.loss", "512"),
    ("range-17-kinds", BASE_2, FULL_2.replace(SCORES, '"scores": {' + ", ".join(f'"k{i}": [[[0], [0]], [[0], [0]]]' for i in range(17)) + "}"),
     POINT + ".scores.k16", "over 16"),

    # contexts of scores
    *((f"value-score-context-{reason}", '"512": ', f'"{found}": ', POINT + ".scores.loss", f'found the context "{found}", expected a positive 32-bit')
      for reason, found in (("leading-zero", "0512"), ("empty", ""), ("minus-sign", "-512"), ("fraction", "512.0"), ("exponent", "1e3"), ("word", "full"),
                            ("space", "512 "))),
    ("range-score-context-zero", '"512": ', '"0": ', POINT + ".scores.loss", 'found the context "0"'),
    ("range-score-context-int32-max", '"512": ', '"2147483647": ', POINT + ".scores.loss", 'found the context "2147483647"'),

    # scores that the kind cannot have
    ("value-score-2-rows", ", [[3, 2, 1, 0, 0], [4, 3, 2, 0, 0]]]", "]", POINT + ".scores.loss.512", "found 1 entries, expected 2"),
    ("value-score-2-heads", ", [4, 3, 2, 0, 0]]]", "]]", POINT + ".scores.loss.512[1]", "found 1 entries, expected 2"),
    ("value-score-2-entries", "[9, 5, 2, 0, 0.5]", "[9, 5, 2, 0]", POINT + ".scores.loss.512[0][0]", "found 4 entries, expected 5"),
    ("value-loss-of-the-reference", "[9, 5, 2, 0, 0.5]", "[9, 5, 2, 0.5, 0]", POINT + ".scores.loss.512[0][0][3]", "found score 0.5, expected 0 for the reference"),
    ("value-loss-negative", "[9, 5, 2, 0, 0.5]", "[9, 5, -2, 0, 0.5]", POINT + ".scores.loss.512[0][0][2]", "found score -2, expected a finite loss"),
    ("not-finite-loss", "[9, 5, 2, 0, 0.5]", "[9, 1e999, 2, 0, 0.5]", POINT + ".scores.loss.512[0][0][1]", "finite"),
    ("value-cosine-of-the-reference", "[0.1, 0.2, 0.3, 1, 1]", "[0.1, 0.2, 0.3, 0.99, 1]", POINT + ".scores.cosine[0][1][3]", "expected 1 for the reference"),
    ("value-cosine-over-1", "[0.1, 0.2, 0.3, 1, 1]", "[0.1, 0.2, 0.3, 1, 1.5]", POINT + ".scores.cosine[0][1][4]", "found score 1.5, expected -1 to 1"),
    ("value-cosine-kind-over-1", LOSS, LOSS.replace("loss", "cosine-worst").replace(" 0, ", " 1, "), POINT + ".scores.cosine-worst.512[0][0][0]",
     "found score 9, expected -1 to 1"),
    ("missing-key-min-score-2", '"min_score": 0.91,\n', "", POINT, "found cosine scores without min_score"),
    ("value-min-score-2-wrong", '"min_score": 0.91', '"min_score": 0.93', POINT + ".min_score", "expected 0.91"),
    ("value-min-score-without-cosine", COSINE + ",\n", "", POINT, "found min_score without cosine scores"),
    ("value-min-score-of-another-context", COSINE, '"cosine": {"512": ' + COSINE[len('"cosine": '):] + "}", POINT, "found min_score without cosine scores"),
]

# the same for BASE: what version 2 brought
EDITS_1_ONLY = [
    ("value-1-entry-with-types", '[256, 512, "full"]', '["256:q8_0", "full:f16"]', "$.codebook[0]", "256:q8_0"),
    ("value-1-window-with-types", "[[256,", '[["256:f16",', POINT + ".windows[0][0]", "256:f16"),
    ("unknown-key-1-entries", '"windows": ', '"entries": ', POINT, "entries"),
    ("unknown-key-1-budget", '"tau": 0.9', '"method": "m", "budget": 1, "lambda": 1', POINT, "budget"),
    ("unknown-key-1-retention-tokens", '"retention": 0.625', '"retention": 0.625, "retention_tokens": 0.625', POINT, "retention_tokens"),
    ("type-1-scores-by-kind", between('"scores": [', ',\n      "retention"'), '"scores": {"cosine": []}', POINT + ".scores", "an object"),
]

EDITS = ([(name, BASE, *edit) for name, *edit in EDITS_1 + EDITS_1_ONLY] + [(name, BASE_2, *edit) for name, *edit in EDITS_2])

# reason, bytes, part of the message; all of them faults of the text, which have no JSON path
TEXTS = [
    ("truncated-empty-file", b"", "ends early"),
    ("truncated-only-spaces", b" \t\r\n", "ends early"),
    ("truncated-after-brace", b"{", "key"),
    ("truncated-after-key", BASE[:BASE.index('"model":') + 7].encode(), "':'"),
    ("truncated-after-colon", BASE[:BASE.index('"model":') + 8].encode(), "value"),
    ("truncated-after-comma", BASE[:BASE.index('"selected"')].encode(), "key"),
    ("truncated-in-windows", BASE[:BASE.index('"full"], ["full"')].encode(), "value"),
    ("truncated-in-array", BASE[:BASE.index(', ["full", 256]')].encode(), "']'"),
    ("truncated-in-string", BASE[:BASE.index("wisekv-policy")].encode(), "string"),
    ("truncated-in-escape", (BASE[:BASE.index('"llama"')] + '"\\').encode(), "escape"),
    ("truncated-in-unicode-escape", (BASE[:BASE.index('"llama"')] + '"\\u00').encode(), "hex digits"),
    ("truncated-in-surrogate-pair", (BASE[:BASE.index('"llama"')] + '"\\ud83d').encode(), "ends early"),
    ("truncated-in-word", (BASE[:BASE.index("4,\n  \"oper")] + "nul").encode(), "null"),
    ("truncated-in-number", (BASE[:BASE.index("4,\n  \"oper")] + "4.").encode(), "digit"),
    ("truncated-before-last-brace", BASE[:-2].encode(), "'}'"),
    ("utf8-latin1-name", BASE.replace('"m"', '"\u00e9"').encode("latin-1"), "UTF-8"),
    ("utf8-utf16", BASE[:200].encode("utf-16"), "UTF-8"),
    ("utf8-overlong", BASE.encode().replace(b'"m"', b'"\xc0\xaf"'), "UTF-8"),
    ("utf8-surrogate", BASE.encode().replace(b'"m"', b'"\xed\xa0\x80"'), "UTF-8"),
    ("utf8-over-10ffff", BASE.encode().replace(b'"m"', b'"\xf4\x90\x80\x80"'), "UTF-8"),
    ("utf8-cut-character", BASE.encode().replace(b'"m"', b'"\xe2\x82"'), "UTF-8"),
    ("utf8-cut-at-end", b'"\xe2\x82', "UTF-8"),
    ("utf8-outside-strings", BASE.encode() + b"\xff", "UTF-8"),
    ("too-deep-array", b"[" * 33 + b"]" * 33, "32"),
    ("too-deep-object", b'{"a":' * 33 + b"0" + b"}" * 33, "32"),
    ("too-deep-never-closed", b"[{\"\":" * 200, "32"),
    ("too-deep-extensions", BASE.replace('"selected": "p"', '"selected": "p", "extensions": {"x": ' + 31 * "[" + 31 * "]" + "}").encode(),
     "32"),
    ("parse-word", b"policy", "'p'"),
    ("parse-toml", b'format = "headwisekv-policy"\n', "'f'"),
    ("parse-gguf", b"GGUF\x03\x00\x00\x00", "'G'"),
    ("parse-closed-only", b"]", "']'"),
    ("not-finite-nan-alone", b"NaN", "finite"),
]


def corpus():
    """name -> bytes, EXPECT.tsv included"""
    rows = []
    for name, base, old, new, path, part in EDITS:
        assert base.count(old) == 1 or old == base, f"{name}: {old!r} is {base.count(old)} times in its base"
        rows.append((name, base.replace(old, new).encode(), path, part))
    rows += [(name, data, "-", part) for name, data, part in TEXTS]
    rows.sort()

    files = {}
    expect = []
    for name, data, path, part in rows:
        code = max((c for c in CODES if name.startswith(c + "-")), key=len)
        assert name + ".json" not in files, f"{name}: twice"
        assert len(data) < 2048, f"{name}: {len(data)} bytes"
        files[name + ".json"] = data
        expect.append("\t".join([name + ".json", code, path, part]) + "\n")
    files["EXPECT.tsv"] = "".join(expect).encode()
    return files


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(f"usage: {sys.argv[0]} FOLDER", file=sys.stderr)
        return 2
    folder = pathlib.Path(sys.argv[1])
    files = corpus()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.name not in files:
            old.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
