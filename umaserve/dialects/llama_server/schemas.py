"""Schemas of the API of llama-server."""

from __future__ import annotations

from umaserve.dialects.openai.schemas import PromptProgress, Texts, Timings
from umaserve.dialects.schemas import Computation, Sampling, Targets
from umaserve.wire.declared import (
    Declared,
    array,
    boolean,
    choice,
    const,
    number,
    omittable,
    one_of,
    optional,
    required,
    string,
    switch,
    value,
    whole,
)


class _Params(Declared):
    seed = required(whole(), "4294967295: a random one.")
    temperature = required(number())
    top_k = required(number())
    top_p = required(number())
    min_p = required(number())
    repeat_penalty = required(number())
    presence_penalty = required(number())
    frequency_penalty = required(number())


class _DefaultGenerationSettings(Declared):
    n_ctx = required(whole(), "Tokens that prompt and answer may have together.")
    params = required(_Params)


class _Modalities(Declared):
    vision = required(boolean())
    audio = required(boolean())


class Props(Declared):
    default_generation_settings = required(_DefaultGenerationSettings)
    total_slots = required(whole(), "Sequences decoded at once.")
    model_alias = required(string())
    model_path = required(string(), "The name of the model's file, without its folder.")
    chat_template = required(string())
    bos_token = required(string())
    eos_token = required(string())
    modalities = required(_Modalities)
    lacks = required(array(string()), "What this model can't do here that other models can, a sentence each.")


class TokenizeRequest(Declared):
    content = required(string())
    add_special = switch(False, "Begin with the model's start token, if it has one, as a prompt does.")
    parse_special = switch(True, "Read the names of control tokens as such.")
    with_pieces = switch(False)
    model = optional(
        string(max_bytes=256),
        (
            "One that /v1/models lists, or an alias. Without one, or by an unknown name (refused with "
            "--strict-models): the default model."
        ),
    )


class _Token(Declared):
    id = required(whole())
    piece = required(one_of(string(), array(whole(0, 255))), "Text, or its bytes where it is a part of a character.")


class Tokens(Declared):
    tokens = required(array(one_of(whole(), _Token)))


class DetokenizeRequest(Declared):
    tokens = required(array(whole(0)))
    model = optional(
        string(max_bytes=256),
        (
            "One that /v1/models lists, or an alias. Without one, or by an unknown name (refused with "
            "--strict-models): the default model."
        ),
    )


class Text(Declared):
    content = required(string())


class Prompt(Declared):
    prompt = required(string())


class _Error(Declared):
    code = required(whole(), "The HTTP status.")
    message = required(string(), "Names the field, what came and what was expected.")
    type = required(
        choice(
            "invalid_request_error",
            "authentication_error",
            "permission_error",
            "not_found_error",
            "exceed_context_size_error",
            "rate_limit_error",
            "not_supported_error",
            "server_error",
            "unavailable_error",
        )
    )
    n_prompt_tokens = omittable(whole(), "With exceed_context_size_error: of the prompt.")
    n_ctx = omittable(whole(), "With exceed_context_size_error: what the context holds.")


class NativeError(Declared):
    error = required(_Error)


class NativeOptions(Sampling, Computation, Targets):
    n_predict = optional(
        whole(-1),
        (
            "The answer's length in tokens, cut to what the context holds and to the server's "
            "--max-tokens; -1, the default: as many; 0 makes one token, as in llama-server."
        ),
    )
    max_tokens = optional(whole(-1), "As n_predict.")
    max_completion_tokens = optional(whole(-1), "As n_predict.")
    samplers = optional(
        one_of(string(1), array(string(1), high=32)),
        (
            "The samplers to use, by name or letter: penalties (e), top_k (k), top_p (p), min_p (m), "
            "temperature (t), in the order in which to apply them; others make no difference. By default "
            "all, in this order."
        ),
    )
    n_probs = optional(
        whole(0, 100), ("Tell the log-probability of each token, and of so many of the likeliest; 0: none."), default=0
    )
    logprobs = optional(whole(0, 100), "As n_probs.")
    post_sampling_probs = switch(
        False,
        (
            "Tell prob and top_probs, of the tokens that the samplers left, instead of logprob and "
            "top_logprobs before sampling."
        ),
    )
    stream = switch(False, "Answer with server-sent events.")
    return_tokens = switch(False, "Tell the ids of the answer's tokens; a stream always does.")
    timings_per_token = switch(False, "Tell the timings with each event of a stream.")
    response_fields = optional(
        one_of(string(1), array(string(1), high=64)),
        ("The fields of the answer to send, by their paths, such as timings/predicted_n, which are then their names."),
    )
    return_progress = switch(False, "In a stream, tell how much of the prompt is computed.")
    model = optional(
        string(max_bytes=256),
        (
            "One that /v1/models lists, or an alias. Without one, or by an unknown name (refused with "
            "--strict-models): the default model."
        ),
    )


class NativeRequest(NativeOptions):
    prompt = required(Texts)
    n_cmpl = optional(
        whole(1, 8), "Answers for each prompt. With a seed, each has its own, counted up from it.", default=1
    )
    n = optional(whole(1, 8), "As n_cmpl.")


class _TopLogprob(Declared):
    id = required(whole())
    token = required(string())
    bytes = required(array(whole()))
    logprob = required(number())


