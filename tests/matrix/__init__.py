# SPDX-License-Identifier: Apache-2.0
"""What makes a check fail: a real engine with one behaviour broken, and which checks find it."""
