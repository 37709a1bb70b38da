"""The prompts that the chat templates in llama.cpp's sources make are llama-server's, except where it is said why."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import orjson
import pytest
from llama_templates import (
    BOS,
    DATE,
    DIGESTS,
    EOS,
    FOLDER,
    LLAMA_SERVER,
    NAMES,
    REFUSED,
    conversations,
    digest,
    llama_server,
    needs_templates,
    template_source,
)

from umaserve.core.errors import RequestError
from umaserve.dialects.llama_server.template import parse_apply_template
from umaserve.dialects.parameters import RequestLimits
from umaserve.engine.llama.model import find
from umaserve.engine.template.chat_template import ChatTemplate

TABLE: dict[str, dict[str, str]] = json.loads(DIGESTS.read_text())
BODIES = conversations()
LIMITS = RequestLimits(max_prompt_bytes=1 << 20)

CALLS = ("call", "call answered", "parallel", "parallel answered", "thoughts before a call")
TOOLS = ("system and tool", "tools", "continued with tools", *CALLS)
NO_CALLS = (CALLS, "the template writes no calls of earlier turns: llama-server leaves them out, here they are text")
DIFFERENCES: dict[str, tuple[tuple[str, ...], str]] = {
    "LFM2-8B-A1B": NO_CALLS,
    "LFM2.5-Instruct": NO_CALLS,
    "StepFun3.5-Flash": (
        ("turns", "call answered", "parallel answered", "thoughts", "switches"),
        "llama-server trims the content of messages for this one model",
    ),
    "fireworks-ai-llama-3-firefunction-v2": (TOOLS, "llama-server leaves out the tools, which it has as ``functions``"),
    "ibm-granite-granite-3.3-2B-Instruct": NO_CALLS,
    "meetkai-functionary-medium-v3.2": (
        ("user", "turns", "thoughts", "not thinking", "thinking", "switches"),
        "without tools the prompt ends with what opens a text",
    ),
    "openai-gpt-oss-120b": (
        ("no answer opened",),
        "llama-server puts another end after the last message than the template does",
    ),
    "openbmb-MiniCPM5-1B": (
        ("parallel", "parallel answered"),
        "llama-server writes nothing for an argument that is an object; the template writes it as Python does",
    ),
    "tencent-Hy3": (
        ("continued after thoughts",),
        "here they follow the empty ones that the template writes where a request asks for none",
    ),
    "unsloth-Apriel-1.5": (
        ("continued after thoughts",),
        "llama-server doesn't know this template's marks",
    ),
    "unsloth-mistral-Devstral-Small-2507": (
        ("thoughts", "switches"),
        "llama-server drops an answer that has thoughts, since it takes the template for another model's",
    ),
    "upstage-Solar-Open-100B": (
        ("thoughts", "thoughts before a call"),
        "llama-server leaves out the thoughts, which the template has as ``reasoning``",
    ),
}
"""Where prompts are not llama-server's, and why."""

# llama-server writes empty thoughts before an answer that is continued, where the template opens none.
NO_EMPTY_THOUGHTS = {
    "ByteDance-Seed-OSS",
    "GLM-4.6",
    "HuggingFaceTB-SmolLM3-3B",
    "Kimi-K2-Thinking",
    "LFM2.5-8B-A1B",
    "MiniMax-M3",
    "Qwen-Qwen3-0.6B",
    "deepseek-ai-DeepSeek-V4-Flash-0731",
    "deepseek-ai-DeepSeek-V4",
    "google-gemma-4-31B-it-interleaved",
    "mistralai-Ministral-3-14B-Reasoning-2512",
    "muse-glimmer",
    "openai-gpt-oss-120b",
}
"""The templates with which the prompts of continued answers without thoughts are not llama-server's."""

# llama-server writes what opens an answer, and the marks of thoughts, in its own way.
CONTINUED_OTHERWISE = {
    "Apriel-1.6-15b-Thinker-fixed",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "Kimi-K2-Instruct",
    "LFM2-8B-A1B",
    "LFM2.5-Instruct",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "Qwen-QwQ-32B",
    "StepFun3.5-Flash",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "google-gemma-4-31B-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-deepseek-r1",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
    "moonshotai-Kimi-K2",
    "poolside-Laguna-XS-2.1",
    "poolside-Laguna-XS.2",
    "unsloth-mistral-Devstral-Small-2507",
    "upstage-Solar-Open-100B",
}
"""The templates with which no prompts of continued answers are llama-server's."""

TOLD_IN_WORDS = {
    "HuggingFaceTB-SmolLM3-3B",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "google-gemma-2-2b-it",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}
"""Templates without a place for tools: llama-server leaves them out, here they are told in words."""


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
    if conversation in ("continued", "continued with tools") and name in NO_EMPTY_THOUGHTS:
        return True
    if name in CONTINUED_OTHERWISE and conversation.startswith("continued"):
        return True
    if name in TOLD_IN_WORDS and conversation in TOOLS:
        return True
    return conversation in DIFFERENCES.get(name, ((), ""))[0]


@needs_templates
@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_those_of_llama_server(name: str):
    prompts = {conversation: rendered(template_source(name), body, DATE) for conversation, body in BODIES.items()}
    digests = {key: prompt if prompt == REFUSED else digest(prompt) for key, prompt in prompts.items()}
    assert {key for key in BODIES if digests[key] != TABLE[name][key]} == {key for key in BODIES if differs(name, key)}


def contents(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages if message["content"]]


@needs_templates
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("conversation", ["turns", "call"])
def test_a_later_system_message_is_written_where_it_stands(name: str, conversation: str):
    # Agents remind the model after the results of calls.
    body = BODIES[conversation]
    before = rendered(template_source(name), body, DATE)
    if before == REFUSED:
        pytest.skip("the template refuses the conversation without it")
    reminder = {"role": "system", "content": "REMINDER: stay calm."}
    prompt = rendered(template_source(name), {**body, "messages": [*body["messages"], reminder]}, DATE)
    *_, last = contents(body["messages"])
    assert prompt.rfind(last) < prompt.find("REMINDER: stay calm.")
    assert prompt.startswith(before[: before.rfind(last) + len(last)])


@needs_templates
def test_all_templates_are_known():
    assert {path.stem for path in FOLDER.glob("*.jinja")} == set(TABLE)


@pytest.mark.skipif(not LLAMA_SERVER, reason="name llama-server's binary in LLAMA_SERVER to compare with it")
@needs_templates
@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_those_of_a_running_llama_server(name: str):
    with llama_server(FOLDER / f"{name}.jinja", find("")) as ask:
        for conversation, body in BODIES.items():
            if not differs(name, conversation):
                assert rendered(template_source(name), body, datetime.now()) == ask(body), conversation
