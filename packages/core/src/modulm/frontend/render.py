"""Chat messages to one text, through the model's chat template. What transformers' `apply_chat_template` renders.

Knows templates and messages; not ids. The environment that templates run in is `sandbox.py`; what messages may hold is
`messages.py`.
"""

import functools
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import SecurityError

from modulm.errors import ConfigError, RequestError
from modulm.frontend.messages import Message, join_parts, normalise, plain
from modulm.frontend.sandbox import MAX_CHARACTERS, Bounds, ChatEnvironment

Templates = str | dict[str, str]
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the place to continue from; ends in a space so that a template's trimming shows (transformers' method)."""
_PROBE = "modulm probe"


def read_template(path_or_source: str) -> str:
    """Return the template that the user configured: a file's contents, or the text itself when it is Jinja.

    Raises `ConfigError` when it is neither.
    """
    if any(mark in path_or_source for mark in "{}\n"):
        return path_or_source
    try:
        return Path(path_or_source).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"chat_template={path_or_source!r} cannot be read: {error}. Give a file, or the template itself."
        ) from error


class Renderer:
    """Renders conversations with the model's templates.

    Args:
        templates: Jinja source, or several by name, or None when the model has none.
        named_tokens: `bos_token` and the like, as templates see them.

    Attributes:
        templates: As given.
    """

    def __init__(self, templates: Templates | None, named_tokens: dict[str, str]) -> None:
        self.templates = templates
        self._named_tokens = named_tokens

    def render(
        self,
        messages: Any,
        *,
        chat_template: str | None = None,
        tools: Any = None,
        documents: Any = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: dict[str, Any] | None = None,
        **template_kwargs: Any,
    ) -> str:
        """Return the prompt's text. Raises `RequestError`, with the template's own words where it refuses.

        Args:
            messages: The conversation, oldest first.
            chat_template: The name of one of the model's templates, or Jinja source to use instead.
            tools, documents: Lists of objects for the template.
            add_generation_prompt: Whether the assistant's turn is opened; by default unless a message is continued.
            continue_final_message: Leave the last message open, for the model to go on with.
            chat_template_kwargs, template_kwargs: More names for the template (`enable_thinking` ...).
        """
        opens = not continue_final_message if add_generation_prompt is None else add_generation_prompt
        if opens and continue_final_message:
            raise RequestError(
                "add_generation_prompt and continue_final_message cannot both be true: one opens a new message, the "
                "other goes on with the last. Set one of them to false.",
                parameter="continue_final_message",
            )
        _check_options(chat_template, chat_template_kwargs, add_generation_prompt, continue_final_message)
        chat = normalise(messages)
        template = _compiled(self._source(chat_template, bool(tools)))
        if any(isinstance(message.get("content"), list) for message in chat) and not self._takes_parts(template):
            chat = join_parts(chat)
        names = self._named_tokens | plain({**(chat_template_kwargs or {}), **template_kwargs}, "template options")
        names |= {"tools": _objects(tools, "tools"), "documents": _objects(documents, "documents")}
        if continue_final_message:
            return self._continued(template, chat, names)
        return _run(template, chat, {**names, "add_generation_prompt": opens})

    def _source(self, asked: str | None, with_tools: bool) -> str:
        """Choose as transformers does: by name, else "tool_use" where tools are given, else "default"."""
        templates = self.templates
        named = templates if isinstance(templates, dict) else {}
        if asked is not None:
            return named.get(asked, asked)
        if isinstance(templates, str):
            return templates
        if with_tools and "tool_use" in named:
            return named["tool_use"]
        if "default" in named:
            return named["default"]
        there = f"it has templates named {', '.join(sorted(named))}, none of them 'default'" if named else "it has none"
        raise RequestError(
            f"This model's chat template was asked for, and {there}. Start with chat_template=FILE, pass a template "
            "with the request, or send a plain prompt.",
            parameter="messages",
        )

    def _takes_parts(self, template: jinja2.Template) -> bool:
        """Whether the template itself goes through a list of parts: tried on one, as templates do it in many ways."""
        probe: list[Message] = [{"role": "user", "content": [{"type": "text", "text": _PROBE}]}]
        names = {**self._named_tokens, "tools": None, "documents": None, "add_generation_prompt": False}
        try:
            text = _run(template, probe, names)
        except RequestError:
            return False
        return _PROBE in text and "'text'" not in text and '"text"' not in text

    def _continued(self, template: jinja2.Template, chat: list[Message], names: dict[str, Any]) -> str:
        last = _tag_last(chat[-1])
        text = _run(template, chat, {**names, "add_generation_prompt": False})
        before, mark, after = text.rpartition(_TAG.strip())
        if not mark or last.strip() not in text:
            raise RequestError(
                "continue_final_message cannot be done: the chat template does not write out the last message's "
                "content as it is. End with a message that it writes out.",
                parameter="continue_final_message",
            )
        return before if after.startswith(" ") else before.rstrip()


def _check_options(template: Any, kwargs: Any, *switches: Any) -> None:
    if template is not None and not isinstance(template, str):
        raise RequestError(
            f"chat_template={template!r:.80} is refused: it must be the name of one of the model's, or Jinja source.",
            parameter="chat_template",
        )
    if kwargs is not None and not isinstance(kwargs, dict):
        raise RequestError(
            f"chat_template_kwargs={kwargs!r:.80} is refused: it must be an object.", parameter="chat_template_kwargs"
        )
    for switch in switches:
        if switch is not None and not isinstance(switch, bool):
            raise RequestError(
                f"add_generation_prompt or continue_final_message is {switch!r:.80} and refused: "
                "each must be true or false.",
                parameter="add_generation_prompt",
            )


def _objects(value: Any, name: str) -> Any:
    """Return a plain copy of a list of objects. Templates would pass over anything else without a word."""
    copy = plain(value, name)
    if copy is not None and not (isinstance(copy, list) and all(isinstance(each, dict) for each in copy)):
        raise RequestError(f"{name}={value!r:.80} is refused: it must be a list of objects.", parameter=name)
    return copy


def _tag_last(message: Message) -> str:
    """Mark the end of the message's text; return the text without the mark."""
    content = message.get("content")
    if not content:
        raise RequestError(
            "continue_final_message needs a last message with content, and it has none.",
            parameter="continue_final_message",
        )
    holder, key = (message, "content") if isinstance(content, str) else (content[-1], "text")
    text: str = holder[key]
    holder[key] = text + _TAG
    return text


