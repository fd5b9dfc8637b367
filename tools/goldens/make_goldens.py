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
import read_quantised
import reference
from published import seeded_state, write_checkpoint
from saved_cases import SAVED
from stored_cases import STORED
from vision_cases import VISION, vision_case


def write_expected(folder, out, tokens, meta, file="expected.safetensors"):
    """`token_ids` holds the prompt, so that a reader need not generate it."""
    folder.mkdir(parents=True, exist_ok=True)
    out = {"token_ids": tokens, **out}
    save_file({n: np.ascontiguousarray(v) for n, v in sorted(out.items())}, folder / file)
    (folder / file).chmod(0o644)
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")


def common_meta(case, out, facts, **more):
    return {
        "name": case["name"], "seed": case["seed"], **more,
        **({"token_vocab": case["token_vocab"]} if "token_vocab" in case else {}),
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
    write_expected(folder, out, tokens, common_meta(case, out, facts, weights="m3 seeded weights v1",
                                            gains=case.get("gains", {})))
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if case["name"] == "several_sparse":
        np.save(folder / "tokens.npy", tokens)


def stored_case(case, folder):
    """A checkpoint kept as it is; the reference runs on what the independent reader makes of it, in float32."""
    config = case["config"]
    write_checkpoint(folder, config, case["state"], case.get("shards", 1), case.get("wrong_total"))
    values, formats = read_quantised.read(folder)
    tokens = cases.tokens_of(case, config["text_config"]["vocab_size"])
    plain = {n: ("F32", tuple(v.shape), v.numpy().tobytes()) for n, v in values.items()}
    with tempfile.TemporaryDirectory() as scratch:
        write_checkpoint(scratch, {k: v for k, v in config.items() if k != "quantization_config"}, plain)
        out, facts = reference.run(scratch, tokens, cases.positions_of(case), case["chunk"])
        if case["name"] == "mxfp8":
            facts["transformers_native_reading"] = native_reading(folder, scratch)
    write_expected(folder, out, tokens, common_meta(case, out, facts, weights="stored", formats=formats))


def native_reading(folder, dequantised):
    """transformers' own reading of the MXFP8 layout against the independent reader's, bit for bit."""
    theirs = reference.text_model(reference.load(folder, torch.float32, quantized=True)).state_dict()
    ours = reference.text_model(reference.load(dequantised, torch.float32)).state_dict()
    different = [n for n in ours if not torch.equal(theirs[n], ours[n])]
    assert theirs.keys() == ours.keys() and not different, different
    return f"all {len(ours)} tensors equal bit for bit"


def saved_case(name, folder):
    """A checkpoint that transformers wrote; the reference loads that very folder."""
    folder.mkdir(parents=True, exist_ok=True)
    case = {"chunk": 1024, "name": name, **SAVED[name](folder)}
    config = json.loads((folder / "config.json").read_text())
    tokens = cases.tokens_of(case, case.get("token_vocab", config.get("text_config", config)["vocab_size"]))
    out, facts = reference.run(folder, tokens, cases.positions_of(case), case["chunk"])
    names = read_quantised.read(folder)[0]
    write_expected(folder, out, tokens, common_meta(case, out, facts, weights="stored", stored_tensors=len(names)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(2)
    for name in options.cases or [*cases.SEEDED, *STORED, *SAVED, *VISION]:
        start = time.time()
        folder = options.output / name
        if name in VISION:
            case = {"name": name, **VISION[name]()}
            write_expected(folder, *vision_case(case, folder), "vision.safetensors")
            (folder / "config.json").write_text(json.dumps(case["config"], indent=1) + "\n")
        elif name in SAVED:
            saved_case(name, folder)
        elif name in STORED:
            stored_case({"chunk": 1024, "name": name, **STORED[name]()}, folder)
        else:
            seeded_case({"chunk": 1024, "name": name, **cases.SEEDED[name]()}, folder)
        meta = json.loads((options.output / name / "meta.json").read_text())
        print(f"{name}: {time.time() - start:.0f} s", json.dumps(meta["observed"]), flush=True)


if __name__ == "__main__":
    main()
