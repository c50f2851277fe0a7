"""Random schemas, answers drawn by chance under their masks, and a validator that knows nothing of us: test_schemas.py CONSTRAINED MODEL."""
import json
import os
import random
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
import jsonschema  # noqa: E402
from tap import main, test  # noqa: E402

PROGRAM, MODEL = sys.argv[1:3]
NAMES = ["a", "b", "name", "x-y", "ü", "q\"t", "a/b", "long name with blanks"]
PATTERNS = ["^[a-z]{1,5}$", "^\\d{3}-\\d{2}$", "x+y?", "^(ab|c[de])*$", "^[^a-m\\s]{2,4}$", "^a.b$|^\\w+!$", "\\.", "^\"\\\\?$"]
FORMATS = ["date", "time", "date-time", "uuid", "email", "ipv4", "hostname", "uri"]


def number_bounds(r, schema, whole):
    def value():
        return r.randint(-200, 200) if whole or r.random() < 0.5 else r.randint(-2000, 2000) / r.choice([8, 10, 100])
    low, high = sorted([value(), value()])
    if high - low < 2:
        high = low + 2
    if r.random() < 0.7:
        schema[r.choice(["minimum", "exclusiveMinimum"])] = low
    if r.random() < 0.7:
        schema[r.choice(["maximum", "exclusiveMaximum"])] = high
    return schema


def string(r):
    schema, kind = {"type": "string"}, r.random()
    if kind < 0.25:
        low = r.randint(0, 3)
        schema.update(r.choice([{"minLength": low}, {"maxLength": low + 2}, {"minLength": low, "maxLength": low + r.randint(0, 4)}]))
    elif kind < 0.5:
        schema["pattern"] = r.choice(PATTERNS)
    elif kind < 0.65:
        schema["format"] = r.choice(FORMATS)
    return schema


def value(r):
    return r.choice([None, True, False, 0, -7, 1.5, 0.1, "", "text", "a\"\\\n", "ü🎉", [1, "a", {}], {"k": [None, {"n": 2}]}])


def array(r, depth, refs):
    schema = {"type": "array"}
    if r.random() < 0.8:
        schema["items"] = make(r, depth - 1, refs)
    if r.random() < 0.3:
        schema["prefixItems"] = [make(r, depth - 1, refs) for _ in range(r.randint(1, 2))]
        if r.random() < 0.5:
            schema["items"] = False
    low = r.randint(0, 2)
    if r.random() < 0.4 and schema.get("items") is not False:
        schema["minItems"] = low
    if r.random() < 0.5:
        schema["maxItems"] = low + r.randint(0, 2)
    return schema


def members(r, depth, refs):
    names = r.sample(NAMES, r.randint(0, 4))
    schema = {"type": "object", "properties": {n: make(r, depth - 1, refs) for n in names}}
    schema["required"] = [n for n in names if r.random() < 0.6]
    more = r.random()
    if more < 0.3:
        schema["additionalProperties"] = False
    elif more < 0.5:
        schema["additionalProperties"] = make(r, depth - 1, refs) if r.random() < 0.7 else True
    if r.random() < 0.15 and more >= 0.3:
        schema["required"].append("undeclared")
    return schema


def one_of(r, depth, refs):
    if r.random() < 0.5:
        return {"oneOf": [string(r), {"type": "integer"}, {"type": "null"}]}
    kinds = ["cat", "dog"]
    branches = []
    for kind in kinds:
        branch = members(r, depth, refs)
        branch["properties"] = {"kind": {"const": kind}, **branch["properties"]}
        branch["required"].append("kind")
        branches.append(branch)
    return {"oneOf": branches}


def all_of(r, depth, refs):
    first, second = members(r, depth, refs), {"properties": {"extra": make(r, depth - 1, refs)}, "required": ["extra"]}
    first.pop("additionalProperties", None)
    if r.random() < 0.5:
        return {"allOf": [first, second]}
    first["allOf"] = [second]
    return first


def make(r, depth, refs):
    """A schema of the subset; depth bounds what is inside."""
    simple = [lambda: {"type": "boolean"}, lambda: {"type": "null"}, lambda: string(r), lambda: string(r),
              lambda: number_bounds(r, {"type": "integer"}, True), lambda: number_bounds(r, {"type": "number"}, False),
              lambda: {"enum": [value(r) for _ in range(r.randint(1, 4))]}, lambda: {"const": value(r)},
              lambda: {"type": r.sample(["string", "integer", "null", "boolean"], 2)}]
    nested = [lambda: members(r, depth, refs), lambda: members(r, depth, refs), lambda: array(r, depth, refs),
              lambda: {"anyOf": [make(r, depth - 1, refs) for _ in range(r.randint(1, 3))]}, lambda: one_of(r, depth, refs),
              lambda: all_of(r, depth, refs), lambda: {"$ref": r.choice(refs)}]
    schema = r.choice(nested if depth > 0 and r.random() < 0.75 else simple)()
    if r.random() < 0.1:
        schema.setdefault("description", "what it is")
    return schema


def whole(r):
    schema = make(r, 3, ["#/$defs/leaf", "#/$defs/list"])
    if "$ref" in schema:
        schema = {"type": "array", "items": schema}
    schema["$defs"] = {"leaf": make(r, 0, []), "list": {"type": "object", "properties": {
        "value": {"$ref": "#/$defs/leaf"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]}}, "required": ["value"]}}
    return schema


def answers(schemas, count):
    jobs = "".join(json.dumps({"schema": s, "seed": i, "count": count}) + "\n" for i, s in enumerate(schemas))
    done = subprocess.run([PROGRAM, MODEL], input=jobs.encode(), capture_output=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


@test
def every_finished_answer_validates():
    r = random.Random(20261201)
    schemas = [whole(r) for _ in range(100)]
    finished = refused = 0
    for schema, result in zip(schemas, answers(schemas, 3), strict=True):
        jsonschema.Draft202012Validator.check_schema(schema)
        if "error" in result:
            refused += 1
            continue
        validator = jsonschema.Draft202012Validator(schema)
        for text in result["texts"]:
            try:
                validator.validate(json.loads(text))
            except (jsonschema.ValidationError, json.JSONDecodeError) as why:
                raise AssertionError(f"{json.dumps(schema)}\ntakes {text!r}: {why}") from why
            finished += 1
    assert finished > 120 and refused < 30, (finished, refused)


@test
def a_refusal_names_a_keyword_of_the_schema():
    for word in ["uniqueItems", "multipleOf", "patternProperties", "not", "if", "contains", "minProperties", "dependentSchemas"]:
        result, = answers([{"properties": {"deep": {"items": {word: 1}}}}], 1)
        assert f'"{word}"' in result["error"] and "properties.deep.items" in result["error"], result


if __name__ == "__main__":
    main()