@functools.cache
def _environment() -> ChatEnvironment:
    return ChatEnvironment()


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    try:
        return _environment().guarded_template(source)
    except jinja2.TemplateSyntaxError as error:
        raise RequestError(
            f"The chat template is not valid Jinja: {error.message} (line {error.lineno}). Mend or replace it.",
            parameter="chat_template",
        ) from error
    except RecursionError as error:
        raise RequestError("The chat template is nested too deeply to be read.", parameter="chat_template") from error


def check_template(source: str) -> None:
    """Raise `RequestError` when the template does not compile."""
    _compiled(source)


def _run(template: jinja2.Template, chat: list[Message], names: dict[str, Any]) -> str:
    pieces: list[str] = []
    size = 0
    try:
        for piece in template.generate({**names, "messages": chat, **Bounds().context()}):
            size += len(piece)
            if size > MAX_CHARACTERS:
                raise SecurityError(f"it wrote more than {MAX_CHARACTERS:,} characters")
            pieces.append(piece)
    except SecurityError as error:
        raise RequestError(
            f"The chat template was stopped: {error}. Templates may neither reach outside nor run on without end.",
            parameter="chat_template",
        ) from error
    except Exception as error:  # a template may fail in any way; the fault lies in it or in the messages
        why = str(error) or type(error).__name__
        raise RequestError(f"The chat template refuses these messages: {why}", parameter="messages") from error
    return "".join(pieces)
