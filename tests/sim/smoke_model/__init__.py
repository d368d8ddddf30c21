# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""How the smoke model is made: a tiny Qwen3-Next, trained to answer the checks."""
