"""`hourhand verify`: runs a real fleet under faults, and judges it from outside."""
