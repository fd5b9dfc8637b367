#!/bin/sh
# Builds and runs tests under a sanitizer preset: scripts/sanitize.sh asan|tsan [engine|server] [CTEST ARGUMENT...]
# asan: every test but the slow ones; tsan: "engine" the thread pool, the loading of pictures, the engine and its
# invariance under threads,
# "server" the server with its load test; both where neither is named.
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
slow="$slow|CompanyPassesAndThreads|ManySamplesChangeNoReply|ChunksAndThreads|cuda.emulated|Device\.(AGuess|WeightsOf|RepliesOf|EvaluatesAnd)|/unusual_order|AnEvenPicture|SchemasWithTooMuch|(VisionGolden|Tower)\\.Bf16|TraceTensorsHave"
case $preset in
  asan)
    scripts/build.sh asan all
    exec scripts/run_tests.sh asan -E "$slow" "$@" ;;
  tsan)
    part=both
    case ${1:-} in engine | server)
      part=$1
      shift ;;
    esac
    case $part in
      engine) folders='base|media|engine' ;;
      server) folders='server' ;;
      both) folders='base|media|engine|server' ;;
    esac
    slow="$slow|ContextsUpToTheWindow" # minutes of prefill
    # shellcheck disable=SC2046 # one word a program
    scripts/build.sh tsan $(printf '%s_test ' $(echo "$folders" | tr '|' ' '))
    # Kernels that spread addresses widely confuse g++ 12's ThreadSanitizer; setarch -R turns that off.
    exec setarch -R scripts/run_tests.sh tsan -L "^($folders)\$" -E "$slow" "$@" ;;
  *)
    echo "m3: no sanitizer preset '$preset'; known: asan, tsan" >&2
    exit 2 ;;
esac
