#!/usr/bin/env python3
"""Compares the CUDA backend's logits with transformers on the same folder: relative error against
float32, which may not be above transformers' own in bf16 by more than a tenth.

    compare_logits.py MODEL_FOLDER LOGITS_PROGRAM [N_PROMPTS [RANKS]]
"""
import array
import os
import random
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM

folder, program = sys.argv[1], sys.argv[2]
n_prompts = int(sys.argv[3]) if len(sys.argv) > 3 else 64
ranks = sys.argv[4] if len(sys.argv) > 4 else "1"
torch.backends.cuda.matmul.allow_tf32 = False
random.seed(1)


def load(dtype):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    return model.cuda().eval()


def last_logits(model, prompts):
    rows = []
    with torch.no_grad():
        for ids in prompts:
            out = model(torch.tensor([ids], device="cuda"), logits_to_keep=1)
            rows.append(out.logits[0, -1].double().cpu())
    return torch.stack(rows)


def error(a, b):
    return ((a - b).norm(dim=1) / b.norm(dim=1)).tolist()


reference = load(torch.float32)
vocab = reference.config.vocab_size
longest = min(4000, reference.config.max_position_embeddings - 1)
lengths = [1, 2, 15, 16, 17, 127, 129, longest]
lengths += [random.randint(1, longest) for _ in range(max(0, n_prompts - len(lengths)))]
prompts = [[random.randrange(vocab) for _ in range(n)] for n in lengths[:n_prompts]]

with tempfile.TemporaryDirectory() as tmp:
    with open(os.path.join(tmp, "prompts"), "wb") as f:
        for ids in prompts:
            array.array("i", [len(ids)] + ids).tofile(f)
    subprocess.run([program, folder, f.name, os.path.join(tmp, "logits"), "1", ranks], check=True)
    ours = torch.frombuffer(bytearray(open(os.path.join(tmp, "logits"), "rb").read()),
                            dtype=torch.float32).double().view(len(prompts), vocab)

exact = last_logits(reference, prompts)
del reference
theirs = last_logits(load(torch.bfloat16), prompts)
a, b = error(ours, exact), error(theirs, exact)
mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
worst = max(range(len(a)), key=lambda i: a[i] / b[i])
print(f"logits prompts={len(a)} ours={mean_a:.3e} max={max(a):.3e} transformers_bf16={mean_b:.3e} "
      f"max={max(b):.3e} ratio={mean_a / mean_b:.3f} worst_ratio={a[worst] / b[worst]:.3f} "
      f"(length {lengths[worst]})")
sys.exit(0 if mean_a <= 1.1 * mean_b else 1)
