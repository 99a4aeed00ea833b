#!/usr/bin/env python3
"""Random templates and conversations, rendered by Jinja as transformers sets it up: the oracle of
engine/text/jinja_*.c.

jinja_oracle.py --n N [--seed S] --check TEST_JINJA    compares test_jinja with Jinja
jinja_oracle.py --n N [--seed S]                       prints the cases as JSON lines
Exits with 77 where jinja2 is missing. A million cases take about an hour: --n 1000000."""
import argparse
import datetime
import itertools
import json
import os
import random
import subprocess
import sys

try:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("jinja2 is not installed")
    sys.exit(77)

AT_A_TIME = 100000  # cases of one run of TEST_JINJA; check fails after 71 minutes
NOW = datetime.datetime(2026, 11, 22, 12, 34, 56)
WORDS = ["a", "b", "Paris", " ", "\n", "  x ", "<|im_end|>", "<tag>", "</think>", "é", "你好", "\U0001f98a", "\"q\"",
         "it's", "\\", "\t", "{{", "%}", "1", "-2.5", "A b-c", "UPPER", "&", "x,y,z", "line\nbreak\n", "\r\n", "%s", "{}"]
ROLES = ["system", "user", "assistant", "tool"]


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Raised(Exception):
    pass


def raise_exception(message):
    raise Raised(message)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=["jinja2.ext.loopcontrols", Generation])
    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads
    env.globals.update(raise_exception=raise_exception, strftime_now=NOW.strftime)
    return env


# ---- conversations

def text(r):
    return "".join(r.choice(WORDS) for _ in range(r.randrange(5)))


def value(r, depth=2):
    kind = r.randrange(8 if depth else 6)
    if kind < 2:
        return text(r)
    if kind == 2:
        return r.choice([0, 1, 2, 3, -1, 7, 100])
    if kind == 3:
        return r.choice([True, False, None])
    if kind == 4:
        return r.choice([0.5, 2.0, -1.25, 1e20, 3.14159])
    if kind == 5:
        return r.choice(ROLES)
    if kind == 6:
        return [value(r, depth - 1) for _ in range(r.randrange(4))]
    return {r.choice(["x", "y", "name", "a b", "items", "é"]): value(r, depth - 1) for _ in range(r.randrange(4))}


def variables(r):
    messages = []
    for _ in range(r.randrange(1, 4)):
        m = {"role": r.choice(ROLES), "content": r.choice([text(r), text(r), None, [{"type": "text", "text": text(r)}]])}
        if r.random() < 0.3:
            m["tool_calls"] = [{"id": "c1", "type": "function", "function": {
                "name": r.choice(["add", "search"]), "arguments": value(r)}} for _ in range(r.randrange(3))]
        if r.random() < 0.2:
            m["reasoning_content"] = text(r)
        messages.append(m)
    return {"messages": messages, "tools": r.choice([None, [value(r)], [{"name": "f", "parameters": value(r)}]]),
            "s": text(r), "t": text(r), "n": r.randrange(-2, 6), "f": r.choice([0.5, 2.0, -1.5]),
            "l": [r.randrange(5) for _ in range(r.randrange(5))], "w": [text(r) for _ in range(r.randrange(4))],
            "d": {k: value(r, 1) for k in r.sample(["x", "y", "name", "B", "c"], r.randrange(5))},
            "o": [{"name": r.choice("abc"), "n": r.randrange(3), "c": {"k": text(r)}} for _ in range(r.randrange(4))],
            "v": value(r), "flag": r.random() < 0.5}


# ---- templates

STRINGS = ["'a'", "'<|im_start|>'", "''", "' x '", "'\\n'", "\"it's\"", "'%s-%s'", "'é你'", "'a,b,,c'", "'\\t\\x41\\u00e9'",
           "'</think>'", "'Hello World'", "'abcabc'"]
STR_FILTERS = ["upper", "lower", "trim", "title", "capitalize", "string", "replace('a', 'bb')", "replace('', '-')",
               "replace('a', 'X', 1)", "indent", "indent(2, true)", "indent(width=3, blank=true)", "center(9)", "escape", "safe",
               "default('z')", "tojson", "reverse", "d('q', true)", "trim('ax')", "e"]
