#!/usr/bin/env python3
"""Random response formats and texts, decided by other programs: the oracle of engine/grammar.

format_oracle.py --n N [--seed S] NVLLMD MODEL             regular expressions beside Python's re
format_oracle.py --n N [--seed S] --pcre2 NVLLMD MODEL     the same beside PCRE2
format_oracle.py --n N [--seed S] --grammars NVLLMD MODEL  grammars beside the recogniser below
format_oracle.py --n N [--seed S] --schemas NVLLMD MODEL   JSON Schemas beside jsonschema

N is how many formats; each is tried with some 20 texts. Exits with 77 where the other program is
missing."""
import argparse
import ctypes
import ctypes.util
import json
import random
import re
import signal
import subprocess
import sys
import warnings
import weakref

try:
    from re import _parser as parser
except ImportError:  # before Python 3.11
    import sre_parse as parser

warnings.simplefilter("ignore")  # of re, about sets inside of sets

BATCH = 200  # formats for each nvllmd

# ---- regular expressions

LETTERS = "abcxyz019_- .é日\n{}A"
CLASSES = ["[abc]", "[^ab]", "[a-z]", "[^a-z0-9]", r"\d", r"\w", r"\D", r"\W", "[a\\-z]", "[é日]", "[\\d_]",
           "[^\\n]", "[^\\s]", r"[\w-]", r"[x-z.]", "[\\x41\\u00e9]"]
ESCAPES = {"\\.": ".", "\\n": "\n", "\\-": "-", "\\x61": "a", "\\u00e9": "é", "\\{": "{", "\\}": "}"}


class Regex:
    """An expression, and texts that are near to those that it matches."""

    def __init__(self, r):
        self.r = r
        self.text = self.union(3)

    def union(self, depth):
        n = 1 if self.r.random() < 0.6 else self.r.randrange(2, 4)
        return "|".join(self.branch(depth) for _ in range(n))

    def branch(self, depth):
        return "".join(self.piece(depth) for _ in range(self.r.randrange(0 if depth < 3 else 1, 4)))

    def piece(self, depth):
        r = self.r
        kind = r.random()
        if depth > 0 and kind < 0.35:
            atom = r.choice(["(", "(?:", "("]) + self.union(depth - 1) + ")"
        elif kind < 0.55:
            atom = r.choice(CLASSES)
        elif kind < 0.62:
            atom = r.choice([".", r"\s", r"\S"])
        elif kind < 0.7:
            atom = r.choice(list(ESCAPES))
        else:
            c = r.choice(LETTERS)
            atom = "\\" + c if c in ".{}" else c
        if r.random() < 0.4:
            low, high = r.randrange(0, 4), r.randrange(0, 3)
            atom += r.choice(["*", "+", "?", "*?", "+?", "??", f"{{{low}}}", f"{{{low},}}",
                              f"{{{low},{low + high}}}"])
        return atom


def ahead(r):
    """At times, what must follow or must not."""
    if r.random() > 0.2:
        return ""
    return r.choice(["(?=", "(?!"]) + Regex(r).union(1) + ")"


def to_python(expression):
    """In ECMA-262 the dot leaves out all line terminators, and \\s and \\S are of Unicode."""
    space = r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
    out, i, inside = "", 0, False
    while i < len(expression):
        c = expression[i]
        if c == "\\":
            two = expression[i:i + 2]
            if two == "\\s":
                out += space if inside else f"[{space}]"
            elif two == "\\S":
                out += f"[^{space}]"
            else:
                out += two
            i += 2
            continue
        if c in "[]":
            inside = c == "["
        out += "[^\\n\\r\u2028\u2029]" if c == "." and not inside else c
        i += 1
    return out


def walk(r, expression):
    """A text that the expression may well match, by reading it as Python parsed it."""
    return spell(r, parser.parse(expression, re.ASCII))


def spell(r, parsed):
    out = ""
    for op, arg in parsed:
        name = str(op)
        if name == "LITERAL":
            out += chr(arg)
        elif name == "NOT_LITERAL":
            out += r.choice([c for c in LETTERS if ord(c) != arg])
        elif name == "IN":
            out += spell_set(r, arg)
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            low, high, what = arg
            for _ in range(r.randrange(low, min(int(high), low + 3) + 1)):
                out += spell(r, what)
        elif name == "SUBPATTERN":
            out += spell(r, arg[-1])
        elif name == "BRANCH":
            out += spell(r, r.choice(arg[1]))
    return out


