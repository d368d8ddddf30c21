# SPDX-License-Identifier: Apache-2.0
"""What make bench reads out of another program's words."""

from __future__ import annotations

import pytest

from tests.bench.__main__ import pyinfra_changes

TABLE = """
    Operation              Hosts   Success   Error   No Change
    packages               1       -         -       1
    Grand total            {sums}

--> Disconnecting from hosts...
"""


@pytest.mark.parametrize(
    ("sums", "changes"), [("35      -         -       35          ", 0), ("35  2  -  33", 2), ("35  2  1  32", 3)]
)
def test_what_pyinfra_found_to_do(sums: str, changes: int) -> None:
    assert pyinfra_changes(TABLE.format(sums=sums)) == changes


@pytest.mark.parametrize("said", ["", TABLE.format(sums="35"), TABLE.format(sums="35 - - 30 5")])
def test_a_table_of_another_form_is_refused(said: str) -> None:
    with pytest.raises(SystemExit, match="no sum"):
        pyinfra_changes(said)
