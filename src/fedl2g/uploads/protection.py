"""The client's side of the privacy guarantee: uploads are clipped and, with `noise = client`, noised."""

from __future__ import annotations

from dataclasses import replace

from fedl2g.privacy.mechanism import Mechanism
from fedl2g.uploads.stage import Stage, Upload


class Protect(Stage):
    """Clips an upload; with `noise = client` also adds the noise and redacts the report."""

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism
        self.against_the_server = mechanism.settings.noise == "client"

    def apply(self, upload: Upload) -> Upload:
        report = upload.report
        if self.against_the_server:  # redact what the report would reveal about the client's data
            report = replace(report, samples=1, steps=min(1, report.steps), loss=None, metrics={})
        if not upload.payload:
            return replace(upload, report=report)
        start = {} if "ids" in upload.payload else upload.received
        vector = self.mechanism.clipped(self.mechanism.vector(upload.payload, start))
        if self.against_the_server:
            vector = vector + self.mechanism.noise_for(vector, "privacy_client", upload.client, upload.round)
        return replace(upload, report=report, payload=self.mechanism.payload(vector, upload.payload, start))
