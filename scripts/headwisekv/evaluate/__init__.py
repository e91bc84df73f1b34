"""Quality of a model behind an OpenAI-compatible endpoint: RULER-style needles, LoCoMo, LongMemEval-S, needle likelihood."""
