"""What connections need of the daemon, whatever they speak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from umaserve.daemon.detached import Detached
from umaserve.errors import Fault, RequestError
from umaserve.messages import Feedback, Metrics, ModelInfo
from umaserve.net.input_budget import InputBudget
from umaserve.net.loop import Loop
from umaserve.serving.content_filter import ContentFilter
from umaserve.serving.questions import Questions
from umaserve.serving.sessions import Caller, SessionManager
from umaserve.settings.daemon import Config
from umaserve.stages.recordings import Recordings
from umaserve.stages.ref_audio import RefAudio
from umaserve.stages.spoken import Speech


@dataclass(frozen=True, slots=True)
class Services:
    """One daemon's, for all connections."""

    config: Config
    loop: Loop
    sessions: SessionManager
    detached: Detached
    model: Callable[[], ModelInfo | None]
    """``None`` while it loads."""
    metrics: Callable[[], Metrics]
    started_at: int
    """Seconds since 1970."""
    prometheus: Callable[[], bytes]
    keep_feedback: Callable[[Feedback, Caller], bool]
    """Write it down; whether there is a place for it. Raises ``RequestError`` where the disk refuses."""
    questions: Callable[[], Questions | None]
    """``None`` while the model loads."""
    speech: Speech
    recordings: Recordings
    ref_audio: RefAudio | None
    content_filter: ContentFilter | None
    input_budget: InputBudget

    def loaded(self) -> tuple[ModelInfo, Questions]:
        """The model and who answers for it; raises ``RequestError`` while it loads."""
        info, questions = self.model(), self.questions()
        if info is None or questions is None:
            raise RequestError(Fault.MODEL_NOT_LOADED, "model: it is being loaded; try again later", retry_after_s=1.0)
        return info, questions
