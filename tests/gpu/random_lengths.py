#!/usr/bin/env python3
"""Prints the lengths of nano-vLLM's published benchmark: 256 lines of prompt and output tokens."""
import random

random.seed(0)
prompts = [[random.randint(0, 10000) for _ in range(random.randint(100, 1024))] for _ in range(256)]
for prompt in prompts:
    print(len(prompt), random.randint(100, 1024))
