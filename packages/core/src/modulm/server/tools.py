"""What chat requests say of tools, checked; and what parsers found in an answer, in OpenAI's words.

Knows the wire and the parsers' events; formats of models are the parsers' own.
"""

from collections.abc import Sequence
from typing import Any, Literal

from modulm.frontend.parse import Parse
from modulm.interfaces.parsers import CallArguments, CallStart, Content, Event, Reasoning, collect
from modulm.server.errors import Refused, refused_field
from modulm.server.schema.chat import ChatRequest, FunctionCall, Message, ToolCall
from modulm.server.schema.structured import asked_form
from modulm.server.serving import Serving


def parse_of(serving: Serving, body: ChatRequest) -> Parse:
    """Return what the request wants of its answer. Raises `Refused` for what nothing would honour."""
    functions = [_function(number, tool) for number, tool in enumerate(body.tools or ())]
    choice = body.tool_choice if body.tool_choice is not None else ("auto" if functions else "none")
    if not functions and choice not in ("none", "auto"):
        raise refused_field("tool_choice", choice, "there are no tools to choose from")
    forced: Literal["", "required", "named"] = ""
    if isinstance(choice, dict):
        forced, functions = "named", [_named(choice, functions)]
    elif choice == "required":
        forced = "required"
    elif choice not in ("none", "auto"):
        raise refused_field("tool_choice", choice, "it must be 'none', 'auto', 'required' or name a function")
    elif functions and choice == "auto" and (lack := _lack(serving)):
        why = f"the server was started without {lack}; 'required' and a function's name need none, 'none' calls nothing"
        raise refused_field("tool_choice", choice, why)
    if forced and (field := asked_form(body)[0]) != "response_format" and getattr(body, field) is not None:
        raise refused_field(field, getattr(body, field), "tool_choice makes the answer a call, which has its own form")
    return Parse(
        tools=functions if choice != "none" else (),
        parallel=body.parallel_tool_calls is not False,
        template_kwargs=template_names(serving, body),
        forced=forced,
    )


def template_names(serving: Serving, body: Any) -> dict[str, Any]:
    """Return what the chat template is told besides messages and tools; parsers go by it, too."""
    names = serving.options.default_chat_template_kwargs | (body.chat_template_kwargs or {})
    effort = getattr(body, "reasoning_effort", None)
    return names if effort is None else {"reasoning_effort": effort, **names}


def shown_tools(serving: Serving, body: Any) -> Any:
    """Return what the chat template is told of."""
    hidden = serving.options.exclude_tools_when_tool_choice_none and getattr(body, "tool_choice", None) == "none"
    return None if hidden else body.tools


def delta_of(events: Sequence[Event], *, with_reasoning: bool) -> Message:
    """Return what events add to an answer; at most one entry for each call."""
    message = Message()
    calls: dict[int, ToolCall] = {}
    for event in events:
        if isinstance(event, Content):
            message.content = (message.content or "") + event.text
        elif isinstance(event, CallStart):
            function = FunctionCall(name=event.name, arguments="")
            calls[event.index] = ToolCall(index=event.index, id=event.id or "", type="function", function=function)
        elif isinstance(event, CallArguments):
            call = calls.setdefault(event.index, ToolCall(index=event.index, function=FunctionCall(arguments="")))
            call.function.arguments += event.text
        elif with_reasoning and isinstance(event, Reasoning):
            message.reasoning = message.reasoning_content = (message.reasoning or "") + event.text
    if calls:
        message.tool_calls = list(calls.values())
    return message


def message_of(events: Sequence[Event], *, role: str, echoed: str, with_reasoning: bool) -> Message:
    """Return the whole answer; its content is null where there are only calls or thoughts."""
    parsed = collect(events)
    has_more = bool(parsed.calls or parsed.reasoning)
    message = Message(role=role, content=(echoed + parsed.content) or (None if has_more else ""), refusal=None)
    if with_reasoning and parsed.reasoning:
        message.reasoning = message.reasoning_content = parsed.reasoning
    if parsed.calls:
        message.tool_calls = [
            ToolCall(id=call.id or "", type="function", function=FunctionCall(name=call.name, arguments=call.arguments))
            for call in parsed.calls
        ]
    return message


def _lack(serving: Serving) -> str:
    if serving.llm.parsers.tool is None:
        return "--tool-call-parser"
    return "" if serving.options.enable_auto_tool_choice else "--enable-auto-tool-choice"


def _named(choice: dict[str, Any], functions: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the function that a tool_choice names."""
    asked = choice.get("function")
    name = asked.get("name") if choice.get("type") == "function" and isinstance(asked, dict) else None
    if name is None:
        raise refused_field("tool_choice", choice, "it must be {'type': 'function', 'function': {'name': ...}}")
    for function in functions:
        if function["name"] == name:
            return function
    there = ", ".join(repr(function["name"]) for function in functions)
    raise refused_field("tool_choice", choice, f"no tool has this name; there are {there}")


def _function(number: int, tool: dict[str, Any]) -> dict[str, Any]:
    """Return the function of one tool. One bad tool is refused by its number, and its name where it has one."""
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise _refused(number, "it must be {'type': 'function', 'function': {...}}")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not name:
        raise _refused(number, "its function has no name")
    if parameters is not None and not isinstance(parameters, dict):
        raise _refused(number, f"the parameters of function {name!r} must be a JSON schema, an object")
    if not isinstance(function.get("strict"), bool | None):
        raise _refused(number, f"strict of function {name!r} must be true or false")
    return function


def _refused(number: int, why: str) -> Refused:
    return Refused(400, f"Tool {number} is refused: {why}. Correct it, or leave it out.", param="tools")
