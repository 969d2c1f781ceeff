"""Excludes impossible requests, and bounds the time to generate the others.

Version 4.3.10 took more than a quarter of an hour to generate the requests of its phase
"coverage", mostly for impossible values. These hooks exclude no kind of request.
"""

import itertools
import re

import schemathesis
from hypothesis import Phase
from hypothesis.errors import Unsatisfiable
from hypothesis.internal.conjecture.data import Status
from hypothesis.internal.conjecture.engine import ConjectureRunner, ExitReason
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation import coverage
from schemathesis.generation.hypothesis import builder


@schemathesis.hook
def filter_headers(ctx, headers):
    """Excludes bytes that are invalid in an HTTP/1.1 header (RFC 9110, 5.5).

    Go's server answers such a request in plain text before the service sees
    it; TestMalformedRequestsAreRefused sends some of them.
    """
    return not any(
        (ord(c) < 0x20 and c != "\t") or ord(c) == 0x7F
        for value in (headers or {}).values()
        for c in str(value)
    )


@schemathesis.hook
def filter_query(ctx, query):
    """Excludes texts of digits for integers: in a query they are no value of another type."""
    parameters = ctx.operation.definition.raw.get("parameters", [])
    integers = {p["name"] for p in parameters if p["in"] == "query" and p["schema"].get("type") == "integer"}
    return not any(
        isinstance(v, str) and v.isdigit()
        for name in integers & (query or {}).keys()
        for v in (query[name] if isinstance(query[name], list) else [query[name]])
    )


@schemathesis.hook
def before_load_schema(ctx, raw_schema):
    """Describes the answers as the document's text does, where the tool reads less.

    The tool validates each answer by the first media type of its status, and
    knows no parameter that changes a type: with amounts=string, members with
    x-amount are texts.
    """
    for path in raw_schema["paths"].values():
        for operation in path.values():
            for response in operation["responses"].values():
                any_media_type(response.get("content", {}))
    amounts_as_texts(raw_schema)


def any_media_type(content):
    schemas = [media["schema"] for media in content.values() if "schema" in media]
    if len(schemas) > 1:
        for media in content.values():
            media["schema"] = {"anyOf": schemas}


def amounts_as_texts(node):
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        amounts_as_texts(child)
    if isinstance(node, dict) and node.get("x-amount") is True:
        amount = dict(node)
        node.clear()
        node["anyOf"] = [amount, {"type": "string", "pattern": "^-?[0-9]+$"}]


def some(names, size):
    """Returns all pairs of optional parameters; of larger sizes, each run of neighbours.

    The tool documents one combination of each size but tries all: 2^n requests for an
    operation with n parameters. Each parameter still occurs with and without every
    other one.
    """
    if size == 2:
        yield from itertools.combinations(names, 2)
        return
    for first in range(len(names)):
        yield tuple(names[(first + i) % len(names)] for i in range(size))


builder.combinations = some


def give_up(run, most=50, most_too_large=3):
    """Ends the search for one value after 50 failed draws instead of a thousand.

    For most parameters the tool searches a value of another type than string, but every
    value in a query, a path or a header is a string. An array of 1000 events is too large
    to draw, which the tool takes a second to detect each time.
    """

    def test_function(self, data):
        run(self, data)
        self.too_large = getattr(self, "too_large", 0) + (data.status is Status.OVERRUN)
        one = self.settings.max_examples == 1 and self.settings.phases == (Phase.generate,)
        enough = self.call_count >= most or self.too_large >= most_too_large
        if one and enough and self.valid_examples == 0:
            self.exit_with(ExitReason.max_iterations)

    return test_function


ConjectureRunner.test_function = give_up(ConjectureRunner.test_function)


def once(make):
    """Generates the values of another type once for each parameter, not for each combination."""
    known = {}

    def made(ctx, ty, seen, schema):
        key = repr((ctx.location, ctx.current_path, ctx.is_required, ty, schema))
        if key not in known:
            values, fault = [], None
            try:
                values.extend(make(ctx, ty, coverage.HashSet(), schema))
            except Unsatisfiable as e:
                fault = e
            known[key] = values, fault
        values, fault = known[key]
        yield from (v for v in values if seen.insert(v.value))
        if fault is not None:
            raise fault

    return made


coverage._negative_type = once(coverage._negative_type)


def as_made(make):
    """Keeps a generated invalid path parameter; the others get their configured values."""

    def cases(*, as_strategy_kwargs, **rest):
        given = as_strategy_kwargs.get("path_parameters") or {}
        for case in make(as_strategy_kwargs={**as_strategy_kwargs, "path_parameters": {}}, **rest):
            about = case.meta.phase.data
            wrong = case.meta.generation.mode.is_negative and about.parameter_location is ParameterLocation.PATH
            right = {k: v for k, v in given.items() if not (wrong and k == about.parameter)}
            case.path_parameters = {**(case.path_parameters or {}), **right}
            if not answered_by_another(case):
                yield case

    return cases


def answered_by_another(case):
    """Reports whether another operation's path template matches the path and has the method.

    GET /dead-letters/bulk is answered by GET /dead-letters/{deadLetterId}: not found.
    """
    method, path = case.method.lower(), case.formatted_path
    paths = case.operation.schema.raw_schema["paths"]
    return method not in paths[case.path] and any(
        method in item and re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", template), path) for template, item in paths.items()
    )


builder.generate_coverage_cases = as_made(builder.generate_coverage_cases)


def not_null(generate):
    """Violates a bound by a value of the type, e.g. a too long string, instead of by a valid null."""

    bounds = {"minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "pattern", "format"}

    def generate_from_schema(self, schema):
        if isinstance(schema, dict) and isinstance(schema.get("type"), list) and bounds & schema.keys():
            types = [t for t in schema["type"] if t != "null"]
            schema = {**schema, "type": types[0] if len(types) == 1 else types}
        return generate(self, schema)

    return generate_from_schema


coverage.CoverageContext.generate_from_schema = not_null(coverage.CoverageContext.generate_from_schema)
