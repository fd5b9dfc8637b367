#!/bin/sh
# clang-format, the order of includes, and clang-tidy, warnings as errors: scripts/lint.sh [REVISION | --format]
# Layout and includes are checked everywhere; clang-tidy reads all sources, or those that differ from REVISION.
# --format writes the layout instead. The last line counts the files: "N passed, N failed".
set -eu
cd "$(dirname "$0")/.."
scripts/install_packages.sh build test lint

files=$(git ls-files '*.cpp' '*.h')
if [ "${1:-}" = --format ]; then
  clang-format-16 -i $files
  exit 0
fi
sources=$(git ls-files '*.cpp')
if [ $# -gt 0 ]; then
  git rev-parse --quiet --verify "$1^{commit}" >/dev/null || { echo "m3: no revision '$1'" >&2; exit 2; }
  sources=$(git diff --name-only --diff-filter=d "$1" -- '*.cpp')
fi

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
clang-format-16 --dry-run --Werror $files 2>"$results/format" || true
sed -n 's/^\([^ :]*\):[0-9]*:[0-9]*: error: .*/\1/p' "$results/format" | sort -u >"$results/badly_laid_out"
badly_laid_out=$(wc -l <"$results/badly_laid_out")
if [ "$badly_laid_out" != 0 ]; then
  cat "$results/badly_laid_out"
  echo "m3: these $badly_laid_out files differ from .clang-format; 'make format' rewrites them"
fi

includes=0
scripts/check_includes.sh || includes=1

# clang-tidy takes its flags from compile commands that name each source alone, without g++'s precompiled headers;
# nothing is built there, and the fuzz targets are not part of it.
cmake --preset release -B build/lint -DM3_UNITY=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >"$results/configure" ||
  { cat "$results/configure"; exit 1; }
for file in $sources; do
  if grep -q "\"file\": \"$PWD/$file\"" build/lint/compile_commands.json; then echo "$file"; fi
done >"$results/sources"
checked=$(wc -l <"$results/sources")
export results
# One file a process, as many as there are processors; each leaves a file named after its source where it complains.
xargs -r -n 1 -P "$(nproc)" sh -c '
  log="$results/$(echo "$1" | tr / _).tidy"
  clang-tidy-16 -p build/lint --quiet --warnings-as-errors="*" --extra-arg=-Wno-unknown-warning-option \
    --extra-arg=-Wno-bitwise-instead-of-logical --extra-arg=-Wno-bitwise-conditional-parentheses "$1" \
    >"$log" 2>"$log.err" || { cat "$log"; grep -E "error:" "$log.err"; mv "$log" "$log.bad"; }' sh <"$results/sources" || true
complaints=$(find "$results" -name '*.bad' | wc -l)

total=$(echo "$files" | wc -w)
echo "m3: layout of $total files, clang-tidy over $checked sources, order of includes"
failed=$((badly_laid_out + complaints + includes))
echo "$((total + checked + 1 - failed)) passed, $failed failed"
[ "$failed" = 0 ]
