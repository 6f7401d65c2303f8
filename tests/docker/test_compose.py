"""Bounds of the containers in `docker/compose.yaml`, read as text; `make docker` runs them."""

from pathlib import Path

import yaml  # type: ignore[import-untyped]

COMPOSE = Path(__file__).parents[2] / "docker" / "compose.yaml"


def test_no_container_takes_the_machine_with_it() -> None:
    services = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    assert set(services) == {"bootstrap", "founder", "peer-1", "peer-2"}
    for service in services.values():
        assert service["read_only"] is True
        assert "configs" not in service, "compose cannot write them into a read-only container"
        assert service["tmpfs"] == ["/tmp:mode=1777,size=64m"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["mem_limit"] == "2g"
        assert service["pids_limit"] == 1024
        written = {each.split(":")[1] for each in service["volumes"]}
        assert "/state" in written, "the rest is read-only"
