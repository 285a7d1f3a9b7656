"""Settings every test shares."""

from hypothesis import settings

# A deadline per example asserts speed; on a busy machine it fails tests that are right.
settings.register_profile("labkit", deadline=None)
settings.load_profile("labkit")
