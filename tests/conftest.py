"""Settings every test shares."""

try:
    from hypothesis import settings
except ImportError:  # a GPU host runs the tests marked `gpu` with torch and pytest alone
    pass
else:
    # A deadline per example asserts speed; on a busy machine it fails tests that are right.
    settings.register_profile("labkit", deadline=None)
    settings.load_profile("labkit")
