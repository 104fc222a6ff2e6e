"""Structural tags, in vLLM's older and newer notation, as Lark for llguidance.

The older: `structures` and `triggers`; the newer: a tree of formats, as in xgrammar's documentation of structural tags,
whose meaning is kept. What cannot be said in Lark is refused by its name. Text goes on to the first trigger or end in
it, which is what llguidance's lazy rules do; source: its docs/syntax.md.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

Schema = Callable[[Any], dict[str, Any]]
_TEXT = r"/(.|\n)*/"
_FORMATS: dict[str, tuple[str, ...]] = {
    "const_string": ("value",),
    "json_schema": ("json_schema", "style"),
    "any_text": (),
    "grammar": ("grammar", "syntax"),
    "regex": ("pattern",),
    "sequence": ("elements",),
    "or": ("elements",),
    "tag": ("begin", "content", "end"),
    "triggered_tags": ("triggers", "tags", "at_least_one", "stop_after_first"),
    "tags_with_separator": ("tags", "separator", "at_least_one", "stop_after_first"),
    "optional": ("content",),
    "plus": ("content",),
    "star": ("content",),
    "repeat": ("min", "max", "content"),
}
_GBNF_RULE = re.compile(r"^[ \t]*([\w-]+)[ \t]*::=", re.MULTILINE)
_REPEATS = {"optional": "?", "plus": "+", "star": "*"}


def lark_of(text: str, schema: Schema) -> str:
    """Return a structural tag as Lark. Raises `ValueError` with what it is refused for.

    Args:
        text: Its JSON.
        schema: Returns a part's JSON Schema as llguidance takes it; raises `ValueError` too.
    """
    tag = json.loads(text)
    if not isinstance(tag, dict) or tag.get("type", "structural_tag") != "structural_tag":
        raise ValueError("a structural tag is an object of the type 'structural_tag'")
    form = tag.get("format") if "structures" not in tag else _from_older(tag)
    if form is None:
        raise ValueError("a structural tag has 'format', or 'structures' and 'triggers'")
    writer = _Writer(schema)
    start = writer.write(form)
    return "\n".join(["%llguidance {}", f"start: {start}", *writer.rules]) + "\n"


def check_rules(grammar: str) -> None:
    """Of a GBNF rule that is there twice the library takes the last, without a word."""
    rules = [rule for rule, count in Counter(_GBNF_RULE.findall(grammar)).items() if count > 1]
    if rules:
        raise ValueError(f"rule {rules[0]!r} is defined more than once")


def _from_older(tag: Mapping[str, Any]) -> dict[str, Any]:
    structures = tag["structures"]
    if not isinstance(structures, list) or any(not isinstance(each, dict) for each in structures):
        raise ValueError("'structures' must be a list of objects")
    tags = [
        {
            "type": "tag",
            "begin": each.get("begin"),
            "content": {"type": "json_schema", "json_schema": each.get("schema", {})},
            "end": each.get("end"),
        }
        for each in structures
    ]
    return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}


class _Writer:
    """Writes formats as expressions; `rules` are what they refer to."""

    def __init__(self, schema: Schema) -> None:
        self.rules: list[str] = []
        self._schema = schema

    def write(self, form: Any) -> str:
        """Return a format as an expression."""
        kind = form.get("type") if isinstance(form, dict) else None
        if kind not in _FORMATS:
            raise ValueError(f"the format {kind!r} is not read. There are: {', '.join(_FORMATS)}")
        for key, value in form.items():
            if key not in ("type", *_FORMATS[kind]) and value not in (None, False, []):
                raise ValueError(f"{key!r} of the format {kind!r} is not enforced")
        if kind in _REPEATS:
            return f"({self.write(form.get('content'))}){_REPEATS[kind]}"
        written: str = getattr(self, f"_{kind}")(form)
        return written

    def _rule(self, body: str, attributes: str = "", kind: str = "r") -> str:
        name = f"{kind}{len(self.rules)}"
        self.rules.append(f"{name}{attributes}: {body}")
        return name

    def _const_string(self, form: Any) -> str:
        return _literal(form, "value")

    def _json_schema(self, form: Any) -> str:
        if form.get("style", "json") != "json":
            raise ValueError(f"the style {form['style']!r} of the format 'json_schema' is not enforced")
        return self._rule("%json " + json.dumps(self._schema(form.get("json_schema"))))

    def _any_text(self, form: Any) -> str:
        return _TEXT

    def _grammar(self, form: Any) -> str:
        grammar = form.get("grammar")
        if not isinstance(grammar, str):
            raise ValueError("'grammar' must be a text")
        check_rules(grammar)
        try:
            lark = grammar if form.get("syntax", "ebnf") == "lark" else gbnf_to_lark(grammar)
        except GbnfToLarkError as error:
            raise ValueError(str(error)) from error
        return self._rule("%lark {\n" + lark + "\n}")

    def _regex(self, form: Any) -> str:
        pattern = form.get("pattern")
        if not isinstance(pattern, str) or not pattern:
            raise ValueError("'pattern' must be a text that is not empty")
        return self._rule("/" + _without_slashes(pattern) + "/")

    def _sequence(self, form: Any) -> str:
        return self._joined(_listed(form, "elements"))

    def _joined(self, forms: list[Any]) -> str:
        """Text that something follows goes on to its first words, which must be fixed."""
        written: list[str] = []
        before_words = False
        for form, following in zip(forms, [*forms[1:], None], strict=True):
            if before_words:
                before_words = False
                written += self._after_text(form)
            elif following is not None and _is(form, "any_text"):
                before_words = True
            elif following is not None and _ends_in_text(form):
                raise ValueError("text that anything but fixed words follows is not enforced")
            else:
                written.append(self.write(form))
        return "(" + " ".join(written) + ")" if any(written) else '""'

    def _after_text(self, form: Any) -> list[str]:
        if _is(form, "const_string"):
            return [self._rule(f"{_TEXT} {_literal(form, 'value')}", "[lazy]")]
        if _is(form, "tag"):
            return [self._rule(f"{_TEXT} {_literal(form, 'begin')}", "[lazy]"), self._tag(form, begin='""')]
        raise ValueError("text that anything but fixed words follows is not enforced")

    def _or(self, form: Any) -> str:
        return "(" + " | ".join(self.write(each) for each in _listed(form, "elements")) + ")"

    def _tag(self, form: Any, begin: str | None = None) -> str:
        begin = _literal(form, "begin") if begin is None else begin
        ends = form.get("end")
        end = "(" + " | ".join(_quoted(each, "end") for each in (ends if isinstance(ends, list) else [ends])) + ")"
        content = form.get("content")
        if _is(content, "any_text") and end != '("")':
            return f"{begin} {self._rule(f'{_TEXT} {end}', '[lazy]')}"
        if _ends_in_text(content) and end != '("")':
            raise ValueError("text that anything but fixed words follows is not enforced")
        return f"{begin} {self.write(content)} {end}"

    def _triggered_tags(self, form: Any) -> str:
        triggers, tags = _listed(form, "triggers"), _tags(form)
        if any(not isinstance(trigger, str) or not trigger for trigger in triggers):
            raise ValueError("'triggers' must be texts that are not empty")
        by_trigger: dict[str, list[Any]] = {trigger: [] for trigger in triggers}
        for tag in tags:
            begin = tag.get("begin")
            trigger = next((each for each in triggers if isinstance(begin, str) and begin.startswith(each)), None)
            if trigger is None:
                raise ValueError(f"no trigger begins the tag {begin!r}")
            by_trigger[trigger].append(tag)
        triggered = "(" + " | ".join(self._triggered(*each) for each in by_trigger.items()) + ")"
        first = "(" + " | ".join(self._tag(tag) for tag in tags) + ")"
        only_first = bool(form.get("stop_after_first"))
        held = "|".join(map(_escaped, triggers))
        text = self._rule(rf"/(.|\n)*/ & ~/(.|\n)*({held})(.|\n)*/", kind="T")
        if form.get("at_least_one"):
            return first if only_first else f"{first} {triggered}* {text}"
        return f"({triggered} | {text})" if only_first else f"{triggered}* {text}"

    def _triggered(self, trigger: str, tags: list[Any]) -> str:
        begun = self._rule(f"{_TEXT} {_quoted(trigger, 'trigger')}", "[lazy]")
        rests = [self._tag(tag, begin=_quoted(tag["begin"][len(trigger) :], "begin")) for tag in tags]
        return f"{begun} ({' | '.join(rests)})"

    def _tags_with_separator(self, form: Any) -> str:
        one = self._rule(" | ".join(self._tag(tag) for tag in _tags(form)))
        more = "" if form.get("stop_after_first") else f" ({_literal(form, 'separator')} {one})*"
        return f"({one}{more})" + ("" if form.get("at_least_one") else "?")

    def _repeat(self, form: Any) -> str:
        least, most = form.get("min"), form.get("max")
        if not isinstance(least, int) or not isinstance(most, int):
            raise ValueError("'min' and 'max' of the format 'repeat' must be whole numbers")
        return f"({self.write(form.get('content'))}){{{least},{'' if most < 0 else most}}}"


def _is(form: Any, kind: str) -> bool:
    return isinstance(form, dict) and form.get("type") == kind


def _ends_in_text(form: Any) -> bool:
    """Whether any text may stand at the end of a format."""
    if not isinstance(form, dict):
        return False
    if form.get("type") == "triggered_tags":
        return not (form.get("at_least_one") and form.get("stop_after_first"))
    inner = [form.get("content")] if form.get("type") in ("optional", "plus", "star", "repeat") else []
    if form.get("type") in ("sequence", "or") and isinstance(form.get("elements"), list):
        inner = form["elements"][-1:] if form["type"] == "sequence" else form["elements"]
    return _is(form, "any_text") or any(_ends_in_text(each) for each in inner)


def _listed(form: Mapping[str, Any], key: str) -> list[Any]:
    value = form.get(key)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{key!r} of the format {form.get('type')!r} must be a list that is not empty")
    return value


def _tags(form: Mapping[str, Any]) -> list[Any]:
    tags = _listed(form, "tags")
    if any(not isinstance(tag, dict) for tag in tags):
        raise ValueError("'tags' must be formats of the type 'tag'")
    return tags


def _literal(form: Mapping[str, Any], key: str) -> str:
    return _quoted(form.get(key), key)


def _quoted(text: Any, key: str) -> str:
    if not isinstance(text, str):
        raise ValueError(f"{key!r} must be a text; {text!r:.60} is not read")
    return json.dumps(text, ensure_ascii=False)


def _escaped(word: str) -> str:
    return "".join(letter if letter.isalnum() or ord(letter) > 127 else f"\\x{ord(letter):02x}" for letter in word)


def _without_slashes(pattern: str) -> str:
    """Return an expression as Lark writes it between slashes."""
    written, escaped = "", False
    for letter in pattern:
        written += {"/": "/" if escaped else "\\/", "\n": "\\n"}.get(letter, letter)
        escaped = letter == "\\" and not escaped
    return written
