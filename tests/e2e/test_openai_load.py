"""Many tokens through nvllm-openai, with a backend that answers at once, and one whose steps take a
time.

That all tokens come is tested always; the bars are for tests/bench/run, on a machine that does nothing
else."""

import json
import pathlib

from gateway import Gateway
from harness import Case, config, run_command


class Tokens(Case):
    def measure(self, streams, tokens, step_us):
        program = pathlib.Path(config.module).parent / "bench_gateway"
        with self.instant_daemon(max(step_us, 5000), f"scheduler.max_seqs={streams}",
                                 f"scheduler.max_seq_len={tokens + 4}",
                                 "scheduler.max_batch_tokens=8192", "limits.output_bytes=1G",
                                 "limits.slow_reader_s=3600") as d, \
                Gateway(d.socket, "--max-requests", streams, "--max-connections", streams) as gateway:
            r = json.loads(run_command([program, gateway.socket, d.instant, gateway.process.pid, streams,
                                        tokens, step_us]).stdout)
            peak = gateway.memory_kib("VmHWM") >> 10
        print(f"{streams} streams, {step_us} us a step: {r['tokens_s']:.0f} tokens/s; CPU a token: "
              f"{r['gateway_us']} us; {r['bytes']} bytes a token; peak {peak} MiB")
        return r

    def test_throughput(self):
        """As fast as they can be made."""
        r = self.measure(*((256, 3000) if config.bars else (64, 200)), 0)
        if config.bars:
            self.assertGreaterEqual(r["tokens_s"], 50000)
            self.assertLessEqual(r["gateway_us"], 60)

    def test_token_by_token(self):
        """Each is written by itself, as those of a model are."""
        for streams, step_us in (1, 2000), (32, 2000), (256, 4000):
            r = self.measure(streams, 2000 if config.bars else 100, step_us)
            if config.bars:
                self.assertLessEqual(r["gateway_us"], 60)
