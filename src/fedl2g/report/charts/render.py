"""Charts into files (SVG, PNG, PDF) and into a page; nothing is loaded from outside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedl2g.errors import SettingError
from fedl2g.files import reason_of, replacing

if TYPE_CHECKING:
    from fedl2g.report.charts.parts import Panels
    from fedl2g.report.charts.theme import Look

FORMATS = (".png", ".pdf", ".svg")
PNG_SCALE = 2.0  # pixels of a picture per pixel of the chart


def check_format(path: Path) -> None:
    """Refuse a file name whose suffix names no format, before any work."""
    if path.suffix.lower() not in FORMATS:
        raise SettingError(f"{path}: not a figure file; expected a name that ends in {', '.join(FORMATS)}")


def specification(chart: Panels, look: Look) -> dict[str, Any]:
    """The chart as a Vega-Lite specification with the look of every chart."""
    from fedl2g.report.charts.theme import config

    found: dict[str, Any] = chart.to_dict(validate=False)  # the schema is for those who write charts, and for tests
    del found["$schema"]  # an address that a reader of the page might take for something that is loaded
    found["config"] = config(look)
    if look.page:
        found["autosize"] = {"type": "fit-x", "contains": "padding"}  # as wide as its card, as high as it must be
    return found


def write_chart(chart: Panels, look: Look, path: Path) -> Path:
    """Write the chart; the suffix of `path` must be one of `FORMATS`."""
    check_format(path)
    content = _rendered(specification(chart, look), path.suffix.lower())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, durable=False) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise SettingError(f"{path}: cannot be written ({reason_of(error)}); choose another file") from error
    return path


def _rendered(spec: dict[str, Any], suffix: str) -> bytes:
    import vl_convert

    version = _version()
    if suffix == ".svg":
        return str(vl_convert.vegalite_to_svg(spec, vl_version=version)).encode()
    if suffix == ".pdf":
        return bytes(vl_convert.vegalite_to_pdf(spec, vl_version=version))
    return bytes(vl_convert.vegalite_to_png(spec, vl_version=version, scale=PNG_SCALE))


def _version() -> str:
    """The version of Vega-Lite that altair writes, as vl-convert names it: v6.4.1 is 6.4."""
    from altair import SCHEMA_VERSION

    return ".".join(SCHEMA_VERSION.removeprefix("v").split(".")[:2])


def runtime() -> str:
    """The JavaScript that draws specifications on a page (vega-embed, Vega-Lite and Vega in one text)."""
    script = _bundle()
    script = script.replace("</script", "<\\/script")  # it will stand inside a script element
    return script.replace("https://", "//")  # addresses in messages and menus that are not shown: nothing is loaded


def _bundle() -> str:
    """The bundle of vl-convert. Making it takes seconds, so it is kept in the cache folder, by its versions."""
    from importlib.metadata import version

    from platformdirs import user_cache_path

    kept = user_cache_path("fedl2g") / "charts" / f"vega-{version('vl-convert-python')}-{_version()}.js"
    try:
        return kept.read_text(encoding="utf-8")
    except (OSError, ValueError):
        pass  # not made yet
    import vl_convert

    script = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=_version()))
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with replacing(kept, durable=False) as partial:
            partial.write_text(script, encoding="utf-8")
    except OSError:
        pass  # a cache that cannot be written costs time, nothing else
    return script
