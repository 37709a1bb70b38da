"""The contract's three communication flows, as a program that knows nothing of this server but the contract.

python flows.py ADDRESS FLOW prints every message that came, one a line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

from websockets.sync.client import ClientConnection, connect

PROMPT = "Once upon a time"


def configure(socket: ClientConnection, max_tokens: int) -> None:
    parameters = {"max_tokens": max_tokens, "temperature": 0.7}
    config = {"type": "config", "prompt": PROMPT, "parameters": parameters, "options": {"stream": True}}
    socket.send(json.dumps(config))


def control(socket: ClientConnection, action: str, **fields) -> None:
    socket.send(json.dumps({"type": "control", "action": action, **fields}))


def messages(socket: ClientConnection) -> Iterator[dict]:
    """Until the generation ends, be it well or not."""
    for text in socket:
        message = json.loads(text)
        print(json.dumps(message), flush=True)
        yield message
        if message["type"] in ("completion", "error"):
            return


def basic(socket: ClientConnection) -> None:
    configure(socket, 200)
    for _ in messages(socket):
        continue


def recovery(socket: ClientConnection) -> None:
    max_tokens = 200
    while True:
        configure(socket, max_tokens)
        *_, last = messages(socket)
        if last["type"] != "error" or not last["recoverable"] or last["recovery_action"] != "retry":
            return
        max_tokens = 100
        time.sleep(0.5)


def midstream(socket: ClientConnection) -> None:
    configure(socket, 200)
    tokens = 0
    for message in messages(socket):
        tokens += message["type"] == "token"
        if tokens == 3 and message["type"] == "token":
            control(socket, "modify", parameters={"temperature": 0.9})
        if message["type"] == "status":
            control(socket, "stop")


if __name__ == "__main__":
    with connect(sys.argv[1]) as connection:
        {"basic": basic, "recovery": recovery, "midstream": midstream}[sys.argv[2]](connection)
