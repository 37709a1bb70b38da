"""The prompts that the chat templates in llama.cpp's sources make are llama-server's, except where it is said why."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import orjson
import pytest
from llama_templates import BOS, DATE, DIGESTS, EOS, FOLDER, LLAMA_SERVER, REFUSED, conversations, digest, llama_server

from umaserve.dialects.llama_server.template import parse_apply_template
from umaserve.dialects.parameters import RequestLimits
from umaserve.engine.chat_template import ChatTemplate
from umaserve.engine.model import find
from umaserve.errors import RequestError

TABLE: dict[str, dict[str, str]] = json.loads(DIGESTS.read_text())
BODIES = conversations()
LIMITS = RequestLimits(max_prompt_bytes=1 << 20)

DIFFERENCES: dict[str, tuple[tuple[str, ...], str]] = {
    "StepFun3.5-Flash": (
        ("turns", "call answered", "parallel answered", "thoughts", "switches"),
        "llama-server trims the content of messages for this one model",
    ),
    "openai-gpt-oss-120b": (
        ("no answer opened",),
        "llama-server puts another end after the last message than the template does",
    ),
    "openbmb-MiniCPM5-1B": (
        ("parallel", "parallel answered"),
        "llama-server writes nothing for an argument that is an object; the template writes it as Python does",
    ),
    "unsloth-mistral-Devstral-Small-2507": (
        ("thoughts", "switches"),
        "llama-server drops an answer that has thoughts, since it takes the template for another model's",
    ),
}
"""Where prompts are not llama-server's, and why."""

# llama-server closes the thoughts of a continued answer, also where there are none, and writes what opens them itself;
# here an answer's beginning follows what the template opens the answer with.
CONTINUED = {
    "Apriel-1.6-15b-Thinker-fixed": ("continued", "continued after thoughts"),
    "Bielik-11B-v3.0-Instruct": ("continued", "continued after thoughts"),
    "ByteDance-Seed-OSS": ("continued", "continued after thoughts"),
    "Cohere2MoE": ("continued", "continued after thoughts"),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("continued", "continued after thoughts"),
    "GLM-4.6": ("continued", "continued after thoughts"),
    "GLM-4.7-Flash": ("continued", "continued after thoughts"),
    "HuggingFaceTB-SmolLM3-3B": ("continued", "continued after thoughts"),
    "Kimi-K2-Instruct": ("continued", "continued after thoughts"),
    "Kimi-K2-Thinking": ("continued", "continued after thoughts"),
    "Kimi-K3": ("continued", "continued after thoughts"),
    "LFM2-8B-A1B": ("continued", "continued after thoughts"),
    "LFM2.5-8B-A1B": ("continued", "continued after thoughts"),
    "LFM2.5-Instruct": ("continued", "continued after thoughts"),
    "MiniMax-M2": ("continued", "continued after thoughts"),
    "MiniMax-M3": ("continued", "continued after thoughts"),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("continued", "continued after thoughts"),
    "NVIDIA-Nemotron-Nano-v2": ("continued", "continued after thoughts"),
    "Qwen-QwQ-32B": ("continued", "continued after thoughts"),
    "Qwen-Qwen3-0.6B": ("continued", "continued after thoughts"),
    "Qwen3.5-4B": ("continued", "continued after thoughts"),
    "Reka-Edge": ("continued", "continued after thoughts"),
    "Spark2.5": ("continued", "continued after thoughts"),
    "StepFun3.5-Flash": ("continued", "continued after thoughts"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("continued", "continued after thoughts"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("continued", "continued after thoughts"),
    "deepseek-ai-DeepSeek-V3.1": ("continued", "continued after thoughts"),
    "deepseek-ai-DeepSeek-V3.2": ("continued", "continued after thoughts"),
    "deepseek-ai-DeepSeek-V4-Flash-0731": ("continued", "continued after thoughts"),
    "deepseek-ai-DeepSeek-V4": ("continued", "continued after thoughts"),
    "google-gemma-4-31B-it-interleaved": ("continued", "continued after thoughts"),
    "google-gemma-4-31B-it": ("continued", "continued after thoughts"),
    "ibm-granite-granite-3.3-2B-Instruct": ("continued", "continued after thoughts"),
    "inclusionai-ling-3.0-flash": ("continued", "continued after thoughts"),
    "llama-cpp-deepseek-r1": ("continued", "continued after thoughts"),
    "llama-cpp-rwkv-world": ("continued", "continued after thoughts"),
    "meetkai-functionary-medium-v3.2": ("continued", "continued after thoughts"),
    "microsoft-Phi-3.5-mini-instruct": ("continued", "continued after thoughts"),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("continued", "continued after thoughts"),
    "moonshotai-Kimi-K2": ("continued", "continued after thoughts"),
    "muse-glimmer": ("continued", "continued after thoughts"),
    "openai-gpt-oss-120b": ("continued", "continued after thoughts"),
    "openbmb-MiniCPM5-1B": ("continued", "continued after thoughts"),
    "poolside-Laguna-S-2.1": ("continued", "continued after thoughts"),
    "poolside-Laguna-XS-2.1": ("continued", "continued after thoughts"),
    "poolside-Laguna-XS.2": ("continued", "continued after thoughts"),
    "tencent-Hy3": ("continued after thoughts",),
    "unsloth-mistral-Devstral-Small-2507": ("continued", "continued after thoughts"),
}
"""The continued answers whose prompts are not llama-server's."""


TOLD_IN_WORDS = {
    "HuggingFaceTB-SmolLM3-3B": (
        "system and tool",
        "tools",
        "call",
        "call answered",
        "parallel",
        "parallel answered",
        "thoughts before a call",
    ),
    "LFM2-8B-A1B": ("call", "call answered", "parallel", "parallel answered", "thoughts before a call"),
    "LFM2.5-Instruct": ("call", "call answered", "parallel", "parallel answered", "thoughts before a call"),
    "MiniMax-M3": (
        "system and tool",
        "tools",
        "call",
        "call answered",
        "parallel",
        "parallel answered",
        "thoughts before a call",
    ),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": (
        "system and tool",
        "tools",
        "call",
        "call answered",
        "parallel",
        "parallel answered",
        "thoughts before a call",
    ),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": (
        "system and tool",
        "tools",
        "call",
        "call answered",
        "parallel",
        "parallel answered",
        "thoughts before a call",
    ),
    "deepseek-ai-DeepSeek-V3.1": (
        "system and tool",
        "tools",
        "call",
        "call answered",
        "parallel",
        "parallel answered",
        "thoughts before a call",
    ),
    "fireworks-ai-llama-3-firefunction-v2": (
        "system and tool",
        "tools",
        "call",
        "call answered",
        "parallel",
        "parallel answered",
        "thoughts before a call",
    ),
    "google-gemma-2-2b-it": (
        "system and tool",
        "tools",
        "call",
        "call answered",
        "parallel",
        "parallel answered",
        "thoughts before a call",
    ),
    "ibm-granite-granite-3.3-2B-Instruct": (
        "call",
        "call answered",
        "parallel",
        "parallel answered",
        "thoughts before a call",
    ),
    "llama-cpp-rwkv-world": (
        "system and tool",
        "tools",
        "call",
        "call answered",
        "parallel",
        "parallel answered",
        "thoughts before a call",
    ),
    "meetkai-functionary-medium-v3.2": (
        "system and tool",
        "tools",
        "call",
        "call answered",
        "parallel",
        "parallel answered",
        "thoughts before a call",
    ),
    "microsoft-Phi-3.5-mini-instruct": (
        "system and tool",
        "tools",
        "call",
        "call answered",
        "parallel",
        "parallel answered",
        "thoughts before a call",
    ),
}
"""Where no form of calls is learned from the template, and so tools, calls and results are told in words."""


