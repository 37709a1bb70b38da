"""Operations of the API of llama-server."""

from __future__ import annotations

from umaserve.dialects.llama_server.reply_schemas import (
    Controlled,
    Erased,
    KeptStream,
    ListedModels,
    LoraAdapter,
    ModelEvent,
    Moved,
    NativeAnswer,
    NativeEmbedding,
    NativeError,
    NativePiece,
    Prompt,
    Props,
    RankedText,
    RerankAnswer,
    Restored,
    Saved,
    Slot,
    Text,
    Tokens,
)
from umaserve.dialects.llama_server.schemas import (
    Adapter,
    ControlRequest,
    DetokenizeRequest,
    InfillRequest,
    ModelToDownload,
    ModelToMove,
    NativeEmbeddingRequest,
    NativeRequest,
    RerankRequest,
    StreamPlace,
    StreamsToFind,
    TokenizeRequest,
)
from umaserve.dialects.openai.schemas import ChatRequest
from umaserve.dialects.reference import (
    CACHE_MISS,
    MAX_TOKENS,
    Body,
    Described,
    Errors,
    Operation,
    Parameter,
    Reference,
    Reply,
    failed,
    query_of,
    refused,
)
from umaserve.wire.declared import array, choice, one_of, string

ERRORS = Errors(
    "Native",
    NativeError,
    refused(
        forbidden=" and for clients that are not operators",
        conflict=", 409 where the model is being loaded or unloaded",
    ),
    failed(unable=", 501 for what this model does not support"),
)

_MODEL = Parameter(
    "model",
    "query",
    about="Which of the daemon's models; without it the default one. 503 until it has been loaded first.",
)
_ANSWERS = Reply(
    'The whole answer, an array of several, or with `"stream": true` events.',
    json=one_of(NativeAnswer, array(NativeAnswer)),
    events=(
        one_of(NativePiece, NativeAnswer),
        'One event for each token; the last one of each answer has `"stop": true`. An error ends the stream as an '
        "event.",
    ),
    headers={
        "x-umaserve-max-tokens": MAX_TOKENS,
        "x-umaserve-cache-miss": CACHE_MISS,
    },
)
_HELLO = {"role": "user", "content": "Hello"}


def _ok(reply: Described) -> dict[str, Reply]:
    return {"200": Reply("OK", json=reply)}


