#!/usr/bin/env python3
"""Differential fuzzing of the template interpreter against Python's Jinja2.

Usage: template_fuzz.py --count N --seed S OUT.jsonl

Writes cases, one JSON object a line: template, context, and either "expect" (Jinja2's output) or "error": true.
chat_test checks such a file when M3_TEMPLATE_CASES names it, so finding differences is

    template_fuzz.py --count 20000 --seed 1 /tmp/cases.jsonl
    M3_TEMPLATE_CASES=/tmp/cases.jsonl chat_test --gtest_filter='TemplateCases.*'

What it finds goes to tests/data/chat/template_cases.jsonl. Cases whose output no two runs share (addresses) or that
need integers beyond 64 bits are left out.
"""
import argparse
import json
import random
import re

from jinja_reference import render

STRINGS = ["", "a", "Hello", "hello world", "  pad \n", "a,b,,c", "é", "Straße ΑΣ", "日本語テスト", "line1\nline2\r\nline3\n",
           "x<y>&'\"z", "{{ no }}", "12", "-3.5", "abc\\n", "]<]minimax[>[", "<mm:think>a</mm:think>b", "\tT\t", "🎉 ok",
           "aXbXc", "%s %d", "{} {0}", "None", "tItLe case-word (x"]
INTS = [0, 1, 2, 3, 5, -1, -7, 10, 100, 255]
FLOATS = [0.0, 0.5, 1.5, -2.25, 3.14159, 1e20, 1e-7, 100.0]


