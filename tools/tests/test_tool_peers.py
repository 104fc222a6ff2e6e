"""`benchmarks/peers`: ratios are taken within a round, what is missing is told, and the README keeps its other text."""

import sys

import pytest

from workspace import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from peers import children, jobs, score, table, weights, workload  # noqa: E402
from peers.environments import InstallError  # noqa: E402
from peers.score import Line, Record, Source  # noqa: E402

OURS, SAME, OTHER = Source("modulm", "q4_1"), Source("llama", "q4_1"), Source("llama", "q8_0")
LINE = Line("decode", "decode1", OURS, (SAME, OTHER), 1.7)


def records(source, *values, figure="decode1", first_round=1):
    return [Record(number, source, figure, value) for number, value in enumerate(values, first_round)]


def test_ratio_is_the_median_of_the_ratios_of_rounds_with_its_spread():
    found = [*records(OURS, 200, 100, 90), *records(SAME, 100, 50, 60), *records(OTHER, 1, 2, 3)]
    row = score.score(LINE, found, {})
    assert (row.best, row.ours, row.theirs) == (SAME, 100, 60)
    assert (row.score, row.low, row.high, row.verdict) == (2, 1.5, 2, "reached")


def test_best_peer_is_the_one_with_the_highest_median_not_the_highest_value():
    found = [*records(OURS, 100, 100, 100), *records(SAME, 10, 10, 99), *records(OTHER, 50, 80, 50)]
    row = score.score(LINE, found, {})
    assert (row.best, row.score, row.low, row.high) == (OTHER, 2, 1.25, 2)


@pytest.mark.parametrize(("ours", "verdict"), [(169, "missed"), (170, "reached"), (171, "reached")])
def test_a_ratio_at_its_bar_is_reached(ours, verdict):
    assert score.score(LINE, [*records(OURS, ours), *records(SAME, 100)], {}).verdict == verdict


@pytest.mark.parametrize(("seconds", "verdict"), [(1.5, "reached"), (1.6, "missed")])
def test_a_line_without_peers_is_judged_by_its_own_figure(seconds, verdict):
    line = Line("start", "first_token_cached", OURS, (), 1.5, at_most=True, unit="s")
    row = score.score(line, records(OURS, seconds, figure=line.figure), {})
    assert (row.score, row.best, row.verdict) == (seconds, None, verdict)


def test_rounds_that_lack_one_side_do_not_count():
    found = [*records(OURS, 100, 300), *records(SAME, 50), *records(SAME, 10, first_round=3)]
    row = score.score(LINE, found, {})
    assert (row.score, row.low, row.high) == (2, 2, 2)
    assert score.score(LINE, [*records(OURS, 1), *records(SAME, 1, first_round=2)], {}).verdict == (
        "not run: no round has both"
    )


def test_a_missing_peer_is_told_with_its_reason_and_a_missing_figure_by_name():
    row = score.score(LINE, records(OURS, 100), {SAME: "no compiler"})
    assert (row.ours, row.verdict) == (100, "not run: no compiler")
    assert score.score(LINE, records(OURS, 100), {}).verdict == "not run: llama q4_1 was not measured"
    assert score.score(LINE, records(SAME, 100), {OURS: "it crashed"}).verdict == "not run: it crashed"
    assert score.score(LINE, [], {}).verdict == "not run: modulm q4_1 was not measured"


def test_one_missing_type_leaves_the_best_of_the_others():
    row = score.score(LINE, [*records(OURS, 100), *records(OTHER, 50)], {SAME: "no file"})
    assert (row.best, row.score) == (OTHER, 2)


def test_every_line_compares_figures_that_some_job_measures():
    measured = {(job.source, figure) for job in jobs.all_jobs() for figure in job.figures if not job.state}
    for line in score.must_reach():
        if line.peers or line.figure == "context1024":
            assert (line.ours, line.figure) in measured
        assert not line.peers or any((peer, line.figure) in measured for peer in line.peers)


