"""The manifests in ``conf/kubernetes``: valid for Kubernetes, and true of the programs that they start."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonpatch
import kubernetes_validate
import pytest
import yaml

from umaserve.cli import main
from umaserve.commands import pull
from umaserve.core.metrics import ServingMetrics
from umaserve.daemon.http.pages import openapi as daemon_openapi
from umaserve.daemon.vllm_metrics import vllm_metrics
from umaserve.models.loaded_model import NOT_LOADED
from umaserve.relay.http.pages import openapi as relay_openapi
from umaserve.settings.daemon import SETTINGS as DAEMON
from umaserve.settings.relay import SETTINGS as RELAY

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "conf/kubernetes"
VERSIONS = "1.30", "1.36"
PLAIN = ("kustomization.yaml", "daemon-patch.yaml", "network-policy-patch.yaml")
"""Files that are no objects of Kubernetes'."""
OF_EXTENSIONS = ("monitoring.coreos.com/", "keda.sh/", "inference.networking.k8s.io/", "gateway.networking.k8s.io/")
FILES = sorted(path for path in FOLDER.glob("**/*.yaml") if path.name not in PLAIN)


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def deployments() -> Iterator[tuple[str, dict[str, Any]]]:
    """All with our image, also as the patches leave them."""
    for path in FILES:
        for one in documents(path):
            if one["kind"] == "Deployment" and one["metadata"]["name"] != "umaserve-picker":
                yield str(path.relative_to(FOLDER)), one
    yield "pool", patched()


def patched() -> dict[str, Any]:
    (daemon,) = (one for one in documents(FOLDER / "daemon/deployment.yaml") if one["kind"] == "Deployment")
    patch = yaml.safe_load((FOLDER / "pool/daemon-patch.yaml").read_text())
    found: dict[str, Any] = jsonpatch.apply_patch(copy.deepcopy(daemon), patch)
    return found


def settings_of(arguments: Sequence[str]) -> Any:
    """Raises ConfigError for a flag that isn't one, and for values that can't be."""
    settings, flags = (RELAY, arguments[1:]) if arguments[0] == "relay" else (DAEMON, arguments)
    by_flag = {one.flag: one for one in settings.by_key.values()}
    given: dict[str, Any] = {}
    for argument in flags:
        flag, _, value = argument.partition("=")
        given[by_flag[flag].key] = value if value or not isinstance(by_flag[flag].default, bool) else True
    return settings.load(given, {}).config


OURS = list(deployments())
NAMES = [name for name, _ in OURS]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_manifests_are_valid(path: Path, version: str) -> None:
    for one in documents(path):
        if not one["apiVersion"].startswith(OF_EXTENSIONS):
            kubernetes_validate.validate(one, version, strict=True)


def test_a_manifest_with_a_field_that_is_none_is_refused() -> None:
    (daemon, *_) = documents(FOLDER / "daemon/deployment.yaml")
    daemon["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(daemon, VERSIONS[0], strict=True)


@pytest.mark.parametrize("folder", [path.parent for path in FOLDER.glob("**/kustomization.yaml")], ids=str)
def test_kustomizations_name_all_files(folder: Path) -> None:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    patches = {patch["path"] for patch in kustomization.get("patches", ())}
    assert {*kustomization["resources"], *patches} - {"../daemon"} == {path.name for path in folder.glob("*.yaml")} - {
        "kustomization.yaml"
    }


@pytest.mark.parametrize(("name", "deployment"), OURS, ids=NAMES)
def test_flags_ports_and_probes_are_the_programs_own(name: str, deployment: dict[str, Any]) -> None:
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    config = settings_of(container["args"])
    address = config.listen if container["args"][0] == "relay" else config.http
    (port,) = container["ports"]
    assert int(address.rpartition(":")[2]) == port["containerPort"]
    assert "*" in config.allow_host, "the kubelet calls by address"
    openapi = relay_openapi if container["args"][0] == "relay" else daemon_openapi
    known = json.loads(openapi())["paths"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if probe in container:
            assert container[probe]["httpGet"]["path"] in known
            assert container[probe]["httpGet"]["port"] == port["name"]
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1]) if "lifecycle" in container else 0
    assert pod["terminationGracePeriodSeconds"] > pause + config.drain_grace + config.drain_timeout
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("name", ["daemon/deployment.yaml", "relay/workers.yaml"])
def test_daemons_have_time_to_start_and_are_evicted_one_after_another(name: str) -> None:
    by_kind = {one["kind"]: one for one in documents(FOLDER / name)}
    deployment, budget = by_kind["Deployment"]["spec"], by_kind["PodDisruptionBudget"]["spec"]
    assert budget["selector"] == deployment["selector"]
    assert 0 < budget["maxUnavailable"] < deployment["replicas"]
    (container,) = deployment["template"]["spec"]["containers"]
    started, alive = container["startupProbe"], container["livenessProbe"]
    assert started["httpGet"] == alive["httpGet"]
    assert started["periodSeconds"] * started["failureThreshold"] >= 120


