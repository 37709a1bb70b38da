"""Schemas of the replies of the API of llama-server."""

from __future__ import annotations

from umaserve.dialects.llama_server.schemas import RerankDocument
from umaserve.dialects.openai.reply_schemas import Model, Models, PromptProgress, Timings
from umaserve.wire.declared import (
    Declared,
    any_of,
    array,
    boolean,
    choice,
    const,
    mapping,
    number,
    omittable,
    one_of,
    required,
    string,
    value,
    whole,
)


class _DefaultSampling(Declared):
    seed = required(whole(), "4294967295: a random one.")
    temperature = required(number())
    top_k = required(number())
    top_p = required(number())
    min_p = required(number())
    repeat_penalty = required(number())
    presence_penalty = required(number())
    frequency_penalty = required(number())


class _Defaults(Declared):
    n_ctx = required(whole(), "Tokens that prompt and answer may have together.")
    params = required(_DefaultSampling)


class _Modalities(Declared):
    vision = required(boolean())
    audio = required(boolean())


class Props(Declared):
    default_generation_settings = required(_Defaults)
    total_slots = required(whole(), "Sequences decoded at once.")
    model_alias = required(string())
    model_path = required(string(), "The name of the model's file, without its folder.")
    chat_template = required(string())
    bos_token = required(string())
    eos_token = required(string())
    modalities = required(_Modalities)
    lacks = required(array(string()), "What this server can't do with this model, one sentence each.")


class _TokenWithPiece(Declared):
    id = required(whole())
    piece = required(one_of(string(), array(whole(0, 255))), "Text, or its bytes where it is a part of a character.")


class Tokens(Declared):
    tokens = required(array(one_of(whole(), _TokenWithPiece)))


class Text(Declared):
    content = required(string())


class Prompt(Declared):
    prompt = required(string())


class _Error(Declared):
    code = required(whole(), "The HTTP status.")
    message = required(string(), "Names the field, what was expected and what was found.")
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


class _Token(Declared):
    id = required(whole())
    token = required(string())
    bytes = required(array(whole()))


class _TopLogprob(_Token):
    logprob = required(number())


class _TopProb(_Token):
    prob = required(number())


class NativeScored(_Token):
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
    id_slot = omittable(const(-1), "Always the same: answers have no slot of their own.")
    tokens_predicted = omittable(whole())
    tokens_evaluated = omittable(whole(), "Tokens of the prompt.")
    stop = omittable(const(True))
    model = omittable(string())
    generation_settings = omittable(value(type="object"), "What the answer was made with, by llama-server's names.")
    prompt = omittable(value(), "As it was sent.")
    has_new_line = omittable(boolean())
    truncated = omittable(boolean(), "Whether the context ended before the requested length.")
    stop_type = omittable(choice("eos", "word", "limit", "none"))
    stopping_word = omittable(string())
    tokens_cached = omittable(whole())
    timings = omittable(Timings)
    completion_probabilities = omittable(array(NativeScored))


class NativePiece(Declared):
    index = required(whole(), "Of the answer, from 0.")
    content = required(string())
    tokens = required(array(whole()))
    id_slot = required(const(-1), "Always the same: answers have no slot of their own.")
    tokens_predicted = required(whole())
    tokens_evaluated = required(whole(), "Tokens of the prompt.")
    stop = required(const(False))
    timings = omittable(Timings)
    completion_probabilities = omittable(array(NativeScored))
    prompt_progress = omittable(PromptProgress)


class Moved(Declared):
    success = required(const(True))


class _LoadProgress(Declared):
    stages = required(array(string()))
    current = required(string())
    value = required(number(0, 1))


class _FileProgress(Declared):
    done = required(whole(), "Bytes that are there.")
    total = required(whole())


_FILES = mapping(_FileProgress)
_EXIT = "1 where it could not be loaded or downloaded, or has crashed."


class _DownloadStatus(Declared):
    value = required(choice("downloading", "unloaded"))
    progress = omittable(_FILES, "By the URL of each file, while it is downloaded; empty until the hub has told.")
    failed = omittable(const(True))
    exit_code = omittable(const(1))
    error = omittable(string(), "Why it has failed.")


