#!/usr/bin/env python3
"""Makes bad policies for the tests: each file is BASE, a good policy, with one fault put in.

    make-corpus.py FOLDER    write the files and EXPECT.tsv into FOLDER, which is theirs alone; the build calls it

A file is named <code>-<reason>.json, <code> being the end of its HWKV_ERR_* name. EXPECT.tsv has a line per file:
file, code, the JSON path that must be reported (- for none, * for any), a part of the message.
"""

import pathlib
import sys

CODES = ["parse", "truncated", "too-deep", "utf8", "duplicate-key", "not-finite", "range", "type", "unknown-key",
         "missing-key", "value", "version"]

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

POINT = "$.operating_points[0]"
HEX = "0123456789abcdef" * 4


def between(start, end):
    """the part of BASE from start up to, not including, end"""
    i = BASE.index(start)
    return BASE[i:BASE.index(end, i)]


SECOND_POINT = """{"name": "p", "method": "m", "windows": [[512, 512], [512, 512]], "retention": 0.5, "bytes": 262144,
    "artifact_id": "%s"}""" % HEX

# reason, what is replaced in BASE, by what, JSON path, part of the message
EDITS = [
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
    ("version-other-format", '"headwisekv-policy"', '"headwisekv-bench"', "$.format", "headwisekv-bench"),
    ("version-3-with-new-keys", '"version": 1', '"version": 3, "new_in_3": []', "$.version", "3"),
]

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
    for name, old, new, path, part in EDITS:
        assert BASE.count(old) == 1 or old == BASE, f"{name}: {old!r} is {BASE.count(old)} times in BASE"
        rows.append((name, BASE.replace(old, new).encode(), path, part))
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