def spell_set(r, members):
    negated = str(members[0][0]) == "NEGATE"
    if negated or any(str(op) == "CATEGORY" for op, _ in members):
        return r.choice(LETTERS)
    op, arg = r.choice(members)
    return chr(arg) if str(op) == "LITERAL" else chr(r.randrange(arg[0], arg[1] + 1))


def mutate(r, text):
    at = r.randrange(len(text) + 1)
    kind = r.randrange(4)
    if kind == 0:
        return text[:at] + r.choice(LETTERS) + text[at:]
    if kind == 1:
        return text[:at] + text[at + 1:]
    if kind == 2:
        return text[:at] + r.choice(LETTERS) + text[at + 1:]
    return text[:at]


class TooSlow(Exception):
    pass


def too_slow(*_):
    raise TooSlow


def python_re(expression):
    compiled = re.compile(expression, re.ASCII)

    def matches(text):
        """re may take time that is exponential."""
        signal.signal(signal.SIGALRM, too_slow)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            return bool(compiled.fullmatch(text))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    return matches


class Pcre2:
    """PCRE2's library. The numbers are those of its header: UTF, \\u as in ECMA-262 (ALT_BSUX), and
    NO_START_OPTIMIZE, without which 10.42 overlooks what begins with a group of {0} in (?=…)."""
    OPTIONS = 0x80000 | 2 | 0x10000
    ANCHORED, ENDANCHORED, NOMATCH = 1 << 31, 1 << 29, -1

    def __init__(self):
        name = ctypes.util.find_library("pcre2-8")
        if not name:
            print("PCRE2 is not installed")
            sys.exit(77)
        lib = ctypes.CDLL(name)
        size, place = ctypes.c_size_t, ctypes.c_void_p
        self.compile, self.match = lib.pcre2_compile_8, lib.pcre2_match_8
        self.free, self.free_match = lib.pcre2_code_free_8, lib.pcre2_match_data_free_8
        self.match_data = lib.pcre2_match_data_create_from_pattern_8
        self.compile.restype = self.match_data.restype = place
        self.compile.argtypes = [ctypes.c_char_p, size, ctypes.c_uint32, place, place, place]
        self.match.argtypes = [place, ctypes.c_char_p, size, size, ctypes.c_uint32, place, place]
        self.match_data.argtypes = [place, place]
        self.free.argtypes = self.free_match.argtypes = [place]

    def __call__(self, expression):
        code, position = ctypes.c_int(), ctypes.c_size_t()
        source = expression.encode()
        compiled = self.compile(source, len(source), self.OPTIONS, ctypes.byref(code),
                                ctypes.byref(position), None)
        if not compiled:
            raise re.error(f"PCRE2: {code.value}")

        def matches(text):
            data = self.match_data(compiled, None)
            subject = text.encode()
            n = self.match(compiled, subject, len(subject), 0, self.ANCHORED | self.ENDANCHORED, data,
                           None)
            self.free_match(data)
            if n < self.NOMATCH:
                raise TooSlow
            return n >= 0

        weakref.finalize(matches, self.free, compiled)
        return matches


def regex_cases(r, compile_):
    while True:
        expression = ahead(r) + Regex(r).text
        python = to_python(expression)
        try:
            matches = compile_(python)
        except (re.error, OverflowError):
            continue
        texts = {"", "a"}
        for _ in range(12):
            text = walk(r, python)
            texts |= {text[:40], mutate(r, text[:40])}
        texts = sorted(texts)
        try:
            yield {"regex": expression, "texts": texts}, [matches(t) for t in texts]
        except TooSlow:
            continue


# ---- grammars
#
# An expression is a text, a set of characters, a rule's name, a sequence or a union of expressions, or
# one that is repeated.

SIGNS = 'ab"\\é\n-]'
SETS = ["[a-c]", "[^a]", "[ab\\n]", "[\\]\\\\]", "[é-í]", "[^\\x61-\\x63\\n]", "."]


def some_expression(r, rules, depth):
    kind = r.randrange(12) if depth > 0 else r.randrange(7)
    if kind < 3:
        return ("text", "".join(r.choice(SIGNS) for _ in range(r.randrange(4))))
    if kind == 3:
        return ("set", r.choice(SETS))
    if kind < 7:
        return ("rule", r.choice(rules))
    if kind == 7:
        return ("repeat", some_expression(r, rules, depth - 1),
                *r.choice([(0, None), (1, None), (0, 1), (2, 2), (1, 3), (2, None), (0, 2)]))
    parts = [some_expression(r, rules, depth - 1) for _ in range(r.randrange(1, 4))]
    return ("union" if kind == 8 else "sequence", parts)


