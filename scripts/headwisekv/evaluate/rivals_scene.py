"""A model at one context with all its caches: what is measured there, what that takes, and what came out."""

import contextlib
from dataclasses import dataclass

from ..core import sha256_file, write_whole
from ..plots import frontier
from ..stats import mean
from . import rivals, rivals_data, rivals_plan
from .caches import Divergences, Likelihoods, Setup

START_SECONDS = 3.0  # of a server


@dataclass(frozen=True)
class Batch:
    """What is measured in one go: a chunk of text with some caches, or some needles with one."""
    scene: object
    kind: str
    configs: tuple
    jobs: tuple      # chunks or needles

    def keys(self):
        return [(self.scene.key, self.kind, config.name, job) for config in self.configs for job in self.jobs]

    def run(self, step):
        if self.kind == "kl":
            self.scene.divergences.measure(self.jobs[0], self.configs, step)
        else:
            self.scene.likelihoods.measure(self.configs[0], self.jobs, step)

    def seconds(self):
        more = self.scene.seconds("logits") if self.kind == "kl" else START_SECONDS
        return more + sum(self.scene.seconds(self.kind, config.has_q4) * len(self.jobs) for config in self.configs)

    def __str__(self):
        what = f"KL, chunk {self.jobs[0] + 1}: {len(self.configs)} caches" if self.kind == "kl" else f"{len(self.jobs)} needles: {self.configs[0].name}"
        return f"{self.scene.title}: {what}"


class Scene:
    """`key` is its folder; `main` has all rivals and the bars. Opened in a with block."""

    def __init__(self, key, options, model, n_ctx, policy, budgets, texts, main=False, prompt="template", tau=None, layers=None):
        self.key, self.main, self.title = key, main, f"{model.stem}, context {n_ctx}"
        self.setup = Setup(options.programs, model, n_ctx, options.threads, texts, options.seed, options.out / key, prompt)
        self.exact = self.setup.f32(options.kl_weights == "f32")
        self.maker = rivals.Maker(options.programs, model, policy, n_ctx, self.setup.out / "policies", tau, layers)
        self.configs, self.targets = self.maker.all(budgets, main)
        self.budgets = {budget: self.maker.budget_bytes(budget) for budget in budgets}
        self.n_chunks = options.chunks if main else options.side_chunks
        self.text_files = options.texts
        names = {config.name for config in self.configs}
        self.twins = {config.name for config in self.configs if config.cache == "f16" and config.target and f"{config.series}-q8_0@{config.budget}" in names}

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.divergences = stack.enter_context(Divergences(self.exact, self.maker.identity, self.n_chunks, self.text_files))
            self.likelihoods = stack.enter_context(Likelihoods(self.setup, self.maker.identity))
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    #
    # what there is to do
    #

    def amounts(self, plan, config):
        return rivals_plan.amounts(plan, config, side=None if self.main else self.key, own=config.name in self.targets.values(),
                                   twin=config.name in self.twins)

    def needles(self, depths, n):
        """All depths once, then again."""
        return [(self.setup.n_ctx, depth, index) for index in range(n) for depth in depths]

    def batches(self, plan, tried=frozenset()):
        """What the plan has of this scene and is neither done nor tried: chunk by chunk, then cache by cache."""
        amounts = {config: self.amounts(plan, config) for config in self.configs}

        def is_left(kind, config, job):
            has = self.divergences.has if kind == "kl" else self.likelihoods.has
            return not has(config, job) and (self.key, kind, config.name, job) not in tried

        for i in range(self.n_chunks):
            configs = tuple(config for config, (n, _) in amounts.items() if i < n and is_left("kl", config, i))
            if configs:
                yield Batch(self, "kl", configs, (i,))
        for config, (_, n) in amounts.items():
            jobs = tuple(job for job in self.needles(plan.depths, n) if is_left("needle", config, job))
            if jobs:
                yield Batch(self, "needle", (config,), jobs)

    def first_batches(self, plan):
        """What tells how fast this machine is: a chunk with the full cache and one that some CPUs are slow with, and a needle."""
        slow = [config for config in self.configs if config.has_q4][:1]
        kl = tuple(config for config in (self.configs[0], *slow) if not self.divergences.has(config, 0))
        job = self.needles(plan.depths, 1)[0]
        return ([Batch(self, "kl", kl, (0,))] if kl else []) + ([] if self.likelihoods.has(self.configs[0], job) else [Batch(self, "needle", self.configs[:1], (job,))])

    def seconds(self, kind, slow=False):
        """Of one such job, by the ones that are done; 0 where none is."""
        def found(slow):
            if kind == "logits":
                return [record["seconds"] for i in range(self.n_chunks) if "error" not in (record := self.divergences.store.records.get(f"{i}/logits", {"error": ""}))]
            return [record["seconds"] for config in self.configs if config.has_q4 == slow for record in self.all_records(kind, config).values() if "error" not in record]

        own = mean(found(slow))
        if own is None and slow and kind == "needle" and self.seconds("kl"):  # as much slower as the other kind is
            return self.seconds("needle") * self.seconds("kl", True) / self.seconds("kl")
        return own if own is not None else mean(found(not slow)) or 0.0

    def all_records(self, kind, config):
        if kind == "kl":
            return self.divergences.records(config)
        mark = f"{config.name}|"
        return {key: record for key, record in self.likelihoods.store.records.items() if key.startswith(mark)}

    #
    # what came out
    #

    def collect(self, plan, folder):
        """For the page; pictures go into the folder. Of caches that the plan has left out by now too, where they were measured."""
        kl = {config.name: self.divergences.records(config) for config in self.configs}
        jobs = self.needles(plan.depths, max(plan.needles, plan.side_needles))
        needle = {config.name: self.likelihoods.records(config, jobs) for config in self.configs}
        rows = rivals_data.rows_of(self.configs, kl, needle)
        picture = "rivals.png" if self.main else f"rivals-{self.key}.png"
        if rows:
            write_whole(folder / picture, frontier.draw(rows, self.title, rivals.title))
        return {"key": self.key, "main": self.main, "title": self.title, "model": self.setup.model.name, "model_sha256": sha256_file(self.setup.model),
                "n_ctx": self.setup.n_ctx, "f32": self.exact.is_f32, "policies": self.maker.hashes, "budgets": self.budgets, "targets": self.targets,
                "rows": rows, "bars": rivals_data.bars(self.configs, self.targets, kl) if self.main else [], "served": rivals_data.served(rows),
                "left_out": self.maker.left_out, "errors": rivals_data.errors_of(kl, needle),
                "pictures": {picture: f"Loss against bytes, {self.title}"} if rows else {}}
