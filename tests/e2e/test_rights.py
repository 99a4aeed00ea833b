"""Who may do what: every operation of the protocol in every role."""

import grp

import harness
import roles
import wire
from harness import Case, Daemon, scaled
from test_embed import Embedder

PROMPT = b"The quick brown fox jumps over the lazy dog, again and again and again."
LONG = {**harness.RUNNING, "prompt": PROMPT}

# Who may: everybody, the owner of the request that it is about, or admins alone. Each with a body;
# NUMBER stands for the daemon's number of a request of USER's, OWN for a session of the role's own.
NUMBER, OWN = object(), object()
OPERATIONS = {
    "generate": ("user", {"prompt": PROMPT, "max_tokens": 1}),
    "cancel": ("owner", {"request": NUMBER}),
    "tokenize": ("user", {"text": b"a"}),
    "detokenize": ("user", {"ids": [5]}),
    "embed": ("user", {"prompt": "Hello"}),
    "render": ("user", {"chat": {"messages": [{"role": "user", "content": "Hi"}]}}),
    "get_status": ("user", {}),
    "list_requests": ("user", {}),
    "get_blocks": ("user", {"map": True}),
    "show_cache": ("user", {}),
    "clear_cache": ("user", {}),
    "pin_cache": ("admin", {"prompt": PROMPT}),
    "explain": ("owner", {"request": NUMBER}),
    "create_session": ("user", {"name": OWN}),
    "fork_session": ("user", {"name": OWN, "new_name": "copy"}),
    "rewind_session": ("user", {"name": OWN, "turns": 0}),
    "list_sessions": ("user", {}),
    "show_session": ("user", {"name": OWN}),
    "delete_session": ("user", {"name": OWN}),
    "drain": ("admin", {"drain_timeout_ms": 600000}),
    "resume": ("admin", {}),
    "reload": ("admin", {}),
    "set_log_level": ("admin", {"level": "debug"}),
    "sleep": ("admin", {}),
    "wake": ("admin", {}),
    "trace": ("admin", {"duration_ms": 1}),
    "shutdown": ("admin", {}),
}