def some_grammar(r):
    """Most rules begin with a text, for what begins with itself is refused."""
    rules = ["root", *(f"r-{i}" for i in range(r.randrange(4)))]
    grammar = {}
    for name in rules:
        body = [("sequence", [("text", r.choice("ab\\"))] * (r.random() < 0.6) +
                 [some_expression(r, rules, 3)]) for _ in range(r.randrange(1, 4))]
        grammar[name] = ("union", body)
    return grammar


def gbnf(e):
    kind, what, *bounds = e
    if kind == "text":
        escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n"}
        return '"' + "".join(escapes.get(c, c) for c in what) + '"'
    if kind in ("set", "rule"):
        return what
    if kind == "repeat":
        low, high = bounds
        op = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
        return gbnf(what) + (op or f"{{{low}}}" if low == high else
                             op or f"{{{low},{'' if high is None else high}}}")
    return "(" + (" | " if kind == "union" else " ").join(map(gbnf, what)) + ")"


class LeftRecursive(Exception):
    pass


class Recogniser:
    """Which beginnings of the rest of a text each expression takes: by trying all, once each."""

    def __init__(self, grammar, text):
        self.grammar, self.text = grammar, text
        self.known = {}  # (expression, start): its ends; None: under way

    def accepts(self):
        return len(self.text) in self.ends(("rule", "root"), 0)

    def ends(self, e, at):
        key = (id(e) if e[0] != "rule" else e[1], at)
        if key not in self.known:
            self.known[key] = None
            self.known[key] = self.look(e, at)
        elif self.known[key] is None:
            raise LeftRecursive
        return self.known[key]

    def all_ends(self, e, starts):
        return set().union(*(self.ends(e, i) for i in starts))

    def look(self, e, at):
        kind, what, *bounds = e
        if kind == "text":
            return {at + len(what)} if self.text.startswith(what, at) else set()
        if kind == "set":
            one = at < len(self.text) and re.match(what, self.text[at], re.DOTALL)
            return {at + 1} if one else set()
        if kind == "rule":
            return self.ends(self.grammar[what], at)
        if kind == "union":
            return set().union(*(self.ends(x, at) for x in what))
        reached = {at}
        if kind == "sequence":
            for x in what:
                reached = self.all_ends(x, reached)
            return reached
        low, high = bounds
        for _ in range(low):
            reached = self.all_ends(what, reached)
        every, n = set(reached), low
        while reached and (high is None or n < high):
            reached = self.all_ends(what, reached) - every
            every |= reached
            n += 1
        return every


def spell_grammar(r, grammar, e, depth=8):
    """A text of an expression, cut where it is too deep."""
    kind, what, *bounds = e
    if kind == "text":
        return what
    if kind == "set":
        return r.choice([c for c in SIGNS + "cíê" if re.match(what, c, re.DOTALL)])
    if kind == "rule":
        return spell_grammar(r, grammar, grammar[what], depth - 1) if depth else ""
    if kind == "union":
        return spell_grammar(r, grammar, r.choice(what), depth)
    if kind == "sequence":
        parts = what
    else:
        low, high = bounds
        parts = [what] * r.randrange(low, (low + 2 if high is None else high) + 1)
    out = ""
    for x in parts:
        if len(out) < 30:
            out += spell_grammar(r, grammar, x, depth)
    return out


def grammar_cases(r):
    while True:
        grammar = some_grammar(r)
        texts = {""}
        for _ in range(14):
            text = spell_grammar(r, grammar, ("rule", "root"))[:30]
            texts |= {text, mutate(r, text)}
        texts = sorted(texts)
        try:
            wanted = [Recogniser(grammar, t).accepts() for t in texts]
        except (LeftRecursive, RecursionError):  # the other: it is too deep for Python
            continue
        source = "".join(f"{name} ::= {gbnf(e)}\n" for name, e in grammar.items())
        yield {"grammar": source, "texts": texts}, wanted


# ---- JSON Schemas

NAMES = ["a", "b", "cé", "d\"", "e"]
VALUES = [None, True, False, 0, 1, -1, 2, 3, 7, 10, 2.5, -0.5, 100, "", "a", "ab", "abc", "é\n", "x9", [], [1],
          ["a", None], {}, {"a": 1}, {"b": "a", "e": []}]