class Generator:
    def __init__(self, rng):
        self.rng = rng
        self.names = []
        self.loops = 0
        self.macros = []

    def pick(self, items):
        return self.rng.choice(items)

    def chance(self, probability):
        return self.rng.random() < probability

    # --- context -------------------------------------------------------------------------------------------------
    def value(self, depth=0):
        kind = self.rng.randrange(9 if depth < 3 else 5)
        if kind == 0:
            return self.pick(INTS)
        if kind == 1:
            return self.pick(FLOATS)
        if kind in (2, 3):
            return self.pick(STRINGS)
        if kind == 4:
            return self.pick([True, False, None])
        if kind in (5, 6):
            return [self.value(depth + 1) for _ in range(self.rng.randrange(4))]
        keys = ["a", "b", "name", "items", "role", "content", "type", "é k", "get"]
        return {self.pick(keys): self.value(depth + 1) for _ in range(self.rng.randrange(4))}

    def context(self):
        return {
            "s": self.pick(STRINGS), "t": self.pick(STRINGS), "i": self.pick(INTS), "j": self.pick(INTS),
            "f": self.pick(FLOATS), "b": self.pick([True, False]), "n": None,
            "xs": [self.pick(INTS) for _ in range(self.rng.randrange(5))],
            "ss": [self.pick(STRINGS) for _ in range(self.rng.randrange(4))],
            "d": {k: self.value(1) for k in self.rng.sample(["a", "b", "B", "name", "x y", "items"], 3)},
            "ds": [{"name": self.pick(STRINGS), "age": self.pick(INTS), "role": self.pick(["u", "v"])}
                   for _ in range(self.rng.randrange(4))],
            "v": self.value(), "tree": [{"n": 1, "c": [{"n": 2, "c": []}, {"n": 3, "c": [{"n": 4, "c": []}]}]}],
        }

    # --- expressions ---------------------------------------------------------------------------------------------
    def literal(self):
        kind = self.rng.randrange(8)
        if kind < 3:
            return self.quote(self.pick(STRINGS))
        if kind < 5:
            return str(abs(self.pick(INTS)))
        if kind == 5:
            return self.pick(["1.5", "2e3", "0.25", "1_000", "0x1f", "0b101"])
        return self.pick(["true", "false", "none", "True", "None"])

    def quote(self, text):
        out = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
        if self.chance(0.5):
            return "'" + out.replace("'", "\\'") + "'"
        return '"' + out.replace('"', '\\"') + '"'

    def name(self):
        pool = ["s", "t", "i", "j", "f", "b", "n", "xs", "ss", "d", "ds", "v", "missing", "tree"] + self.names
        return self.pick(pool)

    def string(self, depth):
        kind = self.rng.randrange(12)
        if depth <= 0 or kind < 3:
            return self.pick(["s", "t", self.quote(self.pick(STRINGS)), "ss|first|string"])
        inner = self.string(depth - 1)
        small = self.pick(["'a'", "' '", "'X'", "','", "'l'", "t", "''", "'é'"])
        if kind < 7:
            method = self.pick([
                f"upper()", f"lower()", f"title()", f"capitalize()", f"swapcase()", "casefold()", f"strip()",
                f"strip({small})", f"lstrip({small})", f"rstrip()", f"replace({small}, {self.quote(self.pick(STRINGS))})",
                f"replace({small}, '-', {self.pick(['1', '0', '2'])})", f"center({self.pick(['9', '12', '3'])})",
                f"ljust(8, '.')", "rjust(7)", "zfill(6)", f"join(ss)", f"removeprefix({small})", f"removesuffix({small})",
                f"expandtabs(4)", f"split({small})[0]", f"split()[-1]", f"rsplit({small}, 1)[0]", f"partition({small})[2]",
                f"rpartition({small})[0]", "splitlines()[0]"])
            return f"{self.wrap(inner)}.{method}"
        if kind < 10:
            filter_ = self.pick([
                "upper", "lower", "title", "capitalize", "trim", f"trim({small})", f"replace({small}, 'zz')",
                f"replace({small}, {small}, 1)", "reverse", "indent", "indent(2, true)", "indent('> ', blank=true)",
                f"truncate({self.pick(['5', '9', '12'])})", f"truncate(6, true, '..', 0)", "center(11)", "string",
                "default('dd')", "default('dd', true)", "urlencode", "tojson", "tojson(ensure_ascii=true)", "first|string",
                "last|string", "e", "list|join('-')", "format(s)", "escape|string", "safe"])
            return f"{self.wrap(inner)}|{filter_}"
        if kind == 10:
            return f"({inner} ~ {self.expr(depth - 1)})"
        return f"{self.wrap(inner)}[{self.slice()}]"

    def slice(self):
        bound = lambda: self.pick(["", "0", "1", "2", "-1", "-2", "5", "i", "j"])
        return f"{bound()}:{bound()}" + (f":{self.pick(['1', '2', '-1', '-2'])}" if self.chance(0.3) else "")

    def wrap(self, text):
        return text if re.fullmatch(r"[a-z_0-9]+", text) else f"({text})"

    def number(self, depth):
        kind = self.rng.randrange(11)
        if depth <= 0 or kind < 3:
            return self.pick(["i", "j", "f", str(self.pick(INTS)).replace("-", "- "), "1.5", "xs|length"])
        a, b = self.number(depth - 1), self.number(depth - 1)
        if kind < 6:
            op = self.pick(["+", "-", "*", "/", "//", "%"])
            return f"({a} {op} {b})"
        if kind == 6:
            return f"({a} ** {self.pick(['2', '0', '3', '-1'])})"
        if kind == 7:
            return f"{self.wrap(a)}|{self.pick(['abs', 'int', 'float', 'round', 'round(1)', 'round(2, method=' + repr('ceil') + ')', 'round(1, ' + repr('floor') + ')'])}"
        if kind == 8:
            return f"{self.wrap(self.string(depth - 1))}|{self.pick(['length', 'int', 'float', 'wordcount', 'count', 'int(7)', 'int(0, 16)', 'float(2.5)'])}"
        if kind == 9:
            return f"(xs|{self.pick(['sum', 'min', 'max', 'first', 'last', 'length', 'sum(start=3)'])})"
        return f"{self.wrap(self.string(depth - 1))}.{self.pick(['find', 'rfind', 'count', 'index'])}({self.pick(['t', repr('a'), repr('l'), repr('')])}{self.pick(['', ', 1', ', 1, 4', ', -3'])})"

    def sequence(self, depth):
        kind = self.rng.randrange(14)
        if depth <= 0 or kind < 3:
            return self.pick(["xs", "ss", "ds", "range(4)", "range(5, 0, -2)", "[1, 2, 'x']", "d", "(1, 2)", "s"])
        inner = self.sequence(depth - 1)
        if kind == 3:
            return f"[{self.expr(depth - 1)}, {self.expr(depth - 1)}]"
        if kind == 4:
            return f"{self.wrap(inner)}[{self.slice()}]"
        if kind == 5:
            return f"{self.wrap(self.string(depth - 1))}.{self.pick(['split()', 'split(' + repr(',') + ')', 'splitlines()', 'split(' + repr('l') + ', 1)', 'splitlines(true)', 'partition(' + repr('a') + ')', 'rsplit(none, 1)', 'rsplit(' + repr('l') + ', 1)'])}"
        if kind == 6:
            return self.pick(["d.items()", "d.keys()", "d.values()", "d|items", "d|dictsort", "d|dictsort(true)",
                              "d|dictsort(by='value')", "d|dictsort(reverse=true)", "d.items()|list"])
        if kind == 7:
            return "ds|" + self.pick([
                "map(attribute='name')", "map(attribute='zip', default='?')", "selectattr('role', '==', 'u')",
                "rejectattr('age')", "selectattr('age', 'gt', 2)", "sort(attribute='age')", "sort(attribute='role,age', reverse=true)",
                "groupby('role')", "groupby('age')", "unique(attribute='role')|list", "map('length')", "selectattr('name', 'defined')"])
        filter_ = self.pick(["list", "reverse", "sort", "sort(reverse=true)", "unique", "map('string')", "map('upper')",
                             "select", "reject('none')", "select('string')", "batch(2)", "batch(3, 'z')", "slice(2)",
                             "slice(3, 0)", "select('odd')", "map('tojson')", "sort(case_sensitive=true)"])
        return f"{self.wrap(inner)}|{filter_}|list"

    def boolean(self, depth):
        kind = self.rng.randrange(10)
        a = self.expr(depth - 1)
        if depth <= 0 or kind < 2:
            return self.pick(["b", "not b", "s", "xs", "missing", "n", "true", "i", "v"])
        if kind < 5:
            test = self.pick(["defined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float",
                              "boolean", "true", "false", "undefined", "callable", "lower", "upper", "sameas none",
                              "in xs", "in [1, 2]", "eq 1", "ne s", "escaped"])
            return f"({a} is {self.pick(['', 'not '])}{test})"
        if kind == 5:
            return f"({self.number(depth - 1)} is {self.pick(['odd', 'even', 'divisibleby 3', 'gt 2', 'le 1'])})"
        if kind == 6:
            return f"({self.number(depth - 1)} {self.pick(['<', '<=', '>', '>=', '==', '!='])} {self.number(depth - 1)})"
        if kind == 7:
            return f"({a} {self.pick(['==', '!=', 'in', 'not in'])} {self.sequence(depth - 1)})"
        if kind == 8:
            return f"({self.boolean(depth - 1)} {self.pick(['and', 'or'])} {self.boolean(depth - 1)})"
        return f"{self.wrap(self.string(depth - 1))}.{self.pick(['startswith', 'endswith'])}({self.pick([repr('a'), repr('He'), '(' + repr('a') + ', ' + repr('x') + ')', 't'])})"

    def expr(self, depth):
        kind = self.rng.randrange(16)
        if depth <= 0 or kind < 2:
            return self.name() if self.chance(0.6) else self.literal()
        if kind < 6:
            return self.string(depth)
        if kind < 8:
            return self.number(depth)
        if kind < 10:
            return self.sequence(depth)
        if kind == 10:
            return self.boolean(depth)
        if kind == 11:
            return f"({self.expr(depth - 1)} if {self.boolean(depth - 1)}" + (f" else {self.expr(depth - 1)})" if self.chance(0.7) else ")")
        if kind == 12:
            return f"{self.pick(['d', 'v', 'ds[0]', 'd'])}{self.pick(['.a', '.name', '[' + repr('a') + ']', '.get(' + repr('a') + ')', '.get(' + repr('q') + ', 1)', '.items', '.nope', '[0]', '.upper'])}"
        if kind == 13:
            return f"{{{self.literal()}: {self.expr(depth - 1)}, 'k': {self.expr(depth - 1)}}}"
        if kind == 14:
            return self.pick([
                f"'%s|%5s|%-4s' % (s, i, t)", "'%d%%' % i", "'%05.2f' % f", "'%x' % j", "'{}-{}'.format(s, i)",
                "'{0:>6}{1:<4}|'.format(s, j)", "'{a[name]!r}'.format(a=ds[0])", "'{:05d}'.format(i)", "'{:.2f}'.format(f)",
                "'{:,}'.format(1234567)", "'{:^9}'.format(t)", "'%r' % (s,)", "'%(a)s' % d", "'{:e}'.format(f)", "'%g' % f",
                "'{:+}'.format(i)", "'{:.3}'.format(s)", "'{:%}'.format(f)", "'%10.3s|' % s", "'{:#x}'.format(j)"])
        return f"({self.expr(depth - 1)} {self.pick(['+', '*', '-', '%'])} {self.expr(depth - 1)})"

    # --- statements ----------------------------------------------------------------------------------------------
    def dash(self):
        return self.pick(["", "", "-", "-", "+"])

    def text(self):
        return self.pick(["", " ", "\n", "\n\n", "  \n  ", "text", " a ", "\n  b\n", "{", "}", "{ {", "%}", "#", "\t\n", "é\u00a0\n", "-"])

    def tag(self, body):
        return "{%" + self.dash() + " " + body + " " + self.pick(["", "", "-", "-", "+"]) + "%}"

    def statement(self, depth):
        kind = self.rng.randrange(20)
        if depth <= 0 or kind < 7:
            close = self.pick(["", "-"])
            return "{{" + self.pick(["", "-"]) + " " + self.expr(3) + " " + close + "}}"
        if kind < 9:
            branches = self.tag(f"if {self.boolean(2)}") + self.body(depth - 1)
            if self.chance(0.4):
                branches += self.tag(f"elif {self.boolean(2)}") + self.body(depth - 1)
            if self.chance(0.5):
                branches += self.tag("else") + self.body(depth - 1)
            return branches + self.tag("endif")
        if kind < 12:
            return self.for_loop(depth)
        if kind < 14:
            name = self.pick(["s", "x", "y", "z", "acc"])
            out = self.tag(f"set {name} = {self.expr(3)}")
            self.names.append(name)
            return out
        if kind == 14:
            return self.tag(f"set blk{self.pick(['', ' | upper', ' | trim | length'])}") + self.body(depth - 1) + self.tag("endset") + "{{ blk }}"
        if kind == 15:
            return (self.tag("set ns = namespace(k=0, found=false)") + self.tag("for q in xs") +
                    self.tag("set ns.k = ns.k + q") + self.tag("set ns.found = q") + self.tag("endfor") + "{{ ns.k }}{{ ns.found }}{{ ns.zip }}")
        if kind == 16:
            name = self.pick(["m", "mm"])
            arguments = self.pick(["a", "a, b=2", "a, b=s, c='!'", ""])
            self.macros.append(name)
            body = self.pick(["{{ a }}", "{{ a }}{{ b }}", "{{ varargs|length }}{{ kwargs }}", "{{ caller() }}", "{{ a }}{{ s }}", "[{{ c }}]"])
            call = self.pick([f"{name}(1)", f"{name}('p', 'q')", f"{name}(b=3, a=4)", f"{name}()", f"{name}(1, 2, 3, 4)", f"{name}(xs, z=1)"])
            out = self.tag(f"macro {name}({arguments})") + self.body(1) + body + self.tag("endmacro")
            if self.chance(0.25):
                return out + self.tag(f"call {call}") + self.body(1) + self.tag("endcall")
            return out + "{{ " + call + " }}"
        if kind == 17:
            return self.pick([
                self.tag("filter upper") + self.body(depth - 1) + self.tag("endfilter"),
                self.tag(f"with x = {self.expr(2)}, y = 3") + "{{ x }}{{ y }}" + self.body(depth - 1) + self.tag("endwith"),
                self.tag("generation") + self.body(depth - 1) + self.tag("endgeneration"),
                self.tag("raw") + self.pick(["{{ x }}", "{% if %}", " \n{# #}"]) + self.tag("endraw"),
                "{#" + self.dash() + " comment {{ x }} " + self.dash() + "#}"])
        if kind == 18:
            return (self.tag("for node in tree recursive") + "{{ node.n }}{{ loop.depth }}" +
                    self.tag("if node.c") + "({{ loop(node.c) }})" + self.tag("endif") + self.tag("endfor"))
        return self.tag(f"set x, y = {self.pick(['1, 2', 'xs[:2]', 's', '(s, t)', 'd.items()|list|first'])}") + "{{ x }}{{ y }}"

    def for_loop(self, depth):
        target = self.pick(["x", "x", "k, w", "q"])
        source = self.pick(["d.items()", "d|dictsort", "d|items"]) if "," in target else self.sequence(2)
        condition = f" if {self.pick(['x', 'x is defined', 'loop is defined', self.boolean(1)])}" if self.chance(0.25) else ""
        show = self.pick(["{{ x }}", "{{ loop.index }}", "{{ loop.index0 }}/{{ loop.length }}", "{{ loop.first }}{{ loop.last }}",
                          "{{ loop.revindex }}{{ loop.previtem }}|{{ loop.nextitem }}", "{{ loop.cycle('a', 'b') }}",
                          "{{ loop.changed(x) }}", "{{ k }}={{ w }}", "{{ q }}", "", "{{ loop.depth }}{{ loop.revindex0 }}"])
        control = self.pick(["", "", "", self.tag("if loop.index == 2") + self.tag(self.pick(["break", "continue"])) + self.tag("endif")])
        self.names += [n.strip() for n in target.split(",")]
        otherwise = self.tag("else") + self.body(depth - 1) if self.chance(0.3) else ""
        return (self.tag(f"for {target} in {source}{condition}") + control + show + self.body(depth - 1) + otherwise + self.tag("endfor"))

    def body(self, depth):
        return "".join(self.text() + self.statement(depth - 1) for _ in range(self.rng.randrange(1, 3))) + self.text()

    def template(self):
        return "".join(self.text() + self.statement(3) for _ in range(self.rng.randrange(1, 5))) + self.text()


UNSTABLE = re.compile(r"0x[0-9a-f]{6,}|object at|<generator|<built-in|<bound|<function|<class|<Macro|<LoopContext|<list_|<reversed|<dict_")


def make_case(rng):
    generator = Generator(rng)
    context = generator.context()
    template = generator.template()
    text, error = render(template, context)
    if error is None and (UNSTABLE.search(text) or len(text) > 20000):
        return None
    numbers = [] if error is not None else re.findall(r"\d{19,}", text)
    if any(int(n) > 2**63 - 1 for n in numbers):
        return None
    if error is not None and ("RecursionError" in error or "MemoryError" in error):
        return None
    case = {"template": template, "context": context}
    case.update({"error": True, "why": error[:200]} if error is not None else {"expect": text})
    return case


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    written = failing = 0
    with open(arguments.out, "w", encoding="utf-8") as out:
        while written < arguments.count:
            case = make_case(rng)
            if case is None:
                continue
            # Templates that fail are less telling: keep one in four.
            if "error" in case:
                failing += 1
                if failing % 4:
                    continue
            try:
                line = json.dumps(case, ensure_ascii=False)
                line.encode("utf-8")
            except UnicodeEncodeError:
                continue
            out.write(line + "\n")
            written += 1


main()
