"""How models mark their thoughts, learned from chat templates. Those of llama.cpp's sources are fetched by
scripts/test."""

from __future__ import annotations

import pytest
from llama_templates import BOS, EOS, FOLDER

from umaserve.chat_format.thought_form import MARKS, marks_in
from umaserve.core.requests import ChatTurn
from umaserve.core.tool_call_format import ThoughtForm
from umaserve.engine.template.chat_template import CHATML, ChatTemplate
from umaserve.engine.template.template import Template

LINES = ThoughtForm("<think>\n", "\n</think>\n")
SPACED = ThoughtForm("<think>\n", "\n</think>\n\n")
TAGS = ThoughtForm("<think>", "</think>")
HARMONY_ANSWERS = ("<|channel|>final<|message|>", "<|channel|>commentary<|message|>")

FORMS = {
    "Apriel-1.6-15b-Thinker-fixed": ThoughtForm("Here are my reasoning steps:\n", "\n[BEGIN FINAL RESPONSE]\n"),
    "Bielik-11B-v3.0-Instruct": LINES,
    "ByteDance-Seed-OSS": ThoughtForm("<seed:think>", "</seed:think>\n"),
    "Cohere2MoE": ThoughtForm("<|START_THINKING|>", "<|END_THINKING|>", "", ("<|START_TEXT|>",)),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ThoughtForm(
        "<|START_THINKING|>", "<|END_THINKING|>", "", ("<|START_RESPONSE|>",), "<|END_RESPONSE|>"
    ),
    "GLM-4.6": ThoughtForm("<think>", "</think>\n"),
    "GLM-4.7-Flash": TAGS,
    "HuggingFaceTB-SmolLM3-3B": TAGS,
    "Kimi-K2-Thinking": TAGS,
    "Kimi-K3": ThoughtForm(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        "",
        ("<|open|>response<|sep|>", "<|close|>message<|sep|>"),
        "<|close|>response<|sep|>",
    ),
    "LFM2.5-8B-A1B": TAGS,
    "MiniMax-M2": SPACED,
    "MiniMax-M3": ThoughtForm("<mm:think>", "</mm:think>"),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": LINES,
    "NVIDIA-Nemotron-Nano-v2": TAGS,
    "Qwen-QwQ-32B": TAGS,
    "Qwen-Qwen3-0.6B": SPACED,
    "Qwen3.5-4B": SPACED,
    "Reka-Edge": SPACED,
    "Spark2.5": TAGS,
    "StepFun3.5-Flash": LINES,
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": TAGS,
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": TAGS,
    "deepseek-ai-DeepSeek-V3.1": TAGS,
    "deepseek-ai-DeepSeek-V3.2": TAGS,
    "deepseek-ai-DeepSeek-V4": TAGS,
    "deepseek-ai-DeepSeek-V4-Flash-0731": TAGS,
    "google-gemma-4-31B-it": ThoughtForm("<|channel>thought\n", "\n<channel|>"),
    "google-gemma-4-31B-it-interleaved": ThoughtForm("<|channel>thought\n", "<channel|>"),
    "ibm-granite-granite-3.3-2B-Instruct": ThoughtForm("<think>", "</think>", "", ("<response>",), "</response>"),
    "inclusionai-ling-3.0-flash": TAGS,
    "llama-cpp-deepseek-r1": TAGS,
    "llama-cpp-rwkv-world": TAGS,
    "mistralai-Ministral-3-14B-Reasoning-2512": ThoughtForm("[THINK]", "[/THINK]"),
    "muse-glimmer": ThoughtForm(" to=self<|message|>", "<|eom|>", "<|start|>assistant", (" to=user<|message|>",)),
    "openai-gpt-oss-120b": ThoughtForm(
        "<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant", HARMONY_ANSWERS, "<|end|>"
    ),
    "openbmb-MiniCPM5-1B": SPACED,
    "poolside-Laguna-S-2.1": TAGS,
    "poolside-Laguna-XS-2.1": LINES,
    "poolside-Laguna-XS.2": LINES,
    "tencent-Hy3": ThoughtForm("<think:opensource>", "</think:opensource>"),
    "unsloth-Apriel-1.5": ThoughtForm("<thinking>", "</thinking>"),
    "upstage-Solar-Open-100B": ThoughtForm("<|think|>", "<|end|>", "<|begin|>assistant", ("<|content|>",)),
}
"""The templates that mark thoughts, and how."""


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no templates in {FOLDER}: scripts/test fetches them")
def test_each_template_shows_how_its_model_marks_thoughts():
    templates = {path.stem: Template(path.read_text(), BOS, EOS) for path in sorted(FOLDER.glob("*.jinja"))}
    forms = {name: template.thought_form for name, template in templates.items() if template.thought_form is not None}
    assert forms == FORMS
    assert all(templates[name].thinks for name in FORMS)


def test_a_template_without_marks_has_no_form():
    assert ChatTemplate(CHATML, "", "").thought_form is None


def test_the_marks_of_a_vocabulary_are_found_where_each_is_one_token():
    words = {*MARKS[1], "<think>"}
    assert marks_in(words.__contains__) == ThoughtForm(*MARKS[1])
    assert marks_in(str.isalpha) is None


OPENED = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
"""Opens the thought itself."""
WRITES = CHATML.replace(
    "{{ message.content }}",
    "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ message.content }}",
)
QUESTION = ChatTurn("user", "Hi")


@pytest.mark.parametrize(
    ("source", "begun", "end"),
    [
        (WRITES, ChatTurn("assistant", "He"), "assistant\nHe"),
        (WRITES, ChatTurn("assistant", "He", thoughts="Hm"), "assistant\n<think>\nHm\n</think>\n\nHe"),
        (WRITES, ChatTurn("assistant", "", thoughts="Hm"), "assistant\n<think>\nHm"),
        (OPENED + "{# </think> #}", ChatTurn("assistant", "He"), "assistant\n<think>\n</think>He"),
        (OPENED + "{# </think> #}", ChatTurn("assistant", "", thoughts="Hm"), "assistant\n<think>\nHm"),
    ],
)
def test_an_answer_is_continued_after_its_thoughts_or_in_them(source: str, begun: ChatTurn, end: str):
    template = ChatTemplate(source, "", "")
    assert template.render([QUESTION, begun]).endswith(end)
    assert template.continues_thought([QUESTION, begun], None) == (not begun.content)
