# SPDX-License-Identifier: Apache-2.0
"""Code of the fixes, installed beside the packages that they correct."""
