"""Embedders for tests: nvllm-tiny with the files that Sentence Transformers writes, and what
transformers makes of some texts."""

import json
import math
import shutil
import struct

import harness

CASES = json.loads((harness.GOLDEN / "nvllm-tiny-embeddings.json").read_text())
DIM = len(CASES[0]["lasttoken"])
MODULES = ["Transformer", "Pooling", "Normalize"]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(
        sum(x * x for x in a) * sum(y * y for y in b))


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def make(folder, mode="lasttoken", modules=None):
    """A copy of nvllm-tiny that pools in this way, in a folder that is not there yet."""
    shutil.copytree(harness.MODEL, folder)
    (folder / "modules.json").write_text(json.dumps([
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "",
         "type": "sentence_transformers.models." + name}
        for i, name in enumerate(modules or MODULES)]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({
        "word_embedding_dimension": DIM, "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": False,
        "pooling_mode_" + mode: True, "include_prompt": True}))
    return folder


def drop_head(folder):
    """Makes it a model without an LM head, whose tensors' names have no prefix."""
    edit(folder / "config.json", lambda c: c.update(architectures=["Qwen3Model"]))
    raw = (folder / "model.safetensors").read_bytes()
    n, = struct.unpack_from("<Q", raw)
    header = {k.removeprefix("model."): v for k, v in json.loads(raw[8:8 + n]).items()}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + raw[8 + n:])
