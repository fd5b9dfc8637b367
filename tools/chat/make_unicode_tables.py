#!/usr/bin/env python3
"""Writes the character tables of the template interpreter from Python's own str methods.

Usage: make_unicode_tables.py OUT.inc

The interpreter must agree with Python on upper(), isalpha(), strip() and their kin, so the tables are read out of
Python rather than out of the Unicode database: what str does is the definition.
"""
import sys


def ranges(test):
    found, start = [], None
    for code in range(0x110000):
        if 0xD800 <= code <= 0xDFFF:
            hit = False
        else:
            hit = test(chr(code))
        if hit and start is None:
            start = code
        elif not hit and start is not None:
            found.append((start, code - 1))
            start = None
    if start is not None:
        found.append((start, 0x10FFFF))
    return found


def rows(items, width=110):
    line, lines = "   ", []
    for item in items:
        if len(line) + len(item) + 2 > width:
            lines.append(line)
            line = "   "
        line += " " + item + ","
    if line.strip():
        lines.append(line)
    return "\n".join(lines)


def range_table(name, test):
    return f"constexpr Range {name}[] = {{\n" + rows(f"{{{a:#x}, {b:#x}}}" for a, b in ranges(test)) + "\n};\n"


def mapping_table(name, convert, skip=None):
    items = []
    for code in range(0x110000):
        if 0xD800 <= code <= 0xDFFF:
            continue
        mapped = convert(chr(code))
        if mapped == (skip(chr(code)) if skip else chr(code)):
            continue
        points = [ord(c) for c in mapped]
        assert len(points) <= 3
        items.append("{%#x, {%s}}" % (code, ", ".join("%#x" % p for p in points)))
    return f"constexpr Mapping {name}[] = {{\n" + rows(items) + "\n};\n"


def ignorable(c):
    # A final sigma looks through case-ignorable characters: 'A' + c + sigma ends a word, c + sigma alone does not.
    return ("A" + c + "\u03a3").lower()[-1] == "\u03c2" and (c + "\u03a3").lower()[-1] != "\u03c2"


def cased(c):
    return (c + "\u03a3").lower()[-1] == "\u03c2"


def main():
    parts = [
        "// Written by tools/chat/make_unicode_tables.py from Python %d.%d's str methods; do not edit.\n"
        % sys.version_info[:2],
        range_table("alphabetic", str.isalpha),
        range_table("decimal", str.isdecimal),
        range_table("digit", str.isdigit),
        range_table("numeric", str.isnumeric),
        range_table("white_space", str.isspace),
        range_table("uppercase", str.isupper),
        range_table("lowercase", str.islower),
        range_table("titlecase", lambda c: c.istitle() and not c.isupper()),
        range_table("unprintable", lambda c: not c.isprintable()),
        range_table("cased", cased),
        range_table("case_ignorable", ignorable),
        mapping_table("to_upper", str.upper),
        mapping_table("to_lower", str.lower),
        mapping_table("to_title", str.title, str.upper),
        mapping_table("to_folded", str.casefold, str.lower),
    ]
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write("\n".join(parts))


main()
