# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of a running server: their table, their code, and the report that holds their evidence."""
