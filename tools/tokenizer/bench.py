"""Times m3's tokenizer beside the `tokenizers` package, one thread each, on the same texts in the same run.

Both encode the whole texts; their ids must be equal. Both are timed in processor time, runs alternate, and the best of
each is taken, so that a busy machine hurts neither. `tokenizer_bench` is built with -DM3_BUILD_BENCHMARKS=ON.

  python bench.py --bench build/bench/bench/tokenizer_bench --m3 build/release/m3 --tokenizer tokenizer.json TEXT...
"""

import argparse
import json
import os
import platform
import subprocess
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tokenizers  # noqa: E402  (reads the variables above)


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def ours(bench: str, tokenizer: Path, text: Path, only: str) -> dict[str, float]:
    """MB and milliseconds of processor time of each benchmark."""
    environment = {**os.environ, "M3_BENCH_TOKENIZER": str(tokenizer), "M3_BENCH_TEXT": str(text)}
    output = subprocess.run(
        [bench, "--benchmark_format=json", "--benchmark_min_time=0.5", f"--benchmark_filter={only}"],
        env=environment, capture_output=True, check=True,
    ).stdout  # fmt: skip
    result = {}
    for entry in json.loads(output)["benchmarks"]:
        unit = {"ns": 1e6, "us": 1e3, "ms": 1.0}[entry["time_unit"]]
        result[entry["name"] + ":ms"] = entry["cpu_time"] / unit
        if "bytes_per_second" in entry:
            result[entry["name"]] = entry["bytes_per_second"] / 1e6
    return result


def package(tokenizer, text: str, size: int) -> dict[str, float]:
    """MB/s of the package's ways to encode: the whole text at once, and in paragraphs without offsets."""
    paragraphs = text.split("\n\n")
    start = time.process_time()
    tokenizer.encode(text, add_special_tokens=False)
    whole = time.process_time() - start
    start = time.process_time()
    tokenizer.encode_batch_fast(paragraphs, add_special_tokens=False)
    fast = time.process_time() - start
    return {"encode": size / whole / 1e6, "encode_batch_fast": size / fast / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--m3", required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("texts", nargs="+", type=Path)
    arguments = parser.parse_args()
    reference = tokenizers.Tokenizer.from_file(str(arguments.tokenizer))
    print(f"{processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; tokenizers {tokenizers.__version__}\n")
    print("| text | MB | m3 encode MB/s | tokenizers encode | encode_batch_fast | ratio to the faster | ids |")
    print("|---|---|---|---|---|---|---|")
    for path in arguments.texts:
        text = path.read_text(encoding="utf-8")
        size = len(text.encode())
        command = [arguments.m3, "tokenize", str(arguments.tokenizer), "--file", str(path), "--ids", "--parse-special"]
        got = [int(word) for word in subprocess.run(command, capture_output=True, check=True).stdout.split()]
        equal = got == reference.encode(text, add_special_tokens=False).ids
        best_ours: dict[str, float] = {}
        best_theirs: dict[str, float] = {}
        for _ in range(arguments.rounds):
            for key, value in ours(arguments.bench, arguments.tokenizer, path, "tokenizer_encode$").items():
                best_ours[key] = max(best_ours.get(key, 0), value)
            for key, value in package(reference, text, size).items():
                best_theirs[key] = max(best_theirs.get(key, 0), value)
        speed = best_ours["tokenizer_encode"]
        print(
            f"| {path.name} | {size / 1e6:.2f} | {speed:.1f} | {best_theirs['encode']:.2f} |"
            f" {best_theirs['encode_batch_fast']:.2f} | {speed / max(best_theirs.values()):.1f} |"
            f" {'equal' if equal else 'DIFFERENT'} |",
            flush=True,
        )
    print("\nm3 alone, on the first text:\n")
    alone = ours(arguments.bench, arguments.tokenizer, arguments.texts[0], ".")
    for key, value in sorted(alone.items()):
        print(f"- {key.removesuffix(':ms')}: {value:.2f} {'ms' if key.endswith(':ms') else 'MB/s'}")


if __name__ == "__main__":
    main()
