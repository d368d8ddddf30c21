# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The traps, by what they are about: system (any host), nvidia (GPUs, the GB10 among them), gaudi."""
