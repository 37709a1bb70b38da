"""Operations of the API of llama-server."""

from __future__ import annotations

from umaserve.dialects.examples import ONCE, said
from umaserve.dialects.llama_server import reply_schemas, schemas
from umaserve.dialects.openai.schemas import ChatRequest
from umaserve.dialects.reference import Errors, Operation, Parameter, Reference, Reply, failed, refused, streamed, takes
from umaserve.wire.declared import array, choice, one_of, string

ERRORS = Errors(
    "Native",
    reply_schemas.NativeError,
    refused(forbidden=" and for clients that are not operators", conflict=", 409 while the model is (un)loaded"),
    failed(unable=", 501 for what this model does not support"),
)

_MODEL = Parameter("model", "query", about="Without it the default one. 503 until it has been loaded first.")
_ACTION = Parameter("action", "query", choice("save", "restore", "erase"))
_ANSWERS = streamed(
    one_of(reply_schemas.NativeAnswer, array(reply_schemas.NativeAnswer)),
    one_of(reply_schemas.NativePiece, reply_schemas.NativeAnswer),
    'One event for each token; the last one of each answer has `"stop": true`.',
)
_PARTS = [ONCE, [504, 2042], [504, " upon"]]
_GAP = {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n"}
_EXTRA = {"input_extra": [{"filename": "sub.py", "text": "def sub(a, b):\n    return a - b\n"}]}
_THOUGHT = {"role": "assistant", "content": "Hi", "reasoning_content": "A greeting."}
_ID = "chatcmpl-0123456789abcdef01234567"
_LOADED = takes(schemas.ModelToMove, plain={"model": "qwen3-8b"})

OPERATIONS = {
    ("completeNative", "POST /completion"): Operation(
        "Continue a text, in llama-server's own API. id_slot is ignored. An empty grammar means none.",
        _ANSWERS,
        takes(
            schemas.NativeRequest,
            plain={"prompt": ONCE, "n_predict": 8, "temperature": 0, "n_probs": 2, "return_tokens": True},
            several={"prompt": _PARTS, "n_predict": 4, "response_fields": ["content", "timings/predicted_n"]},
            streamed={"prompt": ONCE, "n_predict": 4, "stream": True, "timings_per_token": True},
        ),
    ),
    ("infill", "POST /infill"): Operation(
        "Fill in the middle of a text. For models whose vocabulary has tokens for this; with others it is refused.",
        _ANSWERS,
        takes(schemas.InfillRequest, plain={**_GAP, **_EXTRA, "n_predict": 8}),
    ),
    ("tokenize", "POST /tokenize"): Operation(
        "Tokenize a text",
        reply_schemas.Tokens,
        takes(schemas.TokenizeRequest, pieces={"content": "Hello 🦙", "add_special": True, "with_pieces": True}),
    ),
    ("detokenize", "POST /detokenize"): Operation(
        "Detokenize tokens", reply_schemas.Text, takes(schemas.DetokenizeRequest, plain={"tokens": [504]})
    ),
    ("applyTemplate", "POST /apply-template"): Operation(
        "Apply the chat template to messages. Takes a body of /v1/chat/completions, whose other fields are only"
        " checked. Tokens that tokenizing adds, such as the start token, are not in the prompt.",
        reply_schemas.Prompt,
        takes(
            ChatRequest,
            plain={"messages": said("Hello")},
            switches={"messages": [*said("Hello"), _THOUGHT], "chat_template_kwargs": {"enable_thinking": False}},
        ),
    ),
    ("props", "GET /props"): Operation("Get what is served, with defaults", reply_schemas.Props, parameters=(_MODEL,)),
    ("embedNative", "POST /embedding"): Operation(
        "Create the embeddings of texts. The texts may be called input, too.",
        array(reply_schemas.NativeEmbedding),
        takes(schemas.NativeEmbeddingRequest, plain={"content": "Hello"}, several={"content": _PARTS}),
    ),
    ("slots", "GET /slots"): Operation(
        "List the slots. As many slots as are decoded at once. For operators: from the daemon's own machine where it"
        " has no API keys, else with a key of the class operator. Prompts are shown only with --slots-prompts.",
        array(reply_schemas.Slot),
        parameters=(_MODEL, Parameter("fail_on_no_slot", "query", about="Anything: 503 where all are taken.")),
    ),
    ("loraAdapters", "GET /lora-adapters"): Operation(
        "List the LoRA adapters. With the scales for requests without lora in their body.",
        array(reply_schemas.LoraAdapter),
        parameters=(_MODEL,),
    ),
    ("scaleLoraAdapters", "POST /lora-adapters"): Operation(
        "Set the scales of the LoRA adapters. For operators. They hold for requests that begin later without lora in"
        " their body, until the daemon ends. Adapters that are not named get 0.",
        reply_schemas.Moved,
        takes(array(schemas.Adapter), plain=[]),
        (_MODEL,),
    ),
    ("actOnSlot", "POST /slots/{id}"): Operation(
        "Save, restore or erase what is cached. For operators. save keeps what a slot held last, prompt and answer, in"
        " a file of --slot-save-path; restore lets prompts that begin with it go on from there: those of the client"
        " whose it was, and of 256 tokens or more (fewer are computed sooner than read). Slots without an answer stand"
        " for the answers that ended last, the latest first; 409 for one with an answer. Both take an object with a"
        " filename of letters, digits, underscores, hyphens and dots, without a dot first. Both need --slot-save-path"
        " and --kv-cache; else 501. erase drops the computed prompts that the model has in memory, of all clients: any"
        " number stands for all. Those on disk (--kv-cache) stay.",
        one_of(reply_schemas.Saved, reply_schemas.Restored, reply_schemas.Erased),
        parameters=(Parameter("id", "path", about="A slot's number."), _ACTION, _MODEL),
    ),
    ("setProps", "POST /props"): Operation(
        "Change nothing. For operators. Refused with 501, as by llama-server without --props.", reply_schemas.Moved
    ),
    ("rerank", "POST /rerank"): Operation(
        "Rank documents by how well they answer a question. For reranking models; others refuse it with 501. Documents"
        " are for the form of Jina's API, which Cohere's clients read too. Scores are unscaled.",
        Reply("The best first.", one_of(reply_schemas.RerankAnswer, array(reply_schemas.RankedText))),
        takes(
            schemas.RerankRequest,
            plain={"query": "What is a panda?", "documents": ["A bear.", "A city."], "top_n": 1},
            texts={"query": "What is a panda?", "texts": ["A bear.", "A city."], "return_text": True},
        ),
    ),
    ("controlCompletion", "POST /v1/chat/completions/control"): Operation(
        "Steer a running completion. Of /v1/chat/completions and /v1/completions, by whoever began it; of several"
        " answers all. Changes hold from the next token on. A paused one keeps its connection. As in llama-server, an"
        " id of none that runs is answered with success false; reasoning_control need not be asked for.",
        reply_schemas.Controlled,
        takes(
            schemas.ControlRequest,
            modify={"id": _ID, "action": "modify", "parameters": {"temperature": 0.2}},
            plain={"id": _ID, "action": "reasoning_end"},
        ),
    ),
    ("readOn", "GET /v1/stream"): Operation(
        "Read a stream on, after a lost connection. A request for a stream with the header x-conversation-id (1 to 256"
        " printable characters of ASCII) goes on without its client, and its stream is kept: the last 4 MiB, until"
        " --resume-window seconds after its end, within --resume-bytes for all, the oldest going first. This sends its"
        " bytes from where the client left off, and then what comes. 404 where it is not kept, or another client's; 400"
        " where these bytes are gone. A request with the header of an earlier one ends that. Not through relays.",
        Reply("The rest of the stream, in the form of the request's own API.", content={"text/event-stream": string()}),
        parameters=schemas.StreamPlace,
    ),
    ("stopStream", "DELETE /v1/stream"): Operation(
        "End a stream that is kept. Also where it is not kept any more, or none was. from has no meaning here.",
        parameters=schemas.StreamPlace,
        replies={"204": Reply("It has ended.")},
    ),
    ("findStreams", "POST /v1/streams/lookup"): Operation(
        "Find streams that are kept. The client's own, by their names: nobody can list others'.",
        array(reply_schemas.KeptStream),
        takes(schemas.StreamsToFind, plain={"conversation_ids": ["conversation-1"]}),
    ),
    ("listModelsAndDownloads", "GET /models"): Operation(
        "List the models, the default one first. As /v1/models, with operators' downloads.", reply_schemas.ListedModels
    ),
    ("downloadModel", "POST /models"): Operation(
        "For operators: download a model from the Hugging Face Hub. 501 unless the daemon runs with --model-downloads."
        " The reply is sent at once; /models and /models/sse tell the progress, and why it has failed. One runs at a"
        " time, and up to 8 wait. /models/unload cancels it. 400 where it is there already, 409 while it is"
        " downloaded.",
        reply_schemas.Moved,
        takes(schemas.ModelToDownload, plain={"model": "Qwen/Qwen3-8B-GGUF:Q4_K_M"}),
    ),
    ("deleteModel", "DELETE /models"): Operation(
        "For operators: delete a model's files. 501 unless the daemon runs with --model-downloads. Of a model in"
        " --models-dir that is not loaded, as umaserve models remove; 409 where it is in use, 400 for another model. A"
        " download is cancelled, and what is there of it deleted. The name may be in a body instead.",
        reply_schemas.Moved,
        parameters=schemas.ModelToMove,
    ),
    ("watchModels", "GET /models/sse"): Operation(
        "For operators: watch the models. An event for each load, unload, download and deletion from now on; /models"
        " has how they are. A client that reads slowly gets fewer, with the newest state.",
        Reply("OK", events=(reply_schemas.ModelEvent, "Events until the client disconnects.")),
    ),
    ("loadModel", "POST /models/load"): Operation(
        "Load a model in advance. As if a request waited for it: idle models are unloaded where it needs their memory."
        " The reply is sent at once; /models has the progress. 400 where it is loaded already, 404 where there is none,"
        " 503 where it can't fit.",
        reply_schemas.Moved,
        _LOADED,
    ),
    ("unloadModel", "POST /models/unload"): Operation(
        "Unload a model. Or cancel its download. Running requests finish first; requests that arrive until then wait,"
        " and load it again. 400 if it is not loaded, or pinned, or the daemon's voice; 409 while it is (un)loaded; 404"
        " if there is none.",
        reply_schemas.Moved,
        _LOADED,
    ),
}

REFERENCE = Reference("llama.cpp", "The API of llama.cpp's server.", ERRORS, OPERATIONS)
