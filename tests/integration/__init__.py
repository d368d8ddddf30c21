# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Tests with real programs: test hosts, the hub's own client, the engine's own Python."""
