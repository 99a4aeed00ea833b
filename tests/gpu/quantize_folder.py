#!/usr/bin/env python3
"""Writes a folder of bf16 weights again in one of the formats that quantized models come in.

    quantize_folder.py FORMAT FOLDER NEW_FOLDER

A weight [n, k] is cut into blocks, each with a scale of its own. Elements are rounded to the
nearest that there is: E4M3, or 4 bits around the block's zero, which is 8 where the format has no
zeros. A GPU is used if there is one."""

import collections
import json
import pathlib
import shutil
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

LARGEST = torch.finfo(torch.float8_e4m3fn).max
SIDE = 128  # of a square block
IN_WORD = 8
IN_ORDER = range(IN_WORD)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
WHOLE = None  # as many rows or columns as there are

# rows, cols: of a block; zeros: None with E4M3; stored(): what is in place of a weight, by the ends
# of names; config: config.json's quantization_config.
Format = collections.namedtuple("Format", "rows cols scale_dtype zeros stored config")


# ---- what is stored: w has elements [n, k], scales [n / rows, k / cols] and zeros, as numbers

def fp8_blocks(w):
    return {"weight": w.elements, "weight_scale_inv": w.scales}


def compressed_fp8(w):
    return {"weight": w.elements, "weight_scale": w.scales}


def compressed_fp8_tensor(w):
    """The scale of activations is any number: a daemon does not quantize them by it."""
    return {"weight": w.elements, "weight_scale": w.scales.reshape(1),
            "input_scale": torch.full([1], 0.02, dtype=w.scales.dtype)}


def packed(elements, dim, order=IN_ORDER):
    """Eight elements along a dimension as one word: that of order[i] in bits 4 i to 4 i + 3."""
    parts = elements.int().unflatten(dim, (-1, IN_WORD))
    words = torch.zeros_like(parts.select(dim + 1, 0))
    for i, element in enumerate(order):
        words |= parts.select(dim + 1, element) << 4 * i
    return words


def awq(w):
    return {"qweight": packed(w.elements.T, 1, AWQ_ORDER), "scales": w.scales.T,
            "qzeros": packed(w.zeros.T, 1, AWQ_ORDER)}


def gptq_v2(w, bias=0):
    k, groups = w.elements.shape[1], w.scales.shape[1]
    return {"qweight": packed(w.elements.T, 0), "scales": w.scales.T,
            "qzeros": packed(w.zeros.T - bias, 1), "g_idx": torch.arange(k).int() // (k // groups)}


def gptq(w):
    """The first version has zeros less one."""
    return gptq_v2(w, bias=1)


def compressed_int4(w):
    return {"weight_packed": packed(w.elements, 1), "weight_scale": w.scales,
            "weight_shape": torch.tensor(w.elements.shape)}


def compressed_int4_zeros(w):
    return {**compressed_int4(w), "weight_zero_point": packed(w.zeros, 0)}


# ---- config.json

def compressed_config(kind, weights, inputs=None):
    return {
        "quant_method": "compressed-tensors", "format": kind, "quantization_status": "compressed",
        "ignore": ["lm_head"], "kv_cache_scheme": None,
        "config_groups": {"group_0": {
            "targets": ["Linear"], "output_activations": None, "input_activations": inputs,
            "weights": {**weights, "dynamic": False},
        }},
    }


def compressed_fp8_config(strategy, inputs, dynamic=True, **block):
    fp8 = {"num_bits": 8, "type": "float", "symmetric": True}
    return compressed_config("float-quantized", {**fp8, "strategy": strategy, **block},
                             {**fp8, "strategy": inputs, "dynamic": dynamic})


def compressed_int4_config(group, zeros):
    return compressed_config("pack-quantized", {
        "num_bits": 4, "type": "int", "symmetric": not zeros, "strategy": "group",
        "group_size": group, "actorder": None})


FP8_CONFIG = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
              "weight_block_size": [SIDE, SIDE]}


# ---- formats

def awq_format(group):
    return Format(1, group, torch.float16, True, awq,
                  {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm",
                   "zero_point": True, "modules_to_not_convert": None})


def gptq_format(group, zeros, version=None):
    """What the first version wrote says of none."""
    config = {"quant_method": "gptq", "bits": 4, "group_size": group, "sym": not zeros,
              "desc_act": False, "static_groups": False, "true_sequential": True,
              "damp_percent": 0.01}
    if version:
        config["checkpoint_format"] = version
    return Format(1, group, torch.float16, zeros, gptq_v2 if version == "gptq_v2" else gptq, config)


def compressed_int4_format(group, zeros):
    return Format(1, group, torch.bfloat16, zeros,
                  compressed_int4_zeros if zeros else compressed_int4,
                  compressed_int4_config(group, zeros))


