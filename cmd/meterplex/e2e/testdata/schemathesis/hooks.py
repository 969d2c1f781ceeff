"""What the tool may not send, and how long it looks for what to send.

4.3.10 took more than a quarter of an hour to make up the requests of its phase "coverage",
most of it for values that cannot be. Nothing of what is below leaves a kind of request out.
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
    """Leaves out bytes that no HTTP/1.1 header can hold (RFC 9110, 5.5).

    Go's server answers such a request by itself, in plain text, before the service sees
    it; TestConnectionsThatLie sends some of them.
    """
    return not any(
        (ord(c) < 0x20 and c != "\t") or ord(c) == 0x7F
        for value in (headers or {}).values()
        for c in str(value)
    )


def some(names, size):
    """Gives all pairs of optional parameters; of more of them at once, each run of neighbours.

    The tool says that it tries one combination of each size and tries all: 2^n requests
    where an operation has n parameters, all of one kind. Each parameter is still there, and
    absent, with every other.
    """
    if size == 2:
        yield from itertools.combinations(names, 2)
        return
    for first in range(len(names)):
        yield tuple(names[(first + i) % len(names)] for i in range(size))


builder.combinations = some


def give_up(run, most=50, most_too_large=3):
    """Ends the search for one value after some draws of nothing, not after a thousand.

    For most of the parameters the tool looks for a value of another type that is no string,
    and all that is in a query, a path or a header is one. An array of 1000 events is larger
    than anything that it can draw, which takes it a second to find out each time.
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
    """Makes the values of another type once for each parameter, not for each combination."""
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
    """Keeps a wrong value of a parameter that the configuration has a right one for."""

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
    """Says that a method which this path does not have is another operation's there.

    GET /dead-letters/bulk is of GET /dead-letters/{deadLetterId}: there is no such letter.
    """
    method, path = case.method.lower(), case.formatted_path
    paths = case.operation.schema.raw_schema["paths"]
    return method not in paths[case.path] and any(
        method in item and re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", template), path) for template, item in paths.items()
    )


builder.generate_coverage_cases = as_made(builder.generate_coverage_cases)


def not_null(generate):
    """Makes a string that is too long where the tool makes null, which may be there, too."""

    bounds = {"minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "pattern", "format"}

    def generate_from_schema(self, schema):
        if isinstance(schema, dict) and isinstance(schema.get("type"), list) and bounds & schema.keys():
            types = [t for t in schema["type"] if t != "null"]
            schema = {**schema, "type": types[0] if len(types) == 1 else types}
        return generate(self, schema)

    return generate_from_schema


coverage.CoverageContext.generate_from_schema = not_null(coverage.CoverageContext.generate_from_schema)
