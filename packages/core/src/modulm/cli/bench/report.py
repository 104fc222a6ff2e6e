"""What a run of `modulm bench serve` came to, under vLLM's names. Knows outcomes, no HTTP."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from modulm.cli.bench.load import Outcome

METRICS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
_MS = 1000.0


def summary(
    outcomes: Sequence[Outcome], seconds: float, metrics: Sequence[str], percentiles: Sequence[float]
) -> dict[str, Any]:
    """Return counts, rates, and the chosen metrics in milliseconds: mean, median, std and percentiles of each."""
    done = [outcome for outcome in outcomes if outcome.error is None]
    num_prompt = sum(outcome.num_prompt for outcome in done)
    num_output = sum(outcome.num_output for outcome in done)
    result: dict[str, Any] = {
        "duration": seconds,
        "completed": len(done),
        "failed": len(outcomes) - len(done),
        "total_input_tokens": num_prompt,
        "total_output_tokens": num_output,
        "request_throughput": len(done) / seconds,
        "output_throughput": num_output / seconds,
        "total_token_throughput": (num_prompt + num_output) / seconds,
        "max_waited_ms": max((outcome.waited for outcome in outcomes), default=0.0) * _MS,
    }
    values = _values(done)
    for name in metrics:
        result |= _figures(name, values[name], percentiles)
    return result


def details(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return what was measured of every request, a list per field."""
    return {
        "input_lens": [outcome.num_prompt for outcome in outcomes],
        "output_lens": [outcome.num_output for outcome in outcomes],
        "ttfts": [outcome.ttft for outcome in outcomes],
        "itls": [outcome.itl for outcome in outcomes],
        "latencies": [outcome.latency for outcome in outcomes],
        "start_times": [outcome.started for outcome in outcomes],
        "queue_times": [outcome.waited for outcome in outcomes],
        "generated_texts": ["".join(outcome.text) for outcome in outcomes],
        "errors": [outcome.error or "" for outcome in outcomes],
    }


def as_text(result: dict[str, Any], metrics: Sequence[str]) -> str:
    """Return a table for people."""
    lines = []
    for name, value in result.items():
        title = next((METRICS[metric] for metric in metrics if name == f"mean_{metric}_ms"), None)
        if title:
            lines.append(f"{title:-^50}")
        shown = f"{value:.2f}" if isinstance(value, float) else str(value)
        lines.append(f"{name:<40} {shown}")
    return "\n".join(lines)


def _values(done: Sequence[Outcome]) -> dict[str, list[float]]:
    begun = [(outcome, outcome.ttft) for outcome in done if outcome.ttft is not None]
    return {
        "ttft": [ttft for _, ttft in begun],
        "tpot": [(each.latency - ttft) / (each.num_output - 1) for each, ttft in begun if each.num_output > 1],
        "itl": [gap for outcome in done for gap in outcome.itl],
        "e2el": [outcome.latency for outcome in done],
    }


def _figures(name: str, values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    ms = np.array(values or [0.0]) * _MS
    figures = {"mean": ms.mean(), "median": np.median(ms), "std": ms.std()}
    figures |= {f"p{each:g}": np.percentile(ms, each) for each in percentiles}
    return {f"{key}_{name}_ms": float(value) for key, value in figures.items()}
