"""Command-line options that several commands share: every field of `EngineConfig`, and the common sampling parameters.

Derived from the dataclasses, so that an option added there appears here. Knows no command.
"""

import argparse
import dataclasses
import json
import types
import typing
from collections.abc import Collection
from typing import Any

from modulm.cli.streams import utf8
from modulm.config import EngineConfig
from modulm.sampling_params import SamplingParams

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "min_tokens",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "ignore_eos",
    "n",
)


def add_engine_options(parser: argparse.ArgumentParser, *, leave_out: Collection[str] = ()) -> None:
    """Add `--model` and one option per engine setting, with the dataclass's defaults and documentation."""
    group = parser.add_argument_group("engine", "vLLM's names; see docs for the meaning of each")
    add_options(group, EngineConfig, leave_out=leave_out, required=("model",))


def add_options(
    group: Any, options: type[Any], *, leave_out: Collection[str] = (), required: Collection[str] = ()
) -> None:
    """Add one option per field of a dataclass. What is not given stays None."""
    hints = typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        if field.name not in leave_out:
            _add(group, field, hints[field.name], required=field.name in required)


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """Collect the engine options that were given."""
    names = [field.name for field in dataclasses.fields(EngineConfig)]
    return EngineConfig.make(**{name: getattr(args, name) for name in names if getattr(args, name) is not None})


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add the common sampling parameters; what is not given comes from the model's generation config."""
    group = parser.add_argument_group("sampling")
    hints = typing.get_type_hints(SamplingParams)
    for field in dataclasses.fields(SamplingParams):
        if field.name in _SAMPLING:
            _add(group, field, hints[field.name])
    group.add_argument(
        "--stop", action="append", type=utf8, metavar="TEXT", help="end the output at this text; may be repeated"
    )


def sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the sampling parameters that were given, by name."""
    return {name: getattr(args, name) for name in (*_SAMPLING, "stop") if getattr(args, name) is not None}


def checked_sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return `sampling_options`. Raises `RequestError` for what cannot be, before a model is loaded for it."""
    options = sampling_options(args)
    SamplingParams(**{"max_tokens": None, **options})
    return options


def _add(group: Any, field: "dataclasses.Field[Any]", hint: Any, *, required: bool = False) -> None:
    flag = "--" + field.name.replace("_", "-")
    kind = _plain_type(hint)
    default = None if field.default is dataclasses.MISSING else field.default
    about = f"{field.metadata['help']}; " if "help" in field.metadata else ""
    if kind is bool:
        text = f"{about}default: {'on' if default else 'off'}"
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
    elif "form" in field.metadata:
        group.add_argument(flag, action=_Setting, metavar=field.metadata["form"], default=None, help=about.rstrip("; "))
    elif kind is dict:
        group.add_argument(flag, type=json_object, metavar="JSON", default=None, help=about.rstrip("; "))
    elif kind is list and field.metadata.get("many"):
        group.add_argument(flag, nargs="+", metavar="VALUE", default=None, help=about.rstrip("; "))
    elif kind is list:
        text = about.rstrip("; ") or "may be repeated"
        group.add_argument(flag, action="append", metavar="VALUE", default=None, help=text)
    else:
        text = "folder, .gguf file, hub id, or package://PACKAGE/FILE" if required else f"{about}default: {default}"
        metavar = {int: "N", float: "X"}.get(kind, "VALUE")
        group.add_argument(flag, type=kind, default=None, required=required, metavar=metavar, help=text)


class _Setting(argparse.Action):
    """Collects NAME.key=value into {NAME: {key: value}}; a name may have dots."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        place, equals, value = values.partition("=")
        name, _, key = place.rpartition(".")
        if not (equals and name and key):
            parser.error(f"{option} {values!r} is refused: it must be NAME.key=value, NAME being a plugin's.")
        found = getattr(namespace, self.dest) or {}
        setattr(namespace, self.dest, {**found, name: {**found.get(name, {}), key: value}})


def _plain_type(hint: Any) -> type:
    """Reduce an annotation to the type argparse converts to: `int | None` to int, a Literal to str."""
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    origin = typing.get_origin(hint) or hint
    return origin if origin in (bool, int, float, list, dict) else str


def json_object(text: str) -> dict[str, Any]:
    """Return the object that an option's text is. Raises `argparse.ArgumentTypeError`."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is refused: it is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is refused: it must be a JSON object")
    return value
