"""Which class runs which architecture of config.json. Strings only: nothing is imported until a model is chosen."""

ARCHITECTURES: dict[str, str] = {
    "Gemma2ForCausalLM": "modulm.models.gemma2:Gemma2ForCausalLM",
    "Gemma3ForCausalLM": "modulm.models.gemma3:Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration": "modulm.models.gemma3:Gemma3ForConditionalGeneration",
    "GptOssForCausalLM": "modulm.models.gpt_oss:GptOssForCausalLM",
    "GraniteForCausalLM": "modulm.models.granite:GraniteForCausalLM",
    "LlamaForCausalLM": "modulm.models.llama:LlamaForCausalLM",
    "MistralForCausalLM": "modulm.models.mistral:MistralForCausalLM",
    "MixtralForCausalLM": "modulm.models.mixtral:MixtralForCausalLM",
    "Olmo2ForCausalLM": "modulm.models.olmo2:Olmo2ForCausalLM",
    "Phi3ForCausalLM": "modulm.models.phi3:Phi3ForCausalLM",
    "Qwen2ForCausalLM": "modulm.models.qwen2:Qwen2ForCausalLM",
    "Qwen3ForCausalLM": "modulm.models.qwen3:Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM": "modulm.models.qwen3_moe:Qwen3MoeForCausalLM",
    "SmolLM3ForCausalLM": "modulm.models.smollm3:SmolLM3ForCausalLM",
}
