"""Give structured-output backends random JSON Schemas: each must be refused, or all that is written by it valid.

    python tools/fuzz_structured.py [--num 5000] [--seed 0] [--deadline 60] [BACKEND ...]

Each backend runs in a process of its own, which is given up where one schema takes longer than the deadline. Prints
how many schemas were refused, and every document that is wrong; exits 1 where there was one, a crash or a hang. What a
schema and a document are is in the testkit's `oracles/schemas.py`; its conformance suite runs the first 60 seeds.
"""

import argparse
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection

from modulm.errors import RequestError
from modulm.interfaces.structured import StructuredOutputsParams
from modulm.plugins.registry import registry

FAMILY = "modulm.structured_output"


def work(name: str, seeds: range, pipe: Connection) -> None:
    """Try the seeds, sending after each: whether it was refused, and what is wrong."""
    import random

    from modulm_testkit.forms import VOCABULARY
    from modulm_testkit.oracles.schemas import random_schema
    from modulm_testkit.structured import wrong_by

    backend = registry(FAMILY).get(name)(VOCABULARY)
    for seed in seeds:
        params = StructuredOutputsParams(json=random_schema(random.Random(seed)))
        try:
            pipe.send((not backend.supports(params), wrong_by(backend, seed)))
        except RequestError as error:
            pipe.send((True, [f"seed {seed}: {error}"]))


def fuzz(name: str, first: int, count: int, deadline_s: float) -> int:
    """Return the number of faults of a backend."""
    context = multiprocessing.get_context("spawn")
    num_refused, faults, slowest, at = 0, list[str](), (0.0, first), first
    while at < first + count:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(name, range(at, first + count), theirs), daemon=True)
        process.start()
        theirs.close()
        patience = deadline_s + 60  # the first also imports the library
        while at < first + count:
            started = time.monotonic()
            try:
                refused, wrong = ours.recv() if ours.poll(patience) else (False, [f"seed {at}: over {deadline_s:g} s"])
            except EOFError:
                process.join()
                refused, wrong = False, [f"seed {at}: the process ended with status {process.exitcode}"]
            if patience == deadline_s:
                slowest = max(slowest, (time.monotonic() - started, at))
            patience, num_refused, at = deadline_s, num_refused + refused, at + 1
            for line in wrong:
                print(f"{name}: {line}", flush=True)
            faults += wrong
            if not process.is_alive() and not ours.poll():
                break
            if wrong and "over" in wrong[0]:
                process.kill()
                break
        process.kill()
        process.join()
    told = (
        f"{count} schemas, {num_refused} refused, {len(faults)} faults, slowest {slowest[0]:.1f} s (seed {slowest[1]})"
    )
    print(f"{name}: {told}", flush=True)
    return len(faults)


def main() -> int:
    """Run the tool; see `--help`."""
    parser = argparse.ArgumentParser(description="Give structured-output backends random JSON Schemas.")
    parser.add_argument("backends", nargs="*", metavar="BACKEND", help="all that are installed by default")
    parser.add_argument("--num", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds that one schema may take")
    args = parser.parse_args()
    names = args.backends or registry(FAMILY).names()
    return 1 if sum(fuzz(name, args.seed, args.num, args.deadline) for name in names) else 0


if __name__ == "__main__":
    sys.exit(main())
