"""Additional scores of a run's best models: AUROC and confusion, by client, by architecture and by class.

They are computed on request, once, from the kept models; rounds do not take longer. All numbers are scikit-learn's.

AUROC is one-vs-rest: of a class, the probability that a sample of it gets a higher softmax score for the class than a
sample of another class. Of several classes it is their mean, over the classes that have both kinds of samples; a client
with a single class in its test set has none. A confusion matrix has a row for each true class and a column for each
predicted one.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import metrics as measures

from fedl2g.datasets import Dataset
from fedl2g.errors import SettingError, choices
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.layout import SCORES
from fedl2g.runs.models import ClientModel, TrainedModels
from fedl2g.seals import write_sealed

METRICS = ("auroc", "confusion")
_Array = NDArray[Any]


def parse_metrics(text: str) -> tuple[str, ...]:
    """The metrics named by a list such as auroc,confusion."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in METRICS:
            raise SettingError(f"--metrics: {name!r} is not known; {choices(name, METRICS)}")
    return names


def score_run(directory: RunDirectory, wanted: Sequence[str], *, data: Dataset | None = None) -> dict[str, Any]:
    """The scores of a run's best models, also written to its scores.json; `data` is its dataset if already loaded."""
    models = TrainedModels(directory, "best", data=data)
    labels, probabilities = zip(*(_predictions(models.load(client)) for client in models), strict=True)
    networks = [models.setup.architecture(client) for client in models]
    everything = np.concatenate(labels), np.concatenate(probabilities)

    def of(name: str, parts: Sequence[_Array]) -> _Array:
        return np.concatenate([part for part, network in zip(parts, networks, strict=True) if network == name])

    scores = {
        "round": models.checkpoint.round,
        "selection": models.setup.experiment.selection,
        "overall": _scores(*everything, wanted),
        "architectures": {
            name: _scores(of(name, labels), of(name, probabilities), wanted) for name in dict.fromkeys(networks)
        },
        "classes": _by_class(*everything, models.setup.dataset.class_names, wanted),
        "clients": {
            str(client): {"architecture": networks[client], **_scores(labels[client], probabilities[client], wanted)}
            for client in models
        },
    }
    write_sealed(directory.folder, SCORES, scores, directory.records.run)
    return scores


def score_client(model: ClientModel, wanted: Sequence[str]) -> dict[str, Any]:
    """The scores of one client's model on its own test samples."""
    return _scores(*_predictions(model), wanted)


def _predictions(model: ClientModel) -> tuple[_Array, _Array]:
    labels, scores = model.test_scores
    return labels.numpy(), torch.softmax(scores.double(), dim=1).numpy()


def _scores(labels: _Array, probabilities: _Array, wanted: Sequence[str]) -> dict[str, Any]:
    predicted = probabilities.argmax(1)
    with warnings.catch_warnings():  # a predicted class without samples is not a mistake of the user
        warnings.simplefilter("ignore", UserWarning)
        scores: dict[str, Any] = {
            "samples": len(labels),
            "accuracy": float(measures.accuracy_score(labels, predicted)),
            "balanced_accuracy": float(measures.balanced_accuracy_score(labels, predicted)),
            "macro_f1": float(measures.f1_score(labels, predicted, average="macro", zero_division=0)),
        }
    if "auroc" in wanted:
        areas = [area for area in _areas(labels, probabilities) if area is not None]
        scores["auroc"] = float(np.mean(areas)) if areas else None
    if "confusion" in wanted:
        every = range(probabilities.shape[1])
        scores["confusion"] = measures.confusion_matrix(labels, predicted, labels=every).tolist()
    return scores


def _by_class(
    labels: _Array, probabilities: _Array, names: Sequence[str], wanted: Sequence[str]
) -> dict[str, dict[str, Any]]:
    numbers = measures.precision_recall_fscore_support(
        labels, probabilities.argmax(1), labels=range(len(names)), average=None, zero_division=0
    )
    found: dict[str, dict[str, Any]] = {
        name: {"samples": int(count), "precision": float(precision), "recall": float(recall), "f1": float(f1)}
        for name, precision, recall, f1, count in zip(names, *numbers, strict=True)
    }
    if "auroc" in wanted:
        for name, area in zip(names, _areas(labels, probabilities), strict=True):
            found[name]["auroc"] = area
    return found


def _areas(labels: _Array, probabilities: _Array) -> list[float | None]:
    """The AUROC of each class against the rest; None for a class that all samples belong to, or none."""
    own = [labels == number for number in range(probabilities.shape[1])]
    return [
        float(measures.roc_auc_score(of_class, probabilities[:, number])) if 0 < of_class.sum() < len(labels) else None
        for number, of_class in enumerate(own)
    ]
