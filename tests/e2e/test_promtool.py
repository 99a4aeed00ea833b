"""Prometheus's own check of metrics and alerts."""

import shutil
import unittest

from harness import run_command
from test_metrics import MONITORING, Served, get


@unittest.skipUnless(shutil.which("promtool"), "no promtool: it is in the package prometheus")
class Promtool(Served):
    def test_metrics(self):
        """It finds nothing to complain about."""
        with self.serving() as d:
            d.generate("Hello", "--max-tokens", "3")
            done = run_command(["promtool", "check", "metrics"], stdin=get(d.metrics)[2], check=False)
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, b""))

    def test_alerts(self):
        run_command(["promtool", "check", "rules", MONITORING / "nvllm-alerts.yml"])