def some_schema(r, depth=3):
    kind = r.randrange(14) if depth > 0 else r.randrange(7)
    if kind == 0:
        return r.choice([True, {}, {"type": "null"}, {"type": "boolean"}])
    if kind == 1:
        return {"enum": r.sample(VALUES, r.randrange(1, 5))}
    if kind == 2:
        return {"const": r.choice(VALUES)}
    if kind == 3:
        return {"type": r.sample(["null", "integer", "string", "boolean", "array", "number"], 2)}
    if kind in (4, 5):
        s = {"type": r.choice(["integer", "number"])}
        if r.random() < 0.6:
            s[r.choice(["minimum", "exclusiveMinimum"])] = r.choice([-3, 0, 1, 2.5, -0.5, 99])
        if r.random() < 0.6:
            s[r.choice(["maximum", "exclusiveMaximum"])] = r.choice([3, 7, 10, 2.5, 100, 1000])
        if r.random() < 0.3:
            s["multipleOf"] = r.choice([1, 2, 3, 0.5, 5])
        return s
    if kind == 6:
        s = {"type": "string"}
        if r.random() < 0.5:
            s["minLength"] = r.randrange(3)
        if r.random() < 0.5:
            s["maxLength"] = r.randrange(1, 4)
        if r.random() < 0.4:
            s["pattern"] = r.choice(["^a", "b$", "^[a-z]*$", "[0-9]", "^(ab|x9)$", "a|x"])
        return s
    if kind < 10:
        return some_object(r, depth)
    if kind == 10:
        s = {"type": "array"}
        if r.random() < 0.4:
            s["prefixItems"] = [some_schema(r, depth - 1) for _ in range(r.randrange(1, 3))]
        if r.random() < 0.8:
            s["items"] = some_schema(r, depth - 1)
        if r.random() < 0.4:
            s["minItems"] = r.randrange(3)
        if r.random() < 0.4:
            s["maxItems"] = r.randrange(1, 4)
        if r.random() < 0.25:
            s["contains"] = some_schema(r, depth - 1)
        if r.random() < 0.2:
            s["uniqueItems"] = True
            s["items"] = r.choice([{"enum": r.sample(VALUES, r.randrange(1, 5))}, {"type": "boolean"},
                                   s.get("items", True)])
        return s
    if kind == 11:
        return {r.choice(["anyOf", "oneOf", "allOf"]):
                [some_schema(r, depth - 1) for _ in range(r.randrange(1, 4))]}
    if kind == 12:
        return {"not": some_schema(r, depth - 2)}
    return {"if": some_schema(r, depth - 2), "then": some_schema(r, depth - 1),
            "else": some_schema(r, depth - 1)}


def some_object(r, depth):
    s = {"type": "object"}
    names = r.sample(NAMES, r.randrange(0, 4))
    if names:
        s["properties"] = {n: some_schema(r, depth - 1) for n in names}
    if names and r.random() < 0.6:
        s["required"] = r.sample(names, r.randrange(1, len(names) + 1))
    if r.random() < 0.6:
        s["additionalProperties"] = r.choice([False, some_schema(r, depth - 1)])
    if r.random() < 0.15:
        s["dependentRequired"] = {r.choice(NAMES): [r.choice(NAMES)]}
    if r.random() < 0.15:
        s["propertyNames"] = {"maxLength": 1}
    return s


def some_value(r, depth=3):
    kind = r.random()
    if depth == 0 or kind < 0.6:
        return r.choice(VALUES)
    if kind < 0.75:
        return [some_value(r, depth - 1) for _ in range(r.randrange(4))]
    return {n: some_value(r, depth - 1) for n in NAMES if r.random() < 0.4}


def instance(r, s, depth=4):
    """A value that the schema may well allow."""
    if not isinstance(s, dict) or depth == 0 or r.random() < 0.06:
        return some_value(r, 2)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in s:
            return instance(r, r.choice(s[key]), depth)
    if "if" in s:
        return instance(r, s[r.choice(["then", "else", "if"])], depth)
    if "const" in s or "enum" in s:
        return r.choice(s.get("enum", [s.get("const")]))
    types = s.get("type")
    if types == "object":
        known = s.get("properties", {})
        out = {n: instance(r, v, depth - 1) for n, v in known.items()
               if n in s.get("required", []) or r.random() < 0.5}
        if r.random() < 0.3:
            out[r.choice(NAMES)] = instance(r, s.get("additionalProperties", True), depth - 1)
        return out
    if types == "array":
        first = [instance(r, x, depth - 1) for x in s.get("prefixItems", [])]
        more = [instance(r, s.get("items", True), depth - 1) for _ in range(r.randrange(3))]
        return (first + more)[:r.choice([2, 4, 8])]
    if types == "string":
        return "".join(r.choice("abx9é") for _ in range(r.randrange(4)))
    if types in ("integer", "number"):
        return r.choice([0, 1, 2, 3, 5, 7, 10, 99, 100, -3, -1, 12, 0.5, 2.5, -0.5, 1000])
    return r.choice(VALUES)


