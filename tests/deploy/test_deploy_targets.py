"""What starts a federation: units, compose files and manifests, checked by schemas and by the tools that are there.

No container is built or started by these tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

import yaml

from fedl2g.deploy.scaffold import Plan, scaffold
from fedl2g.errors import SettingError
from fedl2g.schema import Schema, image_schema

ROLES = ("coordinator", "sites/north", "sites/south_2")


def written(tmp_path: Path, target: Any) -> Path:
    folder = tmp_path / "my fed"
    scaffold(Plan(folder, ("north", "south_2"), ("a", "b"), image_schema(1, 8, 8), "fl.example.org", 8443, target))
    for site in ("north", "south_2"):
        (folder / "sites" / site / "ca.crt").write_text("public")
    return folder


def run(*command: str, **kwargs: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def script(name: str) -> str:
    found = Path(sys.executable).with_name(name)
    if not found.exists():
        pytest.skip(f"{name} is not installed")
    return str(found)


def test_compose_files_follow_the_compose_specification(tmp_path: Path) -> None:
    folder = written(tmp_path, "compose")
    files = [str(folder / role / "compose.yaml") for role in ROLES]
    run(script("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", *files)
    for file in files:
        (service,) = yaml.safe_load(Path(file).read_text())["services"].values()
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][:3] == ["CMD", "fedl2g", "deploy"]
        assert service["cap_drop"] == ["ALL"]
        places = {volume.split(":")[1] for volume in service["volumes"]}
        keys, state = ("certificates", "") if "superlink" in file or "coordinator" in file else ("keys", "store")
        base = "/coordinator" if keys == "certificates" else "/site"
        assert {f"{base}/{keys}", f"{base}/{state}".rstrip("/")} <= places


@pytest.mark.parametrize("kind", ["image", "table", "text", "signal"])
def test_a_container_has_the_data_that_its_site_names(kind: str, tmp_path: Path) -> None:
    schema = {
        "image": image_schema(1, 8, 8),
        "table": Schema.from_json({"kind": "table", "columns": {"age": "number"}}),
        "text": Schema.from_json({"kind": "text", "shape": [16]}),
        "signal": Schema.from_json({"kind": "signal", "shape": [3, 9]}),
    }[kind]
    scaffold(Plan(tmp_path / "fed", ("north",), ("a", "b"), schema, "fl.example.org", 8443, "compose"))
    site = tmp_path / "fed" / "sites" / "north"
    (service,) = yaml.safe_load((site / "compose.yaml").read_text())["services"].values()
    mounted = {Path(place) for place, _, mode in (v.split(":") for v in service["volumes"] if v.count(":") == 2)}
    data = Path(tomllib.loads((site / "site.toml").read_text())["data"])
    assert mounted & {data, *data.parents} == {Path("data")}


@pytest.mark.parametrize(("target", "command"), [("compose", "docker compose"), ("k8s", "kubectl")])
def test_the_readme_says_what_to_do_with_containers(target: Any, command: str, tmp_path: Path) -> None:
    folder = written(tmp_path, target)
    for role in ("", "sites/north", "sites/south_2"):
        readme = (folder / role / "README.md").read_text()
        assert f"{command} exec" in readme
        assert ".sh\n" not in readme  # the scripts are for the machine itself, not for its containers
        assert "$name" not in readme
        assert "$unit" not in readme
    if target == "k8s":
        manifest = yaml.safe_load((folder / "sites/south_2/kubernetes.yaml").read_text())
        assert f"{manifest['metadata']['name']}-0 --container site" in readme


@pytest.mark.parametrize(
    ("sites", "classes", "sentence"),
    [
        (("North", "north"), ("a", "b"), "--site: 'North' and 'north' would have the same folder or service"),
        (("a_b", "a-b"), ("a", "b"), "--site: 'a_b' and 'a-b' would have the same folder or service"),
        (("north",), ("a\nb", "c"), "--class: fewer than two classes, or a name with"),
    ],
)
def test_names_that_files_cannot_hold_are_refused(
    sites: tuple[str, ...], classes: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=re.escape(sentence)):
        scaffold(Plan(tmp_path / "fed", sites, classes, image_schema(1, 8, 8)))
    assert not (tmp_path / "fed").exists()


def test_manifests_follow_the_schemas_of_kubernetes(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    pytest.importorskip("kubernetes_validate")
    import kubernetes_validate

    folder = written(tmp_path, "k8s")
    for role in ROLES:
        resources = list(yaml.safe_load_all(run("kubectl", "kustomize", str(folder / role))))
        for resource in resources:
            kubernetes_validate.validate(resource, "1.30", strict=True)
        (stateful,) = (one for one in resources if one["kind"] == "StatefulSet")
        config = {one["metadata"]["name"] for one in resources if one["kind"] == "ConfigMap"}
        pod = stateful["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert {v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v} == config
        for container in (*pod["containers"], *pod["initContainers"]):
            assert container["image"] == "fedl2g:latest"
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "livenessProbe" in pod["containers"][0]
        claims = {claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]}
        assert claims == ({"state", "certificates"} if role == "coordinator" else {"keys", "store"})


def test_an_image_does_not_run_as_root_and_takes_cuda_by_an_argument(tmp_path: Path) -> None:
    folder = written(tmp_path, "compose")
    for role in ROLES:
        lines = (folder / role / "Dockerfile").read_text().splitlines()
        assert "ARG TORCH_BACKEND=cpu" in lines
        assert any('--torch-backend="${TORCH_BACKEND}"' in line for line in lines)
        assert [line for line in lines if line.startswith("USER")] == ["USER 10001:10001"]
        assert not any("://" in line for line in lines)  # no host of a registry


def test_units_are_installed_for_the_current_folder(tmp_path: Path) -> None:
    folder = written(tmp_path, "systemd")
    moved = tmp_path / "a 100% other place"
    folder.rename(moved)
    units = tmp_path / "units"
    units.mkdir()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for role in ROLES:
        run("sh", str(moved / role / "install-service.sh"), "hospital", str(units), env=environment)
        refused = subprocess.run(
            ["sh", str(moved / role / "install-service.sh"), "root", str(units)], capture_output=True, env=environment
        )
        assert refused.returncode == 2
    names = {unit.name for unit in units.iterdir()}
    assert names == {"my-fed-superlink.service", "my-fed-north.service", "my-fed-south-2.service"}
    for unit in units.iterdir():
        text = unit.read_text()
        assert "@" not in text.split("[Unit]")[1]
        assert "User=hospital" in text
        assert "Restart=always" in text
        assert str(moved).replace("%", "%%") in text
    if shutil.which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "verify", *map(str, units.iterdir())], capture_output=True, text=True)
        said = [line for line in done.stderr.splitlines() if str(units) in line]
        assert said == [], done.stderr
