# SPDX-License-Identifier: Apache-2.0
"""Settings of all unit tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about what is tested.
settings.register_profile("enplace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("enplace")
