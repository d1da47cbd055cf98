"""Coroutines as tests, as among those with real processes."""

from __future__ import annotations

from tests.processes.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
