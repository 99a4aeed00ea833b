"""Embeddings through the daemon: those of transformers, whatever else the device computes."""

import tempfile
from pathlib import Path

import embedder
from device import daemon, few, row, verdict

CLOSE = 0.9999  # cosine


def embeddings():
    """By the last token and by the mean, with an LM head and without, in one chunk and in many."""
    for mode in "lasttoken", "mean_tokens":
        for head in True, False:
            with tempfile.TemporaryDirectory(prefix="nvllm-embedder-") as base:
                folder = embedder.make(Path(base) / "embedder", mode)
                if not head:
                    embedder.drop_head(folder)
                compare(folder, mode, head)


def compare(folder, mode, head):
    n, worst = 0, 1.0
    for rows in 2048, 64:
        with daemon(f"scheduler.max_batch_tokens={rows}", model=folder) as d, d.connect() as w:
            for values, case in embedded(w, few(4), beside_answers=head):
                worst = min(worst, embedder.cosine(values, case[mode]))
                n += 1
    row(f"embeddings, {mode}, {'an' if head else 'no'} LM head", verdict(worst >= CLOSE),
        f"texts={n} least_cosine={worst:.7f} (bar {CLOSE})")


def embedded(w, n_rounds, beside_answers):
    """All texts at once, a few times, while answers are under way where the model gives any."""
    cases = {w.new_id(): c for _ in range(n_rounds) for c in embedder.CASES}
    answers = [w.new_id() for _ in range(8 if beside_answers else 0)]
    for i in answers:
        w.send(i, generate={"prompt_ids": {"ids": [5 + i % 100] * 40}, "max_tokens": 100,
                            "sampling": {"ignore_eos": True}})
    for i, case in cases.items():
        w.send(i, embed={"prompt_ids": {"ids": case["ids"]}})
    left = len(answers) + len(cases)
    while left:
        reply = w.receive()
        left -= "delta" not in reply
        if reply["id"] in cases:
            yield reply["embedding"]["values"], cases[reply["id"]]
