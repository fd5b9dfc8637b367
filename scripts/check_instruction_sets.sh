#!/bin/sh
# Object files compiled for one instruction set (*_avx2, *_avx512) must define no function that the linker may share
# with the rest of the program: scripts/check_instruction_sets.sh BUILD_FOLDER. Of an inline function it keeps one
# copy for all, and if it kept that one, a machine without the instructions would die in code that never asked for
# them. Prints each such function; the exit status is 1 when there are any, 2 when there is nothing to check.
set -eu
objects=$(find "$1" -name '*_avx2.cpp.o' -o -name '*_avx512.cpp.o')
if [ -z "$objects" ]; then
  echo "no object files of one instruction set in $1"
  exit 2
fi
shared=$(nm -C --defined-only --print-file-name $objects | grep ' W ' || true)
if [ -n "$shared" ]; then
  printf '%s\n' "$shared"
  exit 1
fi
