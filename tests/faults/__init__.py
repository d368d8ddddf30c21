# SPDX-License-Identifier: Apache-2.0
"""What may break while a host changes from one release to the next, done to a test host with a real engine."""
