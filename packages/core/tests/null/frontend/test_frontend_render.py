"""Chat templates: what they see, how they are chosen, and that neither a refusal nor an attack leaves the sandbox."""

import contextlib
import time

import pytest

from modulm.errors import ConfigError, RequestError
from modulm.frontend import sandbox
from modulm.frontend.render import Renderer, read_template

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = [{"role": "user", "content": "hi"}]


def render(template, messages=USER, **options):
    return Renderer(template, TOKENS).render(messages, **options)


def test_what_a_template_sees():
    template = "{{ bos_token }}{{ messages[0].content }}{{ add_generation_prompt }}{{ tools }}{{ documents }}{{ deep }}"
    assert render(template) == "<s>hiTrueNoneNone"
    options = {"add_generation_prompt": False, "tools": [{"a": 1}], "documents": [{"t": "x"}]}
    assert render(template, deep=True, **options) == "<s>hiFalse[{'a': 1}][{'t': 'x'}]True"
    assert render("{{ a }}{{ bos_token }}", chat_template_kwargs={"a": 1, "bos_token": "B"}) == "1B"


def test_the_environment_is_transformers():
    assert (
        render("{% for i in [1,2,3] %}\n  {% if i == 2 %}{% continue %}{% endif %}\n{{ i }}\n{% endfor %}") == "1\n3\n"
    )
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render('{{ {"a": "<é>", "b": 1} | tojson }}') == '{"a": "<é>", "b": 1}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")
    assert render("{% generation %}x{{ messages[0].content }}{% endgeneration %}") == "xhi"
    assert render("{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m('x' ~ 1) }}") == "[x1]"
    assert render("{% macro m(a) %}{{ caller() }}{{ a }}{% endmacro %}{% call m(2) %}y{% endcall %}") == "y2"


def test_templates_by_name():
    named = {"default": "D", "tool_use": "T", "rag": "R"}
    assert render(named) == "D"
    assert render(named, tools=[{}]) == "T"
    assert render(named, chat_template="rag") == "R"
    assert render(named, chat_template="{{ 1 }}") == "1"
    with pytest.raises(RequestError, match="rag.*chat_template=FILE"):
        render({"rag": "R"})


def test_no_template_says_what_to_do():
    with pytest.raises(RequestError, match="it has none.*chat_template=FILE"):
        render(None)


def test_the_templates_own_words_reach_the_client():
    template = "{{ raise_exception('This model only supports single tool-calls at once!') }}"
    with pytest.raises(RequestError, match="only supports single tool-calls at once!"):
        render(template)


@pytest.mark.parametrize("template", ["{{ messages[9].content }}", "{{ 1 + 'a' }}", "{{ x.y.z }}", "{{ 1 / 0 }}"])
def test_a_failing_template_is_a_refusal(template):
    with pytest.raises(RequestError, match="The chat template refuses these messages"):
        render(template)


def test_a_template_that_is_not_jinja():
    with pytest.raises(RequestError, match=r"not valid Jinja.*line 2"):
        render("a\n{% for %}")
    with pytest.raises(RequestError, match="no loader"):
        render("{% include 'x' %}")


def test_parts_go_to_templates_that_take_them_and_are_joined_for_others():
    chat = [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}]}]
    takes = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}"
    )
    assert render(takes, chat) == "<hi><you>"
    for joins in ("{{ messages[0].content }}", "{{ messages[0].content + '' }}", "{{ messages[0].content | trim }}"):
        assert render(joins, chat) == "hi\nyou"


def test_the_last_message_continued():
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
    trimming = template.replace("m.content", "m.content | trim")
    chat = [*USER, {"role": "assistant", "content": "Sure, "}]
    assert render(template, chat, continue_final_message=True) == "[user]hi</s>[assistant]Sure, "
    assert render(trimming, chat, continue_final_message=True) == "[user]hi</s>[assistant]Sure,"
    parts = [*USER, {"role": "assistant", "content": [{"type": "text", "text": "Sure, "}]}]
    assert render(template, parts, continue_final_message=True) == "[user]hi</s>[assistant]Sure, "
    with pytest.raises(RequestError, match="cannot both be true"):
        render(template, chat, continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(RequestError, match="does not write out"):
        render("x", chat, continue_final_message=True)
    with pytest.raises(RequestError, match="it has none"):
        render(template, [{"role": "assistant"}], continue_final_message=True)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ (messages|attr('append'))(1) }}",
        "{{ messages.append(1) }}",
        "{{ ''|attr('__class__')|attr('__mro__') }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ self._TemplateReference__context.eval_ctx.environment }}",
        "{% set m = ''.format_map %}{{ m({'a': 1}).__class__.__base__ }}",
        "{{ _modulm_bounds.tick.__self__.__class__ }}",
    ],
)
def test_the_sandbox_holds(template):
    """Nothing but a refusal, or text that shows nothing of Python's inside."""
    with contextlib.suppress(RequestError):
        assert "<" not in render(template)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for i in range(99999999) %}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * 'a' }}",
        "{{ [0] * 10**9 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w=10**9) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{% set f = '{:>1000000000}'.format %}{{ f(1) }}",
        "{{ 'a'.ljust(10**9) }}",
        "{{ 'a' | center(10**9) }}",
        "{{ 'a\nb' | indent(10**9) }}",
        "{{ [] | batch(10**9, 1) | list }}",
        "{{ [1] | tojson(indent=10**9) }}",
        "{{ lipsum(n=10**9) }}",
        "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set x = 'a' * 99999 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    ],
)
def test_endless_and_huge_templates_are_stopped(template, monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_TURNS", 50_000)
    started = time.perf_counter()
    with pytest.raises(RequestError):
        render(template)
    assert time.perf_counter() - started < 5


def test_the_guards_leave_ordinary_templates_alone():
    assert (
        render("{{ '{:>5}|%s' .format('a') }}{{ '%5d%%' % 3 }}{{ '%s' | format(3) }}{{ 'ab'.ljust(4) }}")
        == "    a|%s    3%3ab  "
    )
    assert render("""{{ '{{"name": {}}}'.format(1) }}""") == '{"name": 1}'
    assert render("{{ [1] + [2] }}{{ 2 ** 8 }}{{ 'ab' * 2 }}{{ 'a' ~ 1 ~ none }}") == "[1, 2]256ababa1None"
    assert render("{{ 1700000000 | default(1) }}{{ 5 % 3 }}") == "17000000002"


def test_the_users_template(tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages[0].content }}!")
    assert read_template(str(file)) == "{{ messages[0].content }}!"
    assert read_template("{{ 1 }}") == "{{ 1 }}"
    with pytest.raises(ConfigError, match="nowhere.jinja"):
        read_template("nowhere.jinja")


def test_the_callers_objects_cannot_be_reached():
    class Secret:
        def model_dump(self):
            return {"type": "function", "function": {"name": "f"}}

        def leak(self):
            return "leaked"

    assert "leaked" not in render("{{ tools[0].leak() if tools[0].leak else '' }}", tools=[Secret()])
    with pytest.raises(RequestError, match="template options"):
        render("{{ x.leak() }}", x=object())
