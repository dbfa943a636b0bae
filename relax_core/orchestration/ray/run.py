"""A run whose roles are actors of a Ray cluster, driven from this process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from relax_core.binding import Binding
from relax_core.orchestration.checkpoints import step_of
from relax_core.orchestration.log import warn
from relax_core.orchestration.ray.assembly import Cast
from relax_core.orchestration.ray.waiting import Lost
from relax_core.orchestration.record import RunDirectory
from relax_core.orchestration.run import Run, StepReport
from relax_core.runfile import ResolvedRun
from relax_core.states import put_states


class RayRun(Run):
    """Trainers that are lost are started again, and the run goes on from its last checkpoint."""

    def __init__(self, resolved: ResolvedRun, binding: Binding) -> None:
        with ExitStack() as undo:
            self.cast = Cast(resolved, binding, undo)
            super().__init__(resolved, binding, self.cast.parts)
            self._undo = undo.pop_all()

    def run(
        self, directory: RunDirectory, on_step: Callable[[StepReport], None], interrupted: Callable[[], bool]
    ) -> bool:
        """As `Run`; again from the last checkpoint where trainers were lost, `topology.max_restarts` times at most."""
        for restart in range(self.config.topology.max_restarts + 1):
            try:
                return super().run(directory, on_step, interrupted)
            except Lost as lost:
                if restart == self.config.topology.max_restarts:
                    raise
                self._go_back(directory, lost)
        raise AssertionError("the loop ends by itself")

    def close(self) -> None:
        """End the actors, and the cluster where it is the run's own."""
        self.generation.close()
        self.parts.close()
        self._undo.close()

    def _go_back(self, directory: RunDirectory, lost: Lost) -> None:
        checkpoint = directory.checkpoints.newest_or_none()
        step = 0 if checkpoint is None else step_of(checkpoint)
        warn(f"{lost.what}; the trainers start again, after step {step}")
        self.cast.restart_trainers()
        directory.rewind(step)
        if checkpoint is None:
            self._begin_again()
        else:
            self.resume(checkpoint)

    def _begin_again(self) -> None:
        self.step = 0
        self.generation.restart()
        put_states(self.binding.active, {})
        self._publish_weights()

    def _publish_weights(self) -> None:
        """By reference: the weights go from the ranks to the engines without passing through this process."""
        self.cast.publish(self.step)
