#!/bin/bash
# OUT=folder bash tools/train/go.sh DATA SECONDS [train.py's options]
# Makes training data with worker processes, trains for SECONDS of wall time, evaluates. DATA holds tokenizer.json,
# chat_template.jinja, books.xz, heldout.xz, words.json, general.json (ids.json with --start). TOY=1 rehearses on a CPU; CORES are the workers'
# cores (all but two), WORKERS their number, MAKE_SECONDS and MAKE_FILES their bounds; STAY=2 keeps training on two cores once compiled;
# WORK is a scratch folder, PY the interpreter.
export TRAIN_STARTED=$(date +%s.%N)
tools=$(cd "$(dirname "$0")" && pwd)
data=$1; seconds=$2; shift 2
work=${WORK:-/tmp/tiny-training}; py=${PY:-python3}
mkdir -p "$OUT" "$work/units" "$work/data"
cp "$data"/* "$work/data/"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
toy=${TOY:+--toy}
cores=${CORES:-2-$(($(nproc) - 1))}; [ "$(nproc)" -gt 3 ] || cores=0-$(($(nproc) - 1))
workers=${WORKERS:-13}
# The books are unpacked once; all workers map them.
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
  OMP_NUM_THREADS=1 $pin nice -n 19 $py "$tools/units.py" --data "$work/data" --work "$work/units" --worker $i --seconds ${MAKE_SECONDS:-400} --files ${MAKE_FILES:-120} $toy > "$work/worker-$i.log" 2>&1 &
  pids="$pids $!"
done
$py "$tools/train.py" --data "$work/data" --units "$work/units" --out "$OUT" --seconds "$seconds" --cores ${STAY:-0} $toy "$@" 2>&1 | tee "$work/train.log"
kill $pids 2>/dev/null
tail -qn1 "$work"/worker-*.log | sort | uniq -c | head -20
df -h "$work" | tail -1; ls -la "$OUT"
