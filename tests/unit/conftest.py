"""Rules are checked on examples, not on the speed of the machine."""

import os

from hypothesis import HealthCheck, settings

# CI tries the same examples each time, so that it judges the change; `make test` by hand looks for new ones.
settings.register_profile(
    "hourhand",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("HOURHAND_REQUIRE_SERVICES") == "1",
)
settings.load_profile("hourhand")
