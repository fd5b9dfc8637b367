#!/bin/sh
# A folder under src/ includes only itself and the folders that CMakeLists.txt lets it link. Prints each other
# include; the exit status is 1 when there are any.
set -eu
cd "$(dirname "$0")/.."
awk '
  FILENAME == "CMakeLists.txt" {
    if (match($0, /^m3_library\([a-z_ A-Z]+\)/)) {
      count = split(substr($0, 12, RLENGTH - 12), words, " ")
      known[words[1]] = 1
      for (i = 1; i <= count; ++i) allowed[words[1], words[i]] = 1
    }
    next
  }
  /^#include "src\// {
    split(FILENAME, at, "/"); split($2, to, "/")
    if (!((at[2], to[2]) in allowed)) {
      printf "%s:%d: src/%s may not include src/%s (CMakeLists.txt lists what it links)\n", FILENAME, FNR, at[2], to[2]
      bad = 1
    }
  }
  END { exit bad }' CMakeLists.txt $(git ls-files 'src/*.cpp' 'src/*.h')
