"""What is wrong with the installed plugins, and the command that mends it: judged from metadata and from verdicts.

Reads what others have found out and imports no plugin: `installed.py` knows the files, `discovery.py` the records, and
`verdicts.py` what became of plugins when they were tried.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata

from modulm.errors import did_you_mean
from modulm.plugins import discovery, installed, policy
from modulm.plugins import records as state
from modulm.plugins.builtin import DISTRIBUTION
from modulm.plugins.families import NOUNS, PLATFORM
from modulm.plugins.installed import Installed
from modulm.plugins.policy import DENIED, VARIABLE
from modulm.plugins.records import LoadRecord
from modulm.plugins.verdicts import SLOW_S, Memory, Verdict, is_well, key

Verdicts = Mapping[str, Verdict]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        check: "broken", "slow", "metadata", "requirement", "version", "duplicate", "name", "platform" or "collision".
        subject: The plugins or the distribution it is about.
        problem: What is wrong, as sentences.
        mend: The command that mends it.
    """

    check: str
    subject: str
    problem: str
    mend: str


def examine(memory: Memory) -> list[Finding]:
    """Return everything that is wrong; plugins without a verdict are judged by their metadata alone.

    What is found out about requirements is added to the memory.
    """
    found = [*_metadata(), *_requirements(memory.requirements), *_records(memory.verdicts), *_names(), *_duplicates()]
    return [*found, *_platforms(memory.verdicts), *_collisions(memory.verdicts)]


def missing_module(record: LoadRecord) -> str | None:
    """Return why a plugin cannot be imported, where its metadata names a module that has no file."""
    module = installed.missing(record.value) if record.usable else None
    return f"{record.asked} names the module {module!r}, of which there is no file" if module else None


def _metadata() -> Iterator[Finding]:
    for place, reason in discovery.inventory().unreadable.items():
        problem = f"The plugins of {place} are passed over: {reason}."
        yield Finding(check="metadata", subject=place, problem=problem, mend=f"rm -r {place}")
    for found in discovery.inventory().distributions:
        used = installed.where(found.source)
        for place in found.copies:
            if place != used:
                problem = f"{found.name} has left-over metadata in {place}; what counts is {used} ({found.version})."
                yield Finding(check="metadata", subject=found.name, problem=problem, mend=f"rm -r {place}")
        gone = found.damaged(contents=False)
        if gone:
            problem = f"{found.name} {found.version} has lost {len(gone)} of the files it installed, such as {gone[0]}."
            yield Finding(check="metadata", subject=found.name, problem=problem, mend=_install_anew(found))


def _requirements(judged: dict[str, str]) -> Iterator[Finding]:
    for found in discovery.inventory().distributions:
        for requirement in found.requires:
            if requirement not in judged:
                judged[requirement] = _unmet(requirement)
            if problem := judged[requirement]:
                text = f"{found.name} {found.version} needs {requirement.partition(';')[0].strip()!r}, and {problem}."
                mend = f"pip install '{requirement.partition(';')[0].strip()}'"
                yield Finding(check="requirement", subject=found.name, problem=text, mend=mend)


def _install_anew(found: Installed) -> str:
    """Left-over metadata of no known installer can only be removed."""
    if found.source.read_text("RECORD") is None:
        return f"rm -r {installed.where(found.source)}"
    source = found.editable
    what = f"{found.name}=={found.version}" if source is None else f"-e {source.removeprefix('file://')}"
    return f"pip install --force-reinstall --no-deps {what}"