def test_choices_leave_the_jobs_that_measure_something():
    chosen = jobs.chosen(["decode1", "prefill512"], ["llama"], ["q4_1"])
    assert [(str(job.source), job.figures) for job in chosen] == [
        ("llama q4_1", ("decode1", "prefill512")),
        ("modulm q4_1", ("decode1", "prefill512")),
    ]
    assert [job.state for job in jobs.chosen([jobs.START], [], [])] == list(jobs.STATES)


def test_table_shows_ratio_spread_and_verdict():
    found = [*records(OURS, 200, 100), *records(SAME, 100, 100)]
    text = table.bars(score.rows(found, {Source("openvino", "q4_1"): "no wheel"}, {"decode1"}))
    (same,) = [line for line in text.splitlines() if "llama.cpp, same file" in line]
    assert [cell.strip() for cell in same.split("|")[1:-1]] == [
        *("decode, 1 sequence: to llama.cpp, same file", "llama q4_1", "150", "100", "1.50"),
        *("1.00 to 2.00", "at least 1.7", "missed"),
    ]
    assert "not run: no wheel" in text
    assert len({len(line) for line in text.splitlines()}) == 1
    asked = {OURS, SAME}
    assert {row.best for row in score.rows(found, {}, {"decode1"}, asked)} == {SAME}
    assert "modulm q4_1" in table.figures(found, workload.RATES)


def test_readme_keeps_what_is_outside_the_markers(tmp_path):
    file = tmp_path / "README.md"
    other = "<!-- other: begin -->\nkept\n<!-- other: end -->\n"
    file.write_text(f"before\n{other}<!-- mine: begin -->\nold\n<!-- mine: end -->\nafter\n")
    for _ in range(2):
        table.write_between(file, "new\n", "mine")
        assert file.read_text() == f"before\n{other}<!-- mine: begin -->\n\nnew\n\n<!-- mine: end -->\nafter\n"
    with pytest.raises(ValueError, match="lacks the markers"):
        table.write_between(file, "new", "absent")


class Clock:
    """An engine that needs 1 s for each prompt token and 0.5 s for each later token, whatever the batch."""

    def seconds(self, prompts, num_tokens):
        return len(prompts[0]) + 0.5 * (num_tokens - 1)


def test_rates_are_as_defined():
    assert workload.rate(Clock(), "decode1", 1) == pytest.approx(2)
    assert workload.rate(Clock(), "decode16", 1) == pytest.approx(32)
    assert workload.rate(Clock(), "prefill512", 1) == pytest.approx(1)


def test_prompts_are_the_same_for_every_engine():
    assert workload.prompts(2, 3, 1) == workload.prompts(2, 3, 1) != workload.prompts(2, 3, 2)


CHILD = """
import json, time
print("noise")
print(json.dumps({"figure": "first_token", "value": time.monotonic()}), flush=True)
held = bytearray(200_000_000)
time.sleep(0.6)
raise SystemExit("it broke")
"""


def test_a_child_is_timed_watched_and_its_end_told(tmp_path):
    log = tmp_path / "child.log"
    outcome = children.run([sys.executable, "-c", CHILD], {}, log, 60)
    first, memory = outcome.figures
    assert 0 < first["value"] < 30
    assert memory["figure"] == "memory" and 200 < memory["value"] < 400
    assert outcome.reason == "exit status 1: it broke"
    assert "noise" in log.read_text()


def test_a_child_past_its_time_is_ended(tmp_path):
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    outcome = children.run(command, {}, tmp_path / "log", 0.5)
    assert outcome.reason is not None and outcome.reason.startswith("exit status -9")


def test_weights_that_cannot_be_made_are_refused_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "WEIGHTS", tmp_path)
    with pytest.raises(InstallError, match=r"llama\.cpp, which requantises, is not installed"):
        weights.prepare("q4_0", None)
    assert not list(tmp_path.iterdir())
