"""nvllm-openai by curl, as README shows it."""

import json
import os
import re
import shutil
import unittest

from gateway import Gateway
from harness import Case, Daemon, run_command
from test_readme import README


@unittest.skipUnless(shutil.which("curl"), "no curl")
class Curl(Case):
    def test_readme(self):
        """README's lines for nvllm-openai and curl, with another port, where $NVLLM_SOCKET names the
        daemon and after a quick start."""
        address = re.search(r"or without: nvllm-openai --listen (127\S+)$", README, re.M)[1]
        line = re.search(r"^curl http://127.*?'$", README, re.M | re.S)[0]
        runtime = self.temporary_folder()
        (runtime / "nvllm").mkdir(mode=0o700)
        with Daemon() as d:
            (runtime / "nvllm" / "nvllmd.sock").symlink_to(d.socket)
            ways = [{"NVLLM_SOCKET": str(d.socket)}]
            if not os.path.exists("/run/nvllm/nvllm.sock"):
                ways.append({"NVLLM_SOCKET": "", "XDG_RUNTIME_DIR": str(runtime)})
            for env in ways:
                with Gateway(None, addresses=[address.replace(":8000", ":0")], env=env) as gateway:
                    asked = line.replace(":8000", f":{gateway.port}")
                    answer = json.loads(run_command(["bash", "-c", asked]).stdout)
                self.assertIn("42", answer["choices"][0]["message"]["content"], env)
