"""Why cases of others' suites fail or are left out: by a regular expression that finds its case and its message.

The first that matches counts.
"""

from __future__ import annotations

LANGCHAIN = {
    r"length limit was reached|Failed to parse Joke|"
    r"test_structured_output\S*: .*(validation errors? for Joke|assert False)": "The model's: it repeats itself until "
    "the limit of 96 tokens, so that the object has no end.",
    r"test_agent_loop|tool call|assert 0 == 1|test_bind_runnables_as_tools": "The model's: with 135 million "
    "parameters, it calls no tool unless it must.",
    r"does not (explicitly )?support|requires": "Not claimed: the default model neither sees nor hears, or the API has "
    "no such field.",
    r"VCR": "It needs recordings of an earlier run.",
}

_ORDER = (
    r"additional properties are allowed|allOf: allOf: allOf|allOf with base schema|anyOf complex types|"
    r"different property order|doesn't invalidate other properties|escaped characters: CRLF"
)
SCHEMAS = {
    r"format: .*only an annotation": "By intent: a `format` that umaserve knows is enforced, not only noted.",
    r"^oneOf: ": "By intent: `oneOf` is taken as `anyOf`, as others do; a grammar can't count the options that hold.",
    r": float (zero|one|is|-2)|\[[01]\.0\] is valid|zero fractional": "By intent: a whole number is written without a "
    "fraction. 1.0 would be valid as well, and no model has to write it.",
    _ORDER: "By intent: properties come in the schema's order, and an object has no others unless the schema says so.",
    r"expected a JSON schema, which is an object": "`true` and `false` in place of a schema say nothing of an answer.",
    r"\$ref: expected a reference within|Resource '": "References to other documents, `$id` and `$anchor` are not "
    "followed: the schema is all there is.",
    r"expected to be absent": "Keywords that a grammar can't enforce are refused, with their path.",
    r"Unsatisfiable": "No value satisfies the schema, which is refused before the first token.",
    r"patternProperty regexes|Unimplemented keys|least common multiple": "llguidance, which follows the grammar, does "
    "not have it, and the schema is refused.",
}
REAL_SCHEMAS = {
    r"o(21136|62058)": "llguidance's: of a `pattern` of up to 50 words with a `maxLength` of 500 it takes the first "
    "few words only, whatever its limits.",
    r"o19070": "By intent: `oneOf` is taken as `anyOf`, as others do; a grammar can't count the options that hold.",
    r"circular references|regex parse error": "llguidance, which follows the grammar, does not have it, and the schema "
    "is refused.",
    **SCHEMAS,
    r"(valid|positive) \d+: ": "By intent: properties come in the schema's order, and an object has no others unless "
    "the schema says so.",
}
BFCL = {
    r"llama-server's calls are wrong, too": "The model's: they are wrong by llama-server, too.",
    r"no other server was asked": "The model's, or umaserve's: no other server was asked.",
}
ABSENT = r"model '.*' not found"
OLLAMA = {
    ABSENT: "They need certain models of Ollama's library, and an operator decides which models umaserve has.",
    r"default: none of .* found in": "The model's: none of the words that the test looks for is in its answer.",
    r"expected at least one tool call": "The model's: with 135 million parameters, it calls no tool unless it must.",
}
OPEN_RESPONSES = {
    r"image-input": "The model's: it takes no images.",
    r"compact-missing-model": "By intent: where a request names no model, the default one answers.",
    r"Timed out waiting": "The model's: it repeats itself for longer than the 30 seconds that the suite waits.",
    r"\"function_call\" but none found": "The model's: with 135 million parameters, it calls no tool unless it must.",
}
LLAMA_SERVER = {
    r"test_server_slots": "By intent: `/slots` needs no flag; it shows prompts only with `--slots-prompts`.",
    r"test_no_ui": "The suite's: it looks for the files of llama-server's page.",
    r"llama_telemetry": "By intent: a stream that `max_output_tokens` ends has `response.incomplete` as last event, "
    "as OpenAI's.",
    r"server_props|stream_vs_non_stream|with_tokens_input": "The suite's: it counts on a seed in the server's flags.",
    r"match_regex|with_bos|<s>|Unexpected output|assert \d+ == \d+|'prompt_n'": "The suite's: it knows what "
    "llama.cpp's own small models say, and how many tokens that has.",
}