def _unmet(requirement: str) -> str:
    """Say what is wrong with a requirement here, or nothing."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(requirement)
    except InvalidRequirement as error:
        return f"that cannot be read: {error}"
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return ""
    try:
        version = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        stands_in = wanted.name in policy.FOREIGN and installed.spec("vllm")  # its import names come from elsewhere
        return "" if stands_in else f"{wanted.name} is not installed"
    return "" if wanted.specifier.contains(version, prereleases=True) else f"{version} is installed"


def _records(verdicts: Verdicts) -> Iterator[Finding]:
    by_name = {found.name: found for found in discovery.inventory().distributions}
    for record in discovery.records():
        verdict = verdicts.get(key(record))
        if record.state == state.INCOMPATIBLE:
            mend = f"pip install --upgrade {DISTRIBUTION} {record.distribution}"
            yield Finding(
                check="version", subject=record.qualified, problem=f"{record.asked}: {record.reason}.", mend=mend
            )
        elif verdict is None and (reason := missing_module(record)):
            mend = _install_anew(by_name[record.distribution])
            yield Finding(check="metadata", subject=record.qualified, problem=f"{reason}.", mend=mend)
        elif verdict is not None and record.usable and not is_well(record, verdict):
            yield _tried(record, verdict)


def _tried(record: LoadRecord, verdict: Verdict) -> Finding:
    off = f"export {DENIED}={_added(DENIED, record.qualified)}"
    if verdict.state == state.BROKEN:
        mend = f"pip install --upgrade {record.distribution}, or turn it off: {off}"
        return Finding(check="broken", subject=record.qualified, problem=verdict.reason, mend=mend)
    does = [f"takes {verdict.seconds:.1f} s to load"] if verdict.seconds > SLOW_S else []
    does += ["imports torch"] if verdict.torch else []
    does += ["initialises a GPU, so that no process that loads it can fork"] if verdict.device else []
    problem = f"{record.asked} {' and '.join(does)}. Every process that loads it waits for that, used or not."
    return Finding(check="slow", subject=record.qualified, problem=problem, mend=off)


def _added(variable: str, item: str) -> str:
    """Return the value of a variable with one item more."""
    held = {VARIABLE: discovery.policy().text or "", DENIED: ",".join(discovery.policy().denied)}[variable]
    return ",".join([*filter(None, [held]), item])


def _names() -> Iterator[Finding]:
    records = discovery.records()
    known = sorted({record.name for record in records} | {record.distribution for record in records})
    for variable, item in discovery.policy().unmatched(records):
        hint = did_you_mean(item, known)
        problem = f"{variable} names {item!r}, and no installed package provides a plugin of that name.{hint}"
        yield Finding(check="name", subject=item, problem=problem, mend=f"unset {variable}, or correct {item!r} in it")


def _duplicates() -> Iterator[Finding]:
    for claimants in discovery.unsettled(discovery.records()):
        first = claimants[0]
        if len(claimants) > 1:
            problem = policy.duplicate(NOUNS[first.group], claimants)
            mend = f"export {VARIABLE}={_added(VARIABLE, '+' + first.qualified)}"
        else:
            problem, mend = f"{first.asked} is shadowed: {first.reason}.", f"pip uninstall {first.distribution}"
        yield Finding(check="duplicate", subject=f"{first.group} {first.name}", problem=problem, mend=mend)


def _platforms(verdicts: Verdicts) -> Iterator[Finding]:
    """A process stops when two platforms say that they serve here."""
    tried = [(record, verdicts.get(key(record))) for record in discovery.records(PLATFORM) if record.usable]
    active = [record for record, verdict in tried if verdict is not None and verdict.state == state.LOADED]
    if len(active) > 1:
        names = " and ".join(f"{record.name!r} ({record.origin})" for record in active)
        problem = f"{len(active)} platform plugins are active: {names}. Only one can serve."
        off = ",".join(record.qualified for record in active[1:])
        mend = f"export {DENIED}={_added(DENIED, off)}"
        yield Finding(check="platform", subject=PLATFORM, problem=problem, mend=mend)


def _collisions(verdicts: Verdicts) -> Iterator[Finding]:
    """Each was tried alone, so what two of them add under one name shows only here."""
    owners: dict[tuple[str, str], list[LoadRecord]] = {}
    for record in discovery.records():
        verdict = verdicts.get(key(record)) if record.usable else None
        if verdict is not None:
            for kind, names in (("Route", verdict.routes), ("Metric", verdict.metrics), ("Name", verdict.registered)):
                for name in {name.removesuffix(" (override)") for name in names}:
                    owners.setdefault((kind, name), []).append(record)
    for (kind, name), claimants in owners.items():
        if len(claimants) > 1:
            who = " and ".join(f"{record.name!r} ({record.origin})" for record in claimants)
            off = ",".join(record.qualified for record in claimants[1:])
            problem, mend = f"{kind} {name!r} comes from {who}.", f"export {DENIED}={_added(DENIED, off)}"
            yield Finding(check="collision", subject=name, problem=problem, mend=mend)
