"""The fixtures of tests that run workers."""

from tests.support.runs.cluster_fixtures import *  # noqa: F403 - fixtures apply to the folder whose conftest has them
