#!/usr/bin/env python3
"""Compares the CUDA backend's logits with transformers on the same folder: relative error against
float32, which may not be above transformers' own in bf16 by more than a tenth.

    compare_logits.py MODEL_FOLDER LOGITS_PROGRAM [N_PROMPTS [RANKS [TYPE]]]

With a TYPE, "fp8" or "int4", the backend quantizes the weights as it loads them, and all others
compute with what they are then. Activations of fp8 products are quantized, too, by transformers as
by the backend: each 128 of a row have a scale, where 512 divide it. Those of experts are not.
"""
import array
import os
import random
import subprocess
import sys
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM

folder, program = sys.argv[1], sys.argv[2]
n_prompts = int(sys.argv[3]) if len(sys.argv) > 3 else 64
ranks = sys.argv[4] if len(sys.argv) > 4 else "1"
weights = sys.argv[5] if len(sys.argv) > 5 else ""
torch.backends.cuda.matmul.allow_tf32 = False
random.seed(1)


def to_e4m3(x, scale):
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def fp8_weight(w):
    """Blocks of 128 by 128."""
    n, k = w.shape
    w = torch.nn.functional.pad(w, (0, -k % 128, 0, -n % 128))
    blocks = w.view(w.shape[0] // 128, 128, w.shape[1] // 128, 128)
    scale = blocks.abs().amax(dim=(1, 3), keepdim=True) / 448
    return to_e4m3(blocks, scale).view(w.shape)[:n, :k]


def int4_weight(w):
    """Groups of 128, or half as many as long as these do not divide all rows."""
    groups = w.view(w.shape[0], -1, group)
    scale = (groups.abs().amax(dim=2, keepdim=True) / 7.5).bfloat16().float()
    return ((groups / scale).round().clamp(-8, 7) * scale).view(w.shape)


def quantized_product(linear):
    weight = linear.weight.float().clone()  # that of the layer becomes bf16

    def forward(x):
        groups = x.float().view(*x.shape[:-1], -1, 128)
        scale = (groups.abs().amax(dim=-1, keepdim=True) / 448).clamp(min=1e-30)
        y = torch.nn.functional.linear(to_e4m3(groups, scale).view(x.shape), weight)
        return y.to(x.dtype)

    return forward


def load(dtype):
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32 if weights else dtype, attn_implementation="sdpa").cuda()
    quantize = fp8_weight if weights == "fp8" else int4_weight
    for name, m in model.model.layers.named_modules() if weights else []:
        if isinstance(m, torch.nn.Linear) and not name.endswith(".gate"):  # not a router
            m.weight.data = quantize(m.weight.data)
            if weights == "fp8" and dtype != torch.float32 and m.in_features % 512 == 0:
                m.forward = quantized_product(m)
        for p in m.parameters(recurse=False):
            for of_expert in p.data if p.dim() == 3 else []:  # of experts gate and up, or down
                for w in of_expert.chunk(2 if p is getattr(m, "gate_up_proj", None) else 1):
                    w.copy_(quantize(w))
    return model.to(dtype).eval()


def last_logits(model, prompts):
    rows = []
    with torch.no_grad():
        for ids in prompts:
            out = model(torch.tensor([ids], device="cuda"), logits_to_keep=1)
            rows.append(out.logits[0, -1].double().cpu())
    return torch.stack(rows)


def error(a, b):
    return ((a - b).norm(dim=1) / b.norm(dim=1)).tolist()


config = AutoConfig.from_pretrained(folder)
group = 128
ffn_size = getattr(config, "moe_intermediate_size", config.intermediate_size)
while config.hidden_size % group or ffn_size % group:
    group //= 2
reference = load(torch.float32)
vocab = reference.config.vocab_size
longest = min(4000, reference.config.max_position_embeddings - 1)
lengths = [1, 2, 15, 16, 17, 32, 33, 48, 64, 65, 96, 97, 127, 129, longest]  # each kind of product
lengths += [random.randint(1, longest) for _ in range(max(0, n_prompts - len(lengths)))]
prompts = [[random.randrange(vocab) for _ in range(n)] for n in lengths[:n_prompts]]

with tempfile.TemporaryDirectory() as tmp:
    with open(os.path.join(tmp, "prompts"), "wb") as f:
        for ids in prompts:
            array.array("i", [len(ids)] + ids).tofile(f)
    subprocess.run([program, folder, f.name, os.path.join(tmp, "logits"), "1", ranks] +
                   ([weights] if weights else []), check=True)
    ours = torch.frombuffer(bytearray(open(os.path.join(tmp, "logits"), "rb").read()),
                            dtype=torch.float32).double().view(len(prompts), vocab)

exact = last_logits(reference, prompts)
del reference
theirs = last_logits(load(torch.bfloat16), prompts)
a, b = error(ours, exact), error(theirs, exact)
mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
worst = max(range(len(a)), key=lambda i: a[i] / b[i])
print(f"logits{' ' + weights if weights else ''} prompts={len(a)} ours={mean_a:.3e} max={max(a):.3e} transformers_bf16={mean_b:.3e} "
      f"max={max(b):.3e} ratio={mean_a / mean_b:.3f} worst_ratio={a[worst] / b[worst]:.3f} "
      f"(length {lengths[worst]})")
sys.exit(0 if mean_a <= 1.1 * mean_b else 1)
