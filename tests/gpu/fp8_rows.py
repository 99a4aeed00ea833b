#!/usr/bin/env python3
"""Writes a folder of bf16 weights again as compressed-tensors' FP8, with a scale for each row.

    fp8_rows.py FOLDER NEW_FOLDER
"""
import json
import pathlib
import shutil
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file

FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
CONFIG = {
    "quant_method": "compressed-tensors", "format": "float-quantized",
    "quantization_status": "compressed", "ignore": ["lm_head"], "kv_cache_scheme": None,
    "config_groups": {"group_0": {
        "targets": ["Linear"], "output_activations": None,
        "weights": {**FP8, "dynamic": False, "strategy": "channel"},
        "input_activations": {**FP8, "dynamic": True, "strategy": "token"},
    }},
}
LARGEST = torch.finfo(torch.float8_e4m3fn).max
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def quantized(name, weight):
    """What the new folder has in place of a tensor, by name."""
    if not name.endswith("_proj.weight"):
        return {name: weight}
    w = weight.to(DEVICE).float()
    scale = (w.abs().amax(dim=1, keepdim=True) / LARGEST).bfloat16()
    rounded = (w / scale.float().clamp(min=1e-30)).clamp(-LARGEST, LARGEST)
    return {name: rounded.to(torch.float8_e4m3fn).cpu(), name + "_scale": scale.cpu()}


def main(old, new):
    index = {}
    part = new.with_name(new.name + ".part")
    part.mkdir()
    for path in old.iterdir():
        if path.suffix == ".safetensors":
            tensors = {}
            with safe_open(path, "pt") as f:
                for name in f.keys():
                    tensors.update(quantized(name, f.get_tensor(name)))
            save_file(tensors, part / path.name)
            index.update(dict.fromkeys(tensors, path.name))
        elif path.is_file():
            shutil.copy(path, part)
    config = json.loads((old / "config.json").read_text())
    (part / "config.json").write_text(json.dumps({**config, "quantization_config": CONFIG}))
    (part / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    part.rename(new)
    print(f"{len(index)} tensors")


main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