class _TopProb(Declared):
    id = required(whole())
    token = required(string())
    bytes = required(array(whole()))
    prob = required(number())


class NativeScored(Declared):
    id = required(whole())
    token = required(string())
    bytes = required(array(whole()))
    logprob = omittable(number())
    prob = omittable(number(0, 1), "Instead of logprob, with post_sampling_probs.")
    top_logprobs = omittable(array(_TopLogprob))
    top_probs = omittable(array(_TopProb), "Instead of top_logprobs, with post_sampling_probs.")


class NativeAnswer(
    Declared, also={"patternProperties": {"/": {"description": "A value by its path in response_fields."}}}
):
    """With response_fields only those."""

    index = omittable(whole(), "Of the answer, from 0.")
    content = omittable(string())
    tokens = omittable(array(whole()))
    id_slot = omittable(const(-1), "Answers have no slot of their own.")
    tokens_predicted = omittable(whole())
    tokens_evaluated = omittable(whole(), "Tokens of the prompt.")
    stop = omittable(const(True))
    model = omittable(string())
    generation_settings = omittable(value(type="object"), "What the answer was made with, by llama-server's names.")
    prompt = omittable(value(), "As it was sent.")
    has_new_line = omittable(boolean())
    truncated = omittable(boolean(), "Whether the context's end came before the wanted length.")
    stop_type = omittable(choice("eos", "word", "limit", "none"))
    stopping_word = omittable(string())
    tokens_cached = omittable(whole())
    timings = omittable(Timings)
    completion_probabilities = omittable(array(NativeScored))


class NativePiece(Declared):
    index = required(whole(), "Of the answer, from 0.")
    content = required(string())
    tokens = required(array(whole()))
    id_slot = required(const(-1), "Answers have no slot of their own.")
    tokens_predicted = required(whole())
    tokens_evaluated = required(whole(), "Tokens of the prompt.")
    stop = required(const(False))
    timings = omittable(Timings)
    completion_probabilities = omittable(array(NativeScored))
    prompt_progress = omittable(PromptProgress)


class _InputExtraItem(Declared):
    filename = optional(string())
    text = required(string())


class InfillRequest(NativeOptions):
    input_prefix = required(string(), "The text before the gap.")
    input_suffix = required(string(), "The text after it.")
    prompt = optional(string(), "How what fills the gap begins.")
    input_extra = optional(array(_InputExtraItem, high=1024), "Other files that may help.")


class NativeEmbeddingRequest(Declared):
    content = required(Texts)
    embd_normalize = optional(
        whole(-1, 2),
        (
            "-1: vectors as the model makes them; 0: the largest number is 32760; 1: all numbers add up "
            "to 1, without their signs; 2: vectors of unit length."
        ),
        default=2,
    )
    model = optional(
        string(max_bytes=256),
        (
            "One that /v1/models lists, or an alias. Without one, or by an unknown name (refused with "
            "--strict-models): the default model."
        ),
    )


class _Document(Declared):
    text = required(string())


class RerankRequest(Declared):
    model = optional(
        string(),
        (
            "One that /v1/models lists, or an alias. Without one, or by an unknown name (refused with "
            "--strict-models): the default model."
        ),
    )
    query = required(string(1))
    documents = optional(array(one_of(string(), _Document), 1, 256))
    texts = optional(array(one_of(string(), _Document), 1, 256), "As documents; the answer then has TEI's form.")
    top_n = optional(whole(1), "Only so many of the best.")
    return_text = switch(False, "In TEI's form, send the texts too.")
    return_documents = switch(False, "In Jina's form, send the texts too.")


class ModelToMove(Declared):
    model = required(string(1, 256), "Its name, or an alias.")


class Moved(Declared):
    success = required(const(True))


class EmbedNativeItem(Declared):
    index = required(whole())
    embedding = required(array(array(number())))


class _NextTokenItem(Declared):
    has_next_token = omittable(boolean())
    n_remain = omittable(whole())
    n_decoded = omittable(whole())


class SlotsItem(Declared):
    id = required(whole())
    n_ctx = required(whole())
    speculative = required(boolean())
    is_processing = required(boolean())
    id_task = omittable(whole())
    n_prompt_tokens = omittable(whole())
    n_prompt_tokens_processed = omittable(whole())
    n_prompt_tokens_cache = omittable(whole())
    params = omittable(value(type="object"), "What the answer is made with, without a client's texts.")
    next_token = omittable(array(_NextTokenItem))
    prompt = omittable(string())


class LoraAdaptersItem(Declared):
    id = required(whole(), "By which lora in a body of /completion may name it.")
    name_ = required(string())
    path = required(const(""))
    scale = required(const(1))
    task_name = omittable(const(""))
    prompt_prefix = omittable(const(""))


class _Usage(Declared):
    prompt_tokens = required(whole())
    total_tokens = required(whole())


class _Result(Declared):
    index = required(whole(), "Of the document, from 0.")
    relevance_score = required(number())
    document = omittable(_Document)


class RerankAnswer(Declared):
    model = required(string())
    object_ = required(const("list"))
    usage = required(_Usage)
    results = required(array(_Result))


class RerankItem(Declared):
    index = required(whole())
    score = required(number())
    text = omittable(string())
