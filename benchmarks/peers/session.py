"""One run: installs peers, prepares weights, starts children in turn, keeps every raw figure. Prints progress only.

A peer or a form of the weights that cannot be had is noted with its reason, and the rest goes on.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from peers import children, machine, settings, weights
from peers.environments import BUILD, PEERS, ROOT, Environment, InstallError, ensure, llama_programs
from peers.jobs import Job
from peers.score import Record, Source
from peers.workload import RATES

FLASH = ("off", "on")


@dataclass
class Session:
    """What is set for a run and what has come of it.

    Attributes:
        python: The interpreter that has modulm.
        engine_options: NAME=VALUE for modulm's `EngineConfig`.
        raw: Every line that a child printed, with round, engine, weights and command.
        reasons: Why an engine gave no figures on some weights.
    """

    cores: list[int]
    repeats: int
    timeout_s: float
    python: Path = Path(sys.executable)
    engine_options: list[str] = field(default_factory=list)
    environments: dict[str, Environment] = field(default_factory=dict)
    forms: dict[str, Path] = field(default_factory=dict)
    llama_options: list[str] = field(default_factory=list)
    raw: list[dict[str, Any]] = field(default_factory=list)
    probes: list[dict[str, Any]] = field(default_factory=list)
    reasons: dict[Source, str] = field(default_factory=dict)

    def prepare(self, jobs: list[Job]) -> list[Job]:
        """Install and make what `jobs` need; return those that can run."""
        failed: dict[str, str] = {}
        for name in PEERS:
            if any(job.engine == name or (name == "llama" and job.weights in weights.REQUANTISED) for job in jobs):
                self._try(failed, name, partial(self._install, name))
        for form in dict.fromkeys(job.weights for job in jobs if job.engine not in failed):
            self._try(failed, form, partial(self._make, form))
        for job in jobs:
            reason = failed.get(job.engine) or failed.get(job.weights)
            if reason:
                self.reasons[job.source] = reason
        return [job for job in jobs if job.source not in self.reasons]

    def _install(self, name: str) -> None:
        self.environments[name] = ensure(name)

    def _make(self, form: str) -> None:
        self.forms[form] = weights.prepare(form, self.environments.get("llama"))

    def _try(self, failed: dict[str, str], name: str, make: Callable[[], None]) -> None:
        try:
            make()
        except InstallError as error:
            failed[name] = str(error)
            print(f"not run: {name}: {error}", flush=True)

    def probe(self, jobs: Iterable[Job]) -> None:
        """Choose flash attention on or off for llama.cpp, figure by figure, by a run of each beforehand."""
        wanted = {name for job in jobs if job.engine == "llama" for name in job.figures}
        asked = tuple(name for name in RATES if name in wanted and name != "prefill1024")
        if "prefill1024" in wanted and "prefill512" not in asked:
            asked = (*asked, "prefill512")
        rates: dict[str, dict[str, float]] = {name: {} for name in asked}
        for flash in FLASH if asked else ():
            job = Job("llama", next(iter(self._llama_forms(jobs))), asked, options=(f"fa={flash}",))
            for line in self._run(job, "probe", self.repeats).figures:
                if line["figure"] in rates:
                    rates[line["figure"]][flash] = line["value"]
        for name, measured in rates.items():
            if measured:
                best = max(measured, key=lambda flash: measured[flash])
                self.probes.append({"engine": "llama", "figure": name, "flash_attention": measured, "chosen": best})
                self.llama_options.append(f"fa_{name}={best}")
                print(f"llama {name}: flash attention {best} of {measured}", flush=True)
                if name == "prefill512":
                    self.llama_options.append(f"fa_prefill1024={best}")

    def _llama_forms(self, jobs: Iterable[Job]) -> list[str]:
        return [job.weights for job in jobs if job.engine == "llama"]

    def round(self, number: int, jobs: list[Job]) -> None:
        """Run every job once, in turn."""
        for job in jobs:
            if job.state == "first":
                shutil.rmtree(settings.cache_folder(job.engine), ignore_errors=True)
            started = time.monotonic()
            outcome = self._run(job, f"round{number}", self.repeats)
            ending = f"_{job.state}" if job.state else ""
            for line in outcome.figures if outcome.reason is None else outcome.figures[:-1]:
                line["figure"] += ending
                self.raw.append({"round": number, "engine": job.engine, "weights": job.source.weights, **line})
            if outcome.reason:
                self.reasons[job.source] = outcome.reason
            shown = " ".join(f"{line['figure']}={line['value']:.4g}" for line in outcome.figures)
            seconds = time.monotonic() - started
            print(f"round {number} {job.source} ({seconds:.0f} s): {outcome.reason or shown}", flush=True)

    def command(self, job: Job, repeats: int) -> list[str]:
        """Return the command of a job's child."""
        env = self.environments.get(job.engine)
        options, python, module = list(job.options), self.python, "peers.engines.modulm_engine"
        if job.engine == "modulm":
            options += self.engine_options
        else:
            assert env is not None
            module = PEERS[job.engine].module
            python = env.python
        if job.engine == "llama" and env is not None:
            python = Path(sys.executable)
            options += [f"bin={llama_programs(env)}", *(self.llama_options if not job.options else [])]
        parts = [f"--model={self.forms[job.weights]}", f"--figures={','.join(job.figures)}", f"--repeats={repeats}"]
        parts += [f"--threads={len(self.cores)}", *(f"--option={option}" for option in options)]
        return [str(python), "-m", module, *parts]

    def _run(self, job: Job, name: str, repeats: int) -> children.Outcome:
        variables = settings.variables(job.engine, self.environments.get(job.engine), self.cores)
        log = BUILD / f"logs/{name}-{job.engine}-{job.source.weights}{job.state}.log"
        return children.run(self.command(job, repeats), variables, log, self.timeout_s)

    def variables(self) -> dict[str, dict[str, str]]:
        """Return the environment variables that each engine's children are given, without this machine's paths."""
        given = {name: settings.variables(name, env, self.cores) for name, env in self._engines()}
        return {name: {key: self.public(value) for key, value in each.items()} for name, each in given.items()}

    def _engines(self) -> list[tuple[str, Environment | None]]:
        return [("modulm", None), *self.environments.items()]

    def records(self) -> list[Record]:
        """Return the raw figures as the score reads them."""
        return [
            Record(line["round"], Source(line["engine"], line["weights"]), line["figure"], line["value"])
            for line in self.raw
        ]

    def public(self, text: str) -> str:
        """Return `text` without this machine's paths."""
        hidden = {str(self.python.parent.parent): ".venv"}
        hidden |= {str(path.parent): "WEIGHTS" for path in self.forms.values() if not path.is_relative_to(ROOT)}
        return machine.without_paths(text, hidden)
