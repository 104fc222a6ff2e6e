"""`modulm bench serve`: put an OpenAI server under load and say what clients see. The options are vLLM's.

Requests come at `--request-rate` per second, as a Poisson process, whether or not earlier ones are done; with
`--max-concurrency` no more than so many at once. Needs the extra `bench`.
"""

import argparse
import gc
import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from modulm.cli.bench import dataset
from modulm.cli.bench.numbers import count, count_or_none, percentiles, positive, share
from modulm.cli.options import json_object
from modulm.errors import ConfigError, EngineError

_ENDPOINTS = {"openai": "/v1/completions", "vllm": "/v1/completions", "openai-chat": "/v1/chat/completions"}
_METRICS = ("ttft", "tpot", "itl", "e2el")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--backend", choices=tuple(_ENDPOINTS), default="openai", help="completions or chat; default: openai")
    add("--base-url", metavar="URL", help="the server, in place of --host and --port")
    add("--host", default="127.0.0.1")
    add("--port", type=count, default=8000, metavar="N")
    add("--endpoint", metavar="PATH", help="default: that of the backend")
    add("--header", action="append", default=[], metavar="KEY=VALUE", help="may be repeated; OPENAI_API_KEY is sent")
    add("--model", metavar="NAME", help="default: the first of /v1/models")
    add("--dataset-name", choices=dataset.NAMES, default="random", help="custom: JSON lines; default: random")
    add("--dataset-path", metavar="FILE")
    add("--num-prompts", type=count, default=1000, metavar="N", help="requests; default: 1000")
    add("--output-len", type=count, metavar="N", help="tokens to ask for, whatever the data set says")
    add("--random-input-len", type=count, default=1024, metavar="N", help="default: 1024")
    add("--random-output-len", type=count, default=128, metavar="N", help="default: 128")
    add("--random-range-ratio", type=share, default=0.0, metavar="X", help="lengths vary by this share; default: 0")
    add("--random-prefix-len", type=count_or_none, default=0, metavar="N", help="tokens that all prompts share")
    add("--random-vocab-size", type=count, default=10_000, metavar="N", help="token ids are below; default: 10000")
    add(
        "--request-rate", type=positive, default=float("inf"), metavar="X", help="per second; default: inf, all at once"
    )
    add("--burstiness", type=positive, default=1.0, metavar="X", help="1: Poisson; below: in bursts; default: 1")
    add("--max-concurrency", type=count, metavar="N", help="requests at once; default: no limit")
    add("--num-warmups", type=count_or_none, default=0, metavar="N", help="requests before, not counted; default: 0")
    add("--seed", type=int, default=0, metavar="N", help="of prompts and arrivals; default: 0")
    add("--temperature", type=float, metavar="X", help="default: the server's")
    add("--ignore-eos", action="store_true", help="ask for outputs of full length")
    add("--extra-body", type=json_object, default={}, metavar="JSON", help="further fields of every request")
    add("--percentile-metrics", type=_metrics, default=list(_METRICS), metavar="LIST", help="of ttft,tpot,itl,e2el")
    add("--metric-percentiles", type=percentiles, default=[50.0, 90.0, 99.0], metavar="LIST", help="default: 50,90,99")
    add("--json", action="store_true", help="print one JSON object")
    add("--save-result", action="store_true", help="write it to a file")
    add("--save-detailed", action="store_true", help="with what was measured of every request")
    add("--result-dir", default=".", metavar="FOLDER")
    add("--result-filename", metavar="FILE")
    add("--metadata", action="append", default=[], metavar="KEY=VALUE", help="goes into the file; may be repeated")


def run(args: argparse.Namespace) -> int:
    """Send the load, print the table; status 1 when no request was answered."""
    try:
        import uvloop

        from modulm.cli.bench import report
    except ImportError as error:
        raise ConfigError(
            f"`modulm bench serve` needs more ({error}). It comes with an extra: pip install 'modulm-core[bench]'."
        ) from error
    outcomes, seconds, model = uvloop.run(_measure(args))
    result = _settings(args, model) | report.summary(
        outcomes, seconds, args.percentile_metrics, args.metric_percentiles
    )
    print(json.dumps(result) if args.json else report.as_text(result, args.percentile_metrics))
    if args.save_result or args.save_detailed:
        _save(args, result | (report.details(outcomes) if args.save_detailed else {}))
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if errors:
        print(f"modulm: {len(errors)} of {len(outcomes)} requests failed. The first: {errors[0]}", file=sys.stderr)
    return 0 if result["completed"] else 1


async def _measure(args: argparse.Namespace) -> tuple[list[Any], float, str]:
    from modulm.cli.bench import load

    base = (args.base_url or f"http://{args.host}:{args.port}").rstrip("/")
    path = args.endpoint or _ENDPOINTS[args.backend]
    headers = _headers(args)
    try:
        model = args.model or await load.first_model(base, headers)
    except Exception as error:  # aiohttp's errors, and answers of any shape
        raise EngineError(f"{base}/v1/models gives no model: {error!r}. Start the server, or add --model.") from error
    body = dict(args.extra_body)
    body |= {} if args.temperature is None else {"temperature": args.temperature}
    body |= {"ignore_eos": True} if args.ignore_eos else {}
    is_chat = path.endswith("/chat/completions")
    target = load.Target(url=f"{base}{path}", model=model, is_chat=is_chat, headers=headers, body=body)
    every = dataset.samples(args, args.num_prompts + args.num_warmups, as_text=is_chat)
    samples, warmups = every[: args.num_prompts], every[args.num_prompts :]
    if warmups:  # with prompts of their own: those that are measured shall not be cached
        await load.run(target, warmups, [0.0] * len(warmups), args.max_concurrency)
    gc.collect()
    gc.freeze()  # else a collection of what was imported takes 20 ms, and counts as the server's
    due = load.due_times(len(samples), args.request_rate, args.burstiness, args.seed)
    outcomes, seconds = await load.run(target, samples, due, args.max_concurrency)
    return outcomes, seconds, model


def _settings(args: argparse.Namespace, model: str) -> dict[str, Any]:
    rate = args.request_rate
    return {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "backend": args.backend,
        "model_id": model,
        "num_prompts": args.num_prompts,
        "request_rate": "inf" if rate == float("inf") else rate,
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
        **dict(_pair("--metadata", each) for each in args.metadata),
    }


def _save(args: argparse.Namespace, result: dict[str, Any]) -> None:
    rate = f"{result['request_rate']}qps"
    name = args.result_filename or f"{args.backend}-{rate}-{Path(result['model_id']).name}-{result['date']}.json"
    file = Path(args.result_dir) / name
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--result-dir {args.result_dir!r} is refused: {file}: {error.strerror}.") from error


def _headers(args: argparse.Namespace) -> dict[str, str]:
    key = os.environ.get("OPENAI_API_KEY")
    return ({"Authorization": f"Bearer {key}"} if key else {}) | dict(_pair("--header", each) for each in args.header)


def _pair(option: str, text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not (key and sign):
        raise ConfigError(f"{option} {text!r} is refused: it must be KEY=VALUE.")
    return key, value


def _metrics(text: str) -> list[str]:
    found = text.split(",")
    if not set(found) <= set(_METRICS):
        raise argparse.ArgumentTypeError(f"{text!r} is refused: there are {', '.join(_METRICS)}")
    return found
