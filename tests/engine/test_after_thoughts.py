"""What a grammar allows after thoughts, token by token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from umaserve.chat_format.thoughts import ThoughtSplitter
from umaserve.core.tool_call_format import THINK_TAGS, ThoughtForm
from umaserve.engine.llama.model import Model, find
from umaserve.engine.sampling.constraint import Constraint, Vocabulary
from umaserve.engine.sampling.thinking import AfterThoughts, Thinking
from umaserve.settings.daemon import Config

CHANNELS = ThoughtForm("<think>", "<end>", "<turn>", ("<final>",))
LARK = 'start: "<yes>" | "no" | "nay"\n'


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    made = Model(find(""), Config(n_ctx=64, parallel=1, threads=1), lambda _fraction: True)
    yield made
    made.free()


@pytest.fixture(scope="module")
def vocabulary(model: Model) -> Vocabulary:
    return Vocabulary(model)


class Text:
    """A text under a grammar that begins after thoughts."""

    def __init__(self, model: Model, vocabulary: Vocabulary, form: ThoughtForm, *, opened: bool = False) -> None:
        self._model = model
        self.thinking = Thinking(model.pieces, ThoughtSplitter(form, opened=opened), (), None)
        more = bool(form.turn)
        constraint = Constraint(vocabulary, LARK, "grammar")
        self.grammar = AfterThoughts(constraint, self.thinking, model.end_tokens, more_marks=more)

    def allows(self, text: str) -> bool:
        """Whether all tokens of ``text`` are allowed; it goes on after those that are."""
        for token in self._model.tokenize(text, special=False):
            logits = np.zeros(self._model.n_vocab, np.float32)
            assert self.grammar.mask(logits, 0).max() == 0, "no token is left"
            if not self.grammar.accept(token):
                return False
            self.thinking.accept(token)
        return True

    def ends(self) -> bool:
        return all(map(self.grammar.accept, list(self._model.end_tokens)[:1]))


@pytest.mark.parametrize(
    ("form", "opened", "text", "wrong"),
    [
        (THINK_TAGS, False, "no", "maybe"),
        (THINK_TAGS, False, "<yes>", "<yet>"),
        (THINK_TAGS, False, "<think>maybe</think>\n\nno", "<think>maybe</think>maybe"),
        (THINK_TAGS, True, "maybe\n</think>\n\n<yes>", "maybe\n</think>\n\n<think>"),
        (CHANNELS, False, "<think>maybe<end><turn><final>no", "<think>maybe<end><turn><final>maybe"),
        (CHANNELS, False, "<final>no", "<final>maybe"),
        (CHANNELS, False, "<think>a<end><turn><think>b<end><turn><final>no", "<think>a<end>maybe"),
        (CHANNELS, False, "<yes>", "<turn>maybe"),
    ],
)
def test_a_text_after_thoughts_is_the_grammars(
    model: Model, vocabulary: Vocabulary, form: ThoughtForm, opened: bool, text: str, wrong: str
):
    right = Text(model, vocabulary, form, opened=opened)
    assert right.allows(text)
    assert right.ends()
    assert not Text(model, vocabulary, form, opened=opened).allows(wrong)


def test_an_answer_does_not_end_in_a_thought(model: Model, vocabulary: Vocabulary):
    text = Text(model, vocabulary, THINK_TAGS)
    assert text.allows("<think>no")
    assert not text.ends()


def test_white_space_before_the_text_has_an_end(model: Model, vocabulary: Vocabulary):
    assert not Text(model, vocabulary, THINK_TAGS).allows("\n" * 12)
