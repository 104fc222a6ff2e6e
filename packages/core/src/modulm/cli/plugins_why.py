"""`modulm plugins why NAME`: whether a plugin is used, why not, and what else there is of its kind.

Without a model only metadata answers, and what the doctor last saw. With `--model` it is loaded, and every candidate
tells what it answered, as in `modulm config --explain`.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any

HELP = "say whether a plugin is used, and why or why not"
ORDER = {
    "vllm.general_plugins": "every one is loaded",
    "vllm.platform_plugins": "the one that says it serves here; where none does, cuda, then cpu",
    "vllm.stat_logger_plugins": "every one is told of every step",
    "vllm.io_processor_plugins": "the one that is asked for by name",
    "vllm.endpoint_plugins": "every one that VLLM_PLUGINS names",
    "vllm.logits_processors": "every one is applied",
    "modulm.attention": "for each layer the first that accepts it, in the platform's order",
    "modulm.checkpoints": "the first that accepts the files, or --load-format",
    "modulm.executors": "by name: --executor",
    "modulm.kernels": "for each weight the first that accepts it, in the platform's order",
    "modulm.models": "the first of the checkpoint's architectures that is there",
    "modulm.quantization": "what the checkpoint declares",
    "modulm.reasoning_parsers": "by name: --reasoning-parser, where 'auto' goes by the model's chat template",
    "modulm.tool_parsers": "by name: --tool-call-parser, where 'auto' goes by the model's chat template",
}
"""How one is chosen, or all are used."""
_UNASKED = "asked when a model is loaded"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("name", metavar="NAME", help="a plugin's name, DISTRIBUTION:NAME, or a distribution")
    parser.add_argument("--model", help="load this model, and show what every candidate answered")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON array, an object per group that has the name"
    )


def run(args: argparse.Namespace) -> int:
    """Print an answer for every group that has the name; 1 when none of them can be used."""
    choices = _choices(args.model) if args.model else []
    answers = explain(args.name, choices)
    print(json.dumps(answers, indent=2) if args.json else "\n\n".join(map(_text, answers)))
    return int(not any(answer["usable"] and answer["chosen"] is not False for answer in answers))


def explain(name: str, choices: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """Return what is known of `name`, per group. `choices` are those of a loaded model.

    Raises `UnknownName` when nothing has that name, installed or not.
    """
    from modulm.errors import UnknownName, did_you_mean
    from modulm.plugins import policy, report
    from modulm.plugins.known import KNOWN

    rows = [*report.listed(), *report.registered()]
    found = [row for row in rows if policy.means(name, row)]
    answers = [_of_row(row, rows, choices) for row in found]
    known = {group: table[name] for group, table in KNOWN.items() if name in table}
    answers += [
        _of_known(group, name, known[group], rows, choices) for group in known if group not in {r.group for r in found}
    ]
    if not answers:
        names = {row.name for row in rows}.union(*(table for table in KNOWN.values()))
        hint = did_you_mean(name, names) or " `modulm plugins list` shows what is installed."
        raise UnknownName(f"Plugin {name!r} is unknown: no installed package has it, nor any that is known.{hint}")
    return answers


def _of_row(row: Any, rows: Sequence[Any], choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    usable = _is_usable(row)
    answer: dict[str, Any] = {
        "group": row.group,
        "name": row.name,
        "state": row.state,
        "origin": row.origin,
        "value": row.value,
    }
    answer |= {"usable": usable, "reason": row.reason, "install": None}
    said = f"{row.asked} can be used" if usable else f"{row.asked} is {row.state}"
    return _with_candidates(answer, f"{said}{': ' if row.reason else ''}{row.reason.rstrip('.')}.", rows, choices)


def _of_known(
    group: str, name: str, distribution: str, rows: Sequence[Any], choices: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    from modulm.plugins.families import NOUNS
    from modulm.plugins.registry import how_to_install

    answer: dict[str, Any] = {
        "group": group,
        "name": name,
        "state": "not installed",
        "origin": distribution,
        "value": "",
    }
    reason = how_to_install(distribution)
    answer |= {"usable": False, "reason": reason, "install": reason.partition(": ")[2].rstrip(".")}
    return _with_candidates(answer, f"{NOUNS[group]} {name!r} is not installed. {reason}", rows, choices)


def _with_candidates(
    answer: dict[str, Any], text: str, rows: Sequence[Any], choices: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Add what each candidate of the group said, or why it is not asked, and whether this one was chosen."""
    group, name = answer["group"], answer["name"]
    asked = {c["name"]: c for choice in choices if choice["family"] == _family(group) for c in choice["candidates"]}
    chosen = {choice["chosen"] for choice in choices if choice["family"] == _family(group)}
    order = ORDER.get(group, "by name")
    unasked = "not asked, as another one accepts" if asked else _UNASKED
    candidates = []
    for row in rows:
        if row.group == group:
            accepted = order.startswith("every one") or None if _is_usable(row) else False
            said = asked.get(
                row.name, {"accepted": accepted, "reason": row.reason or (unasked if accepted is None else "")}
            )
            candidates.append({"name": row.name, "origin": row.origin, **said})
    is_chosen = name in chosen if chosen else None
    return {**answer, "text": text, "chosen": is_chosen, "order": order, "candidates": candidates}


def _is_usable(row: Any) -> bool:
    from modulm.plugins import records as state

    return row.state in (state.AVAILABLE, state.BUILT_IN, state.LOADED)


def _family(group: str) -> str:
    return "platform" if group == "vllm.platform_plugins" else group


def _choices(model: str) -> list[dict[str, Any]]:
    from modulm.cli.summary import load_llm
    from modulm.config import EngineConfig

    llm = load_llm(EngineConfig.make(model=model))
    try:
        made = llm.explain()
    finally:
        llm.shutdown()
    choices: list[dict[str, Any]] = [*made["choices"], _choice("modulm.executors", {llm.config.executor: "by name"})]
    served: dict[str, str] = {}  # "cpu: linear GroupedInt (...)" -> how many weights
    for line, count in made["worker"].get("weights by kernel", {}).items():
        name, _, what = line.partition(": ")
        served[name] = "; ".join([*filter(None, [served.get(name)]), f"{count} x {what}"])
    return [*choices, *(_choice("modulm.kernels", {name: what}) for name, what in served.items())]


def _choice(family: str, chosen: dict[str, str]) -> dict[str, Any]:
    candidates = [{"name": name, "accepted": True, "reason": reason} for name, reason in chosen.items()]
    return {"family": family, "chosen": candidates[0]["name"], "candidates": candidates}


def _text(answer: dict[str, Any]) -> str:
    words = {True: "accepted", False: "rejected", None: "open"}
    used = {True: "It is chosen for this model.", False: "It is not chosen for this model.", None: ""}[answer["chosen"]]
    lines = [f"{answer['text']} {used}".rstrip(), f"  {answer['group']}: {answer['order']}"]
    width = max((len(each["name"]) for each in answer["candidates"]), default=0)
    for each in answer["candidates"]:
        reason = f": {each['reason']}" if each["reason"] else ""
        lines.append(f"    {each['name']:<{width}}  {words[each['accepted']]}{reason}  ({each['origin']})")
    return "\n".join(lines)
