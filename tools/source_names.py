"""The public names of a source file as Markdown: a heading, the head as it is written, and the docstring of each.

Reads by `ast` and imports nothing. `gen_contracts.py` makes pages of it.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path


def names_of(path: Path, only: tuple[str, ...]) -> Iterator[str]:
    """Yield heading, source and docstring of every public name of a file, or of those in `only`."""
    text = path.read_text()
    body = ast.parse(text).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef):
            yield from _class(node, text, only)
        elif isinstance(node, ast.FunctionDef) and _is_shown(node.name, only):
            yield from _function(node, text, node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not only:
            name = ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and not name.startswith("_"):
                yield from (f"### `{name}`", _code(ast.get_source_segment(text, node) or ""), str(after.value.value))


def _is_shown(name: str, only: tuple[str, ...]) -> bool:
    return name in only or (not only and not name.startswith("_"))


def _class(node: ast.ClassDef, text: str, only: tuple[str, ...]) -> Iterator[str]:
    """A class with its fields, then its methods; or, of one that is not shown itself, the methods in `only`."""
    if _is_shown(node.name, only):
        fields = [child for child in node.body if isinstance(child, ast.AnnAssign | ast.Assign)]
        shown = [child for child in fields if not ast.unparse(child).startswith("_")]
        inits = [child for child in node.body if isinstance(child, ast.FunctionDef) and child.name == "__init__"]
        lines = [f"    {ast.get_source_segment(text, child)}" for child in shown]
        lines += (
            ["", *(_head(each, text) for each in inits)] if lines and inits else [_head(each, text) for each in inits]
        )
        yield f"### `{node.name}`"
        yield _code("\n".join([_head(node, text), *lines]) if lines else f"{_head(node, text)} ...")
        yield prose(ast.get_docstring(node) or "")
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(child):
            path = f"{node.name}.{child.name}"
            if path in only or (_is_shown(node.name, only) and not child.name.startswith("_")):
                yield from _function(child, text, path.removeprefix("_"))


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, text: str, title: str) -> Iterator[str]:
    yield f"#### `{title}`"
    yield _code(textwrap.dedent(_head(node, text)))
    yield prose(ast.get_docstring(node) or "")


def _head(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> str:
    """Return decorators and the first statement up to its colon, as they are written."""
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    last = node.body[0].lineno - 1 if node.body[0].lineno > node.lineno else node.lineno
    return "\n".join(text.splitlines()[first - 1 : last]).rstrip()


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def prose(docstring: str) -> str:
    """Return a docstring as Markdown: its sections (Args, Raises ...) become lists."""
    lines: list[str] = []
    in_section = False
    for line in docstring.splitlines():
        section = re.fullmatch(r"(Args|Attributes|Raises|Returns):", line)
        if section:
            lines += [f"*{section[1]}*", ""]
            in_section = True
        elif in_section and re.match(r"    \S", line):
            name, colon, rest = line.strip().partition(": ")
            lines.append(f"- `{name}`: {rest}" if colon and re.fullmatch(r"[\w, .*]+", name) else f"- {line.strip()}")
        else:
            in_section = in_section and (not line or line.startswith(" "))
            lines.append(f"  {line.strip()}" if in_section and line else line)
    return "\n".join(lines).strip().replace("](", "]\\(")  # an index and an argument, no link
