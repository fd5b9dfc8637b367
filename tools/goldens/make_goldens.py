"""Writes the golden cases. Usage: make_goldens.py OUTPUT_FOLDER [CASE ...]   (no case named: all of them)"""
import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

import cases
import reference
from published import seeded_state, write_checkpoint


def write_expected(folder, out, meta):
    folder.mkdir(parents=True, exist_ok=True)
    save_file({n: np.ascontiguousarray(v) for n, v in sorted(out.items())}, folder / "expected.safetensors")
    (folder / "expected.safetensors").chmod(0o644)
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")


def common_meta(case, out, facts, **more):
    return {
        "name": case["name"], "seed": case["seed"], **more,
        "tokens": "seeded", "token_count": case["tokens"], "passages": case.get("passages", []),
        "passage_length": cases.PASSAGE, "positions": out["positions"].tolist(),
        "reference": {"transformers": transformers.__version__, "torch": torch.__version__, "dtype": "float32",
                      "attention": "eager", "prefill_chunk": case["chunk"], **facts},
        "observed": reference.summary(out),
    }


def seeded_case(case, folder):
    config = case["config"]
    text = config["text_config"]
    tokens = cases.tokens_of(case, text["vocab_size"])
    with tempfile.TemporaryDirectory() as scratch:
        write_checkpoint(scratch, config, seeded_state(text, case["seed"], case.get("gains")))
        out, facts = reference.run(scratch, tokens, cases.positions_of(case), case["chunk"],
                                   no_cache=case.get("no_cache", True))
    write_expected(folder, out, common_meta(case, out, facts, weights="m3 seeded weights v1",
                                            gains=case.get("gains", {})))
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if case["name"] == "several_sparse":
        np.save(folder / "tokens.npy", tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(2)
    for name in options.cases or list(cases.SEEDED):
        start = time.time()
        case = {"chunk": 1024, "name": name, **cases.SEEDED[name]()}
        seeded_case(case, options.output / name)
        meta = json.loads((options.output / name / "meta.json").read_text())
        print(f"{name}: {time.time() - start:.0f} s", json.dumps(meta["observed"]), flush=True)


if __name__ == "__main__":
    main()
