# SPDX-License-Identifier: Apache-2.0
"""Figures of a run over a converged host: counts, and times as ratios within one run of this program."""

from enplace import ROOT as ROOT  # and with it the collection is found