def test_a_model_is_downloaded_to_where_the_daemons_look(monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = documents(FOLDER / "models/pull.yaml")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ran: list[Sequence[str]] = []
    monkeypatch.setattr(pull, "run", lambda arguments, _write: ran.append(arguments) or 0)
    assert main(container["args"]) == 0
    ((_name, folder),) = ran
    daemon = next(one for one in documents(FOLDER / "daemon/deployment.yaml") if one["kind"] == "Deployment")
    assert folder in daemon["spec"]["template"]["spec"]["containers"][0]["args"]
    (claim,) = documents(FOLDER / "daemon/volumes.yaml")
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
    assert container["volumeMounts"][0] == {"name": pod["volumes"][0]["name"], "mountPath": folder.partition("=")[2]}
    assert "hub" in (ROOT / "Containerfile").read_text().partition("EXTRAS=")[2].splitlines()[0].split(",")


def test_commands_name_the_labels_of_the_policies() -> None:
    policies = "".join(path.read_text() for path in FOLDER.glob("**/network-policy*.yaml"))
    wanted = set(re.findall(r'namespaceSelector:\s+matchLabels: \{(\S+): "true"\}', policies))
    shown = "".join(path.read_text() for path in FOLDER.glob("**/kustomization.yaml"))
    assert wanted == set(re.findall(r"kubectl label namespace \S+ (\S+)=true", shown)) != set()


@pytest.mark.parametrize(("name", "deployment"), OURS, ids=NAMES)
def test_what_is_written_and_read_is_mounted(name: str, deployment: dict[str, Any]) -> None:
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    for argument in container["args"]:
        value = argument.partition("=")[2]
        if value.startswith("/"):
            assert any(value.startswith(mount) for mount in mounts), argument


def test_a_daemon_is_where_services_and_policies_look() -> None:
    by_name = {one["metadata"]["name"]: one for _, one in OURS[:-1]}
    for path in FILES:
        for one in documents(path):
            if one["kind"] == "Service" and one["metadata"]["name"] in by_name:
                labels = by_name[one["metadata"]["name"]]["spec"]["template"]["metadata"]["labels"]
                assert one["spec"]["selector"].items() <= labels.items()
    (pool, _route) = documents(FOLDER / "pool/inference-pool.yaml")
    assert pool["spec"]["selector"]["matchLabels"] == by_name["umaserve"]["spec"]["selector"]["matchLabels"]
    assert pool["spec"]["targetPorts"] == [{"number": 8080}]


def test_the_metrics_that_others_read_are_exported() -> None:
    page = vllm_metrics(ServingMetrics().registry, {}, {}).decode()
    (picker, *_) = documents(FOLDER / "pool/endpoint-picker.yaml")
    arguments = picker["spec"]["template"]["spec"]["containers"][0]["args"]
    wanted = [argument.partition("=")[2] for argument in arguments if "=vllm:" in argument]
    assert len(wanted) == 3
    for name in wanted:
        assert f"# TYPE {name} gauge" in page
    assert patched()["spec"]["template"]["spec"]["containers"][0]["args"][-1] == "--vllm-metrics"
    (scaled,) = documents(FOLDER / "monitoring/scaled-object.yaml")
    (name,) = re.findall(r"umaserve_(\w+)", scaled["spec"]["triggers"][0]["metadata"]["query"])
    assert name in NOT_LOADED
