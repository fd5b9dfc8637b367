"""Speed of m3 and of llama.cpp on the same small random checkpoints of MiniMax-M3's architecture, same threads.

    compare_with_llamacpp.py LLAMA_CPP M3 FOLDER [--threads 2] [--repeats 3] [--contexts 0,2048,8192,16384]

LLAMA_CPP is a source tree of llama.cpp that knows MiniMax-M3, with build/bin/llama-bench beside it or in its parent
folder; M3 the m3 program; checkpoints (hidden size 512, 32 query heads, 3 and 7 layers, the first one dense) and their
GGUF conversions go to FOLDER and are kept. llama.cpp runs sparse attention with -fa 1 and dense attention with -fa 0.
Needs torch, safetensors, transformers and numpy. The attention share is what 8192 tokens of context add to a pass, for
one sparse layer: the difference between the two models, divided by the four layers that they differ in.
"""
import argparse, json, pathlib, subprocess, sys

HIDDEN, HEADS, KV_HEADS, EXPERTS = 512, 32, 4, 8
SHIPPED = next((pathlib.Path(__file__).parent.parent / "models").glob("*/config.json")).parent


def make_checkpoint(folder, layers):
    import torch
    from safetensors.torch import save_file

    if (folder / "model.safetensors").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((SHIPPED / "config.json").read_text())
    text = config["text_config"]
    flags = [0] + [1] * (layers - 1)
    text.update(hidden_size=HIDDEN, num_hidden_layers=layers, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
                intermediate_size=256, shared_intermediate_size=256, dense_intermediate_size=1024,
                num_local_experts=EXPERTS, num_experts_per_tok=2, max_position_embeddings=32768, moe_layer_freq=flags)
    text["sparse_attention_config"].update(sparse_attention_freq=flags, sparse_disable_index_value=flags,
                                           sparse_num_index_heads=KV_HEADS, sparse_topk_blocks=16)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_bytes((SHIPPED / name).read_bytes())
    generator = torch.Generator().manual_seed(layers)

    def matrix(rows, columns, dtype=torch.bfloat16):
        return (torch.randn(rows, columns, generator=generator) * columns**-0.5).to(dtype)

    def norm(size):
        return (torch.randn(size, generator=generator) * 0.1).to(torch.bfloat16)

    vocab = text["vocab_size"]
    tensors = {"model.embed_tokens.weight": matrix(vocab, HIDDEN), "lm_head.weight": matrix(vocab, HIDDEN),
               "model.norm.weight": norm(HIDDEN)}
    for layer in range(layers):
        p = f"model.layers.{layer}."
        tensors[p + "input_layernorm.weight"] = norm(HIDDEN)
        tensors[p + "post_attention_layernorm.weight"] = norm(HIDDEN)
        projections = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
        if flags[layer]:
            projections |= {"index_q": KV_HEADS, "index_k": 1}
        for name, heads in projections.items():
            tensors[p + f"self_attn.{name}_proj.weight"] = matrix(heads * 128, HIDDEN)
            if name != "v":
                tensors[p + f"self_attn.{name}_norm.weight"] = norm(128)
        tensors[p + "self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * 128)

        def mlp(prefix, names, width):
            for name, shape in zip(names, ((width, HIDDEN), (width, HIDDEN), (HIDDEN, width))):
                tensors[f"{prefix}{name}.weight"] = matrix(*shape)

        if not flags[layer]:
            mlp(p + "mlp.", ("gate_proj", "up_proj", "down_proj"), 1024)
            continue
        moe = p + "block_sparse_moe."
        tensors[moe + "gate.weight"] = matrix(EXPERTS, HIDDEN, torch.float32)
        tensors[moe + "e_score_correction_bias"] = torch.zeros(EXPERTS)
        mlp(moe + "shared_experts.", ("gate_proj", "up_proj", "down_proj"), 256)
        for expert in range(EXPERTS):
            mlp(f"{moe}experts.{expert}.", ("w1", "w3", "w2"), 256)
    tensors = {"language_model." + name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: "model.safetensors" for name in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def convert(source, checkpoint, out):
    """llama.cpp's converter, told to read config.json as it stands (newer transformers spell keys anew) and to take
    any tokenizer for GPT-2's: speed does not depend on it."""
    code = f"""
import json, runpy, sys
sys.dont_write_bytecode = True
sys.path[:0] = [{str(source / 'gguf-py')!r}, {str(source)!r}]
import conversion.base as base
def raw_config(folder, is_mistral_format=False):
    return json.loads(open(str(folder) + '/config.json').read())
base.ModelBase.load_hparams = staticmethod(raw_config)
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: 'gpt-2'
sys.argv = ['convert', {str(checkpoint)!r}, '--outfile', {str(out)!r}, '--outtype', 'bf16']
runpy.run_path({str(source / 'convert_hf_to_gguf.py')!r}, run_name='__main__')
"""
    if not out.exists():
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def run_llama(program, gguf, flash, arguments, contexts):
    command = [program, "-m", gguf, "-t", arguments.threads, "-fa", flash, "-p", 512, "-n", 32, "-b", 512, "-ub", 512,
               "-d", ",".join(map(str, contexts)), "-r", arguments.repeats, "-o", "json"]
    out = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout
    times = {}
    for row in json.loads(out):
        phase = "prefill" if row["n_prompt"] else "decode"
        samples = sorted(row["samples_ns"])
        times[phase, row["n_depth"]] = samples[len(samples) // 2] / 1e6 / (1 if phase == "prefill" else row["n_gen"])
    return times


def run_m3(program, checkpoint, arguments, contexts):
    command = [program, "bench", checkpoint, "--threads", arguments.threads, "--batch", 1, "--prompt", 512, "--context",
               ",".join(map(str, contexts)), "--repeats", max(9, 3 * arguments.repeats), "--json"]
    out = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout
    return {(row["phase"], row["context"]): row["seconds"] * 1e3 for row in json.loads(out)["rows"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp", type=pathlib.Path)
    parser.add_argument("m3", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contexts", default="0,2048,8192,16384")
    parser.add_argument("--only", choices=("m3", "llama"), help="run one of the two (to try the script)")
    arguments = parser.parse_args()
    contexts = [int(context) for context in arguments.contexts.split(",")]
    llama = next((folder / "build/bin/llama-bench" for folder in (arguments.llama_cpp, arguments.llama_cpp.parent)
                  if (folder / "build/bin/llama-bench").exists()), None)
    if llama is None and arguments.only != "m3":
        sys.exit(f"no build/bin/llama-bench in {arguments.llama_cpp} or its parent: build it first")

    results = {}
    for layers in (3, 7):
        checkpoint = arguments.folder / f"layers{layers}"
        gguf = arguments.folder / f"layers{layers}.gguf"
        make_checkpoint(checkpoint, layers)
        if arguments.only != "m3":
            convert(arguments.llama_cpp, checkpoint, gguf)
            results["llama.cpp sparse", layers] = run_llama(llama, gguf, 1, arguments, contexts)
            results["llama.cpp dense", layers] = run_llama(llama, gguf, 0, arguments, contexts)
        if arguments.only != "llama":
            results["m3", layers] = run_m3(arguments.m3, checkpoint, arguments, contexts)

    print(f"{'ms':<18} {'layers':>6} {'phase':<8} " + " ".join(f"{context:>9}" for context in contexts))
    for (name, layers), times in sorted(results.items()):
        for phase in ("prefill", "decode"):
            print(f"{name:<18} {layers:>6} {phase:<8} " + " ".join(f"{times[phase, c]:>9.3f}" for c in contexts))
    base, far = contexts[0], 8192
    if far in contexts and base < far:
        print(f"\nattention share of {far} tokens, ms for one sparse layer")
        shares = {}
        for name in sorted({name for name, _ in results}):
            for phase in ("prefill", "decode"):
                added = [results[name, layers][phase, far] - results[name, layers][phase, base] for layers in (3, 7)]
                shares[name, phase] = (added[1] - added[0]) / 4
                print(f"{name:<18} {phase:<8} {shares[name, phase]:>9.3f}")
        if ("m3", "decode") in shares and ("llama.cpp sparse", "decode") in shares:
            for phase in ("prefill", "decode"):
                print(f"{phase}: m3 is {shares['llama.cpp sparse', phase] / shares['m3', phase]:.1f} times as fast (asked: 3)")
            for layers in (3, 7):
                worst = max((results["m3", layers][phase, c] / results["llama.cpp dense", layers][phase, c], phase, c)
                            for phase in ("prefill", "decode") for c in contexts)
                print(f"{layers} layers: m3 takes at most {worst[0]:.2f} of the time of llama.cpp's dense path "
                      f"({worst[1]}, context {worst[2]}; asked: 1)")


if __name__ == "__main__":
    main()
