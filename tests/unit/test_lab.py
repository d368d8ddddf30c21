# SPDX-License-Identifier: Apache-2.0
"""The choices the test hosts make from what they find, and what they say where there is no choice."""

from __future__ import annotations

import ipaddress
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sim.lab import LabError, image, podman, probe
from tests.sim.lab.hosts import Host, ca_bundle, ssh_config, wheels_folder

ROOT = Path(__file__).resolve().parents[2]

# An ordinary machine of today; each test says what is different on its own.
V2 = probe.Machine(
    cgroup="v2",
    capabilities=frozenset({"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_RESOURCE"}),
    hard_limits={"nofile": 1048576, "nproc": 96363},
    pid_max=4194304,
    runtimes=frozenset({"crun", "runc"}),
)
WITHOUT = frozenset({"CAP_SYS_ADMIN", "CAP_NET_ADMIN"})


class TestRuntimeAndLimits:
    """The container runtime and the limits its containers start with."""

    def test_v2_takes_podmans_defaults(self) -> None:
        assert probe.choose(V2) == probe.Choice("crun", (), ())

    def test_v2_takes_runc_where_crun_is_missing(self) -> None:
        assert probe.choose(replace(V2, runtimes=frozenset({"runc"}))).runtime == "runc"

    def test_v1_prefers_runc_and_says_why(self) -> None:
        choice = probe.choose(replace(V2, cgroup="v1"))
        assert choice.runtime == "runc"
        assert choice.reasons == ("runtime runc: the cgroup layout is v1",)

    def test_v1_takes_crun_where_runc_is_missing(self) -> None:
        assert probe.choose(replace(V2, cgroup="v1", runtimes=frozenset({"crun"}))).runtime == "crun"

    def test_hybrid_takes_runc_though_crun_is_there(self) -> None:
        assert probe.choose(replace(V2, cgroup="hybrid")).runtime == "runc"

    def test_hybrid_refuses_crun(self) -> None:
        with pytest.raises(LabError) as error:
            probe.choose(replace(V2, cgroup="hybrid", runtimes=frozenset({"crun"})))
        assert error.value.expected == "runc"
        assert error.value.found == "crun"
        assert "apt-get install runc" in error.value.todo

    @pytest.mark.parametrize(("layout", "wanted"), [("v2", "crun or runc"), ("v1", "runc or crun"), ("hybrid", "runc")])
    def test_no_runtime_at_all(self, layout: str, wanted: str) -> None:
        with pytest.raises(LabError) as error:
            probe.choose(replace(V2, cgroup=layout, runtimes=frozenset()))
        assert (error.value.expected, error.value.found) == (wanted, "none")

    def test_an_unknown_layout_is_refused(self) -> None:
        with pytest.raises(LabError, match="cgroup layout of this machine is unknown"):
            probe.choose(replace(V2, cgroup=""))

    @pytest.mark.parametrize("layout", ["v1", "hybrid", "v2"])
    def test_without_the_capability_no_limit_is_raised(self, layout: str) -> None:
        machine = replace(
            V2, cgroup=layout, capabilities=WITHOUT, hard_limits={"nofile": 20000, "nproc": 96363}, pid_max=32768
        )
        choice = probe.choose(machine)
        # podman has lowered its own limit of processes to pid_max by then: 96363 would be raising it again.
        assert choice.ulimits == ("nofile=20000:20000", "nproc=32768:32768")
        assert any("CAP_SYS_RESOURCE is missing" in reason for reason in choice.reasons)

    @pytest.mark.parametrize("layout", ["v1", "hybrid", "v2"])
    def test_with_the_capability_podman_sets_the_limits(self, layout: str) -> None:
        assert probe.choose(replace(V2, cgroup=layout)).ulimits == ()

    def test_unlimited_stays_within_what_podman_would_ask_for(self) -> None:
        limits = {"nofile": probe.UNLIMITED, "nproc": probe.UNLIMITED}
        choice = probe.choose(replace(V2, capabilities=WITHOUT, hard_limits=limits))
        assert choice.ulimits == ("nofile=1048576:1048576", "nproc=4194304:4194304")


