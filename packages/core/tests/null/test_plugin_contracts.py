"""Signatures are checked when a class is loaded, and optional arguments that it does not name are left out.

Each faulty class is complete but for one thing, and the message is held to say what to change.
"""

import pytest

from modulm.errors import Incompatible
from modulm.interfaces.attention import AttentionBackend, AttentionSpec
from modulm.interfaces.endpoint import EndpointPlugin
from modulm.interfaces.kernels import KernelProvider
from modulm.interfaces.logits import AdapterLogitsProcessor, LogitsProcessor
from modulm.interfaces.metrics import AggregateStatLoggerBase, StatLoggerBase
from modulm.interfaces.model import CausalLM
from modulm.interfaces.support import Accepted
from modulm.plugins import families
from modulm.plugins.contracts import fitted, keep, takes
from modulm.resolve import _serves

STAT_LOGGER = "vllm.stat_logger_plugins"


class Logger(StatLoggerBase):
    """Takes all that the contract offers."""

    def __init__(self, vllm_config, engine_index=0):
        self.made = (vllm_config, engine_index)

    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0):
        return scheduler_stats, iteration_stats, mm_cache_stats, engine_idx

    def log_engine_initialized(self): ...


class Old(Logger):
    """Written before there were an engine's index and statistics of several modalities."""

    def __init__(self, config):
        self.made = (config,)

    def record(self, scheduler_stats, iteration_stats):
        return scheduler_stats, iteration_stats


class Backend(AttentionBackend):
    """Takes all that the contract offers."""

    name = "x"

    @classmethod
    def supports(cls, spec):
        return Accepted(cls.__name__)

    @classmethod
    def kv_cache_shape(cls, num_blocks, block_size, num_kv_heads, head_size, kv_cache_dtype="float32"):
        return (num_blocks, kv_cache_dtype)

    def plan(self, layout, device): ...

    def forward(self, spec, query, key, value, kv_cache, metadata, *, sinks=None, alibi_slopes=None):
        return query, sinks, alibi_slopes


def wrong(base, contract, **methods):
    """Return the message for a class that differs from `base` in some methods."""
    with pytest.raises(Incompatible) as caught:
        fitted(type("Wrong", (base,), methods), contract)
    return str(caught.value)


@pytest.mark.parametrize(("found", "contract"), [(Logger, StatLoggerBase), (Backend, AttentionBackend)])
def test_what_fits_is_returned_itself_and_costs_nothing(found, contract):
    assert fitted(found, contract) is found


def test_optional_arguments_that_a_class_does_not_name_are_left_out():
    lean = fitted(Old, StatLoggerBase)
    assert issubclass(lean, Old) and lean is fitted(Old, StatLoggerBase)
    assert (lean.__name__, lean.__qualname__, lean.__module__) == (Old.__name__, Old.__qualname__, Old.__module__)
    logger = lean("config", 3)
    assert logger.made == ("config",)
    assert logger.record(1, 2, mm_cache_stats=3, engine_idx=4) == (1, 2)
    assert lean.log_engine_initialized is Old.log_engine_initialized, "what takes everything is called directly"


def test_they_are_left_out_one_by_one():
    def record(self, scheduler_stats, iteration_stats, engine_idx=0):
        return engine_idx

    lean = fitted(type("Some", (Logger,), {"record": record}), StatLoggerBase)
    assert lean("config").record(1, 2, mm_cache_stats=3, engine_idx=4) == 4


@pytest.mark.parametrize("is_static", [True, False])
def test_class_methods_and_keywords(is_static):
    kind = staticmethod if is_static else classmethod

    def shape(*args):
        return args[-4:]

    def four(num_blocks, block_size, num_kv_heads, head_size):
        return shape(num_blocks, block_size, num_kv_heads, head_size)

    def of_class(cls, num_blocks, block_size, num_kv_heads, head_size):
        return shape(num_blocks, block_size, num_kv_heads, head_size)

    def forward(self, spec, query, key, value, kv_cache, metadata, *, sinks=None):
        return query, sinks

    methods = {"kv_cache_shape": kind(four if is_static else of_class), "forward": forward}
    lean = fitted(type("Old", (Backend,), methods), AttentionBackend)
    assert lean.kv_cache_shape(1, 2, 3, 4, kv_cache_dtype="int8_per_token_head") == (1, 2, 3, 4)
    assert lean().forward(0, "q", 2, 3, 4, 5, sinks="s", alibi_slopes=None) == ("q", "s")
    assert takes(lean.forward, "sinks") and not takes(lean.forward, "alibi_slopes")


def test_a_backend_is_not_asked_about_a_layer_that_needs_what_it_does_not_take():
    def forward(self, spec, query, key, value, kv_cache, metadata, *, alibi_slopes=None): ...
    def shape(cls, num_blocks, block_size, num_kv_heads, head_size): ...

    methods = {"forward": forward, "kv_cache_shape": classmethod(shape)}
    old = fitted(type("Old", (Backend,), methods), AttentionBackend)
    plain = {"num_heads": 1, "num_kv_heads": 1, "head_size": 8, "scale": 1.0}
    for options, reason in (
        ({"has_sinks": True}, "its forward() does not take sinks"),
        ({"kv_cache_dtype": "int8_per_token_head"}, "its kv_cache_shape() does not take kv_cache_dtype"),
    ):
        assert _serves(old, AttentionSpec(**plain, **options)).reason == reason
        assert _serves(Backend, AttentionSpec(**plain, **options)) == Accepted("Backend")
    assert _serves(old, AttentionSpec(**plain, has_alibi=True)) == Accepted("Old")


