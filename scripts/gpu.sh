#!/bin/sh
# What needs nvcc: scripts/gpu.sh test|bench|gaps [OPTIONS] on a machine with a GPU, scripts/gpu.sh compile on any.
# gaps runs `m3 bench --device cuda OPTIONS` and tells how long no kernel ran within its passes.
# bench writes bench/results/GPU-DATE-COMMIT.md too: hardware, driver, command and the table.
set -eu
cd "$(dirname "$0")/.."
what=${1:-}
[ $# -gt 0 ] && shift

# Where cmake/M3Cuda.cmake looks for it.
has_nvcc() {
  for nvcc in "$(command -v nvcc)" "${CUDA_HOME:-}/bin/nvcc" "${CUDA_PATH:-}/bin/nvcc" /usr/local/cuda/bin/nvcc; do
    [ -x "$nvcc" ] && return
  done
  return 1
}
case $what in
  test | bench | gaps | compile)
    has_nvcc || { echo "m3: nvcc was not found: install CUDA 13.0 or newer, or set CUDA_HOME to where it is" >&2; exit 1; } ;;
esac

case $what in
  test)
    scripts/install_packages.sh gpu
    scripts/build.sh gpu gpu_test
    exec build/gpu/tests/gpu_test "$@" ;;
  bench)
    scripts/install_packages.sh gpu
    scripts/build.sh gpu gpu_bench
    gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)
    name=$(echo "${gpu%%,*}" | tr 'A-Z ' 'a-z-' | sed 's/^nvidia-//')
    result=bench/results/$name-$(date +%F)-$(git rev-parse --short HEAD).md
    table=$(mktemp)
    trap 'rm -f "$table"' EXIT
    build/gpu/bench/gpu_bench "$@" >"$table" || { cat "$table"; echo "m3: gpu_bench failed; nothing was recorded" >&2; exit 1; }
    cat "$table"
    {
      echo "# Operations of the CUDA backend, $(date +%F)"
      echo
      echo "$gpu; \`make gpu-bench${*:+ ARGS=\"$*\"}\` at $(git rev-parse --short HEAD)."
      echo
      echo '```'
      cat "$table"
      echo '```'
    } >"$result"
    echo "m3: written to $result" ;;
  gaps)
    scripts/build.sh release m3
    cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
    mkdir -p build/gaps
    c++ -std=c++20 -O2 -shared -fPIC -I"$cuda/include" -I"$cuda/extras/CUPTI/include" bench/gaps/kernel_gaps.cpp \
      -o build/gaps/kernel_gaps.so -L"$cuda/lib64" -L"$cuda/extras/CUPTI/lib64" -lcupti \
      -Wl,-rpath,"$cuda/lib64:$cuda/extras/CUPTI/lib64"
    CUDA_INJECTION64_PATH=$PWD/build/gaps/kernel_gaps.so exec build/release/m3 bench --device cuda "$@" ;;
  compile)
    cmake --preset release -B build/cuda-all -DM3_CUDA=ON -DM3_CUDA_ARCHITECTURES="80-real;89-real;90a-real;100-real;120-real" \
      -DM3_BUILD_TESTS=OFF >/dev/null
    cmake --build build/cuda-all --target m3_ops_cuda
    echo "m3: the kernels compile for 8.0, 8.9, 9.0a, 10.0 and 12.0" ;;
  *)
    echo "usage: scripts/gpu.sh test|bench|gaps|compile [OPTIONS]" >&2
    exit 2 ;;
esac
