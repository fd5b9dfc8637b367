#!/bin/sh
# scripts/gpu_report.sh on what nvcc could have said: a kernel that spills fails it in a file of Hopper's own, and there only.
set -eu
cd "$(dirname "$0")/../.."
GPU_REPORTS=$(mktemp -d)
export GPU_REPORTS
trap 'rm -rf "$GPU_REPORTS"' EXIT
report() { # NAME BYTES [KERNEL]
  cat >"$GPU_REPORTS/$1.txt" <<END
ptxas info    : Compiling entry function '_ZN2m33ops4cuda5firstEv' for 'sm_90a'
ptxas info    : Function properties for _ZN2m33ops4cuda5firstEv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compiling entry function '${3:-_ZN2m33ops4cuda6secondEv}' for 'sm_90a'
ptxas info    : Function properties for ${3:-_ZN2m33ops4cuda6secondEv}
    8 bytes stack frame, $2 bytes spill stores, $2 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
END
}
# expect NAME BYTES STATUS COUNT [KERNEL]: how the script ends, and its line of counts.
expect() {
  report "$1" "$2" "${5:-}"
  status=0
  said=$(scripts/gpu_report.sh "src/ops/cuda/$1" 2>&1) || status=$?
  if [ "$status" != "$3" ] || ! echo "$said" | grep -qx "2 kernels, $4 spill"; then
    echo "$1 with $2 bytes: status $status, $3 expected; it said"
    echo "$said"
    exit 1
  fi
}
expect some_sm90.cu 0 0 0
expect some_sm90.cu 12 1 1
expect some_sm90_mxfp4.cu 12 1 1
expect some.cu 12 0 1
# One that is known, up to what is known of it.
lists=_ZN2m33ops4cuda24select_blocks_lists_sm90ILb0ELi4ELi1EEEvi
expect some_sm90.cu 62 0 1 $lists
expect some_sm90.cu 63 1 1 $lists
