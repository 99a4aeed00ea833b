#!/usr/bin/env python3
"""Response formats that a hostile client would send: deep, huge, exponential, ambiguous.

hostile_formats.py                 prints them, a line each, for bench_format: what each costs
hostile_formats.py NVLLMD MODEL    each is answered or refused, and a small one behind it answered

None may take more than 50 ms of the tokenizer pool's time, whatever it is."""
import dataclasses
import json
import random
import subprocess
import sys


@dataclasses.dataclass
class Supported:
    """One that must not be refused; others may be, for what they cost."""
    format: object


def nest(begin, middle, end, n):
    return begin * n + middle + end * n


def definitions(n, last, of):
    """$defs in a chain: each is of(reference to the next)."""
    defs = {f"d{i}": of({"$ref": f"#/$defs/d{i + 1}"}) for i in range(n)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{n}": last}}


def other_characters(r, n):
    return "[^" + "".join(chr(0x4e00 + r.randrange(20000)) for _ in range(n)) + "]"


def named(n, value, prefix="p"):
    return {f"{prefix}{i}": value(i) for i in range(n)}


def deep_schemas():
    """JSON of more than 2,048 levels is refused before it is looked at as a schema."""
    yield Supported(nest('{"items":', "{}", "}", 250))
    yield nest('{"items":', "{}", "}", 2000)
    for key in "properties", "patternProperties":
        yield nest('{"%s":{"a":' % key, "{}", "}}", 900)
    for n in 250, 1000:
        yield nest('{"allOf":[', "{}", "]}", n)
        yield nest('{"anyOf":[{},', "{}", "]}", n)
        yield nest('{"not":', '{"type":"string"}', "}", n)
    yield nest("[", "", "]", 2000)
    yield Supported(nest('{"const":', "[" * 1000 + "]" * 1000, "}", 1))


def exponential_schemas():
    string = {"type": "string"}
    for key in "allOf", "anyOf", "oneOf":
        yield definitions(40, string, lambda ref, key=key: {key: [ref, ref]})
    yield definitions(40, string, lambda ref: {"oneOf": [ref, {"type": "null"}]})
    yield definitions(40, string, lambda ref: {"not": ref})
    for n in 12, 40:
        yield {"allOf": [{"anyOf": [{"minLength": i}, {"pattern": "a{%d}" % i}]} for i in range(n)]}
    yield {"allOf": [{"oneOf": [{"required": [f"{k}{i}"]} for k in "pq"]} for i in range(20)]}
    yield {"allOf": [{"if": {"required": [f"p{i}"]}, "then": {"required": [f"q{i}"]}}
                     for i in range(30)]}
    yield {"dependentSchemas": named(12, lambda i: {"properties": {f"q{i}": string}})}
    yield {"$ref": "#/$defs/n0", "$defs": named(60, lambda i: {
        "properties": named(60, lambda k: {"$ref": f"#/$defs/n{k}"})}, "n")}
    yield {"$ref": "#/$defs/n0", "$defs": named(31, lambda i: {"properties": {"x": {"allOf": [
        {"$ref": f"#/$defs/n{2 * i % 31}"}, {"$ref": f"#/$defs/n{(3 * i + 1) % 31}"}]}}}, "n")}
    for keyword in "pattern", "not":
        pattern = "(a|b)*a(a|b){18}$"
        yield Supported({"type": "string",
                         keyword: pattern if keyword == "pattern" else {"pattern": pattern}})
    yield {"allOf": [{"pattern": "(a|b)*a(a|b){%d}c" % (10 + i)} for i in range(20)]}
    yield {"patternProperties": {"(a|b)*a(a|b){%d}" % (10 + i): string for i in range(5)}}


def huge_schemas():
    numbers, names = list(range(15000)), [f"name{i}" for i in range(9000)]
    nested = [json.loads(nest("[", str(i), "]", 200)) for i in range(600)]
    objects = [named(20, lambda i: 1) for _ in range(300)]
    yield {"properties": named(6000, lambda i: {"type": "string"})}
    yield {"properties": named(6000, lambda i: {"format": "uri"})}
    yield {"properties": named(3000, lambda i: {}), "required": list(named(3000, bool))}
    yield {"properties": named(4000, lambda i: {}), "patternProperties": {"(a|b)*a(a|b){14}": {}}}
    yield {"properties": named(5000, lambda i: {}), "propertyNames": {"pattern": "^(a|p)*[0-9]+$"}}
    yield {"required": [f"p{i}" for i in range(20000)]}
    yield {"properties": {"k" * 60000: {}, "l" * 60000: {}, "m" * 60000: {}}}
    yield {"not": {"properties": named(3000, lambda i: {"type": "string"})}}
    yield {"not": {"oneOf": [{"properties": {f"p{i}": {"type": "string"}}} for i in range(300)]}}
    for key in "allOf", "oneOf":
        yield {key: [{"enum": numbers}, {"enum": [-i for i in numbers]}]}
        yield {key: [{"enum": names}, {"enum": names[::-1]}]}
        yield {key: [{"enum": nested[:300]}, {"enum": nested[300:]}]}
        yield {key: [{"properties": named(1500, lambda i, k=k: {"const": k}),
                      "required": list(named(1500, bool))} for k in range(2)]}
    yield {"enum": objects, "required": [f"p{i % 20}" for i in range(15000)]}
    yield {"enum": [{f"k{i}": i} for i in range(5000)],
           "patternProperties": {"^k%d+.*(ab|cd){3}" % i: {} for i in range(300)}}
    yield {"enum": ["x" * 1000 + str(i) for i in range(240)], "pattern": "^x*[0-9]+$"}
    yield {"enum": ["x" * 250000]}
    for n, length in (2000, 115), (4096, 57):  # by twos alike up to their ends
        r = random.Random(n)
        pairs = ["".join(r.choices("0123456789abcdef", k=length)) for _ in range(n // 2)]
        yield Supported({"enum": [text + end for text in pairs for end in "ab"]})
    yield {"enum": [list(range(700))], "uniqueItems": True}
    yield {"enum": [[0] * 50000], "items": {"$ref": "#" + "/x" * 200},
           **json.loads(nest('{"x":', '{"type":"integer"}', "}", 200))}
    yield {"anyOf": [{"minLength": i} for i in range(12000)]}
    yield {"anyOf": [{"properties": {f"k{i}": {}}} for i in range(1900)]}
    yield {"properties": named(1000, lambda i: {}),
           "anyOf": [{"required": [f"p{i}"]} for i in range(1000)]}
    yield {"allOf": [{}] * 20000}
    yield {"prefixItems": [{"minimum": i} for i in range(3000)], "minItems": 2000}
    yield {"properties": named(3000, lambda i: {"$ref": f"#n{i}"}),
           "$defs": named(3000, lambda i: {"$anchor": f"n{i}"})}
    yield Supported(nest('{"type":"array","minItems":100000,"items":', '{"minLength":100000}',
                         "}", 3))
    yield {"type": "number", "multipleOf": 99999989, "minimum": -1e15, "maximum": 1e15}
    yield Supported({"type": "number", "multipleOf": 1e-7, "minimum": -1e15, "maximum": 1e15})


def repeated_schemas():
    """The same long value, name or expression again and again."""
    yield {"$defs": {"e": {"enum": ["x" * 200000, "y"]}},
           "anyOf": [{"$ref": "#/$defs/e", "pattern": "^x*y$"}] * 1000}
    yield {"$defs": {"e": {"enum": [[[]] * 15000]}},
           "anyOf": [{"$ref": "#/$defs/e", "minItems": 1}] * 30}
    yield {"enum": [{}] * 15000, "required": ["k" * 190000]}
    yield {"enum": ["a"] * 2000, "format": "uri"}
    yield {"oneOf": [{"type": "string", "format": "uri"}] * 60}


def grammars(r):
    yield 'root ::= root "a" | "b"'
    yield 'root ::= a "x"\na ::= b\nb ::= e a "y" | "z"\ne ::= ""'
    yield Supported('root ::= "" | "" | ()')
    yield Supported('root ::= ("")* "a" (("")*)*')
    yield 'root ::= root'
    yield 'root ::= "a" root'
    yield "".join(f"r{i} ::= r{i + 1}\n" for i in range(15000))
    yield "root ::= r0\n" + "".join(f'r{i} ::= r{i + 1} "a"? ' + "r2045 " * 14 + "\n"
                                    for i in range(2045)) + 'r2045 ::= "b"'
    yield "root ::= " + " ".join(f"r{i % 2000 + 1000}" for i in range(35000)) + "\n" + "".join(
        f'r{i + 1000} ::= "x"\n' for i in range(2000))
    for n in 99, 5000:
        yield "root ::= " + nest("(", '"a"', ")", n)
    for times in "{0,100}", "{1,100000}", "*", "?":
        for atom in '"a"', "x":
            yield "root ::= " + nest("(", atom, ")" + times, 60) + '\nx ::= "a" x | "b"'
    yield Supported('s ::= "a" s s s | "a"\nroot ::= s s s s s s')
    yield Supported('s ::= "a" s s | "a" | "a" s s s\nroot ::= s s s')
    yield "root ::= " + " | ".join(f'"{i}"' for i in range(30000))
    yield 'x ::= "(" x ")" | "y"\nroot ::= ' + " | ".join(f'x "{i}"' for i in range(4000))
    yield "root ::= " + " ".join(other_characters(r, 900) for _ in range(60))
    yield Supported('root ::= "' + "a" * 250000 + '"')
    yield 'root ::= y{100000}\ny ::= x{100000}\nx ::= "(" x ")" | ""'
    yield "root ::= " + " | ".join(f'"{c}" root "{c}"' for c in "abcdefghij") + ' | ""'
    yield "root ::= a0\n" + "".join(f'a{i} ::= "x" a{i} "y" | "x" a{(i + 1) % 500} "z" | "x"\n'
                                    for i in range(500))


def regexes(r):
    yield Supported(nest("(", "a", ")", 199))
    yield "(" * 60000
    yield "|".join(map(str, range(11000)))
    yield Supported(nest("(a|", "b", ")", 190))
    yield Supported(nest("(", "a", "){0,1000}", 60))
    yield Supported("(a?){1000}a{1000}")
    yield "(?!.*a(a|b){20}c).*(a|b){30}"
    for ahead in "=", "!":
        yield "".join("(?%s.*a.{%d}b)" % (ahead, i) for i in range(200)) + ".*"
    yield "".join(other_characters(r, 300) for _ in range(60))
    yield Supported("(((((((a*)*)*)*b*)*)*c*)*)*")
    yield "a*" * 20000
    yield Supported(".*a" * 20000)
    yield "(" + "|".join("a" * i for i in range(1, 300)) + ")*"
    yield Supported("(a)|" * 15000 + "b")
    yield "|".join("." * i + "a" for i in range(1, 300))


def formats():
    """Each with whether it must be supported."""
    r = random.Random(1)
    for kind, ones in (("schema", deep_schemas()), ("schema", exponential_schemas()),
                       ("schema", huge_schemas()), ("schema", repeated_schemas()),
                       ("grammar", grammars(r)), ("regex", regexes(r))):
        for one in ones:
            needed = isinstance(one, Supported)
            yield {kind: one.format if needed else one}, needed


def line_of(one):
    """What is nested too deeply for Python is a text already."""
    if isinstance(one.get("schema"), str):
        return '{"schema":' + one["schema"] + "}\n"
    return json.dumps(one, separators=(",", ":"), ensure_ascii=False) + "\n"


def problem(answer, needed, next_answer):
    if "supported" not in answer:
        return f"was not read: {answer}"
    if needed and not answer["supported"]:
        return "must be supported: " + answer["reason"]
    if not answer["supported"] and not answer["reason"]:
        return "refused without a reason"
    if next_answer != {"supported": True, "accepted": [True, False]}:
        return f"the next one is not answered: {next_answer}"
    return None


def main():
    lines, needed = zip(*((line_of(one), needed) for one, needed in formats()))
    if len(sys.argv) == 1:
        sys.stdout.writelines(lines)
        return
    small = line_of({"schema": {"const": 7}, "texts": ["7", "8"]})
    done = subprocess.run([sys.argv[1], "schema", "--model", sys.argv[2], "--jsonl"],
                          input="".join(line + small for line in lines).encode(),
                          capture_output=True, timeout=240)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) != 2 * len(lines):
        sys.exit(f"{len(answers)} answers to {2 * len(lines)} lines: {done.stderr.decode()}")
    failed = 0
    for line, *what in zip(lines, answers[::2], needed, answers[1::2]):
        if wrong := problem(*what):
            print(f"{line[:100].strip()}: {wrong}")
            failed += 1
    supported = sum(a.get("supported", False) for a in answers[::2])
    print(f"{len(lines)} formats, {supported} supported, {failed} wrong")
    sys.exit(failed > 0)


main()
