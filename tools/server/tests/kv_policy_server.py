"""Servers with a policy for tests: policies, prompts of tokens, and requests whose answers can be compared."""

import subprocess

from mixed_policy import mixed_policy, typed_policy
from server_process import need_program

# F32 weights and cache: there the order of additions cannot change which token is best
EXACT = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")
# where entries have types of their own, values in blocks among them
TYPED = ("-fa", "on")


def make_base(folder, model, window, context):
    base = folder / "base.json"
    subprocess.run([need_program("llama-kv-policy"), "make", "uniform", "--window", str(window), "-c", str(context), "-m", model, "-o", base],
                   check=True, timeout=60)
    return base


def make_policy(folder, model, windows, context, sinks=4, seed=1):
    return mixed_policy(make_base(folder, model, windows[0], context), folder / f"mixed-{seed}-{windows[-1]}.json", windows, seed, sinks)


def make_typed(folder, model, codebook, context, sinks=4, seed=1):
    """Entries with types, such as "48:q8_0/q4_0"."""
    return typed_policy(make_base(folder, model, 64, context), folder / f"typed-{seed}-{len(codebook)}.json", codebook, seed, sinks)


def words(seed, n, first=4, count=250):
    """Tokens, by default of the tiny models' vocabulary."""
    state = seed
    out = []
    for _ in range(n):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(first + state % count)
    return out


def ask(server, prompt, n=12, cache=True, **more):
    body = {"prompt": prompt, "n_predict": n, "temperature": 0, "cache_prompt": cache, "return_tokens": True, **more}
    answer = server.post("/completion", body, timeout=900)  # thousands of tokens on one slow core
    assert answer.status_code == 200, answer.text
    return answer.json()


def complete(server, prompt, n=12, cache=True, **more):
    """The tokens of the answer and how many of the prompt were not processed."""
    answer = ask(server, prompt, n, cache, **more)
    return answer["tokens"], answer["timings"]["cache_n"]


def slot(server, i=0):
    return server.get("/slots").json()[i]["kv_policy"]


def metrics(server):
    """What /metrics says about the policy: name, or name and window, to value."""
    out = {}
    for line in server.get("/metrics").text.splitlines():
        if line.startswith("llamacpp:kv_policy_"):
            name, value = line.removeprefix("llamacpp:kv_policy_").split()
            out[name] = int(value)
    return out
