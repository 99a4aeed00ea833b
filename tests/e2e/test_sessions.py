"""Sessions: conversations that the daemon holds, as exact tokens, for their users alone."""

import contextlib
import os
import random
import shutil
import time

import roles
import wire
from harness import MODEL, Case, Daemon, at_once, scaled

BLOCK = 16
SYSTEM = " ".join(f"Rule {i}: count, add and spell with care." for i in range(1, 400))


def user(text):
    return {"role": "user", "content": text}


# Special tokens in the middle of an answer are not in its text, and so not in the next prompt.
IM_END = 1993
PLAIN = [{"id": i, "bias": -100} for i in range(1990, 2048) if i != IM_END]
ENDLESS = {"temperature": 1, "seed": 1, "logit_bias": PLAIN + [{"id": IM_END, "bias": -100}]}


def turn(w, name, *texts, max_tokens=24, seed=1, **request):
    """A turn; its answer."""
    return w.generate(session=name, chat={"messages": [user(t) for t in texts]},
                      max_tokens=max_tokens,
                      sampling={"temperature": 1, "seed": seed, "logit_bias": PLAIN}, **request)


def usage(answer):
    u = answer.done["usage"]
    return u["prompt_tokens"], u.get("cached_tokens", 0), u["completion_tokens"]


def info(w, name):
    return w.ask(show_session={"name": name})["session_contents"]["info"]


def ids(w, name):
    return w.ask(show_session={"name": name, "ids": True})["session_contents"]["token_ids"]


def names(w, **options):
    return [s["name"] for s in w.ask(list_sessions=options)["session_list"]["sessions"]]


def create(w, name, **chat):
    return w.ask(create_session={"name": name, "chat": chat})


def system(text=SYSTEM):
    return [{"role": "system", "content": text}]


class Base(Case):
    def refused(self, reply, code, field=None, says=None):
        error = reply.error if hasattr(reply, "error") else reply.get("error")
        self.assertIsNotNone(error, reply)
        self.assertEqual(error["code"], f"ERROR_{code}", error)
        if field is not None:
            self.assertEqual(error.get("field", ""), field, error)
        if says:
            self.assertRegex(error["message"], says)


