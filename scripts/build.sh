#!/bin/sh
# Configures a preset where needed and builds targets of it: scripts/build.sh PRESET TARGET...
# Prints a progress line on a terminal, and elsewhere one line at the end; nothing when all is up to date. All
# output goes to stderr. M3_JOBS sets the number of compilers that run at once.
set -eu
exec 1>&2
cd "$(dirname "$0")/.."
preset=$1
shift
folder=build/$preset
log=$folder/build.log
mkdir -p "$folder"

# One build of a folder at a time: a second one waits. (flock is part of every Debian system.)
if command -v flock >/dev/null; then
  exec 9>"$folder/.lock"
  flock -n 9 || { echo "m3: another build of $folder is running; waiting for it"; flock 9; }
fi

# A folder that was copied or moved keeps the paths of its old place: start it again.
if [ -f "$folder/CMakeCache.txt" ] && ! grep -Fqx "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$folder/CMakeCache.txt"; then
  echo "m3: $folder belongs to another place; starting it again"
  rm -rf "$folder/CMakeCache.txt" "$folder/CMakeFiles"
fi
if [ ! -f "$folder/build.ninja" ] || [ ! -f "$folder/CMakeCache.txt" ] ||
   [ -n "$(find CMakePresets.json -newer "$folder/build.ninja")" ]; then
  if ! cmake --preset "$preset" >"$log" 2>&1; then
    cat "$log"
    echo "m3: configuring $folder failed; the lines above say why"
    exit 1
  fi
  sed -n 's/^-- \(m3: .*\)/\1/p' "$log"
fi

if [ -z "${M3_JOBS:-}" ]; then
  # One compiler a processor, but no more than fit in memory at about 1 GiB each.
  M3_JOBS=$(nproc)
  fit=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo 2>/dev/null || echo "$M3_JOBS")
  if [ "$fit" -lt "$M3_JOBS" ]; then M3_JOBS=$((fit > 0 ? fit : 1)); fi
fi

started=$(date +%s)
steps=0
if [ -t 2 ]; then terminal=yes; else terminal=; fi
# ninja's last words say how it ended: a pipe hides its exit status from a plain sh.
{ NINJA_STATUS='[%f/%t] ' ninja -C "$folder" -j "$M3_JOBS" "$@" 2>&1 9>&- && echo "m3: done" || echo "m3: failed"; } | {
  result="m3: failed"
  while IFS= read -r line; do
    printf '%s\n' "$line" >&3
    case $line in
      '['*'] Re-checking'* | '['*'] Re-running'*) ;;
      '['[0-9]*/[0-9]*'] '*)
        steps=${line#[}
        steps=${steps%%/*}
        total=${line%%]*}
        if [ "$terminal" ]; then printf '\r\033[Km3: building %s: %s of %s' "$folder" "$steps" "${total#*/}"; fi ;;
      "m3: done" | "m3: failed") result=$line ;;
    esac
  done 3>"$log"
  if [ "$terminal" ] && [ "$steps" != 0 ]; then printf '\r\033[K'; fi
  if [ "$result" = "m3: failed" ]; then
    # From the first failure on: the compiler's own words.
    sed -n '/^FAILED: /,$p; /^ninja: error: /p' "$log" | grep -v '^m3: failed$' | head -n 80
    echo "m3: the build failed; $folder/build.log has all of it"
    exit 1
  fi
  if [ "$steps" != 0 ]; then echo "m3: built $folder: $steps steps in $(($(date +%s) - started)) s"; fi
}
