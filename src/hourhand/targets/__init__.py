"""What a run can call."""
