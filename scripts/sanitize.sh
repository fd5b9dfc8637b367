#!/bin/sh
# Builds and runs tests under a sanitizer preset: scripts/sanitize.sh asan|tsan [CTEST ARGUMENT...]
# asan: every test but the slow ones; tsan: the thread pool, the engine and its invariance under threads, the server
# with its load test.
set -eu
cd "$(dirname "$0")/.."
preset=$1
shift
scripts/install_packages.sh build test sanitize
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_stack_use_after_return=1:strict_string_checks=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
export TSAN_OPTIONS="${TSAN_OPTIONS:-halt_on_error=1}"
# Longer golden cases, bit-for-bit comparisons of many runs, and inputs of megabytes: minutes each under a sanitizer
# (some 40 times slower), and no code that the other cases leave out.
slow='Golden.Scalar|/(topk16|several_sparse|all_sparse|yarn|init_block|reuse_freq|reuse_pattern|published_names_vision|text_only_save)|Invariance|Ragged|VeryLongPieces|EveryCodePoint|MixedBatch'
slow="$slow|CompanyPassesAndThreads|ChunksAndThreads|/unusual_order|AnEvenPicture|(VisionGolden|Tower)\\.Bf16|TraceTensorsHave"
case $preset in
  asan)
    scripts/build.sh asan all
    exec scripts/run_tests.sh asan -E "$slow" "$@" ;;
  tsan)
    scripts/build.sh tsan base_test engine_test server_test
    # Kernels that spread addresses widely confuse g++ 12's ThreadSanitizer; setarch -R turns that off.
    exec setarch -R scripts/run_tests.sh tsan -L '^(base|engine|server)$' -E "$slow" "$@" ;;
  *)
    echo "m3: no sanitizer preset '$preset'; known: asan, tsan" >&2
    exit 2 ;;
esac