class _Download(Declared):
    id = required(string(), "The name by which it was asked for.")
    aliases = required(array(string()))
    tags = required(array(string()))
    object_ = required(const("model"))
    created = required(whole())
    owned_by = required(string())
    size = required(whole(), "Bytes of its files, as the hub tells them.")
    needed = required(const(0))
    status = required(_DownloadStatus)


class ListedModels(Declared):
    object_, models, limits = Models.object_, Models.models, Models.limits
    data = required(array(any_of(Model, _Download)), "For operators also downloads, until they have ended well.")


class _ModelError(Declared):
    message = required(string())


class _ModelData(Declared):
    status = omittable(choice("downloading", "loading", "loaded", "unloaded"))
    progress = omittable(
        any_of(_LoadProgress, _FILES),
        "While it is loaded: one stage for all that it is made of. While it is downloaded: by the URL of each file.",
    )
    exit_code = omittable(choice(0, 1), _EXIT)
    error = omittable(_ModelError, "Of download_failed: why.")
    id = omittable(string(), "Of download_finished: the name that it has in the list.")


class ModelEvent(Declared):
    model = required(string(), 'Its name, or that by which its download was asked for; "*": the list has more models.')
    event = required(
        choice(
            *("model_status", "status_change", "model_remove", "models_reload"),
            *("download_progress", "download_finished", "download_failed"),
        )
    )
    data = omittable(_ModelData)


class KeptStream(Declared):
    conversation_id = required(string())
    is_done = required(boolean())
    total_bytes = required(whole(), "Of the stream so far.")
    started_at = required(whole(), "Seconds since 1970.")
    completed_at = required(whole(), "Likewise; 0 until it is done.")


class Erased(Declared):
    id_slot = required(whole())
    n_erased = required(whole(), "Tokens of the sequences that were cached.")


class _SaveTimings(Declared):
    save_ms = required(number())


class _RestoreTimings(Declared):
    restore_ms = required(number())


class Saved(Declared):
    id_slot = required(whole())
    filename = required(string())
    n_saved = required(whole(), "Tokens of the sequence.")
    n_written = required(whole(), "Bytes of the file.")
    timings = required(_SaveTimings)


class Restored(Declared):
    id_slot = required(whole())
    filename = required(string())
    n_restored = required(whole(), "Tokens of the sequence.")
    n_read = required(whole(), "Bytes of the file.")
    timings = required(_RestoreTimings)


class Controlled(Declared):
    success = required(boolean())
    message = omittable(string(), "Why it was none.")


class NativeEmbedding(Declared):
    index = required(whole())
    embedding = required(array(array(number())))


class _NextToken(Declared):
    has_next_token = omittable(boolean())
    n_remain = omittable(whole())
    n_decoded = omittable(whole())


class Slot(Declared):
    id = required(whole())
    n_ctx = required(whole())
    speculative = required(boolean())
    is_processing = required(boolean())
    id_task = omittable(whole())
    n_prompt_tokens = omittable(whole())
    n_prompt_tokens_processed = omittable(whole())
    n_prompt_tokens_cache = omittable(whole())
    params = omittable(value(type="object"), "What the answer is made with, without a client's texts.")
    next_token = omittable(array(_NextToken))
    prompt = omittable(string())


class LoraAdapter(Declared):
    id = required(whole(), "By which lora in a body of /completion may name it.")
    name_ = required(string())
    path = required(const(""))
    scale = required(number())
    task_name = omittable(const(""))
    prompt_prefix = omittable(const(""))


class _Usage(Declared):
    prompt_tokens = required(whole())
    total_tokens = required(whole())


class _RankedDocument(Declared):
    index = required(whole(), "Of the document, from 0.")
    relevance_score = required(number())
    document = omittable(RerankDocument)


class RerankAnswer(Declared):
    model = required(string())
    object_ = required(const("list"))
    usage = required(_Usage)
    results = required(array(_RankedDocument))


class RankedText(Declared):
    index = required(whole())
    score = required(number())
    text = omittable(string())
