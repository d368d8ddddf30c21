# SPDX-License-Identifier: Apache-2.0
"""The gates of `make test`: small programs that each hold one promise of the repository."""
