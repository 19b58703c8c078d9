"""The HTML report: one self-contained file with data, style and script."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fedl2g
from fedl2g.errors import SettingError
from fedl2g.files import reason_of, replacing
from fedl2g.methods.registry import method_names
from fedl2g.report.collect import (
    Group,
    Run,
    accuracy_series,
    band,
    best_accuracy,
    client_spread,
    cost,
    diverged_round,
    group_runs,
    loss_series,
    number,
    partition_counts,
    read_runs,
    spent_megabytes,
)
from fedl2g.report.increase import loss_increase
from fedl2g.round.record import chosen_on, selection_of

if TYPE_CHECKING:
    from fedl2g.methods.base import Traits

MAX_EMBEDDINGS = 4
MAX_PRESENCE = 12  # charts of client availability
ABSENT = "\N{EN DASH}"
Progress = Callable[[str, int, int | None], None]


def write_report(
    paths: Sequence[Path],
    target: Path,
    *,
    title: str = "",
    tsne: bool = True,
    notes: Sequence[str] = (),
    trust: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> Path:
    """Write the report of these runs (directories, or folders of them) to an HTML file.

    Runs that name code are refused without `trust`: their networks are built for t-SNE.
    """
    runs = read_runs(paths, trust=trust)
    if not runs:
        raise SettingError(f"{', '.join(map(str, paths))}: no runs found; start one with `fedl2g run`")
    content = collect_report(runs, title=title, tsne=tsne, notes=notes, progress=progress)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target, durable=False) as partial:
            partial.write_text(render(content), encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{target}: cannot be written ({reason_of(error)}); choose another --output") from error
    return target


def collect_report(
    runs: Sequence[Run],
    *,
    title: str = "",
    tsne: bool = True,
    notes: Sequence[str] = (),
    progress: Progress = lambda what, done, total: None,
) -> dict[str, Any]:
    """The contents of the page as JSON values."""
    groups = group_runs(runs)
    datasets = list(dict.fromkeys(Path(str(run.settings["dataset"])).stem for run in runs))
    return {
        "title": title or f"{len(groups)} {'methods' if len(groups) != 1 else 'method'} on {', '.join(datasets)}",
        "made": {"fedl2g": fedl2g.__version__, "at": time.strftime("%Y-%m-%d %H:%M %Z").strip(), "runs": len(runs)},
        "notes": list(notes),
        "selection": ", ".join(sorted({chosen_on(selection_of(run.history)) for run in runs})),
        "groups": [_group(group) for group in groups],
        "byte_notes": _byte_notes(groups),
        "increase": loss_increase(groups),
        "settings": _settings(groups),
        "environments": _environments(runs),
        "partitions": _partitions(runs, progress),
        "embeddings": _embeddings(groups, progress) if tsne else [],
        "presence": _presence(groups),
    }


def _group(group: Group) -> dict[str, Any]:
    costs = [cost(run) for run in group.runs]
    results = [run.directory.result() for run in group.runs]
    best = [best_accuracy(run) for run in group.runs]
    last = [list(accuracy_series(run.history).values() or [float("nan")])[-1] for run in group.runs]
    return {
        "label": group.label,
        "method": group.method,
        "colour": _colour(group.method),
        "warmup": group.runs[0].warmup_rounds,
        "accuracy": band([accuracy_series(run.history) for run in group.runs]),
        "loss": band([loss_series(run.history) for run in group.runs]),
        "bytes": _thin(spent_megabytes(group.runs[0])),
        "spread": [spread for run in group.runs if (spread := client_spread(run)) is not None],
        "cost": {name: _mean([c[name] for c in costs]) for name in costs[0]},
        "best": _summary(best),
        "last": _summary(last),
        "best_round": _mean([float(r.best_round) for r in results if r is not None]),
        "others": {
            name: _summary([r.other_accuracies[name] for r in results if r is not None and name in r.other_accuracies])
            for name in (results[0].other_accuracies if results[0] is not None else {})
        },
        "runs": [
            {
                "seed": run.seed,
                "path": str(run.directory.path),
                "status": run.status,
                "rounds": run.history[-1].round if run.history else 0,
                "diverged": diverged_round(run),
                "refused": sum(len(record.refused) for record in run.history),
                "missing": sum(len(record.missing) for record in run.history),
                "privacy": run.history[-1].privacy if run.history else {},
            }
            for run in group.runs
        ],
    }


def _colour(method: str) -> int:
    """A number that is the same for a method in every report; -1 for one that is not installed."""
    names = method_names()
    return names.index(method) if method in names else -1


def _byte_notes(groups: Sequence[Group]) -> list[str]:
    """Notes on the communication of these methods."""
    notes = [traits.communication_note for group in groups if (traits := group.traits) and not _dense(group, traits)]
    return list(dict.fromkeys(note for note in notes if note))


def _dense(group: Group, traits: Traits) -> bool:
    """Whether its clients send a row for every class, which makes notes on the number of rows wrong."""
    settings = group.runs[0].settings
    dense = settings.get("privacy.clip") or settings.get("privacy.dense_uploads")
    return traits.uploads == "class vectors" and bool(dense)


def _summary(values: Sequence[float]) -> dict[str, float | None]:
    finite = [v for v in values if v == v]
    if not finite:
        return {"mean": None, "std": None}
    return {
        "mean": number(statistics.fmean(finite)),
        "std": number(statistics.stdev(finite)) if len(finite) > 1 else None,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return number(statistics.fmean(known)) if known else None


def _thin(series: dict[float, float], most: int = 600) -> dict[str, list[Any]]:
    points = list(series.items())
    step = max(1, len(points) // most)
    kept = points[::step] + (points[-1:] if points and (len(points) - 1) % step else [])
    return {"x": [number(x) for x, _ in kept], "y": [number(y) for _, y in kept]}


def _settings(groups: Sequence[Group]) -> dict[str, Any]:
    """The settings shared by all groups, and those that differ."""
    rows = [{k: v for k, v in g.runs[0].settings.items() if k != "seed"} for g in groups]
    names = list(dict.fromkeys(k for row in rows for k in row))
    common, differing = {}, {}
    for name in names:
        values = [row.get(name) for row in rows]
        if all(v == values[0] for v in values):
            common[name] = str(values[0])
        else:
            differing[name] = [None if v is None else str(v) for v in values]
    return {"common": common, "differing": differing}


def _environments(runs: Sequence[Run]) -> list[dict[str, Any]]:
    seen: dict[str, dict[str, Any]] = {}
    for run in runs:
        found = run.directory.environment()
        packages = {k: v for k, v in (found.get("packages") or {}).items() if v}
        values = {str(k): str(v) for k, v in found.items() if k != "packages" and v is not None} | packages
        entry = seen.setdefault(json.dumps(values, sort_keys=True), {"values": values, "runs": 0})
        entry["runs"] += 1
    return list(seen.values())


def _partitions(runs: Sequence[Run], progress: Progress) -> list[dict[str, Any]]:
    chosen: dict[tuple[str, ...], list[Run]] = {}
    for run in (run for run in runs if not run.directory.deployed):
        keys = ("dataset", "samples", "partition", "clients", "seed", "test_fraction")
        chosen.setdefault(tuple(str(run.settings.get(k)) for k in keys), []).append(run)
    result = []
    for done, (key, members) in enumerate(chosen.items()):
        progress("reading partitions", done, len(chosen))
        name = f"{Path(key[0]).stem}, {key[2]}, {key[3]} clients, seed {key[4]}"
        result.append({"name": name, **partition_counts(members[0])})
    return result


def _embeddings(groups: Sequence[Group], progress: Progress) -> list[dict[str, Any]]:
    from fedl2g.report.embedding import embed, embeddable

    result: list[dict[str, Any]] = []
    wanted = embeddable(groups)
    for done, group in enumerate(wanted):
        if len(result) == MAX_EMBEDDINGS:
            break
        progress(f"t-SNE of {group.label}", done, len(wanted))
        found = embed(group.runs[0])
        if found is not None:
            result.append({"label": group.label, "seed": group.runs[0].seed, **found})
    return result


def _presence(groups: Sequence[Group]) -> list[dict[str, str]]:
    """Charts of client availability, for the first run of each group if a client was unavailable in it.

    Methods with identical availability, as with equal settings and seed, share one chart.
    """
    from fedl2g.report.presence import draw_presence, presence

    shared: dict[tuple[int, str], tuple[list[str], Run]] = {}
    for group in groups:
        run = group.runs[0]
        if any(record.away or record.missing for record in run.history):
            grid = json.dumps(presence(run.history, int(run.settings["clients"])))
            shared.setdefault((run.seed, grid), ([], run))[0].append(group.label)
    pictures: list[dict[str, str]] = []
    for labels, run in list(shared.values())[:MAX_PRESENCE]:
        picture = io.BytesIO()
        draw_presence(run.history, int(run.settings["clients"]), picture)
        label = f"{'; '.join(labels)} (seed {run.seed})"
        pictures.append({"label": label, "png": base64.b64encode(picture.getvalue()).decode()})
    return pictures


def _pictures(pictures: Sequence[dict[str, str]]) -> str:
    """The page's section with the charts of client availability; empty if there are none."""
    shown = "".join(
        f'<figure class="card"><figcaption>{html.escape(p["label"])}</figcaption>'
        f'<img alt="Client availability by round" src="data:image/png;base64,{p["png"]}"></figure>'
        for p in pictures
    )
    return f'<section id="presence"><h2>Client availability</h2>{shown}</section>' if shown else ""


