"""Which tokens a grammar allows next: llguidance follows the grammar, with the model's vocabulary."""

from __future__ import annotations

import copy
import ctypes
import re
import threading
import time
from collections.abc import Callable

import llama_cpp
import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

from umaserve.core.errors import Fault, RequestError
from umaserve.engine.llama.model import Model
from umaserve.engine.sampling.candidates import Logits

STACK_BYTES = 256 * 2**20
"""Bytes of stack to compile a grammar: llguidance recurses for each rule within a rule. 64 KiB of rules take some 50
MiB; the rest is never touched."""
MAX_COMPILING_S = 10.0
"""Most seconds to compile a grammar. Requests are prepared one at a time: the others wait for it."""
MAX_ROW_ITEMS = 4000
"""Most parts of a grammar that may go on at one place of a text: an object takes four for each optional property. The
time of a step grows with up to their cube."""
MAX_NESTED_ROW_ITEMS = 400
"""Most parts, as ``MAX_ROW_ITEMS``, where one text may have many readings: then the row of each place has items from
all places before, and a token of 64 characters takes up to 0.5 s."""
MAX_QUICK_S = 0.0002
"""Longest quick step, in seconds. A longer step gives Python's lock away, which costs 40 us."""
MAX_MESSAGE = 300
"""Most characters of llguidance's messages that a client gets."""

_OPTIONS = '%llguidance {"no_forcing": true}\n'
"""Options for llguidance, which otherwise looks in every step for text that has to follow, and takes a second where it
is long."""
_CLUTTER = re.compile(r"^at \d+\(\d+\): |\n +\d+ \| .*|<non-verbose/>|<backtrace>.*", re.DOTALL)
"""Clutter in llguidance's messages: places in our own Lark, and its text."""
_REFUSED = "doesn't satisfy the grammar"
"""Words in llguidance's message about a token that the grammar refuses."""
_TOO_MANY_WAYS = re.compile(r"items|too many (expressions|states)|fuel")
"""Words in llguidance's messages about its limits."""


def _limits(n_vocab: int, *, nested: bool) -> LLParserLimits:
    """Limits of one step, mostly a fraction of a second. Larger vocabularies need more items."""
    return LLParserLimits(
        max_items_in_row=MAX_NESTED_ROW_ITEMS if nested else MAX_ROW_ITEMS,
        step_max_items=max(50_000, n_vocab // 2),
        step_lexer_fuel=400_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


class Vocabulary:
    """The tokens of ``model`` in llguidance's form, made once: it takes 5 us for each token, with Python's lock."""

    def __init__(self, model: Model) -> None:
        self.pieces = model.pieces
        self.end_tokens = model.end_tokens
        # The prefix marks control tokens: a grammar can name them, as in <|im_end|>, but no text in it stands for them.
        tokens = [piece or b"\xff" + model.written(token) for token, piece in enumerate(model.pieces)]
        self.tokenizer: LLTokenizer = LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]
            tokens=tokens,
            vocab_ptr=model.vocab,
            tokenize_fptr=ctypes.cast(llama_cpp.llama_cpp._lib.llama_tokenize, ctypes.c_void_p).value,
            eos_token=sorted(model.end_tokens) or [0],
            slices=None,
        )
        self.any_text = LLMatcher(self.tokenizer, "start: /(?s:.*)/\n", log_level=0)
        """Matcher of any text, to advance beside another one where Python's lock has to be given away."""


