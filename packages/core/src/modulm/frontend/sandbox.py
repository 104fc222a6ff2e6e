"""The Jinja environment of chat templates: transformers' one, in a sandbox that also bounds work and size.

A template is a program from the internet. It sees only what it is given, it may take a limited number of turns, and no
single step may make a huge value; what it may take in memory below that is not metered. Knows no messages.
"""

import json
import re
import string
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.visitor import NodeTransformer

MAX_TURNS = 1_000_000
"""Loop turns and macro calls of one rendering."""
MAX_SECONDS = 20.0
MAX_CHARACTERS = 8_000_000
"""Longest text, and most items of a list, that any step may make."""
MAX_WIDTH = 100_000
"""Largest number that sizes something: padding, indentation, batches."""
_BOUNDS, _TICK, _JOIN = "_modulm_bounds", "_modulm_tick", "_modulm_join"
_SIZING_FILTERS = ("batch", "center", "indent", "slice", "tojson")
_SIZING_METHODS = ("center", "expandtabs", "ljust", "rjust", "zfill")
_WIDE_SPEC = re.compile(r"\d{6}")
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(\*|\d{6})")


class Bounds:
    """Counts one rendering's turns."""

    def __init__(self) -> None:
        self._num_turns = 0
        self._deadline = time.monotonic() + MAX_SECONDS

    def tick(self) -> None:
        """Count a loop turn or macro call. Raises `SecurityError` past the bounds."""
        self._num_turns += 1
        if self._num_turns > MAX_TURNS:
            raise SecurityError(f"it took more than {MAX_TURNS:,} loop turns")
        if time.monotonic() > self._deadline:
            raise SecurityError(f"it took more than {MAX_SECONDS:.0f} seconds")

    def context(self) -> dict[str, Any]:
        """Return the variable under which guarded templates find this object."""
        return {_BOUNDS: self}


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates; everything they do goes through the guards here."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.filters["tojson"] = _tojson
        self.filters["format"] = _format
        self.filters |= {_TICK: _tick, _JOIN: _join}
        for name in _SIZING_FILTERS:
            self.filters[name] = _guarded(self.filters[name])

    def guarded_template(self, source: str) -> jinja2.Template:
        """Return a template that ticks. Raises `jinja2.TemplateSyntaxError`."""
        tree = _Guards().visit(self.parse(source))
        return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse operations whose result would be huge, before they are made."""
        if operator == "*":
            for some, times in ((left, right), (right, left)):
                if isinstance(some, str | list | tuple) and isinstance(times, int):
                    _check_size(len(some) * times)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_width(left.bit_length() * max(right, 0))
        elif operator == "%" and isinstance(left, str):
            _check_percent(left)
        return _checked(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuse string methods that would make a huge text."""
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)  # jinja2 wraps `format`
        if isinstance(owner, str):
            name = getattr(function, "__name__", "")
            if name in _SIZING_METHODS:
                _check_widths(args, kwargs)
            elif name in ("format", "format_map"):
                _check_braces(owner)
        return _checked(super().call(context, function, *args, **kwargs))


class _Guards(NodeTransformer):
    """Puts a tick at the start of every loop and macro body, and makes `~` go through `_join`."""

    def _ticking(self, node: Any, *args: Any, **kwargs: Any) -> nodes.Node:
        self.generic_visit(node)
        assert node.environment is not None
        # Filters are called directly, functions through the sandbox: several times slower.
        tick = nodes.Filter(nodes.Const(""), _TICK, [], [], None, None)
        output = nodes.Output([tick]).set_lineno(node.lineno).set_environment(node.environment)
        node.body.insert(0, output)
        return node  # type: ignore[no-any-return]

    visit_For = visit_Macro = visit_CallBlock = _ticking

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        assert node.environment is not None
        joined = nodes.Filter(nodes.List(node.nodes), _JOIN, [], [], None, None)
        return joined.set_lineno(node.lineno).set_environment(node.environment)


class _Generation(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here its body is simply rendered."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(lineno)


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(value: Any, *args: Any, **kwargs: Any) -> Any:
        _check_widths(args, kwargs)
        return function(value, *args, **kwargs)

    vars(call).update(vars(function))  # jinja2 keeps there what it passes first
    return call


@jinja2.pass_context
def _tick(context: Context, nothing: str) -> str:
    bounds: Bounds = context.parent[_BOUNDS]
    bounds.tick()
    return nothing


def _format(text: str, *args: Any, **kwargs: Any) -> str:
    _check_percent(text)
    return str(text) % (kwargs or args)


def _join(parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _checked(value: Any) -> Any:
    if isinstance(value, str | list | tuple):
        _check_size(len(value))
    return value


def _check_size(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise SecurityError(f"it made a value of {size:,} characters or items, over the limit of {MAX_CHARACTERS:,}")


def _check_width(width: int) -> None:
    if width > MAX_WIDTH:
        raise SecurityError(f"it asked for a width of {width:,}, over the limit of {MAX_WIDTH:,}")


def _check_widths(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int):
            _check_width(value)


def _check_percent(text: str) -> None:
    if _WIDE_PERCENT.search(text):
        raise SecurityError("it formats text to a width that is not a small number")


def _check_braces(text: str) -> None:
    for _, _, spec, _ in string.Formatter().parse(text):
        if spec and ("{" in spec or _WIDE_SPEC.search(spec)):
            raise SecurityError("it formats text to a width that is not a small number")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter, escapes no HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
