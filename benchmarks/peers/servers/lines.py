"""What servers are measured for, and what must be reached. Runs nothing; `peers/score.py` compares."""

from peers.score import Line, Source

NUM_REQUESTS = 64
NUM_CLIENTS = 16
PROMPT_LEN = OUTPUT_LEN = 128
NUM_IDLE = 500

OURS = Source("modulm", "q4_1")
OFFLINE = Source("modulm", "q4_1 offline")
CROWDED = Source("modulm", f"q4_1 + {NUM_IDLE} idle")
LLAMA, LLAMA_BEST = Source("llama", "q4_1"), Source("llama", "q4_0")
VLLM = (Source("vllm", "float32"), Source("vllm", "bfloat16"))
SOURCES = (OURS, OFFLINE, CROWDED, LLAMA, LLAMA_BEST, *VLLM)

THROUGHPUT = "output_throughput"
FIGURES = {
    THROUGHPUT: "output tok/s",
    "p50_ttft_ms": "p50 TTFT, ms",
    "p99_ttft_ms": "p99 TTFT, ms",
    "p50_itl_ms": "p50 ITL, ms",
    "p99_itl_ms": "p99 ITL, ms",
}
"""As `modulm bench serve` names them, and as the table does."""


def must_reach() -> list[Line]:
    """Return every line of the table, in its order."""
    peers = (LLAMA, LLAMA_BEST, *VLLM)
    return [
        Line("output tok/s: to llama-server, same file", THROUGHPUT, OURS, (LLAMA,), 3.5),
        Line("output tok/s: to llama-server, best type", THROUGHPUT, OURS, (LLAMA, LLAMA_BEST), 1.9),
        Line("output tok/s: to vLLM's server", THROUGHPUT, OURS, VLLM, 2.3),
        Line("p99 TTFT: to the better peer", "p99_ttft_ms", OURS, peers, 0.7, at_most=True, unit="ms"),
        Line("p99 ITL: to the better peer", "p99_itl_ms", OURS, peers, 0.7, at_most=True, unit="ms"),
        Line("output tok/s: to the offline door", THROUGHPUT, OURS, (OFFLINE,), 0.9),
        Line(f"output tok/s kept beside {NUM_IDLE} idle streams", THROUGHPUT, CROWDED, (OURS,), 0.9),
    ]