FORMATS = {
    "fp8-blocks": Format(SIDE, SIDE, torch.float32, None, fp8_blocks, FP8_CONFIG),
    "fp8-ct-blocks": Format(SIDE, SIDE, torch.bfloat16, None, compressed_fp8,
                            compressed_fp8_config("block", "group",
                                                  block_structure=[SIDE, SIDE])),
    "fp8-rows": Format(1, WHOLE, torch.bfloat16, None, compressed_fp8,
                       compressed_fp8_config("channel", "token")),
    "fp8-tensor": Format(WHOLE, WHOLE, torch.bfloat16, None, compressed_fp8_tensor,
                         compressed_fp8_config("tensor", "tensor", dynamic=False)),
    "awq-64": awq_format(64),
    "awq-128": awq_format(128),
    "gptq-32": gptq_format(32, zeros=False),
    "gptq-128-zeros": gptq_format(128, zeros=True, version="gptq"),
    "gptq-v2-64-zeros": gptq_format(64, zeros=True, version="gptq_v2"),
    "packed-128": compressed_int4_format(128, zeros=False),
    "packed-64": compressed_int4_format(64, zeros=False),
    "packed-32-zeros": compressed_int4_format(32, zeros=True),
}


# ---- quantizing

class Quantized:
    """A weight [n, k] in a format: its elements, scales and zeros, and what they stand for."""

    def __init__(self, form, weight):
        n, k = weight.shape
        rows, cols = form.rows or n, form.cols or k
        blocks = weight.float().reshape(n // rows, rows, k // cols, cols)
        if form.zeros is None:
            elements, scales = e4m3(blocks, form.scale_dtype)
            zeros = torch.zeros_like(scales)
        else:
            elements, scales, zeros = int4(blocks, form.scale_dtype, form.zeros)
        self._blocks = elements, scales, zeros
        self.elements = elements.reshape(n, k)
        self.scales = scales.reshape(n // rows, k // cols)
        self.zeros = zeros.reshape(n // rows, k // cols)

    def values(self):
        """In float32."""
        elements, scales, zeros = (t.float() for t in self._blocks)
        return ((elements - zeros) * scales).reshape(self.elements.shape)


def e4m3(blocks, scale_dtype):
    scales = (blocks.abs().amax(dim=(1, 3), keepdim=True) / LARGEST).to(scale_dtype)
    rounded = (blocks / scales.float().clamp(min=1e-30)).clamp(-LARGEST, LARGEST)
    return rounded.to(torch.float8_e4m3fn), scales


def int4(blocks, scale_dtype, has_zeros):
    """Zeros are 1 at least, so that every format has them."""
    low = blocks.amin(dim=(1, 3), keepdim=True).clamp(max=0)
    high = blocks.amax(dim=(1, 3), keepdim=True).clamp(min=0)
    reach = (high - low) / 15 if has_zeros else torch.maximum(high, -low) / 7.5
    scales = reach.clamp(min=1e-6).to(scale_dtype)
    zeros = (-low / scales.float()).round().clamp(1, 15) if has_zeros \
        else torch.full_like(reach, 8)
    return (blocks / scales.float()).round().add(zeros).clamp(0, 15), scales, zeros


def is_quantized(name):
    return name.endswith("_proj.weight")


def tensors_of(form, path, device):
    """What the new folder has in place of a file's tensors."""
    tensors = {}
    with safe_open(path, "pt") as f:
        for name in f.keys():
            if is_quantized(name):
                stored = form.stored(Quantized(form, f.get_tensor(name).to(device)))
                tensors.update({name.removesuffix("weight") + suffix: t.contiguous().cpu()
                                for suffix, t in stored.items()})
            else:
                tensors[name] = f.get_tensor(name)
    return tensors


def differing(meant, path):
    """How many tensors are meant to be in a file, and which of them it has otherwise or not, or
    beside them."""
    def same(a, b):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and \
            a.contiguous().view(torch.uint8).equal(b.view(torch.uint8))

    got = load_file(path)
    return len(meant), sorted(meant.keys() ^ got.keys()) + sorted(
        name for name in meant.keys() & got.keys() if not same(meant[name], got[name]))


def misread(form, old, read):
    """As differing(): what another program makes bf16 weights of, having read the format."""
    with safe_open(old, "pt") as f:
        meant = {name: f.get_tensor(name) for name in f.keys()}
    for name in filter(is_quantized, meant):
        meant[name] = Quantized(form, meant[name]).values().bfloat16()
    return differing(meant, read)


def miswritten(form, old, new):
    """As differing(): what another program wrote in the format."""
    return differing(tensors_of(form, old, "cpu"), new)


def write(form, old, new, device="cpu"):
    """The number of tensors that were written."""
    index = {}
    part = new.with_name(new.name + ".part")
    part.mkdir()
    for path in old.iterdir():
        if path.suffix == ".safetensors":
            tensors = tensors_of(form, path, device)
            save_file(tensors, part / path.name)
            index.update(dict.fromkeys(tensors, path.name))
        elif path.is_file():
            shutil.copy(path, part)
    config = json.loads((old / "config.json").read_text())
    (part / "config.json").write_text(json.dumps({**config, "quantization_config": form.config}))
    (part / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    part.rename(new)
    return len(index)


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in FORMATS:
        sys.exit(f"{__doc__}\nFORMAT is one of {', '.join(FORMATS)}.")
    name, old, new = sys.argv[1:]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"{write(FORMATS[name], pathlib.Path(old), pathlib.Path(new), device)} tensors")


if __name__ == "__main__":
    main()
