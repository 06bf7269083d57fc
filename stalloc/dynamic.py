"""The modules whose request sizes only the router knows.

A pattern names a class (or a base class of it) or a module, with shell wildcards. A module stands
here when its own forward makes tensors as long as the tokens that an expert got. Where the experts
have a container that does all of it, the container stands here, so that router and shared experts
stay static; where a block loops over experts itself, the block does. Left out on purpose: experts
that always compute every token (Llama 4), drop and pad to a capacity, or get a fixed number of
tokens, and routers, whose sizes repeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MEGATRON = ("SequentialMLP", "GroupedMLP", "TEGroupedMLP")

# Swapped in by shardformer under expert parallelism; each runs its own uneven all-to-all.
_COLOSSAL_AI = (
    "EPMixtralSparseMoeBlock",
    "EPDeepseekMoE",
    "EpDeepseekV3MoE",
)

# Both have been names of the module between dispatch and combine.
_TORCHTITAN = ("GroupedExperts", "RoutedExperts")

# Transformers 4: blocks that gather an expert's tokens in their own forward.
_TRANSFORMERS_BLOCKS = (
    "DeepseekV2MoE",
    "DeepseekV3MoE",
    "Dots1MoE",
    "Ernie4_5_MoeSparseMoeBlock",
    "FlexOlmoSparseMoeBlock",
    "Glm4MoeMoE",
    "Glm4vMoeTextMoE",
    "HunYuanMoEV1Moe",
    "JambaSparseMoeBlock",
    "LongcatFlashMoE",
    "MiniMaxSparseMoeBlock",
    "MixtralSparseMoeBlock",
    "OlmoeSparseMoeBlock",
    "PhimoeSparseMoeBlock",
    "Qwen2MoeSparseMoeBlock",
    "Qwen3MoeSparseMoeBlock",
    "Qwen3NextSparseMoeBlock",
    "Qwen3OmniMoeTalkerTextSparseMoeBlock",
    "Qwen3OmniMoeThinkerTextSparseMoeBlock",
    "SwitchTransformersSparseMLP",
)

# Transformers 5, and similar classes before: containers of a layer's routed experts.
_TRANSFORMERS_EXPERTS = (
    "AfmoeExperts",
    "AriaExperts",
    "AriaGroupedExpertsGemm",
    "Cohere2MoeExperts",
    "DbrxExperts",
    "DeepseekV2Experts",
    "DeepseekV3Experts",
    "DeepseekV32Experts",
    "DeepseekV4Experts",
    "Dots1Experts",
    "Ernie4_5_MoeExperts",
    "Ernie4_5_VLMoeMoeExperts",
    "ExaoneMoeExperts",
    "FlexOlmoExperts",
    "Gemma4TextExperts",
    "Glm4MoeExperts",
    "Glm4MoeLiteExperts",
    "Glm4vMoeTextExperts",
    "GlmMoeDsaExperts",
    "GptOssExperts",
    "GraniteMoeExperts",
    "GraniteMoeHybridExperts",
    "GraniteMoeHybridParallelExperts",
    "GraniteMoeParallelExperts",
    "GraniteMoeSharedExperts",
    "GraniteMoeSharedParallelExperts",
    "HunYuanMoEV1Experts",
    "JambaExperts",
    "JetMoeParallelExperts",
    "KimiLinearExperts",
    "Lfm2MoeExperts",
    "LongcatFlashExperts",
    "MiMoV2FlashExperts",
    "MiniMaxExperts",
    "MiniMaxM2Experts",
    "Mistral4Experts",
    "MixtralExperts",
    "NemotronHExperts",
    "NllbMoeExperts",
    "OlmoeExperts",
    "PhimoeExperts",
    "Qwen2MoeExperts",
    "Qwen3MoeExperts",
    "Qwen3NextExperts",
    "Qwen3OmniMoeTalkerTextExperts",
    "Qwen3OmniMoeThinkerTextExperts",
    "Qwen3VLMoeTextExperts",
    "Qwen3_5MoeExperts",
    "SolarOpenExperts",
    "SwitchTransformersExperts",
)

DEFAULT_DYNAMIC: tuple[str, ...] = (
    *_MEGATRON,
    *_COLOSSAL_AI,
    *_TORCHTITAN,
    *_TRANSFORMERS_BLOCKS,
    *_TRANSFORMERS_EXPERTS,
)
"""Routed experts of Megatron-LM, Colossal-AI, torchtitan and Hugging Face transformers."""


def dynamic_patterns(dynamic: Iterable[str | type] | None) -> Sequence[str]:
    """The patterns that a plan's file can hold: None means the default, a class its name.

    Raises:
        TypeError: It is a single string or class, or holds anything else.
    """
    if dynamic is None:
        return DEFAULT_DYNAMIC
    if isinstance(dynamic, (str, type)):
        raise TypeError(f"dynamic={dynamic!r} names one module; give a list: dynamic=[{dynamic!r}]")
    patterns = []
    for pattern in dynamic:
        if not isinstance(pattern, (str, type)):
            raise TypeError(
                f"dynamic= takes classes and names of modules or classes, not {pattern!r}"
            )
        patterns.append(pattern if isinstance(pattern, str) else pattern.__name__)
    return tuple(patterns)
