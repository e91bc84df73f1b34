"""Local models under the names that llama.cpp's server tests ask a hub for, laid out as the hub's own cache.

    python -m headwisekv.suite.hub SET FOLDER --model FILE --policy-tool PROGRAM    with scripts/ and tests/ on PYTHONPATH

makes FOLDER/models, FOLDER/policies and FOLDER/hub, and prints the policy of each preset as JSON. Sets: `smollm2` has the
default model under every name, `tiny` random models of two architectures. All but the random experts write plain text without end, as
the story models that they stand for do: tests would else hang on what a model happens to write.
"""

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path

import tiny_gguf

from . import prose

COMMIT = "0" * 40  # a snapshot's name in the hub's cache

# repository -> files the presets and the router's tests name
TEXT = {
    "ggml-org/test-model-stories260K": ["stories260K-F32.gguf"],
    "ggml-org/test-model-stories260K-infill": ["stories260K-infill-F32.gguf"],
    "ggml-org/tinygemma3-GGUF": ["tinygemma3-Q8_0.gguf"],
    "ggml-org/models": ["tinyllamas/stories260K.gguf", "bert-bge-small/ggml-model-f16.gguf"],
}
EXPERTS = {"ggml-org/stories15M_MOE": ["stories15M_MOE-F16.gguf"]}
DRAFT = "stories15M-q4_0.gguf"  # fetched into the tests' own folder

FIM = {"pre": 4, "suf": 5, "mid": 6}  # byte tokens that no text has

SETS = ("smollm2", "tiny")
WINDOW, SINKS, CONTEXT = 64, 4, 4096  # the presets have 256 tokens for each slot: the windows let go of most


def make_models(which, folder, default_model):
    """Paths of the models for text, experts and drafts."""
    folder.mkdir(parents=True, exist_ok=True)
    if which == "smollm2":
        path = folder / "prose.gguf"
        if not path.exists() or path.stat().st_mtime < max(made_with.stat().st_mtime for made_with in (Path(prose.__file__), default_model)):
            prose.write_prose_model(default_model, path)
        return path, path, path

    write = tiny_gguf._WRITERS["qwen2"]

    def write_with_infill(writer, n_vocab):
        write(writer, n_vocab)
        for name, token in FIM.items():
            writer.gguf.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", token)

    tiny_gguf._WRITERS["qwen2"] = write_with_infill
    paths = [folder / f"{name}.gguf" for name in ("text", "experts", "draft")]
    # bytes that are no text would make many tests a matter of luck
    tiny_gguf.make_model(paths[0], "qwen2", seed=3, only_text=True)
    tiny_gguf.make_model(paths[1], "qwen3moe", seed=3)
    tiny_gguf.make_model(paths[2], "qwen2", seed=3, only_text=True, n_layer=2)
    return tuple(paths)


def make_policy(tool, model, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([tool, "make", "uniform", "--window", str(WINDOW), "--sinks", str(SINKS), "-c", str(CONTEXT), "-m", model, "-o", path],
                   check=True, stdout=subprocess.DEVNULL)
    return str(path)


def lay_out(hub, repositories, model):
    for repository, files in repositories.items():
        base = hub / ("models--" + repository.replace("/", "--"))
        (base / "refs").mkdir(parents=True)
        (base / "refs" / "main").write_text(COMMIT)
        for name in files:
            link = base / "snapshots" / COMMIT / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.abspath(model))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="the default model")
    parser.add_argument("--policy-tool", required=True, help="llama-kv-policy")
    args = parser.parse_args()

    text, experts, draft = make_models(args.set, args.folder / "models", args.model)
    hub = args.folder / "hub"
    shutil.rmtree(hub, ignore_errors=True)  # tests delete models too
    lay_out(hub, TEXT, text)
    lay_out(hub, EXPERTS, experts)
    (args.folder / DRAFT).unlink(missing_ok=True)
    (args.folder / DRAFT).symlink_to(os.path.abspath(draft))

    of_text = make_policy(args.policy_tool, text, args.folder / "policies" / "text.json")
    of_experts = of_text if experts == text else make_policy(args.policy_tool, experts, args.folder / "policies" / "experts.json")
    policies = {name: of_text for name in TEXT} | {name: of_experts for name in EXPERTS} | {"router": of_text}
    print(json.dumps(policies))


if __name__ == "__main__":
    main()
