#!/usr/bin/env python3
"""The requests of nano-vLLM's published benchmark; as a program, a line of lengths for each."""
import random


def requests():
    """256 prompts of ids, each with its number of output tokens."""
    random.seed(0)
    prompts = [[random.randint(0, 10000) for _ in range(random.randint(100, 1024))]
               for _ in range(256)]
    return [(p, random.randint(100, 1024)) for p in prompts]


if __name__ == "__main__":
    for prompt, n in requests():
        print(len(prompt), n)
