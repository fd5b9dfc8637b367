#!/bin/bash
# OUT=folder bash tools/train/sight.sh DATA START SECONDS [sight.py's options]
# Makes training data with worker processes, teaches START (a text checkpoint) to see for SECONDS of wall time, evaluates.
# DATA holds books.xz, heldout.xz, words.json, general.json, sprites.npz; the tokenizer and the template are START's.
# TOY=1 rehearses on a CPU; CORES, WORKERS, MAKE_SECONDS, MAKE_FILES, STAY, WORK and PY are those of go.sh.
export TRAIN_STARTED=$(date +%s.%N)
tools=$(cd "$(dirname "$0")" && pwd)
data=$1; start=$2; seconds=$3; shift 3
work=${WORK:-/tmp/tiny-sight}; py=${PY:-python3}
mkdir -p "$OUT" "$work/units" "$work/data"
cp "$data"/* "$start"/tokenizer.json "$start"/chat_template.jinja "$work/data/"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
toy=${TOY:+--toy}
cores=${CORES:-2-$(($(nproc) - 1))}; [ "$(nproc)" -gt 3 ] || cores=0-$(($(nproc) - 1))
workers=${WORKERS:-13}
$py - "$work/data" "$tools" <<'P'
import sys; from pathlib import Path
sys.path.insert(0, sys.argv[2])
import numpy as np
from pack_books import unpack
d = Path(sys.argv[1]); x = unpack(d / "books.xz"); np.save(d / "books.npy", x); print(len(x), "tokens of books")
P
pin="taskset -c $cores"; $pin true 2>/dev/null || pin=
pids=
for i in $(seq 0 $((workers - 1))); do
  held=; [ "$i" = 0 ] && held="--held ${HELD:-16}"
  OMP_NUM_THREADS=1 $pin nice -n 19 $py "$tools/sight_units.py" --data "$work/data" --work "$work/units" --worker $i --seed "$seconds" $held --seconds ${MAKE_SECONDS:-460} --files ${MAKE_FILES:-200} $toy > "$work/worker-$i.log" 2>&1 &
  pids="$pids $!"
done
$py "$tools/sight.py" --data "$work/data" --units "$work/units" --out "$OUT" --start "$start" --seconds "$seconds" --cores ${STAY:-0} $toy "$@" 2>&1 | tee "$work/train.log"
kill $pids 2>/dev/null
tail -qn1 "$work"/worker-*.log | sort | uniq -c | head -20
df -h "$work" | tail -1; ls -la "$OUT"
