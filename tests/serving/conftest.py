"""Fixtures of tests that run workers."""

from tests.support.cluster_fixtures import *  # noqa: F403 - fixtures
