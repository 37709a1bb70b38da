"""Downloads of models into the folder, one at a time, and their deletion: for operators, where settings allow it."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from umaserve.core.errors import ConfigError, Fault, ModelNotFound, RequestError, shutting_down
from umaserve.core.events import ModelDownload
from umaserve.core.model_names import is_name
from umaserve.daemon.download_process import DownloadProcess
from umaserve.models.registry import Models
from umaserve.models.residency_snapshot import State
from umaserve.net.loop import Loop
from umaserve.settings import model_deletion
from umaserve.settings.daemon import Config
from umaserve.settings.model_files import staging_of

log = logging.getLogger(__name__)

MAX_WAITING = 8
MAX_ENDED = 16
"""Downloads that have ended, whose ends may still be told."""
_OFF = (
    "this daemon neither downloads nor deletes models over HTTP unless its operator sets model_downloads; in a shell, "
    "umaserve pull hf.co/ORG/REPOSITORY downloads one, which is then served at once, and umaserve models remove NAME"
    " deletes one"
)

Answered = Callable[[RequestError | None], None]


class ModelDownloads:
    """Has models downloaded and deleted. Nothing of it blocks: a process downloads, and a thread deletes."""

    def __init__(
        self,
        loop: Loop,
        config: Config,
        models: Models,
        reread: Callable[[Callable[[], None]], None],
        leaving: Callable[[], bool],
    ) -> None:
        """``reread`` has the folder looked at, and then calls its argument. ``leaving``: whether the daemon is to
        end. Raises ConfigError where what downloads need is not installed."""
        if config.model_downloads and importlib.util.find_spec("huggingface_hub") is None:
            problem = "model_downloads is set, and huggingface_hub is not installed"
            raise ConfigError(f"{problem}: pip install 'umaserve[hub]', or remove the setting")
        self._loop = loop
        self._folder = config.models_dir
        self._max_bytes = config.model_downloads
        self._models = models
        self._reread = reread
        self._leaving = leaving
        self._waiting: deque[ModelDownload] = deque()
        self._running: ModelDownload | None = None
        """The one in work, until the daemon has the model or somebody has cancelled it."""
        self._process: DownloadProcess | None = None
        """Process of this one, or of the one before it, which tidies up."""
        self._ended: deque[ModelDownload] = deque(maxlen=MAX_ENDED)
        self._n_ended = self._n_failed = 0

    # -- by hand -------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Have the model downloaded that the hub has by this name. Raises ``RequestError`` where that can't be."""
        self._check_allowed()
        if self._leaving():
            raise shutting_down()
        if self._find(name) is not None:
            advice = "GET /models has its progress, and POST /models/unload cancels it"
            raise RequestError(Fault.BUSY, "model", f"{name} is being downloaded already: {advice}")
        if spec := self._models.catalogue.find(_bare(name)):
            problem = f"{name} is there already, as {spec.name}: DELETE /models deletes it"
            raise RequestError(Fault.BAD_REQUEST, "model", problem)
        if len(self._waiting) >= MAX_WAITING:
            problem = f"{MAX_WAITING} downloads are waiting already: try again later"
            raise RequestError(Fault.QUEUE_FULL, "model", problem, retry_after_s=60.0)
        for before in [one for one in self._ended if _bare(one.name) == _bare(name)]:
            self._ended.remove(before)
        self._waiting.append(ModelDownload(name))
        self._begin_next()

    def cancel(self, name: str) -> bool:
        """Cancel the download of this name, and returns whether there was one. What is whole of it stays."""
        found = self._find(name)
        if found is None:
            return False
        if found is self._running and self._process is not None:
            self._process.stop()
        self._end(found, "it was cancelled")
        return True

    def delete(self, name: str, answered: Answered) -> None:
        """Delete what is there of a download that was cancelled now or failed before, or the model of this name, and
        call ``answered``. Raises ``RequestError`` where that can't be."""
        self._check_allowed()
        self.cancel(name)
        mine = (one for one in self._ended if _bare(one.name) == _bare(name) and not one.deleted)
        failed = next((one for one in mine if one.problem), None)
        if failed is None:
            self._delete_model(name, answered)
            return
        self._ended[self._ended.index(failed)] = replace(failed, deleted=True)
        staging = staging_of(self._folder, _bare(name).partition(":")[0], failed.model)
        self._submit(lambda: shutil.rmtree(staging, ignore_errors=True), answered)

    def _delete_model(self, name: str, answered: Answered) -> None:
        spec = self._models.catalogue.find(name)
        if spec is None:
            raise ModelNotFound(name)
        host = self._models.choose(spec.name, None)
        if host is self._models.default:
            raise RequestError(Fault.BAD_REQUEST, "model", f"{spec.name} is the daemon's default model, and stays")
        if host.state not in (State.UNLOADED, State.FAILED) or not host.unused:
            advice = "POST /models/unload first, and delete it once GET /models has it as unloaded"
            raise RequestError(Fault.BUSY, "model", f"{spec.name} is in use: {advice}")
        try:
            _spec, files = model_deletion.found(self._models.catalogue, self._folder, spec.name)
        except ConfigError as error:
            raise RequestError(Fault.BAD_REQUEST, "model", str(error)) from None
        self._submit(lambda: model_deletion.delete(files, self._folder), answered)

    def _submit(self, delete: Callable[[], object], answered: Answered) -> None:
        def done(result: object) -> None:
            if isinstance(result, ConfigError):
                answered(RequestError(Fault.BAD_REQUEST, "model", str(result)))
            elif isinstance(result, BaseException):
                log.error("a model could not be deleted", exc_info=result)
                answered(RequestError(Fault.DECODE_FAILED, "model", "it could not be deleted: see the server's log"))
            else:
                self._reread(lambda: answered(None))

        self._models.threads.preparing.submit(delete, done)

    def _check_allowed(self) -> None:
        if not self._max_bytes:
            raise RequestError(Fault.NOT_SUPPORTED, "model", _OFF)

    # -- what there is -------------------------------------------------------------------------------------------

    def listed(self) -> Sequence[ModelDownload]:
        """Downloads that have not ended, and the latest that have, the oldest first."""
        return [*self._ended, *self._under_way()]

    def snapshot(self) -> Mapping[str, int]:
        """Metrics of the downloads; none where no downloads are allowed."""
        if not self._max_bytes:
            return {}
        return {
            "model_downloads_unfinished": len(self._under_way()),
            "model_downloads_total": self._n_ended,
            "model_download_failures_total": self._n_failed,
        }

    def _find(self, name: str) -> ModelDownload | None:
        return next((one for one in self._under_way() if _bare(one.name) == _bare(name)), None)

    def _under_way(self) -> Sequence[ModelDownload]:
        return [*([] if self._running is None else [self._running]), *self._waiting]

    # -- one download --------------------------------------------------------------------------------------------

    def _begin_next(self) -> None:
        if self._process is not None or self._running is not None or not self._waiting:
            return
        self._running = self._waiting.popleft()
        arguments = (self._running.name, self._folder, str(self._max_bytes))
        try:
            self._process = DownloadProcess(self._loop, arguments, self._on_said, self._on_process_ended)
        except OSError as error:
            self._end(self._running, f"its process can't be started: {error.strerror}")
            return
        log.info("download begun", extra={"fields": {"model": self._running.name}})

    def _on_said(self, line: bytes) -> None:
        if self._running is None:
            return
        match _words(line):
            case {"model": str(model), "files": dict(files)} if _is_file(model) and all(map(_is_count, files.values())):
                known = {address: (done, total) for address, (done, total) in files.items()}
                self._running = replace(self._running, model=model, files=known)
                self._check_name(model)
            case {"finished": True}:
                self._running = replace(self._running, problem="")
            case {"error": str(problem)}:
                self._running = replace(self._running, problem=problem)

    def _check_name(self, model: str) -> None:
        """End a download of a model whose name another one has: no list of models could be read with both."""
        spec = self._models.catalogue.find(model)
        place = os.path.join(os.path.realpath(self._folder), model)
        if spec is not None and os.path.dirname(os.path.realpath(spec.config.model)) != place:
            assert self._running is not None
            assert self._process is not None
            self._process.stop()
            self._end(self._running, f"the daemon has another model that is named {model}: delete that first")

    def _on_process_ended(self, how: str) -> None:
        self._process, running = None, self._running
        if running is None:
            self._begin_next()
        elif running.problem is None:
            self._end(running, how)
        elif running.problem:
            self._end(running, running.problem)
        else:
            self._reread(lambda: self._finish(running))

    def _finish(self, download: ModelDownload) -> None:
        if download is self._running:
            self._end(download, "")

    def _end(self, download: ModelDownload, problem: str) -> None:
        fields = {"model": download.name, "name": download.model}
        if problem:
            log.warning("download failed", extra={"fields": {**fields, "problem": problem}})
        else:
            log.info("download finished", extra={"fields": fields})
        if download in self._waiting:
            self._waiting.remove(download)
        else:
            self._running = None
        self._n_ended += 1
        self._n_failed += bool(problem)
        self._ended.append(replace(download, problem=problem, ended=self._n_ended))
        self._begin_next()

    def close(self) -> None:
        """End what runs: the daemon ends."""
        if self._process is not None:
            self._process.close()


def _bare(name: str) -> str:
    """The name by which the hub has a model, without the hub's."""
    return name.partition("/")[2] if name.count("/") > 1 else name


def _is_file(name: str) -> bool:
    return is_name(name) and os.sep not in name


def _words(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def _is_count(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(number) is int for number in value)