class TestProbing:
    """What is read from the kernel."""

    V1 = "25 24 0:21 / /sys/fs/cgroup/memory rw,relatime shared:1 - cgroup cgroup rw,memory"
    UNIFIED = "26 24 0:22 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
    TMPFS = "24 20 0:20 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755"

    @pytest.mark.parametrize(
        ("lines", "layout"),
        [
            ([TMPFS, V1], "v1"),
            ([TMPFS, V1, UNIFIED], "hybrid"),
            (["24 20 0:20 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"], "v2"),
            ([TMPFS], ""),
            ([], ""),
        ],
    )
    def test_layout(self, lines: list[str], layout: str) -> None:
        assert probe.cgroup_layout("\n".join(lines)) == layout

    def test_capabilities(self) -> None:
        assert "CAP_SYS_RESOURCE" in probe.capabilities("Name:\tx\nCapEff:\t000001ffffffffff\n")
        assert probe.capabilities("CapEff:\t000001fffeffffff\n") == {"CAP_SYS_ADMIN", "CAP_NET_ADMIN"}
        assert probe.capabilities("CapEff:\t0000000000000000\n") == frozenset()

    def test_this_machine_can_be_probed(self) -> None:
        machine = probe.probe()
        assert machine.cgroup in ("v1", "hybrid", "v2")
        assert set(machine.hard_limits) == {"nofile", "nproc"}
        assert machine.pid_max > 0


class TestSubnet:
    """A free address range."""

    def test_the_seed_says_where_to_begin(self) -> None:
        assert str(probe.choose_subnet([], 0)) == "10.213.0.0/24"
        assert str(probe.choose_subnet([], 256 + 7)) == "10.213.7.0/24"

    def test_what_is_taken_is_passed_over(self) -> None:
        taken = [ipaddress.IPv4Network("10.213.0.0/24"), ipaddress.IPv4Network("10.213.1.128/25")]
        assert str(probe.choose_subnet(taken, 0)) == "10.213.2.0/24"

    def test_a_wide_route_moves_on_to_the_next_pool(self) -> None:
        assert str(probe.choose_subnet([ipaddress.IPv4Network("10.0.0.0/8")], 3)) == "172.29.3.0/24"

    def test_default_routes_in_halves_do_not_count(self) -> None:
        halves = [ipaddress.IPv4Network("0.0.0.0/1"), ipaddress.IPv4Network("128.0.0.0/1")]
        assert str(probe.choose_subnet(halves, 0)) == "10.213.0.0/24"

    def test_exhausted(self) -> None:
        with pytest.raises(LabError) as error:
            probe.choose_subnet([ipaddress.IPv4Network(pool) for pool in probe.NETWORK_POOLS], 0)
        assert "No free address range" in error.value.what
        assert "down --all" in error.value.todo

    def test_routes_are_read_from_ip(self) -> None:
        addresses = json.dumps([{"ifname": "eth0", "addr_info": [{"local": "192.0.2.2", "prefixlen": 24}]}, {}])
        table = json.dumps([{"dst": "default", "dev": "eth0"}, {"dst": "198.51.100.0/24"}, {"dst": "203.0.113.9"}])
        found = [str(network) for network in probe.routes(addresses, table)]
        assert found == ["192.0.2.0/24", "198.51.100.0/24", "203.0.113.9/32"]
        assert probe.routes("", "") == []


class TestSources:
    """Mirrors are this machine's own; the lines have the form of `apt-get indextargets`."""

    @staticmethod
    def target(
        release: str, uri: str = "http://mirror.test/debian/", component: str = "main", origin: str = "Debian"
    ) -> str:
        return f"{uri}|{release}|{component}|{origin}|$(SIGNED_BY)|Packages"

    def test_a_machine_of_another_release_lends_its_mirrors(self) -> None:
        targets = [self.target(f"trixie{suffix}") for suffix in ("-security", "", "-updates")]
        assert image.sources("\n".join(targets), "trixie", "bookworm") == [
            f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.test/debian/ {release} main"
            for release in ("bookworm", "bookworm-updates", "bookworm-security")
        ]

    def test_other_peoples_repositories_are_left_out(self) -> None:
        targets = [
            self.target("bookworm"),
            self.target("bookworm", uri="http://vendor.test/", origin="Vendor"),
            "http://vendor.test/|bookworm|main|$(ORIGIN)|/usr/share/keyrings/vendor.gpg|Packages",
            self.target("bookworm-vendor"),
            self.target("bookworm", component="contrib"),
            self.target("bookworm", uri="file:/srv/mirror/"),
        ]
        assert len(image.sources("\n".join(targets), "bookworm")) == 1

    def test_without_lists_the_key_decides(self) -> None:
        target = "http://mirror.test/debian/|bookworm|main|$(ORIGIN)|$(SIGNED_BY)|Packages"
        assert len(image.sources(target, "bookworm")) == 1

    def test_no_mirror_of_the_release_leaves_it_to_mmdebstrap(self) -> None:
        assert image.sources(self.target("bookworm-security"), "bookworm") == []
        assert image.sources("", "bookworm") == []

    def test_the_name_follows_the_inputs(self) -> None:
        assert image.reference(["deb a"]) == image.reference(["deb a"])
        assert image.reference(["deb a"]) != image.reference(["deb b"])


