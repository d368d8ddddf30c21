# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who fetches weights for the fleet, who takes them from whom: decided from what the hosts of a play said they want."""

from __future__ import annotations

import typing as t

Models = t.Sequence[t.Mapping[str, t.Any]]
HostVars = t.Mapping[str, t.Mapping[str, t.Any]]

#: Facts and results by which the tasks of the role weights tell each other; the names are those of fleet.yml.
WANTED = "__weights_wanted"
ADDRESS = "__weights_address"
LOOKED = "__weights_looked"
OFFERED = "__weights_offered"


def key_of(model: t.Mapping[str, t.Any]) -> str:
    return "{}@{}".format(model["repo"], model["revision"])


def wanted_by(host: str, hostvars: HostVars) -> Models:
    """What a host said that it wants; nothing where it was not asked in this run."""
    return (hostvars[host].get(WANTED) or []) if host in hostvars else []


def fleet_fetching(hosts: t.Sequence[str], hostvars: HostVars) -> list[str]:
    """The hosts that said that they want something."""
    return [host for host in hosts if wanted_by(host, hostvars)]


def fleet_wanted(hosts: t.Sequence[str], hostvars: HostVars) -> list[t.Mapping[str, t.Any]]:
    """The models that any of the hosts wants, each once; where manifests differ, the one with more files."""
    models: dict[str, t.Mapping[str, t.Any]] = {}
    for host in hosts:
        for model in wanted_by(host, hostvars):
            known = models.get(key_of(model))
            if known is None or len(model["files"]) > len(known["files"]):
                models[key_of(model)] = model
    return list(models.values())


def fleet_sources(hosts: t.Sequence[str], hostvars: HostVars) -> dict[str, str]:
    """The source of each model: a host that was found to have it whole, else the first one that wants it."""
    whole: dict[str, str] = {}
    for host in hosts:
        for result in (hostvars[host].get(LOOKED) or {}).get("results", []):
            for key in result.get("whole") or []:
                whole.setdefault(key, str(result["__weights_candidate"]))
    sources: dict[str, str] = {}
    for host in hosts:
        for model in wanted_by(host, hostvars):
            key = key_of(model)
            sources.setdefault(key, whole.get(key, host))
    return sources


def fleet_takers(hosts: t.Sequence[str], hostvars: HostVars, sources: t.Mapping[str, str], source: str) -> list[str]:
    """The hosts that take something from a source, in the play's order."""
    return [
        host
        for host in hosts
        if host != source and any(sources.get(key_of(model)) == source for model in wanted_by(host, hostvars))
    ]


def fleet_led(hosts: t.Sequence[str], hostvars: HostVars, sources: t.Mapping[str, str], host: str) -> list[str]:
    """The sources that a host speaks to on behalf of all who take from them: it is the first of those."""
    return sorted(
        source for source in set(sources.values()) if fleet_takers(hosts, hostvars, sources, source)[:1] == [host]
    )


def fleet_address(host: str, hostvars: HostVars) -> str:
    """The address by which other hosts reach one."""
    known = hostvars.get(host, {})
    return str(known.get(ADDRESS) or known.get("enplace_fleet_address") or known.get("ansible_host") or host)


def fleet_offers(
    models: Models,
    hosts: t.Sequence[str],
    hostvars: HostVars,
    sources: t.Mapping[str, str],
    by: t.Mapping[str, t.Any],
) -> list[dict[str, t.Any]]:
    """What the module weights is told of the neighbours. One that could not offer is named, with nothing.

    ``by``: the run's name and the daemons' port.
    """
    offers = []
    for model in models:
        key = key_of(model)
        source = sources[key]
        etags: t.Mapping[str, str] = {}
        reason = "it was not reached, or does not have all of it"
        for host in hosts:
            for result in (hostvars[host].get(OFFERED) or {}).get("results", []):
                if result.get("__weights_source_host") == source:
                    etags = (result.get("etags") or {}).get(key) or etags
                    reason = ", ".join(str(result.get("msg") or reason).split("\n  "))
        offers.append(
            {
                "model": key,
                "name": source,
                "address": fleet_address(source, hostvars),
                "port": int(by["port"]),
                "run": by["run"],
                "etags": dict(etags),
                "reason": "" if etags else reason,
            }
        )
    return offers


def fleet_part(models: Models, sources: t.Mapping[str, str], host: str, own: bool) -> list[t.Mapping[str, t.Any]]:
    """The models that a host fetches itself (own), or takes from others."""
    return [model for model in models if (sources.get(key_of(model), host) == host) == own]


class FilterModule:
    """Filters of the role weights."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {
            "fleet_fetching": fleet_fetching,
            "fleet_wanted": fleet_wanted,
            "fleet_sources": fleet_sources,
            "fleet_takers": fleet_takers,
            "fleet_led": fleet_led,
            "fleet_address": fleet_address,
            "fleet_offers": fleet_offers,
            "fleet_part": fleet_part,
        }
