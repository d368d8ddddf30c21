# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated model hub for tests, and the repositories that it serves."""
