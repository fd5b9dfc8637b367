# The same work as the scripts, by name. `make` alone lists it.
.DEFAULT_GOAL := help
.PHONY: help build run test gpu-test gpu-bench gpu-report cuda-all bench load-test test-clients fuzz lint format asan tsan debug clean
ARGS ?=

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

build: ## build/release/m3
	@scripts/install_packages.sh build
	@scripts/build.sh release m3

run: ## ./run; ARGS="--prompt Hello" for m3 run
	@./run $(ARGS)

test: ## ./test; ARGS="-R tokenizer" for ctest
	@./test $(ARGS)

gpu-test: ## every operation of the CUDA backend against the judge, on this machine's GPU; ARGS="--filter linear"
	@scripts/gpu.sh test $(ARGS)

gpu-bench: ## times of the CUDA backend's operations beside this GPU's limits; ARGS="--filter experts"
	@scripts/gpu.sh bench $(ARGS)

gpu-report: ## registers, spills and occupancy of each CUDA kernel, as the compiler says; fails where one of Hopper's own spills; ARGS="src/ops/cuda/route.cu"
	@scripts/gpu_report.sh $(ARGS)

cuda-all: ## compiles the kernels for every GPU that they are written for: 8.0, 8.9, 9.0a, 10.0, 12.0
	@scripts/gpu.sh compile

bench: ## CPU speeds beside their limits; with ARGS the micro-benchmarks (Google Benchmark)
	@scripts/bench.sh $(ARGS)

load-test: ## 64 clients at once for ten minutes; ARGS="SECONDS CLIENTS"
	@scripts/load_test.sh $(ARGS)

test-clients: ## real clients from PyPI and a browser against m3 serve; ARGS="--gsm8k FOLDER openai" for one
	@tests/clients/run.sh $(ARGS)

fuzz: ## every fuzz target for 60 s each (clang, in build/asan); ARGS="NAME SECONDS" for one
	@scripts/fuzz.sh $(ARGS)

lint: ## clang-format and clang-tidy; ARGS=REVISION checks what changed since
	@scripts/lint.sh $(ARGS)

format: ## write the layout that lint asks for
	@scripts/lint.sh --format

asan: ## tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/sanitize.sh asan $(ARGS)

tsan: ## tests of the threaded parts under ThreadSanitizer
	@scripts/sanitize.sh tsan $(ARGS)

debug: ## build/debug: no optimisation, debug symbols
	@scripts/install_packages.sh build test
	@scripts/build.sh debug all

clean: ## remove build/
	rm -rf build
