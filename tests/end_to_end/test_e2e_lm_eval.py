"""lm-evaluation-harness, unmodified, on small tasks of its three kinds that score prompts: it gets what a bare loop of
llama.cpp says.

It takes some 900 MB, so ``scripts/test`` doesn't install it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from bare_loop import BareLoop, of_default_model
from daemon import Daemon

from umaserve.settings.model_files import default_model

REQUIREMENTS = Path(__file__).parent / "lm_eval" / "requirements.txt"
PYTHON = Path(sys.prefix) / "lm-eval" / "bin" / "python"
HANGS_S = 400
SHARE, EACH = 0.04, 0.15
"""The most by which a log-likelihood differs from that of the loop, as a share of it, and at least for each token:
llama.cpp rounds by the number of rows, and that of an unlikely token more."""

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(),
    reason=f"there is no {PYTHON}: make it with python -m venv and pip install -r {REQUIREMENTS.name} (900 MB)",
)

CHOICES = [
    {"question": "The capital of France is", "choices": ["Paris", "Berlin", "Madrid"], "answer": 0},
    {"question": "Two and two is", "choices": ["five", "four"], "answer": 1},
    {"question": "Water freezes at zero degrees", "choices": ["Celsius", "Kelvin", "loud"], "answer": 0},
    {"question": "Cows give", "choices": ["milk", "petrol"], "answer": 0},
]
COMPLETIONS = [
    {"context": "Once upon a", "target": "time"},
    {"context": "The sun rises in the", "target": "east"},
    {"context": "The opposite of hot is", "target": "xylophone"},
]
TEXTS = [
    {"text": "The harbour was quiet in the morning, and only the old ferry moved between the islands. " * 6},
    {"text": "A short one."},
]
TASKS = {
    "choices": (
        CHOICES,
        "output_type: multiple_choice\ndoc_to_text: '{{question}}'\ndoc_to_choice: '{{choices}}'\n"
        "doc_to_target: '{{answer}}'\nmetric_list:\n  - metric: acc\n  - metric: acc_norm\n",
    ),
    "completions": (
        COMPLETIONS,
        "output_type: loglikelihood\ndoc_to_text: '{{context}}'\ndoc_to_target: ' {{target}}'\n"
        "metric_list:\n  - metric: perplexity\n  - metric: acc\n",
    ),
    "texts": (
        TEXTS,
        "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
        "metric_list:\n  - metric: word_perplexity\n",
    ),
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    daemon = Daemon(tmp_path_factory.mktemp("lm-eval"), "--http", "127.0.0.1:0", "--weights", "as-is")
    yield f"http://{daemon.http}"
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


@pytest.fixture(scope="module")
def loop() -> Iterator[BareLoop]:
    yield from of_default_model(2048)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's own tokenizer, in the form that the harness reads."""
    path = default_model()
    assert path is not None
    fields = gguf.GGUFReader(path).fields
    texts, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
    kinds = fields["tokenizer.ggml.token_type"].contents()
    assert fields["tokenizer.ggml.pre"].contents() == "smollm"
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    made = {
        "version": "1.0",
        "added_tokens": [
            {"id": token, "content": text, **plain}
            for token, (text, kind) in enumerate(zip(texts, kinds, strict=True))
            if kind == gguf.TokenType.CONTROL
        ],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {text: token for token, text in enumerate(texts)}, "merges": merges},
    }
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "tokenizer.json").write_text(json.dumps(made))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "model_max_length": 2048}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def evaluated(address: str, tokenizer: Path, tmp_path: Path, at_once: int, together: int) -> dict[str, list[dict]]:
    """The samples of each task, by so many requests at once with so many prompts each."""
    for name, (documents, task) in TASKS.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in documents))
        files = f"  data_files:\n    test: {tmp_path / name}.jsonl\n"
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs:\n{files}test_split: test\n"
        (tmp_path / f"{name}.yaml").write_text(head + task)
    model = f"base_url={address}/v1/completions,model=default,tokenizer={tokenizer},tokenizer_backend=huggingface"
    command = [PYTHON, "-m", "lm_eval", "--model", "local-completions", "--tasks", ",".join(TASKS)]
    command += ["--model_args", f"{model},max_length=1024,num_concurrent={at_once}", "--batch_size", str(together)]
    command += ["--include_path", tmp_path, "--output_path", tmp_path / "out", "--log_samples"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANGS_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    samples = {}
    for name in TASKS:
        (path,) = (tmp_path / "out").rglob(f"samples_{name}_*.jsonl")
        samples[name] = [json.loads(line) for line in path.read_text().splitlines()]
    return samples


def expected(loop: BareLoop, context: str, continuation: str) -> tuple[float, bool, int]:
    """The log-likelihood of a continuation, whether it is what the model would say itself, and its tokens."""
    tokens, start = loop.tokenize(context + continuation), len(loop.tokenize(context))
    rows = loop.log_probabilities(tokens[:-1])
    scored = list(zip(rows[start - 1 :], tokens[start:], strict=True))
    return (
        sum(row[token] for row, token in scored),
        all(int(np.argmax(row)) == token for row, token in scored),
        len(scored),
    )


@pytest.mark.parametrize(("at_once", "together"), [(1, 1), (4, 3)])
def test_it_gets_what_the_model_says(
    address: str, loop: BareLoop, tokenizer: Path, tmp_path: Path, at_once: int, together: int
) -> None:
    samples = evaluated(address, tokenizer, tmp_path, at_once, together)
    compared = 0
    for sample in samples["choices"] + samples["completions"]:
        for pair, ((told, is_greedy),) in zip(sample["arguments"].values(), sample["resps"], strict=True):
            likelihood, greedy, tokens = expected(loop, pair["arg_0"], pair["arg_1"])
            assert float(told) == pytest.approx(likelihood, rel=SHARE, abs=tokens * EACH), pair
            assert is_greedy == str(greedy), pair
            compared += 1
    assert compared == sum(len(one["choices"]) for one in CHOICES) + len(COMPLETIONS)
    assert {sample["resps"][0][0][1] for sample in samples["completions"]} == {"True", "False"}, "both are among them"
    for sample, text in zip(samples["texts"], TEXTS, strict=True):
        # It puts its end token before the text.
        likelihood, _, tokens = expected(loop, "<|im_end|>", text["text"])
        ((told,),) = sample["resps"]
        assert float(told) == pytest.approx(likelihood, rel=SHARE, abs=tokens * EACH)
