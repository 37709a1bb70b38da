"""Makes requests ready to run: chat template, tokens, grammar, sampler; and answers questions about them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import time
from collections.abc import Callable, Sequence

from umaserve.chat_format.thoughts import ThoughtSplitter
from umaserve.core.errors import ContextExceeded, Fault, RequestError
from umaserve.core.queries import (
    Answer,
    ApplyTemplate,
    Counted,
    CountPrompt,
    Detokenize,
    Detokenized,
    Embed,
    Pair,
    Prompted,
    Query,
    Tokenize,
    Tokenized,
)
from umaserve.core.requests import ChatTurn, Generate, Infill, MixedText, Sampling, Syntax, TokenIds, Tool
from umaserve.core.tool_call_format import ThoughtForm, ToolForm
from umaserve.engine.grammar.grammar import NESTED, lark_of
from umaserve.engine.grammar.loose_tools import loosened, outlined
from umaserve.engine.grammar.tool_grammar import CallGrammar, of_tools
from umaserve.engine.llama.adapters import LoraAdapters
from umaserve.engine.llama.model import Model
from umaserve.engine.llama.reranking import pair_tokens
from umaserve.engine.media.reader import MediaReader, Prompt
from umaserve.engine.sampling.chain import DrySamplers
from umaserve.engine.sampling.constraint import MAX_COMPILING_S, Constraint, Vocabulary
from umaserve.engine.sampling.logprobs import MAX_PROMPT_ENTRIES
from umaserve.engine.sampling.sampler import Sampler
from umaserve.engine.sampling.thinking import AfterThoughts, Thinking
from umaserve.engine.template.chat_template import ChatTemplate
from umaserve.engine.template.infill import infill_tokens
from umaserve.engine.template.plain_content import PlainContent
from umaserve.sessions.engine_api import Prepared

MAX_MARK_TOKENS = 32
"""The most tokens in the mark that opens thoughts, with white space."""

log = logging.getLogger(__name__)


class Preparation:
    """Does everything of a request that is done before it runs. Called on preparing threads, except ``change``."""

    def __init__(
        self,
        model: Model,
        template: ChatTemplate,
        thought_form: ThoughtForm,
        adapters: LoraAdapters,
        media: MediaReader,
        sequence_tokens: int,
        thought_budget: int | None = None,
        *,
        trusts_content: bool = False,
    ) -> None:
        """``thought_budget``: of requests that have none of their own. ``trusts_content``: names of control tokens in
        what a conversation's turns say are control tokens."""
        self._model = model
        self._template = template
        self._thought_form = thought_form
        self._adapters = adapters
        self._media = media
        self._sequence_tokens = sequence_tokens
        self._thought_budget = thought_budget
        self._dry = DrySamplers(model.vocab)
        self._plain = None if trusts_content else PlainContent(model)
        # Asked now, since dividing the cells makes a new context while requests are prepared.
        self._generates = bool(model.memory)
        # Made now: it keeps Python's lock for a second where the vocabulary is large.
        self._vocabulary = _vocabulary(model) if self._generates else None

    def prepare(
        self,
        request: Generate,
        tenant: str = "",
        wanted: Callable[[], bool] = lambda: True,
        generated: Sequence[int] = (),
    ) -> Prepared:
        if not self._generates:
            problem = f"{self._model.name} generates no text, it only makes embeddings"
            raise RequestError(Fault.NOT_SUPPORTED, "model", problem)
        # The grammar comes first: what is wrong with it is found before media are decoded.
        constraint = self._constraint(request)
        prompt = self._prompt(request, tenant, wanted)
        tokens = prompt.tokens
        max_tokens = self._max_tokens(request.max_tokens, len(tokens))
        if not tokens:
            if request.prompt != "" or request.prompt_logprobs is not None:
                raise RequestError(Fault.BAD_REQUEST, "prompt", "expected at least one token, got none")
            # Without a start token there is nothing to go on from: the answer is empty, as in llama-server.
            max_tokens = 0
        in_thought = self._in_thought(request, tokens)
        if request.sound_limit is not None and not self._may_think(request, tokens, in_thought):
            max_tokens = min(max_tokens, request.sound_limit.tokens(prompt.sound_s))
        request = dataclasses.replace(request, sampling=_behind(request.sampling, generated))
        sampler = self._new_sampler(request, tokens, constraint, in_thought)
        self._check_ids(generated, "generated")
        sampler.follow(generated)
        adapters = self._adapters.resolve(request.lora)
        text = self._text_of(tokens) if request.wants_prompt else ""
        prepared = Prepared(
            tokens, max_tokens, sampler, request.logprobs, adapters, prompt.spans, in_thought, prompt.sound_s, text
        )
        if request.prompt_logprobs is None:
            return prepared
        return dataclasses.replace(prepared, first=self._first(tokens, request.prompt_logprobs))

    def prepare_choice(self, request: Generate, first: Prepared) -> Prepared:
        assert isinstance(first.sampler, Sampler)
        constraint = first.sampler.constraint
        grammar = constraint.grammar if isinstance(constraint, AfterThoughts) else constraint
        copied = None if grammar is None else grammar.copy()
        return dataclasses.replace(first, sampler=self._new_sampler(request, first.tokens, copied, first.in_thought))

    def change(self, prepared: Prepared, request: Generate, generated: Sequence[int]) -> Prepared:
        """``prepared`` with other sampling and ``max_tokens``, as ``Engine.change``. The grammar keeps its state."""
        assert isinstance(prepared.sampler, Sampler)
        max_tokens = self._max_tokens(request.max_tokens, len(prepared.tokens))
        sampling = _behind(request.sampling, generated)
        thinking = prepared.sampler.thinking
        if request.thought_budget == 0:
            thinking = self._thinking_behind(prepared, request, generated) if thinking is None else thinking
            if thinking is not None:
                thinking.close()
        sampler = self._sampler(sampling, prepared.sampler.constraint, thinking)
        sampler.accept_prompt(_text_tokens(prepared.tokens, sampler.window))
        sampler.accept_answer(generated)
        # A slow grammar may still be at the next token.
        sampler.step = prepared.sampler.step
        return dataclasses.replace(prepared, max_tokens=max_tokens, sampler=sampler)

    def answer(self, query: Query) -> Answer:
        written = self._model.written
        match query:
            case Tokenize(text, begins, special):
                if isinstance(text, str):
                    ids: Sequence[int] = self._model.tokenize(text, special=special, begins=begins)
                else:
                    ids = self.tokens(text, "input")
                return Tokenized(ids, [written(token) for token in ids])
            case Detokenize(ids):
                self._check_ids(ids, "tokens")
                return Detokenized(b"".join(map(written, ids)).decode(errors="replace"))
            case ApplyTemplate(request):
                assert isinstance(request.prompt, tuple)
                return Prompted(self._render(request)(request.prompt))
            case CountPrompt(request):
                return Counted(len(self._prompt(request, "", lambda: True).tokens))
            case Embed():
                raise AssertionError("embeddings are made by embed, on the compute thread")

    def _first(self, tokens: Sequence[int], alternatives: int) -> bytes:
        """The bytes of the first of ``tokens``, of which log-probabilities are wanted: they must not be too many."""
        most = MAX_PROMPT_ENTRIES // (1 + alternatives)
        if len(tokens) > most:
            problem = f"expected at most {most} tokens where log-probabilities of each and {alternatives} alternatives"
            raise RequestError(Fault.BAD_REQUEST, "prompt", f"{problem} are wanted, got {len(tokens)}")
        return self._model.written(tokens[0])

    def _in_thought(self, request: Generate, tokens: Sequence[int]) -> bool | None:
        """Whether the prompt ``tokens`` end inside a thought. ``None``: the text after them is taken as it is, since
        the prompt is no conversation and the request doesn't ask for it."""
        turns = isinstance(request.prompt, tuple)
        if not (turns or request.splits_thoughts or request.thought_budget is not None):
            return None
        opened = self._end_of(tokens).endswith(self._thought_form.opens.strip())
        if isinstance(request.prompt, tuple):
            opened |= self._template.continues_thought(request.prompt, request.continue_final_message)
        return opened

    def _end_of(self, tokens: Sequence[int]) -> str:
        """The end of a prompt's text, without white space."""
        return self._text_of(tokens[-MAX_MARK_TOKENS:]).rstrip()

    def _text_of(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``, without media."""
        return b"".join(self._model.written(token) for token in tokens if token >= 0).decode(errors="replace")

    def _constraint(self, request: Generate) -> Constraint | None:
        grammar = request.sampling.grammar
        if request.tools:
            if grammar is not None and (request.must_call or grammar.syntax is not Syntax.JSON_SCHEMA):
                raise RequestError(Fault.BAD_REQUEST, "tools", f"expected to be absent where {grammar.field} is given")
            form = self._template.tool_form
            if request.continues_text:
                if form.opened and grammar is None and not request.must_call:
                    return None
                form = form.in_text()
            return self._of_tools(request, form)
        if request.must_call:
            raise RequestError(Fault.BAD_REQUEST, "tools", "expected at least one where a call is required, got none")
        if grammar is not None:
            return self._follower(lark_of(grammar), grammar.field, nested=grammar.syntax in NESTED)
        return None

    def _of_tools(self, request: Generate, form: ToolForm) -> Constraint:
        """Constraint for calls of the request's tools. Of tools that aren't strict, what a grammar can't hold is left
        out."""
        last = time.monotonic() + MAX_COMPILING_S
        make = functools.partial(
            of_tools,
            form,
            must_call=request.must_call,
            several=request.parallel_calls,
            or_schema=request.sampling.grammar,
        )
        tools = tuple(map(loosened, request.tools))
        try:
            return self._follow_calls(make(tools))
        except RequestError:
            plain = tuple(
                tool if time.monotonic() < last and self._is_followed(form, tool) else outlined(tool) for tool in tools
            )
            if plain == tools or self._vocabulary is None:
                raise
            return self._follow_calls(make(plain))

    def _is_followed(self, form: ToolForm, tool: Tool) -> bool:
        try:
            self._follow_calls(of_tools(form, [tool], must_call=True))
        except RequestError:
            return False
        return True

    def _follow_calls(self, calls: CallGrammar) -> Constraint:
        return self._follower(calls.lark, "tools", calls.after, nested=calls.nested)

    def _follower(self, lark: str, field: str, after: bytes = b"", *, nested: bool) -> Constraint:
        if self._vocabulary is None:
            raise RequestError(
                Fault.BAD_REQUEST,
                field,
                "not available for this model, whose tokens llguidance does not support (see the server's log)",
            )
        return Constraint(self._vocabulary, lark, field, after, nested=nested)

    def _new_sampler(
        self,
        request: Generate,
        tokens: Sequence[int],
        constraint: Constraint | None,
        in_thought: bool | None,
    ) -> Sampler:
        """A sampler for what follows the prompt ``tokens``, in which ``constraint`` begins after thoughts."""
        budget = self._thought_budget if request.thought_budget is None else request.thought_budget
        thinking: Thinking | None = None
        limited: Constraint | AfterThoughts | None = constraint
        if in_thought is not None and (budget is not None or constraint is not None):
            thoughts = ThoughtSplitter(self._thought_form, opened=in_thought)
            thinking = Thinking(self._model.pieces, thoughts, self._closing(request), budget)
            if constraint is not None and self._may_think(request, tokens, in_thought):
                more = bool(self._thought_form.turn or self._thought_form.answers)
                limited = AfterThoughts(constraint, thinking, self._model.end_tokens, more_marks=more)
        sampler = self._sampler(request.sampling, limited, thinking)
        sampler.accept_prompt(_text_tokens(tokens, sampler.window))
        return sampler

    def _thinking_behind(self, prepared: Prepared, request: Generate, generated: Sequence[int]) -> Thinking | None:
        """What follows the thoughts behind the tokens ``generated``; ``None`` where the text is taken as it is."""
        if prepared.in_thought is None:
            return None
        thoughts = ThoughtSplitter(self._thought_form, opened=prepared.in_thought)
        thinking = Thinking(self._model.pieces, thoughts, self._closing(request), None)
        for token in generated:
            thinking.accept(token)
        return thinking

    def _closing(self, request: Generate) -> Sequence[int]:
        """The tokens that close a thought by force. Where answers have marks, one follows, so that the model can't go
        on thinking; but a call may come instead."""
        form = self._thought_form
        mark = form.turn if request.tools else form.turn + "".join(form.answers[:1])
        return self._model.tokenize(form.closes + mark, begins=False)

    def _may_think(self, request: Generate, tokens: Sequence[int], in_thought: bool | None) -> bool:
        """Whether the text after the prompt ``tokens`` may begin with thoughts, or with marks."""
        if in_thought is None or not isinstance(request.prompt, tuple):
            return False
        thinks = self._template.thinks and request.enable_thinking is not False
        closed = self._end_of(tokens).endswith(self._thought_form.closes.strip())
        return in_thought or bool(self._thought_form.answers) or (thinks and not closed)

    def _sampler(
        self, sampling: Sampling, constraint: Constraint | AfterThoughts | None, thinking: Thinking | None
    ) -> Sampler:
        of_texts = ((self._model.tokenize(text, special=False), bias) for text, bias in sampling.text_bias)
        biases = (*sampling.logit_bias, *((token, bias) for tokens, bias in of_texts for token in tokens))
        # llama.cpp takes memory for all of a window.
        windows = {
            name: min(getattr(sampling, name), self._sequence_tokens)
            for name in ("penalty_window", "dry_penalty_last_n")
        }
        return Sampler(
            self._model.n_vocab,
            tuple(self._model.end_tokens),
            dataclasses.replace(sampling, logit_bias=biases, **windows),
            constraint,
            thinking,
            bad_words=self._bad_words(sampling.bad_words),
            dry=self._dry,
        )

    def _bad_words(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each of ``texts``, with a space before it and without."""
        written = (form for text in texts for form in (text.lstrip(" "), " " + text.lstrip(" ")) if form.strip(" "))
        return [self._model.tokenize(form, special=False) for form in written]

    def _prompt(self, request: Generate, tenant: str, wanted: Callable[[], bool]) -> Prompt:
        if isinstance(request.prompt, str | TokenIds | MixedText):
            return Prompt(self.tokens(request.prompt, "prompt"), ())
        if isinstance(request.prompt, Infill):
            tokens = infill_tokens(self._model, request.prompt, self._sequence_tokens, request.max_tokens)
            return Prompt(tokens, ())
        render, tokenize = self._render(request), self._model.tokenize
        turns: Sequence[ChatTurn] = request.prompt
        if self._plain is not None:
            turns, tokenize = self._plain.marked(turns)
        if not any(turn.attachments for turn in turns):
            self._check_ids(request.context, "context")
            return Prompt([*request.context, *tokenize(render(turns), begins=not request.context)], ())
        return self._media.prompt(turns, render, tenant if request.cache_prompt else None, wanted, tokenize)

    def _render(self, request: Generate) -> Callable[[Sequence[ChatTurn]], str]:
        """Function that makes the prompt of turns, with all else as in ``request``."""
        return functools.partial(
            self._template.render,
            tools=request.tools,
            enable_thinking=request.enable_thinking,
            switches=request.chat_template_kwargs,
            continue_final_message=request.continue_final_message,
            add_generation_prompt=request.add_generation_prompt,
        )

    def tokens(self, text: str | TokenIds | MixedText | Pair, field: str, *, begins: bool = True) -> Sequence[int]:
        """The tokens of ``text``; where it ``begins`` a prompt, with the model's start token."""
        match text:
            case str():
                return self._model.tokenize(text, begins=begins)
            case TokenIds(ids):
                self._check_ids(ids, field)
                return ids
            case Pair():
                return pair_tokens(self._model, text)
            case MixedText(parts):
                mixed = (self.tokens(part, field, begins=begins and at == 0) for at, part in enumerate(parts))
                return list(itertools.chain.from_iterable(mixed))

    def _check_ids(self, ids: Sequence[int], field: str) -> None:
        """Check token ids, since llama.cpp doesn't: it would read out of bounds."""
        limit = self._model.n_vocab
        for index, token in enumerate(ids):
            if not 0 <= token < limit:
                problem = f"expected a token id from 0 to {limit - 1}, got {token}"
                raise RequestError(Fault.BAD_REQUEST, f"{field}[{index}]", problem)

    def _max_tokens(self, wanted: int | None, prompt_tokens: int) -> int:
        room = self._sequence_tokens - prompt_tokens
        if room < (wanted != 0):
            raise ContextExceeded(prompt_tokens, self._sequence_tokens)
        return room if wanted is None else min(wanted, room)


def _vocabulary(model: Model) -> Vocabulary | None:
    try:
        return Vocabulary(model)
    except ValueError as error:
        log.warning(
            "grammars, JSON schemas and required tool calls are not available: llguidance does not support this"
            " model's tokens: %s",
            error,
        )
        return None


def _behind(sampling: Sampling, generated: Sequence[int]) -> Sampling:
    """Sampling for a sampler that goes on behind the tokens ``generated``: the random numbers of a seed must not
    repeat, and fewer tokens have to come."""
    seed = None if sampling.seed is None else (sampling.seed + len(generated)) % 2**32
    return dataclasses.replace(sampling, seed=seed, min_tokens=max(0, sampling.min_tokens - len(generated)))


def _text_tokens(tokens: Sequence[int], window: int) -> list[int]:
    """The last ``window`` tokens that are not media, for the penalties."""
    last = list(itertools.islice((token for token in reversed(tokens) if token >= 0), window))
    return last[::-1]
