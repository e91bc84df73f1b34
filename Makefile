# The commands of this project. `make run` and `make test` install and build whatever they need.

.DEFAULT_GOAL := help
.PHONY: help run test test-slow test-gpu build calibrate bench eval eval-rivals clean

help:
	@echo "make run         build, fetch the default model and serve it on http://127.0.0.1:8080"
	@echo "                 PORT=8080  MODEL=file.gguf|gemma3-270m  POLICY=file.json|none  CTX=8192  NP=1"
	@echo "make test        build and run every test but the slow ones; PYTEST_ARGS='-k chat' narrows pytest"
	@echo "make test-slow   the slow ones too, and bridge and server under sanitizers (hours)"
	@echo "make test-gpu    the tests that run on a GPU, or on Mesa's software device where there is none"
	@echo "make calibrate   make the shipped policies again (hours; Ctrl-C and go on); THREADS=N"
	@echo "                 others into OUT=build/policies: TEXT=file  CTX=512 (some minutes)"
	@echo "make bench       speed against the unpatched llama.cpp (30 minutes on a quiet machine); ARGS='--time-limit 60 --resume'"
	@echo "make eval        measure the default model into docs/results.md (at most 2 hours; Ctrl-C and go on); ARGS='--skip ruler'"
	@echo "make eval-rivals what a number of bytes can do, ours and others, into docs/results-rivals.md (at most 100 minutes; Ctrl-C and go on)"
	@echo "                 all three take DATA=folder or TEXT=file; without ../shared/data the text comes from Debian's packages"
	@echo "make build       build all programs into build/bin"
	@echo "make clean       remove build*/ and .venv (downloads stay in the per-user cache)"

run:
	@command -v python3 > /dev/null || scripts/setup packages
	@exec scripts/serve

test:
	@scripts/setup packages test && exec scripts/test

test-slow:
	@scripts/setup packages test && exec scripts/test --slow

test-gpu:
	@scripts/setup packages && scripts/setup packages vulkan && exec scripts/test --gpu

build:
	@scripts/setup packages && exec scripts/setup build cpu

calibrate:
	@command -v python3 > /dev/null || scripts/setup packages
	@exec scripts/calibrate

bench:
	@scripts/setup packages && scripts/setup build cpu bench-programs && exec scripts/bench speed $(ARGS)

eval:
	@scripts/setup packages && scripts/setup build cpu llama-server llama-kv-policy llama-kv-verify llama-perplexity llama-quantize && scripts/setup venv && exec scripts/eval $(ARGS)

eval-rivals:
	@scripts/setup packages && scripts/setup build cpu llama-server llama-kv-policy llama-perplexity llama-quantize && scripts/setup venv && exec scripts/eval rivals $(ARGS)

clean:
	rm -rf build build-asan build-server-asan build-vulkan build-cuda .venv
