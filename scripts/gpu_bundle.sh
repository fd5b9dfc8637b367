#!/bin/sh
# For a GPU machine that has no compiler, or too little time for one:
#   scripts/gpu_bundle.sh pack [FILE]           here: builds for 9.0a (or M3_CUDA_ARCHITECTURES) into build/gpu-bundle.tar.xz
#   scripts/gpu_bundle.sh run FILE OUT PART...  there, in the same commit's tree: the parts, in order, each into OUT/PART.txt
# Parts: test, quick, models, bench, upload, whole, tower, gaps, memcheck, initcheck, racecheck; PART:FILTER gives
# test, quick, bench and the checkers a filter (bench:select). A part ends after M3_PART_SECONDS (300), a checker after
# M3_CHECK_SECONDS (200). The last line counts the parts.
set -eu
cd "$(dirname "$0")/.."
what=${1:-}
[ $# -gt 0 ] && shift

case $what in
  pack)
    file=${1:-build/gpu-bundle.tar.xz}
    cmake --preset release -B build/gpu-bundle -DM3_CUDA=ON -DM3_BUILD_BENCHMARKS=ON \
      -DM3_CUDA_ARCHITECTURES="${M3_CUDA_ARCHITECTURES:-90a-real}" >/dev/null
    cmake --build build/gpu-bundle --target m3 gpu_test gpu_bench engine_test >&2
    pack=build/gpu-bundle/pack
    rm -rf "$pack"
    mkdir -p "$pack/lib"
    pwd >"$pack/source"
    for program in m3 tests/gpu_test bench/gpu_bench tests/engine_test; do
      strip -o "$pack/$(basename "$program")" "build/gpu-bundle/$program"
      # What every machine with a C++ runtime has stays out.
      ldd "build/gpu-bundle/$program" | awk '$3 ~ /^\// { print $3 }' |
        grep -vE '/(ld-linux|libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|libz|liblzma)[-.]' |
        while read -r library; do cp -Lu "$library" "$pack/lib"; done
    done
    cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
    if [ -f "$cuda/extras/CUPTI/include/cupti.h" ] || [ -f "$cuda/include/cupti.h" ]; then
      c++ -std=c++20 -O2 -shared -fPIC -I"$cuda/include" -I"$cuda/extras/CUPTI/include" bench/gaps/kernel_gaps.cpp \
        -o "$pack/kernel_gaps.so" -L"$cuda/lib64" -L"$cuda/extras/CUPTI/lib64" -lcupti
    fi
    tar -C "$pack" -c . | xz -T0 -6 >"$file"
    echo "m3: $file, $(($(wc -c <"$file") / 1024)) KiB" ;;
  run)
    file=$(readlink -f "$1")
    out=$2
    shift 2
    mkdir -p "$out"
    out=$(readlink -f "$out")
    bundle=$(mktemp -d)
    trap 'rm -rf "$bundle"' EXIT
    tar -xJf "$file" -C "$bundle"
    source=$(cat "$bundle/source")
    # Tests look for their data where they were built.
    if [ ! -e "$source" ]; then mkdir -p "$(dirname "$source")" && ln -s "$PWD" "$source"; fi
    cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")")
    export LD_LIBRARY_PATH="$bundle/lib:$cuda/lib64:$cuda/extras/CUPTI/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    config=${M3_RANDOM_CONFIG:-}
    passed=0
    failed=0
    for part in "$@"; do
      name=${part%%:*}
      filter=
      case $part in *:*) filter="--filter ${part#*:}" ;; esac
      log=$out/$(echo "$part" | tr : -).txt
      check="timeout --kill-after 10 ${M3_CHECK_SECONDS:-200} compute-sanitizer --error-exitcode 9 --print-limit 20 --tool"
      # shellcheck disable=SC2086 # the options are words
      case $name in
        test) set -- "$bundle/gpu_test" $filter ;;
        quick) set -- "$bundle/gpu_test" --quick $filter ;;
        models) set -- "$bundle/engine_test" --gtest_brief=1 "--gtest_filter=*Cuda*:*OnCuda*:*cuda*" ;;
        bench) set -- "$bundle/gpu_bench" $filter ;;
        upload) set -- "$bundle/gpu_bench" --filter upload ;;
        whole) set -- "$bundle/m3" bench --device cuda --random-config "$config" --format mxfp4 --layers 24 \
          --batch 1,32 --context 8192 --prompt 8192 --profile ;;
        tower) set -- "$bundle/m3" bench vision --device cuda --random-config "$config" --picture 672x672,2016x2016 ;;
        gaps) set -- env CUDA_INJECTION64_PATH="$bundle/kernel_gaps.so" "$bundle/m3" bench --device cuda \
          --random-config "$config" --format mxfp4 --layers 24 --batch 1,32 --context 8192 --prompt 8192 ;;
        memcheck | initcheck | racecheck) set -- $check "$name" "$bundle/gpu_test" --quick $filter ;;
        *) echo "m3: no part '$name'; known: test, quick, models, bench, upload, whole, tower, gaps, memcheck, initcheck, racecheck" >&2
          exit 2 ;;
      esac
      started=$(date +%s)
      status=0
      timeout --kill-after 10 "${M3_PART_SECONDS:-300}" "$@" >"$log" 2>&1 || status=$?
      if grep -q 'PASSED *\] 0 tests' "$log"; then status=1; fi # all were skipped: there is no GPU
      if [ "$status" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
      echo "=== $part: exit status $status, $(($(date +%s) - started)) s"
      tail -n "${M3_TAIL:-12}" "$log"
    done
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ] ;;
  *)
    echo "usage: scripts/gpu_bundle.sh pack [FILE] | run FILE OUT PART..." >&2
    exit 2 ;;
esac
