"""The parts of chats' answers: reasoning, content and tool calls, of a model that writes what the
test says."""

import json

from harness import Case
from test_ctl_chat import PROMPT, Typist

TOOL = json.dumps({"type": "function", "function": {"name": "find", "parameters": {}}})
THINKS = "<think>\nIt is far.\nVery far.\n</think>\n\nThe Moon\nis far."
CALLS = ('<think>\nI look.\n</think>\n\nWait.\n<tool_call>\n{"name": "find", "arguments": {"x": 1.50, '
         '"y": "</tool_call>"}}\n</tool_call>\n<tool_call>\n{"name": "g"}\n</tool_call>')
ARGUMENTS = '{"x": 1.50, "y": "</tool_call>"}'


def chat(text, tools=(), **options):
    """A request that is answered with the text: see echo_backend.c."""
    return {"chat": {"messages": [{"role": "user", "content": text}], "tools": list(tools)},
            "sampling": {"presence_penalty": 0.5}, **options}


def parts(reply, choice=0):
    c = reply.choices[choice]
    calls = [(call["name"].decode(), call["arguments"].decode()) for call in c.tool_calls]
    return c.reasoning.decode(), c.text.decode(), calls


class Answers(Case):
    def setUp(self):
        self.daemon = self.enterContext(self.echo_daemon())
        self.folder = self.temporary_folder()

    def ask(self, request):
        with self.daemon.connect() as w:
            return w.generate(**request)

    def test_reasoning_is_apart(self):
        for stream in False, True:
            self.assertEqual(parts(self.ask(chat(THINKS, stream=stream))),
                             ("It is far.\nVery far.", "The Moon\nis far.", []))

    def test_raw_text_has_all(self):
        for text in THINKS, CALLS:
            self.assertEqual(parts(self.ask(chat(text, [TOOL], raw_text=True))), ("", text, []))

    def test_prompts_that_are_no_chat_are_raw(self):
        """Of the same tokens."""
        with self.daemon.connect() as w:
            prompt = w.ask(render={"chat": chat(THINKS)["chat"]})["text"]["text"]
            reply = w.generate(prompt=prompt, sampling={"presence_penalty": 0.5})
        self.assertEqual(parts(reply), ("", THINKS, []))

    def test_tool_calls(self):
        for n, stream in (1, True), (1, False), (3, True):
            reply = self.ask(chat(CALLS, [TOOL], n=n, stream=stream))
            ids = set()
            for choice in range(n):
                self.assertEqual(parts(reply, choice), ("I look.", "Wait.",
                                                        [("find", ARGUMENTS), ("g", "{}")]))
                ids.update(c["id"].decode() for c in reply.choices[choice].tool_calls)
            self.assertEqual(len(ids), 2 * n)
            for i in ids:
                self.assertRegex(i, "^call_[0-9a-f]{16}$")

    def test_sessions_hold_the_parts(self):
        """A session's message has reasoning and calls apart, with the ids that the client was told;
        the next turn's prompt is the template's, of which the answer's ids are kept."""
        with self.daemon.connect() as w:
            w.ask(create_session={"name": "s", "chat": {"tools": [TOOL]}})
            request = chat(CALLS, stream=True)
            del request["chat"]["tools"]
            reply = w.generate(session="s", **request)
            held = w.ask(show_session={"name": "s", "ids": True})["session_contents"]
            said = held["chat"]["messages"][1]
            self.assertEqual((said["role"], said["content"], said["reasoning_content"]),
                             ("assistant", b"Wait.", b"I look."))
            self.assertEqual(said["tool_calls"], reply.choices[0].tool_calls)
            self.assertEqual(held["token_ids"][-len(reply.choices[0].ids):], reply.choices[0].ids)
            result = {"role": "tool", "content": "12", "tool_call_id": said["tool_calls"][0]["id"]}
            user = {"role": "user", "content": "And now?"}
            again = w.generate(session="s", chat={"messages": [result, user]},
                               sampling={"presence_penalty": 0.5})
            self.assertEqual(parts(again), ("", "And now?", []))
            held = w.ask(show_session={"name": "s", "ids": True})["session_contents"]
            self.assertEqual(held["turn_messages"], [0, 2, 5])
            prompt = w.ask(render={"chat": {**held["chat"], "messages": held["chat"]["messages"][:-1]}})
            n = again.done["usage"]["prompt_tokens"]
            self.assertEqual(w.ask(detokenize={"ids": held["token_ids"][:n]})["text"]["text"],
                             prompt["text"]["text"])

    def test_calls_without_tools_are_text(self):
        self.assertEqual(parts(self.ask(chat(CALLS))),
                         ("I look.", CALLS.partition("</think>\n\n")[2], []))

    def test_cut_off_answers_lose_nothing(self):
        """max_tokens ends them anywhere: each part is the beginning of the whole one."""
        with self.daemon.connect() as w:
            whole = w.generate(**chat(CALLS, [TOOL]))
            reasoning, text, calls = parts(whole)
            for k in range(1, whole.done["usage"]["completion_tokens"]):
                request = chat(CALLS, [TOOL], max_tokens=k, stream=k % 2 == 0)
                raw = parts(w.generate(**{**request, "raw_text": True}))[1]
                got = parts(w.generate(**request))
                self.assertTrue(CALLS.startswith(raw))
                self.assertTrue((reasoning + "\n</think>").startswith(got[0]), got)
                self.assertEqual(got[2], calls[:len(got[2])])
                # What is cut off inside a call is text.
                left = raw.partition("</think>")[2].lstrip("\n")
                if not got[2] and "</think>" in raw:
                    self.assertEqual(got[1], left)
                elif got[2]:
                    self.assertTrue(got[1].startswith(text), got)

    def test_stop_strings_see_the_whole_text(self):
        self.assertEqual(parts(self.ask(chat(THINKS, stop=["Very"]))), ("It is far.\n", "", []))

    def ctl(self, *args):
        return self.daemon.ctl(*args).stdout.decode()

    def test_nvllmctl_prints_the_content(self):
        args = ["generate", "--presence-penalty", 0.5]
        self.assertEqual(self.ctl(*args, THINKS), "The Moon\nis far.")
        self.assertEqual(self.ctl(*args, "--raw-text", THINKS), THINKS)
        got = json.loads(self.ctl(*args, "--json", THINKS))
        self.assertEqual((got["text"], got["reasoning_content"]),
                         ("The Moon\nis far.", "It is far.\nVery far."))
        self.assertNotIn("tool_calls", got)

    def test_nvllmctl_prints_tool_calls(self):
        request = {"messages": [{"role": "user", "content": CALLS}], "tools": [json.loads(TOOL)],
                   "presence_penalty": 0.5}
        file = self.folder / "request.json"
        file.write_text(json.dumps(request))
        lines = self.ctl("generate", "--prompt-file", file).splitlines()
        self.assertEqual(lines[0], "Wait.")
        calls = [json.loads(line) for line in lines[1:]]
        self.assertEqual([c["function"] for c in calls],
                         [{"name": "find", "arguments": ARGUMENTS}, {"name": "g", "arguments": "{}"}])
        (answer,), _, _ = self.daemon.batch([request])
        self.assertEqual([c["function"] for c in answer["tool_calls"]],
                         [c["function"] for c in calls])
        # As a message of the next request it is read again.
        message = {k: answer[k] for k in ("reasoning_content", "tool_calls")}
        request["messages"] += [{"role": "assistant", "content": answer["text"], **message},
                                {"role": "tool", "content": "12", "name": "find",
                                 "tool_call_id": answer["tool_calls"][0]["id"]},
                                {"role": "user", "content": "And now?"}]
        (answer,), _, _ = self.daemon.batch([request])
        self.assertEqual(answer["text"], "And now?")

    def test_tool_calls_of_several_choices(self):
        """Each under its number."""
        file = self.folder / "request.json"
        file.write_text(json.dumps({"messages": [{"role": "user", "content": CALLS}], "n": 2,
                                    "tools": [json.loads(TOOL)], "presence_penalty": 0.5}))
        lines = self.ctl("generate", "--prompt-file", file).splitlines()
        self.assertEqual([line for line in lines if not line.startswith("{")],
                         ["[1]", "Wait.", "", "[2]", "Wait."])
        self.assertEqual([json.loads(line)["function"]["name"] for line in lines
                          if line.startswith("{")], ["find", "g"] * 2)

    def test_chat_breaks_lines_between_words(self):
        """Not within code; Chinese anywhere."""
        text = ("aaaa bbbb cccc  dddd eeeeeeeeeeeeeeeeeeeeeeee f\n  gggg hhhh iiii jjjj\n"
                "```c\nint a; int b; int c; int d;\n```\nk 世界世界世界世界世界世 l")
        typist = Typist(self, self.daemon.socket, "chat", "--presence-penalty", 0.5, "--quiet",
                        size=(24, 20))
        typist.expect(PROMPT)
        typist.type("\x1b[200~" + text + "\x1b[201~")
        typist.expect("世 l")
        typist.type("\r")
        shown = typist.expect(PROMPT).rpartition("\x1b[?2004l")[2].replace("\r", "")
        self.assertEqual(shown.partition("\x1b")[0].rpartition("\n")[0].strip("\n").split("\n"), [
            "aaaa bbbb cccc  dddd", "eeeeeeeeeeeeeeeeeeee", "eeee f", "  gggg hhhh iiii", "jjjj",
            "```c", "int a; int b; int c; int d;", "```", "k 世界世界世界世界世", "界世 l"])

    def test_chat_shows_reasoning_on_a_terminal(self):
        """Dim, and keeps it apart."""
        typist = Typist(self, self.daemon.socket, "chat", "--presence-penalty", 0.5)
        typist.ask("<think>because</think>Yes.")
        shown = typist.expect("prompt tokens cached").replace("\x1b[0m\x1b[2m", "")
        self.assertIn("\x1b[2mbecause\x1b[0m\r\n\r\nYes.", shown)
        typist.ask("/save " + str(self.folder / "saved"))
        typist.expect("saved to")
        messages = json.loads((self.folder / "saved").read_text())["messages"]
        self.assertEqual(messages[1], {"role": "assistant", "content": "Yes.",
                                       "reasoning_content": "because"})
        typist.expect(PROMPT)
        typist.type("\x04")
        self.assertEqual(typist.end()[1], 0)