class TestFiles:
    """What is written into a checkout, and what is kept of an earlier boot."""

    def test_ssh_config_of_a_checkout_with_an_awkward_path(self, tmp_path: Path) -> None:
        """ssh itself reads the file back."""
        root = tmp_path / "100% of it"
        host = Host("demo", "192.0.2.10", "running", "image", "container", True)
        config = tmp_path / "config"
        config.write_text(ssh_config(root, [host]), encoding="utf-8")
        command = ["ssh", "-G", "-F", str(config), "demo"]
        read = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        assert "hostname 192.0.2.10" in read
        assert "user admin" in read
        assert "stricthostkeychecking true" in read
        assert f"userknownhostsfile {root}/.lab/known_hosts" in [line.replace("%%", "%") for line in read]

    def test_written_whole_and_only_when_different(self, tmp_path: Path) -> None:
        path = tmp_path / "folder" / "file"
        podman.write_atomically(path, "one", mode=0o600)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        first = path.stat().st_ino
        podman.write_atomically(path, "one", mode=0o600)
        assert path.stat().st_ino == first
        podman.write_atomically(path, "two", mode=0o600)
        assert path.read_text(encoding="utf-8") == "two"
        assert os.listdir(path.parent) == ["file"]

    def test_addresses_of_an_earlier_boot_are_forgotten_and_others_not(self, tmp_path: Path) -> None:
        leases = tmp_path / "ipam.db"
        assert podman.forget_leases(leases, 1000.0) is False
        leases.touch()
        os.utime(leases, (2000, 2000))
        assert podman.forget_leases(leases, 1000.0) is False
        assert leases.exists()
        assert podman.forget_leases(leases, 3000.0) is True
        assert not leases.exists()


class TestMounts:
    """What of this machine a host gets to see."""

    def test_the_first_existing_wheels_folder(self, tmp_path: Path) -> None:
        for value in (f"/nowhere {tmp_path}", f"/nowhere:{tmp_path}", f"file://{tmp_path}", f" {tmp_path} /usr"):
            assert wheels_folder({"PIP_FIND_LINKS": value}) == tmp_path

    @pytest.mark.parametrize("value", ["", "/nowhere", "http://wheels.test/simple", "relative/folder"])
    def test_no_wheels_folder(self, value: str) -> None:
        assert wheels_folder({"PIP_FIND_LINKS": value}) is None
        assert wheels_folder({}) is None

    def test_the_ca_bundle_by_order(self, tmp_path: Path) -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        one.touch()
        two.touch()
        assert ca_bundle({"SSL_CERT_FILE": str(one), "REQUESTS_CA_BUNDLE": str(two)}) == one
        assert ca_bundle({"REQUESTS_CA_BUNDLE": str(two)}) == two

    def test_a_ca_bundle_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(LabError) as error:
            ca_bundle({"SSL_CERT_FILE": str(tmp_path / "gone")})
        assert "SSL_CERT_FILE" in error.value.where
        assert error.value.found.endswith("/gone")


class TestMessages:
    """The command as a person meets it. Every refusal is exit status 3 and no traceback."""

    @pytest.mark.skipif(os.geteuid() != 0, reason="the message about root comes first")
    def test_without_podman(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "tests.sim.lab", "up", "demo9"],
            cwd=ROOT,
            env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 3
        assert "podman is missing" in done.stderr
        assert "tests/sim/bootstrap" in done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
    def test_without_root_and_sudo(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-c", STATUS_AS_NOBODY],
            cwd=ROOT,
            env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 3, done.stderr
        assert "Test hosts need root" in done.stderr
        assert "through sudo" in done.stderr

    def test_the_parts_of_a_message_are_labelled(self) -> None:
        error = LabError("It failed.", where="here", expected="a", found="b", todo="do c")
        assert str(error) == "It failed.\n  where: here\n  expected: a\n  found: b\n  to do: do c"
        assert str(LabError("It failed.")) == "It failed."


# The modules are loaded as root: another user may not even reach them.
STATUS_AS_NOBODY = """
import os, sys
from tests.sim.lab import __main__ as lab
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.argv = ["lab", "status"]
sys.exit(lab.main())
"""
