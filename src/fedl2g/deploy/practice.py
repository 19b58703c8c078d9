"""Practice data: handwritten digits for the data folders of a new federation's sites."""

from __future__ import annotations

from pathlib import Path

from fedl2g.errors import SettingError

PER_SITE = 60
SIZE = 16


def write_practice_data(folder: Path) -> int:
    """Fill each site's `data` folder with its own images; returns the number of images written."""
    from PIL import Image
    from sklearn.datasets import load_digits

    from fedl2g.deploy.coordinator import read_coordinator

    coordinator = read_coordinator(folder / "coordinator" / "experiment.toml")
    classes, sites = coordinator.federation.classes, coordinator.federation.sites
    if (inputs := coordinator.federation.inputs).kind != "image":
        raise SettingError(
            f"practice data: they are images, but the federation takes {inputs}; expected a federation made with "
            "--kind image; put small files of your own into the sites' folders"
        )
    digits = load_digits()
    chosen = [i for i, label in enumerate(digits.target) if label < len(classes)]
    if len(classes) > 10 or len(chosen) < PER_SITE * len(sites):
        raise SettingError("practice data: too many classes or sites; expected at most 10 classes and a few sites")
    for number, site in enumerate(sites):
        data = folder / "sites" / site / "data"
        if data.exists():
            raise SettingError(f"{data}: exists already; remove it to write practice data")
        for index in chosen[number * PER_SITE : (number + 1) * PER_SITE]:
            place = data / classes[digits.target[index]]
            place.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray((digits.images[index] * 15.9).astype("uint8"))
            picture.resize((SIZE, SIZE), Image.Resampling.NEAREST).save(place / f"{index:04d}.png")
    return PER_SITE * len(sites)