REFERENCE = Reference(
    "llama.cpp",
    "The API of llama.cpp's server.",
    ERRORS,
    {
        ("POST", "/completion"): Operation(
            "completeNative",
            "Continue a text, in llama-server's own API",
            "Also at /completions. Fields that are not listed are ignored, id_slot among them. An empty grammar means"
            " none. A stream without other events has a comment every 15 seconds.",
            body=Body(
                NativeRequest,
                {
                    "plain": {
                        "prompt": "Once upon a time",
                        "n_predict": 8,
                        "temperature": 0,
                        "n_probs": 2,
                        "return_tokens": True,
                    },
                    "several": {
                        "prompt": ["Once upon a time", [504, 2042], [504, " upon"]],
                        "n_predict": 4,
                        "response_fields": ["content", "timings/predicted_n"],
                    },
                    "streamed": {
                        "prompt": "Once upon a time",
                        "n_predict": 4,
                        "stream": True,
                        "timings_per_token": True,
                        "return_progress": True,
                    },
                },
            ),
            replies={"200": _ANSWERS},
        ),
        ("POST", "/infill"): Operation(
            "infill",
            "Fill in the middle of a text",
            "For models whose vocabulary has tokens for this; with others it is refused. Replies are those of"
            " /completion.",
            body=Body(
                InfillRequest,
                {
                    "plain": {
                        "input_prefix": "def add(a, b):\n    return ",
                        "input_suffix": "\n",
                        "input_extra": [{"filename": "sub.py", "text": "def sub(a, b):\n    return a - b\n"}],
                        "n_predict": 8,
                    }
                },
            ),
            replies={"200": _ANSWERS},
        ),
        ("POST", "/tokenize"): Operation(
            "tokenize",
            "Tokenize a text",
            body=Body(
                TokenizeRequest,
                {
                    "plain": {"content": "Hello, world"},
                    "pieces": {"content": "Hello 🦙", "add_special": True, "with_pieces": True},
                },
            ),
            replies=_ok(Tokens),
        ),
        ("POST", "/detokenize"): Operation(
            "detokenize",
            "Detokenize tokens",
            body=Body(DetokenizeRequest, {"plain": {"tokens": [19556, 28, 905]}}),
            replies=_ok(Text),
        ),
        ("POST", "/apply-template"): Operation(
            "applyTemplate",
            "Apply the chat template to messages",
            "Takes a body of /v1/chat/completions, whose other fields are checked and have no effect. "
            "Tokens that tokenizing adds, such as the start token, are not in the prompt.",
            body=Body(
                ChatRequest,
                {
                    "plain": {"messages": [_HELLO]},
                    "switches": {
                        "messages": [
                            _HELLO,
                            {"role": "assistant", "content": "Hi", "reasoning_content": "A greeting."},
                            {"role": "user", "content": "Why?"},
                        ],
                        "chat_template_kwargs": {"enable_thinking": False},
                    },
                },
            ),
            replies=_ok(Prompt),
        ),
        ("GET", "/props"): Operation(
            "props",
            "Get what is served, and its defaults",
            parameters=(_MODEL,),
            replies=_ok(Props),
        ),
        ("POST", "/embedding"): Operation(
            "embedNative",
            "Create the embeddings of texts",
            "Also at /embeddings. The texts may be called input, too.",
            body=Body(
                NativeEmbeddingRequest,
                {"plain": {"content": "Hello"}, "several": {"content": ["Hello", [504, 2042], [504, " upon"]]}},
            ),
            replies=_ok(array(NativeEmbedding)),
        ),
        ("GET", "/slots"): Operation(
            "slots",
            "List the slots",
            "As many slots as are decoded at once. For operators: from the daemon's own machine where it "
            "has no API keys, else with a key of the class operator. Prompts are shown only with "
            "--slots-prompts.",
            parameters=(
                _MODEL,
                Parameter("fail_on_no_slot", "query", about="Anything: the status is 503 where all are taken."),
            ),
            replies=_ok(array(Slot)),
        ),
        ("GET", "/lora-adapters"): Operation(
            "loraAdapters",
            "List the LoRA adapters",
            "With the scales for requests without lora in their body.",
            parameters=(_MODEL,),
            replies=_ok(array(LoraAdapter)),
        ),
        ("POST", "/lora-adapters"): Operation(
            "scaleLoraAdapters",
            "Set the scales of the LoRA adapters",
            "For operators. They hold for requests that begin later without lora in their body, until the daemon ends. "
            "Adapters that are not named get 0.",
            parameters=(_MODEL,),
            body=Body(array(Adapter), {"plain": []}),
            replies=_ok(Moved),
        ),
        ("POST", "/slots/{id}"): Operation(
            "actOnSlot",
            "Save, restore or erase what is cached",
            "For operators. save keeps what a slot held last, prompt and answer, in a file of --slot-save-path; restore"
            " lets prompts that begin with it go on from there: those of the client whose it was, and only where it has"
            " 256 tokens, below which reading takes longer than computing. Slots without an answer stand for the"
            " answers that ended last, the latest first; one with an answer is refused with 409. Both take"
            ' {"filename": "NAME"}, of letters, digits, underscores, hyphens and dots, without a dot first. Both need'
            " --slot-save-path and --kv-cache, and are answered with 501 without them. erase drops the computed"
            " prompts that the model has in memory, of all clients: any number stands for all. Those on disk"
            " (--kv-cache) stay.",
            parameters=(
                Parameter("id", "path", about="A slot's number."),
                Parameter("action", "query", choice("save", "restore", "erase")),
                _MODEL,
            ),
            replies={"200": Reply("OK", json=one_of(Saved, Restored, Erased))},
        ),
        ("POST", "/props"): Operation(
            "setProps",
            "Change nothing",
            "For operators. Refused with 501, as by llama-server without --props.",
            replies=_ok(Moved),
        ),
        ("POST", "/rerank"): Operation(
            "rerank",
            "Rank documents by how well they answer a question",
            "Also at /v1/rerank, /v2/rerank, /reranking and /v1/reranking. For reranking models; others "
            "refuse it with 501. In the form of Jina's API, which Cohere's clients read too, or with "
            "texts instead of documents in that of TEI. Scores are the model's, unscaled.",
            body=Body(
                RerankRequest,
                {
                    "plain": {"query": "What is a panda?", "documents": ["A bear.", "A city."], "top_n": 1},
                    "texts": {"query": "What is a panda?", "texts": ["A bear.", "A city."], "return_text": True},
                },
            ),
            replies={"200": Reply("The best first.", json=one_of(RerankAnswer, array(RankedText)))},
        ),
        ("POST", "/v1/chat/completions/control"): Operation(
            "controlCompletion",
            "Steer a running completion",
            "Also at /chat/completions/control. Of /v1/chat/completions and /v1/completions, by whoever began it; of "
            "several answers all. Changes hold from the next token on. A paused one keeps its connection. As in "
            "llama-server, an id of none that runs is answered with success false; reasoning_control need not be asked "
            "for.",
            body=Body(
                ControlRequest,
                {
                    "modify": {
                        "id": "chatcmpl-0123456789abcdef01234567",
                        "action": "modify",
                        "parameters": {"temperature": 0.2},
                    },
                    "plain": {"id": "chatcmpl-0123456789abcdef01234567", "action": "reasoning_end"},
                },
            ),
            replies=_ok(Controlled),
        ),
        ("GET", "/v1/stream"): Operation(
            "readOn",
            "Read a stream on, after a lost connection",
            "A request for a stream with the header x-conversation-id (1 to 256 printable characters of ASCII) goes on"
            " without its client, and its stream is kept: the last 4 MiB, until --resume-window seconds after its end,"
            " within --resume-bytes for all, the oldest going first. This sends its bytes again from where the client"
            " left off, and then what comes. 404 where it is not kept, or another client's; 400 where these bytes are"
            " gone. A request with the header of an earlier one ends that. Relays don't have it.",
            parameters=query_of(StreamPlace),
            replies={
                "200": Reply(
                    "The rest of the stream.",
                    content={"text/event-stream": string(description="The events of the request's own API.")},
                )
            },
        ),
        ("DELETE", "/v1/stream"): Operation(
            "stopStream",
            "End a stream that is kept",
            "Also where it is not kept any more, or none was. from has no meaning here.",
            parameters=query_of(StreamPlace),
            replies={"204": Reply("It has ended.")},
        ),
        ("POST", "/v1/streams/lookup"): Operation(
            "findStreams",
            "Find streams that are kept",
            "Of the client's own, by their names: nobody can list others'.",
            body=Body(StreamsToFind, {"plain": {"conversation_ids": ["conversation-1"]}}),
            replies=_ok(array(KeptStream)),
        ),
        ("GET", "/models"): Operation(
            "listModelsAndDownloads",
            "List the models, the default one first",
            "As /v1/models, with the downloads that operators have asked for.",
            replies=_ok(ListedModels),
        ),
        ("POST", "/models"): Operation(
            "downloadModel",
            "For operators: download a model from the Hugging Face Hub",
            "501 unless the daemon runs with --model-downloads. The reply is sent at once; /models and /models/sse tell"
            " how far the download is, and why it has failed. One runs at a time, and up to 8 wait. "
            "/models/unload cancels it. 400 where the model is there already, 409 where it is being downloaded.",
            body=Body(ModelToDownload, {"plain": {"model": "Qwen/Qwen3-8B-GGUF:Q4_K_M"}}),
            replies=_ok(Moved),
        ),
        ("DELETE", "/models"): Operation(
            "deleteModel",
            "For operators: delete a model's files",
            "501 unless the daemon runs with --model-downloads. Of a model in --models-dir that is not loaded, as "
            "umaserve models remove; 409 where it is in use, 400 for another model. Of a download: cancels it, and "
            "deletes what is there of it. The name may be in a body instead, as for /models/unload.",
            parameters=query_of(ModelToMove),
            replies=_ok(Moved),
        ),
        ("GET", "/models/sse"): Operation(
            "watchModels",
            "For operators: watch the models",
            "An event for each load, unload, download and deletion from now on; /models has how they are. A client that"
            " reads slowly gets fewer, with the newest state.",
            replies={"200": Reply("OK", events=(ModelEvent, "Events until the client disconnects."))},
        ),
        ("POST", "/models/load"): Operation(
            "loadModel",
            "Load a model in advance",
            "As if a request waited for it: idle models are unloaded where it needs their memory. The reply is sent"
            " at once; /models has the progress. 400 where it is loaded already, 404 where there is no such "
            "model, 503 where it can't fit.",
            body=Body(ModelToMove, {"plain": {"model": "qwen3-8b"}}),
            replies=_ok(Moved),
        ),
        ("POST", "/models/unload"): Operation(
            "unloadModel",
            "Unload a model",
            "Or cancel its download. Running requests finish first; requests that arrive until then wait, and load it"
            " again. "
            "400 where it is not loaded, or pinned, or the daemon's voice; 409 where it is being loaded "
            "or unloaded; 404 where there is no such model.",
            body=Body(ModelToMove, {"plain": {"model": "qwen3-8b"}}),
            replies=_ok(Moved),
        ),
    },
)