def rendered(template: str, body: dict[str, Any], now: datetime) -> str:
    """The prompt for a body of /apply-template, or ``REFUSED``."""
    chat = ChatTemplate(template, BOS, EOS, now=lambda: now)
    request = parse_apply_template(orjson.dumps(body), LIMITS).request
    try:
        return chat.render(
            request.prompt,
            request.tools,
            request.enable_thinking,
            switches=request.chat_template_kwargs,
            continue_final_message=request.continue_final_message,
            add_generation_prompt=request.add_generation_prompt,
        )
    except RequestError:
        return REFUSED


def differs(name: str, conversation: str) -> bool:
    return conversation in (*DIFFERENCES.get(name, ((), ""))[0], *CONTINUED.get(name, ()), *TOLD_IN_WORDS.get(name, ()))


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no templates in {FOLDER}: scripts/test fetches them")
@pytest.mark.parametrize("name", TABLE)
def test_prompts_are_those_of_llama_server(name: str):
    template = (FOLDER / f"{name}.jinja").read_text()
    prompts = {conversation: rendered(template, body, DATE) for conversation, body in BODIES.items()}
    digests = {key: prompt if prompt == REFUSED else digest(prompt) for key, prompt in prompts.items()}
    assert {key for key in BODIES if digests[key] != TABLE[name][key]} == {key for key in BODIES if differs(name, key)}


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no templates in {FOLDER}: scripts/test fetches them")
def test_all_templates_are_known():
    assert {path.stem for path in FOLDER.glob("*.jinja")} == set(TABLE)


@pytest.mark.skipif(not LLAMA_SERVER, reason="name llama-server's binary in LLAMA_SERVER to compare with it")
@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no templates in {FOLDER}: scripts/test fetches them")
@pytest.mark.parametrize("name", TABLE)
def test_prompts_are_those_of_a_running_llama_server(name: str):
    path = FOLDER / f"{name}.jinja"
    with llama_server(path, find("")) as ask:
        for conversation, body in BODIES.items():
            if not differs(name, conversation):
                assert rendered(path.read_text(), body, datetime.now()) == ask(body), conversation
