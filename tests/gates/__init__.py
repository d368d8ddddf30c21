# SPDX-License-Identifier: Apache-2.0
"""The gates of `make test`: small programs that each hold one promise of the repository."""

from enplace import ROOT as ROOT  # and with it the collection is found
