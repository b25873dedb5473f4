"""Rules are checked on examples, not on the speed of the machine."""

from hypothesis import HealthCheck, settings

settings.register_profile("hourhand", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hourhand")