STR_METHODS = ["upper()", "lower()", "strip()", "lstrip()", "rstrip()", "strip('ab')", "title()", "capitalize()", "swapcase()",
               "replace('a', 'o')", "replace('a', 'o', 1)", "zfill(6)", "center(8, '*')", "ljust(7)", "rjust(7, '.')",
               "removeprefix('a')", "removesuffix('c')", "split('a')[0]", "split()[-1]", "rsplit('a', 1)[-1]", "lstrip('\\n')",
               "partition('b')[2]", "rpartition('b')[0]", "join(['1', '2'])", "join(w)", "format(s, t)", "format(n)", "casefold()"]
BOOL_METHODS = ["startswith('a')", "endswith('c')", "isdigit()", "isalpha()", "isalnum()", "isspace()", "isupper()", "islower()",
                "startswith(('a', '<'))", "isascii()"]
INT_METHODS = ["count('a')", "find('b')", "rfind('b')", "index('a')", "__len__()"]
LIST_FILTERS = ["list", "sort", "reverse | list", "unique | list", "map('string') | list", "select | list", "reject('none') | list",
                "batch(2) | list", "sort(reverse=true)", "map('upper') | list", "select('string') | list", "batch(3, 'x') | list"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable", "true",
         "false", "callable", "lower", "upper", "odd", "even", "divisibleby(2)", "divisibleby 3", "eq 1", "in [1, 'a']", "sameas none",
         "equalto 'a'", "ne 2", "gt 1", "escaped"]


