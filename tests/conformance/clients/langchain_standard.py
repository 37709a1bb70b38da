"""LangChain's standard tests of chat models and of embeddings, as the makers of an integration run them."""

from __future__ import annotations

import os
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests
from questions import MODEL

URL = os.environ["CONFORMANCE_URL"]
OPENAI = {"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}


class TestChatOpenAI(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        # But for OpenAI's own address, LangChain asks for a stream's usage only where it is told to.
        return {**OPENAI, "model": MODEL, "temperature": 0, "max_tokens": 96, "stream_usage": True}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return os.environ["CONFORMANCE_MODEL"]


class TestChatOpenAIResponses(TestChatOpenAI):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True}


class TestChatAnthropic(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "base_url": URL,
            "api_key": "none",
            "max_retries": 0,
            "model": MODEL,
            "temperature": 0,
            "max_tokens": 96,
        }

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return os.environ["CONFORMANCE_MODEL"]


class TestChatOllama(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOllama

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"base_url": URL, "model": MODEL, "temperature": 0, "num_predict": 96, "repeat_penalty": 1}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def has_tool_choice(self) -> bool:
        # Ollama's API has none.
        return False

    @property
    def model_override_value(self) -> str:
        return os.environ["CONFORMANCE_MODEL"]


class TestOpenAIEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {**OPENAI, "model": MODEL, "check_embedding_ctx_length": False}


class TestOllamaEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return OllamaEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"base_url": URL, "model": MODEL}
