"""From raw figures to the table of bars: medians, ratios per round, spread, verdicts. Runs nothing, opens nothing."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """An engine on one form of the weights."""

    engine: str
    weights: str

    def __str__(self) -> str:
        return f"{self.engine} {self.weights}"


@dataclass(frozen=True)
class Record:
    """One figure of one round."""

    round: int
    source: Source
    figure: str
    value: float


@dataclass(frozen=True)
class Line:
    """What must be reached: a ratio of `ours` to the best of `peers`, or without peers the figure itself."""

    label: str
    figure: str
    ours: Source
    peers: tuple[Source, ...]
    bar: float
    at_most: bool = False
    unit: str = "tok/s"


@dataclass(frozen=True)
class Row:
    """A line with its result. `score` is the median ratio (or figure), `low` and `high` its spread over rounds.

    `missing` tells why there is no score.
    """

    line: Line
    ours: float | None = None
    best: Source | None = None
    theirs: float | None = None
    score: float | None = None
    low: float | None = None
    high: float | None = None
    missing: str | None = None

    @property
    def verdict(self) -> str:
        """`reached`, `missed`, or why the line was not run."""
        if self.score is None:
            return f"not run: {self.missing}"
        reached = self.score <= self.line.bar if self.line.at_most else self.score >= self.line.bar
        return "reached" if reached else "missed"


LLAMA_TYPES = ("q4_1", "q4_0", "q8_0", "f16")
PREFILLS = ("prefill512", "prefill1024")
_WORDS = {
    "decode1": "decode, 1 sequence",
    "decode16": "decode, 16 sequences",
    "prefill512": "prefill 512",
    "prefill1024": "prefill 1024",
}


def _ratios(figures: Iterable[str], weights: str, name: str, peers: Iterable[Source], bar: float) -> list[Line]:
    ours = Source("modulm", weights)
    return [Line(f"{_WORDS[figure]}: to {name}", figure, ours, tuple(peers), bar) for figure in figures]


def must_reach() -> list[Line]:
    """Return every line of the table, in its order."""
    same, q4_0 = Source("llama", "q4_1"), Source("llama", "q4_0")
    best = [Source("llama", each) for each in LLAMA_TYPES]
    vllm = [Source("vllm", "float32"), Source("vllm", "bfloat16")]
    ov, gemma, ours = Source("openvino", "q4_1"), Source("llama", "gemma"), Source("modulm", "q4_1")
    return [
        *_ratios(["decode1"], "q4_1", "llama.cpp, same file", [same], 1.7),
        *_ratios(["decode1"], "q4_1", "llama.cpp, Q4_0", [q4_0], 1.3),
        *_ratios(["decode16"], "q4_1", "llama.cpp, same file", [same], 3.5),
        *_ratios(["decode16"], "q4_1", "llama.cpp, best type", best, 2.2),
        *_ratios(PREFILLS, "q4_1", "llama.cpp, same file", [same], 3),
        *_ratios(PREFILLS, "q4_1", "llama.cpp, best type", best, 1.3),
        *_ratios(["decode1"], "bf16", "vLLM CPU, bf16 weights", vllm, 2.2),
        *_ratios(["decode16"], "bf16", "vLLM CPU, bf16 weights", vllm, 2),
        *_ratios(PREFILLS, "bf16", "vLLM CPU, bf16 weights", vllm, 1),
        *_ratios(["decode1"], "q4_1", "OpenVINO GenAI, same file", [ov], 2.5),
        *_ratios(["decode16"], "q4_1", "OpenVINO GenAI, same file", [ov], 2),
        *_ratios(PREFILLS, "q4_1", "OpenVINO GenAI, same file", [ov], 1.4),
        *_ratios(["decode1"], "gemma", "llama.cpp, Gemma 3 270M Q4_K_M", [gemma], 1.3),
        *_ratios(PREFILLS, "gemma", "llama.cpp, Gemma 3 270M Q4_K_M", [gemma], 1.5),
        Line("start to first token, first time", "first_token_first", ours, (), 5, at_most=True, unit="s"),
        Line("start to first token, program cached", "first_token_cached", ours, (), 1.5, at_most=True, unit="s"),
        Line("peak memory, 16 x 512, with torch", "memory_first", ours, (), 650, at_most=True, unit="MB"),
        Line("peak memory, 16 x 512, program cached", "memory_cached", ours, (), 350, at_most=True, unit="MB"),
        Line("the same, KV cache of bytes", "memory_cached_int8", ours, (), 350, at_most=True, unit="MB"),
        Line("decode at context 1024 over context 128", "context1024", ours, (), 0.8, unit=""),
    ]


def by_round(records: Iterable[Record], source: Source, figure: str) -> dict[int, float]:
    """Return the values of one figure of one engine, by round."""
    return {each.round: each.value for each in records if each.source == source and each.figure == figure}


def best_of(records: list[Record], peers: Iterable[Source], figure: str, *, lowest: bool = False) -> Source | None:
    """Return the peer whose median is the highest, or the lowest; None when none of them has the figure."""
    medians = {peer: list(by_round(records, peer, figure).values()) for peer in peers}
    measured = {peer: statistics.median(values) for peer, values in medians.items() if values}
    return (min if lowest else max)(measured, key=lambda peer: measured[peer], default=None)


def score(line: Line, records: list[Record], reasons: dict[Source, str]) -> Row:
    """Return the row of a line; `reasons` tells why an engine gave no figures. Rounds that lack a side do not count."""
    ours = by_round(records, line.ours, line.figure)
    if not ours:
        return Row(line, missing=reasons.get(line.ours, f"{line.ours} was not measured"))
    if not line.peers:
        return _row(line, ours, None, {}, list(ours.values()))
    best = best_of(records, line.peers, line.figure, lowest=line.at_most)
    if best is None:
        told = [reasons[peer] for peer in line.peers if peer in reasons]
        missing = told[0] if told else f"{line.peers[0]} was not measured"
        return Row(line, ours=statistics.median(ours.values()), missing=missing)
    theirs = by_round(records, best, line.figure)
    ratios = [ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys())]
    if not ratios:
        return Row(line, ours=statistics.median(ours.values()), missing="no round has both")
    return _row(line, ours, best, theirs, ratios)


def _row(line: Line, ours: dict[int, float], best: Source | None, theirs: dict[int, float], scores: list[float]) -> Row:
    return Row(
        line,
        ours=statistics.median(ours.values()),
        best=best,
        theirs=statistics.median(theirs.values()) if theirs else None,
        score=statistics.median(scores),
        low=min(scores),
        high=max(scores),
    )


def rows(
    records: list[Record], reasons: dict[Source, str], figures: set[str] | None = None, asked: set[Source] | None = None
) -> list[Row]:
    """Return the table's rows, or those of some figures and of lines whose two sides were `asked` for."""
    lines = [line for line in must_reach() if figures is None or line.figure in figures]
    if asked is not None:
        lines = [line for line in lines if line.ours in asked and (not line.peers or asked & {*line.peers})]
    return [score(line, records, reasons) for line in lines]
