"""The tasks this worker has claimed, and the claims it has let go of until their records say so too.

The scheduler believes a claim for as long as its worker lives. So a worker that lives must not leave one behind:
whatever ends without an outcome is given back, sooner or later. Its message usually comes again; but a topic can be
lost, and then the record, offered and not taken, is what makes the scheduler send another.

A claim may be given back right after it was taken again, from the message that came again. That costs at most a
second attempt: commits decide, not claims.
"""

import threading

from floodmark.core.tables import ViewHeader
from floodmark.ledger.dispatch import Claimed, Dispatch


class Claims:
    def __init__(self, dispatch: Dispatch, instance: str) -> None:
        self._dispatch = dispatch
        self._instance = instance
        self._lock = threading.Lock()
        self._let_go: dict[str, tuple[ViewHeader, int]] = {}
        """The view and bucket of each, by task id."""

    def take(self, view: ViewHeader, task_ids: dict[int, str]) -> Claimed:
        with self._lock:
            for task_id in task_ids.values():
                self._let_go.pop(task_id, None)
        return self._dispatch.claim_all(view, task_ids, worker=self._instance)

    def let_go(self, view: ViewHeader, task_ids: dict[int, str]) -> None:
        """They ended without an outcome. Writes nothing: the store may be the reason."""
        with self._lock:
            self._let_go |= {task_id: (view, start_ms) for start_ms, task_id in task_ids.items()}

    def give_back(self) -> None:
        """Tell the records. What cannot be told now is told the next time."""
        with self._lock:
            let_go = dict(self._let_go)
        views = {view.incarnation: view for view, _ in let_go.values()}
        for incarnation, view in views.items():
            own = {start_ms: t for t, (of, start_ms) in let_go.items() if of.incarnation == incarnation}
            self._dispatch.give_back_all(view, own, worker=self._instance)
            with self._lock:
                for task_id in own.values():
                    self._let_go.pop(task_id, None)
