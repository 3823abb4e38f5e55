"""The fixed-duration load client: protocol timeline, exact schedules, verified requests."""
