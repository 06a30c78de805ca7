"""The tests. A package, so that `tests.support` can be imported from wherever pytest is started."""

import pytest

pytest.register_assert_rewrite("tests.support")
