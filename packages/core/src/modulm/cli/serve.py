"""`modulm serve MODEL`: an OpenAI-compatible HTTP server. docs/use/serve.md describes every option."""

import argparse
import dataclasses
import json
from importlib import import_module
from pathlib import Path
from typing import Any

from modulm.cli.options import add_engine_options, add_options, engine_config
from modulm.config import EngineConfig, check_plugin_config
from modulm.errors import ConfigError, did_you_mean
from modulm.server.options import ServerOptions

HELP = "serve a model over HTTP, with OpenAI's API"
_NEEDED = ("fastapi", "httptools", "uvicorn", "uvloop", "yaml", "zmq")
"""Modules of the extra `serve`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="as --model")
    parser.add_argument("--config", metavar="FILE", help="YAML file of options; those of the command line go first")
    parser.add_argument(
        "--engine-restarts", type=int, metavar="N", help="restarts in a row of a dead engine; default: 3"
    )
    parser.add_argument(
        "--in-process",
        action=argparse.BooleanOptionalAction,
        help="run the engine in the server's process; default: off",
    )
    add_options(parser.add_argument_group("server", "vLLM's names where the meaning is vLLM's"), ServerOptions)
    add_engine_options(parser, leave_out=("model", "served_model_name"))
    parser.add_argument("--model", metavar="VALUE", help="folder, .gguf file, hub id, or package://PACKAGE/FILE")


def run(args: argparse.Namespace) -> int:
    """Load the model and serve it until a signal comes."""
    check_installed()
    args = with_file(args)
    options, config = server_options(args), _engine_config(args)
    from modulm.async_llm import AsyncLLM
    from modulm.server.app import build_app, users_middleware
    from modulm.server.listener import bound_socket, serve

    restarts = _engine_restarts(args)
    if options.enable_auto_tool_choice and config.tool_call_parser is None:
        raise ConfigError(
            "enable_auto_tool_choice is refused: nothing would find the calls. Name the model's format with "
            "--tool-call-parser, or let its chat template tell with --tool-call-parser auto."
        )
    users_middleware(options.middleware)  # what can be known to fail is, before weights load
    bound = bound_socket(options)
    llm = AsyncLLM.from_config(
        config,
        in_process=args.in_process or False,
        engine_restarts=restarts,
        disable_log_stats=options.disable_log_stats,
        otlp_traces_endpoint=options.otlp_traces_endpoint,
    )
    try:
        serve(build_app(llm, options, args, stat_loggers=[llm.stat_loggers]), llm, options, bound)
    finally:
        llm.shutdown()
    return 0


def check_installed() -> None:
    """Raise `ConfigError` naming the extra when a module of it is missing."""
    for name in _NEEDED:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"`modulm serve` needs the module {name!r}, which is not installed. It comes with an extra: "
                "pip install 'modulm-core[serve]'."
            ) from error


def with_file(args: argparse.Namespace) -> argparse.Namespace:
    """Return the options, those of `--config` filled in where the command line says nothing. Raises `ConfigError`."""
    given = {name: value for name, value in vars(args).items() if value is not None}
    filed = _read(args.config, vars(args)) if args.config else {}
    merged = argparse.Namespace(**{**vars(args), **filed, **given})
    if args.plugin_config and "plugin_config" in filed:
        check_plugin_config(filed["plugin_config"])
        settings: dict[str, dict[str, Any]] = filed["plugin_config"]
        merged.plugin_config = {**settings, **{k: {**settings.get(k, {}), **v} for k, v in args.plugin_config.items()}}
    if merged.model_tag is not None and args.model is not None and merged.model_tag != args.model:
        raise ConfigError(f"--model {args.model!r} is refused: {merged.model_tag!r} is asked for too. Leave one out.")
    merged.model = args.model or merged.model_tag or merged.model
    if merged.model is None:
        raise ConfigError("No model is asked for. Write `modulm serve MODEL`: a folder, .gguf file or hub id.")
    merged.served_model_name = (
        [merged.served_model_name] if isinstance(merged.served_model_name, str) else (merged.served_model_name)
    )
    return merged


def server_options(args: argparse.Namespace) -> ServerOptions:
    """Collect the server's options that were given."""
    names = [field.name for field in dataclasses.fields(ServerOptions)]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return ServerOptions.make(**{name: _flat(name, value) for name, value in given.items()})


def _engine_restarts(args: argparse.Namespace) -> int:
    """Check the options that belong to no dataclass: a file may say anything. Raises `ConfigError`."""
    restarts = 3 if args.engine_restarts is None else args.engine_restarts
    if type(restarts) is not int or restarts < 0:
        raise ConfigError(f"engine_restarts={restarts!r} is refused: it must be a whole number of at least 0.")
    if args.in_process not in (None, True, False):
        raise ConfigError(f"in_process={args.in_process!r} is refused: it must be true or false.")
    if args.in_process and args.engine_restarts:
        raise ConfigError("engine_restarts is refused with in_process: an engine in this process ends with it.")
    return restarts


def _engine_config(args: argparse.Namespace) -> EngineConfig:
    """The engine knows one name, which stat loggers report."""
    names = args.served_model_name
    return engine_config(argparse.Namespace(**{**vars(args), "served_model_name": names[0] if names else None}))


def _flat(name: str, value: Any) -> Any:
    """Lists may be written in vLLM's way, as one JSON array."""
    if isinstance(value, list) and len(value) == 1 and str(value[0]).startswith("["):
        try:
            return json.loads(value[0])
        except ValueError as error:
            shown = name if name == "api_key" else f"{name}={value[0]!r}"
            raise ConfigError(f"{shown} is refused: it is neither a value nor a JSON list ({error}).") from error
    return value


def _read(path: str, known: dict[str, Any]) -> dict[str, Any]:
    import yaml

    try:
        options = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path!r} cannot be read: {error}. Give a YAML file of options.") from error
    if not isinstance(options, dict):
        raise ConfigError(f"--config {path!r} is refused: it must hold `option: value` lines.")
    named = {str(name).lstrip("-").replace("-", "_"): value for name, value in options.items()}
    for name in named:
        if name not in known or name == "config":
            raise ConfigError(f"--config {path!r} is refused: option {name!r} is unknown.{did_you_mean(name, known)}")
    return {name: value for name, value in named.items() if value is not None}
