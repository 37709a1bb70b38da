"""instructor in two modes. ADDRESS: prints one line of JSON."""

import json
import sys
from typing import Literal

import instructor
import openai
import pydantic

ADDRESS = sys.argv[1]


class Place(pydantic.BaseModel):
    city: Literal["Rome"]
    unit: Literal["C"]


def told(mode: instructor.Mode) -> list:
    client = instructor.from_openai(openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key="none"), mode=mode)
    asked = {"model": "default", "messages": [{"role": "user", "content": "What is the weather in Rome?"}]}
    whole = client.chat.completions.create(response_model=Place, max_retries=0, **asked)
    *_, last = client.chat.completions.create_partial(response_model=Place, max_retries=0, **asked)
    return [whole.model_dump(), last.model_dump()]


print(json.dumps({mode.name: told(mode) for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA)}))
