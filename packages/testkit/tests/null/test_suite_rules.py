"""The rules of every suite: nothing is redefined, marks need a reason and a test, a missing fixture is asked for."""

import pytest

from modulm_testkit.executor import ExecutorConformance
from modulm_testkit.suite import Conformance

pytest_plugins = ["pytester"]

PLUGIN = """
import pytest
from modulm.interfaces.executor import Executor
from modulm_testkit.executor import ExecutorConformance

class Forgetful(Executor):
    def __init__(self, worker): self.worker = worker
    def kv_layout(self): return self.worker.kv_layout()
    def execute(self, plan): return self.worker.execute(plan)
    def shutdown(self): pass

{mark}
class TestForgetful(ExecutorConformance):
    @pytest.fixture
    def executor_class(self):
        return Forgetful
    {body}
"""
BROKEN = ("test_failures_are_engine_errors", "test_goes_on_after_a_failure", "test_shuts_down_twice")


@pytest.fixture
def outcomes(pytester, monkeypatch):
    """Run the tests of a plugin that breaks three promises."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(mark="", body="pass"):
        pytester.makepyfile(PLUGIN.format(mark=mark, body=body))
        return pytester.runpytest_inprocess("-p", "modulm_testkit.plugin", "-rx", "-pno:cacheprovider")

    return run


def test_broken_promises_fail(outcomes):
    outcomes().assert_outcomes(failed=3, passed=4)


def test_marks_make_failures_expected(outcomes):
    mark = f"@pytest.mark.conformance_xfail({', '.join(map(repr, BROKEN))}, reason='issue 7')"
    result = outcomes(mark)
    result.assert_outcomes(xfailed=3, passed=4)
    result.stdout.fnmatch_lines(["XFAIL *test_shuts_down_twice - issue 7"])


def test_a_mark_that_is_no_longer_true_fails(outcomes):
    outcomes("@pytest.mark.conformance_xfail('test_knows_the_cache', reason='old')").assert_outcomes(failed=4, passed=3)


@pytest.mark.parametrize(
    ("mark", "why"),
    [
        ("'test_nothing', reason='r'", "*names 'test_nothing', which the suite does not have*test_knows_the_cache*"),
        ("'test_knows_the_cache'", "*needs reason=*"),
        ("reason='r'", "*names 'no test'*"),
    ],
)
def test_marks_are_checked(outcomes, mark, why):
    result = outcomes(f"@pytest.mark.conformance_xfail({mark})")
    result.stderr.fnmatch_lines([why])


@pytest.mark.parametrize("body", ["def test_shuts_down_twice(self): pass", "test_shuts_down_twice = None"])
def test_a_promise_cannot_be_redefined(outcomes, body):
    result = outcomes(body=body)
    result.assert_outcomes(errors=1)
    said = result.stdout.str()
    assert "TestForgetful redefines ExecutorConformance.test_shuts_down_twice" in said
    assert '@pytest.mark.conformance_xfail("test_shuts_down_twice", reason=' in said


def test_nor_through_another_base():
    class Easier:
        def test_shuts_down_twice(self):
            pass

    with pytest.raises(TypeError, match="redefines ExecutorConformance.test_shuts_down_twice"):
        type("Mine", (Easier, ExecutorConformance), {})


def test_tests_of_ones_own_are_welcome():
    class Mine(ExecutorConformance):
        def test_more(self):
            pass

    class Mine2(Mine):
        def test_more(self):
            pass

    assert issubclass(Mine2, Conformance)


def test_a_missing_fixture_is_asked_for(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        "from modulm_testkit.executor import ExecutorConformance\nclass TestMine(ExecutorConformance): pass"
    )
    result = pytester.runpytest_inprocess("-p", "modulm_testkit.plugin", "-pno:cacheprovider")
    result.stdout.fnmatch_lines(["*needs a fixture 'executor_class' in your class*"])


def test_one_case_of_a_promise_can_be_marked(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile("""
        import pytest
        from modulm_testkit.stat_logger import StatLoggerConformance
        from modulm.interfaces.metrics import StatLoggerBase

        class Picky(StatLoggerBase):
            def __init__(self, vllm_config, engine_index=0): pass
            def log_engine_initialized(self): pass
            def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0):
                for ended in iteration_stats.finished_requests if iteration_stats else ():
                    assert ended.finish_reason != "error"

        @pytest.mark.conformance_xfail("test_takes_every_ending[True-error]", reason="issue 8")
        @pytest.mark.conformance_xfail("test_takes_every_ending[False-error]", reason="issue 9")
        class TestPicky(StatLoggerConformance):
            @pytest.fixture
            def logger_class(self):
                return Picky
    """)
    result = pytester.runpytest_inprocess("-p", "modulm_testkit.plugin", "-pno:cacheprovider", "-k", "every_ending")
    result.assert_outcomes(xfailed=2, passed=6)


def test_a_fixture_may_have_another_method_name(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    named = PLUGIN.format(mark="", body="pass").replace("@pytest.fixture", "@pytest.fixture(name='executor_class')")
    pytester.makepyfile(named.replace("def executor_class(self)", "def a_class(self)"))
    pytester.runpytest_inprocess("-p", "modulm_testkit.plugin", "-pno:cacheprovider").assert_outcomes(
        failed=3, passed=4
    )
