#!/bin/sh
# Runs the tests of a built preset: scripts/run_tests.sh PRESET [CTEST ARGUMENT...]
# Shows failures as they come and ends with the line "N passed, N failed" (", N skipped" where there are some),
# counted from ctest's own report; the exit status is not 0 when something failed or nothing ran.
set -eu
cd "$(dirname "$0")/.."
folder=build/$1
shift
report=$PWD/$folder/test-report.xml
rm -f "$report"

run_ctest() {
  ctest --test-dir "$folder" --parallel "$(nproc)" --output-on-failure --no-tests=error --output-junit "$report" "$@"
}
status=0
if [ -t 1 ]; then
  run_ctest --progress "$@" || status=$?
else
  # Without a terminal: no line for every test that starts or passes.
  { run_ctest "$@" 2>&1 || echo "ctest-status $?"; } | {
    result=0
    while IFS= read -r line; do
      case $line in
        *" Start "[0-9\ ]*": "* | *" Passed "*" sec") ;;
        "ctest-status "*) result=${line#ctest-status } ;;
        *) printf '%s\n' "$line" ;;
      esac
    done
    exit "$result"
  } || status=$?
fi

if [ ! -f "$report" ]; then
  echo "m3: ctest ended without a report; no test was counted" >&2
  exit 1
fi
awk -v status="$status" '
  function count(name) { return match($0, name "=\"[0-9]+\"") ? substr($0, RSTART + length(name) + 2, RLENGTH - length(name) - 3) : 0 }
  /^[ \t]+(tests|failures|disabled|skipped)=/ || /<testsuite / {
    if (count("tests")) tests = count("tests")
    if (count("failures")) failed = count("failures")
    if (count("disabled")) skipped += count("disabled")
    if (count("skipped")) skipped += count("skipped")
  }
  /<testcase / { exit }
  END {
    printf "%d passed, %d failed%s\n", tests - failed - skipped, failed, skipped ? ", " skipped " skipped" : ""
    exit (status != 0 || failed > 0)
  }' "$report"
