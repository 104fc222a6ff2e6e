"""Names that plugins import beside those of their own kind: they are there, need no torch, and mean what they say."""

import json
import math
import subprocess
import sys

import pytest
from vllm import utils
from vllm.utils import collection_utils, import_utils, math_utils
from vllm.utils.registry import ExtensionManager

NAMES = {
    "vllm.config": "VllmConfig ModelConfig CacheConfig SchedulerConfig ParallelConfig get_current_vllm_config",
    "vllm.distributed": "get_tensor_model_parallel_rank get_tensor_model_parallel_world_size get_pp_group divide",
    "vllm.engine.metrics_types": "StatLoggerBase Stats",
    "vllm.entrypoints.chat_utils": "make_tool_call_id random_tool_call_id",
    "vllm.entrypoints.openai.chat_completion.protocol": "ChatCompletionRequest ChatCompletionToolsParam",
    "vllm.entrypoints.openai.engine.protocol": "DeltaMessage DeltaToolCall DeltaFunctionCall FunctionCall ToolCall "
    "ExtractedToolCallInformation",
    "vllm.entrypoints.openai.protocol": "ChatCompletionRequest DeltaMessage ExtractedToolCallInformation ToolCall",
    "vllm.entrypoints.openai.responses.protocol": "ResponsesRequest",
    "vllm.entrypoints.openai.tool_parsers.abstract_tool_parser": "ToolParser ToolParserManager",
    "vllm.envs": "VLLM_PLUGINS VLLM_TARGET_DEVICE",
    "vllm.exceptions": "VLLMValidationError",
    "vllm.lora.request": "LoRARequest",
    "vllm.lora.resolver": "LoRAResolver LoRAResolverRegistry",
    "vllm.outputs": "CompletionOutput RequestOutput PoolingRequestOutput",
    "vllm.platforms": "Platform PlatformEnum CpuArchEnum in_wsl",
    "vllm.platforms.cpu": "CpuPlatform",
    "vllm.platforms.cuda": "CudaPlatform",
    "vllm.platforms.interface": "Platform PlatformEnum DeviceCapability UnspecifiedPlatform",
    "vllm.plugins": "load_plugins_by_group load_general_plugins load_endpoint_plugins DEFAULT_PLUGINS_GROUP logger",
    "vllm.plugins.endpoint_plugins.interface": "EndpointPlugin attach_endpoint_plugins init_endpoint_plugins_state",
    "vllm.plugins.io_processors": "get_io_processor IOProcessor",
    "vllm.pooling_params": "PoolingParams",
    "vllm.reasoning": "ReasoningParser ReasoningParserManager",
    "vllm.reasoning.abs_reasoning_parsers": "ReasoningParser ReasoningParserManager",
    "vllm.renderers": "BaseRenderer",
    "vllm.tokenizers": "TokenizerLike",
    "vllm.tool_parsers.utils": "find_common_prefix extract_intermediate_diff partial_json_loads is_complete_json",
    "vllm.tool_parsers.abstract_tool_parser": "Tool ToolParser ToolParserManager",
    "vllm.transformers_utils.tokenizer": "AnyTokenizer",
    "vllm.utils.torch_utils": "",
    "vllm.v1.core.sched.output": "SchedulerOutput",
    "vllm.v1.metrics.loggers": "StatLoggerBase AggregateStatLoggerBase StatLoggerFactory",
    "vllm.v1.metrics.stats": "SchedulerStats IterationStats FinishedRequestStats MultiModalCacheStats",
    "vllm.v1.sample.logits_processor": "LogitsProcessor AdapterLogitsProcessor BatchUpdate MoveDirectionality",
    "vllm.v1.sample.logits_processor.interface": "LogitsProcessor BatchUpdate",
    "vllm.v1.worker.cpu_worker": "CPUWorker",
    "vllm.v1.worker.gpu_worker": "Worker",
    "vllm.v1.worker.worker_base": "WorkerBase",
}


def test_they_are_there_and_need_no_torch():
    code = "\n".join(f"import {module}" + "".join(f"\n{module}.{n}" for n in NAMES[module].split()) for module in NAMES)
    code += "\nimport json, sys\nprint(json.dumps('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stderr, done.returncode) == ("", 0) and json.loads(done.stdout) is False


def test_whole_numbers():
    for n in range(-3, 70):
        for d in range(1, 9):
            assert utils.cdiv(n, d) == math.ceil(n / d)
            assert (utils.round_up(n, d), utils.round_down(n, d)) == (math.ceil(n / d) * d, math.floor(n / d) * d)
        powers = [2**k for k in range(8)]
        assert math_utils.next_power_of_2(n) == next(p for p in powers if p >= n)
        assert math_utils.prev_power_of_2(n) == max([p for p in powers if p <= n], default=0)


def test_lists():
    assert collection_utils.is_list_of([1, "a"], int) and collection_utils.is_list_of([], int, check="all")
    assert not collection_utils.is_list_of([1, "a"], int, check="all") and not collection_utils.is_list_of((1,), int)


def test_what_a_string_names(tmp_path):
    assert import_utils.resolve_obj_by_qualname("collections.abc.Mapping").__name__ == "Mapping"
    (tmp_path / "made_up_file.py").write_text("value = 7\n")
    try:
        assert import_utils.import_plugin(str(tmp_path / "made_up_file.py")).value == 7
        assert sys.modules["made_up_file"].value == 7
    finally:
        sys.modules.pop("made_up_file", None)
    (tmp_path / "bad_file.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        import_utils.import_plugin(str(tmp_path / "bad_file.py"))
    assert "bad_file" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        import_utils.import_plugin("no.such.module")


def test_extensions_of_plugins():
    manager = ExtensionManager()

    @manager.register("mine")
    class Mine:
        def __init__(self, value, other=0):
            self.values = value, other

    assert manager.load("mine", 1, other=2).values == (1, 2) and Mine.__name__ == "Mine"
    with pytest.raises(AssertionError, match="Extension class yours not found. There are: mine"):
        manager.load("yours")


def test_ids_differ():
    assert utils.random_uuid() != utils.random_uuid() and int(utils.random_uuid(), 16) >= 0
