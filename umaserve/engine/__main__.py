"""The engine as a program of its own, which the daemon starts: its arguments are the descriptors of its sockets."""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable

from umaserve.engine.checked_loading import load_checked
from umaserve.engine.engine import LlamaEngine
from umaserve.engine.last_words import LastWords
from umaserve.engine.llama.model import find
from umaserve.engine.template.rendering import RENDERER
from umaserve.engine.tts.llama_voice import LlamaVoice
from umaserve.remote.channel import Channel
from umaserve.remote.run_ahead import Granted
from umaserve.remote.server import Server
from umaserve.sessions.engine_api import Allowance
from umaserve.settings.daemon import Config
from umaserve.speech.voice import Samples
from umaserve.system import logs, program, threads

log = logging.getLogger(__name__)


def _load(
    last_words: LastWords,
    config: Config,
    chat_template: str | None,
    speaker: Samples | None,
    allowance: Allowance,
    progress: Callable[[float], bool],
) -> tuple[LlamaEngine, LlamaVoice | None]:
    def advances(fraction: float) -> bool:
        wanted = progress(fraction)
        last_words.advances()
        return wanted

    # The daemon may have several models.
    logs.configure(config.log_level, config.log_format, file=os.path.basename(find(config.model)))
    voice = LlamaVoice(config, speaker) if config.tts_model else None
    try:
        if voice is not None:
            last_words.begins("voice", config.tts_model)
            voice.load()
        engine = load_checked(config, allowance, advances, chat_template, last_words.begins)
    finally:
        last_words.done()
    # As in the daemon: a collection of all that stays for good would hold the streams.
    gc.collect()
    gc.freeze()
    return engine, voice


def _begin(serve: Callable[[Channel], None], end: socket.socket) -> None:
    """Have a thread serve one of the daemon's threads."""
    threading.Thread(target=_run, args=(serve, Channel(end)), daemon=True).start()


def _run(serve: Callable[[Channel], None], channel: Channel) -> None:
    try:
        serve(channel)
    except BaseException:
        log.exception("internal error while reading the daemon's calls: the engine process exits")
        logging.shutdown()
        os._exit(1)


def main() -> None:
    program.begin()
    # The daemon decides what ends when: this ends with its sockets.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(threads.SWITCH_S)
    life, ahead, loading, *ends = [socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:]]
    # It is ready by the time that the model is.
    RENDERER.start()
    server = Server(functools.partial(_load, LastWords(life)), Granted(ahead))

    def serve(channel: Channel) -> None:
        server.serve(channel)
        # The end of one is the end of all.
        os._exit(0)

    _begin(server.load, loading)
    for end in ends:
        _begin(serve, end)
    life.recv(1)
    # At once, whatever is computed: nobody waits for it.
    os._exit(0)


if __name__ == "__main__":
    main()