def render(content: dict[str, Any]) -> str:
    """The HTML page. Text from run directories is untrusted and always escaped."""
    source = files("fedl2g.report") / "assets"
    style, script, page = ((source / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js", "html"))
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "@TITLE@": html.escape(str(content["title"])),
        "@HASH@": allowed,
        "@STYLE@": style,
        "@TABLE@": f"<caption>{html.escape(content['selection'])}</caption>{_table(content)}",
        "@PRESENCE@": _pictures(content.get("presence", [])),
        "@DATA@": embed_json({name: values for name, values in content.items() if name != "presence"}),
        "@SCRIPT@": script,
    }
    # In one pass, so that inserted text is not searched for placeholders.
    return re.sub("|".join(parts), lambda mark: parts[mark[0]], page)


def embed_json(values: object) -> str:
    """JSON that is safe inside a script element, whatever strings it contains."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _table(content: dict[str, Any]) -> str:
    """The results as static HTML, readable without scripts."""
    head = ("method", "best %", "last %", "at round", "up MB", "down MB", "client s", "warm-up s", "server s", "runs")
    groups = content["groups"]
    top = max((g["best"]["mean"] for g in groups if g["best"]["mean"] is not None), default=None)
    lines = ["<thead><tr>", *(f'<th scope="col">{name}</th>' for name in head), "</tr></thead><tbody>"]
    for group in groups:
        c = group["cost"]
        best = _percent(group["best"])
        if group["best"]["mean"] is not None and group["best"]["mean"] == top:
            best = f"<strong>{best}</strong>"
        others = "".join(
            f"<small>{html.escape(name)} {_percent(value)}</small>" for name, value in group["others"].items()
        )
        cells = [
            best + others,
            _percent(group["last"]),
            ABSENT if group["best_round"] is None else f"{group['best_round']:.0f}",
            *(_decimal(c[name], 3) for name in ("up_mb", "down_mb")),
            *(_decimal(c[name], 2) for name in ("client_s", "warmup_client_s")),
            _decimal(c["server_s"], 3),
            _states(group["runs"]),
        ]
        lines += [f'<tr><th scope="row">{html.escape(group["label"])}</th>', *(f"<td>{cell}</td>" for cell in cells)]
        lines.append("</tr>")
    return "".join([*lines, "</tbody>"])


def _percent(value: dict[str, float | None]) -> str:
    if value["mean"] is None:
        return ABSENT
    spread = "" if value["std"] is None else f" ± {100 * value['std']:.2f}"
    return f"{100 * value['mean']:.2f}{spread}"


def _decimal(value: float | None, digits: int) -> str:
    return ABSENT if value is None else f"{value:.{digits}f}"


def _states(runs: Sequence[dict[str, Any]]) -> str:
    states = [
        f"diverged in round {run['diverged']}" if run["diverged"] is not None else str(run["status"]) for run in runs
    ]
    unusual = [state for state in states if state != "finished"]
    return f"{len(runs)}" + (f"<small>{html.escape('; '.join(dict.fromkeys(unusual)))}</small>" if unusual else "")