class Generator:
    def __init__(self, r):
        self.r = r
        self.names = []     # variables that the template has set
        self.macros = []    # (name, parameters) of those in scope
        self.n_macros = 0
        self.loops = 0

    def name(self):
        r = self.r
        if self.names and r.random() < 0.5:
            return r.choice(self.names)
        return r.choice(["s", "t", "n", "f", "l", "w", "d", "o", "v", "flag", "nope", "messages", "tools"])

    def string(self, depth):
        r = self.r
        if depth <= 0:
            return r.choice([r.choice(STRINGS), "s", "t", "'k'"])
        kind = r.randrange(15)
        inner = self.string(depth - 1)
        if kind < 2:
            return r.choice(STRINGS)
        if kind == 2:
            return f"({inner} + {self.string(depth - 1)})"
        if kind == 3:
            return f"({inner} ~ {self.any(depth - 1)})"
        if kind == 4:
            return f"({inner} | {r.choice(STR_FILTERS)})"
        if kind == 5:
            return f"{self.primary(inner)}.{r.choice(STR_METHODS)}"
        if kind == 6:
            return f"{self.primary(inner)}[{self.slice(depth - 1)}]"
        if kind == 7:
            return f"({inner} * {r.randrange(3)})"
        if kind == 8:
            return f"({self.list(depth - 1)} | join({r.choice(STRINGS)}))"
        if kind == 9:
            return f"({self.any(depth - 1)} | tojson{r.choice(['', '(indent=2)', '(ensure_ascii=true)', '(sort_keys=true)'])})"
        if kind == 10:
            return f"({inner} if {self.bool(depth - 1)} else {self.string(depth - 1)})"
        if kind == 11:
            return f"({self.any(depth - 1)} | string)"
        if kind == 12:
            return r.choice(["('%s|%s' | format(s, n))", "('%5d' % n)", "('%-4s|' % s)", "('%05.2f' % f)", "('{}{}'.format(s, n))",
                             "('{0:>5}|{x}'.format(s, x=t))", "('%s' % (n,))", "('{:.3f}'.format(f))", "('%x' % 255)"])
        if kind == 13 and self.macros:
            return self.call(depth - 1)
        return r.choice(["s", "t", "messages[0].role", "messages[0].content", "o[0].c.k", "strftime_now('%Y-%m-%d %H')"])

    def primary(self, text):
        return text if text[0] in "('\"" or text.isalnum() else f"({text})"

    def call(self, depth):
        name, n = self.r.choice(self.macros)
        return f"{name}({', '.join(self.any(depth) for _ in range(self.r.randrange(n + 1)))})"

    def slice(self, depth):
        def part():
            return self.r.choice(["", "", "1", "-1", "2", "-2", "0", "n", "10"])
        return f"{part()}:{part()}" + self.r.choice(["", "", "", ":2", ":-1"])

    def int(self, depth):
        r = self.r
        if depth <= 0:
            return r.choice(["0", "1", "2", "3", "n", "-1", "7", "1_0"])
        a, b = self.int(depth - 1), self.int(depth - 1)
        return r.choice([lambda: f"({a} {r.choice(['+', '-', '*', '//', '%'])} {b})", lambda: f"({self.list(depth - 1)} | length)",
                         lambda: f"({self.string(depth - 1)} | int(3))", lambda: f"({self.string(depth - 1)} | length)",
                         lambda: f"{self.primary(self.string(depth - 1))}.{r.choice(INT_METHODS)}", lambda: f"({a} | abs)",
                         lambda: r.choice(["0", "1", "n", "2"]), lambda: f"(-{self.primary(a)})", lambda: "(l | sum)",
                         lambda: f"({a} if {self.bool(depth - 1)} else {b})", lambda: f"({a} ** 2)",
                         lambda: "(l | max)", lambda: "(l | first | default(4))", lambda: f"({a} / {b})",
                         lambda: f"({a} | round)", lambda: "(f * n)", lambda: "(f | round(1))", lambda: "(f | int)",
                         lambda: f"({a} | float)"])()

    def list(self, depth):
        r = self.r
        if depth <= 0:
            return r.choice(["l", "w", "[1, 2]", "['b', 'a']", "[]", "o", "range(3)|list", "messages"])
        inner = self.list(depth - 1)
        return r.choice([lambda: f"({inner} | {r.choice(LIST_FILTERS)})", lambda: f"({inner} + {self.list(depth - 1)})",
                         lambda: f"({inner})[{self.slice(depth - 1)}]", lambda: f"[{self.any(depth - 1)}, {self.any(depth - 1)}]",
                         lambda: f"{self.primary(self.string(depth - 1))}.split({r.choice(['', 'none', STRINGS[0]])})",
                         lambda: f"{self.primary(self.string(depth - 1))}.splitlines()", lambda: "(d | dictsort)",
                         lambda: "(d.items() | list)", lambda: "(d | items | list)", lambda: "(d.keys() | list)",
                         lambda: "(o | map(attribute='name') | list)", lambda: "(o | selectattr('n', 'gt', 0) | list)",
                         lambda: "(o | rejectattr('name', 'equalto', 'a') | list)", lambda: "(o | sort(attribute='n'))",
                         lambda: "(messages | selectattr('tool_calls', 'defined') | list)", lambda: "range(n, 4) | list",
                         lambda: "(o | map(attribute='c.k') | list)", lambda: f"({self.string(depth - 1)} | list)",
                         lambda: "(d.values() | list)", lambda: "('a', n, s)"])()

    def bool(self, depth):
        r = self.r
        if depth <= 0:
            return r.choice(["true", "false", "flag", "s", "l", "not flag", "nope", "none", "n"])
        a, b = self.bool(depth - 1), self.bool(depth - 1)
        return r.choice([lambda: f"({a} and {b})", lambda: f"({a} or {b})", lambda: f"(not {a})",
                         lambda: f"({self.any(depth - 1)} is {r.choice(['', 'not '])}{r.choice(TESTS)})",
                         lambda: f"({self.any(depth - 1)} {r.choice(['==', '!='])} {self.any(depth - 1)})",
                         lambda: f"({self.int(depth - 1)} {r.choice(['<', '<=', '>', '>='])} {self.int(depth - 1)})",
                         lambda: f"({self.string(depth - 1)} {r.choice(['in', 'not in'])} {self.string(depth - 1)})",
                         lambda: f"({self.any(depth - 1)} in {self.list(depth - 1)})", lambda: "('x' in d)", lambda: f"(1 < n <= 3)",
                         lambda: f"{self.primary(self.string(depth - 1))}.{r.choice(BOOL_METHODS)}",
                         lambda: f"({self.string(depth - 1)} {r.choice(['<', '>='])} {self.string(depth - 1)})"])()

    def any(self, depth):
        r = self.r
        if depth <= 0:
            return r.choice([self.name(), self.string(0), self.int(0), "none", "true", "d.x", "d['y']", "o[0]", "l[0]", "v"])
        return r.choice([lambda: self.string(depth), lambda: self.int(depth), lambda: self.list(depth), lambda: self.bool(depth),
                         lambda: self.name(), lambda: "d.get('x')", lambda: "d.get('z', n)", lambda: f"d[{self.string(0)}]",
                         lambda: f"{{'k': {self.any(depth - 1)}, {self.string(0)}: 1}}", lambda: f"({self.name()}).x",
                         lambda: "(messages[0].tool_calls | default([v])) | first", lambda: f"(l | {r.choice(['first', 'last', 'max', 'min'])})",
                         lambda: f"({self.any(depth - 1)} | default({self.any(depth - 1)}{r.choice(['', ', true'])}))",
                         lambda: f"({self.list(depth - 1)})[{self.int(0)}]", lambda: "(v | tojson | from_json)", lambda: "(n if flag)",
                         lambda: "v", lambda: "dict(a=n, b=s)", lambda: f"({self.any(depth - 1)}, )",
                         lambda: "loop.index" if self.loops else "n"])()

    # ---- statements

    def block(self, name):
        r = self.r
        return (r.choice(["{%", "{%", "{%-", "{%+"]) + r.choice([" ", "  ", ""]) + name + r.choice([" ", ""])
                + r.choice(["%}", "%}", "-%}", "+%}"]))

    def data(self):
        return self.r.choice(["", "", " ", "\n", "  \n", "\n  ", "text", "x\n", "\ty ", "{ }", "<|im_start|>", "{#c#}", "{#- c -#} ",
                              " {# c #}\n", "{% raw %} {{ x }} {% endraw %}", "é\n"])

    def output(self, depth):
        r = self.r
        return r.choice(["{{", "{{", "{{-", "{{ "]) + " " + self.any(depth) + " " + r.choice(["}}", "}}", "-}}"])

    def statement(self, depth):
        r = self.r
        kind = r.randrange(20) if depth > 0 else 0
        if kind < 5:
            return self.output(min(3, depth + 1))
        if kind < 7:
            # No variable's name: where a loop sets one after a scope in it has read it, Jinja takes the
            # variable for undefined.
            name = r.choice(["x", "y", "z"])
            value = self.any(2)
            self.names.append(name)
            return self.block(f"set {name} = {value}")
        if kind < 10:
            text = self.block(f"if {self.bool(2)}") + self.body(depth - 1)
            if r.random() < 0.4:
                text += self.block(f"elif {self.bool(1)}") + self.body(depth - 1)
            if r.random() < 0.5:
                text += self.block("else") + self.body(depth - 1)
            return text + self.block("endif")
        if kind < 14:
            return self.for_loop(depth)
        if kind == 14:
            return self.macro(depth)
        if kind == 15:
            name = r.choice(["x", "y"])
            text = self.block(f"set {name}{r.choice(['', ' | upper', ' | trim'])}") + self.inner(depth - 1) + self.block("endset")
            self.names.append(name)
            return text
        if kind == 16:
            return self.block("set ns = namespace(a=1, b=s)") + self.block(f"set ns.a = {self.any(1)}") + \
                self.inner(depth - 1) + "{{ ns.a }}{{ ns.b }}{{ ns.c }}"
        if kind == 17:
            return self.block(f"filter {r.choice(['upper', 'trim', 'replace(s, t)', 'indent'])}") + self.inner(depth - 1) + \
                self.block("endfilter")
        if kind == 18:
            return self.block(f"with x = {self.any(1)}, q = n") + "{{ q }}" + self.inner(depth - 1) + self.block("endwith")
        return self.block("generation") + self.inner(depth - 1) + self.block("endgeneration")

    def for_loop(self, depth):
        r = self.r
        head, extra = r.choice([("m in messages", "{{ m.role }}"), (f"i in {self.list(1)}", "{{ i }}"), ("k, x in d.items()", "{{ k }}"),
                                ("i in range(4)", "{{ i }}{{ loop.index }}"), ("c in s", "{{ c }}{{ loop.revindex0 }}"),
                                ("i in l if i != 1", "{{ i }}{{ loop.first }}"), ("k in d", "{{ loop.length }}{{ k }}"),
                                ("a, b in d | dictsort", "{{ a }}={{ b }}"), ("i in nope", "{{ i }}"),
                                ("i in l", "{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('x', 'y') }}"),
                                ("i in l", "{{ loop.changed(i) }}{{ loop.depth }}{{ loop.last }}")])
        self.loops += 1
        body = extra + self.inner(depth - 1)
        if r.random() < 0.25:
            body += self.block(f"if {self.bool(1)}") + self.block(r.choice(["break", "continue"])) + self.block("endif")
        body += self.inner(depth - 1)
        self.loops -= 1
        text = self.block(f"for {head}") + body
        if r.random() < 0.3:
            text += self.block("else") + self.inner(0)
        return text + self.block("endfor")

    def macro(self, depth):
        r = self.r
        name = f"m{self.n_macros}"
        self.n_macros += 1
        loops, self.loops = self.loops, 0
        kept = list(self.names)
        params = r.choice([["p"], ["p", "q=2"], ["p='d'", "q=p"], []])
        self.names += [p.split("=")[0] for p in params]
        caller = r.random() < 0.3
        body = self.inner(depth - 1) + r.choice(["", "{{ p }}", "{{ varargs }}", "{{ kwargs }}"]) + ("{{ caller() }}" if caller else "")
        self.names = kept
        self.loops = loops
        text = self.block(f"macro {name}({', '.join(params)})") + body + self.block("endmacro")
        if caller:
            return text + self.block(f"call {name}({self.any(1)})") + self.inner(depth - 1) + self.block("endcall")
        self.macros.append((name, len(params)))
        return text + "{{ " + self.call(1) + " }}"

    def inner(self, depth):
        """The body of a scope: what it defines ends with it."""
        kept = list(self.names), list(self.macros)
        text = self.body(depth)
        self.names, self.macros = kept
        return text

    def body(self, depth):
        parts = [self.data()]
        for _ in range(self.r.randrange(1, 3)):
            parts += [self.statement(depth), self.data()]
        return "".join(parts)

    def template(self):
        return "".join(self.body(2) for _ in range(self.r.randrange(1, 3)))


