import pytest

pytest.register_assert_rewrite("wtransport.testing")