def test_anything_goes_into_stars():
    def stars(self, *args, **kwargs):
        return args, kwargs

    found = type("Stars", (Logger,), {"record": stars, "__init__": stars})
    assert fitted(found, StatLoggerBase) is found


PROMISED = "core calls record(scheduler_stats, iteration_stats, mm_cache_stats=..., engine_idx=...)."


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (lambda self, stats: ..., f"whose record(stats) does not fit: {PROMISED} Let it take iteration_stats as well."),
        (lambda self: ..., f"whose record() does not fit: {PROMISED} Let it take scheduler_stats and iteration_stats "
         "as well."),
        (lambda self, a, b, c: ..., f"whose record(a, b, c) does not fit: {PROMISED} Give c a default: core does not "
         "pass it."),
        (lambda self, a, b, *, key: ..., f"whose record(a, b, *, key) does not fit: {PROMISED} Give key a default: "
         "core does not pass it."),
    ],
)  # fmt: skip
def test_the_message_says_what_to_change(record, message):
    assert wrong(Logger, StatLoggerBase, record=record) == message


def test_the_whole_message_names_plugin_class_and_change():
    with pytest.raises(Incompatible) as caught:
        families.check(STAT_LOGGER, "Stat logger 'x' (dist-a 1.0)", type("W", (Logger,), {"record": lambda self: ...}))
    assert str(caught.value).startswith("Stat logger 'x' (dist-a 1.0) is class abc.W, whose record() does not")


def test_names_that_differ_are_the_plugin_s_business_where_core_passes_by_position():
    class Renamed(Logger):
        def __init__(self, config, index):
            self.made = (config, index)

    assert fitted(Renamed, StatLoggerBase)("config", 1).made == ("config", 1)


def test_constructors_by_keyword():
    class Aggregate(AggregateStatLoggerBase):
        def __init__(self, vllm_config, engine_indexes): ...
        def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...
        def log_engine_initialized(self): ...

    assert fitted(Aggregate, StatLoggerBase) is Aggregate
    said = wrong(Aggregate, StatLoggerBase, __init__=lambda self, config, engines: ...)
    assert "core calls __init__(*, vllm_config, engine_indexes). Let it take vllm_config and engine_indexes" in said
    providing = {"supports": lambda self, op, weight, device_type: ..., "pack": lambda self, weight, device, dtype: ...}
    needy = type("Needy", (KernelProvider,), {"name": "x", **providing})
    assert "Give x a default" in wrong(needy, KernelProvider, __init__=lambda self, x: ...)


def test_methods_and_attributes_that_are_missing():
    class Half(StatLoggerBase):
        def record(self, scheduler_stats, iteration_stats): ...

    with pytest.raises(Incompatible) as caught:
        fitted(Half, StatLoggerBase)
    assert str(caught.value) == (
        "which lacks __init__ and log_engine_initialized of modulm.interfaces.metrics.StatLoggerBase. "
        "Add what is missing."
    )

    class Nameless(KernelProvider):
        def supports(self, op, weight, device_type): ...
        def pack(self, weight, device, dtype): ...

    with pytest.raises(Incompatible, match="which lacks name of modulm.interfaces.kernels.KernelProvider"):
        fitted(Nameless, KernelProvider)
    Nameless.name = "x"
    assert fitted(Nameless, KernelProvider) is Nameless


def test_a_class_method_must_be_one():
    said = wrong(Backend, AttentionBackend, supports=lambda self, spec: Accepted())
    assert said == "whose supports() must be a class method: core calls it on the class."


def test_the_nearest_class_of_the_contract_s_module_counts():
    class Adapter(AdapterLogitsProcessor):
        def is_argmax_invariant(self): ...

    with pytest.raises(Incompatible, match="which lacks new_req_logits_processor of .*AdapterLogitsProcessor"):
        fitted(Adapter, LogitsProcessor)


def test_a_shape_needs_no_base_class():
    class Model:
        def __init__(self, *, vllm_config, prefix=""): ...
        def forward(self, token_ids, batch): ...
        def compute_logits(self, hidden): ...

    with pytest.raises(Incompatible, match=r"whose __init__\(\*, vllm_config, prefix=...\) does not fit: core calls "
                       r"__init__\(config\). Let it take config as well"):  # fmt: skip
        fitted(Model, CausalLM)


def test_an_object_keeps_a_contract_too():
    class Plugin:
        name, required_tasks = "x", None

        def attach_router(self, app): ...
        async def init_state(self, engine_client, state): ...

    with pytest.raises(Incompatible, match="Let it take args as well"):
        keep(Plugin(), EndpointPlugin)
    Plugin.init_state = lambda self, *args: ...
    keep(Plugin(), EndpointPlugin)


def test_what_cannot_be_derived_from_must_take_everything():
    class Final(Old):
        def __init_subclass__(cls):
            raise TypeError("no more")

    with pytest.raises(Incompatible, match=r"whose __init__ and record must take every argument of .*'no more'"):
        fitted(Final, StatLoggerBase)


def test_what_has_no_signature_is_not_judged():
    dark = type("Dark", (), {"__signature__": 3, "__call__": lambda self: ...})()
    found = type("Built", (Logger,), {"record": dark})
    assert fitted(found, StatLoggerBase) is found
