"""Every method with every setting that crosses the package, one at a time: runs that must be equal on all engines."""

from __future__ import annotations

from typing import Any

from fedl2g.experiment import Experiment
from method_settings import BUILT_IN, with_warmup

CLIENTS = 4
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "availability": {
        "availability": {
            "dropout_before": 0.2, "dropout_after": 0.2, "speed_spread": 1.0, "deadline": 1.0, "late": "use",
        },
    },
    "attack": {"attack": {"share": 0.25, "kind": "noise", "strength": 3.0}},
    "noise": {"noise": {"std": 0.05, "coefficient": 0.1, "scale": "relative"}},
    "robust rule": {"aggregation": {"rule": "median"}},
    "privacy, client": {"privacy": {"clip": 1.0, "noise_multiplier": 1.0, "noise": "client"}},
    "privacy, server": {"privacy": {"clip": 1.0, "noise_multiplier": 1.0, "noise": "server"}},
    "privacy, counted": {"privacy": {"clip": 1.0, "noise_multiplier": 0.5, "denominator": "counted"}},
    "dense": {"privacy": {"dense_uploads": True}},
    "training": {
        "optimizer": {"name": "adamw", "weight_decay": 0.01}, "schedule": "cosine", "client_lr": 0.001,
        "augment": {"flip": True, "crop": 2},
    },
}  # fmt: skip
REFUSED = {("fedkd", setting) for setting in SETTINGS if setting.startswith("privacy")}  # its uploads are factors
REFUSED |= {("fedgen", s) for s in SETTINGS if s.startswith("privacy") or s in ("dense", "robust rule")}  # raw replies
# With one method: they differ from others of the list in what engines do not see.
ONCE = {"noise", "privacy, counted", "training"}
PAIRS = [
    (method, setting)
    for method in BUILT_IN
    for setting in SETTINGS
    if (method, setting) not in REFUSED and (setting not in ONCE or method == "feddistill")
]


def experiment(method: str, setting: str, engine: str = "inline", **more: Any) -> Experiment:
    """Two rounds of four clients with two networks on 80 digits."""
    given: dict[str, Any] = {
        "method": with_warmup(method, 1), "samples": 80, "image_size": 16, "partition": "iid", "clients": CLIENTS,
        "models": "small_cnn,small_resnet", "rounds": 2, "seed": 3,
        "execution": {"engine": engine, "workers": 2, "checkpoint_every": 2},
    }  # fmt: skip
    return Experiment(**{**given, **SETTINGS[setting], **more})
