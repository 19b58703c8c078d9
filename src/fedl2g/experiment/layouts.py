"""The setting `layout`: which architectures compute in which memory layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedl2g.errors import SettingError, choices
from fedl2g.experiment.identity import SITES
from fedl2g.models.catalog import CHANNELS_LAST, split_head

if TYPE_CHECKING:
    from fedl2g.experiment.settings import Experiment

LAYOUTS = ("contiguous", "channels_last")
CHOSEN_LAYOUTS = ("preset", "auto")  # chosen by the catalog's table, or by measurement
_EACH_ONCE = "expected each architecture once, such as cnn4=channels_last,resnet18=contiguous"


def check_layout(experiment: Experiment) -> None:
    """Raise SettingError for an unknown layout or one that no client would use."""
    if experiment.layout in (*LAYOUTS, *CHOSEN_LAYOUTS):
        return
    names = set()
    for part in experiment.layout.split(","):
        name, equals, layout = part.rpartition("=")
        if layout not in LAYOUTS:
            known: tuple[str, ...] = LAYOUTS if equals else (*LAYOUTS, *CHOSEN_LAYOUTS)
            raise SettingError(
                f"layout: {layout!r} is not known; {choices(layout, known)}, or a list such as cnn4=channels_last"
            )
        if not name or name in names:
            wrong = f"names {name!r} twice" if name else f"does not say which architecture is {layout}"
            raise SettingError(f"layout: the list {experiment.layout!r} {wrong}; {_EACH_ONCE}")
        if (
            name not in experiment.architectures and experiment.dataset != SITES
        ):  # in a deployment each site names its own
            known = tuple(dict.fromkeys(experiment.architectures))
            raise SettingError(f"layout: no client has the architecture {name!r}; {choices(name, known)}")
        names.add(name)


def channels_last(experiment: Experiment) -> frozenset[str]:
    """The architectures that use the channels_last layout; none while the layout is `auto`."""
    built = {*experiment.architectures, *([experiment.auxiliary] if experiment.auxiliary else ())}
    if experiment.layout == "channels_last":
        return frozenset(built)
    if experiment.layout == "preset":  # in a deployment each site names its own architecture
        if experiment.dataset == SITES:
            return CHANNELS_LAST
        return frozenset(name for name in built if split_head(name)[0] in CHANNELS_LAST)
    pairs = (part.rpartition("=") for part in experiment.layout.split(","))
    return frozenset(name for name, _, layout in pairs if layout == "channels_last")