class Rights(Case):
    @classmethod
    def setUpClass(cls):
        roles.need_root()
        cls.group = roles.group_name()
        cls.gid = grp.getgrnam(cls.group).gr_gid

    def roles(self):
        """(role, whether it is an admin, how to connect) of everybody there is."""
        yield "owner", False, lambda d: roles.connect(d, roles.USER)
        yield "other user", False, lambda d: roles.connect(d, roles.OTHER)
        yield "root", True, lambda d: d.connect()
        yield "member by first group", True, lambda d: roles.connect(d, roles.OTHER, gid=self.gid)
        yield "member", True, lambda d: roles.connect(d, roles.OTHER, groups=[5, self.gid])
        yield "admins' socket", True, lambda d: roles.connect(
            d, roles.OTHER, groups=[self.gid], path=d.folder / "admin.sock")

    def daemon(self, *options):
        folder = self.temporary_folder()
        return Daemon(f"daemon.admin_group={self.group}",
                      f"daemon.admin_socket={folder / 'admin.sock'}",
                      "daemon.admin_socket_mode=0660", "daemon.drain_timeout_s=1", *options,
                      folder=folder, model=Embedder.folder(self))

    def allowed(self, w, op, body):
        """Asks; False where it is denied. Any other error is a failure."""
        id_ = w.new_id()
        w.send(id_, **{op: body})
        while True:
            reply = w.receive()
            if reply.get("id") == id_ and "delta" not in reply:
                break
        error = reply.get("error")
        if error and error["code"] == "ERROR_DENIED":
            self.assertFalse(error["retryable"])
            return False
        self.assertIsNone(error, (op, error))
        return True

    def test_every_operation_has_its_place_here(self):
        """An operation that is new in the schema must be tried here, too."""
        named = {f.name for f in wire.MESSAGES["ClientFrame"]} - {"id", "hello"}
        self.assertEqual(named, set(OPERATIONS))

    def test_every_operation_in_every_role(self):
        """Allowed where it should be, denied where it should not, and nothing else."""
        for op in OPERATIONS:
            d = None
            for role, admin, connect in self.roles():
                if d is None or d.process.poll() is not None:
                    d = self.daemon()
                    self.addCleanup(d.close)
                with self.subTest(op=op, role=role), connect(d) as w, \
                        roles.connect(d, roles.USER) as owner:
                    self.check(d, op, role, admin, w, owner)
            if d.process.poll() is None:
                self.assertEqual(d.terminate(), 0)

    def check(self, d, op, role, admin, w, owner):
        who, body = OPERATIONS[op]
        expected = who == "user" or admin or (who == "owner" and role == "owner")
        if NUMBER in body.values():
            body = {**body, "request": self.start_long(owner)}
        if OWN in body.values():
            body = {**body, "name": "own"}
            w.ask(delete_session={"name": "own"})
            w.ask(delete_session={"name": "copy"})
            if op != "create_session":
                w.ask(create_session={"name": "own"})
        self.assertEqual(self.allowed(w, op, body), expected)
        if op == "drain" and expected:
            self.assertTrue(self.allowed(w, "resume", {}))
        if op == "shutdown" and expected:
            self.assertEqual(d.process.wait(timeout=scaled(20, 60)), 0)

    def test_refusals_say_who_may(self):
        """Who may not is told who may, in words that hold for nvllmctl's commands as well."""
        with self.daemon() as d, roles.connect(d, roles.USER) as w:
            for op, (who, body) in OPERATIONS.items():
                if who != "admin":
                    continue
                message = w.ask(**{op: body})["error"]["message"]
                self.assertTrue(message.startswith("only administrators may do that: root, "), message)
                for others in "daemon's user", "daemon.admin_group", "daemon.admin_socket":
                    self.assertIn(others, message)
                self.assertNotIn(op, message)

    def start_long(self, w):
        """A request of its own, running; the daemon's number of it."""
        w.send(w.new_id(), generate=LONG)
        w.receive()
        id_ = w.new_id()
        w.send(id_, list_requests={})
        while True:
            reply = w.receive()
            if reply["id"] == id_:
                (info,) = reply["request_list"]["requests"]
                return info["request"]

    def test_what_users_see(self):
        """Users see their own requests alone; admins see all, with who and which process."""
        with self.daemon() as d, roles.connect(d, roles.USER) as w, \
                roles.connect(d, roles.OTHER) as other, d.connect() as root:
            number = self.start_long(w)
            self.assertEqual(other.ask(list_requests={})["request_list"].get("total", 0), 0)
            seen = root.ask(list_requests={})["request_list"]
            self.assertEqual(seen["total"], 1)
            (info,) = seen["requests"]
            self.assertEqual((info["request"], info["uid"]), (number, roles.USER))
            self.assertGreater(info["pid"], 0)
            blocks = other.ask(get_blocks={})["block_report"]
            self.assertEqual((blocks["uids"], blocks["requests"]), ([], []))
            self.assertGreater(blocks["blocks"]["used"], 0)  # sums are everybody's
            self.assertEqual(other.ask(show_cache={})["cache_report"]["prefixes"], [])

    def test_whose_blocks_a_map_shows(self):
        """A user's map tells their own blocks, used or cached, and of others' not even that; those of
        admins tell all."""
        def letters(who):
            while True:  # deltas come between
                reply = who.receive()
                if "block_report" in reply:
                    return {chr(c) for c in reply["block_report"]["map"]}

        with self.daemon() as d, roles.connect(d, roles.USER) as w, \
                roles.connect(d, roles.OTHER) as other, d.connect() as root:
            self.assertIsNone(other.generate(prompt=PROMPT, max_tokens=2).error)
            self.assertIsNone(w.generate(prompt=PROMPT, max_tokens=2).error)
            self.start_long(w)
            for who, seen in (w, {"u", "o", "f"}), (other, {"c", "o", "f"}), (root, {"u", "c", "f"}):
                who.send(1000, get_blocks={"map": True})
                self.assertEqual(letters(who), seen)

    def test_others_words_in_a_cache_of_all(self):
        """Explain tells users how much of a prompt is cached, and no more; admins the rest."""
        cached = PROMPT * 3
        other = cached[:len(PROMPT) + 20] + b"X"
        with self.daemon("cache.scope=all") as d, roles.connect(d, roles.USER) as w, \
                d.connect() as root:
            self.assertIsNone(w.generate(prompt=cached, max_tokens=1).error)
            told, all_ = (c.ask(explain={"prompt": other})["explanation"] for c in (w, root))
            self.assertEqual(told["cached_tokens"], all_["cached_tokens"])
            self.assertEqual(told["same_tokens"], told["cached_tokens"])
            self.assertGreater(all_["same_tokens"], all_["cached_tokens"])
            self.assertFalse(told.get("next_id") or told.get("other_ids"))
            self.assertTrue(all_["next_id"] and all_["other_ids"])
            self.assertRegex(told["text"], r"^\d+ of \d+ tokens are cached$")

    def test_cancel_by_number(self):
        """Cancelling one's own by number from another connection, and what is over."""
        with self.daemon() as d, roles.connect(d, roles.USER) as w, \
                roles.connect(d, roles.USER) as w2:
            number = self.start_long(w)
            self.assertTrue(w2.ask(cancel={"request": number})["cancelled"]["found"])
            answer = w.collect([1])[1]
            self.assertEqual(answer.choices[0].reason, "FINISH_CANCELLED")
            self.assertFalse(w2.ask(cancel={"request": number})["cancelled"].get("found", False))
            error = w2.ask(explain={"request": number})["error"]
            self.assertEqual((error["code"], error["field"]), ("ERROR_INVALID", "request"))

    def test_high_priority_is_for_admins(self):
        """High goes before everybody's share: users may ask for normal and low alone."""
        with self.daemon() as d:
            for role, admin, connect in self.roles():
                with self.subTest(role=role), connect(d) as w:
                    for level in "LOW", "NORMAL", "HIGH":
                        error = w.generate(prompt=PROMPT, max_tokens=1,
                                           priority=f"PRIORITY_{level}").error
                        if admin or level != "HIGH":
                            self.assertIsNone(error, level)
                            continue
                        self.assertEqual((error["code"], error["field"]),
                                         ("ERROR_DENIED", "priority"))
                        self.assertIn("administrators", error["message"])

    def test_clearing_all_is_for_admins(self):
        """One's own cache may be cleared by everybody, that of all by admins."""
        with self.daemon() as d, roles.connect(d, roles.USER) as w, d.connect() as root:
            self.assertFalse(self.allowed(w, "clear_cache", {"all": True}))
            self.assertTrue(self.allowed(w, "clear_cache", {"all": False}))
            self.assertTrue(self.allowed(root, "clear_cache", {"all": True}))
