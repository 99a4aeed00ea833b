"""Writes nvllm-tiny-embeddings.json: embeddings of transformers, in float32.

usage: embedding_oracle.py MODEL >nvllm-tiny-embeddings.json"""

import json
import random
import sys

import torch
from transformers import AutoModel, AutoTokenizer

model = AutoModel.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
words = "the cat sat on a mat and spoke of 17 lions".split()
draw = random.Random(1)
texts = ["Spell lion.", "你好 🌍, <|im_end|> is plain text",
         " ".join(draw.choice(words) for _ in range(700))]
cases = []
for text in texts:
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
    with torch.no_grad():
        hidden = model(torch.tensor([ids])).last_hidden_state[0].double()
    pooled = {"lasttoken": hidden[-1], "mean_tokens": hidden.mean(0)}
    cases.append({"text": text, "ids": ids, **{
        name: [round(x, 7) for x in (v / v.norm()).tolist()] for name, v in pooled.items()}})
json.dump(cases, sys.stdout, ensure_ascii=False)
print()
