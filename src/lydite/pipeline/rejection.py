"""The stage that leaves a dataset: sample, verify, filter, write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lydite.pipeline.artifact import DATASET, Artifact, Lineage, save_artifact
from lydite.pipeline.dataset import Provenance, report_of, write_dataset
from lydite.train.filters import Filtered, filter_samples
from lydite.train.loop import LoopSettings, run_steps
from lydite.train.rejection import RejectionSampler
from lydite.types import Problem
from lydite.watch.events import DatasetMade, EventLog
from lydite.watch.samples import Sample, read_samples, samples_path, write_samples


@dataclass(frozen=True, slots=True)
class RejectionSampling:
    """What the stage works with. Each step's samples are on disk before the next begins, and the
    dataset is made of those files, so a killed run goes on with the step that it was killed in.
    """

    sampler: RejectionSampler
    problems: tuple[Problem, ...]
    settings: LoopSettings
    log: EventLog

    def run(self, home: Path, lineage: Lineage) -> Artifact:
        """Samples what is not sampled yet, and leaves the dataset and its report in ``home``.

        Raises:
            UserError: nothing was kept, or too many verdicts could not be decided.
        """
        # The model is its parent's: nothing to measure.
        run_steps(self.sampler, self.settings, self.log, lambda step: None)
        filtered = filter_samples(self._samples(), self.sampler.config.filters)
        source = Provenance(lineage.stage, lineage.parent, lineage.seed)
        write_dataset(home / DATASET, self.problems, filtered, source)
        self._tell(home / DATASET, filtered)
        return save_artifact(home, lineage, {"dataset": report_of(filtered)})

    def _samples(self) -> list[Sample]:
        """Every sample; a step whose file is gone is sampled again, to the same result."""
        folder, stage = self.settings.samples, self.settings.stage
        rows: list[Sample] = []
        for step in range(self.sampler.total):
            path = samples_path(folder, stage, step + 1)
            if not path.is_file():
                write_samples(folder, stage, step + 1, self.sampler.step(step).samples)
            rows += read_samples(path)
        return rows

    def _tell(self, path: Path, filtered: Filtered) -> None:
        self.log.append(
            DatasetMade(
                stage=self.settings.stage,
                step=self.sampler.total,
                path=str(path),
                **report_of(filtered),
            )
        )