class Sessions(Base):
    def test_fifty_turns(self):
        """Each turn begins with the very tokens that were said, finds them cached to the last block,
        and computes no more than what is new and a block."""
        rng = random.Random(3)
        with Daemon() as d, d.connect() as w:
            create(w, "long", messages=system(SYSTEM[:scaled(None, 2000)]))
            said, before = [], 0
            for i in range(scaled(50, 8)):
                a = turn(w, "long", f"Spell lion, then {rng.randrange(1000)} + {i}.", seed=i)
                self.assertIsNone(a.error)
                prompt, cached, completed = usage(a)
                now = ids(w, "long")
                self.assertEqual(now[:len(said)], said, i)
                self.assertEqual(now[prompt:], a.choices[0].ids, i)
                self.assertEqual(len(now), prompt + completed)
                if i > 0:
                    self.assertGreaterEqual(cached, before - BLOCK, i)
                    self.assertGreaterEqual(cached, scaled(0.995, 0.9) * before, i)
                    self.assertLessEqual(prompt - cached, prompt - before + BLOCK, i)
                said, before = now, len(now)
            self.assertEqual(info(w, "long")["turns"], scaled(50, 8))

    def test_same_tokens_as_ids(self):
        """A turn gives what a request of the same ids gives."""
        with Daemon() as d, d.connect() as w:
            create(w, "a")
            for i in range(3):
                a = turn(w, "a", f"What is {i} + 2?", seed=i)
                n = usage(a)[0]
                plain = w.generate(prompt_ids={"ids": ids(w, "a")[:n]}, max_tokens=24,
                                   sampling={"temperature": 1, "seed": i, "logit_bias": PLAIN})
                self.assertEqual(plain.choices[0].ids, a.choices[0].ids)

    def test_sampled_tokens_are_kept(self):
        """Tokens that the tokenizer would not make of their text stay as they were sampled."""
        with Daemon() as d, d.connect() as w:
            create(w, "a")
            for i in range(40):
                a = w.generate(session="a", chat={"messages": [user("Tell me a story.")]},
                               max_tokens=20,
                               sampling={"temperature": 8, "seed": i, "logit_bias": PLAIN})
                got = a.choices[0].ids
                text = b"".join(w.ask(tokenize={"ids": got})["tokens"]["tokens"])
                with contextlib.suppress(UnicodeDecodeError):
                    if w.ask(tokenize={"text": text.decode()})["tokens"]["ids"] != got:
                        break
                w.ask(rewind_session={"name": "a", "turns": 0})
            else:
                self.fail("every answer was as the tokenizer has it")
            before = ids(w, "a")
            turn(w, "a", "Go on.")
            self.assertEqual(ids(w, "a")[:len(before)], before)

    def test_fork_and_rewind(self):
        """A copy and what was taken back go on as the original did at that turn."""
        with Daemon() as d, d.connect() as w:
            create(w, "a", messages=system("Be brief."))
            first = [turn(w, "a", f"Spell {word}.", seed=i) for i, word in
                     enumerate(["lion", "bear", "wolf"])]
            before = ids(w, "a")
            fork = w.ask(fork_session={"name": "a", "new_name": "b", "turns": 1})["session_info"]
            self.assertEqual((fork["name"], fork["turns"], fork["messages"]), ("b", 1, 3))
            again = turn(w, "b", "Spell bear.", seed=1)
            self.assertEqual(again.choices[0].ids, first[1].choices[0].ids)
            self.assertEqual(usage(again)[0], usage(first[1])[0])
            self.assertEqual(ids(w, "a"), before)
            back = w.ask(rewind_session={"name": "a", "turns": 2})["session_info"]
            self.assertEqual((back["turns"], back["messages"]), (2, 5))
            again = turn(w, "a", "Spell wolf.", seed=2)
            self.assertEqual(again.choices[0].ids, first[2].choices[0].ids)
            self.assertEqual(ids(w, "a"), before)
            w.ask(rewind_session={"name": "a", "turns": 0})
            self.assertEqual(info(w, "a")["messages"], 1)
            self.assertEqual(info(w, "a").get("tokens", 0), 0)
            self.refused(w.ask(rewind_session={"name": "a", "turns": 1}), "INVALID", "turns",
                         "more than it has")
            self.refused(w.ask(rewind_session={"name": "a"}), "INVALID", "turns")
            self.refused(w.ask(fork_session={"name": "a", "new_name": "b"}), "INVALID", "new_name",
                         "already")

    def test_partial_answers(self):
        """What was generated before the maximum, a cancel or the client's end stays; a turn without
        a token, or one that is refused, leaves the session as it was."""
        with Daemon() as d, d.connect() as w:
            create(w, "a")
            a = turn(w, "a", "Tell me a story.", max_tokens=3)
            self.assertEqual((a.choices[0].reason, info(w, "a")["turns"]), ("FINISH_LENGTH", 1))
            long = {"session": "a", "chat": {"messages": [user("Another.")]}, "stream": True,
                    "sampling": ENDLESS}
            w.send(500, generate=long)
            got, reply = [], {}
            while "done" not in reply:
                reply = w.receive()
                if "delta" in reply and not got:
                    w.send(501, cancel={"target": 500})
                got += reply.get("delta", {}).get("token_ids", [])
            self.assertTrue(got)
            self.assertEqual(info(w, "a")["turns"], 2)
            self.assertEqual(ids(w, "a")[-len(got):], got)
            with d.connect() as other:
                other.send(1, generate=long)
                while "delta" not in other.receive():
                    pass
            d.wait_idle()
            self.assertEqual(info(w, "a")["turns"], 3)
            before = ids(w, "a")
            self.assertIsNone(turn(w, "a", "And?", seed=5).error)
            self.assertEqual(ids(w, "a")[:len(before)], before)
            before = ids(w, "a"), info(w, "a")["turns"]
            self.refused(turn(w, "a", "x", max_tokens=40000), "TOO_LONG")
            self.refused(w.generate(session="a", chat={"messages": [{"role": "pope"}]}), "INVALID")
            self.refused(turn(w, "a", "x", response_format={"regex": "("}), "INVALID")
            a = turn(w, "a", "x" * 20000, deadline_ms=1)
            self.assertEqual(a.choices[0].reason, "FINISH_DEADLINE")
            self.assertEqual((ids(w, "a"), info(w, "a")["turns"]), before)

    def test_one_turn_at_a_time(self):
        """Of two clients one has its turn, the other is told to try again; so is who would change
        it meanwhile."""
        with Daemon() as d, d.connect() as w, d.connect() as other:
            create(w, "a")
            w.send(1000, generate={"session": "a", "chat": {"messages": [user("Go.")]},
                                   "stream": True, "max_tokens": 2000, "sampling": ENDLESS})
            while "delta" not in w.receive():
                pass
            busy = turn(other, "a", "Me, too.")
            self.refused(busy, "BUSY", "session", "one at a time")
            self.assertTrue(busy.error["retryable"])
            self.refused(other.ask(rewind_session={"name": "a", "turns": 0}), "BUSY", "name")
            self.refused(other.ask(delete_session={"name": "a"}), "BUSY", "name")
            self.assertTrue(info(other, "a")["busy"])
            forked = other.ask(fork_session={"name": "a", "new_name": "b"})["session_info"]
            self.assertEqual(forked.get("turns", 0), 0)
            self.assertIsNone(turn(other, "b", "Me, too.").error)
            w.send(1001, cancel={"target": 1000})
            d.wait_idle()
            self.assertIsNone(turn(other, "a", "Now me.").error)

    def test_many_clients(self):
        """Many at once: each turn is there, once, in some order."""
        with Daemon() as d, d.connect() as w:
            create(w, "a")
            turns = scaled(6, 2)

            def talk(i):
                done = 0
                with d.connect() as own:
                    while done < turns:
                        a = turn(own, "a", f"Client {i} says {done}.", max_tokens=4)
                        if a.error:
                            self.refused(a, "BUSY")
                            time.sleep(0.01)
                        else:
                            done += 1

            at_once(talk, range(4))
            chat = w.ask(show_session={"name": "a"})["session_contents"]["chat"]
            texts = [m["content"].decode() for m in chat["messages"] if m["role"] == "user"]
            self.assertEqual(sorted(texts), sorted(f"Client {i} says {k}."
                                                   for i in range(4) for k in range(turns)))
            for i in range(4):
                self.assertEqual([t for t in texts if t.startswith(f"Client {i}")],
                                 [f"Client {i} says {k}." for k in range(turns)])

    def test_tools_and_thinking(self):
        """What a session was created with is in each of its prompts."""
        with Daemon() as d, d.connect() as w:
            create(w, "a", messages=system("Be brief."), enable_thinking=False)
            a = turn(w, "a", "What is 17 + 25?")
            rendered = w.ask(render={"chat": {"messages": system("Be brief.") + [
                user("What is 17 + 25?")], "enable_thinking": False}})["text"]["text"]
            self.assertEqual(w.ask(detokenize={"ids": ids(w, "a")[:usage(a)[0]]})["text"]["text"],
                             rendered)
            for chat in ({"tools": [b"{}"]}, {"enable_thinking": True}, {"documents": [b"{}"]},
                         {"chat_template_kwargs": b"{}"}, {"add_generation_prompt": True}):
                self.refused(w.generate(session="a", chat={"messages": [user("x")], **chat}),
                             "INVALID", "chat")
            self.refused(create(w, "b", add_generation_prompt=True), "INVALID",
                         "chat.add_generation_prompt")

    def test_refused(self):
        """What is wrong is named; what goes with a session is in the manual."""
        with Daemon() as d, d.connect() as w:
            for name in "", ".", "-a", "a/b", "a b", "..", "\x1b[2J", "é", "a" * 65, "a\n", "_":
                self.refused(create(w, name), "INVALID", "name", "letters, digits")
            self.refused(w.ask(create_session={}), "INVALID", "name")
            for name in "a" * 64, "0", "A_-.b":
                self.assertEqual(create(w, name)["session_info"]["name"], name)
            self.refused(create(w, "0"), "INVALID", "name", "already")
            self.refused(create(w, "b", messages=[{"role": "pope"}]), "INVALID", None, "pope")
            self.refused(create(w, "b", messages=[{"content": b"x"}]), "INVALID",
                         "chat.messages[0].role")
            self.refused(create(w, "b", messages=[{"role": "user", "content": b"\xff"}]),
                         "INVALID", "chat.messages[0].content", "UTF-8")
            self.refused(turn(w, "nobody", "x"), "INVALID", "session", "no session")
            for op in "fork_session", "rewind_session", "show_session", "delete_session":
                for body in {}, {"name": "nobody"}, {"name": "x" * 100000}:
                    self.refused(w.ask(**{op: body}), "INVALID", "name")
            self.refused(w.generate(session="0", prompt="x"), "INVALID", "session")
            self.refused(w.generate(session="0", prompt_ids={"ids": [1]}), "INVALID", "session")
            self.refused(turn(w, "0", "x", n=2), "INVALID", "n")
            self.refused(turn(w, "0", "x", raw_text=True), "INVALID", "raw_text")
            self.refused(turn(w, "0", "x", keep_special=True), "INVALID", "keep_special")
            self.refused(turn(w, "0"), "INVALID", "chat.messages")
            create(w, "asked", messages=[user("What is 1 + 1?")])
            self.assertIsNone(turn(w, "asked").error)
            self.refused(turn(w, "asked"), "INVALID", "chat.messages")

    def test_drain(self):
        """Changes are new work: they neither keep a draining daemon alive nor are lost with it."""
        with Daemon() as d, d.connect() as w:
            create(w, "a")
            self.assertIsNone(turn(w, "a", "Hi").error)
            w.ask(drain={})
            for change in ({"rewind_session": {"name": "a", "turns": 0}},
                           {"delete_session": {"name": "a"}}):
                self.refused(w.ask(**change), "UNAVAILABLE")
            self.assertEqual(info(w, "a")["turns"], 1)
            w.ask(resume={})
            self.assertIn("session_info", w.ask(delete_session={"name": "a"}))

    def test_limits(self):
        """Sessions of a user, tokens of one and bytes of all; each refusal says what to do."""
        with Daemon("limits.sessions_per_uid=3", "limits.session_tokens=200",
                    "limits.session_bytes_per_uid=40K") as d, d.connect() as w:
            for i in range(3):
                create(w, f"s{i}")
            full = create(w, "s3")
            self.refused(full, "INVALID", None, "delete one")
            self.assertEqual((full["error"]["limit"], full["error"]["limit_value"]),
                             ("limits.sessions_per_uid", 3))
            self.refused(w.ask(fork_session={"name": "s0", "new_name": "s3"}), "INVALID")
            w.ask(delete_session={"name": "s1"})
            self.assertNotIn("error", create(w, "s3"))
            long = turn(w, "s0", "word " * 300)
            self.refused(long, "TOO_LONG")
            self.assertEqual(long.error["limit"], "limits.session_tokens")
            self.assertIsNone(turn(w, "s0", "hello").error)
            w.ask(delete_session={"name": "s3"})
            large = create(w, "s3", messages=system("x" * 50000))
            self.refused(large, "INVALID", None, "delete or rewind one")
            self.assertEqual(large["error"]["limit"], "limits.session_bytes_per_uid")
            self.refused(turn(w, "s0", "y" * 50000), "INVALID")
        with Daemon("limits.session_bytes_per_uid=32K") as d, d.connect() as w:
            create(w, "long")
            self.assertIsNone(turn(w, "long", "word " * 1200).error)
            self.refused(w.ask(fork_session={"name": "long", "new_name": "f"}), "INVALID")
            self.assertNotIn("error", w.ask(fork_session={"name": "long", "new_name": "f",
                                                          "turns": 0}))
        with Daemon("limits.session_bytes_per_uid=32K") as d, d.connect() as w, \
                d.connect() as other:
            create(w, "a")
            create(w, "b")
            w.send(1000, generate={"session": "a", "chat": {"messages": [user("word " * 3500)]},
                                   "stream": True, "max_tokens": 2000, "sampling": ENDLESS})
            while not info(other, "a").get("busy"):
                pass
            self.refused(turn(other, "b", "word " * 3500), "INVALID", None, "delete or rewind one")
            w.send(1001, cancel={"target": 1000})
            while info(other, "a").get("busy"):
                pass
            other.ask(rewind_session={"name": "a", "turns": 0})
            self.assertNotIn("error", create(other, "c", messages=system("word " * 5000)))
        with Daemon("limits.session_bytes=20K") as d, d.connect() as w:
            self.refused(create(w, "a", messages=system("x" * 30000)), "INVALID", None,
                         "sessions of all users")

    def test_many(self):
        """As many as may be, listed with the last used one first, in little time."""
        n = scaled(2000, 100)
        with Daemon(f"limits.sessions_per_uid={n}") as d, d.connect() as w:
            for i in range(n):
                self.assertNotIn("error", create(w, f"s{i}"))
            self.assertEqual(names(w), [f"s{i}" for i in reversed(range(n))])
            turn(w, "s7", "Hi")
            self.assertEqual(names(w, limit=2), ["s7", f"s{n - 1}"])
            self.assertEqual(w.ask(list_sessions={"limit": 2})["session_list"]["total"], n)

    def test_other_users(self):
        """Others neither see nor touch a session, and have names of their own; admins list and
        delete all."""
        roles.need_root()
        with Daemon() as d, roles.connect(d, roles.USER) as w, \
                roles.connect(d, roles.OTHER) as other, d.connect() as root:
            create(w, "mine")
            turn(w, "mine", "A secret.")
            for c in other, root:
                self.assertEqual(names(c), [])
                self.refused(turn(c, "mine", "x"), "INVALID", "session", "no session")
                for op in "fork_session", "rewind_session", "show_session", "delete_session":
                    self.refused(c.ask(**{op: {"name": "mine"}}), "INVALID", "name", "no session")
            self.refused(other.ask(list_sessions={"all": True}), "DENIED", "all")
            for uid in roles.USER, 12345:
                self.refused(other.ask(delete_session={"name": "mine", "uid": uid}), "DENIED", "uid")
            create(other, "mine")
            self.assertEqual(info(other, "mine").get("turns", 0), 0)
            self.assertEqual(info(w, "mine")["turns"], 1)
            all_ = root.ask(list_sessions={"all": True})["session_list"]["sessions"]
            self.assertEqual([(s["name"], s["uid"]) for s in all_],
                             [("mine", roles.OTHER), ("mine", roles.USER)])
            turn(w, "mine", "Another.")
            last = root.ask(list_sessions={"all": True, "limit": 1})["session_list"]
            self.assertEqual((last["sessions"][0]["uid"], last["total"]), (roles.USER, 2))
            self.refused(root.ask(delete_session={"name": "no", "uid": roles.USER}), "INVALID")
            self.assertIn("session_info",
                          root.ask(delete_session={"name": "mine", "uid": roles.USER}))
            self.assertEqual(names(w), [])
            self.assertEqual(names(other), ["mine"])

    def test_idle_ones_go_down_first(self):
        """The blocks of a session that rests leave the device before those of one that goes on;
        both are found again."""
        with Daemon("cache.kv_memory=16M", "cache.host_memory=64M",
                    "scheduler.max_seq_len=800") as d, d.connect() as w:
            for name in "idle", "used":
                create(w, name, messages=system(name + " " + SYSTEM[:900]))
                turn(w, name, "Hi")
            for i in range(6):
                create(w, f"x{i}", messages=system(str(i) + SYSTEM[:900]))
                turn(w, f"x{i}", "Hi")
                turn(w, "used", "Hi", max_tokens=2)
            d.wait_idle()
            tiers = {}
            for name in "idle", "used":
                e = w.ask(explain={"prompt_ids": {"ids": ids(w, name)}})["explanation"]
                tiers[name] = e.get("host_tokens", 0), e["cached_tokens"]
            self.assertGreater(tiers["idle"][0], tiers["idle"][1] // 2, tiers)
            self.assertEqual(tiers["used"][0], 0, tiers)


class Files(Base):
    def setUp(self):
        super().setUp()
        self.folder = self.temporary_folder()
        self.options = [f"cache.folder={self.folder}", "cache.disk=64M"]

    def daemon(self, *options, **more):
        return Daemon(*self.options, *options, **more)

    def store(self):
        (folder,) = self.folder.glob("sessions-*")
        return folder

    def files(self):
        return sorted(f.name for f in self.store().iterdir())

    def test_kill(self):
        """After kill -9 the list and the ids are as written with the last turn, and the next turn
        has the tokens that it has without."""
        words = ["lion", "bear", "wolf", "fox"]
        with Daemon() as d, d.connect() as w:
            create(w, "a", messages=system("Be brief."), enable_thinking=False)
            undisturbed = [turn(w, "a", f"Spell {word}.", seed=i).choices[0].ids
                           for i, word in enumerate(words)]
            expected = ids(w, "a")
        seen = None
        for i, word in enumerate(words):
            with self.daemon() as d, d.connect() as w:
                if i == 0:
                    create(w, "a", messages=system("Be brief."), enable_thinking=False)
                    create(w, "b")
                else:
                    self.assertEqual((w.ask(list_sessions={})["session_list"], ids(w, "a")), seen)
                a = turn(w, "a", f"Spell {word}.", seed=i)
                self.assertEqual(a.choices[0].ids, undisturbed[i])
                if i == 2:
                    w.ask(fork_session={"name": "a", "new_name": "c", "turns": 1})
                    w.ask(rewind_session={"name": "c", "turns": 0})
                    w.ask(delete_session={"name": "b"})
                seen = w.ask(list_sessions={})["session_list"], ids(w, "a")
                d.kill()
        self.assertEqual(seen[1], expected)
        self.assertEqual([s["name"] for s in seen[0]["sessions"]], ["a", "c"])
        self.assertEqual(self.files(), [f"{os.getuid()}-a", f"{os.getuid()}-c"])
        for path in self.store(), *self.store().iterdir():
            self.assertEqual(path.stat().st_mode & 0o077, 0)

    def test_cached_after_a_stop(self):
        """A stop leaves the blocks of a session on disk: the next daemon's turn finds them."""
        with self.daemon() as d, d.connect() as w:
            create(w, "a", messages=system(SYSTEM[:scaled(6000, 1000)]))
            turn(w, "a", "Hi")
            before = len(ids(w, "a"))
        with self.daemon() as d, d.connect() as w:
            prompt, cached, _ = usage(turn(w, "a", "Hi again"))
            self.assertGreaterEqual(cached, before - 2 * BLOCK)
            self.assertLess(prompt - cached, prompt - before + 2 * BLOCK)

    def test_killed_at_any_time(self):
        """kill -9 in the middle of turns: each session is as some turn has left it, and what a
        client was told is there."""
        rng = random.Random(7)
        told = {}
        for _ in range(scaled(8, 2)):
            with self.daemon() as d:
                def talk(i):
                    name = f"s{i}"
                    with d.connect() as w:
                        if name not in told:
                            create(w, name)  # unless it was, and the kill came before it was told
                            told[name] = 0
                        self.assertIn(info(w, name).get("turns", 0) - told[name], (0, 1))
                        while True:
                            turn(w, name, "Go on.", max_tokens=4)
                            told[name] = info(w, name)["turns"]

                def until_killed(i):
                    try:
                        talk(i)
                    except (OSError, wire.Closed):
                        pass

                def kill(_):
                    time.sleep(0.2 + rng.random() / 4)
                    d.kill()

                at_once(lambda i: kill(i) if i == 3 else until_killed(i), range(4))
                self.assertNotIn("session_file", d.log())

    def test_damaged(self):
        """Flipped, cut and strange files are named and set aside, once, and nothing else is lost."""
        rng = random.Random(5)
        with self.daemon() as d, d.connect() as w:
            create(w, "good", messages=system("Be brief."))
            turn(w, "good", "Hi")
            expected = ids(w, "good")
        good = (self.store() / f"{os.getuid()}-good").read_bytes()

        def flipped():
            data = bytearray(good)
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(data)

        damages = [flipped() for _ in range(30)] + [
            good[:n] for n in (0, 1, 15, 31, 32, 33, len(good) - 1)] + [
            good + b"x", b"x" * 100, good[:14] + b"9" + good[15:]]
        for i, data in enumerate(damages):
            (self.store() / f"0-bad{i}").write_bytes(data)
        (self.store() / "0-copy").write_bytes(good)
        (self.store() / "1-folder").mkdir()
        (self.store() / "new").write_bytes(b"half")
        with self.daemon() as d, d.connect() as w:
            self.assertEqual(names(w), ["good"])
            self.assertEqual(ids(w, "good"), expected)
            self.assertIsNone(turn(w, "good", "Hi again").error)
            for i in range(len(damages)):
                self.assertRegex(d.log(), rf"0-bad{i}: .*; it is now called damaged-0-bad{i}")
            self.assertIn(f"0-copy: it was written as {os.getuid()}-good", d.log())
        with self.daemon() as d, d.connect() as w:
            self.assertEqual(names(w), ["good"])
            self.assertNotIn("session_file", d.log())

    def test_unreadable(self):
        """A file that cannot be opened now is named, and stays for the next start."""
        with self.daemon() as d, d.connect() as w:
            create(w, "a")
        (self.store() / "0-loop").symlink_to("0-loop")
        with self.daemon() as d, d.connect() as w:
            self.assertEqual(names(w), ["a"])
            self.assertRegex(d.log(), "0-loop: .*; the session is not there before the next start")
        self.assertIn("0-loop", self.files())

    def test_of_one_model(self):
        """Another model has sessions of its own; the first finds its own again, as does a copy."""
        model, copy = self.folder / "model", self.folder / "copy"
        for folder in model, copy:
            shutil.copytree(MODEL, folder)
            os.utime(folder / "model.safetensors")
        with (model / "model.safetensors").open("r+b") as f:
            begin = 8 + int.from_bytes(f.read(8), "little")
            f.seek(begin)
            bit = f.read(1)[0] ^ 1
            f.seek(begin)
            f.write(bytes([bit]))
        for m, expected in (MODEL, []), (model, []), (MODEL, ["a"]), (copy, ["a"]):
            with self.daemon(model=m) as d, d.connect() as w:
                self.assertEqual(names(w), expected)
                if m == MODEL and not expected:
                    create(w, "a")
        folder, other = self.folder.glob("sessions-*")
        (file,) = [*folder.iterdir(), *other.iterdir()]
        target = other if file.parent == folder else folder
        shutil.copy(file, target / file.name)
        for m in MODEL, model:
            with self.daemon(model=m) as d, d.connect() as w:
                self.assertEqual(names(w), ["a"] if m == MODEL else [])
                if m == model:
                    self.assertIn("it is of another model", d.log())

    def test_not_writable(self):
        """Files that cannot be written are named, and the sessions go on in memory."""
        with self.daemon() as d, d.connect() as w:
            create(w, "a")
            shutil.rmtree(self.store())
            self.assertIsNone(turn(w, "a", "Hi").error)
            self.assertEqual(info(w, "a")["turns"], 1)
            self.assertRegex(d.log(), "session_not_saved.*cannot write .*: No such file")

    def test_copies_are_charged(self):
        """What waits to be written counts as the memory of a request; what has not changed is not
        written."""
        with self.daemon("limits.request_bytes_per_uid=64K") as d, d.connect() as w:
            large = create(w, "a", messages=system("x" * 80000))
            self.refused(large, "TOO_LONG")
            self.assertEqual(large["error"]["limit"], "limits.request_bytes_per_uid")
            create(w, "a", messages=system("x" * 2000))
            turn(w, "a", "Hi")
            file = self.store() / f"{os.getuid()}-a"
            before = file.stat().st_ino, file.stat().st_mtime_ns
            self.assertEqual(w.ask(rewind_session={"name": "a", "turns": 1})["session_info"],
                             info(w, "a"))
            self.assertEqual((file.stat().st_ino, file.stat().st_mtime_ns), before)

    def test_no_cancel_while_written(self):
        """What is done, and only waits for its file, is no longer there to be cancelled."""
        with self.daemon() as d, d.connect() as w:
            for i in range(0, 20, 2):
                w.send(1000 + i, create_session={"name": f"s{i}"})
                w.send(1001 + i, cancel={"target": 1000 + i})
            for _ in range(20):
                got = w.receive()
                self.assertNotIn("error", got)
                self.assertFalse(got.get("cancelled", {}).get("found", False), got)

    def test_one_process(self):
        """A second daemon does not use the folder of the first: it says so, and has sessions in
        memory."""
        with self.daemon() as d, d.connect() as w:
            create(w, "a")
            with self.daemon() as second, second.connect() as w2:
                self.assertRegex(second.log(), "sessions_in_memory.*another process uses it")
                create(w2, "b")
            self.assertEqual(self.files(), [f"{os.getuid()}-a"])


if __name__ == "__main__":
    import harness
    harness.main()
