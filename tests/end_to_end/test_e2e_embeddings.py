"""Embeddings by a real embedding model, all-MiniLM-L6-v2, against llama.cpp's own vectors and what is known of it."""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Iterator

import httpx
import llama_cpp
import numpy as np
import pytest
from daemon import Daemon
from minilm import write_minilm
from tiny_models import tiny_model

CAT, FELINE, MARKETS = "a cat sits on the mat", "a feline rests on a rug", "stock markets fell"
LENGTH = 384
RANK = 4
"""llama.cpp's pooling type of models that rank."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_minilm(tmp_path_factory.mktemp("minilm") / "all-MiniLM-L6-v2.gguf")


@pytest.fixture(scope="module")
def client(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    flags = ("--http", "127.0.0.1:0", "--model", model)
    daemon = Daemon(tmp_path_factory.mktemp("daemon"), *flags, env={"UMA_THREADS": "1"})
    with httpx.Client(base_url=f"http://{daemon.http}", timeout=60) as client:
        yield client
    assert daemon.stop() == 0, daemon.logs


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    directory = tmp_path_factory.mktemp("ranks")
    model = tiny_model(directory / "model.gguf", "bert", pooling_type=RANK)
    daemon = Daemon(directory, "--http", "127.0.0.1:0", "--model", model, env={"UMA_THREADS": "1"})
    with httpx.Client(base_url=f"http://{daemon.http}", timeout=60) as client:
        yield client
    assert daemon.stop() == 0, daemon.logs


def embeddings(client: httpx.Client, **fields: object) -> np.ndarray:
    """The vectors of ``/v1/embeddings``, one a row."""
    answer = client.post("/v1/embeddings", json=fields)
    assert answer.status_code == 200, answer.text
    return np.array([one["embedding"] for one in answer.json()["data"]], np.float32)


def of_llama_cpp(path: str, texts: tuple[str, ...]) -> np.ndarray:
    """The vectors that a context of llama.cpp makes of each text alone, of unit length."""
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = 1
    params.embeddings = True
    context = llama_cpp.llama_init_from_model(model, params)
    vectors = []
    for text in texts:
        tokens = (ctypes.c_int32 * 512)()
        data = text.encode()
        vocab = llama_cpp.llama_model_get_vocab(model)
        n = llama_cpp.llama_tokenize(vocab, data, len(data), tokens, len(tokens), True, True)
        assert n > 2
        assert llama_cpp.llama_encode(context, llama_cpp.llama_batch_get_one(tokens, n)) == 0
        pooled = np.ctypeslib.as_array(llama_cpp.llama_get_embeddings_seq(context, 0), (LENGTH,)).copy()
        vectors.append(pooled / np.linalg.norm(pooled))
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return np.array(vectors)


def test_texts_are_as_alike_as_the_model_is_known_to_find_them(client: httpx.Client) -> None:
    cat, feline, markets = embeddings(client, input=[CAT, FELINE, MARKETS])
    assert cat @ feline > 0.5
    assert abs(cat @ markets) < 0.2
    assert abs(feline @ markets) < 0.2


def test_vectors_are_llama_cpps_own(client: httpx.Client, model: str) -> None:
    texts = (CAT, FELINE, MARKETS, "word " * 200, "Unglaublich, naïve café!")
    vectors = embeddings(client, input=list(texts))
    assert vectors.shape == (len(texts), LENGTH)
    assert np.allclose(vectors, of_llama_cpp(model, texts), atol=1e-3)


def test_base64_is_of_the_same_vector(client: httpx.Client) -> None:
    (vector,) = embeddings(client, input=CAT)
    answer = client.post("/v1/embeddings", json={"input": CAT, "encoding_format": "base64"}).json()
    written = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
    assert (written == vector).all()
    assert answer["usage"] == {"prompt_tokens": 8, "total_tokens": 8}


def test_a_vector_cut_to_its_first_numbers_is_of_unit_length(client: httpx.Client) -> None:
    (whole,) = embeddings(client, input=CAT)
    (cut,) = embeddings(client, input=CAT, dimensions=64)
    assert np.allclose(cut, whole[:64] / np.linalg.norm(whole[:64]), atol=1e-5)
    refused = client.post("/v1/embeddings", json={"input": CAT, "dimensions": LENGTH + 1})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "dimensions"
    assert f"from 1 to {LENGTH}, got {LENGTH + 1}" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_are_ranked_by_jinas_form_and_coheres(ranks: httpx.Client, path: str) -> None:
    documents = ["de", {"text": "f"}, "abc"]
    asked = {"model": "m", "query": "abc", "documents": documents}
    whole = ranks.post(path, json=asked).json()["results"]
    assert sorted(one["index"] for one in whole) == [0, 1, 2]
    scores = [one["relevance_score"] for one in whole]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 3
    answer = ranks.post(path, json=asked | {"top_n": 2, "return_documents": True}).json()["results"]
    assert [one["document"]["text"] for one in answer] == [("de", "f", "abc")[one["index"]] for one in whole[:2]]
    refused = ranks.post(path, json=asked | {"documents": ["a", {"title": "b"}]})
    assert refused.status_code == 400
    assert "documents[1].text: expected a string" in refused.json()["error"]["message"]


def test_a_model_that_only_embeds_says_so(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json={"prompt": CAT})
    assert answer.status_code == 400
    assert "generates no text, it only makes embeddings" in answer.json()["error"]["message"]