class Constraint:
    """Binds a sequence to ``lark``: from its first token on or, with ``after``, once its text has contained that.

    ``lark`` is a grammar in llguidance's form of Lark, which begins at the rule ``start`` and has no ``%llguidance``.
    Here the token that completes ``after`` is allowed only if nothing or white space follows it there, which the
    grammar never sees. Errors name ``field``. Raises ``RequestError`` for a grammar that is malformed or too large.

    ``nested``: whether its rules may contain themselves with nothing around, as those of JSON never do, so that a
    text may have many readings.
    """

    def __init__(
        self, vocabulary: Vocabulary, lark: str, field: str, after: bytes = b"", *, nested: bool = False
    ) -> None:
        self._matcher = _with_deep_stack(
            lambda: LLMatcher(
                vocabulary.tokenizer,
                _OPTIONS + lark,
                log_level=0,
                limits=_limits(len(vocabulary.pieces), nested=nested),
            ),
            field,
        )
        self._vocabulary = vocabulary
        self.field = field
        self._after = after
        self._is_quick = not nested
        self._waiting = bool(after)
        self._tail = b""
        """End of the text while waiting for ``after``, at most one byte shorter than ``after``."""
        # Of a grammar without texts that is an error.
        self._check(self._matcher)

    @property
    def waiting(self) -> bool:
        """Whether the text has not contained ``after`` yet, so that all is allowed."""
        return self._waiting

    def copy(self) -> Constraint:
        """Copy the grammar in its present state, for another sequence."""
        other = copy.copy(self)
        other._matcher = self._matcher.deep_copy()
        return other

    def accept(self, token: int) -> bool:
        """Advance by ``token`` if it may come next; returns whether it may. Raises ``RequestError`` where the grammar
        has become too complex to follow."""
        if not self._waiting:
            if self._matcher.is_stopped():
                # The text is complete. llguidance takes no token any more, not even the end token.
                return token in self._vocabulary.end_tokens
            if self._is_quick:
                began = time.perf_counter()
                accepted = bool(self._matcher.try_consume_tokens([token]))
                self._is_quick = time.perf_counter() - began < MAX_QUICK_S
                self._check(self._matcher)
                return accepted
            tried = self._matcher.deep_copy()
            # It keeps Python's lock while it advances one matcher, but not for two.
            pair = [(tried, token), (self._vocabulary.any_text.deep_copy(), token)]
            accepted, _ = _executor().consume_token_par(pair)
            if accepted:
                self._matcher = tried
            elif _REFUSED not in tried.get_error():
                self._check(tried)
            return accepted
        text = self._tail + self._vocabulary.pieces[token]
        _before, after, rest = text.partition(self._after)
        if rest.strip():
            return False
        self._waiting = not after
        self._tail = text[1 - len(self._after) :]
        return True

    def mask(self, logits: Logits, forbidden: int) -> Logits:
        """A copy of ``logits`` with -inf for ``forbidden`` and, unless waiting for ``after``, for all other tokens that
        the grammar forbids. Raises ``RequestError`` as ``accept``."""
        left = logits.copy() if self._waiting else np.where(self._allowed(), logits, np.float32(-np.inf))
        left[forbidden] = -np.inf
        return left

    def _allowed(self) -> npt.NDArray[np.bool_]:
        bits = self._matcher.compute_bitmask()
        self._check(self._matcher)
        return np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little", count=len(self._vocabulary.pieces)).view(
            np.bool_
        )

    def _check(self, matcher: LLMatcher) -> None:
        if matcher.is_error():
            if "NoExtension" in matcher.get_error():
                raise RequestError(
                    Fault.BAD_REQUEST, self.field, "expected a grammar of at least one text, got one of none"
                )
            reason = " ".join(_CLUTTER.sub("", matcher.get_error()).split())[:MAX_MESSAGE]
            expected = "a grammar that llguidance can follow"
            if _TOO_MANY_WAYS.search(reason):
                ways = "alternatives that begin alike, optional parts side by side"
                expected += f", with fewer ways to read one text ({ways})"
            raise RequestError(Fault.BAD_REQUEST, self.field, f"expected {expected}, but: {reason}")


_threads = threading.local()


def _executor() -> LLExecutor:
    """Executor of this thread alone: matchers of several threads would wait for each other in one."""
    if not hasattr(_threads, "executor"):
        _threads.executor = LLExecutor(1)
    executor: LLExecutor = _threads.executor
    return executor


def _with_deep_stack(make: Callable[[], LLMatcher], field: str) -> LLMatcher:
    """The new matcher, whose first step is done, since that is often the hardest. Raises ``RequestError``."""
    made: list[LLMatcher] = []

    def work() -> None:
        matcher = make()
        matcher.compute_bitmask()
        made.append(matcher)

    before = threading.stack_size(STACK_BYTES)
    try:
        thread = threading.Thread(target=work, name="grammar", daemon=True)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join(MAX_COMPILING_S)
    if not made:
        problem = f"expected a grammar that llguidance can compile within {MAX_COMPILING_S:g} s, got a larger one"
        raise RequestError(Fault.BAD_REQUEST, field, problem)
    return made[0]
