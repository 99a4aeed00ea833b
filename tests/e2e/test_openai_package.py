"""nvllm-openai as OpenAI's own package sees it, which comes from pip's index where it is not installed."""

import subprocess
import sys
import unittest

import test_embed
import test_openai
from gateway import Gateway
from harness import Case, at_once, config, scaled
from test_answers import ARGUMENTS, CALLS
from test_openai import QUESTION, TOOL, Shared


def find_openai():
    """The package: this Python's, or from a virtual environment in the build folder; None where pip
    cannot fetch it."""
    venv = config.build / "tests" / "openai"
    try:
        import openai
        return openai
    except ImportError:
        pass
    if not list(venv.glob("lib/*/site-packages/openai")):
        for command in ([sys.executable, "-m", "venv", venv],
                        [venv / "bin" / "pip", "install", "--retries", "0", "--timeout", "10", "openai"]):
            if subprocess.run(command, capture_output=True).returncode:
                return None
    sys.path.extend(map(str, venv.glob("lib/*/site-packages")))
    import openai
    return openai


openai = find_openai()
needs_openai = unittest.skipUnless(openai, "the Python package openai cannot be had")


@needs_openai
class Package(Shared):
    def setUp(self):
        super().setUp()
        self.client = self.enterContext(openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.gateway.port}/v1", api_key="none", max_retries=0))

    def create(self, content=QUESTION, **options):
        return self.client.chat.completions.create(**{
            "model": "nvllm-tiny", "messages": [{"role": "user", "content": content}],
            "temperature": 0, **options})

    def test_chat_and_stream(self):
        self.assertEqual(self.create().choices[0].message.content, "42")
        chunks = list(self.create(stream=True, stream_options={"include_usage": True}))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual((text, chunks[-1].usage.completion_tokens), ("42", 3))
        self.assertEqual([m.id for m in self.client.models.list()], ["nvllm-tiny"])
        self.assertEqual(self.client.models.retrieve("nvllm-tiny").id, "nvllm-tiny")

    def test_logprobs(self):
        rows = self.create(logprobs=True, top_logprobs=3).choices[0].logprobs.content
        self.assertEqual(rows[0].token, "4")
        self.assertEqual([len(r.top_logprobs) for r in rows], [3] * len(rows))
        c = self.client.completions.create(model="nvllm-tiny", prompt="Once", logprobs=2, max_tokens=3)
        self.assertEqual(len(c.choices[0].logprobs.tokens), 3)

    def test_errors(self):
        for error, options in ((openai.BadRequestError, {"top_p": 7}),
                               (openai.NotFoundError, {"model": "gpt-4o"})):
            with self.assertRaises(error) as caught:
                self.create(**options)
            self.assertEqual(caught.exception.type, "invalid_request_error")

    def test_cancel(self):
        with self.create("Tell me a story.", stream=True, max_tokens=20000,
                         extra_body={"ignore_eos": True}) as stream:
            next(iter(stream))
        self.daemon.wait_idle()

    def test_many(self):
        n = scaled(200, 20)
        got = at_once(lambda i: self.create(f"What is {i} + 1?").choices[0].message.content, range(n))
        self.assertGreater(sum(text == str(i + 1) for i, text in enumerate(got)), 0.8 * n)


@needs_openai
class Tools(Case):
    setUp = test_openai.Parts.setUp

    def test_tools(self):
        with openai.OpenAI(base_url=f"http://127.0.0.1:{self.gateway.port}/v1", api_key="x") as client:
            create = client.chat.completions.create
            options = {"model": "nvllm-tiny", "messages": [{"role": "user", "content": CALLS}],
                       "tools": [TOOL], "presence_penalty": 0.5}
            choice = create(**options).choices[0]
            self.assertEqual([c.function.name for c in choice.message.tool_calls], ["find", "g"])
            self.assertEqual(choice.finish_reason, "tool_calls")
            with client.chat.completions.stream(**options) as stream:
                final = stream.get_final_completion()
            self.assertEqual(final.choices[0].message.tool_calls[0].function.arguments, ARGUMENTS)
            self.assertEqual(final.choices[0].message.content, "Wait.")


@needs_openai
class Embeddings(test_embed.Served):
    def test_embeddings(self):
        with Gateway(self.daemon.socket) as gateway, \
                openai.OpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="x") as client:
            for more in {}, {"encoding_format": "float"}:
                got = client.embeddings.create(model="embedder", input=self.texts, **more)
                for item, values in zip(got.data, self.values):
                    self.same(item.embedding, values)
            with self.assertRaises(openai.BadRequestError):
                client.embeddings.create(model="embedder", input="x", dimensions=len(self.values[0]) + 1)
