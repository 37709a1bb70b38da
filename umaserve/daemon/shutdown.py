"""The end of the daemon as its clients see it: who may still come, what is finished, and who is told what."""

from __future__ import annotations

import logging
import time

from umaserve.core.errors import shutting_down
from umaserve.daemon.listeners import Listeners
from umaserve.daemon.relays.relay_links import DaemonLinks
from umaserve.daemon.services import Services
from umaserve.net.timers import Timer
from umaserve.system import systemd

log = logging.getLogger(__name__)

HANDOVER_S, MAX_HANDOVER_S, HANDOVER_LOOK_S = 0.5, 3.0, 0.05
"""Where those who come now reach the next daemon: how long those who are connected may still make requests; at most,
while one of them has sent nothing yet, or a part of its request; and how often that is looked at."""
FAREWELL_S = 1.0
"""How long clients get to read their last output before the daemon exits."""
JOIN_S = 5.0


class Shutdown:
    """``leave`` begins it; it goes through ``drain`` and ``stop_after_flush`` by itself, and then stops the loop."""

    def __init__(self, services: Services, links: DaemonLinks, entrances: Listeners) -> None:
        self.leaving = False
        """Whether it has begun."""
        self.draining = False
        """Whether what runs is all that there is still to do."""
        self._services = services
        self._config = services.config
        self._loop = services.loop
        self._models = services.models
        self._links = links
        self._entrances = entrances
        self._handed_over = self._refusing = False
        self._farewell: Timer | None = None

    def leave(self) -> None:
        """Drain, after the time that load balancers need to see ``/health/ready`` say no; they know of none that never
        was ready. Relays are told."""
        self.leaving = True
        config = self._config
        grace_s = config.drain_grace
        if self._models.default.info is None:
            self._handed_over = self._entrances.hand_over()
            # Where the next daemon won't see them, those who wait for the model may have it yet.
            grace_s = config.drain_timeout if self._handed_over and self._entrances.clients else 0.0
        systemd.notify_stopping(grace_s + 2 * config.drain_timeout + FAREWELL_S + JOIN_S)
        self._links.drain()
        if grace_s:
            log.info(
                "shutting down after a grace period, in which requests are still accepted",
                extra={"fields": {"grace_s": grace_s}},
            )
            self._loop.call_later(grace_s, self.drain)
        else:
            self.drain()

    def drain(self) -> None:
        if self.draining:
            return
        self.draining = True
        running = sum(1 for _ in self._models.running())
        log.info("draining", extra={"fields": {"running": running, "timeout_s": self._config.drain_timeout}})
        self._handed_over |= self._entrances.hand_over()
        if self._models.default.info is None:
            self._refuse_more(of_loaded=True)
            return
        self._loop.call_later(self._config.drain_timeout, self._end_begun if self._handed_over else self._end_drain)
        if self._handed_over:
            # Whoever has connected is ours alone: the next daemon won't see it.
            until = self._loop.now() + MAX_HANDOVER_S
            self._loop.call_later(HANDOVER_S, lambda: self._end_handover(until))
        else:
            self._refuse_more(of_loaded=True)

    def _end_handover(self, until: float) -> None:
        if self._entrances.awaits_requests and self._loop.now() < until:
            self._loop.call_later(HANDOVER_LOOK_S, lambda: self._end_handover(until))
        else:
            self._entrances.close_idle()
            self._refuse_more(of_loaded=False)

    def _refuse_more(self, *, of_loaded: bool) -> None:
        """Take no more requests; ``of_loaded`` is as in ``Models.refuse_waiting``."""
        self._refusing = True
        self._models.drain()
        self._services.detached.leave_all()
        self._models.refuse_waiting(of_loaded=of_loaded)

    def _end_begun(self) -> None:
        """The drain timeout is over. Whoever has no token yet was kept waiting by the others, and gets the same time
        once more."""
        self._services.detached.restart_all()
        self._refuse_more(of_loaded=False)
        self._models.fail_begun()
        self._loop.call_later(self._config.drain_timeout, self._end_drain)

    def _end_drain(self) -> None:
        """The drain timeout is over, also for a decode that does not return."""
        self.stop_after_flush()
        self._services.detached.restart_all()
        self._refuse_more(of_loaded=True)
        self._models.fail_running()
        self._services.speech.fail_all(shutting_down())
        self._links.close()

    # -- each turn -----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Go on where what is waited for is done."""
        if self.draining and self._over and self._models.put_away():
            self.stop_after_flush()
        if self._farewell is not None:
            self._stop_when_said()

    @property
    def _over(self) -> bool:
        """Whether all is done, and nobody is left who may want more."""
        return self._idle and (self._refusing or not self._entrances.clients)

    @property
    def _idle(self) -> bool:
        if self._models.default.info is None:
            return True
        services = self._services
        others = (services.speech, services.recordings, services.tool_servers)
        return self._models.idle and self._links.over and all(one.idle for one in others)

    def _stop_when_said(self) -> None:
        for client in list(self._entrances.clients):
            client.close()
        if not any(client.channel.queued for client in self._entrances.clients):
            self._loop.call_soon(self._loop.stop)

    # -- the last of it ------------------------------------------------------------------------------------------

    def stop_after_flush(self) -> None:
        """Stop the loop once clients have read their last output, or had the time for it."""
        if self._farewell is None:
            self._farewell = self._loop.call_later(FAREWELL_S, self._loop.stop)

    def join(self) -> bool:
        """After the loop: have the threads end that work for clients; returns whether all did."""
        for client in list(self._entrances.clients):
            client.channel.abort()
        services = self._services
        # All are told, whichever doesn't return; first the one whose work others were told is done.
        stops = [
            services.recordings.stop,
            services.store.stop,
            *(thread.stop for thread in self._models.threads.all),
            services.speech.stop,
            services.turns.stop,
        ]
        until = time.monotonic() + JOIN_S
        stopped = [stop(max(0.0, until - time.monotonic())) for stop in stops]
        return all(stopped)