def in_order(s, v):
    """Whether objects have the named properties first, in their order; None: it depends on more
    than one schema, which is not decided here."""
    if not isinstance(v, (dict, list)):
        return True
    if not isinstance(s, dict):
        return all(in_order(True, x) for x in (v.values() if isinstance(v, dict) else v))
    if any(k in s for k in ("anyOf", "oneOf", "allOf", "not", "if", "dependentRequired", "contains")):
        return None
    if "const" in s or "enum" in s:
        # A value is written as the schema has it.
        return any(json.dumps(x) == json.dumps(v) for x in s.get("enum", [s.get("const")]))
    if isinstance(v, list):
        first = s.get("prefixItems", [])
        parts = [in_order(first[i] if i < len(first) else s.get("items", True), x)
                 for i, x in enumerate(v)]
    else:
        known = s.get("properties", {})
        order = [k for k in known if k in v]
        if list(v)[:len(order)] != order:
            return False
        parts = [in_order(known.get(k, s.get("additionalProperties", True)), x)
                 for k, x in v.items()]
    return None if None in parts and False not in parts else all(parts)


def spelled(r, v):
    separators = r.choice([(",", ":"), (", ", ": "), (" , ", " :\n")])
    return json.dumps(v, ensure_ascii=False, separators=separators)


def schema_cases(r):
    import jsonschema
    while True:
        s = some_schema(r)
        if not isinstance(s, dict):
            continue
        check = jsonschema.Draft202012Validator(s)
        texts, wanted = [], []
        for _ in range(20):
            v = instance(r, s)
            if r.random() < 0.2:
                v = some_value(r)
            valid = check.is_valid(v)
            order = in_order(s, v) if valid else True
            if order is None:
                continue
            texts.append(spelled(r, v))
            wanted.append(valid and order)
        yield {"schema": s, "texts": texts}, wanted


# ---- comparing

def format_of(case):
    return next(json.dumps(value) for name, value in case.items() if name != "texts")


def decide(nvllmd, model, cases):
    done = subprocess.run([nvllmd, "schema", "--model", model, "--jsonl"], capture_output=True,
                          input="".join(json.dumps(c) + "\n" for c, _ in cases).encode(), check=False)
    lines = [json.loads(line) for line in done.stdout.decode().split("\n") if line]
    if len(lines) != len(cases):
        sys.exit(f"{len(lines)} answers to {len(cases)} cases: {done.stderr.decode()[-2000:]}")
    return lines


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--n", type=int, default=2000)
    p.add_argument("--seed", type=int, default=1)
    for kind in "schemas", "grammars", "pcre2":
        p.add_argument("--" + kind, action="store_true")
    p.add_argument("nvllmd")
    p.add_argument("model")
    a = p.parse_args()
    if a.schemas:
        try:
            import jsonschema  # noqa: F401
        except ImportError:
            print("jsonschema is not installed")
            sys.exit(77)
    r = random.Random(a.seed)
    source = (schema_cases(r) if a.schemas else grammar_cases(r) if a.grammars else
              regex_cases(r, Pcre2() if a.pcre2 else python_re))
    n_texts = n_accepted = n_refused = n_wrong = 0
    reasons = {}
    for start in range(0, a.n, BATCH):
        cases = [next(source) for _ in range(min(BATCH, a.n - start))]
        for (case, wanted), got in zip(cases, decide(a.nvllmd, a.model, cases)):
            if not got.get("supported"):
                reason = got.get("reason") or "error: " + got["error"]["message"]
                if reason == "no text is allowed" and not any(wanted):
                    continue
                n_refused += 1
                what = reason.rpartition(": ")[2]
                reasons.setdefault(what, [0, case])[0] += 1
                if what == "no text is allowed":
                    n_wrong += 1
                    print("refused, but allows a text:", json.dumps(case), wanted)
                continue
            for text, is_wanted, is_got in zip(case["texts"], wanted, got["accepted"], strict=True):
                n_texts += 1
                n_accepted += is_wanted
                if is_wanted != is_got:
                    n_wrong += 1
                    print(f"{format_of(case)} with {json.dumps(text)}: accepted {is_got}, should be "
                          f"{is_wanted}")
    for what, (n, case) in sorted(reasons.items(), key=lambda x: -x[1][0])[:10]:
        print(f"refused {n}: {what}: {format_of(case)[:200]}")
    print(f"{a.n} formats, {n_refused} refused; {n_texts} texts, {n_accepted} to be accepted; "
          f"{n_wrong} differences")
    sys.exit(1 if n_wrong else 0)


main()