def cases(seed, n):
    env = environment()
    env.cache = None
    for i in range(n):
        r = random.Random(f"{seed}/{i}")
        case = {"template": Generator(r).template(), "vars": variables(r)}
        try:
            case["text"] = env.from_string(case["template"]).render(**case["vars"])
            if " object at 0x" in case["text"] or len(case["text"]) > 100000 or "<" in case["text"] and (
                    "<generator" in case["text"] or "<Macro" in case["text"] or "<bound" in case["text"]):
                continue    # an address, or a text that nobody prints
        except jinja2.TemplateSyntaxError as e:
            case["error"] = f"{e.lineno}: {e}"
        except Exception as e:  # pylint: disable=broad-except
            case["error"] = f"{type(e).__name__}: {e}"
        try:
            line = json.dumps(case)
            line.encode()
        except (UnicodeEncodeError, ValueError):
            continue
        yield line


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--n", type=int, default=3000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--check", metavar="TEST_JINJA")
    a = p.parse_args()
    if not a.check:
        for line in cases(a.seed, a.n):
            print(line)
        return
    lines, wrong = cases(a.seed, a.n), 0
    for _ in range(0, a.n, AT_A_TIME):
        with subprocess.Popen([a.check, "/dev/stdin"], stdin=subprocess.PIPE, text=True,
                              env={**os.environ, "CK_DEFAULT_TIMEOUT": "0"}) as test:
            try:
                for line in itertools.islice(lines, AT_A_TIME):
                    test.stdin.write(line + "\n")
                test.stdin.close()
            except BrokenPipeError:
                pass
        wrong += test.returncode != 0
    sys.exit(wrong > 0)


main()
