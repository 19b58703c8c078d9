"""`fedl2g deploy new`: writes the folder of a federation with a small Flower app and a script for each command.

The templates are in `resources`, for the coordinator, each site and the service managers; `$names` in them are
substituted here. No file names a folder of this machine: the coordinator's folder and each site's work wherever they
are copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

import tomli_w

from fedl2g.deploy.targets import Target
from fedl2g.errors import SettingError
from fedl2g.files import appearing, reason_of
from fedl2g.models.catalog import GROUP_OF_KIND, GROUPS
from fedl2g.schema import Schema
from fedl2g.version import __version__

_LOOPBACK = ("127.0.0.1", "localhost")
_SUFFIX = ".template"  # so that tools do not take templates for source files


@dataclass(frozen=True)
class Plan:
    """The arguments of `fedl2g deploy new`."""

    folder: Path
    sites: tuple[str, ...]
    classes: tuple[str, ...]
    inputs: Schema
    host: str = "127.0.0.1"
    port: int = 8443
    target: Target = "systemd"


def scaffold(plan: Plan) -> list[Path]:
    """Write the folder atomically; existing files are not overwritten."""
    _check(plan)
    root = plan.folder.resolve()
    name = _identifier(root.name)
    container = plan.target != "systemd"
    shared = {
        "name": name,
        "version": __version__,
        "host": plan.host,
        "port": str(plan.port),
        "address": f"{plan.host}:{plan.port}",
        "bind": plan.host if plan.host in _LOOPBACK and not container else "0.0.0.0",
        "unit": f"{name}-superlink",
        "keys": "keys/" if container else "",
        "sites": _list(plan.sites),
        "classes": _list(plan.classes),
        **_of_kind(plan.inputs),
        "folders": "\n".join(f"- `sites/{site}`" for site in plan.sites),
        "registrations": "\n".join(f"sh register.sh {site}.pub {site}" for site in plan.sites),
    }
    readme = (f"targets/{plan.target}/federation",) if container else ()
    parts = {Path("."): ("federation", *readme), Path("coordinator"): _parts(plan.target, "coordinator")}
    files = {
        place / path: template.substitute(shared)
        for place, kinds in parts.items()
        for kind in kinds
        for path, template in _templates(kind)
    }
    for number, site in enumerate(plan.sites):
        own = {**shared, "site": site, "client": str(number), "unit": _identifier(f"{name}-{site}")}
        for kind in ("site", *_parts(plan.target, "site")):
            files |= {Path("sites", site) / path: template.substitute(own) for path, template in _templates(kind)}
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with appearing(root) as partial:
            for relative, text in files.items():
                (partial / relative).parent.mkdir(parents=True, exist_ok=True)
                (partial / relative).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{plan.folder}: cannot be written ({reason_of(error)}); choose another folder") from error
    return [root / relative for relative in files]


def _of_kind(inputs: Schema) -> dict[str, str]:
    """The parts of the files that depend on the kind of data."""
    if inputs.kind == "image":
        shape = f"[{', '.join(map(str, inputs.shape))}]  # channels, height, width"
        return {
            "images": f"image_shape = {shape}\n",
            "inputs": "",
            "model": "site_code:build_model",
            "meaning": "A folder of images with a folder for each class, an .npz file, or your own function: "
            '"site_code:load_data".',
            "data": 'data = "data"\n',
            "most": f"image-shape = {shape}\n",
        }
    group, table = GROUPS[GROUP_OF_KIND[inputs.kind]], inputs.kind != "signal"
    columns = 'label = "label"  # its column with the classes\n' if table else ""
    columns += (
        'text = "text"  # its column with the texts; several are separated by commas\n' if inputs.kind == "text" else ""
    )
    file = "A CSV or parquet file" if table else 'An .npz file with "inputs" and "labels"'
    return {
        "images": "",
        "inputs": "\n" + tomli_w.dumps({"federation": {"inputs": inputs.to_json()}}),
        "model": group[1],
        "meaning": f'{file}, or your own function: "site_code:load_data".',
        "data": f'data = "data/data.{"csv" if table else "npz"}"\n{columns}',
        "most": f"tokens = {inputs.shape[0]}\nvocabulary = {inputs.vocabulary}\n" if inputs.kind == "text" else "",
    }


def _parts(target: Target, role: str) -> tuple[str, ...]:
    """The templates that a target adds to the coordinator's folder or to a site's."""
    image = () if target == "systemd" else ("targets/image",)
    return (f"targets/{target}/{role}", *image)


def _templates(kind: str) -> Iterator[tuple[Path, Template]]:
    """The templates of one kind, with the relative paths of their output files."""
    yield from _walk(package_files("fedl2g.deploy").joinpath("resources", *kind.split("/")), Path())


def _walk(folder: Traversable, place: Path) -> Iterator[tuple[Path, Template]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _walk(entry, place / entry.name)
        elif entry.name.endswith(_SUFFIX):
            yield place / entry.name.removesuffix(_SUFFIX), Template(entry.read_text(encoding="utf-8"))


def _check(plan: Plan) -> None:
    if plan.folder.exists() and any(plan.folder.iterdir() if plan.folder.is_dir() else [plan.folder]):
        raise SettingError(f"{plan.folder}: exists already; choose another folder")
    if len(set(plan.sites)) != len(plan.sites) or not plan.sites:
        raise SettingError(
            "--site: missing or given twice; expected at least one name, each once, such as --site north --site south"
        )
    for site in plan.sites:
        if not site.replace("-", "").replace("_", "").isalnum() or not site.isascii():
            raise SettingError(f"--site: {site!r} cannot be a folder name; use letters, digits, - and _")
    alike = {_identifier(site): site for site in reversed(plan.sites)}
    for site in plan.sites:
        if (other := alike[_identifier(site)]) != site:
            raise SettingError(
                f"--site: {other!r} and {site!r} would have the same folder or service on some systems; expected names "
                "that differ in letters or digits"
            )
    if len(set(plan.classes)) < 2 or not all(_is_plain(name) for name in plan.classes):
        raise SettingError(
            "--class: fewer than two classes, or a name with a quote, $, backslash or line break; expected plain "
            "names, such as --class healthy --class ill"
        )
    if not 0 < plan.port < 65536:
        raise SettingError(f"--port: {plan.port} is not a port; expected 1 to 65535")
    if not plan.host or any(not (c.isalnum() or c in ".-") for c in plan.host):
        raise SettingError(f"--host: {plan.host!r} is not a host name or an address; expected letters, digits, . and -")


def _is_plain(name: str) -> bool:
    """Whether a name can stand in a file between double quotes as it is."""
    return name.isprintable() and not set(name) & set('"\\$')


def _identifier(name: str) -> str:
    letters = "".join(c if c.isalnum() and c.isascii() else "-" for c in name.lower()).strip("-")
    return letters or "federation"


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(f'"{name}"' for name in names)
