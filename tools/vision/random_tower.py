"""Adds a small random vision tower to a checkpoint, so that everything around pictures can be tried without one that
was trained: the model takes pictures and understands nothing in them.

    python3 tools/vision/random_tower.py models/m3-tiny-chat /tmp/seeing
    build/release/m3 run /tmp/seeing --image photo.jpg --prompt "What is this?"

The new folder holds links to the old one's files, a tower of its own, and a config.json and index that name both.
Needs nothing but Python.
"""
import argparse
import json
import math
import pathlib
import random
import struct
import sys
from array import array


def layout(text_width, width, layers, intermediate, projector):
    """Name and shape of every tensor, as the published checkpoint has them."""
    tower = "vision_tower.vision_model."
    yield tower + "embeddings.patch_embedding.weight", [width, 3, 2, 14, 14]
    for part in ("weight", "bias"):
        yield tower + f"pre_layrnorm.{part}", [width]
    for layer in range(layers):
        at = tower + f"encoder.layers.{layer}."
        for name, rows, columns in (("self_attn.q_proj", width, width), ("self_attn.k_proj", width, width),
                                    ("self_attn.v_proj", width, width), ("self_attn.out_proj", width, width),
                                    ("mlp.fc1", intermediate, width), ("mlp.fc2", width, intermediate)):
            yield at + name + ".weight", [rows, columns]
            yield at + name + ".bias", [rows]
        for name in ("layer_norm1", "layer_norm2"):
            for part in ("weight", "bias"):
                yield at + f"{name}.{part}", [width]
    for name, rows, columns in (("multi_modal_projector.linear_1", projector, width),
                                ("multi_modal_projector.linear_2", text_width, projector),
                                ("patch_merge_mlp.linear_1", projector, 4 * text_width),
                                ("patch_merge_mlp.linear_2", text_width, projector)):
        yield name + ".weight", [rows, columns]
        yield name + ".bias", [rows]


def values(name, shape, numbers):
    count = math.prod(shape)
    if "norm" in name:
        return array("f", [1.0 if name.endswith("weight") else 0.0] * count)
    bound = math.sqrt(3 / (count // shape[0])) if len(shape) > 1 else 0.01
    return array("f", (numbers.uniform(-bound, bound) for _ in range(count)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    source, out = options.checkpoint.resolve(), options.out
    config = json.loads((source / "config.json").read_text())
    if "vision_config" in config:
        sys.exit(f"{source} has a vision tower already")
    out.mkdir(parents=True)
    own = {"config.json", "model.safetensors.index.json"}
    for file in source.iterdir():
        if file.name not in own:
            (out / file.name).symlink_to(file)

    width, intermediate, projector = 160, 320, 160
    text_width = config["text_config"]["hidden_size"]
    added = {token["content"]: token["id"]
             for token in json.loads((source / "tokenizer.json").read_text())["added_tokens"]}
    config.update(vision_config={"hidden_size": width, "num_hidden_layers": options.layers, "num_attention_heads": 2,
                                 "intermediate_size": intermediate, "projection_dim": text_width},
                  projector_hidden_size=projector, image_token_index=added["]<]image[>["],
                  video_token_index=added["]<]video[>["])
    (out / "config.json").write_text(json.dumps(config, indent=1))

    numbers = random.Random(options.seed)
    head, data = {}, []
    at = 0
    for name, shape in layout(text_width, width, options.layers, intermediate, projector):
        numbers_of_it = values(name, shape, numbers)
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * len(numbers_of_it)]}
        at += 4 * len(numbers_of_it)
        data.append(numbers_of_it)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(out / "vision.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for part in data:
            file.write(part.tobytes())

    index = source / "model.safetensors.index.json"
    if index.exists():
        names = json.loads(index.read_text())["weight_map"]
    else:
        with open(source / "model.safetensors", "rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            names = dict.fromkeys(set(json.loads(file.read(size))) - {"__metadata__"}, "model.safetensors")
    names.update(dict.fromkeys(head, "vision.safetensors"))
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    print(f"{out}: {source.name} with a random tower of {options.layers} layers, {at / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
