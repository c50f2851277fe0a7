#!/usr/bin/env python3
"""Renders tests/unit/data/jinja_cases.txt with Jinja and prints the results as JSON: name -> text, or null for an error.
A case is a line "=== name", a line with its variables as JSON, and the template, or "@file" for that file's content.

The committed jinja_expected.json is the output of
    TZ=UTC python3 tests/unit/data/jinja_expect.py tests/unit/data/jinja_cases.txt
and the unit test compares it with a fresh run where Jinja is installed. The environment is set up the way chat templates
are used: trim_blocks, lstrip_blocks, break and continue, tojson without HTML escapes, raise_exception, strftime_now and a
generation block that renders its body.
"""
import datetime
import json
import os
import sys

import jinja2
import jinja2.ext
import jinja2.nodes

NOW = 1700000000


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def strftime_now(form):
    return datetime.datetime.fromtimestamp(NOW).strftime(form)


def read_cases(path):
    name, rest = None, []
    for line in open(path, encoding="utf-8", newline="").read().split("\n") + ["=== "]:
        if line.startswith("=== "):
            if name:
                yield name, json.loads(rest[0]), "\n".join(rest[1:])
            name, rest = line[4:], []
        else:
            rest.append(line)


def main():
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True,
                                     extensions=[jinja2.ext.loopcontrols, Generation])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    results = {}
    for name, variables, template in read_cases(sys.argv[1]):
        if template.startswith("@"):
            template = open(os.path.join(os.path.dirname(sys.argv[1]), template[1:]), encoding="utf-8").read()
        try:
            results[name] = environment.from_string(template).render(**variables)
        except Exception as problem:  # any failure of a template is an expected result
            results[name] = None
            if "error" not in name:
                print(name, repr(problem), file=sys.stderr)
    json.dump(results, sys.stdout, ensure_ascii=False, indent=1)
    print()


main()
